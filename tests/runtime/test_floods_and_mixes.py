"""P1–P6 where much happens at once: mixed carriers, floods of items, odd orders."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import Event, LateResult, ToolCall, ToolRunner
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0


@pytest.fixture
def rapid_switching() -> Iterator[None]:
    """Let threads take turns after next to every bytecode."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def block_until(condition: Callable[[], bool]) -> None:
    """Hold the loop until a worker has done something."""
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0001)


@pytest.mark.usefixtures("rapid_switching")
async def test_awaitables_out_of_threads_beside_async_calls() -> None:
    """P1: a call that moves from its thread to the loop is run once, and answered once."""
    runs = 0
    late: list[LateResult] = []

    async def inner(n: int) -> int:
        nonlocal runs
        runs += 1
        await anyio.sleep(0)
        return n

    def moving(n: int) -> Coroutine[Any, Any, int]:
        return inner(n)

    async def staying(n: int) -> int:
        return n

    names = ["moving", "staying"] * 4
    calls = [ToolCall(str(n), name, {"n": n}) for n, name in enumerate(names)]
    async with ToolRunner([moving, staying], on_late=late.append) as runner:
        for _ in range(60):
            results = await runner.run(calls)
            assert [r.value for r in results] == list(range(8))
    assert runs == 60 * 4
    assert late == []


async def test_fast_generator_does_not_bury_the_mailbox() -> None:
    """P2, P10: items are announced once, however many wait for the loop to look."""
    gate = GatedTool()

    def flood() -> Iterator[int]:
        yield from range(5_000)
        gate.tool.func()
        yield -1

    async with ToolRunner([flood]) as runner:
        async with runner.open_batch([ToolCall("0", "flood")]) as batch:
            block_until(lambda: gate.started == 1)  # the loop sees nothing of it
            assert len(batch._engine.hub._queue) < 10
            batch.interrupt()
        assert batch.results[0].partial == list(range(5_000))
        gate.open()
        assert await runner.wait_detached(LIVENESS)


async def test_interrupt_overtakes_what_tools_say() -> None:
    """P2: a stop that comes behind a long queue is handled before it."""
    gate = GatedTool()
    handled: list[int] = []
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch([ToolCall("0", "gated")]) as batch:
            await gate.wait_started()
            for n in range(20_000):
                batch._engine.hub.post(handled.append, n)
            batch.interrupt()
            await batch.wait()  # leaving the block would look for itself
            assert len(handled) < 20_000
        gate.open()
        with anyio.fail_after(LIVENESS):
            while len(handled) < 20_000:
                await anyio.sleep(0.001)
    assert handled == list(range(20_000))  # P1: nothing of it was lost


async def test_items_come_after_the_start_of_their_call(promises: PromiseObserver) -> None:
    """§3.4: a call that is cut before its start was news still tells it first."""
    gate = GatedTool()

    def items() -> Iterator[int]:
        yield 1
        yield 2
        gate.tool.func()
        yield 3

    events: list[Event] = []
    async with ToolRunner([items], observers=[promises, events.append]) as runner:
        async with runner.open_batch([ToolCall("0", "items")]) as batch:
            block_until(lambda: gate.started == 1)
            batch.interrupt()
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    names = [type(event).__name__ for event in events]
    assert names == [
        "BatchStarted",
        "BatchInterrupted",
        "CallStarted",
        "CallOutput",
        "CallOutput",
        "CallSettled",
        "BatchSettled",
        *names[7:],
    ]
    assert batch.results[0].partial == [1, 2]


async def test_clean_ups_behind_a_gather_complete(anyio_backend_name: str) -> None:
    """§4.4: what an async tool waits through gets one cancellation, too."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio.gather is asyncio's")
    cancellations = 0
    closed: list[str] = []
    running = anyio.Event()

    async def sibling() -> None:
        nonlocal cancellations
        for _ in range(2):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                cancellations += 1

    async def child() -> None:
        try:
            running.set()
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.02)
            closed.append("child")

    async def tool() -> None:
        await asyncio.gather(child(), sibling())

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await running.wait()
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert closed == ["child"]
    assert cancellations == 1


async def test_async_hooks_are_refused() -> None:
    """Misuse: hooks are called, not awaited; an async one is refused at once."""

    async def hook(_: object) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        ToolRunner(observers=[hook])
    with pytest.raises(TypeError, match="plain function"):
        ToolRunner(on_late=hook)
    with pytest.raises(ValueError, match="interrupt_grace"):
        ToolRunner(interrupt_grace=10**400)
