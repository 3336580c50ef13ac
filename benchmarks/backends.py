"""The event loops to measure on, and how to run a function on each."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

__all__ = ("BACKENDS", "available", "run_on")

T = TypeVar("T")

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
"""Name → what `anyio.run` takes."""


def available() -> list[str]:
    """Return the names of the event loops that are installed."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def run_on(backend: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    name, options = BACKENDS[backend]
    return anyio.run(function, *args, backend=name, backend_options=options)
