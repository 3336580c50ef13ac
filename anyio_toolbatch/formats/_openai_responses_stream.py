"""OpenAI Responses' stream events to calls: each item has a begin and an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall
from ._openai_responses_wire import OUTPUT_OF, call_of, is_ours, may_be_cut
from ._plain import as_array, as_object, fresh, str_or_empty
from ._stream import Slot, Slots, cut_off, event_of

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

    .. versionadded:: 0.1
    """

    def __init__(self) -> None:
        self._items: dict[int, _Item] = {}
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
        index = found.get("output_index")
        if kind == "response.output_item.added":
            self._item(index, as_object(found.get("item"), "an output item") or {})
        elif kind == "response.output_item.done":
            self._done(index, as_object(found.get("item"), "an output item") or {})
        elif kind in _DELTAS:
            if isinstance(index, int) and index in self._items:
                self._items[index].pieces.append(str_or_empty(found.get("delta")))
        elif kind in {"response.completed", "response.incomplete"}:
            response = as_object(found.get("response"), "a response") or {}
            self._ended(response)
        return self._slots.take()

    def close(self) -> list[ToolCall]:
        """
        Say that nothing more comes, be it the end or an interruption; may be repeated.

        Returns:
            The calls that are not complete. They are *invalid*: they get their
            result, so that the history stays valid, and are never run.
        """
        self._is_closed = True
        for slot in self._slots.open:
            slot.item = _incomplete(slot)
            slot.call = cut_off(call_of(slot.item))
        return self._slots.take()

    @property
    def message(self) -> list[dict[str, Any]]:
        """
        The output items so far, for the history.

        What is not done is ``incomplete``: calls for this client, and text. Of
        other things, such as reasoning, half an item is left out.
        """
        items: list[dict[str, Any]] = []
        for item in self._items.values():
            if item.is_done or (item.call is not None):
                items.append(item.item)
            elif item.is_ours or (item.item.get("type") == "message" and item.pieces):
                items.append(_incomplete(item))
        return items

    def _ended(self, response: Mapping[str, Any]) -> None:
        """Take what the whole response has and the stream had not; nothing twice."""
        left = set(self._items)
        for place, item in enumerate(as_array(response.get("output")) or ()):
            fields = as_object(item, "an output item") or {}
            # A gateway may have left items out, and then the places are others.
            key = self._find(place, fields, left)
            left.discard(key)
            self._done(key, fields, is_cut=may_be_cut(response, fields))

    def _find(self, index: Any, fields: Mapping[str, Any], among: set[Any]) -> Any:
        """Return the place of an item by its ids; a new one if it is not there."""
        for place in sorted(among, key=lambda place: place != index):
            if _is_same(self._items[place].item, fields):
                return place
        is_free = isinstance(index, int) and index not in self._items
        return index if is_free else max(self._items, default=-1) + 1

    def _item(self, index: Any, fields: Mapping[str, Any]) -> _Item:
        if not isinstance(index, int):
            index = self._find(
                None, fields, {n for n in self._items if not self._items[n].is_done}
            )
        item = self._items.get(index)
        if item is None:
            item = self._items[index] = _Item(fresh(dict(fields)))
            if item.is_ours:
                self._slots.all.append(item)
        return item

    def _done(self, index: Any, fields: Mapping[str, Any], *, is_cut: bool = False) -> None:
        item = self._item(index, fields)
        if item.is_done:
            return
        item.is_done = True
        item.item = fresh(dict(fields))
        item.item.pop("parsed_arguments", None)  # an addition of the SDK's helpers
        if item.is_ours:
            call = call_of(item.item)
            item.call = cut_off(call) if is_cut else call


class _Item(Slot):
    """An output item that is being assembled; `pieces` are its arguments or its text."""

    __slots__ = ("is_done", "is_ours")

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__(item)
        self.is_done = False
        self.is_ours = item.get("type") in OUTPUT_OF and is_ours(item)


def _is_same(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two items are one, by all the ids that both have."""
    ids = ((item.get(key), other.get(key)) for key in ("id", "call_id"))
    known = [(a, b) for a, b in ids if a is not None and b is not None]
    return item.get("type") == other.get("type") and all(a == b for a, b in known)


def _incomplete(slot: Slot) -> dict[str, Any]:
    kind = str_or_empty(slot.item.get("type"))
    item = dict(slot.item)
    if kind not in {"apply_patch_call", "custom_tool_call"}:  # they have no such status
        item["status"] = "incomplete"
    if kind in _ARGUMENTS:
        item[_ARGUMENTS[kind]] = slot.text or str_or_empty(item.get(_ARGUMENTS[kind]))
    elif kind == "message":
        item["content"] = [{"type": "output_text", "text": slot.text, "annotations": []}]
    return item
