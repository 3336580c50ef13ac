"""
Tells who blocks an event loop, while it lasts.

A daemon thread, one for the process, asks each loop that has an open batch for a sign
of life, again and again. Where none comes it looks at the stack of the loop's thread:
the call whose task is running there is to be found in it. Nothing is left on a loop
but that one question, and the thread ends a while after the last batch.

What looks like a blocked loop, and is not:

* the whole process stood still (a suspended machine, a stopped process, a thread that
  keeps the interpreter's lock): then the detector's own thread was late, too. Such time
  is left out, but for what the loop's thread has computed in it, where that can be told;
* the loop is stopped between two ``run_until_complete``: it is not asked;
* the loop has very much to do: then the last looks have met different calls, or none.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._model.events import BatchSettled, BatchStarted, Event
from .._model.tools import check_seconds
from .._runtime.backend import after_fork
from .._runtime.busy_threads import cpu_clock_here
from .._runtime.hub import Hub, current_hub
from .._runtime.logs import about
from .._runtime.loop_carrier import run_on_loop
from .._runtime.publisher import Publisher

__all__ = ("Stall", "StallDetector")

logger = logging.getLogger(__name__)

LOOKS = 4
"""How often a loop is asked within the threshold, at least."""
LONGEST_PAUSE = 0.25
"""Between two looks: a detector that comes meanwhile may be less patient."""
IDLE_SECONDS = 10.0
"""How long the thread stays without a batch: longer than a pause between turns."""
COMPUTES = 0.1
"""The share of the time that a thread was at work which computes, on a busy machine
too; one that waits is near nothing."""
REMEMBERED = 1000
"""Tools and places that have been warned of."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An event loop that does not answer."""

    tool: str | None
    """The name of the tool whose call is in the way; None if it is none, or not one."""
    call: ToolCall | None
    batch_id: str | None
    seconds: float
    """How long the loop has not answered so far."""
    is_computing: bool | None
    """Whether its thread computes or waits; None where the system does not tell."""
    stack: str
    """The frames of the loop's thread, innermost last; of a tool only its own."""


class StallDetector:
    """
    An observer that warns of what blocks the event loop, while it still does.

    It watches every loop on which a batch of its runners is open. A tool is named
    in a warning once, and in `on_stall` each time. What a detached call does after
    its batch has ended is not watched.

    Args:
        threshold: Seconds without a sign of life that are too long.
        on_stall: Called with each `Stall`, in a thread of its own, while the loop
            is blocked; must be quick. What it raises is logged.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.

    Threads:
        One detector may serve any number of runners, on any loops.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        *,
        on_stall: Callable[[Stall], object] | None = None,
    ) -> None:
        check_seconds("threshold", threshold, optional=False)
        if threshold <= 0:
            msg = f"threshold must be more than 0, not {threshold!r}"
            raise ValueError(msg)
        if on_stall is not None and not callable(on_stall):
            msg = f"on_stall must be callable or None, not {type(on_stall).__name__}"
            raise TypeError(msg)
        self.threshold = float(threshold)
        self._on_stall = on_stall
        self._told: set[object] = set()

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        kind = type(event)
        if kind is BatchStarted:
            _watchdog.watch(self, event.batch_id, current_hub())
        elif kind is BatchSettled:
            _watchdog.forget(self, event.batch_id)

    # -- in the watchdog's thread ------------------------------------------

    def _look(self, loop: _Loop, now: float, late: float) -> None:
        if not loop.hub.backend.is_running:
            loop.asked_at = None
            return
        if loop.asked_at is None or loop.answered:
            if loop.is_told and loop.asked_at is not None:
                logger.info("the event loop runs again, after %.1f s", now - loop.asked_at)
            loop.ask(now)
            return
        loop.leave_out(late)
        waited = now - loop.asked_at
        record = loop.sample()
        if loop.is_told or waited < self.threshold:
            return
        # Until then it may become clear who it is.
        if loop.is_steady or waited >= 2 * self.threshold:
            loop.is_told = True
            self._tell(loop, record if loop.is_steady else None, waited)

    def _tell(self, loop: _Loop, record: CallRecord | None, seconds: float) -> None:
        frame = sys._current_frames().get(loop.hub.thread_id)
        if loop.answered or frame is None:
            return  # it has just gone on
        stall = Stall(
            tool=None if record is None else record.call.name,
            call=None if record is None else record.call,
            batch_id=None if record is None else record.batch.id,
            seconds=seconds,
            is_computing=loop.is_computing(seconds),
            stack=_stack_of(frame),
        )
        place = (frame.f_code, stall.tool) if record is None else stall.tool
        del frame
        if place not in self._told and len(self._told) < REMEMBERED:
            self._told.add(place)
            _warn(stall, record)
        if self._on_stall is not None:
            try:
                self._on_stall(stall)
            except BaseException:  # SystemExit, too, would end the thread for good
                logger.exception(
                    "on_stall %r failed", self._on_stall, extra=about("hook_failed")
                )


class _Watchdog:
    """The one thread, and what it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the thread's coming and going."""
        self.loops: dict[tuple[StallDetector, str], _Loop] = {}
        """By detector and batch. Written by the loops' threads."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, detector: StallDetector, batch_id: str, hub: Hub) -> None:
        """A batch has been opened; on its loop."""
        known = dict(self.loops).values()
        loop = next((w for w in known if w.hub is hub and w.detector is detector), None)
        self.loops[detector, batch_id] = loop or _Loop(detector, hub)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="anyio_toolbatch stall detector", daemon=True
                )
                # From 3.14 on a thread inherits the context of whoever starts it.
                contextvars.Context().run(thread.start)
                self._thread = thread
        self._wake.set()

    def forget(self, detector: StallDetector, batch_id: str) -> None:
        """A batch is over; on its loop."""
        self.loops.pop((detector, batch_id), None)

    # -- in its thread -----------------------------------------------------

    def _run(self) -> None:
        while self._is_needed():
            self._look()

    def _look(self) -> None:
        loops = set(dict(self.loops).values())
        interval = min([LONGEST_PAUSE, *(w.detector.threshold / LOOKS for w in loops)])
        before = time.monotonic()
        time.sleep(interval)
        now = time.monotonic()
        late = max(now - before - interval, 0.0)
        for loop in loops:
            try:
                if loop.hub.backend.is_closed:
                    self._drop(loop)
                else:
                    loop.detector._look(loop, now, late)
            except Exception:
                logger.exception("error in the stall detector")

    def _drop(self, loop: _Loop) -> None:
        """A loop was closed in the middle of a batch."""
        for key, other in dict(self.loops).items():
            if other is loop:
                self.loops.pop(key, None)

    def _is_needed(self) -> bool:
        """Park while there is nothing to watch; False if that has lasted."""
        while not self.loops:
            self._wake.clear()
            if self.loops or self._wake.wait(IDLE_SECONDS):
                continue
            with self._lock:
                if not self.loops:
                    self._thread = None
                    return False
        return True


_watchdog = _Watchdog()


def _new_watchdog() -> None:
    # No thread but the forking one survives in the child, and no loop is watched there.
    global _watchdog  # noqa: PLW0603
    _watchdog = _Watchdog()


after_fork(_new_watchdog)


class _Loop:
    """One loop that is watched for one detector; in the watchdog's thread, if not said."""

    def __init__(self, detector: StallDetector, hub: Hub) -> None:
        """On the loop."""
        self.detector = detector
        self.hub = hub
        self.asked_at: float | None = None
        """Later by what was left out."""
        self.answered = False
        self.is_told = False
        self.is_steady = False
        """The last two looks have met the same."""
        self._last: object = self
        self._clock = cpu_clock_here()
        self._used = self._used_when_asked = 0.0

    def ask(self, now: float) -> None:
        self.asked_at = now
        self.answered = self.is_told = self.is_steady = False
        self._last = self
        self._used = self._used_when_asked = self._cpu()
        self.hub.post_urgent(_Loop.answer, self)

    def answer(self) -> None:
        """On the loop."""
        self._clock = cpu_clock_here()  # it may be run from another thread than before
        self.answered = True

    def leave_out(self, late: float) -> None:
        """Leave out time in which nobody ran, the detector included."""
        used, self._used = self._used, self._cpu()
        assert self.asked_at is not None
        self.asked_at += max(late - (self._used - used), 0.0)

    def sample(self) -> CallRecord | None:
        """Return the call whose step the loop is in."""
        frame = sys._current_frames().get(self.hub.thread_id)
        record = None if frame is None else _call_in(frame)
        del frame
        self.is_steady = record is self._last
        self._last = record
        return record

    def is_computing(self, seconds: float) -> bool | None:
        if self._clock is None:
            return None
        return self._cpu() - self._used_when_asked >= COMPUTES * seconds

    def _cpu(self) -> float:
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the thread is gone
            return self._used


def _is_our_task(code: CodeType) -> bool:
    ours = run_on_loop.__code__
    return code.co_name == ours.co_name and code.co_filename == ours.co_filename


_CALLS_OBSERVERS = (Publisher._call_out.__code__, Publisher._visit.__code__)


def _call_in(frame: FrameType) -> CallRecord | None:
    """Return the innermost call that a stack belongs to; None in an observer."""
    above: FrameType | None = frame
    while above is not None:
        if above.f_code in _CALLS_OBSERVERS:
            return None  # in the task of a call, but not its tool's doing
        if _is_our_task(above.f_code):
            record = above.f_locals.get("record")
            return record if isinstance(record, CallRecord) else None
        above = above.f_back
    return None


def _stack_of(frame: FrameType) -> str:
    """Show the frames of the tool, or all if there is none."""
    lines: list[tuple[FrameType, int]] = []
    above: FrameType | None = frame
    inside = _call_in(frame) is not None
    while above is not None and not (inside and _is_our_task(above.f_code)):
        if above.f_lineno is not None and not (inside and _is_ours(above.f_code)):
            lines.append((above, above.f_lineno))
        above = above.f_back
    return "".join(traceback.StackSummary.extract(iter(reversed(lines))).format())


_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE)


def _warn(stall: Stall, record: CallRecord | None) -> None:
    does = {True: "computes", False: "waits", None: "does not return"}[stall.is_computing]
    remedy = "process" if stall.is_computing else "thread"
    if stall.tool is None:
        who = f"something that is no single tool {does}"
        what = ""
    else:
        who = f"the tool {stall.tool!r} {does}"
        what = f"; runs_in={remedy!r} takes it off the loop"
    logger.warning(
        "the event loop has been blocked for %.1f s: %s%s\n%s",
        stall.seconds,
        who,
        what,
        stall.stack.rstrip(),
        extra=about(
            "loop_stalled",
            [] if record is None else [record],
            seconds=stall.seconds,
            stack=stall.stack,
            is_computing=stall.is_computing,
        ),
    )
