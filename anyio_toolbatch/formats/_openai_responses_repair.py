"""
OpenAI Responses' rule for histories: one final output for each call, anywhere behind it.

A call that the model does not wait for may have one pending output before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._model.results import Status, ToolResult
from ._openai_responses_wire import (
    OUTPUT_OF,
    call_of,
    is_async,
    is_ours,
    label_of_output,
    output_of,
)
from ._plain import encodable
from ._repair import LOST, Entry, as_history, plan
from ._wording import Worded

__all__ = ("repair",)

_OUTPUTS = frozenset(OUTPUT_OF.values())


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the input items with exactly one final output for each call; idempotent.

    A call without an output gets a placeholder, behind the outputs of its turn,
    that says what is known of it: nothing. Outputs that answer no call, or one
    that has its output already, are left out. The pending output of an
    asynchronous call is enough, and is no obstacle to the final one.

    What the provider runs itself is left alone, and so are outputs behind an
    ``item_reference``, which may stand for their calls, and those without a
    `call_id`.

    Args:
        messages: All input items; where the provider keeps the conversation
            (``previous_response_id``), the calls are not among them and their
            outputs would be left out. Dicts or SDK objects. It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of items.

    .. versionadded:: 0.1
    """
    history, fields = as_history(messages, "Responses input items")
    calls: list[Entry] = []
    items: list[dict[str, Any]] = []  # those of the calls
    finals: list[Entry] = []
    final_places: list[int] = []
    pendings: list[Entry] = []
    pending_places: list[int] = []
    kept: set[int] = set()  # the places of outputs that stay
    turns: list[int] = []
    has_reference, was_client, turn = False, True, -1
    for place, found in enumerate(fields):
        kind = found.get("type")
        is_client = kind in _OUTPUTS or found.get("role") not in (None, "assistant")
        turn += was_client and not is_client
        was_client = is_client
        turns.append(turn)
        has_reference = has_reference or _is_reference(found)
        if kind in OUTPUT_OF:
            calls.append(Entry(turn, (OUTPUT_OF[kind], encodable(call_of(found).id))))
            items.append(found)
        elif kind in _OUTPUTS:
            label = label_of_output(found)
            if label is None or has_reference:
                kept.add(place)
            is_pending = found.get("status") == "in_progress"
            (pendings if is_pending else finals).append(Entry(turn, (kind, label)))
            (pending_places if is_pending else final_places).append(place)
    answered, places = _pair(calls, finals, final_places)
    kept.update(places)
    waiting = [n for n, item in enumerate(items) if is_async(item)]
    also, places = _pair([calls[n] for n in waiting], pendings, pending_places)
    for index, place in zip(also, places, strict=True):
        call = waiting[index]
        if call not in answered or place < answered[call]:
            kept.add(place)
            answered.setdefault(call, place)
    # Of other calls it is an output like any other, if they have none.
    others = [n for n in range(len(calls)) if n not in answered]
    also, places = _pair([calls[n] for n in others], pendings, pending_places)
    kept.update(places)
    answered.update((others[index], place) for index, place in zip(also, places, strict=True))
    lost: dict[int, list[Any]] = {}
    for n, item in enumerate(items):
        if n not in answered and is_ours(item):
            lost.setdefault(calls[n].turn, []).append(_placeholder(item))
    repaired: list[Any] = []
    for place, item in enumerate(history):
        if fields[place].get("type") not in _OUTPUTS or place in kept:
            repaired.append(item)
        is_last = place + 1 == len(history)
        if is_last or turns[place + 1] != turns[place] or _is_message(fields[place + 1]):
            repaired.extend(lost.pop(turns[place], ()))
    return repaired


def _pair(
    calls: list[Entry], results: list[Entry], places: list[int]
) -> tuple[dict[int, int], list[int]]:
    """Return, for each call that has a result, the place of it; and these places."""
    pairs = {
        call: places[result]
        for rows in plan(calls, results).values()
        for call, result in rows
        if result is not None
    }
    return pairs, list(pairs.values())


def _is_reference(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    # Its type may be left out.
    return kind == "item_reference" or (kind is None and set(item) == {"id"})


def _is_message(item: dict[str, Any]) -> bool:
    return item.get("role") not in (None, "assistant")


def _placeholder(item: dict[str, Any]) -> dict[str, Any]:
    result = ToolResult(call_of(item), 0, Status.INTERRUPTED)
    return output_of(Worded(result, LOST, is_own=False))
