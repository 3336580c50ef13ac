"""
What a claimed path is called, so that two claims on one place meet.

A path is taken relative to the working directory of the moment, ``.`` and
``..`` are worked out, symbolic links are followed as far as the path exists,
and case is ignored where the platform ignores it. That asks the file system,
which may take its time: this runs in worker threads, never on the loop.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Hashable, Iterable
from pathlib import PurePath
from typing import cast

from .._model.claims import Key

__all__ = ("Nodes", "PathNames", "has_paths", "plain_nodes")

Nodes = tuple[Hashable, ...]
"""What stands for a claim in the table: its ancestors, outermost first, and itself."""


def has_paths(keys: Iterable[Key]) -> bool:
    return any(not isinstance(key, str) for key in keys)


def plain_nodes(keys: Iterable[Key]) -> list[Nodes]:
    """Return the nodes of keys none of which is a path."""
    return [cast("Nodes", (key,)) for key in keys]


class PathNames:
    """
    Resolves the paths of calls that were submitted together.

    Their folders are resolved once: many files of one folder are the rule,
    and `os.path.realpath` costs 36 to 58 µs.

    Args:
        cwd: What relative paths are relative to.
    """

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._folders: dict[str, str] = {}

    def nodes(self, keys: Iterable[Key]) -> list[Nodes]:
        """
        Return the nodes of keys.

        Raises:
            OSError, ValueError: A path that no file can have.
        """
        return [(key,) if isinstance(key, str) else self._path_nodes(key) for key in keys]

    def _path_nodes(self, key: os.PathLike[str]) -> Nodes:
        real = _folded(self._real(os.path.join(self._cwd, os.fsdecode(key))))
        parts = PurePath(real).parts
        return tuple((_PATH, parts[: end + 1]) for end in range(len(parts)))

    def _real(self, path: str) -> str:
        if "\0" in path:  # `islink` takes it for a name like others
            msg = "a path can't hold a null character"
            raise ValueError(msg)
        folder, name = os.path.split(path)
        if name in {"", os.curdir, os.pardir}:
            return os.path.realpath(path)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = os.path.realpath(folder)
        path = os.path.join(real, name)
        return os.path.realpath(path) if os.path.islink(path) else path


_PATH = "path"
"""Keeps the node of a path from being taken for a key."""


def _folded(path: str) -> str:
    if sys.platform == "darwin":  # its file systems ignore case, and compose letters
        return unicodedata.normalize("NFC", path).casefold()
    return os.path.normcase(path)
