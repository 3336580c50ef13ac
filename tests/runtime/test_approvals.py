"""Somebody is asked before a call runs: the hook's promises, and what waits meanwhile."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallStarted,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    run_batch,
)
from anyio_toolbatch._runtime.approvals import Question
from anyio_toolbatch.testing import GatedTool, PromiseObserver, ScriptedTool, give

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)

who: ContextVar[str] = ContextVar("who")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Desk:
    """An async approver that answers when the test does; questions go by the calls' ids."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.withdrawn: list[str] = []
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._answered: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._answers: dict[str, Any] = {}

    async def approve(self, call: ToolCall) -> Any:
        self.asked.append(call.id)
        self._begun[call.id].set()
        try:
            await self._answered[call.id].wait()
        except anyio.get_cancelled_exc_class():
            self.withdrawn.append(call.id)
            raise
        return self._answers[call.id]

    def answer(self, *ids: str, answer: Any = True) -> None:
        for call_id in ids:
            self._answers[call_id] = answer
            self._answered[call_id].set()

    async def wait_asked(self, *ids: str) -> None:
        with anyio.fail_after(LIVENESS):
            for call_id in ids:
                await self._begun[call_id].wait()
            await anyio.wait_all_tasks_blocked()


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


@contextlib.contextmanager
def letting_go(*gates: GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its threads."""
    try:
        yield
    finally:
        for gate in gates:
            gate.open()


def at_a_gate(gate: GatedTool, answer: Any = True) -> Callable[[ToolCall], Any]:
    """Return a sync approver that answers when the gate is opened."""

    def approve(_: ToolCall) -> Any:
        gate.tool.func()
        return answer

    return approve


def as_kind(kind: str, approve: Callable[[ToolCall], Any]) -> Callable[[ToolCall], Any]:
    """Return the approver as a sync or an async one, or as a sync one of awaitables."""

    async def approve_async(call: ToolCall) -> Any:
        await anyio.lowlevel.checkpoint()
        return approve(call)

    return {"sync": approve, "async": approve_async, "awaitable": lambda c: approve_async(c)}[
        kind
    ]


KINDS = ["sync", "async", "awaitable"]


class Refused(Exception):
    """What an approver raises."""


# -- answers -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, DONE),
        (False, ("denied", "not_approved", False, False)),
        ("not on a Friday", ("denied", "not_approved", False, False)),
        ("", ("denied", "not_approved", False, False)),
        (None, ("failed", None, False, False)),
        (1, ("failed", None, False, False)),
        (0, ("failed", None, False, False)),
        ([True], ("failed", None, False, False)),
    ],
)
async def test_only_true_lets_a_call_run(
    kind: str, answer: Any, expected: Any, promises: PromiseObserver
) -> None:
    """§3.4: False or a str denies; anything else fails the call: it is never consent."""
    quick = ScriptedTool(give("ran"), name="quick")

    def approve(call: ToolCall) -> Any:
        return answer if call.id == "id-0" else True

    async with ToolRunner(
        [quick.tool], approve=as_kind(kind, approve), observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("quick", "quick")) as batch:
                pass
        first, second = batch.results
        assert shape([first, second]) == [expected, DONE]
        assert quick.started == (2 if answer is True else 1)
        if expected[0] == "failed":
            assert isinstance(first.error, TypeError)
            assert type(answer).__name__ in first.text
            assert first.is_error
        if expected[0] == "denied":
            assert "not started" in first.text
            assert first.reason is not None
            assert first.reason.message == (answer or None)
            assert (answer or "denied") in first.text
        assert first.effects == ("done" if answer is True else "none")
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [Refused("no"), SystemExit(3), GeneratorExit()])
async def test_an_approver_that_raises_fails_its_call(
    kind: str, error: BaseException, promises: PromiseObserver
) -> None:
    """§3.4: raising is no consent; the cause is kept, siblings go on."""
    quick = ScriptedTool(give("ran"), name="quick")

    def approve(call: ToolCall) -> bool:
        if call.id == "id-0":
            raise error
        return True

    async with ToolRunner(
        [quick.tool], approve=as_kind(kind, approve), observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("quick", "quick"), fail_fast=True) as batch:
                pass
    assert shape(batch.results) == [("failed", None, False, False), DONE]
    assert batch.results[0].error is error
    assert type(error).__name__ in batch.results[0].text
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_keyboard_interrupt_in_the_approver_ends_the_batch(
    kind: str, promises: PromiseObserver
) -> None:
    """§4.6: Ctrl-C at a prompt ends the turn, comes out once, and leaves the results."""
    quick = ScriptedTool(give("ran"), name="quick")

    def approve(call: ToolCall) -> bool:
        if call.id == "id-1":
            raise KeyboardInterrupt
        return True

    async with ToolRunner(
        [quick.tool], approve=as_kind(kind, approve), observers=[promises]
    ) as runner:
        batches: list[ToolBatch] = []
        with anyio.fail_after(LIVENESS), pytest.raises(KeyboardInterrupt):
            async with runner.open_batch() as batch:
                batches.append(batch)
                await batch.submit(calls("quick")[0]).wait()
                batch.submit(ToolCall("id-1", "quick"))
                batch.submit(ToolCall("id-2", "quick"))
        assert shape(batches[0].results)[0] == DONE
        assert shape(batches[0].results)[1] == NOT_STARTED
        assert batches[0].results[2].status.value in {"interrupted", "completed"}
        assert shape(await runner.run(calls("quick"))) == [DONE]


async def test_an_approver_that_is_cancelled_by_a_stranger_is_a_failure(
    promises: PromiseObserver,
) -> None:
    """P8: a cancellation that the approver invents is that call's failure."""
    quick = ScriptedTool(give("ran"), name="quick")

    async def approve(_: ToolCall) -> bool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep(600)
        return False  # a cancelled wait must not read as consent

    results = await run_batch(
        calls("quick"), [quick.tool], approve=approve, observers=[promises]
    )
    assert shape(results) == [("denied", "not_approved", False, False)]
    assert quick.started == 0


# -- who is asked, when, and where ---------------------------------------------


@pytest.mark.parametrize("kind", ["bad arguments", "unknown tool", "bad key"])
async def test_what_could_not_run_is_not_asked_for(
    kind: str, promises: PromiseObserver
) -> None:
    """§4.7: parse and validate come before approval, and so do the key functions."""
    asked: list[str] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        return True

    def bad_key() -> str:
        raise Refused

    tools = [
        ScriptedTool(give("ran"), name="quick").tool,
        Tool(lambda: "ran", name="keyed", writes=bad_key),
    ]
    call = {
        "bad arguments": ToolCall("bad", "quick", "{"),
        "unknown tool": ToolCall("bad", "nowhere"),
        "bad key": ToolCall("bad", "keyed"),
    }[kind]
    with anyio.fail_after(LIVENESS):
        results = await run_batch(
            [call, ToolCall("good", "quick")], tools, approve=approve, observers=[promises]
        )
    assert asked == ["good"]
    assert results[1].value == "ran"
    assert not results[0].started


async def test_the_sync_approver_is_asked_in_a_worker_in_the_submitters_context(
    promises: PromiseObserver,
) -> None:
    """§3.4: so that it may ask in a terminal; and what it sets is its own."""
    threads: set[int] = set()
    seen: list[str] = []

    def approve(_: ToolCall) -> bool:
        threads.add(threading.get_ident())
        seen.append(who.get("missing"))
        who.set("the approver's")
        return True

    async def tool() -> str:
        return who.get("missing")

    async def turn(name: str) -> None:
        who.set(name)
        (result,) = await runner.run(calls("tool"))
        assert result.value == name
        assert who.get() == name

    async with ToolRunner([tool], approve=approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            await turn("a")
            await turn("b")
    assert seen == ["a", "b"]
    assert threading.get_ident() not in threads


async def test_the_async_approver_sees_the_submitters_context(
    promises: PromiseObserver,
) -> None:
    """§3.4: the same for one on the loop."""

    async def approve(_: ToolCall) -> str | bool:
        seen.append(who.get("missing"))
        who.set("the approver's")
        return True

    async def tool() -> str:
        return who.get("missing")

    seen: list[str] = []
    who.set("submitter")
    results = await run_batch(calls("tool"), [tool], approve=approve, observers=[promises])
    assert (seen, results[0].value) == (["submitter"], "submitter")


async def test_the_sync_approver_is_asked_one_question_at_a_time(
    promises: PromiseObserver,
) -> None:
    """§3.4: also across batches, in call order, and outside `max_threads`."""
    busy = threading.Lock()
    asked: list[str] = []

    def approve(call: ToolCall) -> bool:
        assert busy.acquire(blocking=False), "two questions at once"
        asked.append(call.id)
        gate.tool.func()
        busy.release()
        return True

    gate = GatedTool("input")
    blocking = GatedTool("blocking")
    with letting_go(gate, blocking), anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [blocking.tool], max_threads=1, approve=approve, observers=[promises]
        ) as runner:
            async with runner.open_batch() as one, runner.open_batch() as other:
                for n in range(3):
                    one.submit(ToolCall(f"one {n}", "blocking"))
                    other.submit(ToolCall(f"other {n}", "blocking"))
                for n in range(1, 7):
                    # The only thread is taken from the first answer on.
                    await gate.wait_started(n)
                    gate.let_through()
                await gate.wait_ended(6)
                blocking.open()
        assert shape(one.results + other.results) == [DONE] * 6
    assert asked == [f"{batch} {n}" for n in range(3) for batch in ("one", "other")]


async def test_async_approvers_are_asked_many_at_once_in_call_order(
    promises: PromiseObserver,
) -> None:
    """§3.4: all questions are open together; answers may come in any order."""
    desk = Desk()
    held = Held()
    ids = [f"id-{i}" for i in range(20)]
    async with ToolRunner(
        [held.tool("tool")], approve=desk.approve, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls(*["tool"] * 20)) as batch:
                await desk.wait_asked(*ids)
                assert desk.asked == ids
                assert {w.kind for w in runner.statistics().waiting_calls} == {"approval"}
                assert runner.statistics().running == 0
                for call_id in reversed(ids):
                    desk.answer(call_id)
                    await held.wait_started(call_id)
                assert held.started == ids[::-1]
                held.end(*ids)
    assert shape(batch.results) == [DONE] * 20
    promises.check(batch.id, batch.results)


async def test_a_call_is_said_to_start_only_once_it_is_approved(
    promises: PromiseObserver,
) -> None:
    """§4.7: `CallStarted` is not told while somebody is asked."""
    desk = Desk()
    quick = ScriptedTool(give("ran"), name="quick")
    async with ToolRunner([quick.tool], approve=desk.approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("quick")) as batch:
                await desk.wait_asked("id-0")
                assert not any(isinstance(e, CallStarted) for e in promises.events)
                desk.answer("id-0")
    assert any(isinstance(e, CallStarted) for e in promises.events)
    promises.check(batch.id, batch.results)


# -- what waiting does not hold ------------------------------------------------


@pytest.mark.parametrize("limit", ["max_concurrency", "tool's cap", "writes", "max_threads"])
async def test_waiting_for_an_answer_holds_nothing(
    limit: str, promises: PromiseObserver
) -> None:
    """§3.4, §4.7: no slot, no claim, no thread: other batches run through meanwhile."""
    desk = Desk()
    desk.answer("free")
    options: dict[str, Any] = {
        "tool's cap": {"max_concurrency": 1},
        "writes": {"writes": "the file"},
    }.get(limit, {})
    limits: dict[str, Any] = {limit: 1} if limit.startswith("max_") else {}
    tool = Tool(lambda: "ran", name="tool", **options)
    async with ToolRunner(
        [tool], approve=desk.approve, observers=[promises], **limits
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("tool")) as waiting:
                await desk.wait_asked("id-0")
                for _ in range(3):
                    assert shape(await runner.run([ToolCall("free", "tool")])) == [DONE]
                desk.answer("id-0")
    assert shape(waiting.results) == [DONE]


async def test_conflicting_calls_keep_call_order_while_an_earlier_one_is_asked_for(
    promises: PromiseObserver,
) -> None:
    """§4.7: those that conflict stand behind it, those that do not overtake."""
    desk, held = Desk(), Held()
    desk.answer("read before", "write 2", "read after", "elsewhere")
    tools = [
        held.tool("read", reads=lambda key: key),
        held.tool("write", writes=lambda key: key),
    ]

    def call(call_id: str, key: str) -> ToolCall:
        return ToolCall(call_id, call_id.split()[0], {"key": key})

    async with ToolRunner(tools, approve=desk.approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(call("read before", "a"))
                batch.submit(call("write 1", "a"))
                second = batch.submit(call("write 2", "a"))
                third = batch.submit(call("read after", "a"))
                batch.submit(ToolCall("elsewhere", "read", {"key": "b"}))
                await held.wait_started("read before", "elsewhere")
                assert sorted(held.started) == ["elsewhere", "read before"]
                kinds = {w.call.id: w.kind for w in runner.statistics().waiting_calls}
                assert kinds == {
                    "write 1": "approval",
                    "write 2": "order",
                    "read after": "order",
                }
                assert "waits behind" in second.explain()
                # The others' reads and writes are not held up by this line.
                async with runner.open_batch() as other:
                    other.submit(call("read before", "a"))
                    held.end("read before", "elsewhere")
                desk.answer("write 1")
                await held.wait_started("write 1")
                assert not {"write 2", "read after"} & set(held.started)
                held.end("write 1")
                await held.wait_started("write 2")
                assert third.result is None
                held.end("write 2", "read after")
    assert shape(batch.results) == [DONE] * 5


@pytest.mark.parametrize("end", ["denied", "failed", "cancelled"])
async def test_who_stood_behind_goes_on_when_the_first_does_not_run(
    end: str, promises: PromiseObserver
) -> None:
    """§4.7: a no, a mistake or a cancel frees the line as a yes does."""
    desk, held = Desk(), Held()
    desk.answer("second")
    held.end("second")
    async with ToolRunner(
        [held.tool("write", writes="a")], approve=desk.approve, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                first = batch.submit(ToolCall("first", "write"))
                second = batch.submit(ToolCall("second", "write"))
                await desk.wait_asked("first", "second")
                assert second.result is None
                match end:
                    case "denied":
                        desk.answer("first", answer=False)
                    case "failed":
                        desk.answer("first", answer=None)
                    case _:
                        assert first.cancel() is True
                assert (await second.wait()).value == "second"
    assert not batch.results[0].started


# -- cut while asked -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    "stop", ["interrupt", "supersede", "call.cancel", "caller", "aclose", "sibling"]
)
async def test_a_cut_while_pending_settles_at_once_with_its_own_reason(
    kind: str, stop: str, promises: PromiseObserver
) -> None:
    """§3.4, P2, P6: not started, with the true reason; the async approver is cancelled."""
    desk = Desk()
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")

    def blocking(call: ToolCall) -> bool:
        if call.name != "fails":
            gate.tool.func()
        return True

    async def on_desk(call: ToolCall) -> Any:
        return True if call.name == "fails" else await desk.approve(call)

    def fails() -> None:
        raise ValueError

    approve: Any = blocking if kind == "sync" else on_desk
    runner = ToolRunner(
        [quick.tool, Tool(fails)], approve=approve, close_timeout=0.0, observers=[promises]
    )
    batches: list[ToolBatch] = []
    with letting_go(gate), anyio.fail_after(LIVENESS):
        with anyio.CancelScope() as scope:
            async with runner.open_batch(fail_fast=True) as batch:
                batches.append(batch)
                if stop == "sibling" and kind == "sync":
                    batch.submit(ToolCall("fails", "fails"))  # asked for before
                handle = batch.submit(ToolCall("asked", "quick"))
                if stop != "sibling" or kind == "async":
                    await (gate.wait_started() if kind == "sync" else desk.wait_asked("asked"))
                match stop:
                    case "interrupt":
                        assert batch.interrupt() is True
                    case "supersede":
                        assert batch.supersede() is True
                    case "call.cancel":
                        assert handle.cancel() is True
                        assert handle.cancel() is False
                    case "caller":
                        scope.cancel()
                    case "aclose":
                        await runner.aclose()
                    case _ if kind == "async":
                        batch.submit(ToolCall("fails", "fails"))
                    case _:
                        pass
        reason = {
            "interrupt": "user_interrupt",
            "supersede": "superseded",
            "call.cancel": "call_cancelled",
            "caller": "caller_cancelled",
            "aclose": "runner_closed",
            "sibling": "sibling_failed",
        }[stop]
        (asked,) = [r for r in batches[0].results if r.call.id == "asked"]
        assert shape([asked]) == [("interrupted", reason, False, False)]
        await anyio.wait_all_tasks_blocked()
        if kind == "async":
            assert desk.withdrawn == ["asked"]
    assert quick.started == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_was_cancelled_before_it_was_asked_for_is_not_asked_for(
    kind: str, promises: PromiseObserver
) -> None:
    """P4: nobody is bothered about a call that is over."""
    asked: list[str] = []
    quick = ScriptedTool(give("ran"), name="quick")

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        return True

    async with ToolRunner(
        [quick.tool], approve=as_kind(kind, approve), observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.interrupt()
                batch.submit(ToolCall("late", "quick"))
    assert shape(batch.results) == [NOT_STARTED]
    assert asked == []


async def test_nobody_is_asked_about_a_batch_that_was_interrupted_at_the_first_prompt(
    promises: PromiseObserver,
) -> None:
    """§3.4: an interrupt cancels the questions that have not been put, too."""
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    idle = threading.Barrier(4)  # threads that are there at once when a place gets free
    await run_batch(calls(*["idle"] * 4), {"idle": lambda: idle.wait(LIVENESS)})
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [quick.tool], approve=at_a_gate(gate), observers=[promises]
        ) as runner:
            async with runner.open_batch(calls(*["quick"] * 1000)) as batch:
                await gate.wait_started()
                batch.interrupt()
        # (`aclose` has seen the batch through: nothing of it is on its way any more)
        assert shape(batch.results) == [NOT_STARTED] * 1000
        gate.open()
        await gate.wait_ended()
        assert gate.started == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_approver_itself_may_stop_the_batch(
    kind: str, promises: PromiseObserver
) -> None:
    """§3.1: "stop everything" in the dialogue: its batch ends, others are not touched."""
    quick = ScriptedTool(give("ran"), name="quick")
    batches: list[ToolBatch] = []

    def approve(call: ToolCall) -> bool:
        if call.id == "id-1":
            assert batches[0].interrupt("stop everything") is True
            assert batches[0].interrupt() is False
        return True

    async with ToolRunner(
        [quick.tool], approve=as_kind(kind, approve), observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batches.append(batch)
                await batch.submit(ToolCall("id-0", "quick")).wait()
                batch.submit(ToolCall("id-1", "quick"))
                batch.submit(ToolCall("id-2", "quick"))
            assert shape(batch.results)[:2] == [DONE, NOT_STARTED]
            assert shape(await runner.run([ToolCall("other", "quick")])) == [DONE]
    assert "stop everything" in batch.results[1].text
    promises.check(batch.id, batch.results)


# -- time limits ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async", "deaf"])
async def test_an_answer_that_does_not_come_in_time(
    kind: str, promises: PromiseObserver
) -> None:
    """§3.4: `approval_timeout` settles with its own reason; a late yes starts nothing."""
    gate = GatedTool("input")
    desk = Desk()
    quick = ScriptedTool(give("ran"), name="quick")
    release = anyio.Event()
    late: list[str] = []

    async def deaf(call: ToolCall) -> bool:
        while not release.is_set():
            try:
                await release.wait()
            except anyio.get_cancelled_exc_class():
                pass
        late.append(call.id)
        return True

    approve: Any = {"sync": at_a_gate(gate), "async": desk.approve, "deaf": deaf}[kind]
    with letting_go(gate):
        async with ToolRunner(
            [quick.tool], approve=approve, approval_timeout=0.05, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("quick")) as batch:
                    pass
                assert shape(batch.results) == [
                    ("timed_out", "approval_timeout", False, False)
                ]
                await anyio.wait_all_tasks_blocked()
                assert desk.withdrawn == (["id-0"] if kind == "async" else [])
                gate.open()
                release.set()
                if kind == "sync":
                    await gate.wait_ended()
                await anyio.wait_all_tasks_blocked()
                assert late == (["id-0"] if kind == "deaf" else [])
    assert quick.started == 0
    promises.check(batch.id, batch.results)


async def test_who_has_to_queue_for_the_terminal_loses_no_time(
    promises: PromiseObserver,
) -> None:
    """§3.4: an answer's time runs from the asking on, not from the submission."""
    gate = GatedTool("input")
    asked: list[str] = []
    quick = ScriptedTool(give("ran"), name="quick")

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        if call.id == "id-0":
            gate.tool.func()
        return True

    with letting_go(gate):
        async with ToolRunner(
            [quick.tool], approve=approve, approval_timeout=0.2, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                results = await runner.run(calls("quick", "quick"))
    assert shape(results) == [("timed_out", "approval_timeout", False, False), DONE]
    assert asked == ["id-0", "id-1"]


# -- what is left of a question ------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    """Pass the loop on until something has happened that nobody tells of."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


@pytest.mark.parametrize("stop", ["interrupt", "cancel", "timeout"])
async def test_threads_that_are_left_in_a_question_are_seen_and_capped(
    stop: str, promises: PromiseObserver
) -> None:
    """§3.4, §4.5: they count as detached until they come back; then nobody is asked."""
    gate = GatedTool("input")
    quick = Tool(lambda: "ran", name="quick")
    with letting_go(gate):
        async with ToolRunner(
            [quick],
            approve=at_a_gate(gate),
            approval_timeout=0.05 if stop == "timeout" else None,
            max_detached=3,
            max_threads=1,
            observers=[promises],
        ) as runner:
            for n in range(1, 4):
                with anyio.fail_after(LIVENESS / 2):
                    async with runner.open_batch([ToolCall(f"asked {n}", "quick")]) as batch:
                        await gate.wait_started(n)
                        if stop == "interrupt":
                            batch.interrupt()
                        elif stop == "cancel":
                            assert batch.cancel(f"asked {n}") == 1
                assert not batch.results[0].started
                left = [f"asked {i}" for i in range(1, n + 1)]
                await until(
                    lambda left=left: (  # type: ignore[misc]
                        [d.call.id for d in runner.statistics().detached] == left
                    )
                )
            for _ in range(3):
                with anyio.fail_after(LIVENESS / 2):
                    results = await runner.run(calls("quick", "quick"))
                assert shape(results) == [("failed", "too_many_detached", False, False)] * 2
                assert "quick ×3" in results[0].text
            assert (gate.started, len(runner.statistics().detached)) == (3, 3)
            gate.open()
            await until(lambda: runner.statistics().detached == ())
            with anyio.fail_after(LIVENESS / 2):
                assert shape(await runner.run(calls("quick", "quick"))) == [DONE, DONE]


async def test_a_full_runner_asks_nobody_about_a_call_on_the_loop(
    promises: PromiseObserver,
) -> None:
    """§3.4, §4.5: it is the question that needs a thread, whatever the call needs."""
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    with letting_go(gate):
        async with ToolRunner(
            [quick.tool], approve=at_a_gate(gate), max_detached=1, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("quick")) as batch:
                    await gate.wait_started()
                    batch.interrupt()
                await until(lambda: len(runner.statistics().detached) == 1)
                results = await runner.run(calls("quick"))
            assert shape(results) == [("failed", "too_many_detached", False, False)]
            assert (gate.started, quick.started) == (1, 0)
            gate.open()
            await until(lambda: runner.statistics().detached == ())
            with anyio.fail_after(LIVENESS / 2):
                assert shape(await runner.run(calls("quick"))) == [DONE]


async def test_a_refused_question_that_is_withdrawn_at_that_moment_holds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P10: its thread was left, and counts as detached; it comes back without having asked."""
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    begun, go_on = threading.Event(), threading.Event()
    with letting_go(gate):
        async with ToolRunner([quick.tool], approve=at_a_gate(gate), max_detached=1) as runner:
            async with runner.open_batch(calls("quick")) as batch:
                await gate.wait_started()
                batch.interrupt()
            await until(lambda: len(runner.statistics().detached) == 1)
            begin = Question.begin

            def begin_and_wait(self: Question) -> bool:
                may = begin(self)
                begun.set()
                assert go_on.wait(LIVENESS)
                return may

            monkeypatch.setattr(Question, "begin", begin_and_wait)
            async with runner.open_batch(calls("quick")) as batch:
                assert await anyio.to_thread.run_sync(begun.wait, LIVENESS)
                batch.interrupt()
            await until(lambda: len(runner.statistics().detached) == 2)
            go_on.set()
            await until(lambda: len(runner.statistics().detached) == 1)
            gate.open()
            await until(lambda: runner.statistics().detached == ())
    assert gate.started == 1


async def test_who_waits_for_detached_work_hears_of_an_approver_that_comes_back() -> None:
    """§4.5: what is counted as detached is waited for, and no longer than it lasts."""
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    with letting_go(gate):
        async with ToolRunner([quick.tool], approve=at_a_gate(gate)) as runner:
            async with runner.open_batch(calls("quick")) as batch:
                await gate.wait_started()
                batch.interrupt()
            await until(lambda: len(runner.statistics().detached) == 1)
            with anyio.fail_after(LIVENESS / 8):
                async with anyio.create_task_group() as group:
                    group.start_soon(runner.wait_detached)
                    await anyio.wait_all_tasks_blocked()
                    gate.open()


@pytest.mark.parametrize("stop", ["timeout", "interrupt"])
async def test_an_awaitable_answer_that_nobody_wants_any_more_is_closed(
    stop: str, monkeypatch: pytest.MonkeyPatch, promises: PromiseObserver
) -> None:
    """§3.4: withdrawn before the task with the rest of the question has made its first step."""
    quick = ScriptedTool(give("ran"), name="quick")
    batches: list[ToolBatch] = []
    land = Question.land_awaitable

    async def later() -> bool:
        await anyio.sleep(LIVENESS * 2)
        return True

    def land_and_withdraw(question: Question) -> None:
        land(question)
        if stop == "timeout":
            question._on_timeout()
        else:
            batches[0].interrupt()

    monkeypatch.setattr(Question, "land_awaitable", land_and_withdraw)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", RuntimeWarning)
        async with ToolRunner(
            [quick.tool], approve=lambda _: later(), approval_timeout=600, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    batches.append(batch)
                    batch.submit(ToolCall("0", "quick"))
        await anyio.wait_all_tasks_blocked()
        (result,) = batch.results
        gc.collect()
    assert not result.started and result.reason is not None
    assert result.reason.kind == (
        "approval_timeout" if stop == "timeout" else "user_interrupt"
    )
    assert [str(w.message) for w in warned if "never awaited" in str(w.message)] == []


async def test_the_batchs_clock_stands_still_while_a_call_with_a_path_is_asked_for(
    promises: PromiseObserver,
) -> None:
    """§4.10: also where its asking had to wait until its paths were known."""
    desk = Desk()
    limit = 1.0
    tools = [
        Tool(lambda: "ran", name="path", writes=Path("/a")),
        Tool(lambda: "ran", name="plain", writes="a"),
    ]
    async with ToolRunner(tools, approve=desk.approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("path", "plain"), timeout=limit) as batch:
                await desk.wait_asked("id-0", "id-1")
                await anyio.sleep(1.2 * limit)
                desk.answer("id-0", "id-1")
    assert shape(batch.results) == [DONE, DONE]
