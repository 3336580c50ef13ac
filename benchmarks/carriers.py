"""
What a call costs on each carrier, beside what that carrier stands on; and what is left.

Alone: one call, awaited. Many: the calls of one batch, per call. What stands beside a
batch in an executor submits all and parks one thread for them: the least that waits
for futures on every loop. Then workers are interrupted while they compute: how
soon the process is gone, as the system tells, and what is left after very many cuts.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_process
import anyio.to_thread

from anyio_toolbatch import Tool, ToolCall, ToolRunner, run_command

from .backends import BACKENDS, run_on
from .pairing import Rounds, percentile, race
from .report import Report, seconds, times

MANY = 100
WORKERS = 4
GONE_BOUND = 0.1
PATIENCE = 10.0
CUTS_AT_ONCE = 10


def no_op(number: int) -> int:
    return number


async def no_op_async(number: int) -> int:
    return number


def compute(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


def measure(backend: str, quick: bool, report: Report) -> None:
    alone, many = run_on(backend, _race_all, backend, 10 if quick else 60)
    for title, rounds, calls in (("alone", alone, 1), (f"{MANY} in a batch", many, MANY)):
        rows = [
            [
                name,
                seconds(rounds.median(name) / calls),
                beside,
                seconds(rounds.median(beside) / calls),
                times(rounds.ratio(name, beside)),
            ]
            for name, beside in BESIDE.items()
        ]
        head = ("carrier", "per call", "beside", "per call", "÷")
        report.table(f"{backend}: no-op calls, {title}", head, rows)
    _gone(backend, run_on(backend, _interrupt_all, 10 if quick else 100), report)
    count = 100 if quick else 1000
    for what, tool in (
        ("process", Tool(compute, runs_in="process")),
        ("command", Tool(sleep)),
    ):
        left = run_on(backend, _cut_many, tool, count)
        for name, (before, after) in left.items():
            report.at_most(backend, f"{count} {what} calls cut: {name}", before, after, str)


# -- what a call costs --------------------------------------------------------

LOOP, TASKS = "loop", "task group"
THREAD, TO_THREAD = "thread", "anyio.to_thread"
OWN_LOOP, RUN_IN_THREAD = "thread, async function", "anyio.run in to_thread"
PROCESS, TO_PROCESS = "process", "anyio.to_process"
IN_THREADS, BARE_THREADS = "ThreadPoolExecutor", "bare futures, threads"
IN_PROCESSES, BARE_PROCESSES = "ProcessPoolExecutor", "bare futures, processes"

BESIDE = {
    LOOP: TASKS,
    THREAD: TO_THREAD,
    OWN_LOOP: RUN_IN_THREAD,
    PROCESS: TO_PROCESS,
    IN_THREADS: BARE_THREADS,
    IN_PROCESSES: BARE_PROCESSES,
}


async def _race_all(backend: str, count: int) -> tuple[Rounds, Rounds]:
    spawning = multiprocessing.get_context("spawn")
    with (
        ThreadPoolExecutor(WORKERS) as threads,
        ProcessPoolExecutor(WORKERS, mp_context=spawning) as processes,
    ):
        alone = await race(count, _contenders(backend, 1, threads, processes))
        contenders = _contenders(backend, MANY, threads, processes)
        many = await race(max(count // 4, 5), contenders)
    return alone, many


def _contenders(
    backend: str, n: int, threads: Executor, processes: Executor
) -> dict[str, Any]:
    calls = [ToolCall(str(number), "no_op", {"number": number}) for number in range(n)]

    def ours(func: Any, runs_in: Any) -> Any:
        runner = ToolRunner([Tool(func, name="no_op", runs_in=runs_in)], max_threads=WORKERS)
        return lambda: runner.run(calls)

    name, options = BACKENDS[backend]
    own_loop = partial(anyio.run, no_op_async, backend=name, backend_options=options)
    return {
        LOOP: ours(no_op_async, "loop"),
        TASKS: lambda: _group(n, no_op_async),
        THREAD: ours(no_op, "thread"),
        TO_THREAD: lambda: _group(n, partial(anyio.to_thread.run_sync, no_op)),
        OWN_LOOP: ours(no_op_async, "thread"),
        RUN_IN_THREAD: lambda: _group(
            n, lambda number: anyio.to_thread.run_sync(own_loop, number)
        ),
        PROCESS: ours(no_op, "process"),
        TO_PROCESS: lambda: _group(n, partial(anyio.to_process.run_sync, no_op)),
        IN_THREADS: ours(no_op, threads),
        BARE_THREADS: lambda: _futures(n, threads),
        IN_PROCESSES: ours(no_op, processes),
        BARE_PROCESSES: lambda: _futures(n, processes),
    }


async def _group(n: int, function: Any) -> None:
    async with anyio.create_task_group() as group:
        for number in range(n):
            group.start_soon(function, number)


async def _futures(n: int, executor: Executor) -> None:
    futures = [executor.submit(no_op, number) for number in range(n)]
    await anyio.to_thread.run_sync(wait, futures)


# -- what is left ---------------------------------------------------------------


async def sleep() -> None:
    await run_command(["sleep", "600"])


async def _interrupt_all(count: int) -> list[float]:
    runner = ToolRunner([Tool(compute, runs_in="process")])
    gone = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pid")
            async with runner.open_batch(
                [ToolCall("1", "compute", {"file": str(file)})]
            ) as batch:
                while not (file.exists() and file.read_text()):
                    await anyio.sleep(0.001)
                pid = int(file.read_text())
                start = time.perf_counter()
                batch.interrupt()
            while _lives(pid):
                await anyio.sleep(0.0002)
            gone.append(time.perf_counter() - start)
    return gone


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _gone(backend: str, gone: list[float], report: Report) -> None:
    row = [seconds(percentile(gone, share)) for share in (0.5, 0.99, 1.0)]
    title = f"{backend}: interrupt until the worker process is gone and reaped"
    report.table(title, ("runs", "p50", "p99", "longest"), [[str(len(gone)), *row]])
    name = f"worker process gone, p99 of {len(gone)}"
    report.at_most(backend, name, GONE_BOUND, percentile(gone, 0.99), seconds)


async def _cut_many(tool: Tool, count: int) -> dict[str, tuple[int, int]]:
    """Cut calls at all sorts of moments, and count what there is before and after."""
    runner = ToolRunner([tool])
    others = len(_children())
    await _cut(runner, tool, 0.05)  # what is opened once stays open
    await _settle(runner, others)
    before = _counts()
    for number in range(count // CUTS_AT_ONCE):
        await _cut(runner, tool, 0.0007 * (number % 100))
    await _settle(runner, others)
    after = _counts()
    return {name: (before[name], after[name]) for name in before}


async def _cut(runner: ToolRunner, tool: Tool, delay: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"file": str(Path(folder, "pid"))} if tool.name == "compute" else {}
        calls = [ToolCall(str(n), tool.name, arguments) for n in range(CUTS_AT_ONCE)]
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(delay)
            batch.interrupt()
        await runner.wait_detached(PATIENCE)


async def _settle(runner: ToolRunner, others: int) -> None:
    """Wait until workers that were kept for a next call have been ended, too."""
    assert await runner.wait_detached(PATIENCE)
    until = time.monotonic() + PATIENCE
    while len(_children()) > others and time.monotonic() < until:
        await anyio.sleep(0.05)


def _counts() -> dict[str, int]:
    return {
        "processes, zombies included": len(_children()),
        "file descriptors": len(os.listdir("/dev/fd")),
    }


def _children() -> list[str]:
    """Return the processes whose parent we are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(stat.parent.name)
    return found
