"""
Where the answer goes: whole, or not at all.

Standard output carries the answer and nothing else. Tools print, and so do
the programs that they start; as long as they may, all of that goes to standard
error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TextIO

from .._files import fileno_of, is_replaceable, open_beside, replace_file, write_all
from .errors import UnusableInputError

__all__ = ("FileTarget", "Stdout", "Target")


class Target(Protocol):
    """Takes the answer."""

    @property
    def name(self) -> str:
        """What to call it in a sentence."""
        ...

    def check(self) -> None:
        """
        Look whether writing can work; before any tool runs.

        Raises:
            UnusableInputError: It cannot.
        """

    def write(self, text: str) -> None:
        """
        Write the whole answer.

        Raises:
            OSError: It was not written. BrokenPipeError: nobody wants it.
        """

    @property
    def untouched(self) -> str:
        """What to tell the user where nothing has been written."""
        ...


class Stdout:
    """
    Standard output, held back for the answer; a context manager.

    What is printed meanwhile goes to standard error. Leaving the block sets
    all back, unless `keep_held` was called: tools that are still running
    would print behind the answer.
    """

    name = "standard output"
    untouched = "nothing was printed"

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        self._public_fd: int | None = None
        self._fd: int | None = None
        self._keep = False

    def __enter__(self) -> Self:
        self._stream = stream = sys.stdout
        if stream is not None:
            stream.flush()
            self._public_fd = fd = fileno_of(stream)
            if fd is not None:
                self._fd = os.dup(fd)
                _redirect(fd)
        # No file stands behind it where a test has put its own stream there.
        sys.stdout = sys.stderr
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keep:
            return
        sys.stdout = self._stream  # None: it was closed
        if self._fd is not None and self._public_fd is not None:
            os.dup2(self._fd, self._public_fd)
            os.close(self._fd)

    def keep_held(self) -> None:
        """Let standard output stay closed to what is still running; any thread."""
        self._keep = True

    def check(self) -> None:
        """Raise where standard output is closed."""
        if self._stream is None:
            msg = "standard output is closed; expected an open one, or --output"
            raise UnusableInputError(msg)

    def write(self, text: str) -> None:
        """Write the answer, past all buffers."""
        if self._fd is not None:
            write_all(self._fd, text.encode("utf-8", "replace"))
        elif self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


class FileTarget:
    """
    A file that is replaced in one step, by a complete one.

    A link is followed, and the file behind it replaced. What is no ordinary
    file, such as ``/dev/null`` or a named pipe, is written to as it is.
    """

    def __init__(self, path: str, option: str = "--output") -> None:
        self._shown = path
        self._option = option
        self.path = Path(os.path.realpath(path))

    @property
    def name(self) -> str:
        """The path, as it was given."""
        return self._shown

    @property
    def untouched(self) -> str:
        """What to tell the user where nothing has been written."""
        return f"{self._shown} is unchanged"

    def check(self) -> None:
        """Raise where the file could not be replaced; try it with an empty one."""
        msg = None
        if self.path.is_dir():
            msg = f"{self._option} {self._shown} is a directory; expected a file to write"
        elif not self.path.parent.is_dir():
            msg = f"{self._option} {self._shown}: there is no folder {self.path.parent}"
        elif self.path.exists() and not os.access(self.path, os.W_OK):
            msg = f"{self._option} {self._shown} cannot be written: it is read-only"
        elif is_replaceable(self.path):
            try:
                trial, fd = open_beside(self.path)
                os.close(fd)
                trial.unlink()
            except OSError as exc:
                msg = f"{self._option} {self._shown} cannot be written: {exc.strerror}"
        if msg is not None:
            raise UnusableInputError(msg)

    def write(self, text: str) -> None:
        """Write a new file beside the old one, then put it in its place."""
        replace_file(self.path, text.encode("utf-8", "replace"))


def _redirect(fd: int) -> None:
    """Have whatever is written to `fd` go to standard error, or nowhere."""
    error_fd = fileno_of(sys.stderr)
    if error_fd is not None:
        os.dup2(error_fd, fd)
    else:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)
