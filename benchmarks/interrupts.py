"""
From the interrupt to the code that awaits, with many calls running.

Three ways of waiting: leaving the block of `open_batch` (the awaiting code
runs again; then its results are read), ``batch.wait()`` and ``runner.run()``
(which hand out results, made on the way). Against them: the usual task group
over `anyio.to_thread.run_sync` that is cancelled.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from . import stalls
from .backends import run_on
from .pairing import Rounds
from .parked import Caller, Kind, Parked, Stopwatch
from .report import Report, seconds, times

COUNTS = (1, 100, 1000)
KINDS: tuple[Kind, ...] = ("async", "blocking")
WAYS: tuple[tuple[str, Caller], ...] = (
    ("block", "loop"),
    ("block", "thread"),
    ("wait()", "loop"),
    ("run()", "loop"),
)
CALLED_FROM: dict[Caller, str] = {"loop": "the loop", "thread": "a thread"}

FASTER_THAN_A_GROUP = {"asyncio": 20, "uvloop": 20, "trio": 30}


def measure(backend: str, quick: bool, report: Report) -> None:
    rounds = run_on(backend, _all_rounds, 6 if quick else 60)
    _show(backend, rounds, report)
    _hold(backend, rounds, report)
    run_on(backend, stalls.measure, backend, quick, report)


async def _all_rounds(count: int) -> Rounds:
    parked = {(kind, n): Parked(kind, n) for kind in KINDS for n in COUNTS}
    ways = [(*key, *way) for key in parked for way in WAYS]
    ways += [(*key, "group", caller) for key in parked for caller in CALLED_FROM]
    rounds = Rounds(count, ways)
    for key in rounds:
        kind, n, way, caller = key
        calls = parked[kind, n]
        if way == "group":
            rounds.add(key, await _cancel_group(calls, caller))
        else:
            back, in_hand = await _WAIT[way](calls, caller)
            rounds.add(key, back)
            rounds.add((*key, "results"), in_hand)
            rounds.add((*key, "later"), in_hand - back)
        await calls.release()
    return rounds


async def _leave_block(calls: Parked, caller: Caller) -> tuple[float, float]:
    stopwatch = Stopwatch()
    async with anyio.create_task_group() as group:
        async with calls.runner.open_batch(calls.calls) as batch:
            calls.interrupt_soon(group, caller, stopwatch, batch.interrupt)
        back = stopwatch()
        results = batch.results
        in_hand = stopwatch()
    _check(calls, results)
    return back, in_hand


async def _wait(calls: Parked, caller: Caller) -> tuple[float, float]:
    stopwatch = Stopwatch()
    async with (
        anyio.create_task_group() as group,
        calls.runner.open_batch(calls.calls) as batch,
    ):
        calls.interrupt_soon(group, caller, stopwatch, batch.interrupt)
        results = await batch.wait()
        in_hand = stopwatch()
    _check(calls, results)
    return in_hand, in_hand


async def _run(calls: Parked, caller: Caller) -> tuple[float, float]:
    stopwatch = Stopwatch()
    async with anyio.create_task_group() as group:
        calls.interrupt_soon(group, caller, stopwatch, calls.runner.interrupt)
        results = await calls.runner.run(calls.calls)
        in_hand = stopwatch()
    _check(calls, results)
    return in_hand, in_hand


_WAIT = {"block": _leave_block, "wait()": _wait, "run()": _run}


def _check(calls: Parked, results: list[Any]) -> None:
    assert len(results) == calls.count
    assert all(r.status == "interrupted" and r.started for r in results)


async def _cancel_group(calls: Parked, caller: Caller) -> float:
    stopwatch = Stopwatch()
    limiter = anyio.CapacityLimiter(calls.count)

    async def in_thread() -> None:
        await anyio.to_thread.run_sync(calls.block, abandon_on_cancel=True, limiter=limiter)

    function = calls.sleep if calls.kind == "async" else in_thread
    token = anyio.lowlevel.current_token()
    async with anyio.create_task_group() as outside:
        async with anyio.create_task_group() as group:
            cancel = group.cancel_scope.cancel
            if caller == "thread":
                cancel = partial(anyio.from_thread.run_sync, cancel, token=token)
            calls.interrupt_soon(outside, caller, stopwatch, cancel)
            for _ in range(calls.count):
                group.start_soon(function)
        return stopwatch()


def _show(backend: str, rounds: Rounds, report: Report) -> None:
    head = ["running calls, interrupted from", *(f"N = {n:,}" for n in COUNTS)]
    titles = {
        "block": "block left",
        "wait()": "batch.wait() returned",
        "run()": "runner.run() returned",
    }
    rows = []
    for kind in KINDS:
        for way, caller in WAYS:
            name = f"{kind}, {CALLED_FROM[caller]}: {titles[way]}"
            keys = [(kind, n, way, caller) for n in COUNTS]
            rows.append([name, *(_p50_p99(rounds, key) for key in keys)])
            if way == "block":
                name = f"{kind}, {CALLED_FROM[caller]}: … and results in hand"
                keys = [(*key, "results") for key in keys]
                rows.append([name, *(_p50_p99(rounds, key) for key in keys)])
        for caller, where in CALLED_FROM.items():
            name = f"{kind}, {where}: a cancelled task group left"
            keys = [(kind, n, "group", caller) for n in COUNTS]
            rows.append([name, *(_p50_p99(rounds, key) for key in keys)])
        for way, caller in WAYS:
            name = f"{kind}, {CALLED_FROM[caller]}: group ÷ {titles[way]}"
            ratios = [
                rounds.ratio((kind, n, "group", caller), (kind, n, way, caller))
                for n in COUNTS
            ]
            rows.append([name, *map(times, ratios)])
    report.table(f"{backend}: interrupt → awaiting code, p50 (p99)", head, rows)


def _p50_p99(rounds: Rounds, key: Any) -> str:
    return f"{seconds(rounds.median(key))} ({seconds(rounds.p99(key))})"


def _hold(backend: str, rounds: Rounds, report: Report) -> None:
    most = max(COUNTS)
    for kind in KINDS:
        for caller in CALLED_FROM:
            key = (kind, most, "block", caller)
            name = f"interrupt, {most:,} {kind}, from {CALLED_FROM[caller]}"
            bound = max(3 * rounds.median((kind, 1, "block", caller)), 0.0015)
            report.at_most(backend, f"{name}: p50", bound, rounds.median(key), seconds)
            later = rounds.median((*key, "later"))
            report.at_most(backend, f"{name}: results later", 0.006, later, seconds)
            # The yardstick is a group of threads, for both kinds.
            faster = rounds.ratio(("blocking", most, "group", caller), key)
            least = FASTER_THAN_A_GROUP[backend]
            report.at_least(backend, f"{name}: faster than a group", least, faster)
