"""P7, §4.1: a loop that ends right after the turn, or while it is running."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
import uvloop

from anyio_toolbatch import (
    Tool,
    ToolCall,
    ToolRunner,
    current_call,
    from_thread,
    on_cancel,
    open_batch,
)
from anyio_toolbatch.testing import GatedTool

LIVENESS = 20.0
BACKENDS: list[tuple[str, dict[str, Any]]] = [
    ("asyncio", {}),
    ("asyncio", {"use_uvloop": True}),
    ("trio", {}),
]
NATIVE = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=BACKENDS, ids=["asyncio", "uvloop", "trio"])
def loop_kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=NATIVE.values(), ids=NATIVE.keys())
def native_loop(request: pytest.FixtureRequest) -> Iterator[Any]:
    loop = request.param()
    yield loop
    loop.close()


def in_loop(kind: tuple[str, dict[str, Any]], function: Any) -> Any:
    return anyio.run(function, backend=kind[0], backend_options=kind[1])


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.mark.parametrize("count", [1, 1000])
def test_all_running_calls_are_told_though_the_loop_ends(loop_kind: Any, count: int) -> None:
    """§4.3: `cancelled` is set and `on_cancel` run, also if the turn was the loop's last."""
    started = threading.Semaphore(0)
    hooks_run = threading.Semaphore(0)
    leave = threading.Event()
    flags: list[Any] = []

    def tool() -> None:
        flags.append(current_call().cancelled)
        on_cancel(hooks_run.release)
        started.release()
        leave.wait(LIVENESS)

    def all_of(semaphore: threading.Semaphore) -> bool:
        return all(semaphore.acquire(timeout=LIVENESS) for _ in range(count))

    runner = ToolRunner([tool], max_threads=count, max_detached=count)

    async def turn() -> None:
        async with runner.open_batch([ToolCall("0", "tool")] * count) as batch:
            assert await anyio.to_thread.run_sync(all_of, started)
            batch.interrupt()

    try:
        in_loop(loop_kind, turn)
        assert sum(flag.is_set() for flag in flags) == count
        assert all_of(hooks_run)
    finally:
        leave.set()
    wait_for(lambda: not runner.statistics().detached)


def test_visit_of_a_kept_call_does_not_hold_the_loops_end(loop_kind: Any) -> None:
    """P7: what a thread does on the loop is ended with it, though its call is kept."""
    inside: anyio.Event
    left = threading.Event()

    async def visit() -> None:
        inside.set()
        await anyio.sleep(LIVENESS)

    def tool() -> None:
        try:
            from_thread.run(visit)
        finally:
            left.set()

    async def turn() -> None:
        nonlocal inside
        inside = anyio.Event()
        tools = [Tool(tool, on_interrupt="keep")]
        async with open_batch([ToolCall("0", "tool")], tools) as batch:
            await inside.wait()
            batch.interrupt()

    begun = time.monotonic()
    in_loop(loop_kind, turn)
    assert time.monotonic() - begun < LIVENESS / 2
    assert left.wait(LIVENESS)


@pytest.mark.parametrize("carrier", ["loop", "thread"])
def test_clean_up_of_what_was_cut_does_not_hold_the_loops_end(
    loop_kind: Any, carrier: str
) -> None:
    """P7, §4.4: the pause for cleaning up ends with the loop, for visits as for calls."""
    inside: anyio.Event
    cleaning: anyio.Event

    async def work() -> None:
        try:
            inside.set()
            await anyio.sleep_forever()
        finally:
            cleaning.set()
            await anyio.sleep(LIVENESS)

    def visiting() -> None:
        from_thread.run(work)

    async def turn() -> None:
        nonlocal inside, cleaning
        inside, cleaning = anyio.Event(), anyio.Event()
        tools = {"tool": work if carrier == "loop" else visiting}
        async with open_batch([ToolCall("0", "tool")], tools) as batch:
            await inside.wait()
            batch.interrupt()
        await cleaning.wait()

    begun = time.monotonic()
    in_loop(loop_kind, turn)
    assert time.monotonic() - begun < LIVENESS / 2


@pytest.mark.parametrize("with_async_call", [False, True])
def test_kept_batch_keeps_no_loop(loop_kind: Any, with_async_call: bool) -> None:
    """§3.1, §4.1: neither a batch that is kept nor its detached call keeps a loop alive."""
    gate = GatedTool()
    kept: list[Any] = []

    async def quick() -> None: ...

    async def turn() -> Any:
        async with open_batch(tools=[gate.tool, quick]) as batch:
            batch.submit(ToolCall("0", "gated"))
            if with_async_call:
                await batch.submit(ToolCall("1", "quick")).wait()
            await gate.wait_started()
            batch.interrupt()
        kept.append(batch)
        return weakref.ref(anyio.lowlevel.current_token().native_token)

    loop = in_loop(loop_kind, turn)
    try:
        # The helper thread that waited for the gate may need a moment to let go.
        wait_for(lambda: gc.collect() >= 0 and loop() is None)
    finally:
        gate.open()
    assert kept[0].results[0].detached


@pytest.mark.parametrize("on_interrupt", ["cancel", "keep"])
def test_second_half_of_a_call_whose_loop_is_gone(native_loop: Any, on_interrupt: Any) -> None:
    """P7: what a thread would hand over to a closed loop is dropped, without a word."""
    inside: asyncio.Event
    go_on = threading.Event()

    async def second_half() -> None: ...

    def tool() -> Any:
        from_thread.run_sync(inside.set)
        go_on.wait(LIVENESS)
        made.append(weakref.ref(half := second_half()))
        return half

    async def turn() -> Any:
        nonlocal inside
        inside = asyncio.Event()
        tools = [Tool(tool, on_interrupt=on_interrupt)]
        async with open_batch([ToolCall("0", "tool")], tools) as batch:
            await inside.wait()
            batch.interrupt()
        return batch

    made: list[weakref.ref[Any]] = []
    batch = native_loop.run_until_complete(turn())
    native_loop.close()
    go_on.set()
    account = batch._engine.state.account
    wait_for(lambda: not len(account))
    del batch
    # Were it not closed, its end would be a warning, which fails the test.
    wait_for(lambda: gc.collect() >= 0 and made and made[0]() is None)


def test_mailbox_of_a_closed_loop_does_not_grow(native_loop: Any) -> None:
    """P10: a kept call goes on after its loop, whose mailbox holds only so much."""
    inside: asyncio.Event
    go_on, go_on_after_close = threading.Event(), threading.Event()
    posted, all_posted = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        from_thread.run_sync(inside.set)
        go_on.wait(LIVENESS)
        yield 0
        posted.set()
        go_on_after_close.wait(LIVENESS)
        yield from range(5000)
        all_posted.set()

    async def turn() -> Any:
        nonlocal inside
        inside = asyncio.Event()
        tools = [Tool(items, on_interrupt="keep")]
        async with open_batch([ToolCall("0", "items")], tools) as batch:
            await inside.wait()
            batch.interrupt()
        return batch

    batch = native_loop.run_until_complete(turn())
    # The loop is not closed yet, but will never read what is posted now.
    go_on.set()
    assert posted.wait(LIVENESS)
    native_loop.close()
    go_on_after_close.set()
    assert all_posted.wait(LIVENESS)
    hub = batch._engine.hub
    answers = [hub.post(lambda _: None, None) for _ in range(5000)]
    assert len(hub._queue) <= 1000
    assert not all(answers)  # who posts is told


def test_calls_that_wait_do_not_start_after_their_loop(native_loop: Any) -> None:
    """P4, P7: a loop that dies with an open batch takes the waiting calls with it."""
    gate = GatedTool()
    runner = ToolRunner([gate.tool], max_threads=1)

    async def turn() -> None:
        async with runner.open_batch([ToolCall("0", "gated")] * 20) as batch:
            batches.append(batch)
            await gate.wait_started()
            asyncio.get_running_loop().stop()
            await batch.wait()

    batches: list[Any] = []
    task = native_loop.create_task(turn())
    native_loop.run_forever()
    native_loop.close()
    gate.open()
    lane = batches[0]._engine.state.lane
    wait_for(lambda: lane.attached == 0)  # its one thread has gone through the line
    assert gate.started == 1
    del task
