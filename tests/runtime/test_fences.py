"""P3, P5, P6: what a call publishes around its cut lands where it belongs, or nowhere."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Iterator
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
    ToolCall,
    ToolRunner,
    from_thread,
    keep_partial,
    report_progress,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime.state import DetachedAccount
from anyio_toolbatch.testing import PromiseObserver

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
    account = DetachedAccount()
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
