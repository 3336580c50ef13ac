"""OpenAI's two formats against the types of its own package."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("openai")

import pydantic
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageParam,
)
from openai.types.responses import (
    Response,
    ResponseInputItemParam,
    ResponseOutputItem,
    ResponseStreamEvent,
)

from anyio_toolbatch import Status, ToolResult
from anyio_toolbatch.formats import openai_chat, openai_responses

CHAT_MESSAGES = pydantic.TypeAdapter(list[ChatCompletionMessageParam])
INPUT_ITEMS = pydantic.TypeAdapter(list[ResponseInputItemParam])
OUTPUT_ITEM: Any = pydantic.TypeAdapter(ResponseOutputItem)
EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)


def strict(adapter: Any, items: list[Any]) -> None:
    """Validate, and look for keys that the type does not have: TypedDicts ignore them."""
    checked = adapter.validate_python(items, strict=False)
    for item, known in zip(items, checked, strict=True):
        extra = {key for key in item if key not in known}
        assert not extra, f"{item.get('type') or item.get('role')} has no {extra}"


def completion(message: dict[str, Any]) -> ChatCompletion:
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    fields = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return ChatCompletion.model_validate({**fields, "choices": [choice]})


def chat_cases(fixtures: Any) -> dict[str, Any]:
    return {
        name: case for name, case in fixtures("openai_chat").items() if "assistant" in case
    }


def test_chat_responses_parse(fixtures: Any) -> None:
    """The SDK's response and its message give the calls that the plain dict gives."""
    for case in chat_cases(fixtures).values():
        expected = openai_chat.parse_calls(case["assistant"])
        response = completion(case["assistant"])
        assert openai_chat.parse_calls(response) == expected
        assert openai_chat.parse_calls(response.choices[0].message) == expected
        assert openai_chat.parse_calls(response.choices[0].message.tool_calls) == expected


def test_chat_results_are_messages(fixtures: Any, endings: Any, budget: Any) -> None:
    """Every ending of every kind of call is a message that the request takes."""
    for case in chat_cases(fixtures).values():
        for call in openai_chat.parse_calls(case["assistant"]):
            rendered = openai_chat.render_results(endings(call), **budget)
            strict(CHAT_MESSAGES, rendered)


def test_chat_repaired_history(fixtures: Any) -> None:
    """A history with the SDK's own message is repaired, and the message stays its object."""
    for case in chat_cases(fixtures).values():
        message = completion(case["assistant"]).choices[0].message
        repaired = openai_chat.repair(
            [*case["history"], message, {"role": "user", "content": "x"}]
        )
        assert repaired[len(case["history"])] is message
        strict(CHAT_MESSAGES, [m for m in repaired if isinstance(m, dict)])
        assert len(repaired) == len(case["history"]) + 2 + len(case["assistant"]["tool_calls"])


def test_chat_stream(fixtures: Any) -> None:
    """The SDK's chunks are assembled to a message that the request takes."""
    stream = openai_chat.CallStream()
    chunks = fixtures("openai_chat")["stream_chunks"]["chunks"]
    typed = [ChatCompletionChunk.model_validate(one) for one in chunks]
    calls = [call for chunk in typed for call in stream.feed(chunk)]
    assert [call.id for call in calls] == ["call_s0", "call_s1"]
    strict(CHAT_MESSAGES, [stream.message])
    for end in range(len(typed)):
        stream = openai_chat.CallStream()
        for chunk in typed[:end]:
            stream.feed(chunk)
        stream.close()
        strict(CHAT_MESSAGES, [stream.message] if stream.message else [])


def response(output: list[Any]) -> Response:
    return Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "completed",
        }
    )


def test_responses_parse(fixtures: Any) -> None:
    """The SDK's response and its items give the calls that the plain dicts give."""
    for case in fixtures("openai_responses").values():
        expected = openai_responses.parse_calls(case["output"])
        found = response(case["output"])
        assert openai_responses.parse_calls(found) == expected
        assert openai_responses.parse_calls(found.output) == expected


BUILT_IN: list[dict[str, Any]] = [
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c",
        "status": "completed",
        "pending_safety_checks": [],
        "action": {"type": "wait"},
    },
    {
        "type": "tool_search_call",
        "id": "ts_1",
        "call_id": "c",
        "status": "completed",
        "execution": "client",
        "arguments": {"goal": "x"},
    },
    {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "async": True,
        "caller": {"type": "program", "caller_id": "p"},
    },
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "async": True},
    {
        "type": "shell_call",
        "id": "sh_1",
        "call_id": "c",
        "status": "completed",
        "action": {"commands": ["ls"], "max_output_length": 100},
        "environment": {"type": "local"},
    },
]


def all_items(fixtures: Any) -> list[dict[str, Any]]:
    items = [item for case in fixtures("openai_responses").values() for item in case["output"]]
    return items + BUILT_IN


def test_responses_outputs_are_input_items(fixtures: Any, endings: Any, budget: Any) -> None:
    """Every ending of every kind of call is an item that the request takes."""
    for item in all_items(fixtures):
        for call in openai_responses.parse_calls([OUTPUT_ITEM.validate_python(item)]):
            rendered = openai_responses.render_results(endings(call), **budget)
            strict(INPUT_ITEMS, rendered)
            for output in rendered:
                # A union takes what is near: it has to be of its own kind.
                assert output["type"].startswith(item["type"].removesuffix("_call"))


def test_responses_of_what_shells_and_screens_return(fixtures: Any) -> None:
    """The values that have a place of their own in the built-in tools' outputs."""
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}
    checks = [{"id": "s1"}]
    for item, value in (
        (BUILT_IN[0], shot["image_url"]),
        (BUILT_IN[0], {"output": shot, "acknowledged_safety_checks": checks}),
        (BUILT_IN[1], [{"type": "function", "name": "f", "parameters": {}, "strict": False}]),
        (BUILT_IN[4], {"stdout": "x", "stderr": "", "returncode": 3}),
    ):
        (call,) = openai_responses.parse_calls([item])
        result = ToolResult(call, 0, Status.COMPLETED, value=value)
        strict(INPUT_ITEMS, openai_responses.render_results([result]))


def test_responses_late_outputs(fixtures: Any, endings: Any, lates: Any) -> None:
    """Pending first, final later: both are items that the request takes."""
    (call,) = openai_responses.parse_calls(
        response(fixtures("openai_responses")["async_tool"]["output"])
    )
    (pending,) = [
        item
        for item in openai_responses.render_results(endings(call))
        if item.get("status") == "in_progress"
    ]
    for late in lates(call):
        (final,) = openai_responses.render_late(late, [pending])
        strict(INPUT_ITEMS, [pending, final])


def test_responses_repaired_history(fixtures: Any) -> None:
    """Placeholders of every kind are items that the request takes."""
    for item in all_items(fixtures):
        known = OUTPUT_ITEM.validate_python(item)
        repaired = openai_responses.repair([{"role": "user", "content": "x"}, known])
        assert repaired[1] is known
        strict(INPUT_ITEMS, repaired[2:])


def test_responses_stream(fixtures: Any) -> None:
    """The SDK's events give calls; whole or broken off, the items can go into a request."""
    for case in fixtures("openai_responses").values():
        events: list[dict[str, Any]] = []
        for index, item in enumerate(case["output"]):
            place = {"output_index": index, "sequence_number": 0}
            # What is not there yet is empty in the provider's own event.
            begun = {**item, **({"arguments": ""} if "arguments" in item else {})}
            added = {"type": "response.output_item.added", **place, "item": begun}
            done = {"type": "response.output_item.done", **place, "item": item}
            events += [added, done]
        whole = response(case["output"])
        events.append({"type": "response.completed", "sequence_number": 0, "response": whole})
        typed = [EVENT.validate_python(event) for event in events]
        stream = openai_responses.CallStream()
        calls = [call for event in typed for call in stream.feed(event)]
        assert calls == openai_responses.parse_calls(case["output"])
        strict(INPUT_ITEMS, stream.message)
        for end in range(len(typed)):
            stream = openai_responses.CallStream()
            for event in typed[:end]:
                stream.feed(event)
            stream.close()
            strict(INPUT_ITEMS, stream.message)
