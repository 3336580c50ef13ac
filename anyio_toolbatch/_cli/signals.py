"""
Ctrl-C and a request to terminate, from the batch's start to the process's end.

The handler is set with `signal.signal` before the event loop starts: asyncio
and trio put their own in place only of Python's default, and those would
cancel or break into whatever runs. Ours runs in the main thread between any
two lines of Python, so it does what is allowed there: it sets flags, calls
`ToolRunner.interrupt`, writes to file descriptors, and leaves.

A signal that the parent had ignored is taken all the same: shells ignore
SIGINT in what they start in the background, and whoever sends it there on
purpose means it.
"""

from __future__ import annotations

import enum
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ("Phase", "Signals")


class Phase(enum.Enum):
    """How far the command has come."""

    RUNNING = enum.auto()
    ANSWERING = enum.auto()
    """The answer is being written: leaving now would leave half of it."""
    ANSWERED = enum.auto()
    """The answer is out, `Signals.code` says how it went."""


class Signals:
    """
    Takes SIGINT and SIGTERM from the start of its block on.

    The first one interrupts the batch. The second leaves at once, unless the
    answer is being written: then it leaves right behind it, and only a third
    does not wait for that either.

    Args:
        interrupt: Called for the first signal, in the handler.
        leaving: Called in the handler, or by `answered`, before the process
            is left at once.
        stays: Take signals to the end of the process, not of the block.
    """

    def __init__(
        self,
        interrupt: Callable[[], object],
        leaving: Callable[[], object],
        *,
        stays: bool = False,
    ) -> None:
        self._interrupt = interrupt
        self._leaving = leaving
        self._stays = stays
        self._count = 0
        self._is_leaving = False
        self._old: dict[signal.Signals, Any] = {}
        self.first: int | None = None
        """The number of the first signal that came before the answer."""
        self.phase = Phase.RUNNING
        self.code = 0

    def __enter__(self) -> Self:
        # Elsewhere Python allows no handlers; a program that runs us there
        # has its own.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stays:
            return
        for number, old in self._old.items():
            # None: it was set by other than Python code.
            signal.signal(number, signal.SIG_DFL if old is None else old)

    def answered(self, code: int) -> None:
        """Note that the answer is out; leave if that was asked for meanwhile."""
        self.code = code
        self.phase = Phase.ANSWERED
        if self._count > 1:
            self._leave(code)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.phase is Phase.ANSWERED:
            self._leave(self.code)
        self._count += 1
        if self._count == 1:
            if self.phase is Phase.RUNNING:
                self.first = number
                self._interrupt()
        elif self.phase is Phase.RUNNING or self._count > 2:
            self._leave(128 + number)

    def _leave(self, code: int) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self._leaving()  # may take its time, or hang: then one more goes past it
        os._exit(code)
