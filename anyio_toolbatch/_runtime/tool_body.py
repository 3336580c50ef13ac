"""What a tool's call amounts to as one coroutine, whatever kind of function it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from .._core.record import CallRecord

__all__ = ("coroutine_of",)


def coroutine_of(record: CallRecord) -> Callable[[], Coroutine[Any, Any, Any]]:
    """
    Return what makes the coroutine of a call that runs on an event loop.

    An async function's own coroutine is used as it is; it must be called
    inside the call's scopes, as calling may raise.
    """
    tool = record.tool
    if record.awaiting:
        value = record.value
        return lambda: _await(value)
    match tool.kind:
        case "async":
            return lambda: _as_coroutine(tool.func(**record.arguments))
        case "async_generator":
            return lambda: _stream_async(record)
        case "sync_generator":
            return lambda: _stream_here(record)
        case "sync":
            return lambda: _call_here(record)


def _as_coroutine(made: Any) -> Coroutine[Any, Any, Any]:
    # A decorated async function may give another kind of awaitable.
    return made if isinstance(made, Coroutine) else _await(made)


async def _await(value: Any) -> Any:
    return await value


async def _call_here(record: CallRecord) -> Any:
    value = record.tool.func(**record.arguments)
    if value is not None and hasattr(type(value), "__await__"):
        return await value
    return value


async def _stream_async(record: CallRecord) -> Any:
    items: list[Any] = []
    record.items = items
    async with contextlib.aclosing(record.tool.func(**record.arguments)) as generator:
        async for item in generator:
            items.append(item)
            _tell_items(record)
    return items[-1] if items else None


async def _stream_here(record: CallRecord) -> Any:
    items: list[Any] = []
    record.items = items
    with contextlib.closing(record.tool.func(**record.arguments)) as generator:
        for item in generator:
            items.append(item)
            _tell_items(record)
    return items[-1] if items else None


def _tell_items(record: CallRecord) -> None:
    batch = record.batch
    if record.hosted:
        batch.land_items(record)
    else:  # in a loop of its own, in a worker thread
        batch.hub.post(batch.land_items, record)
