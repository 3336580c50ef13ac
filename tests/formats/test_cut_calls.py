"""P6: a call of which only a part has come is never run, whatever a server makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from anyio_toolbatch import ToolCall
from anyio_toolbatch.formats import anthropic, gemini, openai_chat, openai_responses


def chunk(piece: dict[str, Any] | None = None, reason: Any = None) -> dict[str, Any]:
    delta = {} if piece is None else {"tool_calls": [piece]}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def piece(arguments: str, **more: Any) -> dict[str, Any]:
    return {"index": 0, "function": {"name": "rm", "arguments": arguments}, **more}


def runs(calls: list[ToolCall]) -> list[dict[str, Any]]:
    """The arguments of those that would be run."""
    return [dict(call.arguments) for call in calls if call.parse_error is None]


def test_empty_finish_reason_is_no_end() -> None:
    """Some servers send "" with each chunk; the arguments are still to come."""
    stream = openai_chat.CallStream()
    assert stream.feed(chunk(piece("", id="a"), "")) == []
    assert stream.feed(chunk(piece('{"p": 1}'), "")) == []
    assert runs(stream.feed(chunk(reason="tool_calls"))) == [{"p": 1}]


def test_blanks_behind_a_call_are_no_other_call() -> None:
    """Where a server says id, name and index again with each piece."""
    stream = openai_chat.CallStream()
    calls = stream.feed(chunk(piece('{"p": 1}', id="a")))
    calls += stream.feed(chunk(piece("\n", id="a")))
    calls += stream.feed(chunk(reason="tool_calls"))
    assert runs(calls + stream.close()) == [{"p": 1}]
    assert len(stream.message["tool_calls"]) == 1


@pytest.mark.parametrize(
    "call",
    [
        {"type": "custom", "custom": {"name": "sh", "input": "rm -rf /ho"}},
        {"function": {"name": "f", "arguments": None}},
        {"function": {"name": "f", "arguments": "null"}},
        {"function": {"name": "f", "arguments": " "}},
        {"function": {"name": "f"}},
    ],
)
def test_last_call_of_a_message_that_was_cut(call: dict[str, Any]) -> None:
    """No arguments, or a text without an end of its own: nobody knows what was to come."""
    message = {"role": "assistant", "tool_calls": [{"id": "a", **call}]}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    (parsed,) = openai_chat.parse_calls({"choices": [choice]})
    assert parsed.parse_error is not None
    (whole,) = openai_chat.parse_calls({"choices": [choice | {"finish_reason": "tool_calls"}]})
    assert whole.parse_error is None


@pytest.mark.parametrize("status", ["in_progress", "cancelled", "failed", "queued", None])
@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_item_that_is_not_done(status: str | None, kind: str) -> None:
    """Its own status tells, or that of its response, where it has none."""
    item = {"type": kind, "call_id": "a", "name": "f", "arguments": "", "input": "rm -rf /ho"}
    own = item | {"status": "in_progress"}
    (parsed,) = openai_responses.parse_calls({"status": status, "output": [own]})
    assert parsed.parse_error is not None
    (parsed,) = openai_responses.parse_calls([own])
    assert parsed.parse_error is not None
    if status is not None:
        (parsed,) = openai_responses.parse_calls({"status": status, "output": [item]})
        assert parsed.parse_error is not None


@pytest.mark.parametrize("text", [" ", "null", "\n"])
def test_blank_input_waits_for_the_reason(text: str) -> None:
    """The block has ended, but perhaps since the message was cut there."""
    stream = anthropic.CallStream()
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": text}
    calls = []
    for event in (
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
    ):
        calls += stream.feed(event)
    assert runs(calls + stream.close()) == []


@pytest.mark.parametrize(
    ("reason", "is_cut"),
    [("MAX_TOKENS", True), ("SAFETY", True), ("SOMETHING_NEW", True)]
    + [(whole, False) for whole in ("STOP", "TOO_MANY_TOOL_CALLS", "", None, [])],
)
@pytest.mark.parametrize("key", ["finishReason", "finish_reason"])
def test_last_call_of_a_gemini_response_that_was_cut(
    key: str, reason: object, is_cut: bool
) -> None:
    """No `args` may be some that were still to come; a reason that nobody knows is no good one."""
    parts = [{"functionCall": {"name": name}} for name in "fg"]
    candidate = {"content": {"role": "model", "parts": parts}, key: reason}
    first, last = gemini.parse_calls({"candidates": [candidate]})
    assert first.parse_error is None
    assert (last.parse_error is not None) == is_cut
    parts.append({"text": "and then"})  # type: ignore[dict-item]
    assert len(runs(gemini.parse_calls({"candidates": [candidate]}))) == 2


@pytest.mark.parametrize("more", [{}, {"willContinue": True}])
@pytest.mark.parametrize("key", ["partialArgs", "partial_args"])
def test_pieces_of_a_gemini_call(key: str, more: Any) -> None:
    """Streamed arguments come in parts of their own: none of these is the call."""
    body = {"name": "f", key: [{"jsonPath": "$.a", "stringValue": "x"}], **more}
    assert runs(gemini.parse_calls([{"functionCall": body}])) == []
