"""OpenAI Responses' stream events to calls: each item has a begin and an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        self._by_place: dict[object, list[_Item]] = {}
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
            self._begun(place, _fields_of(found.get("item")))
        elif kind == "response.output_item.done":
            self._done(place, _fields_of(found.get("item")))
        elif kind in _DELTAS:
            item = next((one for one in self._at(place) if not one.is_done), None)
            if item is not None:
                item.pieces.append(str_or_empty(found.get("delta")))
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
        items = [item for item in items if isinstance(item.get("type"), str)]
        while items and items[-1]["type"] == "reasoning":
            items.pop()
        return items

    def _open(self) -> list[_Item]:
        return [slot for slot in self._slots.open if isinstance(slot, _Item)]

    def _at(self, place: object) -> Iterator[_Item]:
        """Return the items at a place, the latest first; all of them, if it is not told."""
        return reversed(self._items if place is None else self._by_place.get(place, []))

    def _begun(self, place: object, fields: dict[str, Any]) -> _Item:
        for item in self._at(place):
            if item.is_done and (place is None or not _is_known(item.item, fields)):
                continue
            if _is_same(item.item, fields):
                return item  # it is told once more
        return self._add(place, fields)

    def _done(self, place: object, fields: dict[str, Any]) -> None:
        known = list(self._at(place))
        open_ = [one for one in known if not one.is_done and one.is_ours == is_ours(fields)]
        item = next((one for one in open_ if _is_same(one.item, fields)), None)
        if item is None and place is not None:
            # Some servers have another id for an item each time they speak of it.
            item = next((one for one in open_ if _is_same_call(one.item, fields)), None)
        if item is not None:
            item.finish(fields)
        elif place is None or not any(_is_known(one.item, fields) for one in known):
            self._add(place, fields).finish(fields)

    def _add(self, place: object, fields: dict[str, Any]) -> _Item:
        self._settle()  # those before it are whole, since another begins
        item = _Item(fields)
        self._items.append(item)
        self._by_place.setdefault(place, []).append(item)
        if item.is_ours:
            self._slots.all.append(item)
        return item

    def _ended(self, output: Sequence[Any], *, is_cut: bool) -> None:
        """Take what the whole response has and the stream had not; nothing twice."""
        left, last = dict.fromkeys(self._items), None
        for place, given in enumerate(output):
            fields = _fields_of(given)
            # A gateway may have left items out, and then the places are others.
            known = chain((one for one in self._at(place) if one in left), left)
            item = next((one for one in known if _is_same(one.item, fields)), None)
            if item is None or item.is_ours != is_ours(fields):
                item = self._add(place, fields)
            else:
                del left[item]
            item.finish(fields)
            last = item
        last = last or next(iter(self._items[-1:]), None)
        self._settle(cut=last if is_cut else None)

    def _settle(self, cut: _Item | None = None) -> None:
        for item in self._open():
            if item.is_done:
                call = call_of(item.item)
                item.call = cut_off(call) if item is cut else call


class _Item(Slot):
    """An output item that is being assembled; `pieces` are its arguments or its text."""

    __slots__ = ("is_done", "is_ours")

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__(item)
        self.is_done = False
        self.is_ours = is_ours(item)

    @property
    def kind(self) -> str:
        return str_or_empty(self.item.get("type"))

    def finish(self, fields: dict[str, Any]) -> None:
        """Take the whole item, once; if it is a call and says so, it can be run."""
        if self.is_done:
            return
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


def _is_same(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two items are one, by all the ids that both have."""
    return item.get("type") == other.get("type") and all(
        a == b for a, b in _ids(item, other, ("id", "call_id"))
    )


def _is_same_call(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell the same, whatever the items' own ids are."""
    return item.get("type") == other.get("type") and all(
        a == b for a, b in _ids(item, other, ("call_id",))
    )


def _is_known(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two items are one, and have an id by which that is sure."""
    return _is_same(item, other) and bool(_ids(item, other, ("id", "call_id")))


def _ids(
    item: Mapping[str, Any], other: Mapping[str, Any], keys: tuple[str, ...]
) -> list[tuple[Any, Any]]:
    pairs = ((item.get(key), other.get(key)) for key in keys)
    return [(a, b) for a, b in pairs if a is not None and b is not None]
