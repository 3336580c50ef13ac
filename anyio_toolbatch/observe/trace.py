"""
Records what batches do, as a timeline to be looked at in Perfetto.

Story of a call: it is *entered* and *left* where it runs, in its own thread, which
gives the exact times of its work; and settled on the loop, which tells how it ended
and how long it waited. The three come in any order where a call is cut. It is
complete when it is settled and, if it had started, left.

One clock for all loops and threads: a loop's own clock may have another origin, so of
that only lengths are used.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import ref

from .._files import replace_file
from .._model.calls import ToolCall
from .._model.events import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    Event,
    LateResultDropped,
)
from .._model.results import ToolResult
from .._model.tools import check_count, check_flag
from .._runtime.backend import after_fork
from .._runtime.batch import ToolBatch
from .._runtime.context import CallContext, current_call
from ._timeline import BatchNotes, CallNotes, as_text, trace_events

__all__ = ("TraceRecorder",)

MARKS = 100
"""Progress reports and outputs that are kept of one call."""
EMPTY_BATCHES = 100
"""Batches without calls that are kept."""
LOOKS = 20
"""Calls that are asked, at one event, what they wait for."""
LOOK_AGAIN_NS = 5_000_000
"""How long a batch is not asked again: a thousand calls that start are quick."""
CONTENT_CHARS = 1000
NOT_YET = {"approval", "paths", "turn"}
"""What a call waits for before it waits for others."""

Key = tuple[str, int]
"""A batch, and a call's place in it."""

# Entered again by a signal handler that saves while its own thread is noting.
_lock = threading.RLock()


def _new_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


after_fork(_new_lock)


class TraceRecorder:
    """
    An observer that keeps a timeline, to be saved as Trace Event JSON.

    Each call is a row with its phases: approval, waiting, running, and, where its
    batch let go of it, detached, until its work has really ended. Worker threads have
    rows of their own; interrupts are marks. https://ui.perfetto.dev opens the file.

    One recorder may serve any number of runners, on any loops and threads. It takes
    in what happens after it was handed to a runner.

    Args:
        max_calls: How many calls are kept, with their batches: the newest ones. None
            keeps all.
        capture_content: Also keep what may be confidential: each call's arguments and
            what its result says, up to 1,000 characters each. What a call waited for
            is kept in any case, and may name a path.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.

    Threads:
        Any, and signal handlers.
    """

    def __init__(
        self, *, max_calls: int | None = 10_000, capture_content: bool = False
    ) -> None:
        check_count("max_calls", max_calls, minimum=1, optional=True)
        check_flag("capture_content", capture_content)
        self._max_calls = max_calls
        self._capture_content = capture_content
        self._began_at = _clock()
        self._began = datetime.now(UTC)
        self._tracks = itertools.count(1)
        self._batches: OrderedDict[str, _Batch] = OrderedDict()
        self._calls: OrderedDict[Key, CallNotes] = OrderedDict()
        self._on_thread: dict[int, Key] = {}
        """Which call a thread is at work for."""
        self._empty: deque[str] = deque()
        """Batches that are over, and of whose calls none is kept."""
        self._dropped = 0

    # -- what is told --------------------------------------------------------

    def watch_batch(self, batch: ToolBatch) -> None:
        """Take a new batch in; see the events' reference."""
        try:
            outer = current_call()
            inside = f"call {outer.index} ({outer.call.name}) of {outer.batch_id}"
        except RuntimeError:
            inside = None
        with _lock:
            entry = self._batch(batch.id)
            entry.notes.inside = inside
            entry.batch = ref(batch)

    def enter_call(self, context: CallContext) -> None:
        """Note that a tool is about to run; in its own thread."""
        thread = threading.current_thread()
        tid = threading.get_native_id()
        with _lock:
            notes = self._call(context.batch_id, context.index, context.call)
            notes.entered_at = self._now()
            notes.runs_in = context.runs_in
            if context.runs_in != "loop" and tid not in self._on_thread:
                notes.thread = (tid, thread.name)
                self._on_thread[tid] = (context.batch_id, context.index)

    def leave_call(self, context: CallContext) -> None:
        """Note that a tool's work is over, late or not; in its own thread."""
        key = (context.batch_id, context.index)
        tid = threading.get_native_id()
        with _lock:
            notes = self._calls.get(key)
            if notes is None:
                return  # too many calls have come since
            notes.left_at = self._now()
            if notes.thread is not None:
                entered_in, _ = notes.thread
                self._on_thread.pop(entered_in, None)
                if entered_in != tid:  # nobody knows how long that thread was at work
                    notes.thread = None

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        with _lock:
            entry = self._batch(event.batch_id)
            match event:
                case BatchStarted():
                    pass
                case BatchSettled():
                    entry.notes.settled_at = self._now()
                    entry.batch = None
                    entry.to_look.clear()
                    if not entry.kept:
                        self._forget_later(event.batch_id)
                case BatchInterrupted(reason=reason):
                    entry.notes.cut_kind = reason.kind
                    entry.notes.cut_message = reason.message
                    entry.notes.cut_at = self._now()
                case CallSettled(result=result):
                    self._settle(entry, result)
                case CallProgress(call=call, index=index):
                    self._mark(event, call, index)
                case CallOutput(call=call, index=index):
                    self._mark(event, call, index)
                case LateResultDropped(late=late):
                    notes = self._calls.get((late.batch_id, late.index))
                    if notes is not None:
                        notes.is_late = True
                case _:
                    pass
            if entry.batch is not None:
                self._look(entry)

    # -- saving ----------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write what has been recorded so far to a file.

        May be called again and again, also while batches run: what goes on is drawn
        up to now. The file is replaced in one step by a complete one.

        Args:
            path: The file; ``.json`` suits it.

        Raises:
            OSError: It was not written; an old file is as it was.

        Threads:
            Any, and signal handlers. It writes a file: on an event loop's thread it
            holds the loop for as long as that takes.
        """
        replace_file(Path(os.path.realpath(path)), self.to_json().encode())

    def to_json(self) -> str:
        """
        Return what has been recorded so far, as `save` would write it.

        Threads:
            Any, and signal handlers.
        """
        # Not ASCII only: Perfetto shows escapes as they are.
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """
        Return what has been recorded so far, as the JSON says it.

        Threads:
            Any, and signal handlers.
        """
        pid = os.getpid()
        with _lock:
            now = self._now()
            calls = [notes.snapshot() for notes in self._calls.values()]
            batches = [entry.notes for entry in self._batches.values()]
            dropped = self._dropped
        # Outside: nobody has to wait for it who has something to note.
        events = trace_events(pid, _process_name(), batches, calls, now)
        about: dict[str, Any] = {"began": self._began.isoformat(timespec="milliseconds")}
        if dropped:
            about["calls left out"] = dropped
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}

    # -- notes -------------------------------------------------------------------

    def _now(self) -> int:
        return _clock() - self._began_at

    def _batch(self, batch_id: str) -> _Batch:
        entry = self._batches.get(batch_id)
        if entry is None:
            thread = threading.current_thread().name
            notes = BatchNotes(batch_id, next(self._tracks), self._now(), thread, None)
            entry = self._batches[batch_id] = _Batch(notes)
        return entry

    def _call(self, batch_id: str, index: int, call: ToolCall) -> CallNotes:
        key = (batch_id, index)
        notes = self._calls.get(key)
        if notes is None:
            batch = self._batch(batch_id)
            batch.notes.calls += 1
            batch.kept += 1
            notes = CallNotes(
                batch.notes, index, as_text(call.id), as_text(call.name), next(self._tracks)
            )
            self._calls[key] = notes
            if self._max_calls is not None and len(self._calls) > self._max_calls:
                self._drop()
        return notes

    def _drop(self) -> None:
        """Forget the oldest call, and its batch when that was the last of it."""
        (batch_id, _), notes = self._calls.popitem(last=False)
        self._dropped += 1
        if notes.thread is not None and notes.left_at is None:
            self._on_thread.pop(notes.thread[0], None)
        batch = self._batches.get(batch_id)
        if batch is not None:
            batch.kept -= 1
            if not batch.kept and batch.notes.settled_at is not None:
                del self._batches[batch_id]

    def _forget_later(self, batch_id: str) -> None:
        self._empty.append(batch_id)
        if len(self._empty) > EMPTY_BATCHES:
            self._batches.pop(self._empty.popleft(), None)

    def _settle(self, entry: _Batch, result: ToolResult) -> None:
        notes = self._call(entry.notes.id, result.index, result.call)
        notes.settled_at = self._now()
        notes.has_started = result.started
        notes.is_detached = result.detached
        notes.waited = _nanoseconds(result.wait_time)
        notes.asked = _nanoseconds(result.approval_time)
        notes.ran = _nanoseconds(result.run_time)
        notes.waits_for = entry.waits.pop(result.index, None)
        notes.status = result.status.value
        if result.reason is not None:
            notes.reason = result.reason.kind
        if result.error is not None:
            notes.error = type(result.error).__qualname__
        if self._capture_content:
            given = result.call.raw_arguments
            arguments = given if isinstance(given, str) else _as_json(given)
            notes.content = {
                "arguments": as_text(arguments, CONTENT_CHARS),
                "result": as_text(result.text, CONTENT_CHARS),
            }

    def _mark(self, event: CallProgress | CallOutput, call: ToolCall, index: int) -> None:
        notes = self._call(event.batch_id, index, call)
        if notes.marks is None:
            notes.marks = []
        if len(notes.marks) >= MARKS:
            notes.marks_left_out += 1
            return
        more: dict[str, Any] = {}
        if isinstance(event, CallOutput):
            what = "output"
        else:
            what = "progress"
            more["progress"] = _number(event.progress)
            if event.total is not None:
                more["total"] = _number(event.total)
            if event.message and self._capture_content:
                more["message"] = as_text(event.message, CONTENT_CHARS)
        notes.marks.append((self._now(), what, more))

    def _look(self, entry: _Batch) -> None:
        """Ask some calls what they wait for: no event tells that."""
        batch = entry.batch and entry.batch()
        now = self._now()
        if not batch or now < entry.look_at:
            return
        entry.look_at = now + LOOK_AGAIN_NS
        for _ in range(LOOKS):
            index = entry.to_look.popleft() if entry.to_look else entry.next_index
            try:
                waiting = batch.waiting_call(index)
            except IndexError:
                break
            if index == entry.next_index:
                entry.next_index += 1
            if waiting is not None:
                if waiting.kind in NOT_YET:
                    entry.again.append(index)
                else:
                    entry.waits[index] = waiting.waits_for
        entry.to_look.extend(entry.again)
        entry.again.clear()


@dataclass(slots=True)
class _Batch:
    """What a recorder has to know of an open batch, beside what it notes."""

    notes: BatchNotes
    batch: ref[ToolBatch] | None = None
    kept: int = 0
    look_at: int = 0
    next_index: int = 0
    to_look: deque[int] = field(default_factory=deque)
    again: list[int] = field(default_factory=list)
    waits: dict[int, str] = field(default_factory=dict)


def _clock() -> int:
    return time.monotonic_ns()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _number(value: float) -> float | str:
    # JSON knows no infinity, its readers no number that a float can't hold.
    try:
        return value if math.isfinite(value) else str(value)
    except OverflowError:
        return "(too large)"


def _process_name() -> str:
    return Path(sys.argv[0]).name or "python" if sys.argv else "python"


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # noqa: BLE001 - a circle, a key, or whatever a repr may raise
        return "(can't be shown as JSON)"
