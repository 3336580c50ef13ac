"""
Ten times the calls at (about) ten times the cost: time and memory, interrupt included.

What does not grow in proportion is the interpreter's garbage collector: with
10,000 tasks alive it comes round to full collections, with 1,000 it does not.
So each time is shown a second time without it, and a cancelled task group is
measured beside ours.
"""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from anyio_toolbatch import Tool, ToolCall, ToolRunner

from .backends import run_on
from .pairing import Rounds, race
from .report import Report, seconds, size, times

FEW, MANY = 1000, 10_000
BOUND = 12
THREADS = 8

Scenario = Callable[[list[ToolCall]], Awaitable[object]]


def measure(backend: str, quick: bool, report: Report) -> None:
    count = 5 if quick else 20
    taken, without_gc, memory = run_on(backend, _measure, count)
    rows = []
    for name in SCENARIOS:
        few, many = (name, FEW), (name, MANY)
        peaks = memory[few], memory[many]
        rows.append(
            [
                name,
                seconds(taken.median(few)),
                seconds(taken.median(many)),
                times(taken.ratio(many, few)),
                times(without_gc.ratio(many, few)),
                *map(size, peaks),
                times(peaks[1] / peaks[0]),
            ]
        )
        if name == GROUP:
            continue
        report.at_most(backend, f"{name}: time × 10 calls", BOUND, taken.ratio(many, few))
        report.at_most(backend, f"{name}: memory × 10 calls", BOUND, peaks[1] / peaks[0])
    head = (
        "",
        f"{FEW:,}",
        f"{MANY:,}",
        "ratio",
        "gc off",
        f"peak, {FEW:,}",
        f"{MANY:,}",
        "ratio",
    )
    report.table(f"{backend}: {FEW:,} and {MANY:,} calls", head, rows)


async def _measure(count: int) -> tuple[Rounds, Rounds, dict[tuple[str, int], float]]:
    calls = {n: [ToolCall(str(i), "tool") for i in range(n)] for n in (FEW, MANY)}
    contenders = {
        (name, n): partial(scenario, calls[n])
        for name, scenario in SCENARIOS.items()
        for n in (FEW, MANY)
    }
    taken = await race(count, contenders)
    gc.disable()
    try:
        without_gc = await race(count, contenders)
    finally:
        gc.enable()
    memory = {key: await _peak(function) for key, function in contenders.items()}
    return taken, without_gc, memory


async def _peak(function: Callable[[], Awaitable[object]]) -> float:
    """Return how many bytes more were in use at the worst moment."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _blocking_no_op() -> None: ...


async def _async_no_op() -> None: ...


async def _run_blocking(calls: list[ToolCall]) -> object:
    return await ToolRunner({"tool": _blocking_no_op}, max_threads=THREADS).run(calls)


async def _run_async(calls: list[ToolCall]) -> object:
    return await ToolRunner({"tool": _async_no_op}).run(calls)


async def _interrupt_async(calls: list[ToolCall]) -> object:
    """Start all, interrupt, read the results, drain."""
    all_run = anyio.Event()
    numbers = itertools.count(1)

    async def sleep() -> None:
        if next(numbers) == len(calls):
            all_run.set()
        await anyio.sleep_forever()

    runner = ToolRunner({"tool": sleep})
    async with runner.open_batch(calls) as batch:
        await all_run.wait()
        batch.interrupt()
    results = batch.results
    await runner.wait_detached()
    return results


async def _interrupt_blocking(calls: list[ToolCall]) -> object:
    """Let some park in all threads, interrupt with the rest in line, read, release."""
    gate = threading.Event()
    running = threading.Barrier(THREADS + 1)

    def park() -> None:
        running.wait()
        gate.wait()

    runner = ToolRunner({"tool": Tool(park)}, max_threads=THREADS)
    async with runner.open_batch(calls) as batch:
        await anyio.to_thread.run_sync(running.wait)
        batch.interrupt()
    results = batch.results
    gate.set()
    await runner.wait_detached()
    return results


async def _cancel_group(calls: list[ToolCall]) -> None:
    all_run = anyio.Event()
    numbers = itertools.count(1)

    async def sleep() -> None:
        if next(numbers) == len(calls):
            all_run.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for _ in calls:
            group.start_soon(sleep)
        await all_run.wait()
        group.cancel_scope.cancel()


GROUP = "an anyio task group, cancelled"
SCENARIOS: dict[str, Scenario] = {
    "async": _run_async,
    "blocking": _run_blocking,
    "async, interrupted": _interrupt_async,
    "blocking, interrupted": _interrupt_blocking,
    GROUP: _cancel_group,
}
