"""What every format promises, told once and tried on each of them."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyio_toolbatch import (
    InvalidArgumentsError,
    Reason,
    Status,
    ToolCall,
    ToolResult,
)
from anyio_toolbatch.formats import anthropic, gemini, mcp, openai_chat, openai_responses


@dataclass(frozen=True)
class Format:
    """A format under test, and how its provider writes things down."""

    name: str
    parse_calls: Callable[[object], list[ToolCall]]
    render_results: Callable[[list[ToolResult]], Any]
    item: Callable[[str, str, Any], dict[str, Any]]
    message: Callable[[Any], Any]
    """What holds the items: an object where the provider has one around them."""
    response: Callable[[Any], Any]
    silent: list[Any]
    """Messages that ask for no tool."""
    set_label: Callable[[dict[str, Any], str, Any], None]
    """Sets the ``"id"`` or the ``"name"`` of an item; `DELETED` removes it."""
    entries: Callable[[Any], list[dict[str, Any]]]
    """The answers in what was rendered."""
    id_of: Callable[[dict[str, Any]], str]
    text_of: Callable[[dict[str, Any]], str | None]
    """The text of an answer; None where it is data."""
    odd_ids: tuple[Any, ...] = (None, 5, ["x"], {"a": 1}, True)
    """What is no id."""


DELETED = object()


def put(fields: dict[str, Any], key: str, value: Any) -> None:
    if value is DELETED:
        del fields[key]
    else:
        fields[key] = value


def openai_item(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def openai_message(items: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": items}


def openai_label(item: dict[str, Any], label: str, value: Any) -> None:
    put(item if label == "id" else item["function"], label, value)


def anthropic_item(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def responses_item(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}


def responses_label(item: dict[str, Any], label: str, value: Any) -> None:
    put(item, "call_id" if label == "id" else label, value)


def gemini_item(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"functionCall": {"id": id_, "name": name, "args": arguments}}


def gemini_text(part: dict[str, Any]) -> str | None:
    response = part["functionResponse"]["response"]
    text = response.get("error", response.get("output"))
    return text if isinstance(text, str) and len(response) == 1 else None


def mcp_item(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}


def mcp_label(item: dict[str, Any], label: str, value: Any) -> None:
    put(item if label == "id" else item["params"], label, value)


TEXT_PARTS = [{"type": "text", "text": "hello"}]

FORMATS = [
    Format(
        "openai_chat",
        openai_chat.parse_calls,
        openai_chat.render_results,
        openai_item,
        openai_message,
        lambda items: {"choices": [{"index": 0, "message": openai_message(items)}]},
        [{"role": "assistant", "content": content} for content in ("hello", TEXT_PARTS)],
        openai_label,
        lambda rendered: rendered,
        lambda entry: entry["tool_call_id"],
        lambda entry: entry["content"],
    ),
    Format(
        "openai_responses",
        openai_responses.parse_calls,
        openai_responses.render_results,
        responses_item,
        lambda items: {"output": items},
        lambda items: {"object": "response", "status": "completed", "output": items},
        [
            [{"type": "message", "role": "assistant", "content": []}],
            [{"type": "web_search_call", "id": "ws_1"}, None, "text", 5],
        ],
        responses_label,
        lambda rendered: rendered,
        lambda entry: entry["call_id"],
        lambda entry: entry["output"],
    ),
    Format(
        "anthropic",
        anthropic.parse_calls,
        anthropic.render_results,
        anthropic_item,
        lambda items: {"role": "assistant", "content": items},
        lambda items: {"type": "message", "role": "assistant", "content": items},
        [{"role": "assistant", "content": content} for content in ("hello", TEXT_PARTS)],
        put,
        lambda rendered: rendered["content"],
        lambda entry: entry["tool_use_id"],
        lambda entry: entry["content"],
    ),
    Format(
        "gemini",
        gemini.parse_calls,
        gemini.render_results,
        gemini_item,
        lambda items: {"role": "model", "parts": items},
        lambda items: {"candidates": [{"content": {"role": "model", "parts": items}}]},
        [
            {"role": "model", "parts": [{"text": "hello"}]},
            {"role": "model"},
            {"candidates": []},
            {"candidates": [{"finishReason": "SAFETY"}]},
        ],
        lambda item, label, value: put(item["functionCall"], label, value),
        lambda rendered: rendered["parts"],
        lambda entry: entry["functionResponse"].get("id", ""),
        gemini_text,
    ),
    Format(
        "mcp",
        mcp.parse_calls,
        mcp.render_responses,
        mcp_item,
        lambda items: items,
        lambda items: tuple(items),
        [{"jsonrpc": "2.0", "method": "ping", "id": 1}, {"jsonrpc": "2.0", "result": {}}],
        mcp_label,
        lambda rendered: rendered,
        lambda entry: entry["id"],
        lambda entry: entry["result"]["content"][0]["text"],
        odd_ids=(None, ["x"], {"a": 1}, True),
    ),
]

each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)


class PydanticLike:
    """An SDK object of the usual kind; its attributes hide further ones."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump(self, *, warnings: bool = True) -> dict[str, Any]:
        assert not warnings, "a server's odd payload must not warn"
        return self.data


class OlderPydanticLike(PydanticLike):
    """One that refuses the option."""

    def model_dump(self, *, warnings: bool = True) -> dict[str, Any]:
        if not warnings:
            msg = "warnings is only supported in Pydantic v2"
            raise ValueError(msg)
        return self.data


class DictLike:
    """An SDK object of the other kind."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        return self.data


class Unprintable:
    """A value that JSON can't hold and whose `str` raises."""

    def __str__(self) -> str:
        msg = "no text for this"
        raise ValueError(msg)


class ShoutingStr(str):
    """A str subclass that would show another text than it holds."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise AssertionError(encoding, errors)

    def lower(self) -> str:
        raise AssertionError(self)


class Shouting:
    """Its `str` is of a subclass."""

    def __str__(self) -> str:
        return ShoutingStr("loud")


def items_of(fmt: Format) -> list[dict[str, Any]]:
    return [fmt.item(f"id_{n}", "look", {"n": n, "deep": [n]}) for n in range(3)]


def calls_of(ids: list[str]) -> list[ToolCall]:
    return [ToolCall(id_, "look") for id_ in ids]


def done(call: ToolCall, index: int, value: Any = "ok") -> ToolResult:
    return ToolResult(call, index, Status.COMPLETED, value=value)


def ids_in(fmt: Format, rendered: Any) -> list[str]:
    return [fmt.id_of(entry) for entry in fmt.entries(rendered)]


def texts_in(fmt: Format, rendered: Any) -> list[Any]:
    return [fmt.text_of(entry) for entry in fmt.entries(rendered)]


def to_wire(rendered: Any) -> bytes:
    return json.dumps(rendered, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("module", [anthropic, gemini, mcp, openai_chat, openai_responses])
def test_every_format_has_the_same_three(module: Any) -> None:
    """§3.5: the signatures that programs outside this repository are written against."""

    def shape(function: Any) -> list[tuple[str, str]]:
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.kind.name) for p in parameters]

    assert shape(module.parse_calls) == [("message", "POSITIONAL_OR_KEYWORD")]
    assert shape(module.repair) == [("messages", "POSITIONAL_OR_KEYWORD")]
    options = ["content", "max_chars_per_result", "max_chars_total", "spill"]
    rendering = shape(module.render_results)
    assert rendering[0] == ("results", "POSITIONAL_OR_KEYWORD")
    assert rendering[1:5] == [(name, "KEYWORD_ONLY") for name in options]
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name))


@each_format
def test_batch_of_none(fmt: Format) -> None:
    """R8: no calls give no calls, and no results give an empty answer."""
    assert fmt.parse_calls([]) == []
    assert fmt.parse_calls(fmt.message([])) == []
    assert fmt.parse_calls(fmt.response([])) == []
    assert fmt.entries(fmt.render_results([])) == []


@each_format
def test_message_without_calls(fmt: Format) -> None:
    """A message that only says something asks for no tool."""
    for message in fmt.silent:
        assert fmt.parse_calls(message) == []


@each_format
def test_message_response_and_bare_list_are_alike(fmt: Format) -> None:
    """The same calls, in order, however much of the payload is handed in."""
    items = items_of(fmt)
    expected = [ToolCall(f"id_{n}", "look", {"n": n, "deep": [n]}) for n in range(3)]
    for given_ in (items, tuple(items), fmt.message(items), fmt.response(items)):
        assert fmt.parse_calls(given_) == expected


@each_format
@pytest.mark.parametrize("wrap", [PydanticLike, OlderPydanticLike, DictLike])
def test_sdk_objects_at_every_level(fmt: Format, wrap: Callable[..., Any]) -> None:
    """SDK objects are taken as the dicts they stand for, alone and inside lists."""
    items = items_of(fmt)
    expected = fmt.parse_calls(items)
    wrapped = [wrap(item) for item in items]
    around = [fmt.message(wrapped), fmt.response(items)]
    around += [wrap(message) for message in around if isinstance(message, dict)]
    for given_ in (wrapped, *around):
        calls = fmt.parse_calls(given_)
        assert calls == expected
        assert [call.wire for call in calls] == items


@each_format
def test_wire_is_the_very_item_and_stays_untouched(fmt: Format) -> None:
    """A tool that changes its arguments does not change the conversation."""
    items = items_of(fmt)
    before = copy.deepcopy(items)
    calls = fmt.parse_calls(fmt.message(items))
    for call, item in zip(calls, items, strict=True):
        assert call.wire is item
        call.arguments["deep"].append("changed by the tool")
        call.arguments["new"] = True
    assert items == before


@each_format
def test_endlessly_nested_arguments_do_not_raise(fmt: Format) -> None:
    """R1: depth alone does not end the turn."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    (call,) = fmt.parse_calls([fmt.item("a", "look", {"deep": deep})])
    assert (call.id, call.parse_error) == ("a", None)


@each_format
def test_missing_or_odd_id_and_name_keep_the_call(fmt: Format) -> None:
    """R2: what can't be read becomes "", and the call stays in its place."""
    for broken in (*fmt.odd_ids, DELETED):
        bad_id, bad_name, good = items_of(fmt)
        # JSON-RPC without an id asks for no answer: that is no broken call.
        is_call = fmt.name != "mcp" or broken is not DELETED
        fmt.set_label(bad_id, "id", broken if is_call else None)
        fmt.set_label(bad_name, "name", broken)
        calls = fmt.parse_calls([bad_id, bad_name, good])
        names = [(call.id, call.name) for call in calls]
        assert names == [("", "look"), ("id_1", ""), ("id_2", "look")]


@each_format
def test_one_broken_call_of_three(fmt: Format) -> None:
    """R1, R2, R3: cut JSON is one error result; the other two run; all are answered."""
    items = items_of(fmt)
    cut = '{"n": 1, "deep": ["half a str'
    items[1] = fmt.item("id_1", "look", cut)
    calls = fmt.parse_calls(fmt.message(items))
    assert [call.parse_error is None for call in calls] == [True, False, True]
    results = [
        done(call, index)
        if call.parse_error is None
        else ToolResult(
            call,
            index,
            Status.INVALID,
            error=InvalidArgumentsError(call.parse_error),
            reason=Reason("bad_arguments", call.parse_error),
            started=False,
        )
        for index, call in enumerate(calls)
    ]
    rendered = fmt.render_results(results)
    assert ids_in(fmt, rendered) == ["id_0", "id_1", "id_2"]
    content = texts_in(fmt, rendered)
    assert content[0] == content[2] == "ok"
    assert str(calls[1].parse_error) in content[1]


@each_format
def test_each_result_carries_its_own_calls_id(fmt: Format) -> None:
    """J5, J7: pairing is by position, ids as given, also equal and empty ones."""
    ids = ["same", "other", "same", "", ""]
    results = [done(call, n, f"text {n}") for n, call in enumerate(calls_of(ids))]
    rendered = fmt.render_results(results)
    assert ids_in(fmt, rendered) == ids
    content = texts_in(fmt, rendered)
    assert content == [f"text {n}" for n in range(5)]


@each_format
def test_value_that_cannot_be_shown(fmt: Format) -> None:
    """R6: the rendered result of that call says so, with the type's name."""
    first, second, third = calls_of(["a", "b", "c"])
    results = [done(first, 0), done(second, 1, Unprintable()), done(third, 2)]
    content = texts_in(fmt, fmt.render_results(results))
    assert "Unprintable" in content[1]
    assert content[0] == content[2] == "ok"


@each_format
def test_content_is_a_plain_str(fmt: Format) -> None:
    """R6: a subclass of str with methods of its own gets no say."""
    call = ToolCall(ShoutingStr("a"), "look")
    result = ToolResult(call, 0, Status.COMPLETED, value=Shouting(), is_error=True)
    (entry,) = fmt.entries(fmt.render_results([result]))
    text = fmt.text_of(entry)
    assert {type(text), type(fmt.id_of(entry))} == {str}
    assert text is not None and text.endswith("loud")


PLACEHOLDERS = [
    (Status.INTERRUPTED, "user_interrupt"),
    (Status.INTERRUPTED, "caller_cancelled"),
    (Status.INTERRUPTED, "superseded"),
    (Status.TIMED_OUT, "call_timeout"),
    (Status.TIMED_OUT, "approval_timeout"),
    (Status.DENIED, "not_approved"),
    (Status.INVALID, "unknown_tool"),
    (Status.FAILED, "resource_busy"),
]


@each_format
@pytest.mark.parametrize(("status", "kind"), PLACEHOLDERS)
@pytest.mark.parametrize("started", [True, False])
def test_placeholder_is_the_results_text(
    fmt: Format, status: Status, kind: str, started: bool
) -> None:
    """P6, J4: placeholders go to the model byte for byte, and equal ones equal."""
    (call,) = calls_of(["a"])
    rendered: list[Any] = []
    for wait_time in (0.0, 1.5):
        result = ToolResult(
            call,
            0,
            status,
            reason=Reason(kind, "as asked"),
            started=started,
            partial=["half"],
            wait_time=wait_time,
        )
        rendered.append(fmt.render_results([result]))
        assert texts_in(fmt, rendered[-1]) == [result.text]
    assert to_wire(rendered[0]) == to_wire(rendered[1])


@each_format
@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("lone \ud83d!", "lone \ufffd!"),
        ("\udc00", "\ufffd"),
        ("end \ud83d", "end \ufffd"),
        ("\udc00\ud83d", "\ufffd\ufffd"),
        ("halves \ud83d\ude00", "halves \U0001f600"),
        ("whole \U0001f600", "whole \U0001f600"),
    ],
)
def test_lone_surrogates_are_replaced(fmt: Format, given_: str, shown: str) -> None:
    """What UTF-8 can't carry becomes U+FFFD, in texts, errors and ids."""
    (call,) = calls_of([given_])
    failed = ToolResult(call, 1, Status.FAILED, error=ValueError(given_))
    rendered = fmt.render_results([done(call, 0, given_), failed])
    assert ids_in(fmt, rendered) == [shown, shown]
    first, second = texts_in(fmt, rendered)
    assert first == shown
    assert second.endswith(f"ValueError: {shown}")
    assert to_wire(rendered)


@each_format
@pytest.mark.parametrize(
    "wrong",
    [
        "a str",
        b"bytes",
        5,
        1.5,
        True,
        None,
        object(),
        PydanticLike,
        {"a set"},
        {},
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        [{"role": "user", "parts": [{"text": "hi"}]}],
        [object()],
    ],
)
def test_what_is_no_message_raises_a_sentence(fmt: Format, wrong: object) -> None:
    """Misuse raises at once and says what was expected."""
    with pytest.raises((TypeError, ValueError), match=r"expected|must be") as caught:
        fmt.parse_calls(wrong)
    assert len(str(caught.value).split()) > 5


@each_format
def test_calls_of_another_provider_are_refused(fmt: Format) -> None:
    """Another provider's calls never pass for no calls: the error says what was expected."""
    for other in FORMATS:
        if other is not fmt:
            items = items_of(other)
            for message in (items, other.message(items), other.response(items)):
                with pytest.raises(ValueError, match=r"expected|must be"):
                    fmt.parse_calls(message)


@each_format
def test_history_of_sdk_objects_is_refused(fmt: Format) -> None:
    """A list of messages never passes for a message without calls."""

    class Message(PydanticLike):
        role = "assistant"
        content = "hi"

    with pytest.raises(ValueError, match=r"list of messages|'role'"):
        fmt.parse_calls([Message({"role": "assistant", "content": "hi"})])


any_text = st.text(st.characters())  # lone surrogates included

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
    max_leaves=8,
)

values = json_values | st.binary() | st.sets(st.integers()) | st.builds(Unprintable)

results_lists = st.lists(
    st.builds(
        ToolResult,
        st.builds(ToolCall, any_text, any_text, json_values, wire=json_values),
        st.integers(0, 5),
        st.sampled_from(Status),
        value=values,
        error=st.none() | st.builds(ValueError, any_text),
        reason=st.none()
        | st.builds(Reason, st.sampled_from([kind for _, kind in PLACEHOLDERS]), any_text),
        started=st.booleans(),
        is_error=st.none() | st.booleans(),
        partial=values,
    )
)


@each_format
@given(results=results_lists)
def test_rendering_any_results(fmt: Format, results: list[ToolResult]) -> None:
    """P1, R6: one entry per result, in order, ids as given, always encodable."""
    rendered = fmt.render_results(results)
    assert to_wire(rendered)
    for result, shown in itertools.zip_longest(results, ids_in(fmt, rendered)):
        if result.call.id.isascii():
            assert shown == result.call.id
        assert len(shown) <= len(result.call.id)
    for result, text in zip(results, texts_in(fmt, rendered), strict=True):
        if result.text.isascii() and not result.is_error and text is not None:
            assert text == result.text


fields = {
    "id": json_values,
    "name": json_values,
    "input": json_values,
    "function": json_values
    | st.fixed_dictionaries({}, optional={"name": json_values, "arguments": json_values}),
    "custom": json_values
    | st.fixed_dictionaries({}, optional={"name": json_values, "input": json_values}),
}


def broken_items(*types: object) -> st.SearchStrategy[list[dict[str, Any]]]:
    kinds: dict[str, st.SearchStrategy[Any]] = {"type": st.sampled_from(types)}
    return st.lists(st.fixed_dictionaries(kinds, optional=fields))


@given(items=broken_items("function", "custom", None, "other"))
def test_openai_chat_keeps_every_item(items: list[dict[str, Any]]) -> None:
    """R1, R2: parsing never raises, and each item has its call in its place."""
    calls = openai_chat.parse_calls(items)
    assert len(calls) == len(items)
    for call, item in zip(calls, items, strict=True):
        assert call.wire is item
        assert call.id == (item.get("id") if isinstance(item.get("id"), str) else "")


@given(items=broken_items("tool_use", "text", "server_tool_use", None))
def test_anthropic_keeps_every_tool_use(items: list[dict[str, Any]]) -> None:
    """R1, R2: parsing never raises, and each tool_use has its call, no other block."""
    calls = anthropic.parse_calls(items)
    expected = [item for item in items if item["type"] == "tool_use"]
    assert len(calls) == len(expected)
    for call, item in zip(calls, expected, strict=True):
        assert call.wire is item
        assert call.name == (item.get("name") if isinstance(item.get("name"), str) else "")
