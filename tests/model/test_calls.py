"""P1: whatever a model sends becomes a call; what is no object is kept and explained."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyio_toolbatch import Tool, ToolCall

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    "raw", ["", "   ", "\n\t", "\u00a0", "null", " null\n", "{}", None], ids=repr
)
def test_no_arguments_in_all_their_spellings(raw: str | None) -> None:
    """Blanks, null and an empty object all mean: no arguments."""
    call = ToolCall("id", "name", raw)
    assert (call.arguments, call.parse_error) == ({}, None)


def test_arguments_may_be_left_out() -> None:
    """A call without arguments is a valid call, and no two share their mapping."""
    one, other = ToolCall("id", "name"), ToolCall("id", "name")
    assert (one.arguments, one.parse_error) == ({}, None)
    assert one.arguments is not other.arguments


def test_json_object_is_parsed_and_kept() -> None:
    """`.arguments` is the mapping, `.raw_arguments` the provider's own string."""
    raw = '{"a": 1, "b": {"c": [true, null]}}'
    call = ToolCall("id", "name", raw)
    assert call.arguments == {"a": 1, "b": {"c": [True, None]}}
    assert call.raw_arguments == raw
    assert call.parse_error is None


@pytest.mark.parametrize(
    "given_", [{"a": 1}, MappingProxyType({"a": 1})], ids=["dict", "proxy"]
)
def test_mapping_is_copied(given_: Mapping[str, Any]) -> None:
    """Changing the caller's mapping later does not change the call."""
    call = ToolCall("id", "name", given_)
    assert call.arguments == {"a": 1}
    assert type(call.arguments) is dict
    assert call.arguments is not given_
    assert call.raw_arguments is given_


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("[1, 2]", "arguments must be a JSON object, not an array"),
        ('"text"', "arguments must be a JSON object, not a string"),
        ("5", "arguments must be a JSON object, not a number"),
        ("-0.5", "arguments must be a JSON object, not a number"),
        ("NaN", "arguments must be a JSON object, not a number"),
        ("true", "arguments must be a JSON object, not a boolean"),
        ([1], "arguments must be an object, not list"),
        (5, "arguments must be an object, not int"),
        (b"{}", "arguments must be an object, not bytes"),
        ({1: "a"}, "argument names must be strings, not int"),
        ({"a": 1, None: 2}, "argument names must be strings, not NoneType"),
        ("[" * 200_000, "arguments are nested too deeply to be parsed"),
    ],
    ids=lambda item: repr(item)[:30],
)
def test_what_is_no_object_is_kept_and_explained(raw: Any, why: str) -> None:
    """P1: such a call is no exception: it carries why it cannot be run."""
    call = ToolCall("id", "name", raw)
    assert (call.arguments, call.parse_error) == ({}, why)
    assert call.raw_arguments is raw


@pytest.mark.parametrize(
    "raw",
    ['{"a": ', "{'a': 1}", "nonsense", '{"a": 1} x', "\ufeff{}", '{"a": ' + "1" * 5000],
    ids=["cut off", "single quotes", "words", "trailing", "byte order mark", "huge number"],
)
def test_broken_json_is_kept_and_explained(raw: str) -> None:
    """P1: the reason says what the parser has found."""
    call = ToolCall("id", "name", raw)
    assert call.arguments == {}
    assert call.parse_error is not None
    assert call.parse_error.startswith("arguments are not valid JSON: ")
    assert call.raw_arguments == raw


@given(st.text() | st.binary() | st.none() | st.integers() | st.lists(st.integers()))
@PROPERTY
def test_no_arguments_ever_raise(raw: Any) -> None:
    """P1: whatever the model says, there is a call, and it is valid or says why not."""
    call = ToolCall("id", "name", raw)
    assert isinstance(call.arguments, dict)
    assert call.parse_error is None or call.arguments == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.booleans())
@PROPERTY
def test_json_and_mapping_give_equal_calls(
    arguments: dict[str, Any], ascii_only: bool
) -> None:
    """Equality looks at what is meant, not at how it was written."""
    as_text = ToolCall("id", "name", json.dumps(arguments, ensure_ascii=ascii_only))
    as_mapping = ToolCall("id", "name", arguments)
    assert as_text.arguments == arguments
    assert as_text == as_mapping
    assert hash(as_text) == hash(as_mapping)


def test_python_only_numbers_are_taken() -> None:
    """Some models write NaN and Infinity; Python's parser takes them."""
    arguments = ToolCall("id", "name", '{"a": NaN, "b": -Infinity}').arguments
    assert math.isnan(arguments["a"])
    assert arguments["b"] == -math.inf


def a_tool() -> None: ...


def test_what_takes_no_part_in_equality() -> None:
    """Tool, metadata and the provider's own item are beside the point."""
    plain = ToolCall("id", "name", {"a": 1})
    full = ToolCall("id", "name", {"a": 1}, tool=a_tool, metadata=object(), wire={"x": 1})
    assert plain == full
    assert hash(plain) == hash(full)


@pytest.mark.parametrize(
    "other",
    [
        ToolCall("other", "name", {"a": 1}),
        ToolCall("id", "other", {"a": 1}),
        ToolCall("id", "name", {"a": 2}),
        ToolCall("id", "name", "[]"),
        ToolCall("id", "name"),
        "id",
    ],
    ids=repr,
)
def test_what_makes_calls_different(other: object) -> None:
    """Id, name and arguments tell calls apart; so does being unparsable."""
    assert ToolCall("id", "name", {"a": 1}) != other


def test_invalid_calls_are_compared_by_what_was_given() -> None:
    """Two calls that cannot be run are not alike only because both are broken."""
    assert ToolCall("id", "name", "[1]") == ToolCall("id", "name", "[1]")
    assert ToolCall("id", "name", "[1]") != ToolCall("id", "name", "[2]")
    assert ToolCall("id", "name", "[1]") != ToolCall("id", "name", {})


def test_metadata_and_wire_are_kept_untouched() -> None:
    """The very objects come back."""
    metadata, wire = object(), {"type": "function"}
    call = ToolCall("id", "name", metadata=metadata, wire=wire, tool=a_tool)
    assert (call.metadata, call.wire, call.tool) == (metadata, wire, a_tool)
    assert call.metadata is metadata and call.wire is wire


def test_own_tool_may_be_a_tool_or_a_callable() -> None:
    """A call may bring its tool along, in either form."""
    made = Tool(a_tool)
    assert ToolCall("id", "name", tool=made).tool is made
    assert ToolCall("id", "name", tool=a_tool).tool is a_tool


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolCall(5, "name"), "ToolCall id must be a str, not int"),  # type: ignore[arg-type]
        (lambda: ToolCall(None, "name"), "ToolCall id must be a str, not NoneType"),  # type: ignore[arg-type]
        (lambda: ToolCall("id", b"name"), "ToolCall name must be a str, not bytes"),  # type: ignore[arg-type]
        (
            lambda: ToolCall("id", "name", tool="search"),  # type: ignore[arg-type]
            "ToolCall tool must be a Tool or a callable, not str",
        ),
    ],
    ids=["id int", "id None", "name", "tool"],
)
def test_misuse_is_raised_at_once(make: Any, message: str) -> None:
    """The programmer's mistakes are not the model's: they raise."""
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == message


def test_ids_and_names_may_be_empty() -> None:
    """Some providers send no id: calls are kept apart by position."""
    call = ToolCall("", "")
    assert (call.id, call.name) == ("", "")


def test_repr_shows_what_was_asked() -> None:
    """The arguments as parsed, or as given where they could not be."""
    assert repr(ToolCall("id", "name", '{"a": 1}')) == "ToolCall('id', 'name', {'a': 1})"
    assert repr(ToolCall("id", "name", "[1]")) == "ToolCall('id', 'name', '[1]')"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_are_equal(again: Any) -> None:
    """Copied and pickled calls are the same calls, wire and metadata included."""
    call = ToolCall("id", "name", "[1]", metadata=["m"], wire={"w": 1})
    made = again(call)
    assert made == call
    assert (made.metadata, made.wire, made.parse_error) == (["m"], {"w": 1}, call.parse_error)
