"""
Calls out of a stream: handed out once each, in order, and never one that was cut off.

A call may start while the model still speaks, but only when all of its
arguments are there. Half an argument that happens to be valid JSON, or none
where some were to come, would run a call that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall, broken_call
from ._plain import encodable, object_of

__all__ = ("CUT_OFF", "Slot", "Slots", "cut_off", "event_of", "place_of")

CUT_OFF = "the model's message ended before the arguments of this call were complete"


def cut_off(call: ToolCall) -> ToolCall:
    """Return the call as one that is never run, whatever has arrived of its arguments."""
    return broken_call(call.id, call.name, call.raw_arguments, CUT_OFF, wire=call.wire)


class Slot:
    """A call that is being assembled; `call` is there when it is settled."""

    __slots__ = ("call", "item", "pieces")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item
        self.pieces: list[str] = []
        self.call: ToolCall | None = None

    @property
    def text(self) -> str:
        """The arguments so far, fit for UTF-8."""
        # Joined first: a character may have been cut in two.
        return encodable("".join(self.pieces))


class Slots:
    """
    The calls of a message, in its order.

    A call is handed out only after all before it: results are paired by
    position where ids do not tell, so the batch must have the message's order.
    """

    def __init__(self) -> None:
        self.all: list[Slot] = []
        self._handed_out = 0

    @property
    def open(self) -> list[Slot]:
        """Those that are not settled, in order."""
        return [slot for slot in self.all[self._handed_out :] if slot.call is None]

    def take(self) -> list[ToolCall]:
        """Return the calls that can be handed out and have not been."""
        taken: list[ToolCall] = []
        for slot in self.all[self._handed_out :]:
            if slot.call is None:
                break
            taken.append(slot.call)
        self._handed_out += len(taken)
        return taken


def event_of(event: object, expected: str, *, is_closed: bool) -> Mapping[str, Any]:
    """
    Return the fields of an event.

    Raises:
        RuntimeError: The stream has been closed.
        TypeError: It is no object, neither of JSON nor of an SDK.
    """
    if is_closed:
        msg = "this CallStream is closed; each message needs one of its own"
        raise RuntimeError(msg)
    return object_of(event, "an event", expected)


def place_of(event: Mapping[str, Any], key: str) -> str | int | float | None:
    """Return which part of the message an event is about; None: it does not tell."""
    place = event.get(key)
    return place if isinstance(place, str | int | float) else None
