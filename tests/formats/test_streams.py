"""Streams: calls as they complete, none that was cut off, and a message for the history."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyio_toolbatch import ToolCall
from anyio_toolbatch.formats import anthropic, openai_chat, openai_responses

FIXTURES = Path(__file__).parent.parent / "fixtures"


class SdkObject:
    """An event as an SDK has it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump(self, **options: bool) -> dict[str, Any]:
        return self.data


def feed_all(stream: Any, events: Iterable[Any]) -> list[ToolCall]:
    return [call for event in events for call in stream.feed(event)]


def cut_off(call: ToolCall) -> bool:
    return call.parse_error is not None and "ended before the arguments" in call.parse_error


# -- OpenAI Chat -----------------------------------------------------------------


def chunk(*pieces: dict[str, Any], reason: str | None = None, **delta: Any) -> dict[str, Any]:
    if pieces:
        delta["tool_calls"] = list(pieces)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def piece(
    index: int | None = None,
    id_: str | None = None,
    name: str | None = None,
    arguments: Any = None,
) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id_, "function": function}
    function = {key: value for key, value in function.items() if value is not None}
    return {k: v for k, v in {**fields, "function": function}.items() if v is not None}


END = chunk(reason="tool_calls")


def chat(*pieces: dict[str, Any], end: Any = END) -> list[tuple[str, str, Any]]:
    """Feed one piece per chunk; return what came out, with the end."""
    stream = openai_chat.CallStream()
    calls = feed_all(stream, [*map(chunk, pieces), *([end] if end else [])])
    calls += stream.close()
    assert [call.wire for call in calls] == stream.message.get("tool_calls", [])
    assert all(call.parse_error is None for call in calls), calls
    return [(call.id, call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("wrap", [dict, SdkObject])
def test_chat_call_is_there_when_the_next_begins(wrap: Any) -> None:
    """A call starts while the model still speaks; one without arguments at the end."""
    fixture = json.loads((FIXTURES / "openai_chat" / "stream_chunks.json").read_text("utf-8"))
    stream = openai_chat.CallStream()
    given_ = [stream.feed(wrap(one)) for one in fixture["chunks"]]
    assert given_ == [
        [],
        [],
        [],
        [ToolCall("call_s0", "add", {"a": 1, "b": 2})],
        [ToolCall("call_s1", "now", {})],
    ]
    assert stream.close() == []
    assert openai_chat.parse_calls(stream.message) == [call for got in given_ for call in got]


def test_chat_texts_are_put_together() -> None:
    """The message for the history has what the model said, and fields of servers' own."""
    stream = openai_chat.CallStream()
    events = [
        chunk(role="assistant", content=""),
        chunk(content="Let me "),
        chunk(content="look.", reasoning_content="hm", extra=[1]),
        chunk(reasoning_content=", well", refusal=None, extra=[2], other={"a": 1}),
        {"choices": [], "usage": {"total_tokens": 1}},
    ]
    assert feed_all(stream, events) == []
    assert stream.message == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "hm, well",
        "extra": [1, 2],
        "other": {"a": 1},
    }


def test_chat_fields_that_change_their_kind_and_messages_half_way() -> None:
    """Whatever a server sends in fields of its own, the message is there at any time."""
    stream = openai_chat.CallStream()
    odd = piece(0, "a", "f", '{"n"')
    odd["function"]["extra"] = odd["extra"] = {"signature": "s"}
    events = [chunk(x="a"), chunk(x=["b"]), chunk(x="c"), chunk(odd, y="a"), chunk(y=["b"])]
    assert (
        feed_all(stream, [*events, chunk({"index": 0}, {"index": 0, "function": None})]) == []
    )
    assert stream.message == {
        "role": "assistant",
        "content": None,
        "x": "c",
        "y": ["b"],
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": '{"n"', "extra": {"signature": "s"}},
                "extra": {"signature": "s"},
            }
        ],
    }
    assert stream.feed(chunk(piece(0, None, None, ": 1}"), reason="stop"))[0].arguments == {
        "n": 1
    }


def test_chat_other_choices_are_not_run() -> None:
    """Of several choices one is the conversation: the first."""
    stream = openai_chat.CallStream()
    both = chunk(piece(0, "a", "f", "{}"), reason="stop")
    both["choices"].insert(0, {**both["choices"][0], "index": 1})
    assert [call.id for call in stream.feed(both)] == ["a"]


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        # Whole calls, one per chunk, without an index; with ids, or with none.
        (
            [piece(None, "a", "f", "{}"), piece(None, "b", "f", '{"n": 1}')],
            [("a", "f", {}), ("b", "f", {"n": 1})],
        ),
        (
            [piece(None, None, "f", '{"n": 1}'), piece(None, None, "f", '{"n": 2}')],
            [("", "f", {"n": 1}), ("", "f", {"n": 2})],
        ),
        # Arguments that are no text but an object.
        (
            [piece(None, None, "f", {"n": 1}), piece(None, None, "g", {"n": 2})],
            [("", "f", {"n": 1}), ("", "g", {"n": 2})],
        ),
        # The index is always 0.
        (
            [piece(0, "a", "f", "{}"), piece(0, "b", "g", "{}")],
            [("a", "f", {}), ("b", "g", {})],
        ),
        # J5: the same id for each, whole calls.
        (
            [piece(0, "same", "f", '{"n": 1}'), piece(0, "same", "f", '{"n": 2}')],
            [("same", "f", {"n": 1}), ("same", "f", {"n": 2})],
        ),
        # Arguments that are null until they begin.
        (
            [
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": None}},
                piece(0, None, None, "{}"),
            ],
            [("a", "f", {})],
        ),
        # Id and name come again with each piece, and once more at the end.
        (
            [
                piece(0, "a", "f", '{"n"'),
                piece(0, "a", "f", ": 1}"),
                piece(0, "a", "f", ""),
                piece(1, "b", "g", "{}"),
                piece(0, "a", "f", ""),
            ],
            [("a", "f", {"n": 1}), ("b", "g", {})],
        ),
        # No index at all, continued by what has neither id nor name.
        (
            [
                piece(None, "a", "f"),
                piece(None, None, None, '{"n":'),
                piece(None, None, None, "1}"),
            ],
            [("a", "f", {"n": 1})],
        ),
        # The name in pieces.
        ([piece(0, "a", "get_"), piece(0, None, "time", "{}")], [("a", "get_time", {})]),
        # A call without arguments, before another without an index.
        ([piece(None, None, "f"), piece(None, None, "g")], [("", "f", {}), ("", "g", {})]),
        # Interleaved: all begin, then all go on.
        (
            [
                piece(0, "a", "f"),
                piece(1, "b", "g"),
                piece(1, None, None, '{"n": 2}'),
                piece(0, None, None, '{"n": 1}'),
            ],
            [("a", "f", {"n": 1}), ("b", "g", {"n": 2})],
        ),
    ],
)
def test_chat_servers_that_bend_the_rules(pieces: Any, calls: Any) -> None:
    """J5: nothing is lost, nothing is put together that is apart, all in order."""
    assert chat(*pieces) == calls
    assert chat(end=chunk(*pieces, reason="stop")) == calls


def test_chat_empty_object_first_is_not_run_early() -> None:
    """Some servers send {} before the arguments: what is not valid is never run."""
    stream = openai_chat.CallStream()
    events = [chunk(piece(0, "a", "f", "{}")), chunk(piece(0, None, None, '{"n": 1}')), END]
    (call,) = feed_all(stream, events)
    assert call.parse_error is not None


def test_chat_calls_are_handed_out_in_the_messages_order() -> None:
    """J7: a later call that is complete waits for an earlier one that is not."""
    stream = openai_chat.CallStream()
    events = [
        chunk(piece(0, "a", "f", '{"n"')),
        chunk(piece(1, "b", "f", "{}")),
        chunk(piece(2, "c", "f", "{}")),
    ]
    assert feed_all(stream, events) == []
    assert [call.id for call in stream.feed(END)] == ["a", "b", "c"]


def test_chat_custom_call() -> None:
    """Free text has no end of its own: it is complete when the message is."""
    stream = openai_chat.CallStream()
    first = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "py", "input": "1"}}
    events = [chunk(first), chunk({"index": 0, "custom": {"input": "+1"}})]
    assert feed_all(stream, [*events, chunk(piece(1, "d", "f", "{}"))]) == []
    assert stream.feed(END)[0] == ToolCall("c", "py", {"input": "1+1"})


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_chat_cut_off_by_the_provider(reason: str) -> None:
    """R3: whole JSON is whole; half of it, and none at all, is never run."""
    stream = openai_chat.CallStream()
    whole, half, none = piece(0, "a", "f", "{}"), piece(1, "b", "f", '{"n'), piece(2, "c", "f")
    calls = feed_all(stream, [chunk(whole, half, none), chunk(reason=reason)])
    assert [cut_off(call) for call in calls] == [False, True, True]
    assert stream.message["tool_calls"][1]["function"]["arguments"] == '{"n'


@pytest.mark.parametrize("wrap", [dict, SdkObject])
def test_chat_parse_calls_knows_a_cut_off_response(wrap: Any) -> None:
    """R3: no arguments at the end of a message that was cut are not "no arguments"."""
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]
    for reason, expected in (("length", [False, True]), ("tool_calls", [False, False])):
        message = {"role": "assistant", "content": None, "tool_calls": calls * 2}
        response = {"choices": [{"message": message, "finish_reason": reason}]}
        assert [cut_off(c) for c in openai_chat.parse_calls(wrap(response))] == expected


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "content_block_start"}, "keys 'type'"),
        ({"error": {"message": "overloaded"}}, "keys 'error'"),
        ({"choices": [{"message": {"role": "assistant"}}]}, "use parse_calls"),
        (chunk(function_call={"name": "f"}), "deprecated"),
    ],
)
def test_chat_what_is_no_chunk(event: Any, words: str) -> None:
    """Misuse raises at once and says what was expected."""
    with pytest.raises(ValueError, match=words):
        openai_chat.CallStream().feed(event)


def test_chat_message_of_thoughts_alone_is_none() -> None:
    """A message without content and calls is refused: there is none to append."""
    stream = openai_chat.CallStream()
    feed_all(stream, [chunk(role="assistant", content=""), chunk(reasoning_content="hm")])
    assert stream.message is None
    feed_all(stream, [chunk(refusal="no")])
    assert stream.message is not None and stream.message["refusal"] == "no"


def test_chat_content_of_the_wrong_type_is_passed_over() -> None:
    """What the model has said so far stays."""
    stream = openai_chat.CallStream()
    feed_all(stream, [chunk(content=content) for content in ("a", 5, None, {"x": 1}, "b")])
    assert stream.message == {"role": "assistant", "content": "ab"}


def test_chat_null_beside_a_function_is_no_custom_call() -> None:
    """A server that writes out what is not there."""
    stream = openai_chat.CallStream()
    one = {**piece(0, "a", "f", "{}"), "custom": None}
    (call,) = feed_all(stream, [chunk(one, reason="tool_calls")])
    assert call == ToolCall("a", "f", {})


@pytest.mark.parametrize("index", [[], {}, None])
def test_chat_odd_indexes(index: Any) -> None:
    """What is no index tells nothing, neither of a choice nor of a call."""
    stream = openai_chat.CallStream()
    one = chunk({**piece(0, "a", "f", "{}"), "index": index}, reason="tool_calls")
    one["choices"][0]["index"] = index
    assert stream.feed(one) == [ToolCall("a", "f", {})]


# -- Anthropic -------------------------------------------------------------------


def start(index: int, kind: str = "tool_use", **fields: Any) -> dict[str, Any]:
    if kind == "tool_use":
        fields = {"id": f"id_{index}", "name": "f", "input": {}, **fields}
    block = {"type": kind, **fields}
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    body = {"type": kind, **fields}
    return {"type": "content_block_delta", "index": index, "delta": body}


def json_delta(index: int, text: str) -> dict[str, Any]:
    return delta(index, "input_json_delta", partial_json=text)


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str = "tool_use") -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}


MESSAGE_START = {"type": "message_start", "message": {"role": "assistant", "content": []}}


@pytest.mark.parametrize("wrap", [dict, SdkObject])
def test_anthropic_call_is_there_when_its_block_ends(wrap: Any) -> None:
    """A call starts while the model still speaks, and the message is assembled."""
    stream = anthropic.CallStream()
    events = [
        MESSAGE_START,
        {"type": "ping"},
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="I "),
        delta(0, "thinking_delta", thinking="see"),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
        start(1, "text", text=""),
        delta(1, "text_delta", text="Hello"),
        delta(1, "citations_delta", citation={"n": 1}),
        delta(1, "citations_delta", citation={"n": 2}),
        {"type": "text", "text": "Hello", "snapshot": "Hello"},
        stop(1),
        start(2),
        json_delta(2, ""),
        json_delta(2, '{"n": '),
        json_delta(2, "1}"),
    ]
    assert feed_all(stream, map(wrap, events)) == []
    assert stream.feed(wrap(stop(2))) == [ToolCall("id_2", "f", {"n": 1})]
    assert feed_all(stream, map(wrap, [ended(), {"type": "message_stop"}])) == []
    assert stream.close() == []
    assert stream.message == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I see", "signature": "sig"},
            {"type": "text", "text": "Hello", "citations": [{"n": 1}, {"n": 2}]},
            {"type": "tool_use", "id": "id_2", "name": "f", "input": {"n": 1}},
        ],
    }


def test_anthropic_call_without_arguments_waits_for_the_stop_reason() -> None:
    """R3: a block that ends with nothing in it may have been cut before its first word."""
    stream = anthropic.CallStream()
    assert feed_all(stream, [start(0), stop(0)]) == []
    assert stream.feed(ended()) == [ToolCall("id_0", "f", {})]
    stream = anthropic.CallStream()
    (call,) = feed_all(stream, [start(0), stop(0), ended("max_tokens")])
    assert cut_off(call)


@pytest.mark.parametrize("text", ['{"n', "[1]", '{"n": NaN}', "nope"])
def test_anthropic_input_that_is_no_object(text: str) -> None:
    """R1, R3: the call is invalid, or as Python reads it; the history can be sent."""
    stream = anthropic.CallStream()
    (call,) = feed_all(stream, [start(0), json_delta(0, text), stop(0)])
    assert call.raw_arguments == text
    assert stream.message["content"][0]["input"] == {"INVALID_JSON": text}
    json.dumps(stream.message, allow_nan=False)


def test_anthropic_whole_input_at_the_start() -> None:
    """Compatible servers send it at once, some without an index or an end."""
    stream = anthropic.CallStream()
    events = [start(0, input={"n": 1}), stop(0), start(1, input={"n": 2})]
    for event in events:
        del event["index"]
    assert [c.arguments for c in feed_all(stream, [*events, ended()])] == [{"n": 1}, {"n": 2}]


def test_anthropic_events_that_belong_to_nothing() -> None:
    """What a broken server sends is passed over, and the message is there at any time."""
    stream = anthropic.CallStream()
    events = [
        json_delta(5, "{"),
        stop(5),
        {"type": "message_delta", "delta": {}},
        start(0),
        delta(0, None),  # type: ignore[arg-type]
        json_delta(0, '{"n": 1'),
    ]
    assert feed_all(stream, events) == []
    assert stream.message["content"][0]["input"] == {"INVALID_JSON": '{"n": 1'}
    assert feed_all(stream, [json_delta(0, "}"), stop(0), json_delta(0, "x"), stop(0)]) == [
        ToolCall("id_0", "f", {"n": 1})
    ]
    assert stream.message["content"][0]["input"] == {"n": 1}


def test_anthropic_message_of_an_interrupted_stream_can_be_sent() -> None:
    """What the provider would refuse is not in it; each call of ours is."""
    stream = anthropic.CallStream()
    events = [
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="half"),
        start(1, "text", text=""),
        start(2, "server_tool_use", id="s", name="web_search", input={}),
        json_delta(2, '{"q'),
        start(3, "server_tool_use", id="t", name="web_search", input={}),
        json_delta(3, '{"q": "x"}'),
        stop(3),
        start(4, "web_search_tool_result", tool_use_id="t", content=[]),
        stop(4),
        start(5, "server_tool_use", id="u", name="web_search", input={}),
        stop(5),
        start(6),
        json_delta(6, '{"n": 1'),
    ]
    assert feed_all(stream, events) == []
    (call,) = stream.close()
    assert cut_off(call)
    searched, found, used = stream.message["content"]
    assert (searched["id"], searched["input"]) == ("t", {"q": "x"})
    assert found["tool_use_id"] == "t"
    assert used is call.wire


def test_anthropic_parse_calls_knows_a_cut_off_response() -> None:
    """R3: the last call of a message that was cut is never run, whatever it looks like."""
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    text = {"type": "text", "text": "x"}
    for blocks, reason, expected in (
        ([block, block], "max_tokens", [False, True]),
        ([block, text], "max_tokens", [False]),
        ([block, block], "tool_use", [False, False]),
    ):
        message = {"role": "assistant", "content": blocks, "stop_reason": reason}
        assert [cut_off(call) for call in anthropic.parse_calls(message)] == expected


def test_anthropic_blocks_that_share_an_index_are_two() -> None:
    """J5: a server that counts wrongly: both calls run, and both are in the message."""
    stream = anthropic.CallStream()
    events: list[Any] = []
    for name in "ab":
        events += [start(0, id=name), json_delta(0, f'{{"n": "{name}"}}'), stop(0)]
    calls = feed_all(stream, [*events, ended()])
    assert [(call.id, call.arguments) for call in calls] == [
        ("a", {"n": "a"}),
        ("b", {"n": "b"}),
    ]
    assert stream.message is not None
    assert [block["id"] for block in stream.message["content"]] == ["a", "b"]


@pytest.mark.parametrize("reason", [None, "max_tokens", "tool_use", "pause_turn"])
def test_anthropic_server_tool_stays_where_the_provider_goes_on(reason: str | None) -> None:
    """What was to be run, and was broken off, would be refused; not what is still to be run."""
    stream = anthropic.CallStream()
    events = [
        start(0, "text", text="I look."),
        stop(0),
        start(1, "server_tool_use", id="s", name="web_search", input={}),
        json_delta(1, "{}"),
        stop(1),
        *([ended(reason)] if reason else []),
    ]
    feed_all(stream, events)
    stream.close()
    assert stream.message is not None
    kinds = [block["type"] for block in stream.message["content"]]
    goes_on = reason in {"tool_use", "pause_turn"}
    assert kinds == ["text", "server_tool_use"] if goes_on else kinds == ["text"]


def test_anthropic_call_of_a_program_that_was_broken_off() -> None:
    """The provider's program is gone with the stream; its call is the model's own."""
    stream = anthropic.CallStream()
    caller = {"type": "code_execution_20250825", "tool_id": "s"}
    events = [
        start(0, "server_tool_use", id="s", name="code_execution", input={}),
        stop(0),
        start(1, caller=caller),
        json_delta(1, '{"n": 1}'),
        stop(1),
    ]
    (call,) = feed_all(stream, events)
    assert call.wire["caller"] == caller
    assert stream.message is not None
    assert stream.message["content"] == [
        {"type": "tool_use", "id": "id_1", "name": "f", "input": {"n": 1}}
    ]


def test_anthropic_message_that_would_be_empty_is_none() -> None:
    """Nothing but thoughts, blanks and what was never run: there is nothing to send."""
    stream = anthropic.CallStream()
    events = [
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="done"),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
        start(1, "text", text="\n"),
        stop(1),
        start(2, "server_tool_use", id="s", name="web_search", input={}),
        stop(2),
    ]
    feed_all(stream, events)
    assert stream.message is None
    stream.feed(delta(1, "text_delta", text="late"))
    assert stream.message is None


def test_anthropic_looking_at_the_message_runs_nothing_early() -> None:
    """R3: blanks that have come so far are no arguments, whoever has looked at them."""
    stream = anthropic.CallStream()
    feed_all(stream, [start(0), json_delta(0, " ")])
    assert stream.message is not None
    assert feed_all(stream, [stop(0)]) == []
    (call,) = stream.feed(ended("max_tokens"))
    assert cut_off(call)


@pytest.mark.parametrize("given_", ['{"n": 1}', [1], "", 5])
def test_anthropic_input_that_is_no_object_at_the_start(given_: Any) -> None:
    """R1: never run, and the message has an object, as it must."""
    stream = anthropic.CallStream()
    (call,) = feed_all(stream, [start(0, input=given_), stop(0), ended()])
    assert call.parse_error is not None
    assert stream.message is not None
    assert stream.message["content"][0]["input"] == {"INVALID_JSON": json.dumps(given_)}
    assert anthropic.parse_calls(stream.message) == [call]


def test_anthropic_input_without_an_end() -> None:
    """R1: not even what cannot be written down is in the way of the message."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    stream = anthropic.CallStream()
    (call,) = feed_all(stream, [start(0, input=deep), stop(0), ended()])
    assert call.parse_error is not None
    assert json.dumps(stream.message)


def test_anthropic_long_text_is_put_together_once() -> None:
    """10,000 pieces cost what they are long, not the square of it."""
    stream = anthropic.CallStream()
    stream.feed(start(0, "text", text=""))
    block = stream._blocks[0]  # what is held meanwhile: nobody sees it from outside
    feed_all(stream, [delta(0, "text_delta", text="word ")] * 10_000)
    assert block.item["text"] == ""
    assert stream.message is not None
    assert stream.message["content"][0]["text"] == "word " * 10_000


# -- OpenAI Responses ------------------------------------------------------------


def added(index: int, **fields: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": f"id_{index}", "name": "f", **fields}
    item.setdefault("arguments", "")
    event = "response.output_item.added"
    return {"type": event, "output_index": index, "item": {**item, "status": "in_progress"}}


def done(index: int, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    event = added(index, arguments=arguments, **fields)
    event["type"] = "response.output_item.done"
    event["item"]["status"] = fields.get("status", "completed")
    return event


def arguments_delta(index: int, text: str) -> dict[str, Any]:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "output_index": index, "delta": text}


@pytest.mark.parametrize("wrap", [dict, SdkObject])
def test_responses_call_is_there_when_its_item_is_done(wrap: Any) -> None:
    """A call starts while the model still speaks; the items are those of the history."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": []}
    stream = openai_responses.CallStream()
    events = [
        {"type": "response.created", "response": {}},
        {"type": "response.output_item.added", "output_index": 0, "item": dict(reasoning)},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        added(1),
        arguments_delta(1, '{"n": 1}'),
        {
            "type": "response.function_call_arguments.done",
            "output_index": 1,
            "arguments": '{"n": 1}',
        },
    ]
    assert feed_all(stream, map(wrap, events)) == []
    assert stream.feed(wrap(done(1, '{"n": 1}', parsed_arguments={"n": 1}))) == [
        ToolCall("id_1", "f", {"n": 1})
    ]
    output = [reasoning, done(1, '{"n": 1}')["item"]]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    assert stream.feed(wrap(end)) == []
    assert stream.close() == []
    assert stream.message == output


def test_responses_of_a_server_that_sends_the_end_alone() -> None:
    """All calls are in the completed response; those that were handed out are not again."""
    stream = openai_responses.CallStream()
    output = [done(0)["item"], done(1)["item"], {"type": "web_search_call", "id": "ws"}]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    assert [call.id for call in feed_all(stream, [done(0), end])] == ["id_0", "id_1"]
    assert stream.message == output


def test_responses_without_places() -> None:
    """A server that leaves `output_index` out: items are known by their ids."""
    stream = openai_responses.CallStream()
    events = [added(0), added(1), done(1, '{"n": 1}'), done(0), done(2)]
    for event in events:
        del event["output_index"]
    assert [call.id for call in feed_all(stream, events)] == ["id_0", "id_1", "id_2"]
    assert [item["call_id"] for item in stream.message] == ["id_0", "id_1", "id_2"]


def test_responses_whose_end_counts_otherwise_run_nothing_twice() -> None:
    """The whole response lacks an item: the others are still those that were handed out."""
    stream = openai_responses.CallStream()
    reasoning = {"type": "reasoning", "id": "rs"}
    first = {"type": "response.output_item.done", "output_index": 0, "item": reasoning}
    output = [done(1)["item"], done(2)["item"], done(2)["item"]]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    calls = feed_all(stream, [first, done(1), arguments_delta(7, "{"), end])
    # J5: two items of one id are two calls.
    assert [call.id for call in calls] == ["id_1", "id_2", "id_2"]
    assert len(stream.message) == 4
    stream = openai_responses.CallStream()
    end["response"]["output"] = [done(1)["item"]] * 2  # type: ignore[index]
    assert [call.id for call in feed_all(stream, [done(1), end])] == ["id_1", "id_1"]


def test_responses_cut_off_by_the_provider() -> None:
    """R3: an incomplete item is never run, nor free text that ends with the response."""
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "py", "input": "rm"}
    output = [done(0, "", status="incomplete")["item"], custom]
    end = {"type": "response.incomplete"}
    end["response"] = {"status": "incomplete", "output": output}  # type: ignore[assignment]
    stream = openai_responses.CallStream()
    assert [cut_off(call) for call in stream.feed(end)] == [True, True]


def test_responses_message_of_an_interrupted_stream_can_be_sent() -> None:
    """What is not done is incomplete, or left out; the text so far is kept."""
    message = {"type": "message", "id": "m", "role": "assistant", "content": []}
    events = [
        added(0, type="reasoning"),
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Hel"},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "lo"},
        added(2),
        arguments_delta(2, '{"n'),
        added(3, type="web_search_call"),
        added(4, type="apply_patch_call", operation={"type": "delete_file", "path": "x"}),
    ]
    stream = openai_responses.CallStream()
    assert feed_all(stream, events) == []
    before = stream.message
    calls = stream.close()
    assert [cut_off(call) for call in calls] == [True, True]
    assert stream.message == before
    text, call, patch = stream.message
    assert text["content"] == [{"type": "output_text", "text": "Hello", "annotations": []}]
    assert (text["status"], call["status"]) == ("incomplete", "incomplete")
    assert call["arguments"] == '{"n' and call is calls[0].wire
    assert patch["status"] == "in_progress"


def event(kind: str, index: int, **item: Any) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": item}


def ending(status: str, *output: Any) -> dict[str, Any]:
    response = {"status": status, "output": list(output)}
    return {"type": f"response.{status}", "response": response}


CUSTOM = {"type": "custom_tool_call", "id": "ctc", "call_id": "c", "name": "sh", "input": "ls"}
BARE = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": ""}


@pytest.mark.parametrize("item", [CUSTOM, BARE], ids=lambda item: item["type"])
@pytest.mark.parametrize("status", ["completed", "incomplete"])
@pytest.mark.parametrize("with_output", [True, False])
@pytest.mark.parametrize("more", [(), ({"type": "message", "id": "m", "content": []},)])
def test_responses_stream_and_whole_response_agree(
    item: Any, status: str, with_output: bool, more: Any
) -> None:
    """P6: what has no end of its own waits to see whether the response was cut off in it."""
    output = [item, *more]
    stream = openai_responses.CallStream()
    calls = feed_all(stream, [event("added", 0, **item), event("done", 0, **item)])
    assert calls == []
    for place, other in enumerate(more, 1):
        calls += stream.feed(event("added", place, **other))
        assert len(calls) == 1  # another item has begun: this one is whole
        calls += stream.feed(event("done", place, **other))
    calls += stream.feed(ending(status, *(output if with_output else ())))
    assert calls == openai_responses.parse_calls({"status": status, "output": output})
    assert cut_off(calls[0]) == (status == "incomplete" and not more)
    assert stream.close() == []


@pytest.mark.parametrize("more", [{"status": "completed"}, {"arguments": '{"n": 1}'}])
def test_responses_item_that_says_it_is_whole_is_run_at_once(more: Any) -> None:
    """By its status, or by JSON that has an end of its own."""
    item = {**BARE, **more}
    (call,) = feed_all(openai_responses.CallStream(), [event("done", 0, **item)])
    assert call.parse_error is None
    (parsed,) = openai_responses.parse_calls({"status": "incomplete", "output": [item]})
    assert parsed == call


def test_responses_item_that_the_stream_has_left_out_ends_no_other() -> None:
    """P6: a gateway tells of an earlier item at the end: the last one is cut off all the same."""
    stream = openai_responses.CallStream()
    assert feed_all(stream, [event("added", 1, **CUSTOM), event("done", 1, **CUSTOM)]) == []
    first = {**BARE, "call_id": "first", "id": "fc_1"}
    calls = stream.feed(ending("incomplete", first, CUSTOM))
    assert [(call.id, cut_off(call)) for call in calls] == [("c", True), ("first", False)]


def test_responses_item_that_waits_when_the_stream_breaks_is_not_run() -> None:
    """Nobody knows whether it was whole; the item stays as it has come."""
    stream = openai_responses.CallStream()
    assert feed_all(stream, [event("done", 0, **CUSTOM)]) == []
    (call,) = stream.close()
    assert cut_off(call)
    assert stream.message == [CUSTOM]


@pytest.mark.parametrize("with_added", [True, False])
def test_responses_items_that_all_have_one_place(with_added: bool) -> None:
    """J5: a server that leaves the index at 0: nothing is lost, and nothing runs twice."""
    stream = openai_responses.CallStream()
    events = []
    for name in "ab":
        item = {**BARE, "id": f"fc_{name}", "call_id": name, "status": "completed"}
        events += [event("added", 0, **item)] if with_added else []
        events += [event("done", 0, **item), event("done", 0, **item)]
    calls = feed_all(stream, events)
    output = [event["item"] for event in events[-2:]]
    calls += stream.feed(ending("completed", *stream.message))
    assert [call.id for call in calls] == ["a", "b"]
    assert [item["call_id"] for item in stream.message] == ["a", "b"], output


def test_responses_items_that_all_begin_before_they_end_at_one_place() -> None:
    """J5: the ids tell which of them is done; pieces are for the last that has begun."""
    stream = openai_responses.CallStream()
    items = [{**BARE, "id": f"fc_{name}", "call_id": name} for name in "ab"]
    events = [event("added", 0, **item) for item in items]
    events += [arguments_delta(0, "{}")]
    events += [event("done", 0, **{**item, "arguments": "{}"}) for item in items]
    calls = feed_all(stream, events)
    assert [call.id for call in calls] == ["a", "b"]


def test_responses_item_whose_id_changes_is_run_once() -> None:
    """J5: some servers make a new id for each event; the call's own id is the same."""
    stream = openai_responses.CallStream()
    items = [{**BARE, "status": "completed", "id": f"fc_{n}"} for n in range(5)]
    kinds = ["added", "added", "done", "done"]
    events = [event(kind, 0, **one) for kind, one in zip(kinds, items, strict=False)]
    calls = feed_all(stream, [*events, ending("completed", items[4])])
    assert [call.id for call in calls] == ["c"]
    assert stream.close() == [] and len(stream.message) == 1
    # Own ids tell where there is no other.
    stream = openai_responses.CallStream()
    for one in items:
        del one["call_id"]
    assert len(feed_all(stream, [event("done", 0, **one) for one in items])) == 5


def test_responses_reasoning_needs_what_follows_it() -> None:
    """A lone reasoning item is refused: without the item that came of it, it is left out."""
    thought = {"type": "reasoning", "id": "rs", "summary": []}
    search = {"type": "web_search_call", "id": "ws"}
    stream = openai_responses.CallStream()
    feed_all(stream, [event("added", 0, **thought), event("done", 0, **thought)])
    assert stream.message == []
    stream.feed(event("added", 1, **search))
    assert stream.message == []
    whole = {**search, "status": "completed"}
    stream.feed(event("done", 1, **whole))
    assert stream.message == [thought, whole]


# -- all of them -----------------------------------------------------------------

STREAMS = [openai_chat.CallStream, anthropic.CallStream, openai_responses.CallStream]
each_stream = pytest.mark.parametrize("stream", STREAMS, ids=lambda c: c.__module__)


@each_stream
def test_closed_stream_takes_nothing(stream: Any) -> None:
    """P4: what comes after the end starts nothing; closing again is no harm."""
    one = stream()
    assert one.close() == [] and one.close() == []
    with pytest.raises(RuntimeError, match="closed"):
        one.feed(END)


@each_stream
def test_stream_of_nothing_has_no_message(stream: Any) -> None:
    """A message without content is refused: there is none to append."""
    one = stream()
    assert not one.message
    one.close()
    assert not one.message


@each_stream
@pytest.mark.parametrize("wrong", [None, "data: {}", 5, [], object()])
def test_what_is_no_event(stream: Any, wrong: object) -> None:
    """Misuse raises at once and says what was expected."""
    with pytest.raises(TypeError, match=r"expected|must be"):
        stream().feed(wrong)


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (anthropic.CallStream, {"type": "message", "content": []}),
        (anthropic.CallStream, {"type": "response.created"}),
        (anthropic.CallStream, END),
        (openai_responses.CallStream, {"object": "response", "output": []}),
        (openai_responses.CallStream, MESSAGE_START),
        (openai_responses.CallStream, END),
    ],
)
def test_event_of_another_kind_is_refused(stream: Any, event: Any) -> None:
    """Another provider's events never pass for a message without calls."""
    with pytest.raises(ValueError, match="expected a stream event of"):
        stream().feed(event)


arguments_texts = st.sampled_from(
    ["{}", '{"n": 1}', '{"t": "a } b \\" {"}', '{"n": {"m": []}}']
)


def events_of(stream: Any, texts: list[str], cuts: list[int]) -> list[Any]:
    """Return the events of a message with these calls, each text cut at some places."""
    events: list[Any] = []
    for index, text in enumerate(texts):
        places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
        pieces = [text[a:b] for a, b in itertools.pairwise(places)]
        if stream is openai_chat.CallStream:
            events.append(chunk(piece(index, f"id_{index}", "f", "")))
            events += [chunk(piece(index, None, None, one)) for one in pieces]
        elif stream is anthropic.CallStream:
            events += [start(index), *(json_delta(index, p) for p in pieces), stop(index)]
        else:
            events += [added(index), *(arguments_delta(index, p) for p in pieces)]
            events.append(done(index, text))
    if stream is openai_chat.CallStream:
        events.append(END)
    elif stream is anthropic.CallStream:
        events.append(ended())
    return events


@each_stream
@given(
    texts=st.lists(arguments_texts, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    data=st.data(),
)
def test_stream_cut_anywhere_runs_whole_calls_alone(
    stream: Any, texts: list[str], cuts: list[int], data: st.DataObject
) -> None:
    """R3: wherever it breaks, what is valid has all its arguments, and each call its place."""
    events = events_of(stream, texts, cuts)
    whole = [ToolCall(f"id_{n}", "f", text) for n, text in enumerate(texts)]
    one = stream()
    assert feed_all(one, events) == whole and one.close() == []
    one = stream()
    calls = feed_all(one, events[: data.draw(st.integers(0, len(events)))])
    assert calls == whole[: len(calls)]
    left = one.close()
    assert all(map(cut_off, left))
    ids = [call.id for call in calls + left]
    assert ids == [f"id_{n}" for n in range(len(ids))]
    module = dict(zip(STREAMS, (openai_chat, anthropic, openai_responses)))[stream]
    parsed = module.parse_calls(one.message) if one.message else []
    assert [call.id for call in parsed] == ids


HIGH, LOW = "\ud83d", "\ude00"  # the halves of one character, as pieces may have them


@each_stream
@pytest.mark.parametrize(
    ("pieces", "shown"),
    [((HIGH, LOW), "\U0001f600"), ((HIGH, "x"), "\ufffdx"), (("x", LOW), "x\ufffd")],
)
def test_character_that_is_cut_in_two(stream: Any, pieces: Any, shown: str) -> None:
    """What UTF-8 cannot carry is joined, or replaced: the message can be sent."""
    one = stream()
    first, second = (f'{{"t": "{pieces[0]}', f'{pieces[1]}"}}')
    if stream is openai_chat.CallStream:
        events = [chunk(content=text) for text in pieces]
        events += [chunk(piece(0, HIGH, "f", first)), chunk(piece(0, None, None, second)), END]
    elif stream is anthropic.CallStream:
        events = [start(0, "text", text="")]
        events += [delta(0, "text_delta", text=text) for text in pieces]
        events += [stop(0), start(1, id=HIGH), json_delta(1, first), json_delta(1, second)]
        events += [stop(1), ended()]
    else:
        message = {"type": "message", "id": "m", "role": "assistant", "content": []}
        events = [event("added", 0, **message)]
        text = "response.output_text.delta"
        events += [{"type": text, "output_index": 0, "delta": piece} for piece in pieces]
        events += [added(1, call_id=HIGH), done(1, first + second, call_id=HIGH)]
    calls = []
    for one_event in events:
        calls += one.feed(one_event)
        json.dumps(one.message, ensure_ascii=False).encode()
    assert [(call.id, call.arguments) for call in calls] == [("\ufffd", {"t": shown})]
    assert shown in str(one.message)
