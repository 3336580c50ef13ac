"""
One ending per call.

Rule of this file: first in, wins. The ledger is touched on the event-loop
thread only; what a worker and the loop must decide together is decided by
tickets (see `record`), before the ledger hears of it.

An `Ending` says how a call ended without repeating what its record knows. All
calls that one interrupt cuts share two endings (started, not started), so
that cutting 1,000 calls makes two objects, not 1,000.
"""

from __future__ import annotations

from typing import Any, cast

from .._model.results import Reason, Status, ToolResult, make_result
from .record import CallRecord

__all__ = ("COMPLETED", "COMPLETED_WITH_ERROR", "FAILED", "Ending", "Ledger", "result_of")


class Ending:
    """How a call ended; immutable by convention, shared between calls."""

    __slots__ = (
        "at",
        "detached",
        "error",
        "is_error",
        "kept",
        "partial",
        "reason",
        "started",
        "status",
        "stopped",
    )

    def __init__(
        self,
        status: Status,
        reason: Reason | None = None,
        *,
        started: bool,
        detached: bool = False,
        is_error: bool = True,
        error: BaseException | None = None,
        partial: Any = None,
        kept: bool = False,
        stopped: bool = False,
        at: float | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.started = started
        self.detached = detached
        self.is_error = is_error
        self.error = error
        self.partial = partial
        self.kept = kept
        self.stopped = stopped
        """It was let go of, and its work is ended for certain."""
        self.at = at
        """When it was decided, where that is not the record's own end."""

    def without_values(self) -> Ending:
        """Return the same, but for what the tool has raised or published."""
        return Ending(
            self.status,
            self.reason,
            started=self.started,
            detached=self.detached,
            is_error=self.is_error,
            kept=self.kept,
            stopped=self.stopped,
            at=self.at,
        )


COMPLETED = Ending(Status.COMPLETED, started=True, is_error=False)
COMPLETED_WITH_ERROR = Ending(Status.COMPLETED, started=True, is_error=True)
FAILED = Ending(Status.FAILED, started=True)
"""The tool raised; what it raised stands in the record."""


class Ledger:
    """The endings of one batch, by position."""

    __slots__ = ("endings", "results", "unsettled")

    def __init__(self) -> None:
        self.endings: list[Ending | None] = []
        self.results: list[ToolResult | None] = []
        self.unsettled = 0

    def open(self, count: int) -> range:
        """Give the next calls their places; return the indices."""
        first = len(self.endings)
        self.endings.extend([None] * count)
        self.results.extend([None] * count)
        self.unsettled += count
        return range(first, first + count)

    def settle(self, index: int, ending: Ending) -> bool:
        """Take the call's ending; False if it has one already, which stays."""
        if self.endings[index] is not None:
            return False
        self.endings[index] = ending
        self.unsettled -= 1
        return True

    def settle_many(self, records: list[CallRecord], ending: Ending) -> None:
        """Give many unsettled calls the same ending."""
        endings = self.endings
        for record in records:
            endings[record.index] = ending
        self.unsettled -= len(records)

    def is_settled(self, index: int) -> bool:
        return self.endings[index] is not None

    def result(self, record: CallRecord) -> ToolResult | None:
        """Return the call's result, made on first reading; None if it has no ending."""
        made = self.results[record.index]
        if made is None:
            ending = self.endings[record.index]
            if ending is None:
                return None
            made = self.results[record.index] = result_of(record, ending)
        return made

    def count_unsettled(self, limit: int) -> int:
        """Return how many of the first `limit` calls have no ending."""
        if limit >= len(self.endings):
            return self.unsettled
        return self.endings[:limit].count(None)

    def all_results(self, records: list[CallRecord]) -> list[ToolResult]:
        """Return the results of all calls, each of which must be settled."""
        made = self.results
        for record in records:
            index = record.index
            if made[index] is None:
                ending = self.endings[index]
                assert ending is not None, "not settled"
                made[index] = result_of(record, ending)
        return cast("list[ToolResult]", made.copy())

    def forget(self) -> None:
        """Let go of results, errors and output; the endings stay what they are."""
        self.results.clear()
        for index, ending in enumerate(self.endings):
            if ending is not None and (ending.error is not None or ending.partial is not None):
                self.endings[index] = ending.without_values()


def result_of(record: CallRecord, ending: Ending) -> ToolResult:
    """
    Make the result of a call.

    A detached call's record may be written to later, by work that still goes
    on; so value and error are read only where the ending says that the tool
    itself ended the call, and the partial output of a cut call comes from the
    ending, where it was copied at the cut.
    """
    status = ending.status
    value = record.value if status is Status.COMPLETED else None
    error = record.error if ending is FAILED else ending.error
    ended_at = record.ended_at if ending.at is None else ending.at
    if ending.started:
        started_at = record.started_at
        wait_time = started_at - record.submitted_at
        run_time = ended_at - started_at
    else:
        wait_time = ended_at - record.submitted_at
        run_time = 0.0
    approval_time = 0.0
    if record.asked_at is not None:
        until = ended_at if record.answered_at is None else record.answered_at
        approval_time = min(max(until - record.asked_at, 0.0), wait_time)
    partial = ending.partial if ending.at is not None else record.partial_output()
    return make_result(
        record.call,
        record.index,
        status,
        value,
        error,
        ending.reason,
        ending.started,
        ending.detached and not ending.stopped,
        ending.is_error,
        partial,
        wait_time if wait_time > 0.0 else 0.0,
        run_time if run_time > 0.0 else 0.0,
        "kept" if ending.kept else "stopped" if ending.stopped else "",
        approval_time,
    )
