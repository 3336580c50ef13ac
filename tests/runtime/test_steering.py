"""Newer instructions in mid-batch, and what people are told about calls that wait."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import explaining
from anyio_toolbatch._runtime.thread_carrier import _ThreadCarrier
from anyio_toolbatch.testing import GatedTool, PromiseObserver, ScriptedTool, fail, give

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
SUPERSEDED = ("interrupted", "superseded", False, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Held:
    """Async tools each of whose calls ends when the test lets it; calls go by their ids."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    def tool(self, name: str, **options: Any) -> Tool:
        return Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> str:
        call_id = current_call().call.id
        self.started.append(call_id)
        self._begun[call_id].set()
        await self._may_end[call_id].wait()
        return call_id

    async def wait_started(self, *ids: str) -> None:
        with anyio.fail_after(LIVENESS):
            for call_id in ids:
                await self._begun[call_id].wait()
            await anyio.wait_all_tasks_blocked()

    def end(self, *ids: str) -> None:
        for call_id in ids:
            self._may_end[call_id].set()


def hold_until(condition: Callable[[], bool]) -> None:
    """Hold the loop until a worker has come so far; there is no event for it."""
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# -- supersede -----------------------------------------------------------------


async def test_what_supersede_returns(promises: PromiseObserver) -> None:
    """§3.1: True if the batch was open and nothing had cut it before."""
    quick = ScriptedTool(give("ran"), name="quick")
    async with ToolRunner([quick.tool], observers=[promises]) as runner:
        async with runner.open_batch() as batch:
            assert batch.supersede("first") is True
            assert batch.supersede("second") is False
        assert batch.supersede() is False
        assert batch.reason is not None
        assert (batch.reason.kind, batch.reason.message) == ("superseded", "first")
        async with runner.open_batch() as batch:
            batch.interrupt("stop")
            assert batch.supersede() is False
        assert batch.reason is not None and batch.reason.kind == "user_interrupt"
        async with runner.open_batch(calls("quick")) as batch:
            pass
        assert batch.supersede() is False
        assert (batch.reason, batch.interrupted) == (None, False)
    with pytest.raises(TypeError):
        batch.supersede(3)  # type: ignore[arg-type]


async def test_nothing_that_comes_after_it_starts(promises: PromiseObserver) -> None:
    """§3.1: what is submitted later is settled at once, not started, as superseded."""
    held = Held()
    async with ToolRunner([held.tool("tool")], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("runs", "tool"))
                await held.wait_started("runs")
                batch.supersede("newer")
                at_once = batch.submit(ToolCall("later", "tool"))
                assert at_once.result is not None
                await anyio.wait_all_tasks_blocked()
                later = batch.submit(ToolCall("later", "tool"))
                assert later.result is not None
                held.end("runs")
    assert shape(batch.results) == [DONE, SUPERSEDED, SUPERSEDED]
    told = [e.reason for e in promises.events if isinstance(e, BatchInterrupted)]
    assert told == [batch.reason]
    promises.check(batch.id, batch.results)


async def test_supersede_then_interrupt(promises: PromiseObserver) -> None:
    """§3.1: the interrupt still cuts what runs; the batch's first reason stays."""
    held = Held()
    async with ToolRunner(
        [held.tool("tool")], max_concurrency=1, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("tool", "tool")) as batch:
                await held.wait_started("id-0")
                assert batch.supersede("newer") is True
                await anyio.wait_all_tasks_blocked()
                assert batch.interrupt("stop") is True
                assert batch.interrupt() is False
    assert shape(batch.results) == [CUT, SUPERSEDED]
    assert batch.reason is not None and batch.reason.kind == "superseded"
    assert "stop" in batch.results[0].text and "newer" in batch.results[1].text
    assert sum(isinstance(e, BatchInterrupted) for e in promises.events) == 1
    promises.check(batch.id, batch.results)


async def test_supersede_and_interrupt_in_one_breath(promises: PromiseObserver) -> None:
    """§3.1: the same where neither has been handled when the other comes."""
    held = Held()
    async with ToolRunner(
        [held.tool("tool")], max_concurrency=1, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("tool", "tool")) as batch:
                await held.wait_started("id-0")
                assert batch.supersede("newer") is True
                assert batch.interrupt("stop") is True
    assert shape(batch.results) == [CUT, SUPERSEDED]
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("moment", ["before the first", "after the end"])
async def test_a_supersede_that_another_thread_has_outrun(
    moment: str, promises: PromiseObserver
) -> None:
    """P6: it had found nothing in its way; by the time it is handled the rest is decided."""
    held = Held()
    async with ToolRunner([held.tool("tool")], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("tool")) as batch:
                await held.wait_started("id-0")
                if moment == "before the first":
                    batch.supersede("first")
                    batch._engine.cutter.request("superseded", "outrun")
                    await anyio.wait_all_tasks_blocked()
                held.end("id-0")
            told = len(promises.events)
            if moment == "after the end":
                batch._engine.cutter.request("superseded", "outrun")
                await anyio.wait_all_tasks_blocked()
                assert (batch.reason, len(promises.events)) == (None, told)
            else:
                assert batch.reason is not None and batch.reason.message == "first"
    assert shape(batch.results) == [DONE]
    assert sum(isinstance(e, BatchInterrupted) for e in promises.events) == (
        1 if moment == "before the first" else 0
    )
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("end", ["batch_timeout", "sibling_failed", "caller_cancelled"])
async def test_what_else_cuts_a_superseded_batch(end: str, promises: PromiseObserver) -> None:
    """§3.1, §4.3: limits, failures and callers cut what runs on, with their own reasons."""
    held = Held()
    fails = ScriptedTool(fail(ValueError()), name="fails")
    go = anyio.Event()

    async def breaks() -> None:
        await go.wait()
        raise ValueError

    batches: list[ToolBatch] = []
    tools = [held.tool("tool", max_concurrency=1), fails.tool, Tool(breaks)]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS), anyio.CancelScope() as scope:
            async with runner.open_batch(
                calls("tool", "tool", "breaks"),
                timeout=0.1 if end == "batch_timeout" else None,
                fail_fast=True,
            ) as batch:
                batches.append(batch)
                await held.wait_started("id-0")
                batch.supersede("newer")
                await anyio.wait_all_tasks_blocked()
                if end == "sibling_failed":
                    go.set()
                elif end == "caller_cancelled":
                    scope.cancel()
        status = "timed_out" if end == "batch_timeout" else "interrupted"
        first, second, _ = batches[0].results
        assert shape([first, second]) == [(status, end, True, True), SUPERSEDED]
        assert batches[0].reason is not None and batches[0].reason.kind == "superseded"


@pytest.mark.parametrize("inner", ["same runner", "own"])
async def test_it_leaves_the_batches_inside_running_calls_alone(
    inner: str, promises: PromiseObserver
) -> None:
    """§3.1, §4.9: running calls go on, and so does what they have opened or will open."""
    held = Held()

    async def outer() -> list[str]:
        other = runner if inner == "same runner" else ToolRunner([held.tool("tool")])
        async with other.open_batch() as batch:
            await batch.submit(ToolCall("1", "tool")).wait()
            batch.submit(ToolCall("2", "tool"))
        return [r.unwrap() for r in batch.results]

    async with ToolRunner([Tool(outer), held.tool("tool")], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("outer")) as batch:
                await held.wait_started("1")
                batch.supersede()
                await anyio.wait_all_tasks_blocked()
                held.end("1", "2")
    assert shape(batch.results) == [DONE]
    assert batch.results[0].value == ["1", "2"]


@pytest.mark.parametrize("limit", [None, "max_threads", "max_concurrency", "claim"])
async def test_nothing_starts_once_it_has_returned(
    limit: str | None, promises: PromiseObserver
) -> None:
    """§3.1, P4: from any thread; also in the moment before it is handled."""
    gate = GatedTool(
        "gated", **({"writes": "a"} if limit == "claim" else {"max_concurrency": 1})
    )
    limits: dict[str, Any] = {limit: 1} if limit and limit.startswith("max") else {}
    answers: list[bool] = []
    async with ToolRunner([gate.tool], observers=[promises], **limits) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("gated", "gated")) as batch:
                await gate.wait_started()
                thread = threading.Thread(target=lambda: answers.append(batch.supersede()))
                thread.start()
                thread.join()
                # The loop is held here: it is asked for, and not handled.
                gate.open()
                hold_until(lambda: gate.ended == 1)
        assert shape(batch.results) == [DONE, SUPERSEDED]
        assert (gate.started, answers) == (1, [True])
    promises.check(batch.id, batch.results)


async def test_a_call_that_is_started_by_the_same_pass_is_not_cut(
    promises: PromiseObserver,
) -> None:
    """P6: what has run its first line runs on; what has not never does."""
    started: list[str] = []
    tool = Tool(lambda: started.append("it"), name="quick")
    async with ToolRunner([tool], max_threads=2, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            for _ in range(50):
                started.clear()
                async with runner.open_batch(calls(*["quick"] * 4)) as batch:
                    batch.supersede()  # while workers are on their way to them
                assert {shape([r])[0] for r in batch.results} <= {DONE, SUPERSEDED}
                assert sum(r.started for r in batch.results) == len(started)


# -- looking -------------------------------------------------------------------


async def test_each_wait_is_told_by_its_kind(
    tmp_path: Path, promises: PromiseObserver
) -> None:
    """§3.1: `explain` and `waiting_calls` name what is waited for, and who has it."""
    held = Held()
    may_answer = anyio.Event()

    async def approve(call: ToolCall) -> bool:
        if call.id == "asked":
            await may_answer.wait()
        return True

    tools = [
        held.tool("plain"),
        held.tool("write", writes=lambda key: key, needs_slot=False),
        held.tool("file", writes=tmp_path, needs_slot=False),
        held.tool("rare", max_concurrency=1, needs_slot=False),
    ]
    async with ToolRunner(
        tools, approve=approve, max_concurrency=1, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                asked: list[tuple[str, str, dict[str, Any]]] = [
                    ("p1", "plain", {}),
                    ("p2", "plain", {}),
                    ("w1", "write", {"key": "a"}),
                    ("w2", "write", {"key": "a"}),
                    ("f1", "file", {}),
                    ("f2", "file", {}),
                    ("r1", "rare", {}),
                    ("r2", "rare", {}),
                    ("asked", "write", {"key": "b"}),
                    ("behind", "write", {"key": "b"}),
                ]
                handles = {
                    call_id: batch.submit(ToolCall(call_id, name, arguments))
                    for call_id, name, arguments in asked
                }
                await held.wait_started("p1", "w1", "f1", "r1")
                waiting = {w.call.id: w for w in runner.statistics().waiting_calls}
                assert {call_id: w.kind for call_id, w in waiting.items()} == {
                    "p2": "place",
                    "w2": "claim",
                    "f2": "claim",
                    "r2": "place",
                    "asked": "approval",
                    "behind": "order",
                }
                for call_id, w in waiting.items():
                    assert (w.batch_id, w.index) == (batch.id, handles[call_id].index)
                    assert w.waits_for in handles[call_id].explain()
                assert "call 0 (plain)" in waiting["p2"].waits_for
                assert "'a', which call 2 (write) has" in waiting["w2"].waits_for
                assert tmp_path.name in waiting["f2"].waits_for
                assert "call 6 (rare)" in waiting["r2"].waits_for
                assert "call 8 (write)" in waiting["behind"].waits_for
                assert "is running" in handles["p1"].explain()
                numbers = runner.statistics()
                assert (numbers.waiting, numbers.running) == (6, 4)
                assert "approval: 1" in repr(runner)
                may_answer.set()
                held.end(*handles)
    assert shape(batch.results) == [DONE] * 10
    assert "settled: completed" in handles["p1"].explain()
    assert runner.statistics().waiting_calls == ()


async def test_what_is_waited_for_ends_and_is_forgotten_while_somebody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§3.1: as a look from another thread may find it, between two of its own lines."""
    held = Held()
    has_started = explaining._has_started

    def look_and_forget(found: list[Any]) -> bool:
        seen = has_started(found)
        for record in found:
            record.entry = None  # as `CallRecord.forget` leaves it
        return seen

    async with ToolRunner([held.tool("write", writes="a")]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("first", "write"))
                second = batch.submit(ToolCall("second", "write"))
                await held.wait_started("first")
                with monkeypatch.context() as patch:
                    patch.setattr(explaining, "_has_started", look_and_forget)
                    assert "'a', which call 0 (write) has" in second.explain()
                held.end("first", "second")


async def test_looking_from_another_thread_is_safe(promises: PromiseObserver) -> None:
    """§3.1: statistics and `explain` may be asked for while all of it moves."""
    over = threading.Event()
    errors: list[BaseException] = []

    async def tool(n: int) -> int:
        return n

    def look() -> None:
        try:
            while not over.is_set():
                runner.statistics()
                repr(runner)
                for handle in list(handles):
                    handle.explain()
        except BaseException as exc:
            errors.append(exc)

    handles: list[Any] = []
    tools = [Tool(tool, writes=lambda n: str(n % 3), max_concurrency=2)]
    async with ToolRunner(tools, observers=[promises]) as runner:
        looker = threading.Thread(target=look)
        looker.start()
        try:
            with anyio.fail_after(LIVENESS):
                for _ in range(4):
                    handles.clear()
                    async with runner.open_batch() as batch:
                        handles.extend(
                            batch.submit(ToolCall(str(n), "tool", {"n": n})) for n in range(30)
                        )
                    assert [r.value for r in batch.results] == list(range(30))
        finally:
            over.set()
            looker.join()
    assert errors == []


# -- lines in mid-flight -------------------------------------------------------


async def test_lines_that_come_up_in_mid_flight_take_over_what_runs(
    monkeypatch: pytest.MonkeyPatch, promises: PromiseObserver
) -> None:
    """P1, §4.7: threads had gone on while the loop was busy: nothing runs twice, or too many."""
    gate = GatedTool("slow")
    quick: list[int] = []
    taken: list[CallRecord] = []
    carry = _ThreadCarrier.run

    def carry_and_count(self: Any, record: CallRecord) -> bool:
        taken.append(record)
        return carry(self, record)

    monkeypatch.setattr(_ThreadCarrier, "run", carry_and_count)
    tools = [
        Tool(lambda n: quick.append(n), name="quick"),
        gate.tool,
        Tool(lambda: "claim", name="claim", writes="k", needs_slot=False),
    ]
    try:
        with anyio.fail_after(LIVENESS):
            async with ToolRunner(tools, max_threads=2, observers=[promises]) as runner:
                async with runner.open_batch() as batch:
                    clock = batch._engine.hub.clock
                    before = clock()
                    for n in range(20):
                        batch.submit(ToolCall("q", "quick", {"n": n}))
                    slow = [batch.submit(ToolCall("s", "slow")) for _ in range(6)]
                    hold_until(lambda: gate.started == 2)
                    started = clock()
                    claim = batch.submit(ToolCall("c", "claim"))  # from now on there are lines
                    await anyio.wait_all_tasks_blocked()
                    for _ in range(20):
                        await anyio.sleep(0.001)  # whatever else might be started
                    numbers = runner.statistics()
                    assert (numbers.running_threads, gate.started) == (2, 2)
                    assert "is running" in slow[0].explain()
                    assert claim.result is None
                    assert "max_threads=2" in claim.explain()
                    ended = clock()
                    for n in range(3, 7):
                        gate.let_through()
                        await gate.wait_started(n)
                        assert runner.statistics().running_threads == 2
                    gate.open()
    finally:
        gate.open()
    assert shape(batch.results) == [DONE] * 27
    assert sorted(quick) == list(range(20))
    assert len(taken) == len(set(taken)) == 27
    assert gate.started == 6
    for handle in slow[:2]:
        result = handle.result
        assert result is not None
        assert result.run_time >= ended - started
        assert result.wait_time <= started - before
    promises.check(batch.id, batch.results)
