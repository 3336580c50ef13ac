"""
What a command costs, and how soon after an interrupt it is gone with all its tree.

Gone is: no process of its tree lives any more, as the system tells from outside. Then
the same from the interrupt until the call's own task has ended, which knows that, too.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread

from anyio_toolbatch import CommandResult, ToolCall, ToolRunner, run_command

from .backends import run_on
from .pairing import Rounds, percentile, race
from .report import Report, seconds, times

COMMAND = ["true"]
OURS, ANYIO, THREAD = "run_command", "anyio.run_process", "subprocess.run in a thread"
GENERATIONS = 3
TREE = [
    *("sh", "-c", 'sh -c "$1" second "$2" & echo $$ >> "$JOURNAL"; wait', "first"),
    'sh -c "$1" & echo $$ >> "$JOURNAL"; wait',
    'echo $$ >> "$JOURNAL"; exec sleep 600',
]
GONE_BOUND = 0.1
PATIENCE = 10.0


def measure(backend: str, quick: bool, report: Report) -> None:
    _cost(backend, run_on(backend, _race, 10 if quick else 100), report)
    _gone(backend, run_on(backend, _interrupt_all, 10 if quick else 100), report)


async def _race(count: int) -> Rounds:
    contenders = {
        OURS: lambda: run_command(COMMAND),
        ANYIO: lambda: anyio.run_process(COMMAND),
        THREAD: lambda: anyio.to_thread.run_sync(
            lambda: subprocess.run(COMMAND, capture_output=True, check=True)
        ),
    }
    return await race(count, contenders)


def _cost(backend: str, rounds: Rounds, report: Report) -> None:
    rows = [
        [
            name,
            seconds(rounds.median(name)),
            seconds(rounds.p99(name)),
            times(rounds.ratio(name, OURS)),
        ]
        for name in (OURS, ANYIO, THREAD)
    ]
    head = ("", "p50", "p99", f"÷ {OURS}")
    report.table(f"{backend}: {' '.join(COMMAND)!r}, from call to result", head, rows)
    ratio = rounds.ratio(OURS, ANYIO)
    report.at_most(backend, f"{OURS} ÷ {ANYIO}", 1.5, ratio, times)


async def _interrupt_all(count: int) -> tuple[list[float], list[float], int, int]:
    gone, ended, survivors = [], [], 0
    descriptors = 0
    for number in range(count + 1):
        with tempfile.TemporaryDirectory() as folder:
            pids_gone, call_ended, left = await _interrupt(Path(folder, "journal"))
        if not number:  # the first run opens what stays open
            descriptors = _descriptors()
            continue
        gone.append(pids_gone)
        ended.append(call_ended)
        survivors += left
    return gone, ended, survivors, _descriptors() - descriptors


async def _interrupt(journal: Path) -> tuple[float, float, int]:
    journal.touch()
    env = {**os.environ, "JOURNAL": str(journal)}

    async def tree() -> CommandResult:
        return await run_command(TREE, env=env)

    runner = ToolRunner([tree])
    async with runner.open_batch([ToolCall("1", "tree")]) as batch:
        while len(pids := journal.read_text().split()) < GENERATIONS:
            await anyio.sleep(0.001)
        witness = _Witness([int(pid) for pid in pids])
        start = time.perf_counter()
        batch.interrupt()
    assert await runner.wait_detached(PATIENCE)
    ended = time.perf_counter() - start
    return witness.gone_at() - start, ended, witness.survivors


class _Witness(threading.Thread):
    """Looks from another thread, so that the loop is not asked about itself."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self._pids = pids
        self._gone_at = 0.0
        self.survivors = 0
        self.start()

    def run(self) -> None:
        until = time.perf_counter() + PATIENCE
        while (left := [pid for pid in self._pids if _lives(pid)]) and (
            time.perf_counter() < until
        ):
            time.sleep(0.0002)
        self._gone_at = time.perf_counter()
        self.survivors = len(left)

    def gone_at(self) -> float:
        self.join()
        return self._gone_at


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def _gone(
    backend: str, runs: tuple[list[float], list[float], int, int], report: Report
) -> None:
    gone, ended, survivors, descriptors = runs
    rows = [
        [name, *(seconds(percentile(values, share)) for share in (0.5, 0.99, 1.0))]
        for name, values in (("all processes gone", gone), ("the call's task ended", ended))
    ]
    head = ("from interrupt until", "p50", "p99", "longest")
    what = f"tree of {GENERATIONS} generations, {len(gone)} runs"
    report.table(f"{backend}: {what}", head, rows)
    report.at_most(backend, f"{what}: gone, p99", GONE_BOUND, percentile(gone, 0.99), seconds)
    report.expect(backend, f"{what}: survivors", "0", str(survivors))
    report.expect(backend, f"{what}: descriptors left", "0", str(descriptors))
