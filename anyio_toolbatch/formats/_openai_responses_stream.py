"""OpenAI Responses' stream events to calls: each item has a begin and an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from .._model.calls import ToolCall
from ._openai_responses_wire import call_of, is_ours, is_whole
from ._plain import as_array, as_object, encodable, fresh, str_or_empty
from ._stream import Slot, Slots, cut_off, event_of, place_of

__all__ = ("CallStream",)

_EXPECTED = "a stream event of OpenAI's Responses API"

_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}

_DELTAS = {
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
    "response.output_text.delta",
}


class CallStream:
    """
    Assembles a streamed response, and gives each call as soon as its item is done.

    An item that does not say that it is whole, such as one of a custom tool
    without a status, is that when another begins or the response is completed.

    .. versionadded:: 0.1
    """

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._begun_at: dict[object, list[_Item]] = {}  # those that are not done
        self._done_at: set[tuple[object, _Id]] = set()
        self._slots = Slots()
        self._is_closed = False

    def feed(self, event: object) -> list[ToolCall]:
        """
        Take the next event; those that say nothing of the items are passed over.

        Args:
            event: A dict, or an SDK object with `model_dump()` or `to_dict()`.

        Returns:
            The calls for this client that are complete now, in the response's
            order; each is given once. Their `wire` is the item that `message`
            has.

        Raises:
            TypeError: It is neither a dict nor an SDK object.
            ValueError: It is no such event: a whole response, another
                provider's.
            RuntimeError: The stream is closed.
        """
        found = event_of(event, _EXPECTED, is_closed=self._is_closed)
        kind = found.get("type")
        is_known = isinstance(kind, str) and kind.startswith(
            ("response.", "error", "keepalive")
        )
        if not is_known:
            msg = f"expected {_EXPECTED}, not an object of type {kind!r}"
            raise ValueError(msg)
        place = place_of(found, "output_index")
        if kind == "response.output_item.added":
            self._begin(place, _fields_of(found.get("item")))
        elif kind == "response.output_item.done":
            self._done(place, _fields_of(found.get("item")))
        elif kind in _DELTAS:
            begun = self._begun(place)
            if begun:
                begun[-1].pieces.append(str_or_empty(found.get("delta")))
        elif kind in {"response.completed", "response.incomplete"}:
            response = as_object(found.get("response"), "a response") or {}
            is_cut = kind != "response.completed" or response.get("status") not in (
                None,
                "completed",
            )
            self._ended(as_array(response.get("output")) or (), is_cut=is_cut)
        return self._slots.take()

    def close(self) -> list[ToolCall]:
        """
        Say that nothing more comes, be it the end or an interruption; may be repeated.

        Returns:
            The calls that are not complete. They are *invalid*: they get their
            result, so that the history stays valid, and are never run.
        """
        self._is_closed = True
        for item in self._open():
            item.item = item.so_far()
            item.call = cut_off(call_of(item.item))
        return self._slots.take()

    @property
    def message(self) -> list[dict[str, Any]]:
        """
        The output items so far, for the history; empty where there is nothing to send.

        What is not done is ``incomplete``: calls for this client, and text. Of
        other things, such as reasoning, half an item is left out, and so is
        reasoning that nothing follows: the provider takes it only before what
        came of it.
        """
        items = [
            item.so_far()
            for item in self._items
            if item.is_done or item.is_ours or (item.kind == "message" and item.pieces)
        ]
        items = [item for item in items if str_or_empty(item.get("type"))]
        while items and items[-1]["type"] == "reasoning":
            items.pop()
        return items

    def _open(self) -> list[_Item]:
        return [slot for slot in self._slots.open if isinstance(slot, _Item)]

    def _begun(self, place: object) -> list[_Item]:
        """Return the items at a place that are not done; of all places, if none is told."""
        if place is not None:
            return self._begun_at.get(place, [])
        return [item for items in self._begun_at.values() for item in items]

    def _begin(self, place: object, fields: dict[str, Any]) -> None:
        is_known = any(_is_same(item.item, fields) for item in self._begun(place))
        if not is_known and not self._was_done(place, fields):
            self._settle()  # those before it are whole, since another begins
            self._add(place, fields)

    def _done(self, place: object, fields: dict[str, Any]) -> None:
        begun = [one for one in self._begun(place) if one.is_ours == is_ours(fields)]
        item = next((one for one in begun if _is_same(one.item, fields)), None)
        if item is not None:
            self._finish(item, fields)
        elif not self._was_done(place, fields):
            self._settle()
            self._finish(self._add(place, fields), fields)

    def _was_done(self, place: object, fields: dict[str, Any]) -> bool:
        """Tell whether this is a second word of an item; without a place it is another one."""
        key = _id_of(fields)
        return place is not None and bool(key[1]) and (place, key) in self._done_at

    def _add(self, place: object, fields: dict[str, Any]) -> _Item:
        item = _Item(fields, place)
        self._items.append(item)
        self._begun_at.setdefault(place, []).append(item)
        if item.is_ours:
            self._slots.all.append(item)
        return item

    def _finish(self, item: _Item, fields: dict[str, Any]) -> None:
        if not item.is_done:
            self._begun_at[item.place].remove(item)
            self._done_at.add((item.place, _id_of(fields)))
            item.finish(fields)

    def _ended(self, output: Sequence[Any], *, is_cut: bool) -> None:
        """Take what the whole response has and the stream had not; nothing twice."""
        left: dict[_Item, None] = dict.fromkeys(self._items)
        by_ids: dict[_Id, list[_Item]] = {}
        for item in self._items:
            by_ids.setdefault(_id_of(item.item), []).append(item)
        last = self._items[-1] if self._items else None
        for place, given in enumerate(output):
            fields = _fields_of(given)
            # A gateway may have left items out, and then the places are others.
            known = [one for one in by_ids.get(_id_of(fields), ()) if one in left]
            known.sort(key=lambda item: item.place != place)
            found = next(
                (one for one in chain(known, left) if _is_same(one.item, fields)), None
            )
            if found is None or found.is_ours != is_ours(fields):
                found = self._add(place, fields)
            else:
                del left[found]
            self._finish(found, fields)
            last = found
        self._settle(cut=last if is_cut else None)

    def _settle(self, cut: _Item | None = None) -> None:
        for item in self._open():
            if item.is_done:
                call = call_of(item.item)
                item.call = cut_off(call) if item is cut else call


class _Item(Slot):
    """An output item that is being assembled; `pieces` are its arguments or its text."""

    __slots__ = ("is_done", "is_ours", "place")

    def __init__(self, item: dict[str, Any], place: object) -> None:
        super().__init__(item)
        self.place = place
        self.is_done = False
        self.is_ours = is_ours(item)

    @property
    def kind(self) -> str:
        return str_or_empty(self.item.get("type"))

    def finish(self, fields: dict[str, Any]) -> None:
        """Take the whole item; if it is a call and says that it is whole, it can be run."""
        self.is_done = True
        self.item = fields
        self.item.pop("parsed_arguments", None)  # an addition of the SDK's helpers
        if self.is_ours:
            call = call_of(self.item)
            self.call = call if is_whole(self.item, call) else None

    def so_far(self) -> dict[str, Any]:
        """Return the item; where it is not done, with what has come of it."""
        if self.is_done or self.call is not None:
            return self.item
        item = dict(self.item)
        if self.kind not in {"apply_patch_call", "custom_tool_call"}:
            item["status"] = "incomplete"  # the others have no such status
        if self.kind in _ARGUMENTS:
            key = _ARGUMENTS[self.kind]
            item[key] = self.text or str_or_empty(item.get(key))
        elif self.kind == "message":
            item["content"] = [{"type": "output_text", "text": self.text, "annotations": []}]
        return item


def _fields_of(item: object) -> dict[str, Any]:
    """Return a copy of an item that can be sent, as is all that it is compared with."""
    copied: dict[str, Any] = fresh(dict(as_object(item, "an output item") or {}), encodable)
    return copied


_Id = tuple[str, str]


def _id_of(fields: Mapping[str, Any]) -> _Id:
    """Return what tells an item from others: its type, and the call's id or its own."""
    kind, call_id, id_ = (str_or_empty(fields.get(key)) for key in ("type", "call_id", "id"))
    return kind, call_id or id_


def _is_same(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """
    Tell whether two items are one, as far as both have ids.

    Some servers have another id for an item each time they speak of it; the
    call's own id stays.
    """
    if item.get("type") != other.get("type"):
        return False
    for key in ("call_id", "id"):
        one, two = str_or_empty(item.get(key)), str_or_empty(other.get(key))
        if one and two:
            return one == two
    return True
