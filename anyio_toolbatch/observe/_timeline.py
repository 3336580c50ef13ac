"""
Writes down what a recorder has noted, as Trace Event JSON for Perfetto.

The rules that make Perfetto show it:

* Slices that overlap can't share a row, unless one lies inside the other. So each
  call, and each batch, is an async track of its own: ``b`` and ``e`` events with the
  same ``id2.local``. (A plain ``id`` hides them.) Within a track the events come in
  the order of their times.
* Calls with the same name become one group of rows, since a track is named after its
  first slice: that is the call's, and its phases lie inside it.
* A worker thread is a row of ``X`` events. They never overlap: a thread has one call
  at a time.
* What has not ended is a ``b`` without an ``e``: Perfetto draws it to the end.
* Times are microseconds. Lone surrogates are no text for its parser.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ("BatchNotes", "CallNotes", "as_text", "trace_events")

CATEGORY = "toolbatch"
NAME_CHARS = 200

Event = dict[str, Any]
Mark = tuple[int, str, dict[str, Any]]
"""When, what, and more about it."""


@dataclass(slots=True)
class BatchNotes:
    """What is known of a batch. All times here are nanoseconds of one clock."""

    id: str
    track: int
    opened_at: int
    thread: str
    inside: str | None
    """The call that has opened it, in words."""
    calls: int = 0
    settled_at: int | None = None
    cut_at: int | None = None
    cut_kind: str = ""
    cut_message: str | None = None


@dataclass(slots=True)
class CallNotes:
    """What is known of a call; None where something is not known yet."""

    batch: BatchNotes
    index: int
    id: str
    name: str
    """Both as `as_text` gives them."""
    track: int
    entered_at: int | None = None
    """The tool's first line was about to run."""
    runs_in: str | None = None
    thread: tuple[int, str] | None = None
    """Id and name of the thread that is at work for it, or was until `left_at`."""
    left_at: int | None = None
    """Its work was over, late or not."""
    settled_at: int | None = None
    has_started: bool = False
    is_detached: bool = False
    waited: int = 0
    asked: int = 0
    """The part of `waited` in which somebody was asked."""
    ran: int = 0
    waits_for: str | None = None
    is_late: bool = False
    status: str | None = None
    reason: str | None = None
    error: str | None = None
    content: dict[str, str] | None = None
    marks: list[Mark] | None = None
    """Progress and output."""
    marks_left_out: int = 0

    def snapshot(self) -> CallNotes:
        """Return what is known now; the same object, where that does not change."""
        if self.settled_at is not None and (self.left_at is not None or not self.has_started):
            return self
        known = copy.copy(self)
        if known.marks is not None:
            known.marks = list(known.marks)
        return known


def trace_events(
    pid: int,
    process: str,
    batches: Iterable[BatchNotes],
    calls: Iterable[CallNotes],
    now: int,
) -> list[Event]:
    """
    Return the events of a trace.

    Args:
        pid: The process.
        process: Its name.
        batches, calls: What was noted.
        now: The time up to which it is known.
    """
    calls = list(calls)
    _straighten(calls)
    events: list[Event] = [_name(pid, 0, "process_name", process)]
    for batch in batches:
        events.extend(_of_batch(pid, batch))
    threads: dict[int, str] = {}
    for call in calls:
        events.extend(_of_call(pid, call))
        if call.thread is not None and call.entered_at is not None:
            tid, threads[tid] = call.thread
            events.append(_of_thread(pid, call, tid, call.entered_at, now))
    events.extend(_name(pid, tid, "thread_name", name) for tid, name in threads.items())
    # What goes on has no end, and is drawn up to the last event: this one.
    events.append({"ph": "i", "s": "p", "name": "trace saved", **_at(pid, now)})
    return events


def _straighten(calls: list[CallNotes]) -> None:
    """
    Put what was cut where it was.

    Observers hear of a cut only after the awaiting code has run, in slices. The calls
    that it met while they ran know better: by how long they ran.
    """
    cut: dict[int, list[CallNotes]] = {}
    for call in calls:
        batch = call.batch
        if batch.cut_at is not None and call.settled_at is not None:
            cut.setdefault(batch.track, []).append(call)
            if call.has_started and call.reason == batch.cut_kind:
                batch.cut_at = min(batch.cut_at, _cut_at(call))
    for of_batch in cut.values():
        batch = of_batch[0].batch
        cut_at = batch.cut_at or 0
        ends = [cut_at]
        for call in of_batch:
            assert call.settled_at is not None
            if call.has_started:
                ends.append(_cut_at(call))
            elif call.reason == batch.cut_kind:
                call.settled_at = min(call.settled_at, cut_at)
            else:
                ends.append(call.settled_at)
        if batch.settled_at is not None and len(of_batch) == batch.calls:
            batch.settled_at = min(batch.settled_at, max(ends))


def _of_batch(pid: int, batch: BatchNotes) -> Iterator[Event]:
    about = {"batch": batch.id, "calls": batch.calls, "thread": as_text(batch.thread)}
    if batch.inside is not None:
        about["inside"] = as_text(batch.inside)
    track = _Track(pid, batch.track)
    # One name for all: each name is a row, and there may be many batches.
    yield track.event("b", "batch", batch.opened_at, about)
    if batch.cut_at is not None:
        why = {"batch": batch.id}
        if batch.cut_message is not None:
            why["message"] = as_text(batch.cut_message)
        yield track.event("n", batch.cut_kind, batch.cut_at, why)
        mark = {"ph": "i", "s": "p", "name": batch.cut_kind, "cat": CATEGORY}
        yield {**mark, **_at(pid, batch.cut_at), "args": why}
    if batch.settled_at is not None:
        yield track.event("e", "batch", batch.settled_at)


def _of_call(pid: int, call: CallNotes) -> Iterator[Event]:
    track = _Track(pid, call.track)
    name = call.name or "(no name)"
    phases = list(_phases(call))
    begin = phases[0][1] if phases else call.settled_at
    if begin is None:
        return  # only its progress has been told
    end = phases[-1][2] if phases else begin
    about = {
        "id": call.id,
        "index": call.index,
        "batch": call.batch.id,
    }
    for key in ("runs_in", "status", "reason", "error"):
        value = getattr(call, key)
        if value is not None:
            about[key] = value
    about.update(call.content or {})
    if call.marks_left_out:
        about["marks left out"] = call.marks_left_out
    yield track.event("b", name, begin, about)
    marks = [(max(at, begin), what, more) for at, what, more in call.marks or ()]
    for phase, since, until, more in phases:
        yield track.event("b", phase, since, more)
        while marks and (until is None or marks[0][0] < until):
            at, what, more = marks.pop(0)
            yield track.event("n", what, max(at, since), more)
        if until is not None:
            yield track.event("e", phase, until)
    if end is not None:
        for at, what, more in marks:  # told after the call had ended
            yield track.event("n", what, min(at, end), more)
        if call.is_late:
            yield track.event("n", "late result", end)
        yield track.event("e", name, end)


def _started_at(call: CallNotes) -> int:
    """
    Return when a settled call has started.

    It is noted a little after it was so, as all the rest is, and on a busy machine not
    so little; how long it ran its result knows exactly. So the earliest guess is the best.
    """
    assert call.settled_at is not None
    guesses = [call.settled_at - call.ran]
    if call.entered_at is not None:
        guesses.append(call.entered_at)
    if call.left_at is not None and not call.is_detached:
        guesses.append(call.left_at - call.ran)
    # A loop may have a clock that jumps, in a test: then it ran in no time, here.
    return max(min(guesses), call.batch.opened_at)


def _cut_at(call: CallNotes) -> int:
    """Return when a call that had started has ended, or was let go of."""
    assert call.settled_at is not None
    return min(_started_at(call) + call.ran, call.settled_at)


Phase = tuple[str, int, int | None, dict[str, Any] | None]
"""Its name, its begin, its end if it has one, and more about it."""


def _phases(call: CallNotes) -> Iterator[Phase]:
    """Give what a call was doing, one after the other, without gaps."""
    opened_at = call.batch.opened_at
    settled_at = call.settled_at
    if settled_at is None:
        if call.entered_at is not None:
            yield ("running", max(call.entered_at, opened_at), call.left_at, None)
        return
    started_at = _started_at(call) if call.has_started else settled_at
    submitted_at = min(max(started_at - call.waited, opened_at), started_at)
    answered_at = min(submitted_at + call.asked, started_at)
    if answered_at > submitted_at:
        yield ("approval", submitted_at, answered_at, None)
    if started_at > answered_at:
        more = None if call.waits_for is None else {"waits for": as_text(call.waits_for)}
        yield ("waiting", answered_at, started_at, more)
    if not call.has_started:
        return
    cut_at = _cut_at(call)
    yield ("running", started_at, cut_at, None)
    if call.is_detached:
        yield (
            "detached",
            cut_at,
            None if call.left_at is None else max(call.left_at, cut_at),
            None,
        )


def _of_thread(pid: int, call: CallNotes, tid: int, begin: int, now: int) -> Event:
    end = now if call.left_at is None else call.left_at
    about: dict[str, Any] = {"id": call.id, "index": call.index, "batch": call.batch.id}
    if call.left_at is None:
        about["still running"] = True
    return {
        "ph": "X",
        "name": call.name or "(no name)",
        "cat": CATEGORY,
        **_at(pid, begin),
        "tid": tid,
        "dur": _microseconds(end - begin),
        "args": about,
    }


class _Track:
    """The async track of a batch or a call."""

    def __init__(self, pid: int, number: int) -> None:
        self._pid = pid
        self._id = {"local": hex(number)}

    def event(self, ph: str, name: str, at: int, args: dict[str, Any] | None = None) -> Event:
        event = {
            "ph": ph,
            "name": name,
            "cat": CATEGORY,
            "id2": self._id,
            **_at(self._pid, at),
        }
        return event if not args else {**event, "args": args}


def _at(pid: int, at: int) -> Event:
    return {"ts": _microseconds(at), "pid": pid, "tid": pid}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _name(pid: int, tid: int, what: str, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": as_text(name)}}


def as_text(text: str, chars: int = NAME_CHARS) -> str:
    """
    Return a text that Perfetto can show, not too long for a label.

    It shows what JSON escapes as it is written there, but for quotes: so there may be
    no character that has to be escaped. Nor one that turns the text around it, so that
    it reads as another.
    """
    if len(text) > chars:
        text = f"{text[: chars - 1]}…"
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text if text.isprintable() else text.translate(_SIGNS)


_SIGNS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys(
        (
            *range(0x80, 0xA0),
            *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
        ),
        0xFFFD,
    ),
}
"""
Signs that stand for others: ␛ for escape, � for line separators and for what turns the
direction of text. (Other invisible ones join letters and emoji, and stay.)
"""
