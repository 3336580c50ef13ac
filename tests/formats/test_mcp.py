"""The MCP format against messages of the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import Status, ToolCall, ToolResult
from anyio_toolbatch.formats.mcp import parse_calls, render_responses, render_results

FIXTURES = Path(__file__).parent.parent / "fixtures" / "mcp"


def load(case: str) -> Any:
    return json.loads((FIXTURES / f"{case}.json").read_text(encoding="utf-8"))


def answer(call: ToolCall, index: int, expected: dict[str, Any]) -> ToolResult:
    """Return a result that ought to be rendered as `expected`."""
    data = expected.get("structuredContent")
    if data is not None:
        value = data["result"] if data.keys() == {"result"} else data
    else:
        value = expected["content"][0]["text"]
    is_error = expected["isError"]
    return ToolResult(call, index, Status.COMPLETED, value=value, is_error=is_error)


@pytest.mark.parametrize("case", ["odd_arguments", "parallel", "single"])
def test_responses_as_the_protocol_has_them(case: str) -> None:
    """P1: one result per request, in call order, under the request's own id."""
    fixture = load(case)
    by_id = {r["id"]: r["result"] for r in fixture["responses"] if "result" in r}
    requests = [request for request in fixture["requests"] if request["id"] in by_id]
    calls = parse_calls(requests)
    expected = [by_id[request["id"]] for request in requests]
    for result in expected:
        # The protocol wants the data as a text, too.
        result["content"] = result["content"] or [
            {"type": "text", "text": json.dumps(result["structuredContent"])}
        ]
    pairs = zip(calls, expected, strict=True)
    results = [answer(call, index, one) for index, (call, one) in enumerate(pairs)]
    assert render_results(results) == expected
    assert [r["id"] for r in render_responses(results)] == [r["id"] for r in requests]


def test_requests_and_what_is_none() -> None:
    """Missing, null and empty arguments are none; ids are texts; the rest is passed over."""
    fixture = load("odd_arguments")
    log = [*fixture["notifications"], *fixture["requests"], *fixture["responses"]]
    assert parse_calls(log) == [
        ToolCall("21", "now"),
        ToolCall("22", "now"),
        ToolCall("r-23", "now"),
        ToolCall("24", "slow", {"s": 60}),
    ]
    assert parse_calls(fixture["requests"][0]) == [ToolCall("21", "now")]
    assert parse_calls(fixture["requests"][0]["params"]) == [ToolCall("", "now")]


@pytest.mark.parametrize("arguments", [[1], "{}", 5, True])
def test_arguments_that_are_no_object_are_invalid(arguments: object) -> None:
    """R1: the call is kept, and why it can't run."""
    (call,) = parse_calls({"name": "f", "arguments": arguments})
    assert call.arguments == {} and call.parse_error is not None


def test_request_without_params_is_invalid() -> None:
    """R2: it has its place and gets its result."""
    (call,) = parse_calls([{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}])
    assert (call.id, call.name) == ("1", "") and call.parse_error is not None


def result_of(value: Any, **options: Any) -> Any:
    (rendered,) = render_results(
        [ToolResult(ToolCall("", "f"), 0, Status.COMPLETED, value=value)], **options
    )
    return rendered


def test_data_is_there_as_data_and_as_text() -> None:
    """A str is text alone, an object is data as it is, all else is its `result`."""
    assert "structuredContent" not in result_of("x")
    assert result_of({"a": 1})["structuredContent"] == {"a": 1}
    assert result_of([1])["structuredContent"] == {"result": [1]}
    assert "structuredContent" not in result_of(float("inf"))


def test_data_that_was_cut_is_not_sent_whole() -> None:
    """R7: a budget that leaves a way around it is none."""
    assert "structuredContent" not in result_of(["x" * 500], max_chars_per_result=50)


def test_what_did_not_complete_is_an_error() -> None:
    """P6: `isError` of a placeholder, whatever a host makes of the result."""
    result = ToolResult(ToolCall("", "f"), 0, Status.DENIED, is_error=False)
    assert render_results([result])[0]["isError"] is True


def test_own_blocks() -> None:
    """Content blocks are taken as they are."""
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    assert result_of("x", content=lambda _: [image]) == {"content": [image], "isError": False}


def test_response_to_a_call_that_came_without_a_request() -> None:
    """The call's own id stands in."""
    result = ToolResult(ToolCall("7", "f"), 0, Status.COMPLETED, value="x")
    assert render_responses([result])[0]["id"] == "7"


def test_notification_is_no_call() -> None:
    """JSON-RPC without an id asks for no answer: to give one would be an error."""
    note = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "f"}}
    assert parse_calls([note]) == []
    # The request of an SDK has its envelope still to come.
    assert parse_calls([{"method": "tools/call", "params": {"name": "f"}}]) != []


@pytest.mark.parametrize(
    ("given", "echoed"),
    [(7, 7), (1.5, 1.5), ("", ""), ("a\ud83d", "a\ufffd")]
    + [(odd, None) for odd in (None, True, ["x"], {"a": 1})],
)
def test_id_is_echoed_and_what_is_none_becomes_null(given: object, echoed: object) -> None:
    """The peer never reads an id that it did not send."""
    request = {"jsonrpc": "2.0", "id": given, "method": "tools/call", "params": {"name": "f"}}
    (call,) = parse_calls([request])
    (response,) = render_responses([ToolResult(call, 0, Status.COMPLETED, value="x")])
    assert response["id"] == echoed and type(response["id"]) is type(echoed)
