"""Kind R of the cases from the field: arguments, outputs, empty batches."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    Event,
    InvalidArgumentsError,
    Status,
    ToolCall,
    ToolResult,
    ToolRunner,
    open_batch,
    run_batch,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import PromiseObserver


def openai_message(*arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": "add", "arguments": text},
            }
            for i, text in enumerate(arguments)
        ],
    }


def anthropic_message(*arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": f"call_{i}", "name": "add", "input": given}
            for i, given in enumerate(arguments)
        ],
    }


def assert_paired(ids: list[str], results: list[ToolResult]) -> None:
    """Check that the next request is one that a provider takes."""
    messages = openai_chat.render_results(results)
    assert [(m["role"], m["tool_call_id"]) for m in messages] == [("tool", i) for i in ids]
    blocks = anthropic.render_results(results)["content"]
    assert [(b["type"], b["tool_use_id"]) for b in blocks] == [("tool_result", i) for i in ids]
    contents = [item["content"] for item in [*messages, *blocks]]
    assert all(isinstance(content, str) and content for content in contents)
    assert json.dumps(messages).encode() and json.dumps(blocks).encode()


class Adder:
    """A tool that knows how often it ran."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    async def add(self, a: int, b: int) -> int:
        self.runs.append((a, b))
        return a + b


# -- R1 ------------------------------------------------------------------------


@pytest.mark.parametrize("fail_fast", [False, True])
@pytest.mark.parametrize("broken", ['{"a": 1,', "[1, 2]", '"{}"', "nonsense", '{"a": 1}'])
async def test_r1_broken_arguments_harm_their_own_call_only(
    broken: str, fail_fast: bool, promises: PromiseObserver
) -> None:
    """R1, P1: one invalid result, never started; the two others run, fail-fast or not."""
    adder = Adder()
    asked = openai_chat.parse_calls(
        openai_message('{"a": 1, "b": 2}', broken, '{"a": 3, "b": 4}')
    )
    async with ToolRunner([adder.add], observers=[promises]) as runner:
        async with runner.open_batch(asked, fail_fast=fail_fast) as batch:
            pass
    first, second, third = batch.results
    assert (first.value, third.value) == (3, 7)
    assert sorted(adder.runs) == [(1, 2), (3, 4)]
    assert second.status is Status.INVALID
    assert second.reason is not None and second.reason.kind == "bad_arguments"
    assert (second.started, second.effects, second.is_error) == (False, "none", True)
    assert "not started" in second.text
    promises.check(batch.id, batch.results)


# -- R2 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {}, [1, 2], "{}{}", 7, {"INVALID_JSON": '{"a": '}],
    ids=repr,
)
async def test_r2_a_call_with_invalid_arguments_is_paired(given: Any) -> None:
    """R2, P1: it has its one result, so the provider takes the next request."""
    adder = Adder()
    text = given if isinstance(given, str) else json.dumps(given)
    for asked in (
        openai_chat.parse_calls(openai_message(text)),
        anthropic.parse_calls(anthropic_message(given)),
    ):
        results = await run_batch(asked, [adder.add])
        assert [r.status for r in results] == [Status.INVALID]
        assert_paired(["call_0"], results)
        (block,) = anthropic.render_results(results)["content"]
        assert block["is_error"] is True
    assert adder.runs == []


# -- R3 ------------------------------------------------------------------------

WHOLE = '{"a": 12, "b": -3.5e2, "c": "x\\u00e9\\"y", "d": [true, null, {"e": {}}]}'


async def test_r3_arguments_cut_anywhere_give_the_parse_error() -> None:
    """R3, P1: JSON cut at any place never raises and never runs; the result says why."""
    runs: list[dict[str, Any]] = []

    async def add(**arguments: Any) -> str:
        runs.append(arguments)
        return "ran"

    # From 1: nothing at all means "no arguments".
    cut = [WHOLE[:end] for end in range(1, len(WHOLE))]
    asked = openai_chat.parse_calls(openai_message(*cut, WHOLE))
    results = await run_batch(asked, [add])
    *broken, whole = results
    assert whole.value == "ran"
    assert runs == [json.loads(WHOLE)]
    for result in broken:
        assert result.status is Status.INVALID
        assert isinstance(result.error, InvalidArgumentsError)
        assert result.call.parse_error is not None
        assert result.call.parse_error in result.text
        assert "not valid JSON" in result.text
    assert_paired([f"call_{i}" for i in range(len(WHOLE))], results)


async def test_r3_arguments_that_the_provider_reports_as_cut() -> None:
    """R3, P1: the same where the provider wraps the broken text, as Anthropic does."""
    adder = Adder()
    asked = anthropic.parse_calls(anthropic_message({"INVALID_JSON": '{"a": 1, "b"'}))
    results = await run_batch(asked, [adder.add])
    assert results[0].status is Status.INVALID
    assert "not valid JSON" in results[0].text
    assert adder.runs == []
    assert_paired(["call_0"], results)


# -- R6 ------------------------------------------------------------------------


class BadStr:
    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class NotAStr:
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 - what a careless class may do

    __repr__ = __str__


class Opaque:
    """Python's own text for it would show an address."""


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (BadStr(), "BadStr"),
        (NotAStr(), "NotAStr"),
        (Opaque(), "Opaque"),
        ([BadStr()], "list"),
        ({"key": BadStr()}, "dict"),
        (10**5000, "int"),
        (nested(100_000), "list"),
    ],
    ids=["str raises", "str gives no str", "opaque", "in a list", "in a dict", "int", "deep"],
)
@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_r6_a_value_without_a_text_is_rendered_by_its_types_name(
    value: Any, name: str, carrier: str
) -> None:
    """R6, P1: `text` and `render_results` never raise, and say which type it was."""

    def give() -> Any:
        return value

    async def give_async() -> Any:
        return value

    def plain() -> str:
        return "plain"

    tools: Any = {"give": give if carrier == "thread" else give_async, "plain": plain}
    asked = [ToolCall("1", "plain"), ToolCall("2", "give"), ToolCall("3", "plain")]
    results = await run_batch(asked, tools)
    assert [r.status for r in results] == [Status.COMPLETED] * 3
    assert results[1].value is value
    assert f"a value of type {name}" in results[1].text
    assert_paired(["1", "2", "3"], results)
    messages = openai_chat.render_results(results)
    assert [m["content"] for m in messages] == ["plain", results[1].text, "plain"]


async def test_r6_an_error_without_a_text_is_rendered_by_its_types_name() -> None:
    """R6, P1: the same for what a tool raises."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    async def give() -> None:
        raise Unspeakable

    results = await run_batch([ToolCall("1", "give")], [give])
    assert results[0].status is Status.FAILED
    assert "Unspeakable" in results[0].text
    assert_paired(["1"], results)


# -- R8 ------------------------------------------------------------------------


async def test_r7_results_of_a_turn_keep_to_a_budget() -> None:
    """R7: 8 × 50 KB are cut to fit the turn, each says by how much, and the whole is kept."""
    stored: dict[int, str] = {}

    def read(n: int) -> str:
        return f"{n}" * 50_000

    def spill(result: ToolResult) -> str:
        stored[result.index] = result.text
        return f"result-{result.index}"

    calls = [ToolCall(f"call_{n}", "read", {"n": n}) for n in range(8)]
    results = await run_batch(calls, [read])
    messages = openai_chat.render_results(
        results, max_chars_per_result=10_000, max_chars_total=40_000, spill=spill
    )
    texts = [message["content"] for message in messages]
    assert sum(map(len, texts)) <= 40_000
    assert all("characters left out; the whole: result-" in text for text in texts)
    assert stored == {n: f"{n}" * 50_000 for n in range(8)}


async def test_r8_a_batch_of_nothing_is_nothing() -> None:
    """R8, P1: [] at once, no thread, and no event but start and end."""
    threads = set(threading.enumerate())
    events: list[Event] = []
    adder = Adder()
    async with ToolRunner([adder.add, print], observers=[events.append]) as runner:
        assert await runner.run([]) == []
        async with runner.open_batch([]) as sealed:
            assert await sealed.wait() == []
            assert sealed.results == []
        async with runner.open_batch() as submitted:
            pass
        assert submitted.results == submitted.snapshot() == submitted.calls == []
        assert not sealed.interrupted and not submitted.interrupted
        assert runner.statistics().open_batches == 0
    assert await run_batch([]) == []
    assert [type(e) for e in events] == [BatchStarted, BatchSettled] * 3
    assert set(threading.enumerate()) <= threads
    assert openai_chat.render_results([]) == []


async def test_r8_nothing_interrupted_is_nothing() -> None:
    """R8, P1: also when it is interrupted before anything could start."""
    threads = set(threading.enumerate())
    events: list[Event] = []
    async with ToolRunner([print], observers=[events.append]) as runner:
        async with runner.open_batch([]) as complete:
            # Sealed and settled: there is nothing to stop.
            assert complete.interrupt() is False
        assert [type(e) for e in events] == [BatchStarted, BatchSettled]
        assert complete.results == [] and not complete.interrupted
        events.clear()
        async with runner.open_batch() as still_open:
            assert still_open.interrupt() is True
            assert await still_open.wait() == []
        assert still_open.results == [] and still_open.interrupted
    # Once the runner is closed the observers have heard all.
    assert [type(e) for e in events] == [BatchStarted, BatchInterrupted, BatchSettled]
    assert set(threading.enumerate()) <= threads


async def test_r8_nothing_under_a_timeout_or_fail_fast() -> None:
    """R8, P1: options change nothing; no timer is left that would end it later."""
    async with open_batch([], timeout=0.0, fail_fast=True) as batch:
        pass
    assert batch.results == []
    assert batch.reason is None
