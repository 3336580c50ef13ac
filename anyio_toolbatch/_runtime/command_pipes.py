"""
A command's pipes, read and fed by whoever waits for the command.

One file descriptor stands for all of them, and where the system has one for the
command's end, for that too: so that one wait is enough, in one task.
"""

from __future__ import annotations

import math
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import Any, cast

import anyio

from .command_output import Output

__all__ = ("Pipes", "SelectedPipes", "ThreadedPipes")

CHUNK = 65536
"""Bytes to read or write at once; the usual size of a pipe."""
LOOK_SECONDS = 0.025
"""Where pipes can't be waited for: how long until somebody looks again."""


class SelectedPipes:
    """A command's pipes, and where there is one the handle that tells its end."""

    def __init__(self) -> None:
        # An epoll or kqueue: a file descriptor that is readable when there is
        # something to do with one of those in it.
        self._selector = selectors.DefaultSelector()
        self.tell_the_end = False

    def watch(self, pid: int) -> None:
        try:
            handle = FileIO(os.pidfd_open(pid))
        except (AttributeError, OSError):
            return  # not Linux; an old one, or a sandbox
        self.tell_the_end = True
        self._register(handle, selectors.EVENT_READ, partial(self._close, handle))

    def read(self, pipe: FileIO, output: Output) -> None:
        self._register(pipe, selectors.EVENT_READ, partial(self._read, pipe, output))

    def feed(self, pipe: FileIO, data: bytes) -> None:
        left = deque([memoryview(data)])
        self._register(pipe, selectors.EVENT_WRITE, partial(self._feed, pipe, left))

    async def wait(self, seconds: float) -> None:
        """Do what there is to do, or wait for it, at most so long."""
        fileno = cast("selectors.EpollSelector", self._selector).fileno()
        if seconds == math.inf:
            await anyio.wait_readable(fileno)
        else:
            with anyio.move_on_after(seconds):
                await anyio.wait_readable(fileno)
        # Each of them once: a flood of output must not hold the loop.
        for key, _ in self._selector.select(0):
            key.data()

    def close(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            self._close(cast("FileIO", key.fileobj))
        self._selector.close()

    def _register(self, pipe: FileIO, event: int, action: Callable[[], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, event, action)

    def _close(self, pipe: FileIO) -> None:
        self._selector.unregister(pipe)
        pipe.close()

    def _read(self, pipe: FileIO, output: Output) -> None:
        chunk = pipe.read(CHUNK)
        if chunk:
            output.add(chunk)
        elif chunk is not None:  # None: there is nothing, after all
            output.is_at_end = True
            self._close(pipe)

    def _feed(self, pipe: FileIO, left: deque[memoryview]) -> None:
        try:
            written = pipe.write(left[0][:CHUNK]) or 0
        except OSError:
            written = len(left[0])  # it does not want to read it all
        left[0] = left[0][written:]
        if not left[0]:
            self._close(pipe)


class ThreadedPipes:
    """The same where a pipe can't be waited for: on Windows."""

    tell_the_end = False

    def watch(self, pid: int) -> None:
        pass

    def read(self, pipe: FileIO, output: Output) -> None:
        self._start(_read_to_the_end, pipe, output)

    def feed(self, pipe: FileIO, data: bytes) -> None:
        self._start(_feed_all, pipe, data)

    async def wait(self, seconds: float) -> None:
        await anyio.sleep(min(seconds, LOOK_SECONDS))

    def close(self) -> None:
        pass  # the threads do, when nobody else has the other end any more

    def _start(self, function: Callable[..., None], *args: Any) -> None:
        name = "anyio_toolbatch command"
        threading.Thread(target=function, args=args, name=name, daemon=True).start()


def _read_to_the_end(pipe: FileIO, output: Output) -> None:
    with pipe:
        while chunk := pipe.read(CHUNK):
            output.add(chunk)
        output.is_at_end = True


def _feed_all(pipe: FileIO, data: bytes) -> None:
    left = memoryview(data)
    try:
        with pipe:
            while left:
                left = left[pipe.write(left[:CHUNK]) :]
    except OSError:
        pass  # it does not want to read it all


Pipes: type[SelectedPipes | ThreadedPipes] = (
    SelectedPipes if hasattr(selectors.DefaultSelector, "fileno") else ThreadedPipes
)
