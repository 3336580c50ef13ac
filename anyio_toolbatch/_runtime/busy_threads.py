"""
Warns of calls that were let go and keep computing in their threads.

A loop in Python code that nobody can end takes the interpreter's time from
everything else in the program, and nothing shows why all of it has become slow.
Where the system tells how much processor time a thread has used (Linux does),
this looks: when a batch is opened or calls are let go, since then it concerns
somebody; there is no timer, and nothing runs while nothing is going on.
"""

from __future__ import annotations

import logging
import time
from threading import get_ident
from typing import Any

from .._core.record import CallRecord
from .logs import about, names_of

__all__ = ("BusyThreads", "cpu_clock_here")

logger = logging.getLogger(__name__)

LOOK_AFTER = 1.0
"""Seconds between two looks at a thread: who tidies up for less is no runaway."""
WORTH_SAYING = 0.25
"""The share of one processor that they take together."""
BUSY_SHARE = 0.02
"""The share from which a thread is one of them: many get little each."""


def _no_clock() -> None:
    return None


def _cpu_clock_here() -> int | None:
    return time.pthread_getcpuclockid(get_ident())


cpu_clock_here = _cpu_clock_here if hasattr(time, "pthread_getcpuclockid") else _no_clock
"""
Return the clock of this thread's processor time, or None where there is none.

In the thread itself: with the number of a thread that has ended, the system may crash.
The clock may outlive its thread.
"""


class BusyThreads:
    """
    The threads with calls that were let go, of one account. On the loop, but for `forget`.

    Who has ended is forgotten at once, in its thread. Story: that sets `reported`,
    then forgets; `watch` enters a call, then looks at `reported`. In every order one of
    the two takes it out; what `look` puts back meanwhile, the next look drops.
    """

    def __init__(self) -> None:
        self._marks: dict[CallRecord, tuple[float, float]] = {}
        """Processor time used, and the time, at the last look."""

    def watch(self, record: CallRecord) -> None:
        """A call has been let go."""
        used = _used(record)
        if used is not None:
            self._marks[record] = used, time.monotonic()
            if record.reported:
                self.forget(record)

    def forget(self, record: Any) -> None:
        """A call has ended; from any thread."""
        self._marks.pop(record, None)

    def look(self) -> None:
        """Warn if those that were let go take a lot of time; once for each call."""
        if not self._marks:
            return
        now = time.monotonic()
        busy: dict[CallRecord, float] = {}
        # A whole copy first: making pairs may set off the collector, which up to CPython
        # 3.11 runs at once, in the middle; code that it calls lets workers in.
        for record, (used_before, then) in dict(self._marks).items():
            if now - then < LOOK_AFTER:
                continue
            used = None if record.reported else _used(record)
            if used is None:
                self.forget(record)
            else:
                self._marks[record] = used, now
                share = (used - used_before) / (now - then)
                if share >= BUSY_SHARE:
                    busy[record] = share
        if sum(busy.values()) >= WORTH_SAYING:
            for record in busy:
                self.forget(record)
            _warn(list(busy), sum(busy.values()))


def _used(record: CallRecord) -> float | None:
    """Return the processor time that a call's thread has used, in seconds."""
    if record.cpu_clock is None:
        return None
    try:
        return time.clock_gettime(record.cpu_clock)
    except OSError:  # the thread is gone
        return None


def _warn(records: list[CallRecord], share: float) -> None:
    extra = about("busy_threads", records, processor_share=share)
    logger.warning(
        "%d detached calls (%s) keep computing in threads, and slow down everything else: "
        "they take %.0f %% of a processor. Only a process can be ended: runs_in='process'",
        len(records),
        names_of(records),
        share * 100,
        extra=extra,
    )
