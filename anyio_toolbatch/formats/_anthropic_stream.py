"""Anthropic's stream events to calls: a block at a time, each with a begin and an end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall
from ._anthropic_wire import (
    CUT_REASONS,
    INVALID_JSON,
    OPEN_REASONS,
    call_of,
    fit_to_end,
    resolved_by,
    without_unresolved,
)
from ._plain import as_object, encodable, fresh, gives_arguments, str_or_empty
from ._stream import Slot, Slots, cut_off, event_of, place_of

__all__ = ("CallStream",)

_EXPECTED = "a stream event of Anthropic's Messages API"


class CallStream:
    """
    Assembles a streamed message, and gives each call as soon as it is complete.

    A call is complete when its block has ended. Only one that got no arguments
    at all has to wait for the stop reason, which tells it from one that was cut.

    .. versionadded:: 0.1
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._by_index: dict[Any, _Block] = {}  # the latest, where a server counts oddly
        self._slots = Slots()
        self._goes_on = False  # the provider does, with its own tools
        self._is_closed = False

    def feed(self, event: object) -> list[ToolCall]:
        """
        Take the next event; those that say nothing of the content are passed over.

        Args:
            event: A dict, or an SDK object with `model_dump()` or `to_dict()`;
                the events that the SDK's own helpers put between are no harm.

        Returns:
            The calls that are complete now, in the message's order; each is
            given once. Their `wire` is the block that `message` has.

        Raises:
            TypeError: It is neither a dict nor an SDK object.
            ValueError: It is no such event: a whole message, another provider's.
            RuntimeError: The stream is closed.
        """
        found = event_of(event, _EXPECTED, is_closed=self._is_closed)
        kind = found.get("type")
        if not isinstance(kind, str) or kind == "message" or kind.startswith("response."):
            msg = f"expected {_EXPECTED}, not an object of type {kind!r}"
            raise ValueError(msg)
        if kind == "content_block_start":
            self._start(found)
        elif kind == "content_block_delta":
            self._delta(found)
        elif kind == "content_block_stop":
            block = self._block_of(found)
            if block is not None:
                self._stop(block)
        elif kind == "message_delta":
            delta = as_object(found.get("delta"), "a delta") or {}
            reason = delta.get("stop_reason")
            if isinstance(reason, str) and reason:
                self._goes_on = reason in OPEN_REASONS
                self._settle_rest(is_cut=reason in CUT_REASONS)
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
            _settle(slot, is_cut=True)
        return self._slots.take()

    @property
    def message(self) -> dict[str, Any] | None:
        """
        The assistant message so far, for the history; None where there is nothing to send.

        What the provider would refuse is not in it: empty text, thoughts without
        their signature or with nothing behind them, and what the provider was to
        run and will not, since the message has broken off.
        """
        for block in self._blocks:
            block.put_together()
        content = [block.item for block in self._blocks if block.is_fit()]
        if not self._goes_on:
            content = without_unresolved(content, resolved_by(content))
        content = fit_to_end(content)
        return {"role": "assistant", "content": content} if content else None

    def _start(self, event: Mapping[str, Any]) -> None:
        given = as_object(event.get("content_block"), "a content block") or {}
        block = _Block(fresh(dict(given), encodable))
        self._blocks.append(block)
        self._by_index[place_of(event, "index")] = block
        if block.item.get("type") == "tool_use":
            self._slots.all.append(block)

    def _block_of(self, event: Mapping[str, Any]) -> _Block | None:
        place = place_of(event, "index")
        if place is None:
            return self._blocks[-1] if self._blocks else None
        return self._by_index.get(place)

    def _delta(self, event: Mapping[str, Any]) -> None:
        block = self._block_of(event)
        if block is not None and not block.has_ended:
            block.add(as_object(event.get("delta"), "a delta") or {})

    def _stop(self, block: _Block) -> None:
        block.has_ended = True
        is_open_call = block.item.get("type") == "tool_use" and block.call is None
        if is_open_call and (block.has_input or gives_arguments(block.text)):
            _settle(block)

    def _settle_rest(self, *, is_cut: bool) -> None:
        for slot in self._slots.open:
            _settle(slot, is_cut=is_cut)


class _Block(Slot):
    """A content block that is being assembled; `pieces` are those of its input."""

    __slots__ = ("has_ended", "has_input", "texts")

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__(item)
        self.has_ended = False
        self.has_input = bool(item.get("input"))
        """It came whole at the start, as some servers send it."""
        self.texts: dict[str, list[str]] = {}
        """Its other texts, in pieces: joined once, however many there are."""

    def add(self, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.pieces.append(str_or_empty(delta.get("partial_json")))
        elif self.item.get("type") == "tool_use":
            pass  # all that a call gets is its input
        elif kind == "citations_delta":
            known = self.item.get("citations")
            if not isinstance(known, list):
                known = self.item["citations"] = []
            known.append(fresh(delta.get("citation"), encodable))
        elif isinstance(kind, str):
            key = kind.removesuffix("_delta")  # text, thinking, signature, …
            for name, value in delta.items():
                if isinstance(value, str) and name not in {"type", "signature"}:
                    begun = [str_or_empty(self.item.get(name))]
                    self.texts.setdefault(name, begun).append(value)
                elif name == key:
                    self.item[name] = fresh(value, encodable)

    def put_together(self) -> None:
        """Put what came in pieces into the item."""
        for name, pieces in self.texts.items():
            # The pieces are kept: the half of a character may have come so far.
            self.item[name] = encodable("".join(pieces))
        if self.pieces or self.item.get("type") == "tool_use":
            _put_input(self)

    def is_fit(self) -> bool:
        """Tell whether the provider takes the block back as it is now."""
        kind = self.item.get("type")
        if kind == "text":
            return bool(str_or_empty(self.item.get("text")).strip())
        if kind == "thinking":
            return bool(str_or_empty(self.item.get("signature")))
        return kind == "tool_use" or (self.has_ended and isinstance(kind, str))


def _settle(slot: Slot, *, is_cut: bool = False) -> None:
    _put_input(slot)
    call = call_of(slot.item)
    slot.call = cut_off(call) if is_cut else call


def _put_input(slot: Slot) -> None:
    text = slot.text
    if not text:
        if not isinstance(slot.item.get("input"), dict):
            slot.item["input"] = _wrapped(slot.item.get("input"))
        return
    try:
        given = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        given = None
    # The input must be an object, whatever has come.
    slot.item["input"] = (
        fresh(given, encodable) if isinstance(given, dict) else {INVALID_JSON: text}
    )


def _wrapped(given: object) -> dict[str, str]:
    """Return the object that stands for an input that is none."""
    try:
        return {} if given is None else {INVALID_JSON: json.dumps(given)}
    except (TypeError, ValueError, RecursionError):
        return {INVALID_JSON: "an input that cannot be written down"}


def _refuse(constant: str) -> object:
    # NaN and its like are no JSON: a history that holds them cannot be sent.
    raise ValueError(constant)
