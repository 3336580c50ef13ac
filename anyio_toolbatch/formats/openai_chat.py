"""
The OpenAI Chat Completions format, as OpenAI and the many compatible servers speak it.

Every item of `tool_calls` needs an answer, or the next request is refused: so
every item becomes a call, also one that is no call at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._model.calls import ToolCall
from .._model.results import Status, ToolResult
from ._plain import (
    as_array,
    as_object,
    encodable,
    fresh,
    never_arguments,
    refuse_history,
    str_or_empty,
)

__all__ = ("parse_calls", "render_results")

_EXPECTED = "an OpenAI Chat assistant message, the whole response, or its list of tool_calls"


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls of an assistant message, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    what is no object where arguments are due makes the call invalid, with the
    reason in `parse_error`. A call of ``type: custom`` has free text for
    arguments; its tool is given it as ``input``. Arguments that a server sends
    as an object, not as JSON text, are taken too.

    Args:
        message: The assistant message, or the whole response (of several
            choices the first counts), or the bare list of tool calls. Dicts,
            or SDK objects with `model_dump()` or `to_dict()`, at any level.

    Returns:
        One call per item; `wire` holds the item, the very dict where it was
        one. A message without calls gives an empty list.

    Raises:
        TypeError: `message` or an item in it is neither JSON data nor an SDK
            object.
        ValueError: It is no assistant message: a history, another provider's
            message, a streamed chunk, the deprecated `function_call`.

    .. versionadded:: 0.1
    """
    return [_call(item) for item in _items(message)]


def render_results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """
    Return the messages to append to the next request; never raises for a result.

    The content is the result's `text`. This format has no mark for errors:
    where the tool's own words report one (it raised, or returned a
    `ToolOutput` marked as an error), they are prefixed with ``Error:``, unless
    they start so. Placeholders (interrupted, timed out, denied, not started)
    speak for themselves and stay as they are.

    Args:
        results: The results of one batch, in call order.

    Returns:
        One ``tool`` message per result, in the same order, ids as given; lone
        surrogates, which UTF-8 cannot carry, are replaced by U+FFFD.

    .. versionadded:: 0.1
    """
    return [
        {
            "role": "tool",
            "tool_call_id": encodable(result.call.id),
            "content": _content(result),
        }
        for result in results
    ]


def _items(message: object) -> Sequence[Any]:
    bare = as_array(message)
    if bare is not None:
        refuse_history(bare, _EXPECTED)
        return bare
    found = as_object(message, "message")
    if found is None:
        msg = f"expected {_EXPECTED}, not {type(message).__name__}"
        raise TypeError(msg)
    if "choices" in found:
        found = _message_of(found)
    given = found.get("tool_calls")
    if given is None:
        _check_without_calls(found)
        return ()
    items = as_array(given)
    if items is None:
        msg = f"tool_calls must be a list, not {type(given).__name__}"
        raise ValueError(msg)
    return items


def _message_of(response: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = as_array(response["choices"])
    if not choices:
        msg = "the response has no choices, so there is no message to parse"
        raise ValueError(msg)
    choice = as_object(choices[0], "choice")
    if choice is not None and "delta" in choice:
        msg = "this is a streamed chunk; put the chunks together into a message first"
        raise ValueError(msg)
    message = None if choice is None else as_object(choice.get("message"), "message")
    if message is None:
        msg = "the first choice of the response has no message"
        raise ValueError(msg)
    return message


def _check_without_calls(message: Mapping[str, Any]) -> None:
    """Raise unless this is an assistant message that simply asks for no tool."""
    role = message.get("role")
    if role is None and not {"content", "tool_calls"} & message.keys():
        msg = f"expected {_EXPECTED}, not a dict without role, content or tool_calls"
        raise ValueError(msg)
    if role not in (None, "assistant"):
        msg = f"expected {_EXPECTED}, not a message with the role {role!r}"
        raise ValueError(msg)
    # Both would pass for "no calls", and an agent would stop without a word.
    legacy = as_object(message.get("function_call"), "function_call")
    if legacy is not None and legacy.get("name"):
        msg = "the deprecated function_call is not supported; use tools and tool_calls"
        raise ValueError(msg)
    for item in as_array(message.get("content")) or ():
        part = as_object(item, "a content part")
        if part is not None and part.get("type") == "tool_use":
            msg = f"expected {_EXPECTED}, not an Anthropic message"
            raise ValueError(msg)


def _call(item: object) -> ToolCall:
    found = as_object(item, "a tool call")
    if found is None:
        return ToolCall("", "", never_arguments(item), wire=item)
    # Compatible servers leave `type` out: what else is there decides.
    is_custom = found.get("type") == "custom" or (
        found.get("function") is None and found.get("custom") is not None
    )
    key = "custom" if is_custom else "function"
    given = found.get(key)
    body = as_object(given, f"{key!r} of a tool call")
    arguments: Any
    if body is None:
        arguments = never_arguments(given)
    elif is_custom:
        text = body.get("input")
        arguments = {"input": text} if isinstance(text, str) else never_arguments(text)
    else:
        arguments = fresh(body.get("arguments"))
    name = "" if body is None else str_or_empty(body.get("name"))
    return ToolCall(str_or_empty(found.get("id")), name, arguments, wire=found)


def _content(result: ToolResult) -> str:
    text = encodable(result.text)
    is_own_words = result.reason is None and result.status in _TOOL_ANSWERED
    if result.is_error and is_own_words and not text.lower().startswith("error:"):
        return f"Error: {text}"
    return text


_TOOL_ANSWERED = {Status.COMPLETED, Status.FAILED, Status.INVALID}
