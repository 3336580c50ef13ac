"""P2, P3, P4, P6: an interrupt ends the turn at once, truthfully, whatever runs."""

from __future__ import annotations

import signal
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    CallSettled,
    Event,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    open_batch,
    run_batch,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver, ScriptedTool, sleep

LIVENESS = 20.0  # seconds where milliseconds are meant


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)


async def test_blocking_call_is_let_go_at_once(promises: PromiseObserver) -> None:
    """P2: nothing is joined: the turn ends while the blocking tool still runs."""
    gate = GatedTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], observers=[promises]) as runner:
            async with runner.open_batch(calls("gated")) as batch:
                await gate.wait_started()
                assert batch.interrupt("enough") is True
            assert shape(batch.results) == [CUT]
            assert gate.ended == 0
            reason = batch.results[0].reason
            assert reason is not None and reason.message == "enough"
            assert [d.call for d in runner.statistics().detached] == batch.calls
            gate.open()
            assert await runner.wait_detached(LIVENESS)


async def test_deaf_async_call_is_let_go_at_once(promises: PromiseObserver) -> None:
    """P2: a coroutine that swallows cancellation does not hold the turn."""
    deaf = DeafTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([deaf.tool], observers=[promises]) as runner:
            async with runner.open_batch(calls("deaf")) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            assert deaf.ended == 0
            deaf.release()
            assert await runner.wait_detached(LIVENESS)


async def test_shielded_async_call_is_let_go_at_once() -> None:
    """P2: a tool inside its own shield does not hold the turn, and is not pierced."""
    inside = anyio.Event()
    leave = anyio.Event()
    seen: list[str] = []

    async def shielded() -> None:
        try:
            with anyio.CancelScope(shield=True):
                inside.set()
                await leave.wait()
                seen.append("left the shield by itself")
            await anyio.sleep(60)
            seen.append("not cancelled")
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled after the shield")
            raise

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([shielded]) as runner:
            async with runner.open_batch(calls("shielded")) as batch:
                await inside.wait()
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            assert seen == []
            leave.set()
            assert await runner.wait_detached(LIVENESS)
    assert seen == ["left the shield by itself", "cancelled after the shield"]


async def test_async_call_that_never_waits_for_anything_is_stopped() -> None:
    """P2, §4.4: there is nothing to break off, and the cancellation comes in all the same."""
    begun, left = anyio.Event(), anyio.Event()

    async def busy() -> None:
        begun.set()
        try:
            while not left.is_set():
                await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            left.set()
            raise

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([busy]) as runner:
            async with runner.open_batch(calls("busy")) as batch:
                await begun.wait()
                batch.interrupt()
            with anyio.move_on_after(LIVENESS / 4):
                await left.wait()
            was_stopped = left.is_set()
            left.set()  # else it would hold the loop
            assert was_stopped
            assert await runner.wait_detached(LIVENESS)


async def test_finished_results_are_kept(promises: PromiseObserver) -> None:
    """P3: what is in when the interrupt comes is a real result, partials included."""

    published = threading.Event()

    def with_partial() -> None:
        keep_partial("half")
        published.set()
        current_call().cancelled.wait(LIVENESS)

    gate = GatedTool()
    quick = GatedTool("quick", value="real")
    quick.open()
    async with ToolRunner(
        [quick.tool, gate.tool, with_partial], observers=[promises]
    ) as runner:
        async with runner.open_batch(calls("quick", "gated", "with_partial")) as batch:
            await quick.wait_ended()
            await gate.wait_started()
            await until(published.is_set)
            await until(lambda: batch.snapshot()[0] is not None)
            batch.interrupt()
        assert [r.value for r in batch.results] == ["real", None, None]
        assert shape(batch.results)[1:] == [CUT, CUT]
        assert batch.results[2].partial == "half"
        assert "half" in batch.results[2].text
        gate.open()


async def test_completion_on_its_way_counts_as_finished() -> None:
    """P3: a result whose message to the loop is still queued at the cut is kept."""
    gate = GatedTool(value="just in time")
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()
            # The loop is held here, so the worker's message cannot be read.
            batch.interrupt()
            gate.open()
            _block_until(lambda: gate.ended == 1)
            _block_until(lambda: not batch._engine.tickets.ends)
        assert [r.value for r in batch.results] == ["just in time"]
        assert batch.results[0].status is Status.COMPLETED


async def test_completion_on_its_way_counts_as_finished_within_a_grace(
    promises: PromiseObserver,
) -> None:
    """P3, P10: also if the grace is shortened then; and the call's place is free again."""
    gate = GatedTool(value="just in time")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], max_concurrency=1, observers=[promises]) as runner:
            async with runner.open_batch(calls("gated")) as batch:
                await gate.wait_started()
                batch.interrupt(grace=LIVENESS * 2)
                await anyio.wait_all_tasks_blocked()
                # The loop is held here, and what stops overtakes the worker's message.
                gate.open()
                _block_until(lambda: not batch._engine.tickets.ends)
                batch.interrupt(grace=0)
            assert [r.value for r in batch.results] == ["just in time"]
            assert batch.results[0].status is Status.COMPLETED
            assert [r.value for r in await runner.run(calls("gated"))] == ["just in time"]
            counts = runner.statistics()
            assert (counts.running, counts.running_threads, counts.detached) == (0, 0, ())
    promises.check(batch.id, batch.results)


async def test_nothing_starts_after_the_interrupt(promises: PromiseObserver) -> None:
    """P4, T3: waiting calls never start, nor do calls that are submitted later."""
    gate = GatedTool()
    async with ToolRunner([gate.tool], max_threads=2, observers=[promises]) as runner:
        async with runner.open_batch() as batch:
            for call in calls(*["gated"] * 5):
                batch.submit(call)
            await gate.wait_started(2)
            batch.interrupt()
            late = batch.submit(ToolCall("late", "gated"))
            assert late.result is not None and not late.result.started
            gate.open()
        assert shape(batch.results) == [CUT, CUT, *[NOT_STARTED] * 4]
        assert "not started" in batch.results[2].text
        assert batch.results[2].effects == "none"
        assert await runner.wait_detached(LIVENESS)
        assert gate.started == 2


async def test_waiting_async_calls_never_start_either() -> None:
    """P4: the same for calls that wait for a slot."""
    scripted = ScriptedTool(sleep(600))
    async with ToolRunner([scripted.tool], max_concurrency=2) as runner:
        async with runner.open_batch(calls(*["scripted"] * 5)) as batch:
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
        assert shape(batch.results) == [CUT, CUT, *[NOT_STARTED] * 3]
        assert await runner.wait_detached(LIVENESS)
    assert scripted.started == 2


async def test_interrupt_before_the_first_step_of_a_call() -> None:
    """P4: a call that was submitted but had no time to run is never started."""
    scripted = ScriptedTool(sleep(600))
    async with open_batch(tools=[scripted.tool]) as batch:
        batch.interrupt()
        handle = batch.submit(calls("scripted")[0])
    assert handle.result is not None
    assert shape(batch.results) == [NOT_STARTED]
    assert scripted.started == 0


@pytest.mark.parametrize("from_where", ["loop", "thread", "signal"])
async def test_interrupt_comes_from_anywhere(from_where: str) -> None:
    """P2: from the loop, from a foreign thread, from a signal handler."""
    gate = GatedTool()
    answers: list[bool] = []
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()

            def interrupt(*_: Any) -> None:
                answers.append(batch.interrupt(from_where))

            if from_where == "loop":
                interrupt()
            elif from_where == "thread":
                thread = threading.Thread(target=interrupt)
                thread.start()
                thread.join()
            else:
                before = signal.signal(signal.SIGUSR1, interrupt)
                try:
                    signal.raise_signal(signal.SIGUSR1)
                finally:
                    signal.signal(signal.SIGUSR1, before)
        assert answers == [True]
        assert shape(batch.results) == [CUT]
        gate.open()


@pytest.mark.parametrize("on_interrupt", ["cancel", "keep"])
async def test_second_interrupt_changes_nothing_but_the_grace(on_interrupt: Any) -> None:
    """P6: the first reason stays; a later interrupt can only shorten the grace."""
    gate = GatedTool(on_interrupt=on_interrupt)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool]) as runner:
            async with runner.open_batch(calls("gated"), interrupt_grace=600) as batch:
                await gate.wait_started()
                assert batch.interrupt("first") is True
                assert batch.interrupt("second", grace=900) is False
                await anyio.wait_all_tasks_blocked()
                assert batch.snapshot() == [None]
                assert batch.interrupt("third", grace=0) is False
            reason = batch.results[0].reason
            assert reason is not None and reason.message == "first"
            gate.open()


async def test_call_that_stops_within_the_grace_gives_its_own_answer() -> None:
    """C5: one grace for all; what ends in it by itself keeps its answer."""

    def cooperative() -> str:
        current_call().cancelled.wait(LIVENESS)
        return "stopped cleanly"

    async def async_cooperative() -> str:
        try:
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class():
            return "tidied up"
        return "not cancelled"

    async def cancelled() -> None:
        await anyio.sleep(600)

    tools = [cooperative, async_cooperative, cancelled]
    async with ToolRunner(tools, interrupt_grace=LIVENESS) as runner:
        async with runner.open_batch(calls(*[t.__name__ for t in tools])) as batch:
            await until(lambda: runner.statistics().running == 3)
            batch.interrupt()
        assert [r.value for r in batch.results] == ["stopped cleanly", "tidied up", None]
        assert shape(batch.results)[2] == ("interrupted", "user_interrupt", True, False)
        assert runner.statistics().detached == ()


async def test_interrupt_of_a_finished_batch_is_nothing() -> None:
    """F8, F14, T12: after its end there is nothing to stop, and no event comes."""
    events: list[Event] = []
    async with ToolRunner([lambda: 1], observers=[events.append]) as runner:
        async with runner.open_batch([ToolCall("a", "<lambda>")]) as batch:
            pass
        count = len(events)
        assert batch.interrupt() is False
        assert runner.interrupt() == 0
        await anyio.wait_all_tasks_blocked()
        assert len(events) == count
        assert [r.value for r in await runner.run([ToolCall("b", "<lambda>")])] == [1]


async def test_runner_interrupt_counts_the_open_batches() -> None:
    """P2: `ToolRunner.interrupt` reaches every batch that is open now, and only those."""
    gate = GatedTool()
    async with ToolRunner([gate.tool]) as runner:
        async with (
            runner.open_batch(calls("gated")) as one,
            runner.open_batch(calls("gated")) as two,
        ):
            await gate.wait_started(2)
            assert runner.interrupt("all") == 2
            assert runner.interrupt("again") == 0
            await one.wait()
            await two.wait()
        assert shape(one.results) == shape(two.results) == [CUT]
        gate.open()
        assert [r.value for r in await runner.run(calls("gated"))] == ["done"]


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_observers_hear_of_the_cut_after_the_awaiting_code_runs(how: str) -> None:
    """§4.3: wake first, then the work that grows with the batch."""
    order: list[str] = []
    count = 3 if how == "interrupt" else 1

    def observe(event: Event) -> None:
        if isinstance(event, CallSettled):
            order.append("observer")

    async with ToolRunner([DeafTool().tool], observers=[observe]) as runner:
        deaf = DeafTool()
        async with runner.open_batch() as batch:
            for _ in range(count):
                batch.submit(ToolCall("x", "deaf", tool=deaf.tool))
            await anyio.wait_all_tasks_blocked()
            assert batch.interrupt() if how == "interrupt" else batch.cancel("x") == 1
            await batch.wait()
            order.append("awaiting code")
        deaf.release()  # else it would hold the loop if what follows failed
        await until(lambda: len(order) == 1 + count)
        assert order == ["awaiting code", *["observer"] * count]


async def test_each_end_is_told_as_it_comes() -> None:
    """P3, §3.2: a host persists each result at once; it may not live to see the last."""
    gate = GatedTool()
    told: list[int] = []
    read: list[int] = []

    def observe(event: Event) -> None:
        if isinstance(event, CallSettled):
            told.append(event.result.index)

    tools = [gate.tool, Tool(lambda: "quick", name="quick")]
    with anyio.fail_after(LIVENESS):
        async with (
            ToolRunner(tools, observers=[observe]) as runner,
            anyio.create_task_group() as tasks,
            runner.open_batch() as batch,
        ):
            batch.submit(ToolCall("0", "gated"))
            await gate.wait_started()

            async def read_all() -> None:
                async for event in batch.events():
                    if isinstance(event, CallSettled):
                        read.append(event.result.index)

            tasks.start_soon(read_all)
            await anyio.wait_all_tasks_blocked()  # nothing else is to be told
            quick = batch.submit(ToolCall("1", "quick"))
            await quick.wait()
            await anyio.wait_all_tasks_blocked()
            assert (told, read) == ([1], [1])
            gate.open()
    assert (told, read) == ([1, 0], [1, 0])


async def test_interrupt_in_the_middle_of_a_submit() -> None:
    """§3.1: an interrupt that comes inside one of our own steps is not lost."""

    def interrupting_check(call: ToolCall) -> None:
        assert batch.interrupt("in the middle") is True

    from anyio_toolbatch import Tool

    scripted = ScriptedTool(sleep(600), validate=interrupting_check)
    async with open_batch(tools={"a": scripted.tool, "b": Tool(lambda: None)}) as batch:
        batch.submit(ToolCall("1", "a"))
    assert shape(batch.results) == [NOT_STARTED]
    assert scripted.started == 0


async def test_run_returns_placeholders_when_the_runner_is_interrupted() -> None:
    """A1, A4: whoever awaits `run` has one result per call after an interrupt."""
    gate = GatedTool()
    async with ToolRunner([gate.tool]) as runner:
        results: list[ToolResult] = []

        async def turn() -> None:
            results.extend(await runner.run(calls("gated", "gated")))

        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            await gate.wait_started(2)
            runner.interrupt()
        assert shape(results) == [CUT, CUT]
        gate.open()


@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("handled", [True, False])
async def test_a_kept_call_can_be_cancelled_within_the_grace(
    carrier: Any, handled: bool, promises: PromiseObserver
) -> None:
    """§3.2, §4.3: the interrupt has not asked it to stop, so there is something to cancel."""
    told = threading.Event()
    gate = GatedTool("other")
    begun = anyio.Event()

    async def kept() -> None:
        begun.set()
        try:
            await anyio.sleep(LIVENESS * 2)
        finally:
            told.set()

    def kept_in_thread() -> None:
        from_thread.run_sync(begun.set)
        if current_call().cancelled.wait(LIVENESS):
            told.set()

    func = kept if carrier == "loop" else kept_in_thread
    tools = {"kept": Tool(func, on_interrupt="keep"), "other": gate.tool}
    with anyio.fail_after(LIVENESS / 2):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                handle = batch.submit(ToolCall("0", "kept"))
                other = batch.submit(ToolCall("1", "other"))
                await begun.wait()
                await gate.wait_started()
                batch.interrupt(grace=LIVENESS * 2)
                if handled:
                    await anyio.wait_all_tasks_blocked()
                    assert not told.is_set()
                assert handle.cancel("this one, too") is True
                assert handle.cancel() is False
                assert other.cancel() is False  # has been asked to stop
                result = await handle.wait()
                assert other.result is None
                gate.open()
            assert await runner.wait_detached(LIVENESS)
            assert told.is_set()
    assert (result.status, result.started) == (Status.INTERRUPTED, True)
    assert result.reason is not None and result.reason.message == "this one, too"
    assert result.reason.kind == "call_cancelled"
    assert batch.results[1].value == "done"
    promises.check(batch.id, batch.results)


async def test_interrupt_does_not_wait_for_a_thread_that_is_posting() -> None:
    """P2: a worker may be held up between its taking the mailbox's flag and its post."""
    gate = GatedTool()
    with anyio.fail_after(LIVENESS):
        async with open_batch(calls("gated"), [gate.tool]) as batch:
            await gate.wait_started()
            hub = batch._engine.hub
            while not hub._wake_pending.acquire(blocking=False):  # as that worker
                await anyio.sleep(0)
            batch.interrupt()
        gate.open()
        await gate.wait_ended()
        assert hub._drain_soon() and hub.post(lambda _: None, None)  # it goes on


async def test_empty_batches() -> None:
    """R8: a batch of nothing gives nothing, interrupted or not."""
    assert await run_batch([]) == []
    async with open_batch() as batch:
        batch.interrupt()
    assert batch.results == []
    assert batch.interrupted


async def until(condition: Any) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


def _block_until(condition: Any) -> None:
    import time

    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
