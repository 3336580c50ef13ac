"""
Cases O: approvals that are pending at a cancel.

O3, whose approver has thirty seconds of its own, is in `virtual/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import ToolBatch, ToolCall, ToolResult, ToolRunner
from anyio_toolbatch.testing import GatedTool, PromiseObserver, ScriptedTool, give

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Prompt:
    """An async approver that waits for an answer, as a dialogue on a screen does."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.open: list[str] = []
        self.closed: list[str] = []
        """Those that were told that no answer is wanted any more."""
        self.gone: list[str] = []
        self._deaf = deaf
        self._asked = anyio.Event()
        self._answered = anyio.Event()

    async def approve(self, call: ToolCall) -> bool:
        self.open.append(call.id)
        self._asked.set()
        while True:
            try:
                await self._answered.wait()
                break
            except anyio.get_cancelled_exc_class():
                self.closed.append(call.id)
                if not self._deaf:
                    raise
        self.gone.append(call.id)
        return True

    async def wait_asked(self) -> None:
        with anyio.fail_after(LIVENESS):
            await self._asked.wait()
            await anyio.wait_all_tasks_blocked()

    def say_yes(self) -> None:
        self._answered.set()


@contextlib.contextmanager
def answering(*prompts: Prompt | GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, answer: a question that stays would hold the loop's end."""
    try:
        yield
    finally:
        for prompt in prompts:
            prompt.say_yes() if isinstance(prompt, Prompt) else prompt.open()


def terminal(gate: GatedTool) -> Callable[[ToolCall], bool]:
    """Return a sync approver, which is blocked in `input` until the gate is opened."""

    def approve(_: ToolCall) -> bool:
        gate.tool.func()
        return True

    return approve


# -- O1 ------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["interrupt", "runner", "cancel"])
async def test_o1_the_prompt_goes_when_the_call_goes(
    stop: str, promises: PromiseObserver
) -> None:
    """O1, §3.4: the approver is cancelled, the call is not started, the next turn can ask."""
    prompt = Prompt()
    quick = ScriptedTool(give("ran"), name="quick")
    async with ToolRunner(
        [quick.tool], approve=prompt.approve, observers=[promises]
    ) as runner:
        with answering(prompt), anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("quick")) as batch:
                await prompt.wait_asked()
                match stop:
                    case "interrupt":
                        assert batch.interrupt("never mind") is True
                    case "runner":
                        assert runner.interrupt("never mind") == 1
                    case _:
                        assert batch.cancel("id-0", "never mind") == 1
            kind = "call_cancelled" if stop == "cancel" else "user_interrupt"
            assert shape(batch.results) == [("interrupted", kind, False, False)]
            assert "not started" in batch.results[0].text
            assert "never mind" in batch.results[0].text
            await anyio.wait_all_tasks_blocked()
            assert prompt.closed == ["id-0"]
            assert quick.started == 0
            prompt.say_yes()  # to the next one
            assert shape(await runner.run(calls("quick"))) == [DONE]
    assert prompt.open == ["id-0", "id-0"]
    promises.check(batch.id, batch.results)


async def test_o1_a_prompt_in_a_terminal_blocks_no_later_one(
    promises: PromiseObserver,
) -> None:
    """O1, §3.4: a blocked `input` cannot be cancelled; the next turn's question is asked."""
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    with answering(gate):
        async with ToolRunner(
            [quick.tool], approve=terminal(gate), observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls(*["quick"] * 50)) as batch:
                    await gate.wait_started()
                    batch.interrupt()
                assert shape(batch.results) == [NOT_STARTED] * 50
                assert gate.ended == 0
                async with runner.open_batch(calls("quick")) as later:
                    await gate.wait_started(2)
                    gate.let_through(2)
                assert shape(later.results) == [DONE]
        # Of the batch that was stopped nobody was asked about another call.
        assert (gate.started, quick.started) == (2, 1)
    promises.check(batch.id, batch.results)


# -- O2 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "deaf", "sync"])
async def test_o2_an_approver_that_never_answers_holds_no_turn(
    kind: str, promises: PromiseObserver
) -> None:
    """O2, P2: the stop returns at once, also where the approver does not hear of it."""
    prompt = Prompt(deaf=kind == "deaf")
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    with answering(prompt, gate):
        async with ToolRunner(
            [quick.tool],
            approve=terminal(gate) if kind == "sync" else prompt.approve,
            observers=[promises],
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("quick")) as batch:
                    await (gate.wait_started() if kind == "sync" else prompt.wait_asked())
                    batch.interrupt()
                assert shape(batch.results) == [NOT_STARTED]
                assert gate.ended == 0
                assert prompt.gone == []
            if kind != "sync":  # the thread that asks is seen until it comes back
                assert runner.statistics().detached == ()
    promises.check(batch.id, batch.results)


# -- O5 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deaf", "sync"])
@pytest.mark.parametrize("stop", ["interrupt", "caller", "cancel"])
async def test_o5_a_late_yes_is_no_consent(
    kind: str, stop: str, promises: PromiseObserver
) -> None:
    """O5, P4, P5: the yes that comes after the stop is ignored; the tool never starts."""
    prompt = Prompt(deaf=True)
    gate = GatedTool("input")
    quick = ScriptedTool(give("ran"), name="quick")
    with answering(prompt, gate):
        async with ToolRunner(
            [quick.tool],
            approve=terminal(gate) if kind == "sync" else prompt.approve,
            observers=[promises],
        ) as runner:
            batches: list[ToolBatch] = []
            with anyio.fail_after(LIVENESS), anyio.CancelScope() as scope:
                async with runner.open_batch(calls("quick")) as batch:
                    batches.append(batch)
                    await (gate.wait_started() if kind == "sync" else prompt.wait_asked())
                    match stop:
                        case "interrupt":
                            batch.interrupt()
                        case "cancel":
                            batch.cancel("id-0")
                        case _:
                            scope.cancel()
            expected = {
                "interrupt": "user_interrupt",
                "cancel": "call_cancelled",
                "caller": "caller_cancelled",
            }[stop]
            before = batches[0].results
            assert shape(before) == [("interrupted", expected, False, False)]
            prompt.say_yes()
            gate.open()
            if kind == "sync":
                await gate.wait_ended()
            # A whole turn later there is no trace of it.
            assert shape(await runner.run(calls("quick"))) == [DONE]
            await anyio.wait_all_tasks_blocked()
            assert quick.started == 1
            assert batches[0].results == before
    promises.check(batches[0].id, before)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_o5_a_yes_on_its_way_at_the_stop_is_late(
    kind: str, promises: PromiseObserver
) -> None:
    """O5, P4: the approver itself stops the batch, and then says yes: nothing starts."""
    quick = ScriptedTool(give("ran"), name="quick")
    batches: list[ToolBatch] = []

    def approve(_: ToolCall) -> bool:
        assert batches[0].interrupt("from the dialogue") is True
        return True

    async def approve_async(call: ToolCall) -> bool:
        return approve(call)

    async with ToolRunner(
        [quick.tool],
        approve=approve if kind == "sync" else approve_async,
        observers=[promises],
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batches.append(batch)
                batch.submit(calls("quick")[0])
        assert shape(batch.results) == [NOT_STARTED]
        assert "from the dialogue" in batch.results[0].text
        assert quick.started == 0
    promises.check(batch.id, batch.results)


# -- O7 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_o7_a_newer_message_ends_the_prompt_and_says_why(
    kind: str, promises: PromiseObserver
) -> None:
    """O7, §3.1: `supersede` settles what is asked for as superseded; the approver is told."""
    prompt = Prompt()
    gate = GatedTool("input")
    tool = ScriptedTool(give("ran"), name="quick")
    options: dict[str, Any] = {"approve": terminal(gate) if kind == "sync" else prompt.approve}
    with answering(prompt, gate):
        async with ToolRunner([tool.tool], observers=[promises], **options) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("quick", "quick")) as batch:
                    await (gate.wait_started() if kind == "sync" else prompt.wait_asked())
                    assert batch.supersede("look at the other file") is True
            assert shape(batch.results) == [("interrupted", "superseded", False, False)] * 2
            for result in batch.results:
                assert "superseded by newer instructions" in result.text
                assert "look at the other file" in result.text
            assert batch.reason is not None
            assert (batch.reason.kind, batch.interrupted) == ("superseded", True)
            await anyio.wait_all_tasks_blocked()
            if kind == "async":
                assert sorted(prompt.closed) == ["id-0", "id-1"]
            assert tool.started == 0
    promises.check(batch.id, batch.results)
