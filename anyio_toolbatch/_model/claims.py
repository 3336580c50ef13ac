"""
What a tool's `reads` and `writes` may be, and what they give for one call.

A key is a `str`, compared as it is, or an `os.PathLike`, which means the path
that it leads to. Nothing is looked up in the file system here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

__all__ = ("Key", "Keys", "KeysOption", "checked_keys", "keys_of")

Key = str | os.PathLike[Any]
Keys = Key | Iterable[Key]
KeysOption = Keys | Callable[..., Keys] | None


def checked_keys(name: str, option: object) -> Any:
    """
    Return the option as it is to be kept: None, a callable, or a tuple of keys.

    Raises:
        TypeError: It is none of what the option may be.
    """
    if option is None:
        return None
    if callable(option) and not _is_key(option):
        if inspect.iscoroutinefunction(option):
            msg = f"{name} must be a plain function; it is called, not awaited"
            raise TypeError(msg)
        return option
    return _tuple_of_keys(name, option)


def keys_of(name: str, option: Any, arguments: Mapping[str, Any]) -> tuple[Key, ...]:
    """
    Return the keys of one call.

    Args:
        name: The option's, for the error.
        option: As `checked_keys` gave it.
        arguments: The call's; a callable is called with them as the tool will be.

    Raises:
        TypeError: The callable gave something that is no key.
        BaseException: Whatever the callable raises.
    """
    if option is None:
        return ()
    if isinstance(option, tuple):
        return cast("tuple[Key, ...]", option)
    return _tuple_of_keys(f"{name}()", option(**arguments))


def _is_key(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _tuple_of_keys(name: str, value: object) -> tuple[Key, ...]:
    if isinstance(value, str | os.PathLike):
        return (_plain(cast("Any", value)),)
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        msg = f"{name} must give keys (str or os.PathLike), not {type(value).__name__}"
        raise TypeError(msg)
    keys = tuple(cast("Iterable[object]", value))
    for key in keys:
        if not _is_key(key):
            msg = f"{name} must give keys (str or os.PathLike), not {type(key).__name__}"
            raise TypeError(msg)
    return tuple(_plain(key) for key in cast("tuple[Key, ...]", keys))


def _plain(key: Key) -> Key:
    # A subclass may compare, and fail, in ways of its own.
    return str.__str__(key) if isinstance(key, str) else key
