"""The Gemini format against payloads of the provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import LateResult, Reason, Status, ToolCall, ToolResult
from anyio_toolbatch._model.results import make_result
from anyio_toolbatch.formats.gemini import parse_calls, render_late, render_results

FIXTURES = Path(__file__).parent.parent / "fixtures" / "gemini"
CASES = ["odd_arguments", "parallel", "single"]
PLACEHOLDER = (
    "Tool call interrupted by the user before it finished. "
    "It may have had side effects; its outcome is unknown."
)


def load(case: str) -> Any:
    return json.loads((FIXTURES / f"{case}.json").read_text(encoding="utf-8"))


def kept(call: ToolCall, index: int = 0) -> ToolResult:
    """The result that a batch gives a call which is left to go on."""
    reason, times = Reason("user_interrupt"), (0.0, 0.0)
    status = Status.INTERRUPTED
    flags = (True, True, True)
    return make_result(call, index, status, None, None, reason, *flags, None, *times, "kept")


def answer(call: ToolCall, index: int, expected: dict[str, Any]) -> ToolResult:
    """Return a result that ought to be rendered as `expected`."""
    response = expected["response"]
    if response.get("error") == PLACEHOLDER:
        cut = Reason("user_interrupt")
        return ToolResult(call, index, Status.INTERRUPTED, reason=cut)
    if expected.get("willContinue"):
        return kept(call, index)
    if "error" in response:
        error = response["error"]
        return ToolResult(call, index, Status.COMPLETED, value=error, is_error=True)
    value = response["output"] if response.keys() == {"output"} else response
    return ToolResult(call, index, Status.COMPLETED, value=value)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["results", "interrupted_results"])
def test_one_content_as_the_provider_takes_it(case: str, key: str) -> None:
    """P1, P3: as many responses as calls, ids echoed where there are any, errors marked."""
    fixture = load(case)
    calls = parse_calls(fixture["model"])
    expected = [part["functionResponse"] for part in fixture[key]["parts"]]
    pairs = zip(calls, expected, strict=True)
    results = [answer(call, index, one) for index, (call, one) in enumerate(pairs)]
    rendered = render_results(
        results,
        # The fixture's "c" is a function that is declared as NON_BLOCKING.
        non_blocking={"c"},
        content=lambda result: "part 1" if result == kept(calls[-1], 2) else None,
    )
    assert rendered == fixture[key]


def test_arguments_that_are_not_there() -> None:
    """Missing, null and empty are all none."""
    calls = parse_calls(load("odd_arguments")["model"])
    assert [call.arguments for call in calls] == [{}, {}, {}]
    assert [call.parse_error for call in calls] == [None, None, None]


def test_wire_keeps_the_thought_signature() -> None:
    """The part is kept whole: its signature belongs back into the history."""
    calls = parse_calls(load("parallel")["model"])
    assert calls[0].wire["thoughtSignature"] == "c2lnbmF0dXJl"


def test_names_of_the_sdk() -> None:
    """`function_call` is a call as well as `functionCall` is."""
    part = {"function_call": {"name": "f", "args": {"a": 1}, "id": None}, "text": None}
    assert parse_calls([part]) == [ToolCall("", "f", {"a": 1})]


def test_what_the_provider_runs_is_no_call() -> None:
    """Its own tools and code get no answer from here."""
    parts = [{"toolCall": {"id": "1"}}, {"executableCode": {"code": "1"}}, None, 5]
    assert parse_calls(parts) == []


@pytest.mark.parametrize("body", [5, "f", [1], True])
def test_call_that_is_no_object_is_invalid(body: object) -> None:
    """R2: it has its place and gets its result."""
    (call,) = parse_calls([{"functionCall": body}])
    assert (call.id, call.name) == ("", "") and call.parse_error is not None


@pytest.mark.parametrize("args", [[1], "{}", 5, True])
def test_args_that_are_no_object_are_invalid(args: object) -> None:
    """R1: the call is kept, and why it can't run."""
    (call,) = parse_calls([{"functionCall": {"name": "f", "args": args}}])
    assert (call.arguments, call.name) == ({}, "f")
    assert call.parse_error is not None


def test_piece_of_a_call_is_never_run() -> None:
    """R3: arguments that are still to come are not there."""
    body = {"name": "f", "partialArgs": [{"jsonPath": "$.a"}], "willContinue": True}
    (call,) = parse_calls([{"functionCall": body}])
    assert call.parse_error is not None


def response_of(value: Any, **options: Any) -> Any:
    result = ToolResult(ToolCall("", "f"), 0, Status.COMPLETED, value=value)
    (part,) = render_results([result], **options)["parts"]
    return part["functionResponse"]["response"]


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ("text", {"output": "text"}),
        ('{"a": 1}', {"output": '{"a": 1}'}),
        ({"a": [1]}, {"a": [1]}),
        ({}, {}),
        ([1, 2], {"output": [1, 2]}),
        (None, {"output": None}),
        (1.5, {"output": 1.5}),
        # These keys have a meaning of their own: a value must not pass for it.
        ({"error": 0, "rows": 3}, {"output": {"error": 0, "rows": 3}}),
        ({"output": "x"}, {"output": {"output": "x"}}),
        (float("nan"), {"output": "NaN"}),
        ({"a": "\ud83d"}, {"a": "\ufffd"}),
        ({1}, {"output": "[1]"}),
    ],
)
def test_value_is_given_as_the_data_that_it_is(value: Any, response: Any) -> None:
    """An object is the response, anything else its output; text where JSON ends."""
    assert response_of(value) == response


def test_value_that_is_too_long_is_cut_as_text() -> None:
    """R7: data cannot be cut; its text can."""
    (text,) = response_of({"rows": ["x" * 500]}, max_chars_per_result=100).values()
    assert len(text) <= 100 and "characters left out" in text


def test_own_blocks_are_parts_beside_the_text() -> None:
    """A picture is no text: it has a place of its own."""
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    result = ToolResult(ToolCall("", "f"), 0, Status.COMPLETED, value="x")
    blocks = [{"text": "see"}, image]
    (part,) = render_results([result], content=lambda _: blocks)["parts"]
    assert part["functionResponse"] == {
        "name": "f",
        "response": {"output": "see"},
        "parts": [image],
    }


def test_late_end_of_a_non_blocking_call() -> None:
    """A last response under the same id, which says that it is the last."""
    call = ToolCall("1", "f")
    late = LateResult("batch", call, 0, {"rows": 3}, None, 1.0)
    (part,) = render_late(late, scheduling="INTERRUPT")["parts"]
    assert part["functionResponse"] == {
        "name": "f",
        "id": "1",
        "response": {"rows": 3},
        "willContinue": False,
        "scheduling": "INTERRUPT",
    }


def test_kept_call_of_a_blocking_function_is_answered_for_good() -> None:
    """What is not declared as NON_BLOCKING has one response."""
    (part,) = render_results([kept(ToolCall("1", "f"))])["parts"]
    assert part["functionResponse"].keys() == {"name", "id", "response"}


def test_names_must_be_a_collection() -> None:
    """A str would be a collection of its letters."""
    with pytest.raises(TypeError, match="non_blocking"):
        render_results([], non_blocking="f")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "parts": []}, "role 'user'"),
        ({"parts": {"text": "x"}}, "parts must be a list"),
        ({"candidates": [{"content": {"role": "user", "parts": []}}]}, "role 'user'"),
        ([{"role": "user", "parts": []}], "list of messages"),
        ({"text": "x"}, "keys 'text'"),
    ],
)
def test_wrong_shape_is_named(message: object, reason: str) -> None:
    """Misuse raises at once and says what was wrong."""
    with pytest.raises(ValueError, match=reason):
        parse_calls(message)
