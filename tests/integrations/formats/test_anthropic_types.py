"""The Anthropic format against the types of its own package."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anthropic")

import pydantic
from anthropic.types import Message, MessageParam, RawMessageStreamEvent, ToolResultBlockParam

from anyio_toolbatch.formats import anthropic

MESSAGES = pydantic.TypeAdapter(list[MessageParam])
BLOCKS = pydantic.TypeAdapter(list[ToolResultBlockParam])
EVENT: Any = pydantic.TypeAdapter(RawMessageStreamEvent)


def strict(message: dict[str, Any]) -> None:
    """Validate, and look for keys that the types do not have: TypedDicts ignore them."""
    MESSAGES.validate_python([message])
    blocks = [block for block in message["content"] if block["type"] == "tool_result"]
    for block, known in zip(blocks, BLOCKS.validate_python(blocks), strict=True):
        assert not {key for key in block if key not in known}


def test_responses_parse(fixtures: Any) -> None:
    """The SDK's message and its blocks give the calls that the plain dicts give."""
    for case in fixtures("anthropic").values():
        expected = anthropic.parse_calls(case["response"])
        message = Message.model_validate(case["response"])
        assert anthropic.parse_calls(message) == expected
        assert anthropic.parse_calls(message.content) == expected


def test_results_are_a_user_message(fixtures: Any, endings: Any, budget: Any) -> None:
    """Every ending of every call is a block that the request takes."""
    for case in fixtures("anthropic").values():
        for call in anthropic.parse_calls(Message.model_validate(case["response"])):
            strict(anthropic.render_results(endings(call), **budget))


def test_own_blocks_are_taken(fixtures: Any, endings: Any) -> None:
    """Pictures and texts of one's own, with a budget on the texts."""
    image = fixtures("anthropic")["parallel"]["results"]["content"][2]["content"][0]
    (call,) = anthropic.parse_calls(fixtures("anthropic")["single"]["response"])
    blocks = [image, {"type": "text", "text": "x" * 500}]
    message = anthropic.render_results(
        endings(call), content=lambda _: blocks, max_chars_per_result=100
    )
    strict(message)


def test_repaired_history(fixtures: Any) -> None:
    """The SDK's message stays its object; what is made for it is what the request takes."""
    for case in fixtures("anthropic").values():
        message = Message.model_validate(case["response"])
        repaired = anthropic.repair(
            [*case["history"], message, {"role": "user", "content": "Stop."}]
        )
        assert repaired[1] is message
        strict(repaired[2])


def events_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that a response would have been streamed as."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**response, "content": []}}
    ]
    for index, block in enumerate(response["content"]):
        begun, delta = dict(block), None
        if block["type"] == "tool_use":
            import json

            begun["input"] = {}
            text = block["input"].get("INVALID_JSON") or json.dumps(block["input"])
            delta = {"type": "input_json_delta", "partial_json": text}
        elif block["type"] == "text":
            begun["text"] = ""
            delta = {"type": "text_delta", "text": block["text"]}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        if delta:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": response["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}})
    return [*events, {"type": "message_stop"}]


def test_stream(fixtures: Any) -> None:
    """The SDK's events give calls; whole or broken off, the message can go into a request."""
    for case in fixtures("anthropic").values():
        typed = [EVENT.validate_python(event) for event in events_of(case["response"])]
        stream = anthropic.CallStream()
        calls = [call for event in typed for call in stream.feed(event)]
        assert calls == anthropic.parse_calls(case["response"])
        MESSAGES.validate_python([stream.message])
        for end in range(len(typed)):
            stream = anthropic.CallStream()
            for event in typed[:end]:
                stream.feed(event)
            stream.close()
            MESSAGES.validate_python([stream.message] if stream.message else [])
