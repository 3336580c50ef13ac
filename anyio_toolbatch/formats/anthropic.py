"""
The Anthropic Messages format.

Only ``tool_use`` blocks ask this client for something. What the provider runs
itself (``server_tool_use``, ``mcp_tool_use``, their results) gets no answer
from here: a result without a call is refused just as a call without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from .._model.calls import ToolCall
from .._model.results import ToolResult
from ._plain import as_array, as_object, encodable, fresh, refuse_history, str_or_empty

__all__ = ("parse_calls", "render_results")

_EXPECTED = "an Anthropic assistant message or its list of content blocks"

# The provider's own convention for streamed input that turned out to be no JSON.
_INVALID_JSON = "INVALID_JSON"

# An error without content is refused ("content cannot be empty if `is_error`
# is true"); blanks would say as little.
_SILENT_ERROR = "The tool reported an error without a message."


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls for this client, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    an `input` that is no object makes the call invalid, with the reason in
    `parse_error`. So does the wrapper ``{"INVALID_JSON": "…"}``: the text in
    it counts as the arguments, and is judged as any other JSON text.

    Args:
        message: The assistant message, which is also the whole response, or
            the bare list of content blocks. Dicts, or SDK objects with
            `model_dump()` or `to_dict()`, at any level.

    Returns:
        One call per ``tool_use`` block; `wire` holds the block, the very dict
        where it was one. A message without calls gives an empty list.

    Raises:
        TypeError: `message` or a block in it is neither JSON data nor an SDK
            object.
        ValueError: It is no assistant message: a history, another provider's
            message, an object without content.

    .. versionadded:: 0.1
    """
    calls: list[ToolCall] = []
    for item in _blocks(message):
        block = as_object(item, "a content block")
        if block is not None and block.get("type") == "tool_use":
            calls.append(_call(block))
    return calls


def render_results(results: Iterable[ToolResult]) -> dict[str, Any]:
    """
    Return the one user message to append; never raises for a result.

    The message is the caller's to extend: text of the user belongs behind the
    results, in the same message.

    Args:
        results: The results of one batch, in call order.

    Returns:
        A ``user`` message with one ``tool_result`` block per result, in the
        same order, ids as given; ``is_error`` is there where the result is an
        error, and `toolset_name` where the call had one. Lone surrogates,
        which UTF-8 cannot carry, are replaced by U+FFFD. Of no results, a
        message with empty content: append it only when something is in it.

    .. versionadded:: 0.1
    """
    return {"role": "user", "content": [_block(result) for result in results]}


def _blocks(message: object) -> Sequence[Any]:
    bare = as_array(message)
    if bare is not None:
        refuse_history(bare, _EXPECTED)
        return bare
    found = as_object(message, "message")
    if found is None:
        msg = f"expected {_EXPECTED}, not {type(message).__name__}"
        raise TypeError(msg)
    role = found.get("role")
    if role not in (None, "assistant"):
        msg = f"expected {_EXPECTED}, not a message with the role {role!r}"
        raise ValueError(msg)
    if found.get("tool_calls") is not None:
        # Its content may be a plain text, and its calls would be lost.
        msg = f"expected {_EXPECTED}, not an OpenAI message with tool_calls"
        raise ValueError(msg)
    content = found.get("content")
    if isinstance(content, str):
        return ()
    blocks = as_array(content)
    if blocks is None:
        given = type(content).__name__ if "content" in found else "missing"
        msg = f"expected {_EXPECTED}, but content is {given}, not a list or a str"
        raise ValueError(msg)
    return blocks


def _call(block: Mapping[str, Any]) -> ToolCall:
    return ToolCall(
        str_or_empty(block.get("id")),
        str_or_empty(block.get("name")),
        _unwrapped(fresh(block.get("input"))),
        wire=block,
    )


def _unwrapped(given: object) -> Any:
    if not isinstance(given, Mapping):
        return given
    arguments = cast("Mapping[str, Any]", given)
    text = arguments.get(_INVALID_JSON)
    # Beside other keys it is an argument like any other.
    return text if len(arguments) == 1 and isinstance(text, str) else arguments


def _block(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": encodable(result.call.id),
    }
    wire = result.call.wire
    if isinstance(wire, Mapping):
        toolset = cast("Mapping[str, Any]", wire).get("toolset_name")
        if isinstance(toolset, str):
            block["toolset_name"] = encodable(toolset)
    text = encodable(result.text)
    if result.is_error:
        block["content"] = text if text.strip() else _SILENT_ERROR
        block["is_error"] = True
    else:
        block["content"] = text
    return block
