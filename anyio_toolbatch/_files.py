"""Files that are written whole, or not at all; and what lies behind a stream."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import IO

__all__ = ("fileno_of", "is_replaceable", "open_beside", "replace_file", "write_all")


def replace_file(path: Path, content: bytes) -> None:
    """
    Write a new file beside the old one, then put it in its place.

    What is no ordinary file, such as ``/dev/null`` or a named pipe, is written
    to as it is. A link is not followed: give what it leads to.

    Raises:
        OSError: It was not written; an old file is as it was.
    """
    if not is_replaceable(path):
        with path.open("wb", buffering=0) as device:
            write_all(device.fileno(), content)
        return
    new, fd = open_beside(path)
    try:
        try:
            write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        _copy_permissions(path, new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def is_replaceable(path: Path) -> bool:
    """Tell whether another file can be put in its place."""
    return path.is_file() or not path.exists()


def open_beside(path: Path) -> tuple[Path, int]:
    """Open a new file in the same folder; the umask decides on its permissions."""
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return new, os.open(new, flags, 0o666)


def write_all(fd: int, content: bytes) -> None:
    """Write all of it; a signal or a full pipe may take several tries."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def fileno_of(stream: IO[str] | None) -> int | None:
    """Return the stream's file descriptor, if one stands behind it."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _copy_permissions(old_path: Path, new: Path) -> None:
    try:
        old = old_path.stat()
    except FileNotFoundError:
        return
    if hasattr(os, "chown"):
        try:
            os.chown(new, old.st_uid, old.st_gid)
        except OSError:
            pass  # only root may give a file away; the mode is what counts
    new.chmod(stat.S_IMODE(old.st_mode))
