"""Blocking no-op calls against task groups and executors, many and one alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import anyio
import anyio.to_thread

from anyio_toolbatch import Event, ToolCall, ToolRunner, run_batch

from .backends import run_on
from .pairing import Rounds, race
from .report import Report, seconds, times

COUNT = 1000
THREADS = 8

OURS = "ToolRunner.run"
OBSERVED = "… with one observer"
WITHOUT_RUNNER = "run_batch"
GROUP = "anyio task group, to_thread, limiter"
GATHER = "asyncio.gather, run_in_executor"
ALONE = "one call: ToolRunner.run"
ALONE_WITHOUT_RUNNER = "one call: run_batch"
TO_THREAD = "one call: anyio.to_thread.run_sync"
FLOOR = "one call: a bare thread, a lock and a future"


def no_op(number: int) -> int:
    return number


def measure(backend: str, quick: bool, report: Report) -> None:
    many = run_on(backend, _many, backend, 7 if quick else 40)
    one = run_on(backend, _one, backend, 20 if quick else 100)
    names = [OURS, OBSERVED, WITHOUT_RUNNER, GROUP]
    if backend != "trio":
        names.append(GATHER)
    head = ("", "time", "per call", f"÷ {GROUP}", f"÷ {GATHER}")
    rows = [
        [
            name,
            seconds(many.median(name)),
            seconds(many.median(name) / COUNT),
            times(many.ratio(name, GROUP)),
            times(many.ratio(name, GATHER)) if GATHER in names else "–",
        ]
        for name in names
    ]
    report.table(f"{backend}: {COUNT:,} blocking no-op calls, {THREADS} threads", head, rows)
    rows = [
        [name, seconds(one.median(name)), times(one.ratio(name, TO_THREAD))]
        for name in (ALONE, ALONE_WITHOUT_RUNNER, TO_THREAD, FLOOR)
        if name != FLOOR or backend != "trio"
    ]
    report.table(
        f"{backend}: one warm blocking no-op call", ("", "time", f"÷ {TO_THREAD}"), rows
    )
    name = f"{COUNT:,} blocking calls"
    report.at_most(backend, f"{name} ÷ {GROUP}", 0.10, many.ratio(OURS, GROUP))
    if GATHER in names:
        report.at_most(backend, f"{name} ÷ {GATHER}", 0.35, many.ratio(OURS, GATHER))
    report.at_most(
        backend, "one blocking call ÷ to_thread.run_sync", 0.6, one.ratio(ALONE, TO_THREAD)
    )


async def _many(backend: str, count: int) -> Rounds:
    calls = [ToolCall(str(n), "no_op", {"number": n}) for n in range(COUNT)]
    runner = ToolRunner([no_op], max_threads=THREADS)
    observed = ToolRunner([no_op], max_threads=THREADS, observers=[_observe])
    contenders: dict[str, Callable[[], Awaitable[object]]] = {
        OURS: lambda: runner.run(calls),
        OBSERVED: lambda: observed.run(calls),
        WITHOUT_RUNNER: lambda: run_batch(calls, [no_op], max_threads=THREADS),
        GROUP: _group,
    }
    for name in (OURS, OBSERVED, WITHOUT_RUNNER):
        results: Any = await contenders[name]()
        assert [r.value for r in results] == list(range(COUNT))
    if backend == "trio":
        return await race(count, contenders)
    with ThreadPoolExecutor(THREADS) as executor:
        contenders[GATHER] = lambda: _gather(executor)
        return await race(count, contenders)


def _observe(event: Event) -> None: ...


async def _group() -> list[int | None]:
    limiter = anyio.CapacityLimiter(THREADS)
    results: list[int | None] = [None] * COUNT

    async def one(number: int) -> None:
        results[number] = await anyio.to_thread.run_sync(no_op, number, limiter=limiter)

    async with anyio.create_task_group() as group:
        for number in range(COUNT):
            group.start_soon(one, number)
    return results


async def _gather(executor: ThreadPoolExecutor) -> list[int]:
    loop = asyncio.get_running_loop()
    return await asyncio.gather(
        *(loop.run_in_executor(executor, no_op, number) for number in range(COUNT))
    )


async def _one(backend: str, count: int) -> Rounds:
    calls = [ToolCall("1", "no_op", {"number": 1})]
    runner = ToolRunner([no_op], max_threads=THREADS)
    contenders: dict[str, Callable[[], Awaitable[object]]] = {
        ALONE: lambda: runner.run(calls),
        ALONE_WITHOUT_RUNNER: lambda: run_batch(calls, [no_op], max_threads=THREADS),
        TO_THREAD: lambda: anyio.to_thread.run_sync(no_op, 1),
    }
    if backend == "trio":
        return await race(count, contenders, repeat=50)
    with _BareThread() as bare:
        contenders[FLOOR] = lambda: bare.run(1)
        return await race(count, contenders, repeat=50)


class _BareThread:
    """
    The least there is between a loop and a thread, on asyncio.

    One thread, no context, no limit, no errors: nobody can be quicker.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._job: tuple[int, asyncio.Future[int]] | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._job = None
        self._wake.release()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            if self._job is None:
                return
            number, future = self._job
            self._loop.call_soon_threadsafe(future.set_result, no_op(number))

    def run(self, number: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._job = (number, future)
        self._wake.release()
        return future
