"""P3, P5, P6: what a call publishes around its cut lands where it belongs, or nowhere."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallOutput,
    CallProgress,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
    from_thread,
    keep_partial,
    report_progress,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import landing, threads
from anyio_toolbatch._runtime.hub import Hub
from anyio_toolbatch._runtime.state import DetachedAccount
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


async def reached(event: threading.Event) -> None:
    """Wait until a worker thread has come to a point."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


async def test_partial_of_one_call_is_not_its_siblings(
    monkeypatch: pytest.MonkeyPatch, promises: PromiseObserver
) -> None:
    """P5, §3.3: a partial published in the middle of the cut is no sibling's."""
    started = threading.Semaphore(0)
    publish = threading.Event()
    published = threading.Event()
    leave = threading.Event()

    def tool(number: int) -> None:
        started.release()
        if number == 0:
            publish.wait(LIVENESS)
            keep_partial("of call 0")
            published.set()
        leave.wait(LIVENESS)

    def all_started() -> bool:
        return all(started.acquire(timeout=LIVENESS) for _ in range(3))

    enter = DetachedAccount.enter

    def enter_while_the_worker_runs(self: Any, *args: Any) -> None:
        # The cut has seen that no call has a partial, and has no endings yet.
        publish.set()
        assert published.wait(LIVENESS)
        enter(self, *args)

    monkeypatch.setattr(DetachedAccount, "enter", enter_while_the_worker_runs)
    calls = [ToolCall(str(i), "tool", {"number": i}) for i in range(3)]
    async with ToolRunner([tool], observers=[promises]) as runner:
        try:
            async with runner.open_batch(calls) as batch:
                assert await anyio.to_thread.run_sync(all_started)
                batch.interrupt()
            assert published.is_set()
            assert batch.results[0].partial in {None, "of call 0"}
            assert [r.partial for r in batch.results[1:]] == [None, None]
            assert "of call 0" not in batch.results[1].text + batch.results[2].text
        finally:
            leave.set()
        assert await runner.wait_detached(LIVENESS)


async def test_late_progress_does_not_land_in_an_unread_event() -> None:
    """P5, N9: a report after the cut is not seen through an older unread entry."""
    reported = threading.Event()
    go_on = threading.Event()

    def tool() -> None:
        report_progress(1, message="in time")
        from_thread.run_sync(int)  # the loop has read the report when this returns
        reported.set()
        go_on.wait(LIVENESS)
        report_progress(99, message="late")

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            await reached(reported)
            reader = batch.events()
            batch.interrupt()
            await batch.wait()
            go_on.set()
            assert await runner.wait_detached(LIVENESS)
        seen = [e async for e in reader if isinstance(e, CallProgress)]
    assert [(e.progress, e.message) for e in seen] == [(1, "in time")]


@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_partial_after_the_end_changes_no_result(carrier: Any, ending: str) -> None:
    """P5: what a thread of the tool publishes after the call's own end goes nowhere."""
    contexts: list[contextvars.Context] = []

    def tool() -> int:
        keep_partial("in time")
        contexts.append(contextvars.copy_context())
        if ending == "raises":
            raise ValueError
        return 1

    async with ToolRunner([Tool(tool, runs_in=carrier)]) as runner:
        async with runner.open_batch([ToolCall("0", "tool")]) as batch:
            pass
        # Results are made when they are first asked for.
        contexts[0].run(keep_partial, "after the end")
        assert batch.results[0].partial == "in time"


async def test_partial_and_outputs_agree_at_the_cut(promises: PromiseObserver) -> None:
    """P3, §3.2: each item that the placeholder shows has been told as an output."""
    inside = threading.Event()
    start = threading.Event()
    given = threading.Event()
    leave = threading.Event()

    def items() -> Iterator[int]:
        inside.set()
        start.wait(LIVENESS)
        yield from range(3)
        given.set()
        leave.wait(LIVENESS)
        yield 9

    async with ToolRunner([items], observers=[promises]) as runner:
        async with runner.open_batch([ToolCall("0", "items")]) as batch:
            reader = batch.events()
            await reached(inside)
            # The loop is held: the items come into its mailbox behind the cut.
            batch.interrupt()
            start.set()
            assert given.wait(LIVENESS)
            await batch.wait()
            leave.set()
        outputs = [e.output async for e in reader if isinstance(e, CallOutput)]
        assert await runner.wait_detached(LIVENESS)
    assert batch.results[0].partial == outputs == [0, 1, 2]


async def test_times_of_a_call_that_is_cut_at_its_start() -> None:
    """P6, §4.2: once the start ticket is taken, the start time is there to be read."""
    loop_thread = threading.get_ident()
    taken = threading.Event()
    go_on = threading.Event()

    class Starts(set[CallRecord]):
        """Holds the worker right after it has taken a ticket."""

        def remove(self, record: CallRecord) -> None:
            super().remove(record)
            if threading.get_ident() != loop_thread:
                taken.set()
                assert go_on.wait(LIVENESS)

    async with ToolRunner([lambda: None]) as runner:
        async with runner.open_batch() as batch:
            batch._engine.tickets.starts = Starts()
            clock = batch._engine.hub.clock
            before = clock()
            batch.submit(ToolCall("0", "<lambda>"))
            await reached(taken)
            batch.interrupt()
        result = batch.results[0]
        longest = clock() - before
        go_on.set()
        assert await runner.wait_detached(LIVENESS)
    assert (result.status, result.started) == (Status.INTERRUPTED, True)
    assert 0 <= result.run_time <= longest
    assert 0 <= result.wait_time <= longest


@pytest.mark.parametrize("hosted", [False, True])
def test_detached_calls_end_while_they_are_listed(hosted: bool) -> None:
    """Statistics may be asked for at any moment, also while the calls in them end."""
    # More than CPython keeps unused tuples for: the collector has to count them.
    records = [
        CallRecord(SimpleNamespace(id="batch"), ToolCall(str(n), "tool"), 0.0)
        for n in range(5000)
    ]
    for record in records:
        record.hosted = hosted
    account = DetachedAccount(SimpleNamespace())  # type: ignore[arg-type]
    account.enter(records, 0.0)

    # On CPython 3.11 a collection comes in the middle of a C function, and what it
    # calls (a callback, a finaliser) may let a worker run. Here it is the worker.
    def worker_ends(phase: str, _info: Any) -> None:
        if phase == "start":
            record = records.pop()
            record.reported = True
            account.strike(record)

    gc.callbacks.append(worker_ends)
    try:
        found = account.calls()
    finally:
        gc.callbacks.remove(worker_ends)
    assert len(account) == len(records) < 5000
    assert len(records) <= len(found) <= 5000


class Overtaken(set[CallRecord]):
    """Start tickets: something happens just before or just after the first is taken."""

    def __init__(self, moment: str, happens: Callable[[], object]) -> None:
        super().__init__()
        self._moment = moment
        self._happens: Callable[[], object] | None = happens

    def remove(self, record: CallRecord) -> None:
        happens, self._happens = self._happens, None
        if happens is not None and self._moment == "before":
            happens()
        super().remove(record)
        if happens is not None and self._moment == "after":
            happens()


class TakenWhenSeen(set[CallRecord]):
    """Start tickets: while the loop looks at one for the n-th time, a worker takes it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks
        self._loop = threading.get_ident()
        self.is_watched = False
        self.waits = threading.Event()
        self._seen = threading.Event()
        self._taken = threading.Event()
        self.go_on = threading.Event()

    def __contains__(self, record: object) -> bool:
        is_there = super().__contains__(record)
        if is_there and self.is_watched and threading.get_ident() == self._loop:
            self._looks -= 1
            if self._looks == 0:
                self._seen.set()
                assert self._taken.wait(LIVENESS)
        return is_there

    def remove(self, record: CallRecord) -> None:
        if threading.get_ident() == self._loop:
            super().remove(record)
            return
        self.waits.set()
        assert self._seen.wait(LIVENESS)
        super().remove(record)
        self._taken.set()
        assert self.go_on.wait(LIVENESS)


class Ends(set[CallRecord]):
    """End tickets: tells when a worker has taken the first."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = threading.Event()

    def remove(self, record: CallRecord) -> None:
        super().remove(record)
        self.taken.set()


STOPS: dict[str, tuple[Callable[[ToolBatch], object], str]] = {
    "interrupt": (lambda batch: batch.interrupt(), "user_interrupt"),
    "grace": (lambda batch: batch.interrupt(grace=LIVENESS), "user_interrupt"),
    "cancel": (lambda batch: batch.cancel("0"), "call_cancelled"),
    "supersede": (lambda batch: batch.supersede(), "superseded"),
}


async def none_is_left(runner: ToolRunner) -> None:
    """The runner's one thread is free for the next, and nothing is counted any more."""
    with anyio.fail_after(LIVENESS / 2):
        for result in await runner.run([ToolCall("x", "next"), ToolCall("y", "next")]):
            assert result.value == "next"
    counts = runner.statistics()
    assert counts.open_batches == counts.waiting == counts.running == 0
    assert counts.running_threads == 0
    assert not counts.detached
    assert not counts.waiting_calls


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("stop", STOPS)
async def test_a_stop_that_overtakes_a_start(
    carrier: Any, stop: str, moment: str, promises: PromiseObserver
) -> None:
    """P4: what a start had not seen yet, as of a signal handler, is seen before the first line."""
    ran: list[str] = []
    answers: list[object] = []
    act, kind = STOPS[stop]

    async def on_loop() -> None:
        ran.append("it")

    def in_thread() -> None:
        ran.append("it")

    tools = {
        "tool": on_loop if carrier == "loop" else in_thread,
        "next": Tool(lambda: "next"),
    }
    async with ToolRunner(tools, max_threads=1, observers=[promises]) as runner:
        async with runner.open_batch() as batch:
            tickets = batch._engine.tickets
            tickets.starts = Overtaken(moment, lambda: answers.append(act(batch)))
            tickets.ends = ends = Ends()
            handle = batch.submit(ToolCall("0", "tool"))
            if carrier == "thread":
                # The loop is held: it hears of the stop when the worker is through.
                assert ends.taken.wait(LIVENESS)
            with anyio.fail_after(LIVENESS / 2):
                await handle.wait()
        result = batch.results[0]
        assert answers == [True]
        assert ran == []
        assert (result.status, result.started) == (Status.INTERRUPTED, False)
        assert result.reason is not None and result.reason.kind == kind
        assert "not started" in result.text
        await none_is_left(runner)
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("stop", STOPS)
async def test_a_stop_is_handled_while_a_worker_is_between_its_tickets(
    stop: str, promises: PromiseObserver
) -> None:
    """P4, P6: the result may have to say that it ran; the tool never does, all the same."""
    ran: list[str] = []
    act, kind = STOPS[stop]
    between = threading.Event()
    go_on = threading.Event()

    def worker_is_held() -> None:
        between.set()
        assert go_on.wait(LIVENESS)

    tools = {"tool": lambda: ran.append("it"), "next": lambda: "next"}
    async with ToolRunner(tools, max_threads=1, observers=[promises]) as runner:
        try:
            async with runner.open_batch() as batch:
                batch._engine.tickets.starts = Overtaken("after", worker_is_held)
                handle = batch.submit(ToolCall("0", "tool"))
                await reached(between)
                assert act(batch)
                let_go = stop in {"interrupt", "cancel"}
                if let_go:
                    await handle.wait()
                else:
                    await anyio.wait_all_tasks_blocked()
                    assert handle.result is None
                go_on.set()
                with anyio.fail_after(LIVENESS / 2):
                    await handle.wait()
            result = batch.results[0]
            assert (result.status, result.started) == (Status.INTERRUPTED, let_go)
            assert result.detached is let_go
            assert result.reason is not None and result.reason.kind == kind
            assert await runner.wait_detached(LIVENESS)
            assert ran == []
            await none_is_left(runner)
        finally:
            go_on.set()
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize(
    ("stop", "looks"),
    [("interrupt", 1), ("grace", 1), ("cancel", 1), ("supersede", 1), ("supersede", 2)],
)
async def test_a_worker_takes_a_call_while_the_loop_looks_at_it(
    stop: str, looks: int, promises: PromiseObserver
) -> None:
    """P4, P6: who loses the race for the ticket acts as if it had been gone before."""
    ran: list[str] = []
    act, kind = STOPS[stop]
    starts = TakenWhenSeen(looks)
    tools = {"tool": lambda: ran.append("it"), "next": lambda: "next"}
    async with ToolRunner(tools, max_threads=1, observers=[promises]) as runner:
        try:
            async with runner.open_batch() as batch:
                batch._engine.tickets.starts = starts
                handle = batch.submit(ToolCall("0", "tool"))
                await reached(starts.waits)
                starts.is_watched = True
                assert act(batch)
                let_go = stop in {"interrupt", "cancel"}
                if let_go:
                    await handle.wait()
                else:
                    await anyio.wait_all_tasks_blocked()
                    assert handle.result is None
                starts.go_on.set()
                with anyio.fail_after(LIVENESS / 2):
                    await handle.wait()
            result = batch.results[0]
            assert (result.status, result.started) == (Status.INTERRUPTED, let_go)
            assert result.detached is let_go
            assert result.reason is not None and result.reason.kind == kind
            assert await runner.wait_detached(LIVENESS)
            assert ran == []
            starts.is_watched = False
            await none_is_left(runner)
        finally:
            starts.go_on.set()
    promises.check(batch.id, batch.results)


async def test_a_worker_that_is_held_back_as_the_grace_ends(promises: PromiseObserver) -> None:
    """P6: the loop has not heard of it yet, and does not tell that the tool has ended."""
    ran: list[str] = []
    between = threading.Event()
    go_on = threading.Event()

    def worker_is_held() -> None:
        between.set()
        assert go_on.wait(LIVENESS)

    tools = {"tool": lambda: ran.append("it"), "next": lambda: "next"}
    async with ToolRunner(
        tools, max_threads=1, max_concurrency=1, observers=[promises]
    ) as runner:
        try:
            async with runner.open_batch() as batch:
                tickets = batch._engine.tickets
                tickets.starts = Overtaken("after", worker_is_held)
                tickets.ends = ends = Ends()
                batch.submit(ToolCall("0", "tool"))
                await reached(between)
                batch.interrupt(grace=LIVENESS * 2)
                await anyio.wait_all_tasks_blocked()
                # The loop is held, and what stops overtakes the worker's message.
                go_on.set()
                assert ends.taken.wait(LIVENESS)
                batch.interrupt(grace=0)
                with anyio.fail_after(LIVENESS / 2):
                    await batch.wait()
            result = batch.results[0]
            assert (result.status, result.started) == (Status.INTERRUPTED, False)
            assert not result.detached
            assert ran == []
            await none_is_left(runner)
        finally:
            go_on.set()
    promises.check(batch.id, batch.results)


async def test_a_worker_that_is_held_back_within_a_grace_does_not_wait_for_its_end(
    promises: PromiseObserver,
) -> None:
    """P2, P4: of two calls the one has not begun: it is settled, the other has its grace."""
    gate = GatedTool("tool")
    between = threading.Event()
    go_on = threading.Event()

    def worker_is_held() -> None:
        between.set()
        assert go_on.wait(LIVENESS)

    async with ToolRunner([gate.tool], max_threads=2, observers=[promises]) as runner:
        try:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    first = batch.submit(ToolCall("0", "tool"))
                    await gate.wait_started()
                    batch._engine.tickets.starts = Overtaken("after", worker_is_held)
                    second = batch.submit(ToolCall("1", "tool"))
                    await reached(between)
                    batch.interrupt(grace=LIVENESS * 2)
                    await anyio.wait_all_tasks_blocked()
                    go_on.set()
                    assert not (await second.wait()).started
                    assert first.result is None
                    gate.open()
                assert [r.value for r in batch.results] == ["done", None]
                assert gate.started == 1
        finally:
            go_on.set()
            gate.open()
    promises.check(batch.id, batch.results)


async def test_a_worker_that_was_held_back_is_slow_to_tell_while_the_call_runs_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P10, §4.8: the cut never came; who runs the call now is detached until its own end."""
    gate = GatedTool("tool", writes="file")
    between, go_on, told, back = (threading.Event() for _ in range(4))
    opened: list[ToolBatch] = []
    blocks: list[Any] = []
    handles: list[Any] = []
    post = Hub.post

    def worker_is_held() -> None:
        between.set()
        assert go_on.wait(LIVENESS)

    def post_slowly(self: Hub, function: Any, argument: Any) -> bool:
        posted = post(self, function, argument)
        if function is landing.held_back:
            told.set()
            assert back.wait(LIVENESS)
        return posted

    async def outer() -> None:
        block = runner.open_batch()
        blocks.append(block)
        batch = await block.__aenter__()
        batch._engine.tickets.starts = Overtaken("after", worker_is_held)
        batch.submit(ToolCall("1", "tool"))
        opened.append(batch)
        await reached(between)
        assert handles[0].cancel()
        go_on.set()
        assert told.wait(LIVENESS)
        # Somebody else gets that thread, which is as good as free, for what comes next.
        block = runner.open_batch([ToolCall("2", "quick")])
        blocks.append(block)
        await block.__aenter__()
        # It ends before the loop can look at the cancel, and leaves its batches behind.

    monkeypatch.setattr(Hub, "post", post_slowly)
    quick = Tool(lambda: None, name="quick")
    async with ToolRunner([gate.tool, quick, outer]) as runner:
        try:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    handles.append(batch.submit(ToolCall("0", "outer")))
                assert batch.results[0].status is Status.COMPLETED
                await gate.wait_started()
                opened[0].interrupt()
                (result,) = await opened[0].wait()
                assert (result.started, result.detached) == (True, True)
                back.set()
                while len(threads.at_work) > 1:
                    await anyio.sleep(0.001)
                assert [d.call.id for d in runner.statistics().detached] == ["1"]
                gate.open()
                assert await runner.wait_detached(LIVENESS)
                for block in blocks:
                    await block.__aexit__(None, None, None)
        finally:
            for event in (go_on, back):
                event.set()
            gate.open()
