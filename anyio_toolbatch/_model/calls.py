"""A call: what the model asked for, kept as it was given."""

# Arguments are checked at run time, too: not everybody runs a type checker.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from .frozen import Frozen

if TYPE_CHECKING:
    from .tools import Tool

__all__ = ("ToolCall", "broken_call")


class ToolCall(Frozen):
    """
    One request of the model: an id, a tool's name, arguments.

    Args:
        id: The provider's label; echoed with the result. It need not be unique
            or non-empty: calls are kept apart by their position in the batch.
        name: The tool's name.
        arguments: A mapping with string keys, or the provider's JSON string.
            ``""``, blanks, ``"null"`` and None mean no arguments. Anything
            else is kept in `raw_arguments` and makes the call *invalid*: it
            gets its result without ever being run.
        tool: A `Tool` or callable that serves this call, in place of the
            look-up by name.
        metadata: The caller's own; never read by the library.
        wire: The provider's own item, untouched, for rendering the result.

    Raises:
        TypeError: `id` or `name` is no string, or `tool` is not callable.

    `tool`, `metadata` and `wire` take no part in equality.
    """

    __slots__ = (
        "arguments",
        "id",
        "metadata",
        "name",
        "parse_error",
        "raw_arguments",
        "tool",
        "wire",
    )

    id: str
    name: str
    arguments: dict[str, Any]
    """The parsed arguments; empty where they could not be parsed."""
    raw_arguments: Any
    """What was given."""
    parse_error: str | None
    """Why the arguments are no object; None where they are one."""
    tool: Tool | Callable[..., Any] | None
    metadata: Any
    wire: Any

    def __init__(
        self,
        id: str,  # noqa: A002 - the providers' own word
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        tool: Tool | Callable[..., Any] | None = None,
        metadata: Any = None,
        wire: Any = None,
    ) -> None:
        if not isinstance(id, str):
            msg = f"ToolCall id must be a str, not {type(id).__name__}"
            raise TypeError(msg)
        if not isinstance(name, str):
            msg = f"ToolCall name must be a str, not {type(name).__name__}"
            raise TypeError(msg)
        if tool is not None and not callable(tool):
            msg = f"ToolCall tool must be a Tool or a callable, not {type(tool).__name__}"
            raise TypeError(msg)
        if arguments is None:
            arguments = {}
        parsed, parse_error = parse_arguments(arguments)
        fill = object.__setattr__
        fill(self, "id", id)
        fill(self, "name", name)
        fill(self, "arguments", parsed)
        fill(self, "raw_arguments", arguments)
        fill(self, "parse_error", parse_error)
        fill(self, "tool", tool)
        fill(self, "metadata", metadata)
        fill(self, "wire", wire)

    def _identity(self) -> tuple[Any, ...]:
        if self.parse_error is None:
            return (self.id, self.name, self.arguments)
        return (self.id, self.name, self.raw_arguments, self.parse_error)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        shown = self.raw_arguments if self.parse_error else self.arguments
        return f"ToolCall({self.id!r}, {self.name!r}, {shown!r})"


def broken_call(id: str, name: str, raw: object, why: str, *, wire: object) -> ToolCall:  # noqa: A002
    """
    Return a call that is invalid whatever its arguments look like.

    Arguments that were cut off may happen to be whole JSON, or nothing at all,
    which would mean "none": only who saw the cut can tell.
    """
    call = ToolCall(id, name, wire=wire)
    object.__setattr__(call, "raw_arguments", raw)
    object.__setattr__(call, "parse_error", why)
    return call


def parse_arguments(raw: object) -> tuple[dict[str, Any], str | None]:
    """Return the arguments as a mapping, and why they are none (or None)."""
    if isinstance(raw, Mapping):
        return _checked_mapping(raw)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(raw, str):
        return {}, f"arguments must be an object, not {type(raw).__name__}"
    if not raw or raw.isspace():
        return {}, None
    try:
        value: Any = json.loads(raw)
    except RecursionError:
        return {}, "arguments are nested too deeply to be parsed"
    except ValueError as exc:
        return {}, f"arguments are not valid JSON: {exc}"
    if value is None:
        return {}, None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value), None
    return {}, f"arguments must be a JSON object, not {_JSON_NAMES[type(value)]}"


_JSON_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


def _checked_mapping(raw: Mapping[Any, Any]) -> tuple[dict[str, Any], str | None]:
    arguments = dict(raw)
    for key in arguments:
        if not isinstance(key, str):
            return {}, f"argument names must be strings, not {type(key).__name__}"
    return arguments, None
