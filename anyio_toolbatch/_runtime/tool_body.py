"""What a tool's call amounts to on an event loop, whatever kind of function it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from .._core.record import CallRecord
from . import landing
from .foreign_values import as_coroutine

__all__ = ("Ready", "body_of")


def body_of(record: CallRecord) -> Callable[[], Any]:
    """
    Return what starts the body of a call that runs on an event loop.

    To be called inside the call's scopes. It gives a coroutine to be driven,
    or, where a sync function has done its work already, the value. (A
    coroutine for those, too, would turn their StopIteration into another
    error.)
    """
    tool = record.tool
    if record.awaiting:
        value = record.value
        return lambda: as_coroutine(value)
    match tool.kind:
        case "async_generator":
            return lambda: _stream_async(record)
        case "sync_generator":
            return lambda: Ready(_stream_here(record))
        case "async" | "sync":
            return lambda: as_coroutine(tool.func(**record.arguments))


class Ready:
    """A value that is the call's own, also where it happens to be a coroutine."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


async def _stream_async(record: CallRecord) -> Any:
    items: list[Any] = []
    record.items = items
    async with contextlib.aclosing(record.tool.func(**record.arguments)) as generator:
        async for item in generator:
            items.append(item)
            _tell_items(record)
    return items[-1] if items else None


def _stream_here(record: CallRecord) -> Any:
    items: list[Any] = []
    record.items = items
    with contextlib.closing(record.tool.func(**record.arguments)) as generator:
        for item in generator:
            items.append(item)
            _tell_items(record)
    return items[-1] if items else None


def _tell_items(record: CallRecord) -> None:
    if record.hosted:
        landing.items(record)
    elif not record.items_posted:  # in a loop of its own, in a worker thread
        record.items_posted = True
        record.batch.hub.post(landing.items, record)
