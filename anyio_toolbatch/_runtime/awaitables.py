"""What a tool or a hook gives instead of a value: something to be awaited, or not."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any

__all__ = ("as_coroutine", "close_awaitable")


def as_coroutine(made: Any) -> Any:
    """Return an awaitable as a coroutine; anything else as it is."""
    if made is None or isinstance(made, Coroutine):
        return made
    return _await(made) if hasattr(type(made), "__await__") else made


async def _await(value: Any) -> Any:
    return await value


def close_awaitable(value: Any) -> None:
    """Let go of an awaitable that nobody will await, without a warning."""
    if inspect.iscoroutine(value):
        value.close()
