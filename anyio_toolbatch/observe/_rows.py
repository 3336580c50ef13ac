"""
What a view knows: open batches with their calls, and the work that was let go of.

Written where events come, which must be quick; read by the painter's thread, as often
as it paints. Under one lock, since a call may end in any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import ref

from .._model.calls import ToolCall
from .._model.events import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
)
from .._model.results import ToolResult
from .._runtime.batch import ToolBatch
from .._runtime.context import CallContext, current_call

__all__ = ("BatchRows", "Detached", "Key", "Row", "Rows")

UNREAD_BATCHES = 1000
"""Batches that are over and not shown yet: the terminal may have been stopped."""

Key = tuple[str, int]
"""A batch, and a call's place in it."""


@dataclass(slots=True)
class Row:
    """What is known of a call that has started or ended."""

    call: ToolCall
    started_at: float | None = None
    progress: CallProgress | None = None
    result: ToolResult | None = None
    is_over: bool = False
    """Its work has ended; its result may still be on its way."""


@dataclass(slots=True)
class BatchRows:
    """What is known of a batch."""

    number: int
    """In the order in which the view has seen them, from 1."""
    id: str
    opened_at: float
    batch: ref[ToolBatch] | None = None
    inside: Key | None = None
    """The call that has opened it."""
    rows: dict[int, Row] = field(default_factory=dict)
    ended: int = 0
    cut_by: str | None = None
    known_at: list[float] = field(default_factory=list)
    """When the painter has first seen each call."""

    def get(self) -> ToolBatch | None:
        """Return the batch itself, if it is still there."""
        return None if self.batch is None else self.batch()


@dataclass(frozen=True, slots=True)
class Detached:
    """A call that was let go of and still runs."""

    number: int
    """That of its batch."""
    index: int
    call: ToolCall
    since: float
    batch: ref[ToolBatch] | None
    """Lives as long as the work, or its loop."""


class Rows:
    """Everything that a view knows."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: dict[str, BatchRows] = {}
        """The open ones, in the order of their opening."""
        self.settled: deque[BatchRows] = deque(maxlen=UNREAD_BATCHES)
        """Those that are over, for who writes down how they ended."""
        self.detached: dict[Key, Detached] = {}
        self.note = ""
        """A line of the user's own; written by a signal handler, too."""
        self.is_read = False
        """Somebody shows them; else there is no sense in noting anything."""
        self._seen = 0

    def watch(self, batch: ToolBatch) -> None:
        """Take a batch in."""
        inside = None
        try:
            outer = current_call()
            inside = (outer.batch_id, outer.index)
        except RuntimeError:
            pass  # no call has opened it
        with self.lock:
            rows = self._batch(batch.id)
            rows.batch = ref(batch)
            rows.inside = inside

    def leave(self, context: CallContext) -> None:
        """The work of a call is over; in any thread."""
        key = (context.batch_id, context.index)
        with self.lock:
            if self.detached.pop(key, None) is None and key[0] in self.batches:
                rows = self.batches[key[0]]
                rows.rows.setdefault(key[1], Row(context.call)).is_over = True

    def take(self, event: Event) -> None:
        """Note what has happened."""
        with self.lock:
            match event:
                case CallStarted(call=call, index=index):
                    row = self._row(event.batch_id, index, call)
                    row.started_at = time.monotonic()
                case CallProgress(call=call, index=index):
                    self._row(event.batch_id, index, call).progress = event
                case CallSettled(result=result):
                    self.settle(self._batch(event.batch_id), result)
                case BatchInterrupted(reason=reason):
                    self._batch(event.batch_id).cut_by = reason.kind
                case BatchSettled():
                    settled = self.batches.pop(event.batch_id, None)
                    if settled is not None:
                        self.settled.append(settled)
                case BatchStarted():
                    self._batch(event.batch_id)
                case _:
                    pass

    def settle(self, batch: BatchRows, result: ToolResult) -> None:
        """Note a result; the lock is held."""
        row = batch.rows.get(result.index)
        if row is None:
            row = batch.rows[result.index] = Row(result.call)
        if row.result is None:
            row.result = result
            batch.ended += 1
            if result.detached and not row.is_over:
                self.detached[batch.id, result.index] = Detached(
                    batch.number, result.index, result.call, time.monotonic(), batch.batch
                )

    def _batch(self, batch_id: str) -> BatchRows:
        rows = self.batches.get(batch_id)
        if rows is None:
            self._seen += 1
            rows = BatchRows(self._seen, batch_id, time.monotonic())
            self.batches[batch_id] = rows
        return rows

    def _row(self, batch_id: str, index: int, call: ToolCall) -> Row:
        rows = self._batch(batch_id).rows
        row = rows.get(index)
        if row is None:
            row = rows[index] = Row(call)
        return row

    # -- for who shows it ------------------------------------------------------

    def now(self) -> tuple[list[tuple[BatchRows, dict[int, Row]]], list[Detached]]:
        """Return the open batches, each with its rows, and what is detached."""
        with self.lock:
            # Some have gone with their loop, which was dropped.
            for batch_id in [name for name, b in self.batches.items() if _is_gone(b.batch)]:
                del self.batches[batch_id]
            for key in [key for key, d in self.detached.items() if _is_gone(d.batch)]:
                del self.detached[key]
            open_batches = [(batch, dict(batch.rows)) for batch in self.batches.values()]
            return open_batches, list(self.detached.values())

    def take_settled(self) -> list[BatchRows]:
        """Return the batches that are over, each once."""
        with self.lock:
            settled = list(self.settled)
            self.settled.clear()
            return settled

    def number_of(self, batch_id: str) -> int:
        """Return the number of an open batch, else 0."""
        rows = self.batches.get(batch_id)
        return 0 if rows is None else rows.number

    def unheard(self) -> list[tuple[ToolResult, str]]:
        """
        Return the results of open batches that no event has told yet.

        When a batch is cut its results are there before observers hear of them.
        """
        found = []
        with self.lock:
            for batch in self.batches.values():
                tool_batch = batch.get()
                for result in tool_batch.snapshot() if tool_batch else []:
                    row = None if result is None else batch.rows.get(result.index)
                    if result is not None and (row is None or row.result is None):
                        found.append((result, batch.id))
        return found

    def finish(self) -> None:
        """Take all batches as over, with what is known of them."""
        unheard = self.unheard()
        with self.lock:
            for result, batch_id in unheard:
                self.settle(self.batches[batch_id], result)
            self.settled.extend(self.batches.values())
            self.batches.clear()
            self.detached.clear()
        self.note = ""


def _is_gone(batch: ref[ToolBatch] | None) -> bool:
    return batch is not None and batch() is None
