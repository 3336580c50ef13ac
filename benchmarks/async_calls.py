"""Async no-op calls against a bare task group that starts the same coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from anyio_toolbatch import Event, ToolCall, ToolRunner, run_batch

from .backends import run_on
from .pairing import Rounds, race
from .report import Report, seconds, times

COUNT = 1000
BOUNDS = {"asyncio": 1.25, "uvloop": 1.25, "trio": 1.5}

OURS = "ToolRunner.run"
OBSERVED = "… with one observer"
WITHOUT_RUNNER = "run_batch"
GROUP = "anyio task group"
SCOPED = "… with two scopes a task"
"""What it takes to cancel one of them, once, and let it clean up: the floor here."""


async def no_op(number: int) -> int:
    return number


def measure(backend: str, quick: bool, report: Report) -> None:
    rounds = run_on(backend, _race, 15 if quick else 100)
    rows = [
        [
            name,
            seconds(rounds.median(name)),
            seconds(rounds.median(name) / COUNT),
            times(rounds.ratio(name, GROUP)),
        ]
        for name in (OURS, OBSERVED, WITHOUT_RUNNER, GROUP, SCOPED)
    ]
    head = ("", "time", "per call", f"÷ {GROUP}")
    report.table(f"{backend}: {COUNT:,} async no-op calls", head, rows)
    name = f"{COUNT:,} async calls ÷ {GROUP}"
    report.at_most(backend, name, BOUNDS[backend], rounds.ratio(OURS, GROUP))


async def _race(count: int) -> Rounds:
    calls = [ToolCall(str(n), "no_op", {"number": n}) for n in range(COUNT)]
    runner = ToolRunner([no_op])
    observed = ToolRunner([no_op], observers=[_observe])
    assert [r.value for r in await runner.run(calls)] == list(range(COUNT))
    return await race(
        count,
        {
            OURS: lambda: runner.run(calls),
            OBSERVED: lambda: observed.run(calls),
            WITHOUT_RUNNER: lambda: run_batch(calls, [no_op]),
            GROUP: lambda: _group(no_op),
            SCOPED: lambda: _group(_scoped),
        },
    )


def _observe(event: Event) -> None: ...


async def _group(start: Callable[[int], Awaitable[object]]) -> None:
    async with anyio.create_task_group() as group:
        for number in range(COUNT):
            group.start_soon(start, number)


async def _scoped(number: int) -> int:
    with anyio.CancelScope(shield=True), anyio.CancelScope():
        return await no_op(number)
