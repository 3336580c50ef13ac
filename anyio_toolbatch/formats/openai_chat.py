"""
The OpenAI Chat Completions format, as OpenAI and the many compatible servers speak it.

Every item of `tool_calls` needs an answer, or the next request is refused: so
every item becomes a call, also one that is no call at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._model.calls import ToolCall
from .._model.results import ToolResult
from ._openai_chat_stream import CallStream
from ._openai_chat_wire import CUT_REASONS, call_of, has_arguments, is_models, tool_message
from ._plain import (
    as_array,
    as_object,
    encodable,
    is_one_of,
    object_of,
    refuse_history,
    refuse_strangers,
    str_or_empty,
)
from ._repair import LOST, Entry, as_history, plan
from ._stream import cut_off
from ._wording import ContentFunction, Spill, Wording, marked_text

__all__ = ("CallStream", "parse_calls", "render_results", "repair")

_EXPECTED = "an OpenAI Chat assistant message, the whole response, or its list of tool_calls"


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls of an assistant message, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    what is no object where arguments are due makes the call invalid, with the
    reason in `parse_error`. A call of ``type: custom`` has free text for
    arguments; its tool is given it as ``input``. Arguments that a server sends
    as an object, not as JSON text, are taken too. A call without arguments at
    the end of a response that was cut off (``finish_reason: length``) is
    invalid: it may have been about to get some.

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
    items, is_cut = _items(message)
    calls = [call_of(item) for item in items]
    if is_cut and calls and not has_arguments(items[-1]):
        calls[-1] = cut_off(calls[-1])
    return calls


def render_results(
    results: Iterable[ToolResult],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    max_chars_total: int | None = None,
    spill: Spill | None = None,
) -> list[dict[str, Any]]:
    """
    Return the messages to append to the next request; never raises for a result.

    The content is the result's `text`. This format has no mark for errors:
    where the tool's own words report one (it raised, or returned a
    `ToolOutput` marked as an error), they are prefixed with ``Error:``, unless
    they start so. Placeholders (interrupted, timed out, denied, not started)
    speak for themselves and stay as they are.

    Args:
        results: The results of one batch, in call order.
        content, max_chars_per_result, max_chars_total, spill: Own words and a
            budget, alike in all formats: see the page on formats.

    Returns:
        One ``tool`` message per result, in the same order, ids as given; lone
        surrogates, which UTF-8 cannot carry, are replaced by U+FFFD.

    Raises:
        TypeError: There is something else than results among them, an option is
            of the wrong type, or a function in one returned something else than
            it should.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    wording = Wording(content, max_chars_per_result, max_chars_total, spill)
    return [
        tool_message(worded.result.call.id, worded.content)
        for worded in wording.word(results, marked_text)
    ]


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the history with exactly one result for each call; idempotent.

    A call without a result gets a placeholder that says what is known of it:
    nothing. Results stand directly behind the message with their calls: one
    that something else has come between is moved there. Results that answer no
    call, or one that has its result already, are left out.

    Args:
        messages: The whole history; of a part, results whose calls are not in
            it would be left out. Dicts or SDK objects. It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of messages.

    .. versionadded:: 0.1
    """
    history, fields = as_history(messages, "Chat Completions messages")
    calls: list[Entry] = []
    results: list[Entry] = []
    given: list[Any] = []
    turn = -1
    for message, found in zip(history, fields, strict=True):
        if found.get("role") == "tool":
            id_ = encodable(str_or_empty(found.get("tool_call_id")))
            results.append(Entry(turn, id_))
            given.append(message)
        elif ids := _call_ids(found):
            turn += 1
            calls.extend(Entry(turn, id_) for id_ in ids)
    plans = plan(calls, results)
    repaired: list[Any] = []
    turn = -1
    for message, found in zip(history, fields, strict=True):
        if found.get("role") == "tool":
            continue
        repaired.append(message)
        if _call_ids(found):
            turn += 1
            repaired.extend(
                tool_message(str(calls[call].label), LOST) if result is None else given[result]
                for call, result in plans[turn]
            )
    return repaired


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    items = as_array(message.get("tool_calls")) if is_models(message) else None
    return [encodable(call_of(item).id) for item in items or ()]


def _items(message: object) -> tuple[Sequence[Any], bool]:
    """Return the tool calls, and whether the message may end in the middle of one."""
    bare = as_array(message)
    if bare is not None:
        refuse_history(bare, _EXPECTED)
        refuse_strangers(bare, "openai_chat", _EXPECTED)
        return bare, False
    found, is_cut = object_of(message, "message", _EXPECTED), False
    if "choices" in found:
        found, is_cut = _message_of(found)
    if not is_models(found):
        msg = f"expected {_EXPECTED}, not a message with the role {found['role']!r}"
        raise ValueError(msg)
    given = found.get("tool_calls")
    if given is None:
        _check_without_calls(found)
        return (), False
    items = as_array(given)
    if items is None:
        msg = f"tool_calls must be a list, not {type(given).__name__}"
        raise ValueError(msg)
    return items, is_cut


def _message_of(response: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
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
    return message, is_one_of((choice or {}).get("finish_reason"), CUT_REASONS)


def _check_without_calls(message: Mapping[str, Any]) -> None:
    """Raise unless this is an assistant message that simply asks for no tool."""
    if message.get("role") is None and not {"content", "tool_calls"} & message.keys():
        msg = f"expected {_EXPECTED}, not a dict without role, content or tool_calls"
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
