"""Kind F: a late result, a late callback or stale state lands in the next turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

import anyio
import pytest

from anyio_toolbatch import (
    BatchSettled,
    CallSettled,
    Event,
    LateResult,
    LateResultDropped,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


def calls(*names: str, prefix: str = "id") -> list[ToolCall]:
    return [ToolCall(f"{prefix}-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


CUT = ("interrupted", "user_interrupt", True, True)


async def until(condition: Callable[[], object]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


class Unstoppable:
    """
    A tool that goes on after an interrupt until it is let go: a thread, or deaf.

    Leaving its block lets it go: a deaf coroutine would hold the loop's end.
    """

    def __init__(self, carrier: str, *, value: str) -> None:
        self._gate = GatedTool("old", value=value)
        self._deaf = DeafTool("old", value=value)
        self._blocks = carrier == "thread"
        self.tool: Tool = self._gate.tool if self._blocks else self._deaf.tool

    async def wait_started(self, count: int) -> None:
        used = self._gate if self._blocks else self._deaf
        await until(lambda: used.started >= count)

    def let_go(self) -> None:
        self._gate.open()
        self._deaf.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()


carriers = pytest.mark.parametrize("carrier", ["loop", "thread"])


@carriers
async def test_f1_late_results_stay_out_of_the_next_batch(
    carrier: str, promises: PromiseObserver
) -> None:
    """F1, P5: what comes late reaches the late hook, tagged, and no other batch."""
    late: list[LateResult] = []
    new = GatedTool("new", value="of batch 2")
    with Unstoppable(carrier, value="of batch 1") as old, anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [old.tool, new.tool], observers=[promises], on_late=late.append
        ) as runner:
            async with runner.open_batch(calls("old", "old")) as first:
                await old.wait_started(2)
                first.interrupt()
            # The ids are those of the first batch again: ids are only labels.
            async with runner.open_batch(calls("new", "new")) as second:
                await new.wait_started(2)
                old.let_go()
                await until(lambda: len(late) == 2)
                assert second.snapshot() == [None, None]
                new.open()
            assert [r.value for r in second.results] == ["of batch 2"] * 2
            assert shape(first.results) == [CUT, CUT]
            assert [(x.batch_id, x.value) for x in late] == [(first.id, "of batch 1")] * 2
            assert sorted(x.index for x in late) == [0, 1]
            assert all(x.call is first.calls[x.index] for x in late)
            assert runner.statistics().late_results == 2
            promises.check(second.id, second.results)


async def test_f2_cancel_mark_does_not_stick_to_the_thread() -> None:
    """F2, P5: the next call on a marked call's thread is not asked to stop."""
    late: list[LateResult] = []
    marked: list[int] = []

    def exits_when_marked() -> None:
        assert current_call().cancelled.wait(LIVENESS)
        marked.append(threading.get_ident())
        raise SystemExit("marked, and out by a BaseException")

    many = 40
    all_there = threading.Barrier(many)
    seen: dict[int, bool] = {}

    def next_tool() -> None:
        # All at once, so that every idle thread of the process is taken.
        all_there.wait(LIVENESS)
        from_thread.check_cancelled()
        seen[threading.get_ident()] = current_call().cancelled.is_set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [exits_when_marked, next_tool], max_threads=many, on_late=late.append
        ) as runner:
            async with runner.open_batch(calls("exits_when_marked")) as first:
                await until(lambda: runner.statistics().running == 1)
                first.interrupt()
            # A thread is free for the next call before it reports its last one.
            await until(lambda: late)
            assert isinstance(late[0].error, SystemExit)
            results = await runner.run(calls(*["next_tool"] * many))
    assert {r.status for r in results} == {Status.COMPLETED}
    assert marked[0] in seen, "the scenario needs the thread to be used again"
    assert set(seen.values()) == {False}


def polls_is_set() -> str:
    polls = threading.Event()  # never set: a pause between two looks
    while not current_call().cancelled.is_set():
        polls.wait(0.001)
    return "saw it"


def waits() -> str:
    return "saw it" if current_call().cancelled.wait(LIVENESS) else "missed it"


def polls_check_cancelled() -> str:
    polls = threading.Event()
    while True:
        try:
            from_thread.check_cancelled()
        except BaseException:
            return "saw it"
        polls.wait(0.001)


@pytest.mark.parametrize("tool", [polls_is_set, waits, polls_check_cancelled])
@pytest.mark.parametrize("grace", [0.0, LIVENESS])
async def test_f4_every_running_worker_sees_the_interrupt(
    tool: Callable[[], str], grace: float
) -> None:
    """F4, P2: each cooperative worker learns of the cut, with a grace and without."""
    late: list[LateResult] = []
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"tool": tool}, on_late=late.append) as runner:
            async with runner.open_batch(calls("tool", "tool")) as batch:
                await until(lambda: runner.statistics().running == 2)
                batch.interrupt(grace=grace)
            if grace:
                assert [r.value for r in batch.results] == ["saw it"] * 2
                assert late == []
            else:
                assert shape(batch.results) == [CUT, CUT]
                await until(lambda: len(late) == 2)
                assert [x.value for x in late] == ["saw it"] * 2


async def test_f5_late_cleanup_of_a_task_leaves_the_next_turn_alone() -> None:
    """F5, P5, P10: an async call's `finally` that comes last frees nobody else's place."""
    tidy, go = anyio.Event(), anyio.Event()
    tidied: list[str] = []
    started: list[str] = []

    async def slow_to_tidy() -> None:
        try:
            await anyio.sleep(600)
        finally:
            await tidy.wait()
            tidied.append(current_call().batch_id)

    async def next_turn() -> bool:
        started.append(current_call().call.id)
        await go.wait()
        return current_call().cancelled.is_set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([slow_to_tidy, next_turn], max_concurrency=1) as runner:
            async with runner.open_batch(calls("slow_to_tidy")) as first:
                await until(lambda: runner.statistics().running == 1)
                first.interrupt()
            async with runner.open_batch(calls("next_turn", "next_turn")) as second:
                await until(lambda: started)
                tidy.set()
                assert await runner.wait_detached(LIVENESS)
                assert tidied == [first.id]
                # The old call's end must not pass for the end of the new one.
                await anyio.wait_all_tasks_blocked()
                assert started == ["id-0"]
                assert second.snapshot() == [None, None]
                now = runner.statistics()
                assert (now.running, now.waiting, now.open_batches) == (1, 1, 1)
                go.set()
            assert [r.value for r in second.results] == [False, False]
            assert not second.interrupted


async def test_f5_late_end_of_a_thread_leaves_the_next_turn_alone() -> None:
    """F5, P5, P10: an abandoned worker that ends gives no place of the next turn away."""
    late: list[LateResult] = []
    lock = threading.Lock()
    running = peak = 0
    old = GatedTool("old")
    door = threading.Event()
    has_started = threading.Event()

    def next_turn() -> bool:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        has_started.set()
        door.wait(LIVENESS)
        with lock:
            running -= 1
        return current_call().cancelled.is_set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [old.tool, next_turn], max_threads=1, on_late=late.append
        ) as runner:
            async with runner.open_batch(calls("old")) as first:
                await old.wait_started()
                first.interrupt()
            async with runner.open_batch(calls("next_turn", "next_turn")) as second:
                await until(has_started.is_set)
                old.open()
                await until(lambda: late)
                now = runner.statistics()
                assert (now.running, now.waiting, now.detached) == (1, 1, ())
                door.set()
            assert [r.value for r in second.results] == [False, False]
    assert peak == 1


@carriers
async def test_f7_no_completion_comes_after_the_batch_has_returned(carrier: str) -> None:
    """F7, P5: a completion that drives the agent comes once, never for a late end."""
    completions: list[ToolResult] = []
    events: list[Event] = []
    read: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if isinstance(event, CallSettled):
            completions.append(event.result)

    with Unstoppable(carrier, value="late") as old, anyio.fail_after(LIVENESS):
        async with ToolRunner([old.tool], observers=[observe]) as runner:
            async with runner.open_batch() as batch:
                handle = batch.submit(ToolCall("a", "old"))
                await old.wait_started(1)
                batch.interrupt()
            returned = handle.result
            old.let_go()
            await until(lambda: any(isinstance(e, LateResultDropped) for e in events))
            async for event in batch.events():
                read.append(event)
            assert completions == [returned] == batch.results == [await handle.wait()]
            assert shape(completions) == [CUT]
    end = next(i for i, event in enumerate(events) if isinstance(event, BatchSettled))
    assert [type(event) for event in events[end + 1 :]] == [LateResultDropped]
    assert read == events[: end + 1]


async def test_f7_late_end_is_told_behind_the_calls_own_end() -> None:
    """F7, P5: a slow observer hears of each call's one completion first, then of its late end."""
    heard: list[Event] = []
    deaf = DeafTool()

    def observe(event: Event) -> None:
        heard.append(event)
        if isinstance(event, CallSettled):
            # While the cut is being told, all of the calls come to their late ends.
            deaf.release()
            time.sleep(0.002)  # longer than one pass of the loop may take for telling

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([deaf.tool], observers=[observe]) as runner:
            async with runner.open_batch(calls(*["deaf"] * 6)) as batch:
                await until(lambda: deaf.started == 6)
                batch.interrupt()
            assert shape(batch.results) == [CUT] * 6
            assert await runner.wait_detached(LIVENESS)
            await until(lambda: sum(isinstance(e, LateResultDropped) for e in heard) == 6)
            await until(lambda: any(isinstance(e, BatchSettled) for e in heard))
    ends = [type(e) for e in heard if isinstance(e, (CallSettled, LateResultDropped))]
    assert ends == [CallSettled] * 6 + [LateResultDropped] * 6


async def test_f8_cancelling_a_finished_batch_is_nothing(promises: PromiseObserver) -> None:
    """F8, P5: every way to cut finds nothing to cut, and publishes nothing again."""

    async def quick() -> str:
        return "done"

    async with ToolRunner([quick], observers=[promises]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("a", "quick"))
        before = batch.results
        published = len(promises.events)
        assert batch.interrupt("too late", grace=0) is False
        assert batch.cancel("a") == 0
        assert handle.cancel() is False
        assert runner.interrupt() == 0
        # Whatever was posted to the loop is handled before the next batch ends.
        assert [r.value for r in await runner.run(calls("quick"))] == ["done"]
        assert batch.results == before and batch.results[0].value == "done"
        assert batch.reason is None and not batch.interrupted
        later = [event.batch_id for event in promises.events[published:]]
        assert batch.id not in later and len(later) == 4


async def test_f9_nothing_is_buffered_across_batches(promises: PromiseObserver) -> None:
    """F9, P1, P5: a big batch that a failure ended leaves nothing to the next one."""
    late: list[LateResult] = []
    gate = GatedTool("edit", value=lambda n: f"first {n}")
    other = GatedTool("read", value=lambda n: f"second {n}")

    def fails(n: int) -> None:
        raise ValueError(f"call {n}")

    def of(name: str, count: int) -> list[ToolCall]:
        return [ToolCall(f"id-{n}", name, {"n": n}) for n in range(count)]

    big = of("edit", 100)
    big[3] = ToolCall("id-3", "fails", {"n": 3})
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, other.tool, fails],
            max_threads=16,
            observers=[promises],
            on_late=late.append,
        ) as runner:
            first = await runner.run(big, fail_fast=True)
            held = sum(r.detached for r in first)
            async with runner.open_batch(of("read", 20)) as second:
                await other.wait_started(16)
                gate.open()
                await until(lambda: len(late) == held)
                other.open()
            assert [r.value for r in second.results] == [f"second {n}" for n in range(20)]
            promises.check(second.id, second.results)
    assert [r.call for r in first] == big
    assert first[3].status is Status.FAILED
    kinds = {r.reason.kind for i, r in enumerate(first) if i != 3 and r.reason}
    assert kinds == {"sibling_failed"}
    told = [e for e in promises.events if e.batch_id == second.id]
    assert {e.call.name for e in told if isinstance(e, CallSettled)} == {"read"}
    assert not any(isinstance(e, LateResultDropped) for e in told)


@carriers
async def test_f13_late_output_is_never_sent_to_the_provider(carrier: str) -> None:
    """F13, P1, P5: the late call's id has one placeholder, before and after its end."""
    late: list[LateResult] = []
    with Unstoppable(carrier, value="SECRET OUTPUT") as old, anyio.fail_after(LIVENESS):
        async with ToolRunner([old.tool], on_late=late.append) as runner:
            async with runner.open_batch([ToolCall("call-1", "old")]) as batch:
                await old.wait_started(1)
                batch.interrupt()
            chat = openai_chat.render_results(batch.results)
            message = anthropic.render_results(batch.results)
            old.let_go()
            await until(lambda: late)
            assert late[0].value == "SECRET OUTPUT"
            assert openai_chat.render_results(batch.results) == chat
            assert anthropic.render_results(batch.results) == message
    assert [item["tool_call_id"] for item in chat] == ["call-1"]
    assert [block["tool_use_id"] for block in message["content"]] == ["call-1"]
    for text in (chat[0]["content"], message["content"][0]["content"]):
        assert "SECRET" not in text
        assert "outcome is unknown" in text


async def after_the_return(runner: ToolRunner) -> None:
    assert runner.interrupt("too late") == 0


async def from_a_foreign_thread(runner: ToolRunner) -> None:
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(runner.interrupt("too late")))
    thread.start()
    thread.join()
    assert answers == [0]


@pytest.mark.parametrize("stop", [after_the_return, from_a_foreign_thread])
async def test_f14_interrupt_after_the_end_spares_the_next_turn(
    stop: Callable[[ToolRunner], Awaitable[None]],
) -> None:
    """F14, P5, P6: it hits nothing, and the next batch tells its own error."""

    def quick() -> str:
        return "done"

    def broken() -> None:
        raise LookupError("the true error")

    async with ToolRunner([quick, broken]) as runner:
        assert [r.value for r in await runner.run(calls("quick"))] == ["done"]
        await stop(runner)
        result = (await runner.run(calls("broken")))[0]
    assert (result.status, result.reason) == (Status.FAILED, None)
    assert result.text == "LookupError: the true error"


@pytest.mark.parametrize("moment", [CallSettled, BatchSettled])
async def test_f14_interrupt_at_the_very_end_spares_the_next_turn(
    moment: type[Event],
) -> None:
    """F14, P3, P5: also one that falls together with the last result or the end."""
    answers: list[int] = []
    armed = True

    def observe(event: Event) -> None:
        if armed and isinstance(event, moment):
            answers.append(runner.interrupt("just too late"))

    async def quick() -> str:
        return "done"

    async def broken() -> None:
        raise LookupError("the true error")

    async with ToolRunner([quick, broken], observers=[observe]) as runner:
        first = await runner.run(calls("quick"))
        armed = False
        second = await runner.run(calls("broken", "quick"))
    assert len(answers) == 1
    if moment is BatchSettled:
        assert answers == [0]
    assert [r.value for r in first] == ["done"]
    assert second[0].text == "LookupError: the true error"
    assert [r.status for r in second] == [Status.FAILED, Status.COMPLETED]


@pytest.mark.parametrize("first", ["the cancellation", "the free place"])
async def test_f15_cancelled_waiting_task_is_never_started(
    first: str, promises: PromiseObserver
) -> None:
    """F15, P4: the freed place goes to the next in line, not to the cancelled call."""
    ran: list[int] = []
    doors = [anyio.Event() for _ in range(4)]

    async def held(n: int) -> int:
        ran.append(n)
        await doors[n].wait()
        return n

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([held], max_concurrency=1, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                handles = [batch.submit(ToolCall("x", "held", {"n": n})) for n in range(4)]
                await until(lambda: ran == [0])
                # In one step: neither is handled yet when the other comes.
                if first == "the cancellation":
                    assert handles[1].cancel("changed my mind") is True
                    doors[0].set()
                else:
                    doors[0].set()
                    assert handles[1].cancel("changed my mind") is True
                await until(lambda: ran == [0, 2])
                assert handles[1].cancel() is False
                doors[2].set()
                doors[3].set()
            check_f15(batch.results, ran)
            assert [r.value for r in await runner.run([ToolCall("y", "held", {"n": 0})])] == [
                0
            ]


@pytest.mark.parametrize("limit", ["max_threads", "max_concurrency"])
async def test_f15_cancelled_waiting_thread_call_is_never_started(
    limit: str, promises: PromiseObserver
) -> None:
    """F15, P4: the same for a blocking call that waits for a thread, or for a slot."""
    ran: list[int] = []
    starts = [threading.Event() for _ in range(4)]
    doors = [threading.Event() for _ in range(4)]

    def held(n: int) -> int:
        ran.append(n)
        starts[n].set()
        doors[n].wait(LIVENESS)
        return n

    options: dict[str, Any] = {limit: 1}
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([held], **options, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                handles = [batch.submit(ToolCall("x", "held", {"n": n})) for n in range(4)]
                await until(starts[0].is_set)
                assert handles[1].cancel("changed my mind") is True
                doors[0].set()
                # The loop is held, so that the worker finds a call that was cancelled
                # and not yet settled; with a slot it is the loop that finds it.
                if limit == "max_threads":
                    assert starts[2].wait(LIVENESS)
                else:
                    await until(starts[2].is_set)
                doors[2].set()
                doors[3].set()
            check_f15(batch.results, ran)
            assert [r.value for r in await runner.run([ToolCall("y", "held", {"n": 0})])] == [
                0
            ]


@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("cut", ["interrupt", "cancel"])
async def test_f15_call_cut_before_its_first_step_gives_its_place_back(
    carrier: str, cut: str
) -> None:
    """F15, P4, P10: a place that was given out but never used serves the next batch."""
    ran: list[str] = []

    async def on_loop() -> None:
        ran.append("loop")

    def in_thread() -> None:
        ran.append("thread")

    tool = on_loop if carrier == "loop" else in_thread
    started: list[bool] = []
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"tool": tool}, max_concurrency=1) as runner:
            for _ in range(5):
                async with runner.open_batch() as batch:
                    handle = batch.submit(ToolCall("a", "tool"))
                    # No await since: the call has its place and no more.
                    _ = batch.interrupt() if cut == "interrupt" else handle.cancel()
                started.append(batch.results[0].started)
            assert await runner.wait_detached(LIVENESS)
            # A worker, or an eager task, may have been quicker than the cut.
            count = len(ran)
            assert count == sum(started)
            results = await runner.run(calls("tool", "tool"))
    assert [r.status for r in results] == [Status.COMPLETED] * 2
    assert ran[count:] == [carrier] * 2


def check_f15(results: list[ToolResult], ran: list[int]) -> None:
    assert ran == [0, 2, 3]
    assert [r.value for r in results] == [0, None, 2, 3]
    assert shape(results)[1] == ("interrupted", "call_cancelled", False, False)
    assert results[1].reason is not None
    assert results[1].reason.message == "changed my mind"
    assert results[1].effects == "none"
