"""
Batches that are opened inside running calls: cut with them, or left behind by them.

A batch knows the call around it (`BatchEngine.outer`), a call the open batches
inside it (`CallRecord.inner`). They may run on different loops: a worker thread
can have one of its own.

Story of a batch that is opened while its call is being cut: the batch enters
itself in the call's list, then looks whether the call was cut; who cuts the call
marks it first, then goes through the list. In every order one of the two sees the
other. Until then nothing starts in the batch: every start looks at the calls
outside (`is_cut_off`).

A call that ends by itself leaves its batches behind; they go on. One that was
asked to stop, and ended by itself before that was carried out, is such a call,
too; what has refused to start on its account starts after all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._core.record import CallRecord
from .._core.scheduler import Entry
from .backend import after_fork

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = (
    "ancestors_of",
    "entries_of_ancestors",
    "is_cut_off",
    "join",
    "leave_inner_batches",
    "part",
    "stop_inner_batches",
)


def join(batch: BatchEngine, outer: CallRecord) -> None:
    """Have a batch cut with the call that it is opened inside of; on the batch's loop."""
    with _lazily:  # two threads of one call may do it at once
        if outer.inner is None:
            outer.inner = []
    outer.inner.append(batch)
    if outer.was_cut:
        _stop(batch, outer, None)


def part(batch: BatchEngine, outer: CallRecord) -> None:
    """The batch is over; on its loop."""
    assert outer.inner is not None, "it has joined"
    outer.inner.remove(batch)


_lazily = threading.Lock()
"""Guards the making of the list; held for a few bytecodes."""


def _new_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lazily  # noqa: PLW0603
    _lazily = threading.Lock()


after_fork(_new_lock)


def stop_inner_batches(outer: CallRecord, grace: float | None) -> None:
    """Cut what is open inside a call that was cut; on the call's loop."""
    outer.was_cut = True
    for batch in list(outer.inner or ()):
        _stop(batch, outer, grace)


def _stop(batch: BatchEngine, outer: CallRecord, grace: float | None) -> None:
    status, reason = outer.cut_status, outer.cut_reason
    if batch.closed or status is None or reason is None:
        return
    batch.halted = batch.stopping = True
    if outer.batch.hub is batch.hub:
        batch.cutter.cut_batch(status, reason, grace=grace)
    else:
        batch.hub.post_urgent(
            lambda cutter: cutter.cut_batch(status, reason, grace=grace), batch.cutter
        )


def leave_inner_batches(outer: CallRecord) -> None:
    """Let what is open inside a call that has ended by itself go on; on the call's loop."""
    for batch in list(outer.inner or ()):
        if outer.batch.hub is batch.hub:
            batch.start_refused()
        else:
            batch.hub.post(type(batch).start_refused, batch)


def is_cut_off(outer: CallRecord) -> bool:
    """Tell whether this call, or one around it, is to stop with what is inside; any thread."""
    around: CallRecord | None = outer
    while around is not None:
        if around.ended and not around.was_cut:
            return False  # it has left the batch behind
        if around.stopping:
            return True
        if around.tool.on_interrupt == "keep":
            return False  # what stops its own batch is nothing to it
        if around.batch.stopping:
            return True
        around = around.batch.outer
    return False


def ancestors_of(batch: BatchEngine) -> Iterator[CallRecord]:
    """Give the calls that a batch was opened inside of, the innermost first."""
    outer = batch.outer
    while outer is not None:
        yield outer
        outer = outer.batch.outer


def entries_of_ancestors(batch: BatchEngine) -> tuple[Entry, ...]:
    """Return what the schedulers of this loop know of them; others can't be known here."""
    return tuple(
        record.entry
        for record in ancestors_of(batch)
        if record.entry is not None and record.batch.hub is batch.hub
    )
