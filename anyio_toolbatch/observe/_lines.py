"""
A view where there is no terminal to draw in: one line when a call starts and ends.

A thread of its own writes them: whoever reads the stream may be slow, and the event
loop must not wait for that.
"""

from __future__ import annotations

import queue
import threading
from typing import IO

from .._files import fileno_of, write_all
from .._model.events import BatchSettled, CallSettled, CallStarted, Event
from ._rows import Rows
from ._words import NOTE_WIDTH, describe, name_of, one_line

__all__ = ("Lines", "write_line")

WAITING_LINES = 10_000
"""Lines that nobody has taken yet; more are left out."""
JOIN_SECONDS = 2.0


class Lines:
    """Writes plain lines to a stream."""

    def __init__(self, rows: Rows, stream: IO[str]) -> None:
        self._rows = rows
        self._stream = stream
        self._queue: queue.SimpleQueue[tuple[int, Event] | str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._thread = threading.Thread(
            target=self._write_all, name="anyio_toolbatch view", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what there is; then no more."""
        for result, batch_id in self._rows.unheard():
            self.tell(CallSettled(batch_id, result))
        self._queue.put(None)
        self._thread.join(JOIN_SECONDS)

    def tell(self, event: Event) -> None:
        """Have an event written down, if it is one for people."""
        if isinstance(event, CallStarted | CallSettled):
            self._put((self._rows.number_of(event.batch_id), event))
        elif isinstance(event, BatchSettled):
            self._rows.take_settled()

    def note(self, words: str) -> None:
        """Have a line written; also from a signal handler."""
        self._put(one_line(words, NOTE_WIDTH))

    def leave_to_parent(self) -> None:
        """Do nothing: in a forked child nobody writes any more."""

    def restore(self) -> None:
        """Do nothing: lines need no tidying."""

    def _put(self, item: tuple[int, Event] | str) -> None:
        if self._queue.qsize() < WAITING_LINES:
            self._queue.put(item)
        else:
            self._left_out += 1

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            line = item if isinstance(item, str) else _line(*item)
            if not write_line(self._stream, line):
                self._rows.is_read = False  # nobody is there to be told
                return
        if self._left_out:
            write_line(self._stream, f"… {self._left_out} lines were left out")


def _line(number: int, event: Event) -> str:
    assert isinstance(event, CallStarted | CallSettled)
    batch = f"batch {number}  " if number > 1 else ""
    words = "started" if isinstance(event, CallStarted) else describe(event.result)
    return f"{batch}call {event.index}  {name_of(event.call)}  {words}"


def write_line(stream: IO[str] | None, text: str) -> bool:
    """
    Write a line past the stream's buffers; False if it can't be written.

    Threads:
        Any, and signal handlers: a buffered stream would refuse to be entered
        by a handler that has interrupted it.
    """
    if stream is None:
        return False
    try:
        fd = fileno_of(stream)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        content = f"{text}\n".encode(encoding, "backslashreplace")
        if fd is None:
            stream.write(content.decode(encoding))
        else:
            write_all(fd, content)
    except (OSError, ValueError):
        return False
    return True
