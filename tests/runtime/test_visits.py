"""§3.3: `from_thread`, and waiting for what was let go, at the edges."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallDetached,
    LateResult,
    ToolCall,
    ToolRunner,
    current_call,
    from_thread,
    run_batch,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import engine as engine_module
from anyio_toolbatch._runtime.engine import BatchEngine

LIVENESS = 20.0
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="lost")


async def test_visits_run_in_the_calling_context() -> None:
    """§3.3: on the loop, a visit sees what its thread has set, and its call."""

    def look() -> tuple[str, str]:
        return variable.get(), current_call().call.id

    async def look_async() -> tuple[str, str]:
        await anyio.lowlevel.checkpoint()
        return look()

    def visit_twice() -> list[Any]:
        return [from_thread.run_sync(look), from_thread.run(look_async)]

    def tool() -> list[Any]:
        variable.set("the tool's")
        inner = contextvars.copy_context()
        inner.run(variable.set, "a copy's")
        return visit_twice() + inner.run(visit_twice)

    results = await run_batch([ToolCall("its id", "tool")], [tool])
    assert results[0].unwrap() == [
        *[("the tool's", "its id")] * 2,
        *[("a copy's", "its id")] * 2,
    ]


async def test_visit_is_told_though_its_thread_has_left_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P5: a thread that sees the cut before anybody is told leaves no task behind."""
    monkeypatch.setattr(from_thread, "LOOK_SECONDS", 0.001)
    on_loop = anyio.Event()
    left = threading.Event()
    told: list[str] = []

    async def visit() -> None:
        on_loop.set()
        try:
            await anyio.sleep(LIVENESS)
        except anyio.get_cancelled_exc_class():
            told.append("once")
            await anyio.sleep(0.01)  # a second one would cut this off
            told.append("tidied up")
            raise

    def tool() -> None:
        try:
            from_thread.run(visit)
        finally:
            left.set()

    with anyio.fail_after(LIVENESS / 2):
        async with ToolRunner([tool]) as runner:
            async with runner.open_batch([ToolCall("0", "tool")]) as batch:
                await on_loop.wait()
                batch.interrupt()
            # The awaiting code comes first; nobody has been told yet.
            assert left.wait(LIVENESS / 4)
            while len(told) < 2:
                await anyio.sleep(0.001)
    assert told == ["once", "tidied up"]


async def test_first_visits_of_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """§3.3: threads with the tool's context may visit; neither loses the other's."""
    both_have_looked = threading.Barrier(2)
    looking = threading.local()
    slot: Any = CallRecord.loop_requests

    class Record(CallRecord):
        """Lets both threads look before one of them writes, if they may."""

        __slots__ = ()

        @property
        def loop_requests(self) -> Any:
            value = slot.__get__(self)
            if value is None and getattr(looking, "first_time", False):
                looking.first_time = False
                with contextlib.suppress(threading.BrokenBarrierError):
                    both_have_looked.wait(0.2)
            return value

        @loop_requests.setter
        def loop_requests(self, value: Any) -> None:
            slot.__set__(self, value)

    monkeypatch.setattr(engine_module, "CallRecord", Record)

    def tool() -> list[BaseException]:
        errors: list[BaseException] = []

        def visit() -> None:
            looking.first_time = True
            try:
                from_thread.run_sync(int)
            except BaseException as exc:
                errors.append(exc)

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(visit,))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIVENESS)
        return errors

    results = await run_batch([ToolCall("0", "tool")], [tool])
    assert results[0].unwrap() == []


@pytest.mark.parametrize("use_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_visit_that_is_cancelled_before_its_first_step(
    use_uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: somebody cancels every task there is; the waiting thread is let go."""
    run_visit = BatchEngine.run_visit
    raised: list[BaseException] = []

    def run_and_cancel(self: BatchEngine, *args: Any) -> None:
        before = asyncio.all_tasks()
        run_visit(self, *args)
        for task in asyncio.all_tasks() - before:
            task.cancel()

    monkeypatch.setattr(BatchEngine, "run_visit", run_and_cancel)

    def tool() -> None:
        try:
            from_thread.run(anyio.sleep, 0)
        except BaseException as exc:
            raised.append(exc)
            raise

    async def turn() -> Any:
        with anyio.fail_after(LIVENESS):
            return await run_batch([ToolCall("0", "tool")], [tool])

    results = anyio.run(turn, backend_options={"use_uvloop": use_uvloop})
    assert results[0].is_error
    assert [type(e) for e in raised] == [CallDetached]


@pytest.mark.parametrize("timeout", [0, 0.001])
async def test_nothing_detached_is_true_at_once(timeout: float) -> None:
    """§3.1: `wait_detached(0)` tells whether anything is left, by a poll."""
    assert await ToolRunner().wait_detached(timeout) is True


async def test_late_end_is_handed_out_before_the_wait_is_over() -> None:
    """P5, §3.1: when nothing is detached any more, `on_late` has had every late result."""
    loop_thread = threading.get_ident()
    ended = threading.Event()
    go_on = threading.Event()
    late: list[LateResult] = []

    class Ends(set[CallRecord]):
        """Holds the worker, whose tool has ended, just before it would take its ticket."""

        def remove(self, record: CallRecord) -> None:
            if threading.get_ident() != loop_thread:
                ended.set()
                assert go_on.wait(LIVENESS)
            super().remove(record)

    async with ToolRunner({"tool": lambda: "late"}, on_late=late.append) as runner:
        try:
            async with runner.open_batch() as batch:
                batch._engine.tickets.ends = Ends()
                batch.submit(ToolCall("0", "tool"))
                assert await anyio.to_thread.run_sync(ended.wait, LIVENESS)
                batch.interrupt()
            assert await runner.wait_detached(0) is False
            assert late == []
        finally:
            go_on.set()
        assert await runner.wait_detached(LIVENESS)
        assert [x.value for x in late] == ["late"]
