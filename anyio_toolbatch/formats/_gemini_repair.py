"""
Gemini's rule for histories: behind the model's turn, as many responses as calls.

Contents of the model in a row are one turn, as a stream leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._gemini_wire import CALL, RESPONSE, call_of, field, id_of, is_models, response_part
from ._plain import as_array, as_object, encodable, str_or_empty
from ._repair import LOST, Entry, as_history, plan

__all__ = ("repair",)


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the contents with exactly one response for each call; idempotent.

    A call without a response gets a placeholder that says what is known of it:
    nothing. All responses of a turn stand in the one content behind it; where
    that holds none of them, they get a content of their own. Responses that
    answer no call, or one that has its response already, are left out, and so
    is a content that held nothing else. The model's contents are never touched:
    their thought signatures stay.

    Args:
        messages: The whole history; of a part, responses whose calls are not in
            it would be left out. Dicts or SDK objects. It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of contents.

    .. versionadded:: 0.1
    """
    history, fields = as_history(messages, "Gemini contents")
    calls: list[Entry] = []
    parts: list[dict[str, Any]] = []  # those of the calls
    results: list[Entry] = []
    given: list[Any] = []  # the response parts, as they are
    turns: list[int] = []
    turn, was_model = -1, False
    for found in fields:
        is_model = is_models(found)
        turn += is_model and not was_model
        was_model = is_model
        turns.append(turn)
        for part, part_fields in _parts_of(found):
            body = _body(part_fields, RESPONSE)
            if is_model and field(part_fields, *CALL) is not None:
                call = call_of(part_fields)
                label = encodable(call.id) or None
                calls.append(Entry(turn, label, encodable(call.name)))
                parts.append(part_fields)
            elif not is_model and body is not None:
                name = encodable(str_or_empty(body.get("name")))
                results.append(Entry(turn, id_of(body), name))
                given.append(part)
    plans = plan(calls, results)
    repaired: list[Any] = []
    due: list[Any] = []
    for place, (content, found) in enumerate(zip(history, fields, strict=True)):
        if is_models(found):
            repaired.append(content)
            due = [
                _placeholder(parts[call]) if result is None else given[result]
                for call, result in plans.get(turns[place], ())
            ]
        else:
            repaired.extend(_followed(content, found, due))
            due = []
    return [*repaired, {"role": "user", "parts": due}] if due else repaired


def _followed(content: Any, found: dict[str, Any], due: list[Any]) -> list[Any]:
    """Return a content that follows a turn, with the responses that are due alone."""
    parts = _parts_of(found)
    has = [part for part, fields in parts if _body(fields, RESPONSE) is not None]
    others = [part for part, fields in parts if _body(fields, RESPONSE) is None]
    if len(has) == len(due) and all(a is b for a, b in zip(has, due, strict=True)):
        return [content]
    if any(part is one for part in has for one in due):
        return [{**found, "parts": [*due, *others]}]
    rest = [] if has and not others else [{**found, "parts": others} if has else content]
    return [{"role": "user", "parts": due}, *rest] if due else rest


def _parts_of(content: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    return [
        (part, dict(as_object(part, "a part") or {}))
        for part in as_array(content.get("parts")) or ()
    ]


def _body(part: dict[str, Any], names: tuple[str, str]) -> dict[str, Any] | None:
    body = as_object(field(part, *names), "a part's body")
    return None if body is None else dict(body)


def _placeholder(part: dict[str, Any]) -> dict[str, Any]:
    call = call_of(part)
    return response_part(call.id, call.name, {"error": LOST})
