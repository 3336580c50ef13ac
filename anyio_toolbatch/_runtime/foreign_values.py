"""
Looks at what tools and hooks give or raise, without running any code of theirs.

`isinstance` asks a value for its ``__class__``, and `hasattr` a class for its attributes;
both may be anybody's code, and raise: a lazy object that can't be evaluated, a proxy
outside of its context. So only types are asked, of which the interpreter knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from types import CoroutineType
from typing import Any, TypeGuard, TypeVar

__all__ = ("as_coroutine", "close_awaitable", "is_a", "is_awaitable")


T = TypeVar("T")


def is_a(value: object, cls: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Tell whether a value is of a type, whatever it says itself."""
    return issubclass(type(value), cls)


def is_awaitable(value: object) -> bool:
    """Tell whether a value can be awaited."""
    return issubclass(type(value), Awaitable)


def as_coroutine(made: Any) -> Any:
    """Return an awaitable as a coroutine; anything else as it is."""
    if made is None or is_a(made, Coroutine):
        return made
    return _await(made) if is_awaitable(made) else made


async def _await(value: Any) -> Any:
    return await value


def close_awaitable(value: Any) -> None:
    """Let go of an awaitable that nobody will await, without a warning; never raises."""
    if type(value) is CoroutineType:
        with suppress(BaseException):  # one that was begun may refuse
            value.close()
