"""How long the loop stands still while the running calls are told to stop."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel

from .pairing import Rounds
from .parked import Kind, Parked, Stopwatch
from .report import Report, seconds

COUNT = 1000
WATCHED_SECONDS = 0.05
"""How long to watch threads after the interrupt; being told takes a fraction."""
KINDS: tuple[Kind, ...] = ("async", "blocking")


class _Ticker:
    """Asks for the loop as often as it can be had; keeps the longest wait."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stopped = False

    async def run(self) -> None:
        last = time.perf_counter()
        while not self._stopped:
            await anyio.lowlevel.checkpoint()
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    def stop(self) -> None:
        self._stopped = True


async def measure(backend: str, quick: bool, report: Report) -> None:
    parked = {kind: Parked(kind, COUNT) for kind in KINDS}
    ways = [(kind, way) for kind in KINDS for way in ("interrupt", "nothing")]
    rounds = Rounds(5 if quick else 30, ways)
    for key in rounds:
        kind, way = key
        calls = parked[kind]
        rounds.add(key, await _longest_gap(calls, interrupts=way == "interrupt"))
        await calls.release()
    rows = [
        [
            f"{COUNT:,} {kind}",
            *(
                f"{seconds(rounds.median((kind, way)))} ({seconds(rounds.p99((kind, way)))})"
                for way in ("interrupt", "nothing")
            ),
        ]
        for kind in KINDS
    ]
    head = ("running calls", "told to stop", "left alone")
    report.table(f"{backend}: longest gap between two loop passes, p50 (p99)", head, rows)
    for kind in KINDS:
        name = f"loop stall, {COUNT:,} {kind} told to stop"
        report.at_most(backend, name, 0.005, rounds.median((kind, "interrupt")), seconds)


async def _longest_gap(calls: Parked, *, interrupts: bool) -> float:
    ticker = _Ticker()
    async with anyio.create_task_group() as group:
        async with calls.runner.open_batch(calls.calls) as batch:
            if interrupts:

                def strike() -> None:
                    group.start_soon(ticker.run)
                    batch.interrupt()

                calls.interrupt_soon(group, "loop", Stopwatch(), strike)
            else:
                await calls.all_run()
                group.start_soon(ticker.run)
                await anyio.sleep(WATCHED_SECONDS)
                ticker.stop()
                batch.interrupt()
        await _told(calls)
        ticker.stop()
    return ticker.longest


async def _told(calls: Parked) -> None:
    if calls.kind == "blocking":
        await anyio.sleep(WATCHED_SECONDS)
        return
    while not calls.all_ended:
        await anyio.sleep(0.002)
