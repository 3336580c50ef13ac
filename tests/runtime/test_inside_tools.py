"""§3.3: what a tool can ask and say, from the loop and from threads."""

from __future__ import annotations

import contextlib
import contextvars
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    CallDetached,
    CallOutput,
    CallProgress,
    Tool,
    ToolCall,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    report_progress,
    run_batch,
)
from anyio_toolbatch._runtime import context, telling
from anyio_toolbatch._runtime.hub import current_hub
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0
CARRIERS = ["loop", "thread"]


async def value_of(tool: Tool, **arguments: Any) -> Any:
    return (await run_batch([ToolCall("id", tool.name, arguments)], [tool]))[0].unwrap()


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_current_call(carrier: Any, is_async: bool) -> None:
    """§3.3: the running call is found from every kind of tool on every carrier."""

    def look(x: int) -> tuple[Any, ...]:
        call = current_call()
        return call.call.id, call.call.arguments, call.index, call.cancelled.is_set()

    async def async_look(x: int) -> tuple[Any, ...]:
        await anyio.lowlevel.checkpoint()
        return look(x)

    tool = Tool(async_look if is_async else look, name="look", runs_in=carrier)
    assert await value_of(tool, x=1) == ("id", {"x": 1}, 0, False)


async def test_outside_of_a_tool_it_is_refused() -> None:
    """§3.3: clear errors where no call is running."""
    for use in (
        current_call,
        lambda: report_progress(1),
        lambda: keep_partial(1),
        lambda: on_cancel(print),
        from_thread.check_cancelled,
        lambda: from_thread.run_sync(print),
    ):
        with pytest.raises(RuntimeError, match="inside a tool"):
            use()


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_context_is_the_submitters_and_a_copy(carrier: Any, is_async: bool) -> None:
    """L8, T18: calls see the submitter's variables; their writes stay their own."""

    def use() -> str:
        before = VARIABLE.get()
        VARIABLE.set("written by a tool")
        return before

    async def async_use() -> str:
        return use()

    VARIABLE.set("submitter's")
    tool = Tool(async_use if is_async else use, name="use", runs_in=carrier)
    results = await run_batch([ToolCall(str(i), "use") for i in range(5)], [tool])
    assert [r.value for r in results] == ["submitter's"] * 5
    assert VARIABLE.get() == "submitter's"


async def test_context_is_taken_at_submit() -> None:
    """§4.1: each call sees the variables as they were when it was submitted."""
    async with ToolRunner({"see": lambda: VARIABLE.get()}) as runner:
        async with runner.open_batch() as batch:
            for value in ("one", "two"):
                VARIABLE.set(value)
                batch.submit(ToolCall(value, "see"))
    assert [r.value for r in batch.results] == ["one", "two"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_blocking_tool_may_run_its_own_loop(backend: str) -> None:
    """FACTS §1: `anyio.run` of either kind works inside a worker thread."""

    async def inner() -> str:
        await anyio.sleep(0)
        return "ran"

    assert await value_of(Tool(lambda: anyio.run(inner, backend=backend), name="t")) == "ran"


async def test_async_tool_in_a_thread_has_a_loop_of_its_own() -> None:
    """§3.2: an async tool that blocks inside does not hold the loop."""
    gate = GatedTool()
    loop_thread = threading.get_ident()

    async def blocks() -> bool:
        await anyio.sleep(0)
        gate.tool.func()
        return threading.get_ident() != loop_thread

    async with ToolRunner([Tool(blocks, runs_in="thread")]) as runner:
        async with runner.open_batch([ToolCall("0", "blocks")]) as batch:
            await gate.wait_started()
            batch.interrupt()
        assert batch.results[0].detached
        gate.open()
        assert await runner.wait_detached(LIVENESS)


async def test_async_tool_in_a_thread_is_told_to_stop() -> None:
    """§4.4: on its own loop, too, it gets one cancellation and can tidy up."""
    running = threading.Event()
    cleaned = threading.Event()

    async def tool() -> None:
        try:
            running.set()
            await anyio.sleep(600)
        finally:
            await anyio.sleep(0.01)
            cleaned.set()

    async with ToolRunner([Tool(tool, runs_in="thread")]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await anyio.to_thread.run_sync(running.wait, LIVENESS)
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
        assert cleaned.is_set()
        assert runner.statistics().late_results == 0


async def test_cancelled_reaches_every_polling_tool() -> None:
    """F4: all cooperative blocking tools see the interrupt within one poll."""
    polling = threading.Semaphore(0)
    stopped = threading.Semaphore(0)

    def poll() -> None:
        cancelled = current_call().cancelled
        polling.release()
        while not cancelled.wait(0.001):
            pass
        stopped.release()

    def check() -> None:
        polling.release()
        while True:
            try:
                from_thread.check_cancelled()
            except CallDetached:
                stopped.release()
                raise
            current_call().cancelled.wait(0.001)

    async with ToolRunner([poll, check]) as runner:
        async with runner.open_batch([ToolCall("0", "poll"), ToolCall("1", "check")]) as batch:
            for _ in range(2):
                await anyio.to_thread.run_sync(lambda: polling.acquire(timeout=LIVENESS))
            batch.interrupt()
        for _ in range(2):
            assert await anyio.to_thread.run_sync(lambda: stopped.acquire(timeout=LIVENESS))
        assert await runner.wait_detached(LIVENESS)


async def test_on_cancel_unblocks_a_blocking_call() -> None:
    """§3.3: the callback runs once, off the loop's thread, and its errors are contained."""
    waiting = threading.Event()
    released = threading.Event()
    ran_in: list[int] = []

    def unblock() -> None:
        ran_in.append(threading.get_ident())
        released.set()
        raise RuntimeError("contained")

    def tool() -> str:
        on_cancel(unblock)
        waiting.set()
        released.wait(LIVENESS)
        return "unblocked"

    late: list[Any] = []
    async with ToolRunner([tool], on_late=late.append) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await anyio.to_thread.run_sync(waiting.wait, LIVENESS)
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert len(ran_in) == 1 and ran_in[0] != threading.get_ident()
    assert [x.value for x in late] == ["unblocked"]


async def test_callbacks_of_all_batches_share_their_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P10: however many calls are cut, on one loop only so many run at once."""
    monkeypatch.setattr(telling, "HOOK_THREADS", 1)
    gate = GatedTool()
    begun: list[str] = []
    may_end = threading.Event()

    def callback() -> None:
        begun.append("it")
        assert may_end.wait(LIVENESS)

    def tool() -> None:
        on_cancel(callback)
        gate.tool.func()

    async with ToolRunner([tool]) as runner:
        with anyio.fail_after(LIVENESS):
            for count in (1, 2):
                async with runner.open_batch([ToolCall("0", "tool")]) as batch:
                    await gate.wait_started(count)
                    batch.interrupt()
                while not begun:
                    await anyio.sleep(0.001)
            hub = current_hub()
            await hub.chores_until_now()
            lane = hub.shared["hooks"]
            assert (lane.attached, len(begun)) == (1, 1)
            may_end.set()
            while len(begun) < 2:
                await anyio.sleep(0.001)
            gate.open()
            assert await runner.wait_detached(LIVENESS)


async def test_on_cancel_in_a_thread_that_the_tool_leaves_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§3.3: in any thread, at any moment: also just as the call ends."""
    between, go_on = threading.Event(), threading.Event()
    unregistered: list[bool] = []
    side: list[threading.Thread] = []

    class Lock:
        def __enter__(self) -> None: ...

        def __exit__(self, *exc: object) -> None:
            if threading.current_thread() in side:
                between.set()
                assert go_on.wait(LIVENESS)

    def register() -> None:
        unregistered.append(on_cancel(print).unregister())

    def tool() -> None:
        run = contextvars.copy_context().run
        side.append(threading.Thread(target=run, args=(register,)))
        side[0].start()
        assert between.wait(LIVENESS)

    monkeypatch.setattr(context, "_lazily", Lock())
    try:
        with anyio.fail_after(LIVENESS):
            results = await run_batch([ToolCall("1", "tool")], [tool])
    finally:
        go_on.set()
    side[0].join(LIVENESS)
    assert results[0].unwrap() is None
    assert unregistered == [False]


async def test_on_cancel_is_unregistered_by_leaving_it() -> None:
    """§3.3: as a context manager it is over at the block's end; after a cut it runs at once."""
    calls: list[str] = []
    waiting = threading.Event()

    def tool() -> None:
        with on_cancel(lambda: calls.append("unregistered")):
            pass
        waiting.set()
        current_call().cancelled.wait(LIVENESS)
        on_cancel(lambda: calls.append("registered late"))

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await anyio.to_thread.run_sync(waiting.wait, LIVENESS)
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert calls == ["registered late"]


async def test_on_cancel_of_an_async_tool_runs_on_the_loop() -> None:
    """§3.3: there it may touch what belongs to the loop."""
    ran_in: list[int] = []
    started = anyio.Event()

    async def tool() -> None:
        on_cancel(lambda: ran_in.append(threading.get_ident()))
        started.set()
        await anyio.sleep(600)

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await started.wait()
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert ran_in == [threading.get_ident()]


async def test_sqlite_query_is_stopped() -> None:
    """§3.3: `on_cancel(connection.interrupt)` ends a running query."""
    started = threading.Event()

    def query() -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.create_function("mark", 0, started.set)
        with contextlib.closing(connection), on_cancel(connection.interrupt):
            connection.execute(
                "with recursive n(i) as (select coalesce(mark(), 1) union all"
                " select i + 1 from n) select count(*) from n"
            ).fetchall()

    late: list[Any] = []
    async with ToolRunner([query], on_late=late.append) as runner:
        async with runner.open_batch([ToolCall("0", "query")]) as batch:
            await anyio.to_thread.run_sync(started.wait, LIVENESS)
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert isinstance(late[0].error, sqlite3.OperationalError)


async def test_from_thread_reaches_the_loop() -> None:
    """§3.3: `run` and `run_sync` work as anyio's, with the tool's context."""
    loop_thread = threading.get_ident()
    VARIABLE.set("kept")

    async def on_loop(x: int) -> tuple[int, int, str]:
        await anyio.sleep(0.001)
        return x, threading.get_ident(), VARIABLE.get()

    async def failing() -> None:
        raise LookupError("from the loop")

    def tool() -> Any:
        with pytest.raises(LookupError, match="from the loop"):
            from_thread.run(failing)
        with pytest.raises(ZeroDivisionError):
            from_thread.run_sync(lambda: 1 // 0)
        return from_thread.run(on_loop, 5), from_thread.run_sync(threading.get_ident)

    assert await value_of(Tool(tool)) == ((5, loop_thread, "kept"), loop_thread)


async def test_from_thread_of_a_cut_call_is_let_go() -> None:
    """P5: a waiting thread gets `CallDetached` at the cut, and its task is cancelled."""
    on_loop = anyio.Event()
    seen: list[str] = []

    async def visit() -> None:
        on_loop.set()
        try:
            await anyio.sleep(600)
        finally:
            seen.append("task cancelled")

    def tool() -> None:
        try:
            from_thread.run(visit)
        except CallDetached:
            seen.append("thread let go")
        for again in (lambda: from_thread.run(visit), lambda: from_thread.run_sync(print)):
            with pytest.raises(CallDetached):
                again()

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await on_loop.wait()
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    assert sorted(seen) == ["task cancelled", "thread let go"]


async def test_from_thread_on_the_loop_is_refused() -> None:
    """§3.3: where it would block the loop it raises instead."""

    async def tool() -> None:
        with pytest.raises(RuntimeError, match="block the event loop"):
            from_thread.run_sync(print)

    await value_of(Tool(tool))


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_generators_stream(
    carrier: Any, is_async: bool, promises: PromiseObserver
) -> None:
    """§3.2: each item is an event and joins `partial`; the last is the value."""

    def words() -> Iterator[str]:
        yield from ("a", "b", "c")

    async def async_words() -> AsyncIterator[str]:
        for word in ("a", "b", "c"):
            await anyio.lowlevel.checkpoint()
            yield word

    tool = Tool(async_words if is_async else words, name="words", runs_in=carrier)
    async with ToolRunner([tool], observers=[promises]) as runner:
        async with runner.open_batch([ToolCall("0", "words")]) as batch:
            outputs = [e.output async for e in batch.events() if isinstance(e, CallOutput)]
    assert outputs == ["a", "b", "c"]
    assert batch.results[0].value == "c"
    assert batch.results[0].partial == ["a", "b", "c"]


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_generator_that_is_cut_keeps_its_items(carrier: Any) -> None:
    """P3, P5: what was given before the cut is the partial; what comes later is not."""
    gate = GatedTool()
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield 1
            yield 2
            gate.tool.func()
            yield 3
            yield 4
        finally:
            closed.set()

    async with ToolRunner([Tool(items)]) as runner:
        async with runner.open_batch([ToolCall("0", "items")]) as batch:
            await gate.wait_started()
            batch.interrupt()
        assert batch.results[0].partial == [1, 2]
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        assert batch.results[0].partial == [1, 2]
        assert closed.is_set()


async def test_empty_generator_gives_none() -> None:
    """§3.2: a generator without items completes with None."""

    def nothing() -> Iterator[int]:
        yield from ()

    assert await value_of(Tool(nothing)) is None


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_progress_is_told_and_coalesced(carrier: Any) -> None:
    """N9: a flood of reports costs a slow reader one event; the newest is seen."""

    def tool() -> None:
        for i in range(10_000):
            report_progress(i, 9_999, f"step {i}")

    seen: list[CallProgress] = []
    async with ToolRunner([Tool(tool, runs_in=carrier)]) as runner:
        async with runner.open_batch() as batch:
            reader = batch.events()
            await batch.submit(ToolCall("0", "tool")).wait()
        seen = [e async for e in reader if isinstance(e, CallProgress)]
    assert 1 <= len(seen) < 100
    assert seen[-1].progress == 9_999 and seen[-1].total == 9_999


@pytest.mark.parametrize("bad", ["half", None, True])
async def test_bad_progress_is_refused(bad: Any) -> None:
    """Misuse inside a tool is that call's failure, with a clear error."""
    results = await run_batch([ToolCall("0", "t")], {"t": lambda: report_progress(bad)})
    assert isinstance(results[0].error, TypeError)


async def test_newest_partial_counts() -> None:
    """§3.3: `keep_partial` replaces what was published before."""
    gate = GatedTool()

    def tool() -> None:
        keep_partial("old")
        keep_partial(None)
        keep_partial(["new"])
        gate.tool.func()
        keep_partial("too late")

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await gate.wait_started()
            batch.interrupt()
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        assert batch.results[0].partial == ["new"]
