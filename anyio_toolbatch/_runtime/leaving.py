"""
Lets the interpreter end while worker threads are printing.

A daemon thread is stopped where it next wants the interpreter's lock. If that
is inside a write to stdout, it keeps the stream's own lock, and the final
flush of the interpreter gives up after a second and aborts the process
("could not acquire lock for <_io.BufferedWriter name='<stdout>'>"). Seen in
30 of 120 runs with a pipe for stdout, on a loaded machine.

So at exit, while everything still works, the standard streams are flushed and
replaced by a stand-in. It lets only the main thread through and flushes each
of its writes; every other thread (only daemons are left by then) waits in it
for ever, holding nothing. The interpreter's last flush comes to the stand-in,
which has nothing left to do, and so never meets a lock that a thread inside
the old stream has taken with it.
"""

from __future__ import annotations

import atexit
import io
import select
import sys
import threading
from typing import Any

__all__ = ("leave_streams_to_main_thread",)

READER_SECONDS = 0.5
"""How long a full pipe is given to be read; the process is to be gone in one second."""

_for_ever = threading.Lock()
_for_ever.acquire()


class _MainThreadOnly:
    """A text stream that holds every thread but the main one."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        self._patience = READER_SECONDS

    def write(self, text: str) -> int:
        if threading.current_thread() is not threading.main_thread():
            _for_ever.acquire()
        written = self._stream.write(text)
        self.flush()
        return written

    def flush(self) -> None:
        """Flush it, unless that would never end; others ask for it, too: `logging` does."""
        if sys.is_finalizing():
            return
        if _takes_more(self._stream, self._patience):
            self._stream.flush()
        else:
            self._patience = 0.0  # once is enough

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def leave_streams_to_main_thread() -> None:
    """Have it done at the end of the interpreter; idempotent."""
    global _registered  # noqa: PLW0603
    if not _registered:
        _registered = True
        atexit.register(_at_exit)


_registered = False


def _at_exit() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Anything else (a test's capture, an application's own) has no such lock.
        if isinstance(stream, io.TextIOWrapper):
            stand_in = _MainThreadOnly(stream)
            setattr(sys, name, stand_in)
            try:
                stand_in.flush()
            except (OSError, ValueError):
                pass  # closed, or nobody reads it: as the interpreter does


def _takes_more(stream: io.TextIOWrapper, seconds: float) -> bool:
    """
    Tell whether a write to the stream makes progress.

    Into a full pipe that nobody reads it would not, nor into a terminal that is
    stopped; and a thread that is stuck in such a write never gives the stream's lock
    back.
    """
    try:
        return bool(select.select([], [stream.fileno()], [], seconds)[1])
    except (OSError, ValueError):
        return True  # no file of its own, or no select for files (Windows)
