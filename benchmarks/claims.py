"""
Ten times the calls over ten times the keys at (about) ten times the cost.

Each key is claimed by ten calls, for writing, so that nine of ten have to wait.
Once through a runner, with no-op tools, once the scheduler alone; with keys that
stand side by side, and with paths that lie five folders deep. And how long one
call waits for a place while another batch has 2,000 calls in line before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import PurePosixPath

import anyio

from anyio_toolbatch import Tool, ToolCall, ToolRunner
from anyio_toolbatch._core.claims import Modes, expand
from anyio_toolbatch._core.scheduler import Limits, Needs, Scheduler

from .backends import run_on
from .pairing import Rounds, race
from .report import Report, seconds, times

FEW, MANY = 1000, 10_000
CALLS_PER_KEY = 10
BOUND = 15
SLOTS = 8
CROWD = 2000


def measure(backend: str, quick: bool, report: Report) -> None:
    taken = run_on(backend, _measure, 5 if quick else 20)
    rows = []
    for name in SCENARIOS:
        few, many = (name, FEW), (name, MANY)
        ratio = taken.ratio(many, few)
        rows.append(
            [
                name,
                seconds(taken.median(few) / FEW),
                seconds(taken.median(many) / MANY),
                times(ratio),
            ]
        )
        report.at_most(backend, f"{name}: time × 10 calls", BOUND, ratio)
    head = ("a call", f"{FEW:,}", f"{MANY:,}", "ratio of all")
    report.table(f"{backend}: claims, {CALLS_PER_KEY} calls a key", head, rows)
    alone, crowded = taken.median(ALONE), taken.median(CROWDED)
    report.table(
        f"{backend}: one call, {SLOTS} slots",
        ("", "alone", f"beside {CROWD:,} calls of 1 ms"),
        [("until its result", seconds(alone), seconds(crowded))],
    )


async def _measure(count: int) -> Rounds:
    contenders: dict[object, Callable[[], Awaitable[object]]] = {
        (name, n): partial(scenario, n)
        for name, scenario in SCENARIOS.items()
        for n in (FEW, MANY)
    }
    taken = await race(count, contenders)  # type: ignore[arg-type]  # any key will do
    for _ in range(count):
        for name in (ALONE, CROWDED):
            taken.add(name, await _one_call(CROWD if name == CROWDED else 0))
    return taken


# -- through a runner ------------------------------------------------------


async def _no_op(key: int) -> None: ...


def _flat(key: int) -> str:
    return f"key-{key}"


def _deep(key: int) -> PurePosixPath:
    return PurePosixPath(f"/srv/project/{key // 100}/{key // 10}/{key}")


async def _run(keys: Callable[..., object], count: int) -> object:
    runner = ToolRunner([Tool(_no_op, name="tool", writes=keys)])  # type: ignore[arg-type]
    key_count = count // CALLS_PER_KEY
    calls = [ToolCall(str(i), "tool", {"key": i % key_count}) for i in range(count)]
    return await runner.run(calls)


# -- the scheduler alone ---------------------------------------------------


async def _schedule(modes_of: Callable[[int], Modes], count: int) -> None:
    scheduler, limits = Scheduler(), Limits(SLOTS, SLOTS, 5.0)
    key_count = count // CALLS_PER_KEY
    for call in range(count):
        needs = Needs(modes_of(call % key_count), thread=True)
        scheduler.add("batch", limits, call, needs, 0.0)
    running: list[int] = []
    while len(scheduler):
        while (granted := scheduler.grant()) is not None:
            running.append(granted)
        scheduler.release(running.pop(0), 0.0)


def _flat_modes(key: int) -> Modes:
    return expand([], [(key,)])


def _deep_modes(key: int) -> Modes:
    path = ("srv", "project", key // 100, key // 10, key)
    return expand([], [tuple(path[: end + 1] for end in range(len(path)))])


# -- fairness --------------------------------------------------------------


async def _one_call(crowd: int) -> float:
    """Return the seconds that a batch of one takes beside a large one."""
    runner = ToolRunner({"nap": partial(anyio.sleep, 0.001)}, max_concurrency=SLOTS)
    call = ToolCall("0", "nap")
    async with anyio.create_task_group() as group:
        if crowd:
            group.start_soon(runner.run, [call] * crowd)
            await anyio.sleep(0.02)
        start = anyio.current_time()
        await runner.run([call])
        took = anyio.current_time() - start
        runner.interrupt()
    return took


ALONE, CROWDED = "alone", "crowded"
SCENARIOS: dict[str, Callable[[int], Awaitable[object]]] = {
    "flat keys": partial(_run, _flat),
    "paths, five deep": partial(_run, _deep),
    "flat keys, scheduler alone": partial(_schedule, _flat_modes),
    "five deep, scheduler alone": partial(_schedule, _deep_modes),
}
