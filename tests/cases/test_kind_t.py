"""Kind T of the cases from the field: from one runtime that already detaches."""

# T5, T7, T8, T10, T11, T13, T21 and T22 are in `virtual/`, too, as they are about time.

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    BatchSettled,
    CallOutput,
    CallProgress,
    CallSettled,
    Event,
    LateResult,
    LateResultDropped,
    ResourceBusyError,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    open_batch,
    report_progress,
    run_batch,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)

session: ContextVar[str] = ContextVar("session")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


def assert_paired(asked: list[ToolCall], results: list[ToolResult]) -> None:
    """Check that the next request is one that a provider takes."""
    ids = [call.id for call in asked]
    messages = openai_chat.render_results(results)
    assert [(m["role"], m["tool_call_id"]) for m in messages] == [("tool", i) for i in ids]
    blocks = anthropic.render_results(results)["content"]
    assert [(b["type"], b["tool_use_id"]) for b in blocks] == [("tool_result", i) for i in ids]
    assert all(isinstance(item["content"], str) for item in [*messages, *blocks])


async def happens(event: threading.Event) -> None:
    """Wait, on the loop, for what a worker thread does."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


class Late:
    """An `on_late` hook that can be waited for."""

    def __init__(self, count: int = 1) -> None:
        self.results: list[LateResult] = []
        self._count = count
        self._landed = anyio.Event()

    def __call__(self, late: LateResult) -> None:
        self.results.append(late)
        if len(self.results) == self._count:
            self._landed.set()

    async def all_landed(self) -> None:
        with anyio.fail_after(LIVENESS):
            await self._landed.wait()


# -- T1, T2, T3: back at once --------------------------------------------------


async def test_t1_the_stop_is_more_than_acknowledged(promises: PromiseObserver) -> None:
    """T1, P2, P4, P5: back while the tool runs; the second never starts; nothing lands."""
    gate = GatedTool(value="too late")
    late = Late()
    asked = calls("gated", "gated")
    async with ToolRunner(
        [gate.tool], max_threads=1, observers=[promises], on_late=late
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(asked) as batch:
                await gate.wait_started()
                assert runner.interrupt() == 1
        before = batch.results
        assert gate.ended == 0  # the gate alone lets it end: nothing waited for it
        assert shape(before) == [CUT, NOT_STARTED]
        assert_paired(asked, before)
        gate.open()
        await late.all_landed()
        # Both threads' ways are free now, and there is still no second start.
        assert await runner.run([ToolCall("next", "gated")]) != []
        assert gate.started == 2  # the first and the next batch's
    assert batch.results == before
    assert [(r.batch_id, r.index) for r in late.results] == [(batch.id, 0)]
    promises.check(batch.id, batch.results)


async def test_t2_a_batch_of_one_is_no_special_case(promises: PromiseObserver) -> None:
    """T2, P1, P2: the interrupt reaches a single call as it does many, through `run` too."""
    gate = GatedTool()
    asked = calls("gated")
    results: list[ToolResult] = []
    async with ToolRunner([gate.tool], observers=[promises]) as runner:

        async def turn() -> None:
            results.extend(await runner.run(asked))

        with anyio.fail_after(LIVENESS):
            async with anyio.create_task_group() as group:
                group.start_soon(turn)
                await gate.wait_started()
                assert runner.interrupt() == 1
        assert gate.ended == 0
        assert shape(results) == [CUT]
        assert_paired(asked, results)
        gate.open()
        assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_t3_nothing_starts_between_the_stop_and_its_handling(
    how: str, promises: PromiseObserver
) -> None:
    """T3, P4: once `interrupt` has returned, a worker that gets free takes nothing more."""
    gate = GatedTool(value="in time")
    worker: list[threading.Thread] = []

    def first() -> Any:
        worker.append(threading.current_thread())
        return gate.tool.func()

    tools = {"first": first, "second": gate.tool, "free": lambda: None}
    async with ToolRunner(tools, max_threads=1, observers=[promises]) as runner:
        async with runner.open_batch(calls("first", "second", "second")) as batch:
            await gate.wait_started()
            if how == "interrupt":
                assert batch.interrupt() is True
            else:
                assert batch.cancel("id-1") == batch.cancel("id-2") == 1
            # The loop is held here: the stop is asked for, and not handled.
            gate.open()
            hold_until(lambda: gate.ended == 1)
            hold_until(lambda: batch._engine.state.lane.attached == 0)
        kind = "user_interrupt" if how == "interrupt" else "call_cancelled"
        assert batch.results[0].value == "in time"
        assert shape(batch.results)[1:] == [("interrupted", kind, False, False)] * 2
        assert gate.started == 1
    promises.check(batch.id, batch.results)


def hold_until(condition: Callable[[], bool]) -> None:
    """Hold the loop until a worker has come so far; there is no event for it."""
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# -- T4: one terminal event ----------------------------------------------------


@pytest.mark.parametrize("how", ["interrupt", "call_timeout", "batch_timeout"])
async def test_t4_one_terminal_event_per_call(how: str, promises: PromiseObserver) -> None:
    """T4, P5: a success that comes after the cut is no second end of its id."""
    gate = GatedTool(value="ok", timeout=0.05 if how == "call_timeout" else None)
    events: list[Event] = []
    late = Late(2)
    async with ToolRunner(
        [gate.tool], observers=[promises, events.append], on_late=late
    ) as runner:
        timeout = 0.05 if how == "batch_timeout" else None
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(timeout=timeout) as batch:
                for call in calls("gated", "gated"):
                    batch.submit(call)
                if how == "interrupt":
                    await gate.wait_started(2)
                    batch.interrupt()
        if gate.started == 2:  # on a slow machine a limit may have come first
            gate.open()
            await late.all_landed()
        else:
            gate.open()
    ends = [e for e in events if isinstance(e, CallSettled)]
    assert sorted(e.index for e in ends) == [0, 1]
    assert "completed" not in {e.result.status for e in ends}
    after = events[events.index(BatchSettled(batch.id)) + 1 :]
    assert all(isinstance(e, LateResultDropped) for e in after)
    promises.check(batch.id, batch.results)


async def test_t4_an_abandoned_worker_publishes_nothing() -> None:
    """T4, P5: nor do its progress, its output or its visits to the loop come through."""
    told = threading.Event()
    events: list[Event] = []
    tried: list[BaseException] = []
    visits: list[str] = []
    late = Late(2)

    def reports() -> str:
        keep_partial("in time")
        begun.set()
        # From then on the loop is closed to it.
        assert current_call().cancelled.wait(LIVENESS)
        told.set()
        report_progress(1, 1, "too late")
        keep_partial("too late")
        try:
            from_thread.run_sync(visits.append, "too late")
        except BaseException as exc:
            tried.append(exc)
        return "too late"

    def streams() -> Any:
        yield "in time"
        streaming.set()
        told.wait(LIVENESS)
        yield "too late"

    begun, streaming = threading.Event(), threading.Event()
    # Kept: so that the generator is not stopped at its next item.
    tools = [reports, Tool(streams, on_interrupt="keep")]
    async with ToolRunner(tools, observers=[events.append], on_late=late) as runner:
        async with runner.open_batch(calls("reports", "streams")) as batch:
            await happens(begun)
            await happens(streaming)
            batch.interrupt()
        before = [(r.partial, r.text) for r in batch.results]
        assert [partial for partial, _ in before] == ["in time", ["in time"]]
        await late.all_landed()
    assert [(r.partial, r.text) for r in batch.results] == before
    ended = events.index(BatchSettled(batch.id))
    assert all(isinstance(e, LateResultDropped) for e in events[ended + 1 :])
    assert [e.output for e in events if isinstance(e, CallOutput)] == ["in time"]
    assert [e for e in events if isinstance(e, CallProgress)] == []
    assert visits == []
    assert [type(e).__name__ for e in tried] == ["CallDetached"]


async def test_t4_the_end_is_told_before_what_comes_late() -> None:
    """T4, P5: no observer hears of a late result before it has heard of the call's end."""
    events: list[Event] = []

    async def stubborn() -> str:
        # A hook that is slower than the slices in which running calls are told.
        with on_cancel(lambda: time.sleep(0.005)):
            try:
                await anyio.sleep(600)
            except anyio.get_cancelled_exc_class():
                pass
            return "ok"

    async with ToolRunner([stubborn], observers=[events.append]) as runner:
        async with runner.open_batch(calls("stubborn", "stubborn", "stubborn")) as batch:
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    for index in range(3):
        of_call = [
            type(e)
            for e in events
            if (isinstance(e, CallSettled) and e.index == index)
            or (isinstance(e, LateResultDropped) and e.late.index == index)
        ]
        assert of_call == [CallSettled, LateResultDropped]


# -- T5: a detached writer -----------------------------------------------------


@pytest.mark.parametrize("claims", ["writes", "reads"])
@pytest.mark.parametrize("where", ["same batch's runner", "run_batch"])
async def test_t5_a_detached_writer_is_never_joined_by_another(
    claims: str, where: str, tmp_path: Path, promises: PromiseObserver
) -> None:
    """T5, §4.8: a later writer, or reader, of its file is refused and told who has it."""
    file = tmp_path / "notes.txt"
    file.write_text("old")
    (tmp_path / "x").mkdir()
    gate = GatedTool("slow_write", value=lambda: file.write_text("late"), writes=file)
    options: dict[str, Any] = {claims: lambda path: Path(path)}
    quick = Tool(lambda path: Path(path).read_text(), name="quick", **options)
    later = [
        ToolCall("same", "quick", {"path": str(tmp_path / "x" / ".." / "notes.txt")}),
        ToolCall("other", "quick", {"path": __file__}),
    ]
    runner = ToolRunner([gate.tool, quick], cleanup_grace=0.05, observers=[promises])

    async def run(asked: list[ToolCall]) -> list[ToolResult]:
        if where == "run_batch":
            return await run_batch(asked, [gate.tool, quick], cleanup_grace=0.05)
        return await runner.run(asked)

    with anyio.fail_after(LIVENESS):
        opened = (
            open_batch(calls("slow_write"), [gate.tool])
            if where == "run_batch"
            else runner.open_batch(calls("slow_write"))
        )
        try:
            async with opened as batch:
                await gate.wait_started()
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            refused, beside = await run(later)
            assert shape([refused]) == [("failed", "resource_busy", False, False)]
            assert isinstance(refused.error, ResourceBusyError)
            assert "slow_write" in refused.text
            assert "id-0" in refused.text
            assert refused.effects == "none"
            assert beside.status is Status.COMPLETED
            assert file.read_text() == "old"
        finally:
            gate.open()
        await gate.wait_ended()
        # Once it has really ended the file is there for the next.
        while (again := await run(later))[0].status is Status.FAILED:
            assert again[0].reason is not None and again[0].reason.kind == "resource_busy"
        assert [r.status for r in again] == [Status.COMPLETED] * 2
        assert again[0].value == "late"


# -- T6: no capacity is held ---------------------------------------------------


async def test_t6_abandoned_work_holds_no_place() -> None:
    """T6, P10: turn after turn is stopped at full caps, and the next is served at once."""
    rounds = 5
    gates = [GatedTool(f"stuck-{n}") for n in range(rounds)]
    tools = [*[gate.tool for gate in gates], Tool(lambda: 1, name="quick")]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, max_threads=2, max_concurrency=2) as runner:
            for gate in gates:
                async with runner.open_batch(calls(*[gate.tool.name] * 3)) as batch:
                    await gate.wait_started(2)
                    batch.interrupt()
                assert shape(batch.results) == [CUT, CUT, NOT_STARTED]
                results = await runner.run(calls("quick", "quick", "quick"))
                assert [r.value for r in results] == [1, 1, 1]
            assert len(runner.statistics().detached) == 2 * rounds
            assert runner.statistics().running == 0
            for gate in gates:
                assert (gate.started, gate.ended) == (2, 0)
                gate.open()
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().detached == ()


# -- T7: never started is said as such -----------------------------------------


async def test_t7_what_waited_for_a_thread_is_not_said_to_have_run() -> None:
    """T7, P6: at the batch's limit only what runs has unknown effects."""
    gate = GatedTool()
    async with ToolRunner([gate.tool], max_threads=1) as runner:
        with anyio.fail_after(LIVENESS):
            # Submitted at once, so the limit finds one of them in the thread,
            # or none if the machine was slow; the others in every case waiting.
            results = await runner.run(calls(*["gated"] * 4), timeout=0.1)
        assert all(r.status is Status.TIMED_OUT for r in results)
        assert all(r.reason is not None and r.reason.kind == "batch_timeout" for r in results)
        assert [r.started for r in results[1:]] == [False] * 3
        for result in results[1:]:
            assert result.effects == "none"
            assert "not started" in result.text
            assert "side effects" not in result.text
        assert sum(r.started for r in results) == gate.started
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    assert gate.started <= 1


# -- T8: the deadline and the person -------------------------------------------


@pytest.mark.parametrize("sealed", [True, False])
async def test_t8_a_deadline_does_not_run_while_a_person_is_asked(
    sealed: bool, promises: PromiseObserver
) -> None:
    """T8, §4.10: a blocked prompt outlasts the batch's limit, and the call still runs."""
    prompt = GatedTool("input")

    def approve(_: ToolCall) -> bool:
        prompt.tool.func()
        return True

    async with ToolRunner(
        {"gated": lambda: "ran"}, approve=approve, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                calls("gated") if sealed else None, timeout=0.2
            ) as batch:
                if not sealed:
                    batch.submit(calls("gated")[0])
                await prompt.wait_started()
                # The wait is what is measured here, so it is a real one.
                await anyio.sleep(0.4)
                prompt.open()
                if not sealed:
                    batch.seal()
        assert shape(batch.results) == [("completed", None, True, False)]
    promises.check(batch.id, batch.results)


async def test_t8_the_deadline_fires_all_the_same(promises: PromiseObserver) -> None:
    """T8, §4.10: time that passes while anything else runs does count."""
    prompt = GatedTool("input")
    gate = GatedTool()

    def approve(call: ToolCall) -> bool:
        if call.id == "id-1":
            prompt.tool.func()
        return True

    async with ToolRunner([gate.tool], approve=approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("gated", "gated"), timeout=0.3) as batch:
                await gate.wait_started()
                await prompt.wait_started()
        assert shape(batch.results) == [
            ("timed_out", "batch_timeout", True, True),
            ("timed_out", "batch_timeout", False, False),
        ]
        gate.open()
        prompt.open()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


async def test_t8_waiting_for_a_person_has_a_limit_of_its_own(
    promises: PromiseObserver,
) -> None:
    """T8, §3.4: at `approval_timeout` the call is not started, and the reason says so."""
    prompt = GatedTool("input")

    def approve(_: ToolCall) -> bool:
        prompt.tool.func()
        return True

    async with ToolRunner(
        {"gated": lambda: "ran"}, approve=approve, approval_timeout=0.1, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            # One at a time: the first keeps the terminal until it is given up.
            results = await runner.run(calls("gated", "gated"), timeout=LIVENESS / 2)
        assert shape(results) == [("timed_out", "approval_timeout", False, False)] * 2
        assert "timed out waiting for approval" in results[0].text
        assert "not started" in results[0].text
        prompt.open()
        await prompt.wait_ended(2)


# -- T9: the neighbour ---------------------------------------------------------


async def test_t9_another_batch_notices_nothing(promises: PromiseObserver) -> None:
    """T9, P5: an interrupt reaches the workers of its own batch, and no others."""
    here: dict[str, threading.Event] = {s: threading.Event() for s in ("one", "two")}
    told: list[str] = []
    release = threading.Event()

    def blocking(name: str) -> tuple[bool, str]:
        asked_to_stop = threading.Event()

        def stop() -> None:
            told.append(name)
            asked_to_stop.set()

        with on_cancel(stop):
            here[name].set()
            (asked_to_stop if name == "one" else release).wait(LIVENESS)
            if name == "two":
                from_thread.check_cancelled()
            return current_call().cancelled.is_set(), current_call().batch_id

    async def waiting() -> str:
        await all_done.wait()
        return "undisturbed"

    all_done = anyio.Event()
    late = Late(1)
    async with ToolRunner([blocking, waiting], observers=[promises], on_late=late) as runner:
        async with runner.open_batch() as two:
            two.submit(ToolCall("same id", "blocking", {"name": "two"}))
            two.submit(ToolCall("w", "waiting"))
            async with runner.open_batch() as one:
                one.submit(ToolCall("same id", "blocking", {"name": "one"}))
                await happens(here["one"])
                await happens(here["two"])
                assert one.interrupt() is True
            assert shape(one.results) == [CUT]
            # The worker of batch one has seen it, and is through.
            await late.all_landed()
            assert two.snapshot() == [None, None]
            assert two.reason is None
            release.set()
            all_done.set()
        assert [r.status for r in two.results] == [Status.COMPLETED] * 2
        assert two.results[0].value == (False, two.id)
        assert two.results[1].value == "undisturbed"
    assert [r.value for r in late.results] == [(True, one.id)]
    assert told == ["one"]
    promises.check(one.id, one.results)
    promises.check(two.id, two.results)


# -- T10: a child that comes late ----------------------------------------------


@pytest.mark.parametrize("carrier", ["loop", "own loop", "runs_in"])
@pytest.mark.parametrize("inner_of", ["same runner", "no runner"])
async def test_t10_a_child_run_that_comes_after_the_stop_is_born_interrupted(
    carrier: str, inner_of: str, anyio_backend_name: str
) -> None:
    """T10, §4.9: the outer call is deaf and opens a batch after its end: nothing starts."""
    leaf = GatedTool("leaf")
    stopped = threading.Event()
    inner: list[ToolBatch] = []
    is_over = threading.Event()

    async def open_late() -> str:
        opened = (
            runner.open_batch() if inner_of == "same runner" else open_batch(None, [leaf.tool])
        )
        async with opened as batch:
            inner.append(batch)
            for call in calls("leaf", "leaf"):
                batch.submit(call)
        is_over.set()
        return "late"

    async def deaf() -> str:
        begun.set()
        try:
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class():
            pass
        return await open_late()

    def blocking() -> str:
        begun.set()
        assert stopped.wait(LIVENESS)
        return anyio.run(open_late, backend=anyio_backend_name)

    begun = threading.Event()
    match carrier:
        case "loop":
            outer = Tool(deaf, name="outer")
        case "own loop":
            outer = Tool(blocking, name="outer")
        case _:
            outer = Tool(deaf, name="outer", runs_in="thread")
    late = Late()
    try:
        async with ToolRunner([outer, leaf.tool], on_late=late) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer")) as batch:
                    await happens(begun)
                    batch.interrupt("stop")
                assert shape(batch.results) == [CUT]
                stopped.set()
                await happens(is_over)
                assert shape(inner[0].results) == [NOT_STARTED] * 2
                assert inner[0].reason == batch.reason
                await late.all_landed()
    finally:
        stopped.set()
        leaf.open()
    assert leaf.started == 0


async def test_t10_not_even_between_the_stop_and_its_handling(
    anyio_backend_name: str,
) -> None:
    """T10, P4: a child batch on another loop starts nothing once `interrupt` has returned."""
    leaf = GatedTool("leaf")
    stopped, submitted = threading.Event(), threading.Event()
    inner: list[ToolBatch] = []

    async def open_late() -> None:
        async with open_batch(None, [leaf.tool]) as batch:
            inner.append(batch)
            batch.submit(calls("leaf")[0])
            await anyio.wait_all_tasks_blocked()
            submitted.set()

    def blocking() -> None:
        assert stopped.wait(LIVENESS)
        anyio.run(open_late, backend=anyio_backend_name)

    try:
        async with ToolRunner([Tool(blocking, name="outer")]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer")) as batch:
                    await anyio.wait_all_tasks_blocked()
                    hold_until(lambda: runner.statistics().running == 1)
                    batch.interrupt("stop")
                    # The loop is held here: the stop is asked for, and not handled.
                    stopped.set()
                    hold_until(submitted.is_set)
                    assert leaf.started == 0
                assert await runner.wait_detached(LIVENESS)
        assert shape(inner[0].results) == [NOT_STARTED]
    finally:
        stopped.set()
        leaf.open()
    assert leaf.started == 0


# -- T11: the deadline reaches all of it ---------------------------------------


@pytest.mark.parametrize("limit", ["call", "batch"])
@pytest.mark.parametrize("carrier", ["loop", "from_thread", "own loop", "runs_in"])
async def test_t11_a_timeout_reaches_nested_runs_as_an_interrupt_does(
    limit: str, carrier: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """T11, §4.9: what the outer call has opened is timed out with it, at any depth."""
    for seconds in (0.5, 2.0, 8.0):
        if await _time_out_nested(limit, seconds, carrier, anyio_backend_name, promises):
            return
        # The time was over before all had begun, on a machine with much else to do.
    pytest.fail("two calls did not begin in time")


async def _time_out_nested(
    limit: str, seconds: float, carrier: str, backend: str, promises: PromiseObserver
) -> bool:
    """Return whether the innermost calls had begun when the time was over."""
    leaf = GatedTool("leaf")
    inner: dict[int, ToolBatch] = {}
    ended = [threading.Event(), threading.Event()]

    async def middle(depth: int = 0) -> str:
        try:
            if depth == 0:
                asked = [ToolCall("middle", "middle", {"depth": 1})]
            else:
                asked = calls("leaf", "leaf")
            async with runner.open_batch(asked) as batch:
                inner[depth] = batch
        finally:
            ended[depth].set()
        return "finished"

    def outer() -> str:
        if carrier == "from_thread":
            return from_thread.run(middle)
        return anyio.run(middle, backend=backend)

    tools = [
        Tool(
            middle if carrier in {"loop", "runs_in"} else outer,
            name="outer",
            timeout=seconds if limit == "call" else None,
            runs_in="thread" if carrier == "runs_in" else "auto",
        ),
        Tool(middle),
        leaf.tool,
    ]
    kind = f"{limit}_timeout"
    of_batch = seconds if limit == "batch" else None
    try:
        async with ToolRunner(tools, max_threads=4, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer"), timeout=of_batch) as batch:
                    pass
                assert shape(batch.results) == [("timed_out", kind, True, True)]
                if leaf.started < 2:
                    return False
                for event in ended:
                    await happens(event)
                first, second = inner[0], inner[1]
                assert shape(first.results) == [("timed_out", kind, True, True)]
                assert shape(second.results) == [("timed_out", kind, True, True)] * 2
                assert (leaf.started, leaf.ended) == (2, 0)
                leaf.open()
                await leaf.wait_ended(2)
                assert await runner.wait_detached(LIVENESS)
                return True
    finally:
        leaf.open()


# -- T12: a stop after the end -------------------------------------------------


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_t12_a_stop_after_the_end_stops_nothing(where: str) -> None:
    """T12, P5: it says that there was nothing to stop, and the next batch runs."""
    events: list[Event] = []

    def quick() -> bool:
        return current_call().cancelled.is_set()

    async with ToolRunner([quick], observers=[events.append]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("a", "quick"))
        count = len(events)

        def stop() -> list[object]:
            return [
                batch.interrupt(),
                runner.interrupt(),
                batch.cancel("a"),
                handle.cancel(),
            ]

        answers = stop() if where == "loop" else await anyio.to_thread.run_sync(stop)
        assert answers == [False, 0, 0, False]
        assert (batch.interrupted, batch.reason, len(events)) == (False, None, count)
        (result,) = await runner.run(calls("quick"))
        assert (result.status, result.value) == (Status.COMPLETED, False)


@pytest.mark.parametrize("last", [CallSettled, BatchSettled])
async def test_t12_a_stop_at_the_last_event_stops_nothing(last: type[Event]) -> None:
    """T12, §3.1: a sealed batch whose calls are all settled is not open any more."""
    answers: list[object] = []

    def observe(event: Event) -> None:
        if isinstance(event, last):
            answers.append(runner.interrupt())

    async def quick() -> int:
        return 1

    async with ToolRunner([quick], observers=[observe]) as runner:
        async with runner.open_batch(calls("quick")) as batch:
            pass
        assert answers == [0]
        assert (batch.interrupted, batch.reason) == (False, None)
        assert [r.value for r in await runner.run(calls("quick"))] == [1]


async def test_t12_a_stop_between_two_turns_does_not_stick() -> None:
    """T12, P5: a runner that was stopped while idle serves the next batch in full."""
    gate = GatedTool()
    gate.open()
    async with ToolRunner([gate.tool], max_threads=1) as runner:
        for turn in range(1, 4):
            assert runner.interrupt("too early") == 0
            results = await runner.run(calls("gated", "gated"))
            assert [r.value for r in results] == ["done"] * 2
            assert gate.started == 2 * turn


# -- T13: the true reason ------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("user_interrupt", "the user pressed Escape"),
        ("call_cancelled", "this one is not wanted"),
        ("sibling_failed", "OSError: disk full"),
        ("runner_closed", None),
        ("caller_cancelled", None),
    ],
)
async def test_t13_the_reason_travels_to_each_result(
    kind: str, message: str | None, promises: PromiseObserver
) -> None:
    """T13, P6: why it ended is the same on the batch and its results, started or not."""
    gate = GatedTool()
    breaks = GatedTool("breaks", error=OSError("disk full"))
    runner = ToolRunner([gate.tool, breaks.tool], max_threads=2, observers=[promises])
    asked = calls("gated", "breaks", "gated")
    with anyio.fail_after(LIVENESS), anyio.CancelScope() as scope:
        async with runner.open_batch(asked, fail_fast=True) as batch:
            await gate.wait_started()
            await breaks.wait_started()
            match kind:
                case "user_interrupt":
                    batch.interrupt(message)
                case "call_cancelled":
                    assert [batch.cancel(call.id, message) for call in asked] == [1, 1, 1]
                case "sibling_failed":
                    breaks.open()
                case "runner_closed":
                    runner._close_timeout = 0.0
                    await runner.aclose()
                case "caller_cancelled":
                    scope.cancel()
    breaks.open()
    gate.open()
    results = batch.results
    if kind == "sibling_failed":
        failed = results.pop(1)
        assert failed.status is Status.FAILED
        assert failed.reason is None
    for result in results:
        assert result.status is Status.INTERRUPTED
        assert result.reason is not None and result.reason.kind == kind
        if message is not None:
            assert message in (result.reason.message or "")
            assert message in result.text
        assert ("user" in result.text) == (kind == "user_interrupt")
    assert [r.started for r in results] == [i != 2 for i in (r.index for r in results)]
    if kind == "call_cancelled":
        assert batch.reason is None
    else:
        assert batch.reason == results[0].reason
    assert await runner.wait_detached(LIVENESS)
    await runner.aclose()  # from here on the observers have heard all
    promises.check(batch.id, batch.results)


# -- T14: a thread that cannot be started --------------------------------------


@pytest.fixture
async def few_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function after whose call so many more workers can be started."""
    from anyio_toolbatch._runtime.threads import idle_threads

    # Idle workers of earlier tests would serve without a start: occupy them.
    holder = GatedTool("holder")
    start = threading.Thread.start
    left = [0]

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("anyio_toolbatch"):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(self)

    async with ToolRunner([holder.tool], max_threads=1000) as runner:
        async with runner.open_batch() as batch:

            async def allow(count: int) -> None:
                held = 0
                while idle_threads():
                    batch.submit(ToolCall("", "holder"))
                    held += 1
                    await holder.wait_started(held)
                left[0] = count
                monkeypatch.setattr(threading.Thread, "start", refuse)

            yield allow
            monkeypatch.undo()
            holder.open()


async def test_t14_a_failed_thread_start_is_one_calls_failure(
    few_threads: Callable[[int], Any], promises: PromiseObserver
) -> None:
    """T14, P1, P3: the results of the calls before it are kept; it names the cause."""
    gate = GatedTool()
    asked = calls("gated", "gated", "gated")
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                handles = [batch.submit(call) for call in asked[:2]]
                await gate.wait_started(2)
                await few_threads(0)
                third = await batch.submit(asked[2]).wait()
                assert [h.result for h in handles] == [None, None]
                gate.open()
    assert [r.value for r in batch.results] == ["done", "done", None]
    assert third.status is Status.FAILED
    assert isinstance(third.error, RuntimeError)
    assert (third.started, third.effects, third.is_error) == (False, "none", True)
    assert "can't start new thread" in third.text
    assert gate.started == 2
    assert_paired(asked, batch.results)
    promises.check(batch.id, batch.results)


async def test_t14_it_says_that_the_call_was_not_started(
    few_threads: Callable[[int], Any],
) -> None:
    """T14, P6: the text, too, says that the call never started."""
    await few_threads(0)
    gate = GatedTool()
    (result,) = await run_batch(calls("gated"), [gate.tool])
    assert (result.status, result.started) == (Status.FAILED, False)
    assert "not started" in result.text


@pytest.mark.parametrize("allowed", [0, 1, 2])
async def test_t14_threads_that_fail_in_the_middle_of_a_batch(
    few_threads: Callable[[int], Any], allowed: int, promises: PromiseObserver
) -> None:
    """T14, P1: with as many threads as there are, every call has its one true result."""
    gate = GatedTool()
    asked = calls(*["gated"] * 5)
    await few_threads(allowed)
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(asked) as batch:
                await gate.wait_started(allowed)
                gate.open()
        # Not stuck after it, either.
        if allowed:
            assert [r.value for r in await runner.run(calls("gated"))] == ["done"]
    results = batch.results
    done = [r for r in results if r.status is Status.COMPLETED]
    failed = [r for r in results if r.status is Status.FAILED]
    assert len(done) + len(failed) == 5
    assert len(done) >= allowed
    assert failed, "a thread was refused, so a call has failed"
    assert all(isinstance(r.error, RuntimeError) and not r.started for r in failed)
    assert_paired(asked, results)
    promises.check(batch.id, results)


# -- T15: any value is a value -------------------------------------------------


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, Ellipsis, b""], ids=repr)
@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_t15_any_value_is_a_value(value: Any, carrier: str) -> None:
    """T15, P1: what a tool returns is its result, None and what is falsy included."""

    def give() -> Any:
        return value

    async def give_async() -> Any:
        return value

    asked = calls("give")
    results = await run_batch(asked, {"give": give if carrier == "thread" else give_async})
    (result,) = results
    assert (result.status, result.effects, result.is_error) == ("completed", "done", False)
    assert result.value is value
    assert result.unwrap() is value
    assert "no result" not in result.text
    assert_paired(asked, results)


# -- T16: a sink that raises ---------------------------------------------------


async def test_t16_a_sink_that_raises_loses_nothing(
    promises: PromiseObserver, caplog: pytest.LogCaptureFixture
) -> None:
    """T16, P1: an observer's error is logged; every call is paired and told to the others."""
    stored: list[ToolResult] = []
    told: list[Event] = []

    def sink(event: Event) -> None:
        if isinstance(event, CallSettled):
            stored.append(event.result)
            if len(stored) == 2:
                raise OSError("disk full")

    asked = calls("a", "b", "c", "d")
    tools: Any = {name: (lambda name=name: name) for name in "abcd"}
    async with ToolRunner(tools, observers=[sink, promises, told.append]) as runner:
        with caplog.at_level(logging.ERROR, "anyio_toolbatch"), anyio.fail_after(LIVENESS):
            async with runner.open_batch(asked) as batch:
                pass
            again = await runner.run(asked)
    assert [r.value for r in batch.results] == [r.value for r in again] == list("abcd")
    assert_paired(asked, batch.results)
    assert len(stored) == 8  # it is asked again after its error
    settled = [e for e in told if isinstance(e, CallSettled) and e.batch_id == batch.id]
    assert len(settled) == 4
    errors = [r for r in caplog.records if r.name.startswith("anyio_toolbatch")]
    assert [r.exc_info[0] for r in errors if r.exc_info] == [OSError]
    promises.check(batch.id, batch.results)


async def test_t16_a_late_hook_that_raises_is_contained_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T16, P5: the same for `on_late`: it is logged, observers hear of it, work goes on."""
    gate = GatedTool()
    dropped = anyio.Event()

    def on_late(_: LateResult) -> None:
        raise OSError("disk full")

    def observe(event: Event) -> None:
        if isinstance(event, LateResultDropped):
            dropped.set()

    async with ToolRunner([gate.tool], observers=[observe], on_late=on_late) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()
            batch.interrupt()
        with caplog.at_level(logging.ERROR, "anyio_toolbatch"), anyio.fail_after(LIVENESS):
            gate.open()
            await dropped.wait()
        assert [r.value for r in await runner.run(calls("gated"))] == ["done"]
    assert shape(batch.results) == [CUT]
    assert any(r.exc_info and r.exc_info[0] is OSError for r in caplog.records)


# -- T17: a large finished result ----------------------------------------------


async def test_t17_what_is_finished_is_untouched_by_the_interrupt(
    promises: PromiseObserver,
) -> None:
    """T17, P3: a large result that is in stays whole, as a value, in text, in storage."""
    large = "".join(f"line {n}\n" for n in range(100_000))
    stored: dict[int, Any] = {}

    def store(event: Event) -> None:
        if isinstance(event, CallSettled):
            stored[event.index] = event.result.value

    gate = GatedTool()
    async with ToolRunner(
        {"large": lambda: large, "gated": gate.tool}, observers=[promises, store]
    ) as runner:
        async with runner.open_batch() as batch:
            finished = batch.submit(ToolCall("1", "large"))
            batch.submit(ToolCall("2", "gated"))
            await finished.wait()
            await gate.wait_started()
            batch.interrupt()
        first, second = batch.results
        assert first.value is large
        assert (first.status, first.detached, first.reason) == (Status.COMPLETED, False, None)
        assert shape([second]) == [CUT]
        assert openai_chat.render_results(batch.results)[0]["content"] == large
        assert anthropic.render_results(batch.results)["content"][0]["content"] == large
        assert stored[0] is large
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


# -- T18: what belongs to a session stays there --------------------------------


async def test_t18_each_session_sees_its_own_variables_on_one_thread() -> None:
    """T18, §4.5: copied per call at submit: never another's, never missing."""
    threads: set[int] = set()

    def blocking() -> str:
        threads.add(threading.get_ident())
        found = session.get("missing")
        session.set("left behind")  # must not be met by the next call
        return found

    async def turn(name: str) -> None:
        session.set(name)
        for _ in range(5):
            results = await runner.run(calls("blocking", "blocking"))
            found[name].extend(r.unwrap() for r in results)

    found: dict[str, list[str]] = {"a": [], "b": []}
    async with ToolRunner([blocking], max_threads=1) as runner:
        async with anyio.create_task_group() as group:
            group.start_soon(turn, "a")
            group.start_soon(turn, "b")
        assert found == {"a": ["a"] * 10, "b": ["b"] * 10}
        (outside,) = await runner.run(calls("blocking"))
        assert outside.value == "missing"


async def test_t18_not_even_after_a_call_that_was_let_go() -> None:
    """T18, P5: a worker that comes back late brings nothing of its old call along."""
    gate = GatedTool()
    late = Late()

    def blocking() -> tuple[str, str, bool]:
        context = current_call()
        return session.get("missing"), context.batch_id, context.cancelled.is_set()

    async with ToolRunner([gate.tool, blocking], on_late=late, max_threads=1) as runner:
        token = session.set("old")
        async with runner.open_batch(calls("gated")) as old:
            await gate.wait_started()
            old.interrupt()
        session.reset(token)
        gate.open()
        await late.all_landed()
        for _ in range(3):  # whichever thread it is, the old one among them
            async with runner.open_batch(calls("blocking")) as new:
                pass
            assert [r.value for r in new.results] == [("missing", new.id, False)]


@pytest.mark.parametrize("how", ["completed", "failed", "late", "late, by a hook"])
async def test_t18_nothing_of_a_call_is_left_behind(how: str) -> None:
    """T18, P10: arguments, value and error are free once nobody holds the results."""

    class Thing:
        """Something whose end can be seen."""

    gate = GatedTool()

    def blocking(thing: Thing) -> Any:
        result = Thing()
        refs.append(weakref.ref(result))
        session_thing.set(thing)
        if how == "late, by a hook":
            on_cancel(gate.open)
        gate.tool.func()
        if how == "failed":
            raise ValueError(result)
        return result

    refs: list[weakref.ref[Thing]] = []
    session_thing: ContextVar[Thing] = ContextVar("session_thing")
    late_landed = anyio.Event()

    async def turn(runner: ToolRunner) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        async with runner.open_batch([ToolCall("a", "blocking", {"thing": thing})]) as batch:
            await gate.wait_started()
            if "late" in how:
                batch.interrupt()
            else:
                gate.open()
        if how == "late":
            gate.open()

    def on_late(_: LateResult) -> None:
        late_landed.set()

    async with ToolRunner([blocking], on_late=on_late) as runner:
        with anyio.fail_after(LIVENESS):
            await turn(runner)
            if "late" in how:
                await late_landed.wait()
        assert len(refs) == 2
        # The worker may still be on its way out of the call.
        with anyio.fail_after(LIVENESS):
            while [ref() for ref in refs] != [None, None]:
                gc.collect()
                await anyio.sleep(0.001)


# -- T19: 200 endless tools ----------------------------------------------------


async def test_t19_detached_work_is_counted_and_capped() -> None:
    """T19, P10: a visible count, a cap with a clear refusal, and new work still served."""
    cap = 16
    gate = GatedTool("endless")

    async def quick() -> int:
        return 1

    refused: list[ToolResult] = []
    with anyio.fail_after(60):
        async with ToolRunner([gate.tool, quick], max_threads=4, max_detached=cap) as runner:
            for turn in range(200):
                async with runner.open_batch() as batch:
                    handle = batch.submit(ToolCall(f"t{turn}", "endless"))
                    served = await batch.submit(ToolCall("q", "quick")).wait()
                    assert served.value == 1
                    if handle.result is None:
                        await gate.wait_started(turn + 1)
                        batch.interrupt()
                detached = runner.statistics().detached
                assert len(detached) == min(turn + 1, cap)
                if turn >= cap:
                    refused.append(batch.results[0])
                else:
                    assert detached[-1].batch_id == batch.id
                    assert shape(batch.results)[0] == CUT
            assert gate.started == cap  # no more threads than that
            for result in refused:
                assert shape([result]) == [("failed", "too_many_detached", False, False)]
                assert f"endless ×{cap}" in result.text  # it names what holds the places
                assert "not started" in result.text
            gate.open()
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().detached == ()
            assert [r.value for r in await runner.run(calls("endless"))] == ["done"]


# -- T20: the end of the process -----------------------------------------------

LEAVE = textwrap.dedent(
    """
    import socket, sys, time
    import anyio
    from anyio_toolbatch import ToolCall, ToolRunner, from_thread

    what, backend = sys.argv[1:]
    near, far = socket.socketpair()

    def endless():
        from_thread.run_sync(one_more)
        match what:
            case "print":
                while True:
                    print("still here")
            case "socket":
                near.recv(1)
            case "stdin":
                sys.stdin.readline()
            case "sleep":
                time.sleep(600)

    def one_more():
        global running
        running += 1
        if running == 8:
            all_running.set()

    async def main():
        global running, all_running
        running, all_running = 0, anyio.Event()
        runner = ToolRunner([endless])
        async with runner.open_batch([ToolCall(str(n), "endless") for n in range(8)]) as batch:
            await all_running.wait()
            batch.interrupt()
        assert [r.detached for r in batch.results] == [True] * 8, batch.results
        assert len(runner.statistics().detached) == 8

    anyio.run(main, backend=backend)
    """
)


@pytest.mark.parametrize("what", ["sleep", "print", "socket", "stdin"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_t20_the_process_leaves_while_threads_are_stuck_in_c(what: str, backend: str) -> None:
    """T20, P7: status 0 and silence, whatever the detached threads are blocked in."""
    read_end, write_end = os.pipe()  # an input that stays open and says nothing
    try:
        done = subprocess.run(
            [sys.executable, "-c", LEAVE, what, backend],
            stdin=read_end,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(read_end)
        os.close(write_end)
    assert (done.returncode, done.stderr.decode()) == (0, "")


# -- T21: distinct states ------------------------------------------------------


async def test_t21_every_state_is_told_apart_as_data() -> None:
    """T21, P6: interrupted is neither failed nor nothing; each end has a state of its own."""
    gate = GatedTool()

    def approve(call: ToolCall) -> bool | str:
        return call.id != "denied" or "not on a Friday"

    limited = GatedTool("limited", timeout=0.05)

    def breaks() -> None:
        raise ValueError

    tools: Any = {
        "works": lambda: 1,
        "breaks": breaks,
        "gated": gate.tool,
        "limited": limited.tool,
    }
    async with ToolRunner(tools, max_threads=4, approve=approve) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                for name in ("works", "breaks", "no such tool"):
                    await batch.submit(ToolCall(name, name)).wait()
                await batch.submit(ToolCall("denied", "works")).wait()
                bad = ToolCall("bad arguments", "works", "{")
                await batch.submit(bad).wait()
                await batch.submit(ToolCall("limited", "limited")).wait()
                gated = [batch.submit(ToolCall(f"g{n}", "gated")) for n in range(6)]
                await gate.wait_started(4)
                gated[0].cancel()
                await gated[0].wait()
                batch.interrupt()
        states = {r.call.id: shape([r])[0] for r in batch.results}
        assert states["works"] == ("completed", None, True, False)
        assert states["breaks"] == ("failed", None, True, False)
        assert states["no such tool"] == ("invalid", "unknown_tool", False, False)
        assert states["bad arguments"] == ("invalid", "bad_arguments", False, False)
        assert states["denied"] == ("denied", "not_approved", False, False)
        assert states["limited"] == ("timed_out", "call_timeout", True, True)
        assert states["g0"] == ("interrupted", "call_cancelled", True, True)
        assert states["g1"] == CUT
        assert states["g5"] == NOT_STARTED
        assert len({r.text for r in batch.results if r.call.id in {"g0", "g1", "g5"}}) == 3
        gate.open()
        limited.open()
        assert await runner.wait_detached(LIVENESS)


# -- T22: the cost of draining -------------------------------------------------


async def test_t22_draining_a_deaf_tool_costs_next_to_no_cpu() -> None:
    """T22, §4.4: CPU time of the loop while it drains stays under a tenth of the wall time."""
    deaf = DeafTool()
    # The wait is what is measured here, so it is a real one.
    wall = 0.5
    async with ToolRunner([deaf.tool]) as runner:
        async with runner.open_batch(calls(*["deaf"] * 5)) as batch:
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
        before = time.thread_time()
        await anyio.sleep(wall)
        spent = time.thread_time() - before
        assert deaf.ended == 0
        deaf.release()
        assert await runner.wait_detached(LIVENESS)
    assert shape(batch.results) == [CUT] * 5
    assert deaf.cancellations >= 5  # they were told, so there was something to drain
    assert spent < wall / 10
