"""
Any JSON at any place of a real payload: a valid result, or the error that is documented.

What a server sends is not always what its documentation says. Wherever it is
wrong, no call may be lost, no other exception may end the turn, and what is
assembled for the history can be sent.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch.formats import anthropic, gemini, mcp, openai_chat, openai_responses

FIXTURES = Path(__file__).parent.parent / "fixtures"
DOCUMENTED = re.compile(r"expected|must be|has no|streamed chunk|deprecated|no message")
"""What is said where something is no message at all."""


def load(provider: str, case: str) -> Any:
    path = FIXTURES / provider / f"{case}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def cases(provider: str) -> list[Any]:
    return [load(provider, path.stem) for path in sorted((FIXTURES / provider).glob("*.json"))]


# -- payloads ----------------------------------------------------------------------


def chat_events() -> list[list[Any]]:
    return [load("openai_chat", "stream_chunks")["chunks"]]


def anthropic_events() -> list[list[Any]]:
    found: list[list[Any]] = []
    thought = {"type": "thinking", "thinking": "x", "signature": "sig"}
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    hit = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    for case in cases("anthropic"):
        events: list[Any] = [{"type": "message_start", "message": {"role": "assistant"}}]
        content = case["response"]["content"]
        for index, block in enumerate([thought, search, *content[:1], hit, *content[1:]]):
            begun = {**block, **{key: {} for key in ("input",) if key in block}}
            place = {"index": index}
            events.append({"type": "content_block_start", **place, "content_block": begun})
            delta: dict[str, Any] = {"type": "text_delta", "text": "x"}
            if "input" in block:
                text = json.dumps(block["input"])
                delta = {"type": "input_json_delta", "partial_json": text}
            if block["type"] == "text" or "input" in block:
                events.append({"type": "content_block_delta", **place, "delta": delta})
            events.append({"type": "content_block_stop", **place})
        events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}})
        found.append(events)
    return found


def responses_events() -> list[list[Any]]:
    found: list[list[Any]] = []
    for case in cases("openai_responses"):
        events: list[Any] = []
        for index, item in enumerate(case["output"]):
            kind = "response.output_item"
            place = {"output_index": index}
            events += [
                {"type": f"{kind}.added", **place, "item": item},
                {"type": "response.function_call_arguments.delta", **place, "delta": "{}"},
                {"type": f"{kind}.done", **place, "item": item},
            ]
        response = {"status": "completed", "output": case["output"]}
        events.append({"type": "response.completed", "response": response})
        found.append(events)
    return found


def chat_messages() -> list[Any]:
    messages = [case["assistant"] for case in cases("openai_chat") if "assistant" in case]
    choices = [{"index": 0, "finish_reason": "length", "message": m} for m in messages]
    return [*messages, *({"choices": [choice]} for choice in choices)]


def chat_histories() -> list[Any]:
    return [
        [*case["history"], case["assistant"], *case["results"]]
        for case in cases("openai_chat")
        if "assistant" in case
    ]


def anthropic_histories() -> list[Any]:
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found: list[Any] = []
    for case in cases("anthropic"):
        answer = {"role": "assistant", "content": case["response"]["content"]}
        found.append([*case["history"], answer, case["results"]])
        found.append([{**answer, "content": [server, *answer["content"]]}, case["results"]])
    return found


def gemini_histories() -> list[Any]:
    return [[*case["history"], case["model"], case["results"]] for case in cases("gemini")]


@dataclass(frozen=True, repr=False)
class Provider:
    name: str
    module: Any
    messages: list[Any]
    """What `parse_calls` takes."""
    histories: list[Any]
    calls_in: Callable[[Any], int]
    """How many calls there are at least, in a message that may be broken."""
    streams: list[list[Any]]

    def __repr__(self) -> str:
        return self.name  # its payloads would fill pages


def field(value: Any, *path: Any) -> Any:
    """What is there, or None where a path ends early."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def chat_calls_in(message: Any) -> int:
    items = field(message, "tool_calls") or field(
        message, "choices", 0, "message", "tool_calls"
    )
    return len(items) if isinstance(items, list) else 0


def typed_in(key: str, kinds: set[str]) -> Callable[[Any], int]:
    def calls_in(message: Any) -> int:
        items = field(message, key)
        found = [field(item, "type") for item in (items if isinstance(items, list) else ())]
        return len([kind for kind in found if isinstance(kind, str) and kind in kinds])

    return calls_in


def gemini_calls_in(message: Any) -> int:
    parts = field(message, "candidates", 0, "content", "parts")
    bodies = [field(part, "functionCall") for part in parts or () if isinstance(parts, list)]
    return len([body for body in bodies if body is not None])


def mcp_calls_in(message: Any) -> int:
    asked = [item for item in message if field(item, "method") == "tools/call"]
    return len([item for item in asked if "id" in item])


PROVIDERS = [
    Provider(
        "openai_chat",
        openai_chat,
        chat_messages(),
        chat_histories(),
        chat_calls_in,
        chat_events(),
    ),
    Provider(
        "openai_responses",
        openai_responses,
        [
            {"status": status, "output": case["output"]}
            for case in cases("openai_responses")
            for status in ("completed", "incomplete")
        ],
        [
            [*case["history"], *case["output"], *case["results"]]
            for case in cases("openai_responses")
        ],
        typed_in("output", {"function_call", "custom_tool_call", "apply_patch_call"}),
        responses_events(),
    ),
    Provider(
        "anthropic",
        anthropic,
        [case["response"] for case in cases("anthropic")],
        anthropic_histories(),
        typed_in("content", {"tool_use"}),
        anthropic_events(),
    ),
    Provider(
        "gemini",
        gemini,
        [
            {"candidates": [{"finishReason": "MAX_TOKENS", "content": case["model"]}]}
            for case in cases("gemini")
        ],
        gemini_histories(),
        gemini_calls_in,
        [],
    ),
    Provider(
        "mcp",
        mcp,
        [case["requests"] for case in cases("mcp")],
        [
            [*case["requests"], *case.get("notifications", ()), *case["responses"]]
            for case in cases("mcp")
        ],
        mcp_calls_in,
        [],
    ),
]

each_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)
each_stream = pytest.mark.parametrize(
    "provider", [p for p in PROVIDERS if p.streams], ids=lambda p: p.name
)

# -- something wrong in them --------------------------------------------------------

DELETED = object()

any_text = st.text(st.characters())  # lone surrogates included

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)

wrong = st.just(DELETED) | st.sampled_from([None, True, 0, 1.5, "", "x", [], {}]) | json_values


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands, in depth."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


@st.composite
def broken(draw: st.DrawFn, payloads: list[Any]) -> Any:
    """Return one of the payloads, with something else at one or two of its places."""
    payload = copy.deepcopy(draw(st.sampled_from(payloads)))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([path for path in places(payload) if path] or [()]))
        if not path:
            break
        value, holder = draw(wrong), payload
        for key in path[:-1]:
            holder = holder[key]
        if value is not DELETED:
            holder[path[-1]] = value
        else:
            del holder[path[-1]]
    return payload


def sendable(value: Any) -> bool:
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return True


REFUSED = object()


def tried(function: Callable[[Any], Any], given: Any) -> Any:
    """Return what a function makes of it; `REFUSED`: it has said what was expected."""
    try:
        return function(given)
    except (TypeError, ValueError) as error:
        said = str(error)
    assert DOCUMENTED.search(said), said
    return REFUSED


# -- and what becomes of it ----------------------------------------------------------


@each_provider
@given(data=st.data())
def test_no_call_is_lost(provider: Provider, data: st.DataObject) -> None:
    """R1, R2, P1: each call has its `ToolCall`, and its result is something to send."""
    message = data.draw(broken(provider.messages))
    before = copy.deepcopy(message)
    calls = tried(provider.module.parse_calls, message)
    assert message == before
    if calls is REFUSED:
        return
    assert len(calls) >= provider.calls_in(message)
    assert all(isinstance(call, ToolCall) for call in calls)


@each_provider
@given(data=st.data())
def test_any_history_is_repaired_once(provider: Provider, data: st.DataObject) -> None:
    """A11: whatever stands in it, a second repair finds nothing to do, and nothing is changed."""
    history = data.draw(broken(provider.histories))
    before = copy.deepcopy(history)
    repaired = tried(provider.module.repair, history)
    assert history == before
    if repaired is REFUSED:
        return
    again = provider.module.repair(repaired)
    assert len(again) == len(repaired)
    assert all(a is b for a, b in zip(again, repaired, strict=True))


@each_provider
@given(data=st.data())
def test_parsing_and_repairing_see_the_same_calls(
    provider: Provider, data: st.DataObject
) -> None:
    """P1: what is run is what is closed: a history with the calls' results is in order."""
    if provider.name in {"mcp", "openai_responses"}:
        return  # their items have no message around them that could be taken for another's
    history = data.draw(broken(provider.histories))
    last = history[-2] if len(history) > 1 else None
    if not isinstance(last, dict):
        return
    calls = tried(provider.module.parse_calls, last)
    if calls is REFUSED:
        return
    lost = json.dumps(provider.module.repair([last])).count("was lost")
    assert lost == len(calls)


@each_stream
@given(data=st.data())
def test_any_stream_gives_a_message_that_can_be_sent(
    provider: Provider, data: st.DataObject
) -> None:
    """R3, J5: the calls handed out are those of the message, in order; nothing raises."""
    events = data.draw(broken(provider.streams))
    events = events[: data.draw(st.integers(0, len(events)))]
    stream = provider.module.CallStream()
    calls: list[ToolCall] = []
    for event in events:
        more = tried(stream.feed, event)
        calls += [] if more is REFUSED else more
        assert sendable(stream.message)
    calls += stream.close()
    assert sendable(stream.message)
    parsed = provider.module.parse_calls(stream.message) if stream.message else []
    assert [call.id for call in parsed] == [call.id for call in calls]
    assert [call.name for call in parsed] == [call.name for call in calls]


@each_stream
@given(data=st.data())
def test_turn_that_is_stopped_anywhere_leaves_its_history_in_order(
    provider: Provider, data: st.DataObject
) -> None:
    """A1, P1: what was said, the results and the user's next words: nothing to repair."""
    events = data.draw(st.sampled_from(provider.streams))
    stream = provider.module.CallStream()
    calls: list[ToolCall] = []
    for event in events[: data.draw(st.integers(0, len(events)))]:
        calls += stream.feed(event)
    calls += stream.close()
    reason = Reason("user_interrupt")
    results = [
        ToolResult(call, index, Status.INTERRUPTED, reason=reason)
        for index, call in enumerate(calls)
    ]
    history: list[Any] = [{"role": "user", "content": "hi"}]
    for more in (stream.message, provider.module.render_results(results) if results else None):
        history += more if isinstance(more, list) else [more] if more else []
    history.append({"role": "user", "content": "Stop."})
    repaired = provider.module.repair(history)
    assert [id(message) for message in repaired] == [id(message) for message in history]
