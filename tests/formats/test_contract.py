"""What every format promises, told once and tried on each of them."""

from __future__ import annotations

import copy
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
from anyio_toolbatch.formats import anthropic, openai_chat


@dataclass(frozen=True)
class Format:
    """A format under test, and how its provider writes things down."""

    name: str
    parse_calls: Callable[[object], list[ToolCall]]
    render_results: Callable[[list[ToolResult]], Any]
    item: Callable[[str, str, dict[str, Any]], dict[str, Any]]
    message: Callable[[Any], dict[str, Any]]
    response: Callable[[Any], dict[str, Any]]
    entries: Callable[[Any], list[dict[str, Any]]]
    id_key: str


def openai_item(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def openai_message(items: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": items}


def anthropic_item(id_: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


FORMATS = [
    Format(
        "openai_chat",
        openai_chat.parse_calls,
        openai_chat.render_results,
        openai_item,
        openai_message,
        lambda items: {"choices": [{"index": 0, "message": openai_message(items)}]},
        lambda rendered: rendered,
        "tool_call_id",
    ),
    Format(
        "anthropic",
        anthropic.parse_calls,
        anthropic.render_results,
        anthropic_item,
        lambda items: {"role": "assistant", "content": items},
        lambda items: {"type": "message", "role": "assistant", "content": items},
        lambda rendered: rendered["content"],
        "tool_use_id",
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
    return [entry[fmt.id_key] for entry in fmt.entries(rendered)]


def to_wire(rendered: Any) -> bytes:
    return json.dumps(rendered, ensure_ascii=False).encode("utf-8")


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
    parts = [{"type": "text", "text": "hello"}]
    assert fmt.parse_calls({"role": "assistant", "content": parts}) == []
    assert fmt.parse_calls({"role": "assistant", "content": "hello"}) == []


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
    for given_ in (
        wrapped,
        fmt.message(wrapped),
        wrap(fmt.message(wrapped)),
        wrap(fmt.response(items)),
    ):
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
@pytest.mark.parametrize("broken", [None, 5, ["x"], {"a": 1}, True])
def test_missing_or_odd_id_and_name_keep_the_call(fmt: Format, broken: object) -> None:
    """R2: what can't be read becomes "", and the call stays in its place."""
    bad_id, bad_name, good = items_of(fmt)
    bad_id["id"] = broken
    bad_name.get("function", bad_name)["name"] = broken
    names = [(call.id, call.name) for call in fmt.parse_calls([bad_id, bad_name, good])]
    assert names == [("", "look"), ("id_1", ""), ("id_2", "look")]
    del bad_id["id"]
    del bad_name.get("function", bad_name)["name"]
    names = [(call.id, call.name) for call in fmt.parse_calls([bad_id, bad_name, good])]
    assert names == [("", "look"), ("id_1", ""), ("id_2", "look")]


@each_format
def test_one_broken_call_of_three(fmt: Format) -> None:
    """R1, R2, R3: cut JSON is one error result; the other two run; all are answered."""
    items = items_of(fmt)
    cut = '{"n": 1, "deep": ["half a str'
    items[1] = fmt.item("id_1", "look", cut)  # type: ignore[arg-type]  # broken on purpose
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
    content = [entry["content"] for entry in fmt.entries(rendered)]
    assert content[0] == content[2] == "ok"
    assert str(calls[1].parse_error) in content[1]


@each_format
def test_each_result_carries_its_own_calls_id(fmt: Format) -> None:
    """J5, J7: pairing is by position, ids as given, also equal and empty ones."""
    ids = ["same", "other", "same", "", ""]
    results = [done(call, n, f"text {n}") for n, call in enumerate(calls_of(ids))]
    rendered = fmt.render_results(results)
    assert ids_in(fmt, rendered) == ids
    content = [entry["content"] for entry in fmt.entries(rendered)]
    assert content == [f"text {n}" for n in range(5)]


@each_format
def test_value_that_cannot_be_shown(fmt: Format) -> None:
    """R6: the rendered result of that call says so, with the type's name."""
    first, second, third = calls_of(["a", "b", "c"])
    results = [done(first, 0), done(second, 1, Unprintable()), done(third, 2)]
    content = [entry["content"] for entry in fmt.entries(fmt.render_results(results))]
    assert "Unprintable" in content[1]
    assert content[0] == content[2] == "ok"


@each_format
def test_content_is_a_plain_str(fmt: Format) -> None:
    """R6: a subclass of str with methods of its own gets no say."""
    call = ToolCall(ShoutingStr("a"), "look")
    result = ToolResult(call, 0, Status.COMPLETED, value=Shouting(), is_error=True)
    (entry,) = fmt.entries(fmt.render_results([result]))
    assert {type(entry["content"]), type(entry[fmt.id_key])} == {str}
    assert entry["content"].endswith("loud")


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
        assert fmt.entries(rendered[-1])[0]["content"] == result.text
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
    first, second = (entry["content"] for entry in fmt.entries(rendered))
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
        {"output": []},
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        [{"type": "message", "role": "assistant", "content": []}],
        [object()],
    ],
)
def test_what_is_no_message_raises_a_sentence(fmt: Format, wrong: object) -> None:
    """Misuse raises at once and says what was expected."""
    with pytest.raises((TypeError, ValueError), match=r"expected|must be") as caught:
        fmt.parse_calls(wrong)
    assert len(str(caught.value).split()) > 5


@each_format
def test_history_of_sdk_objects_is_refused(fmt: Format) -> None:
    """A list of messages never passes for a message without calls."""

    class Message(PydanticLike):
        role = "assistant"
        content = "hi"

    with pytest.raises(ValueError, match="list of messages"):
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
    for result, entry in zip(results, fmt.entries(rendered), strict=True):
        if result.text.isascii() and not result.is_error:
            assert entry["content"] == result.text


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
