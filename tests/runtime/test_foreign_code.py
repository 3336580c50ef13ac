"""P8, §3.4: whatever callbacks of users raise or do, it harms nobody else."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    BatchSettled,
    BatchStarted,
    CallDetached,
    CallSettled,
    CallStarted,
    Event,
    Status,
    Tool,
    ToolCall,
    ToolRunner,
    current_call,
    on_cancel,
    open_batch,
    run_batch,
)
from anyio_toolbatch._runtime import runner as runner_module
from anyio_toolbatch._runtime.engine import BatchEngine
from anyio_toolbatch._runtime.telling import HOOK_THREADS

LIVENESS = 20.0
FOREIGN = [CallDetached, SystemExit, GeneratorExit, asyncio.CancelledError]
variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.mark.parametrize("error", FOREIGN)
async def test_on_cancel_error_on_the_loop_harms_no_later_batch(
    error: type[BaseException],
) -> None:
    """§3.3: errors of `on_cancel` callbacks are contained; the next cut is told too."""
    inside = anyio.Event()
    told = anyio.Event()
    called: list[str] = []

    def hook() -> None:
        called.append("hook")
        raise error

    async def bad() -> None:
        on_cancel(hook)
        inside.set()
        await anyio.sleep_forever()

    async def good() -> None:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            told.set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([bad, good]) as runner:
            for name in ("bad", "good"):
                inside = anyio.Event()
                async with runner.open_batch([ToolCall("0", name)]) as batch:
                    await inside.wait()
                    batch.interrupt()
                assert await runner.wait_detached(LIVENESS), name
            await told.wait()
    assert called == ["hook"]


async def test_on_cancel_errors_in_threads_use_up_no_thread() -> None:
    """§3.3: more callbacks that raise than there are threads for them, and all run."""
    count = HOOK_THREADS + 8
    started = threading.Semaphore(0)
    ran = threading.Semaphore(0)
    leave = threading.Event()

    def hook() -> None:
        ran.release()
        raise CallDetached

    def tool() -> None:
        on_cancel(hook)
        started.release()
        leave.wait(LIVENESS)

    def all_of(semaphore: threading.Semaphore) -> bool:
        return all(semaphore.acquire(timeout=LIVENESS) for _ in range(count))

    async with ToolRunner([tool], max_threads=count, max_detached=count) as runner:
        try:
            async with runner.open_batch([ToolCall("0", "tool")] * count) as batch:
                assert await anyio.to_thread.run_sync(all_of, started)
                batch.interrupt()
            assert await anyio.to_thread.run_sync(all_of, ran)
        finally:
            leave.set()
        assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("error", FOREIGN)
async def test_observer_that_raises_anything_is_logged(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """§3.4: an observer that raises is logged and the batch goes on."""

    def observe(event: Event) -> None:
        if isinstance(event, CallSettled):
            raise error

    async def tool() -> int:
        return 1

    with anyio.fail_after(LIVENESS):
        results = await run_batch([ToolCall("0", "tool")] * 2, [tool], observers=[observe])
    assert [r.value for r in results] == [1, 1]
    assert "observer" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
async def test_observer_that_raises_in_a_timer_ends_no_loop(
    error: type[BaseException],
) -> None:
    """§3.4: the same where the loop's own timer has called the observer."""

    def observe(event: Event) -> None:
        if isinstance(event, CallSettled):
            raise error

    with anyio.fail_after(LIVENESS):
        results = await run_batch(
            [ToolCall("0", "tool")],
            [Tool(anyio.sleep_forever, name="tool", timeout=0.001)],
            observers=[observe],
        )
    assert [r.status for r in results] == [Status.TIMED_OUT]


@pytest.mark.parametrize("error", FOREIGN)
@pytest.mark.parametrize("way", ["run", "submit"])
async def test_validate_that_raises_anything_makes_the_call_invalid(
    error: type[BaseException], way: str
) -> None:
    """P1, §3.2: raising in `validate` is that call's end, whatever is raised."""

    def check(call: ToolCall) -> None:
        raise error

    tools = {"checked": Tool(lambda: 1, validate=check), "plain": lambda: 2}
    calls = [ToolCall("0", "checked"), ToolCall("1", "plain")]
    with anyio.fail_after(LIVENESS):
        if way == "run":
            results = await run_batch(calls, tools)
        else:
            async with open_batch(tools=tools) as batch:
                for call in calls:
                    batch.submit(call)
            results = batch.results
    assert [(r.status, r.started) for r in results] == [
        (Status.INVALID, False),
        (Status.COMPLETED, True),
    ]
    assert isinstance(results[0].error, error)


async def test_ctrl_c_in_validate_comes_out_and_leaves_a_result() -> None:
    """P1, §4.6: a break in a check comes out of `submit`; its call has an end."""

    def check(call: ToolCall) -> None:
        raise KeyboardInterrupt

    with anyio.fail_after(LIVENESS):
        async with open_batch(tools={"tool": Tool(lambda: 1, validate=check)}) as batch:
            with pytest.raises(KeyboardInterrupt):
                batch.submit(ToolCall("0", "tool"))
    assert [(r.status, r.started) for r in batch.results] == [(Status.INTERRUPTED, False)]


async def test_observers_see_one_order() -> None:
    """§3.4: what an observer causes is told to all after what it was told itself."""
    seen: list[type[Event]] = []

    def sealing(event: Event) -> None:
        if isinstance(event, CallSettled):
            batch.seal()

    async def tool() -> None: ...

    async with open_batch(
        tools=[tool], observers=[sealing, lambda e: seen.append(type(e))]
    ) as batch:
        batch.submit(ToolCall("0", "tool"))
        await batch.wait()
    assert seen == [BatchStarted, CallStarted, CallSettled, BatchSettled]


async def test_interrupt_while_the_batch_is_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """§3.1: who was told that there was something to interrupt finds it interrupted."""
    answers: list[bool] = []

    class Closing(BatchEngine):
        """A signal comes just before the batch is marked as closed."""

        _closed = False

        @property
        def closed(self) -> bool:
            return self._closed

        @closed.setter
        def closed(self, value: bool) -> None:
            if value:
                answers.append(batch.interrupt("a signal"))
            self._closed = value

    monkeypatch.setattr(runner_module, "BatchEngine", Closing)

    async def tool() -> int:
        return 1

    async with open_batch(tools=[tool]) as batch:
        await batch.submit(ToolCall("0", "tool")).wait()
    assert answers == [True]
    assert batch.results[0].value == 1
    assert batch.interrupted
    assert batch.reason is not None
    assert (batch.reason.kind, batch.reason.message) == ("user_interrupt", "a signal")


@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_on_cancel_callback_has_the_calls_context(carrier: str) -> None:
    """§3.3: the call is found through a context variable, in its callbacks too."""
    inside = threading.Event()
    leave = threading.Event()
    called = threading.Event()
    seen: list[Any] = []

    def hook() -> None:
        try:
            seen.append((variable.get(), current_call().call.id))
            leave.set()
        finally:
            called.set()

    def register() -> None:
        variable.set(f"{variable.get()}, then the tool's")
        on_cancel(hook)
        inside.set()

    def in_thread() -> None:
        register()
        leave.wait(LIVENESS)

    async def on_loop() -> None:
        register()
        await anyio.sleep_forever()

    variable.set("the submitter's")
    tool = on_loop if carrier == "loop" else in_thread
    async with ToolRunner({"tool": tool}) as runner:
        async with runner.open_batch([ToolCall("its id", "tool")]) as batch:
            assert await anyio.to_thread.run_sync(inside.wait, LIVENESS)
            batch.interrupt()
        assert await anyio.to_thread.run_sync(called.wait, LIVENESS)
        assert await runner.wait_detached(LIVENESS)
    assert seen == [("the submitter's, then the tool's", "its id")]
