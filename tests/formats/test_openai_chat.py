"""The OpenAI Chat format against payloads of OpenAI and compatible servers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch.formats.openai_chat import parse_calls, render_results, repair

FIXTURES = Path(__file__).parent.parent / "fixtures" / "openai_chat"
CASES = ["custom_tool", "duplicate_ids", "odd_arguments", "parallel", "single"]
PLACEHOLDER = (
    "Tool call interrupted by the user before it finished. "
    "It may have had side effects; its outcome is unknown."
)


def load(case: str) -> Any:
    return json.loads((FIXTURES / f"{case}.json").read_text(encoding="utf-8"))


def answer(call: ToolCall, index: int, content: str) -> ToolResult:
    """Return a result whose text ought to be `content`."""
    if content == PLACEHOLDER:
        cut = Reason("user_interrupt")
        return ToolResult(call, index, Status.INTERRUPTED, reason=cut)
    is_error = content.startswith("Error: ")
    value = content.removeprefix("Error: ")
    return ToolResult(call, index, Status.COMPLETED, value=value, is_error=is_error)


def answers(calls: list[ToolCall], expected: list[Any]) -> list[ToolResult]:
    texts = [entry["content"] for entry in expected]
    pairs = zip(calls, texts, strict=True)
    return [answer(call, index, text) for index, (call, text) in enumerate(pairs)]


def function_call(arguments: object, **other: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "a", "type": "function", "function": function, **other}


@pytest.mark.parametrize("case", ["custom_tool", "duplicate_ids", "parallel"])
def test_results_are_what_the_provider_takes(case: str) -> None:
    """J5, J7: one tool message per call, in call order, ids as given."""
    fixture = load(case)
    calls = parse_calls(fixture["assistant"])
    results = answers(calls, fixture["results"])
    assert render_results(results) == fixture["results"]


def test_content_is_text_where_the_provider_would_take_parts_too() -> None:
    """A text value is sent as the plain text that the fixture has as a text part."""
    fixture = load("single")
    (call,) = parse_calls(fixture["assistant"])
    (expected,) = fixture["results"]
    text = expected["content"][0]["text"]
    (message,) = render_results([answer(call, 0, text)])
    assert message == {**expected, "content": text}


@pytest.mark.parametrize("case", CASES)
def test_interrupted_results_are_what_the_provider_takes(case: str) -> None:
    """P1, P3: after an interrupt each call has its answer, finished work its own."""
    fixture = load(case)
    calls = parse_calls(fixture["assistant"])
    results = answers(calls, fixture["interrupted_results"])
    assert render_results(results) == fixture["interrupted_results"]


def test_error_mark_in_the_fixture_wording() -> None:
    """An answer that a tool marks as an error says so in its text."""
    fixture = load("odd_arguments")
    calls = parse_calls(fixture["assistant"])
    results = answers(calls, fixture["results"])
    assert {result.text for result in results} == {"could not run"}
    assert render_results(results) == fixture["results"]


def test_duplicate_and_empty_ids_are_kept() -> None:
    """J5: no call is dropped for its id; the arguments tell them apart."""
    calls = parse_calls(load("duplicate_ids")["assistant"])
    assert [call.id for call in calls] == ["edit:22", "edit:22", ""]
    assert [call.arguments for call in calls] == [{"f": "a"}, {"f": "b"}, {"f": "c"}]


def test_custom_call_hands_its_text_over_as_input() -> None:
    """Free text is no JSON: it is never parsed, also when it looks like JSON."""
    custom, function = parse_calls(load("custom_tool")["assistant"])
    assert custom == ToolCall("call_c1", "python", {"input": "print(1)\n"})
    assert function == ToolCall("call_c2", "get_time", {})
    body = {"name": "python", "input": '{"a": 1}'}
    (call,) = parse_calls([{"id": "c", "type": "custom", "custom": body}])
    assert call.arguments == {"input": '{"a": 1}'}


@pytest.mark.parametrize("text", [None, {"a": 1}, ["ls"], 3])
def test_custom_call_without_text_is_invalid(text: object) -> None:
    """R1: a custom call whose input is no text becomes an invalid call."""
    item = {"id": "c", "type": "custom", "custom": {"name": "python", "input": text}}
    (call,) = parse_calls([item])
    assert (call.id, call.name, call.arguments) == ("c", "python", {})
    assert call.parse_error is not None


def test_odd_arguments_parse_as_the_fixture_says() -> None:
    """R1, R3: what is no object is invalid, blanks are no arguments, the rest runs."""
    fixture = load("odd_arguments")
    calls = {call.id: call for call in parse_calls(fixture["assistant"])}
    assert list(calls) == [entry["id"] for entry in fixture["expected"]]
    for entry in fixture["expected"]:
        call, outcome = calls[entry["id"]], entry["parse"]
        if outcome == "invalid_json":
            assert call.parse_error is not None
            assert "not valid JSON" in call.parse_error
        elif outcome == "not_object":
            assert call.parse_error is not None
            assert "must be a JSON object" in call.parse_error
        else:
            assert call.parse_error is None
        if outcome.endswith("->{}"):
            assert call.arguments == {}
    assert calls["call_e7"].arguments == {"k": 2}
    assert math.isnan(calls["call_e8"].arguments["x"])
    assert calls["call_e9"].arguments == {"n": 123456789012345678901234567890}
    assert calls["call_e10"].arguments == {"text": "lone \ud83d surrogate"}
    assert calls["call_e12"].name == "no_such_tool"


def test_streamed_chunk_is_refused_with_the_remedy() -> None:
    """A chunk is no message: taken for one without calls it would lose them."""
    for chunk in load("stream_chunks")["chunks"]:
        with pytest.raises(ValueError, match="put the chunks together"):
            parse_calls(chunk)


def test_assembled_chunks_parse_even_without_an_arguments_piece() -> None:
    """A streamed call that never got a piece of arguments has none."""
    items: dict[int, dict[str, Any]] = {}
    for chunk in load("stream_chunks")["chunks"]:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            function = piece["function"]
            if piece["index"] not in items:
                items[piece["index"]] = {**piece, "function": dict(function)}
            else:
                so_far = items[piece["index"]]["function"]
                so_far["arguments"] += function["arguments"]
    calls = parse_calls({"role": "assistant", "tool_calls": list(items.values())})
    assert calls == [
        ToolCall("call_s0", "add", {"a": 1, "b": 2}),
        ToolCall("call_s1", "now", {}),
    ]


def test_arguments_that_a_server_sends_as_an_object() -> None:
    """Compatible servers that parse the arguments themselves are understood."""
    (call,) = parse_calls([function_call({"a": [1]})])
    assert call == ToolCall("a", "f", {"a": [1]})


@pytest.mark.parametrize("kind", [None, "", "Function"])
def test_call_with_a_function_and_no_proper_type(kind: str | None) -> None:
    """Older and compatible servers leave the type out, or spell it their way."""
    assert parse_calls([function_call("{}", type=kind)]) == [ToolCall("a", "f", {})]


def test_call_with_a_custom_body_and_no_type() -> None:
    """What is there decides where the type is missing."""
    item = {"id": "c", "function": None, "custom": {"name": "p", "input": "x"}}
    assert parse_calls([item]) == [ToolCall("c", "p", {"input": "x"})]


@pytest.mark.parametrize("function", [None, "{}", [], 5, True])
def test_call_whose_function_is_no_object_is_invalid(function: object) -> None:
    """R1: null in place of the function is not taken for "no arguments"."""
    (call,) = parse_calls([{"id": "a", "type": "function", "function": function}])
    assert (call.id, call.name, call.arguments) == ("a", "", {})
    assert call.parse_error is not None


@pytest.mark.parametrize("item", [None, "{}", [], 5, True])
def test_item_that_is_no_object_is_an_invalid_call(item: object) -> None:
    """R2: every item gets its answer, so that the next request has one per item."""
    calls = parse_calls({"role": "assistant", "tool_calls": [item, function_call("")]})
    assert [call.parse_error is None for call in calls] == [False, True]
    assert calls[0].wire is item or calls[0].wire == item


def test_first_choice_counts() -> None:
    """Of several choices one is the conversation: the first."""
    choices = [
        {"message": {"role": "assistant", "tool_calls": [function_call("{}", id=id_)]}}
        for id_ in ("first", "second")
    ]
    assert [call.id for call in parse_calls({"choices": choices})] == ["first"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"choices": []}, "no choices"),
        ({"choices": None}, "no choices"),
        ({"choices": [None]}, "no message"),
        ({"choices": [{"message": None}]}, "no message"),
        ({"role": "assistant", "tool_calls": {"id": "a"}}, "tool_calls must be a list"),
        ({"role": "tool", "content": "x", "tool_call_id": "a"}, "role 'tool'"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            "function_call is not supported",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1"}]},
            "not an Anthropic message",
        ),
    ],
)
def test_wrong_shape_is_named(message: object, reason: str) -> None:
    """Misuse raises at once and says what was wrong."""
    with pytest.raises(ValueError, match=reason):
        parse_calls(message)


@pytest.mark.parametrize("legacy", [None, {}, {"name": "", "arguments": ""}])
def test_empty_legacy_field_is_no_call(legacy: object) -> None:
    """SDKs and gateways send the deprecated field along, empty."""
    message = {"role": "assistant", "content": "hi", "function_call": legacy}
    assert parse_calls(message) == []


def content_of(status: Status, **options: Any) -> str:
    result = ToolResult(ToolCall("a", "f"), 0, status, **options)
    (message,) = render_results([result])
    content = message["content"]
    assert isinstance(content, str)
    return content


def test_raised_error_is_marked_in_the_text() -> None:
    """This format has no error mark: the text is the only place for it."""
    content = content_of(Status.FAILED, error=ValueError("no such file"))
    assert content == "Error: ValueError: no such file"


def test_text_that_says_so_itself_is_not_marked_twice() -> None:
    """The mark is not doubled, however the tool spells it."""
    content = content_of(Status.COMPLETED, value="ERROR: disk full", is_error=True)
    assert content == "ERROR: disk full"


def test_answer_that_is_no_error_is_never_marked() -> None:
    """A value goes to the model as the tool gave it."""
    assert content_of(Status.COMPLETED, value="2 errors found") == "2 errors found"


def test_cut_call_without_a_reason_is_not_marked() -> None:
    """A host's own placeholder stays a placeholder: nothing failed."""
    assert content_of(Status.INTERRUPTED) == "Tool call interrupted."


@pytest.mark.parametrize("role", ["user", "model", [], 5])
def test_calls_in_a_message_that_is_not_the_models(role: object) -> None:
    """A message that `repair` does not take for the model's runs nothing either."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": role, "content": None, "tool_calls": [call]}
    with pytest.raises(ValueError, match="not a message with the role"):
        parse_calls(message)
    assert repair([message]) == [message]
