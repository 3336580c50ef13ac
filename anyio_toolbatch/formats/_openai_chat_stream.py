"""
Chat Completions chunks to calls, also of servers that bend the rules.

By the rules a piece names its call by `index`; id and name come once, the
arguments in pieces. In the field the index is missing or always 0, calls come
whole, ids and names come again with each piece. No event says that a call is
complete: its JSON does, when another call has begun, and the finish reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from .._model.calls import ToolCall
from ._openai_chat_wire import CUT_REASONS, call_of
from ._plain import as_array, as_object, encodable, fresh, other_object, str_or_empty
from ._stream import Slot, Slots, cut_off, event_of, place_of

__all__ = ("CallStream",)

_EXPECTED = "a Chat Completions chunk"

_SUBSTANCE = ("content", "refusal", "audio", "tool_calls")
"""One of these a message must have, or it is refused."""


class CallStream:
    """
    Assembles a streamed message, and gives each call as soon as it is complete.

    Of several choices the first counts. A call is complete when its arguments
    are whole JSON and another call has begun, or the finish reason has come.

    .. versionadded:: 0.1
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._slots = Slots()
        self._by_index: dict[Any, Slot] = {}
        self._is_closed = False

    def feed(self, event: object) -> list[ToolCall]:
        """
        Take the next chunk.

        Args:
            event: A dict, or an SDK object with `model_dump()` or `to_dict()`.

        Returns:
            The calls that are complete now, in the message's order; each is
            given once. Their `wire` is the item that `message` has.

        Raises:
            TypeError: It is neither a dict nor an SDK object.
            ValueError: It is no chunk: a whole response, another provider's
                event, the deprecated `function_call`.
            RuntimeError: The stream is closed.
        """
        found = event_of(event, _EXPECTED, is_closed=self._is_closed)
        if "choices" not in found:
            raise other_object(found, _EXPECTED)
        for item in as_array(found["choices"]) or ():
            choice = as_object(item, "a choice") or {}
            index = choice.get("index")
            if index == 0 or not isinstance(index, int):
                self._choice(choice)
        return self._slots.take()

    def close(self) -> list[ToolCall]:
        """
        Say that nothing more comes, be it the end or an interruption; may be repeated.

        Returns:
            The calls that are not complete. They are *invalid*: they get their
            result, so that the history stays valid, and are never run.
        """
        self._is_closed = True
        self._settle(is_end=True, is_cut=True)
        return self._slots.take()

    @property
    def message(self) -> dict[str, Any] | None:
        """
        The assistant message so far, for the history; None where there is nothing to send.

        A message needs a content or calls: of thoughts alone there is none.
        """
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for key, value in self._fields.items():
            message[key] = encodable("".join(value)) if _is_pieces(value) else value
        if self._slots.all:
            for slot in self._slots.open:
                _put_arguments(slot)
            message["tool_calls"] = [slot.item for slot in self._slots.all]
        return message if any(message.get(key) for key in _SUBSTANCE) else None

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = as_object(choice.get("delta"), "a delta")
        if delta is None and choice.get("message") is not None:
            msg = f"expected {_EXPECTED}, not a whole response; use parse_calls"
            raise ValueError(msg)
        for key, value in (delta or {}).items():
            if key == "tool_calls":
                for piece in as_array(value) or ():
                    self._piece(as_object(piece, "a piece of a tool call") or {})
            elif key == "function_call" and value:
                msg = "the deprecated function_call is not supported; use tools and tool_calls"
                raise ValueError(msg)
            elif key == "content" and not isinstance(value, str | list):
                pass  # null, or what is no content
            elif key != "role" and value is not None:
                self._field(encodable(key), value)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:  # some servers send "" all along
            self._settle(is_end=True, is_cut=reason in CUT_REASONS)

    def _field(self, key: str, value: Any) -> None:
        """Texts and lists grow; anything else is taken as it is."""
        so_far = self._fields.get(key)
        if isinstance(value, str) and _is_pieces(so_far):
            so_far.append(value)
        elif isinstance(value, str):
            self._fields[key] = _Pieces([value])
        elif isinstance(value, list) and isinstance(so_far, list) and not _is_pieces(so_far):
            so_far.extend(fresh(value, encodable))
        else:
            self._fields[key] = fresh(value, encodable)

    def _piece(self, piece: Mapping[str, Any]) -> None:
        slot = self._slot_of(piece)
        if slot.call is not None:
            return  # something empty that trails behind
        for key, value in piece.items():
            if key in {"function", "custom"}:
                body = as_object(value, f"{key!r} of a tool call")
                if body is not None:
                    _add_body(slot, key, body)
            elif key in {"id", "type"} and not isinstance(value, str):
                pass  # the message would be refused
            elif key != "index" and value not in (None, ""):
                slot.item[encodable(key)] = fresh(value, encodable)

    def _slot_of(self, piece: Mapping[str, Any]) -> Slot:
        """Return the call that a piece belongs to, a new one if it begins one."""
        index = place_of(piece, "index")
        if index is None:
            slot = self._slots.all[-1] if self._slots.all else None
        else:
            slot = self._by_index.get(index)
        if slot is None or _begins_another(piece, slot):
            self._settle(is_end=False)
            slot = Slot({"id": "", "type": "function"})
            self._slots.all.append(slot)
        self._by_index[index] = slot
        return slot

    def _settle(self, *, is_end: bool, is_cut: bool = False) -> None:
        for slot in self._slots.open:
            is_whole = _is_whole(slot)
            if is_whole or is_end:
                _put_arguments(slot)
                call = call_of(slot.item)
                # At a cut-off end, whole JSON is whole; at a close nobody knows.
                is_doubtful = is_cut and (self._is_closed or not is_whole)
                slot.call = cut_off(call) if is_doubtful else call


class _Pieces(list[str]):
    """The pieces of a text, apart from a list that is a value."""

    __slots__ = ()


def _is_pieces(value: object) -> TypeGuard[_Pieces]:
    return isinstance(value, _Pieces)


def _body(piece: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("function", "custom"):
        body = as_object(piece.get(key), f"{key!r} of a tool call")
        if body is not None:
            return body
    return {}


def _begins_another(piece: Mapping[str, Any], slot: Slot) -> bool:
    id_, known_id = str_or_empty(piece.get("id")), slot.item["id"]
    if id_ and known_id and id_ != known_id:
        return True
    body = _body(piece)
    name, known_name = str_or_empty(body.get("name")), _body(slot.item).get("name")
    if not name or not known_name:
        return False
    if name != known_name:
        # Names do come in pieces, but then with an index and before the arguments.
        has_begun = bool(slot.pieces) or "arguments" in _body(slot.item)
        return piece.get("index") is None or has_begun
    # A name that comes again is the same call's, or that of the next one where
    # ids are missing or equal: only a whole call has another after it.
    given = body.get("arguments")
    says_something = given.strip() if isinstance(given, str) else given
    return bool(says_something) and _is_whole(slot)


def _add_body(slot: Slot, key: str, body: Mapping[str, Any]) -> None:
    known = slot.item.setdefault(key, {"name": ""})
    if key == "custom":
        slot.item["type"] = "custom"
    for field, value in body.items():
        if field in {"arguments", "input"}:
            if isinstance(value, str):
                slot.pieces.append(value)
            elif value is not None:
                known[field] = fresh(value, encodable)
        elif field == "name":
            name = encodable(str_or_empty(value))
            known["name"] += "" if name == known["name"] else name
        else:
            known[encodable(field)] = fresh(value, encodable)


def _put_arguments(slot: Slot) -> None:
    is_custom = "custom" in slot.item
    known = slot.item.setdefault("custom" if is_custom else "function", {"name": ""})
    key = "input" if is_custom else "arguments"
    # A server may have sent them as an object.
    if slot.pieces or key not in known:
        known[key] = slot.text


def _is_whole(slot: Slot) -> bool:
    """Tell whether the arguments can be no part of something longer."""
    if "custom" in slot.item:
        return False  # free text has no end of its own
    given = _body(slot.item).get("arguments")
    if not slot.pieces:
        return isinstance(given, Mapping)
    text = slot.text
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
