"""
The OpenAI Responses format: one input item for each call, paired by `call_id`.

Only items that this client runs are calls: functions, custom tools, and of the
provider's own kinds the shells, patches, computer and client-run tool search.
What the provider runs itself (``web_search_call``, ``mcp_call``, a shell in its
container) gets no answer from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._model.calls import ToolCall
from .._model.results import LateResult, ToolResult
from ._openai_builtin import shell_texts
from ._openai_responses_repair import repair
from ._openai_responses_stream import CallStream
from ._openai_responses_wire import (
    OUTPUT_OF,
    call_of,
    is_async,
    is_ours,
    is_whole,
    label_of_output,
    output_of,
)
from ._plain import (
    as_array,
    as_object,
    encodable,
    is_one_of,
    object_of,
    other_object,
    refuse_strangers,
    str_or_empty,
)
from ._stream import cut_off
from ._wording import ContentFunction, Spill, Wording, marked_text, result_of

__all__ = ("CallStream", "parse_calls", "render_late", "render_results", "repair")

_EXPECTED = "an OpenAI response or its list of output items"

_CLIENT_ROLES = {"user", "system", "developer", "tool"}

_WITH_ERROR_MARK = {"apply_patch_call", "shell_call"}
"""Calls whose outputs say in a field that something failed."""

_WITHOUT_WORDS = {"computer_call", "tool_search_call"}
"""Calls whose outputs are a picture, or tools: there is nothing to count or to cut."""


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls for this client, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    arguments that are no object make the call invalid, with the reason in
    `parse_error`; so does the status ``incomplete``, whatever has arrived of
    them, and the end of a response that was cut off, where its last item does
    not say that it is whole. A custom tool is given its text as ``input``. The built-in ones are
    called ``shell`` and ``local_shell`` (with `action`), ``apply_patch`` (with
    `operation`), ``computer`` (with `action` or `actions`, and
    `pending_safety_checks`) and ``tool_search`` (with its arguments).

    Args:
        message: The whole response, or the bare list of its output items.
            Dicts, or SDK objects with `model_dump()` or `to_dict()`, at any
            level.

    Returns:
        One call per item that this client has to answer; `wire` holds the
        item, the very dict where it was one.

    Raises:
        TypeError: `message` or an item in it is neither JSON data nor an SDK
            object.
        ValueError: It is no response: a history, another provider's message.

    .. versionadded:: 0.1
    """
    response, given = _items(message)
    items = [as_object(item, "an output item") for item in given]
    answered = {
        (str_or_empty(item.get("type")), label_of_output(item))
        for item in items
        if item is not None
    }
    calls: list[ToolCall] = []
    has_ended = response.get("status") in (None, "completed")
    for place, item in enumerate(items, 1):
        if item is None or not is_ours(item):
            continue
        call = call_of(item)
        if (OUTPUT_OF[item["type"]], call.id) not in answered or not call.id:
            is_end = place == len(items) and not has_ended
            calls.append(cut_off(call) if is_end and not is_whole(item, call) else call)
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
    Return the input items to append to the next request; never raises for a result.

    The output is the result's `text`, with ``Error:`` before what a tool
    reports as an error, since there is no mark for it; patches and shells have
    fields of their own for that. A call that was cut is ``incomplete``. One
    that the model does not wait for (``async: true``) and that goes on
    (``on_interrupt="keep"``) is ``in_progress``: its final output may come
    later, see `render_late`.

    Args:
        results: The results of one batch, in call order.
        content, max_chars_per_result, max_chars_total, spill: Own words and a
            budget, alike in all formats: see the page on formats.

    Returns:
        One output item per result, in the same order, of the kind that its call
        asks for, ids and callers as given; lone surrogates are replaced by
        U+FFFD. An item for the computer has no place for words: without a
        screenshot it shows an empty one.

    Raises:
        TypeError: There is something else than results among them, an option is
            of the wrong type, or a function in one returned something else than
            it should.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    wording = Wording(content, max_chars_per_result, max_chars_total, spill)
    return [output_of(worded) for worded in wording.word(results, _text, _own_limit)]


def render_late(
    late: LateResult,
    sent: Sequence[Any],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    spill: Spill | None = None,
) -> list[dict[str, Any]]:
    """
    Return the final output of a call that was answered as pending.

    Args:
        late: What `on_late` was given.
        sent: What the provider has been sent: the whole history, or what
            `render_results` gave for the call's batch and all that came after.
            With it nothing is ever answered twice.
        content, max_chars_per_result, spill: As in `render_results`; `content`
            is given a result that is completed or failed.

    Returns:
        A list with the one input item to append. It is empty where the call is
        not pending, since it had its final output, or was never one that the
        model goes on without.

    Raises:
        TypeError: As `render_results`; or `sent` is no list of items.

    .. versionadded:: 0.1
    """
    call = late.call
    kind = call.wire.get("type") if isinstance(call.wire, Mapping) else None
    if kind != "function_call" or not is_async(call.wire):
        return []
    outputs = [
        item
        for item in (as_object(item, "an input item") or {} for item in sent)
        if item.get("type") == OUTPUT_OF[kind] and label_of_output(item) == encodable(call.id)
    ]
    if not outputs or any(item.get("status") != "in_progress" for item in outputs):
        return []
    return render_results(
        [result_of(late)],
        content=content,
        max_chars_per_result=max_chars_per_result,
        spill=spill,
    )


def _items(message: object) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """Return the response, as far as there is one, and its output items."""
    items = as_array(message)
    response: Mapping[str, Any] = {}
    if items is None:
        response = object_of(message, "message", _EXPECTED)
        items = as_array(response.get("output"))
        if items is None:
            raise other_object(response, _EXPECTED)
    refuse_strangers(items, "openai_responses", _EXPECTED)
    for item in items:
        # A history would pass for a response, and its old calls would run again.
        role, kind = _value(item, "role"), _value(item, "type")
        if is_one_of(role, _CLIENT_ROLES) or (role == "assistant" and kind is None):
            msg = f"expected {_EXPECTED}, not a list of messages; pass the last response alone"
            raise ValueError(msg)
    return response, items


def _value(item: object, name: str) -> object:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _kind(result: ToolResult) -> str:
    wire = result.call.wire
    return str_or_empty(wire.get("type")) if isinstance(wire, Mapping) else ""


def _text(result: ToolResult) -> str | list[dict[str, Any]] | None:
    kind = _kind(result)
    if kind in _WITHOUT_WORDS:
        return None
    if kind == "shell_call" and (texts := shell_texts(result)) is not None:
        return texts
    return result.text if kind in _WITH_ERROR_MARK else marked_text(result)


def _own_limit(result: ToolResult) -> int | None:
    """Return how much output the model itself has asked for, of a shell."""
    if _kind(result) != "shell_call":
        return None
    action = result.call.wire.get("action")
    limit = action.get("max_output_length") if isinstance(action, Mapping) else None
    return limit if isinstance(limit, int) and limit >= 0 else None
