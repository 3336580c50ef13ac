"""
Cutting calls: interrupts, timeouts, cancels, a failed sibling, a caller that left.

All take the one way below, for the calls that they concern, and differ only in
status and reason:

1. mark: the flags are up, the reason stands;
2. what a worker has finished counts as finished, also if its message is still
   on the way (the tickets tell); what has not started never will;
3. if a grace was asked for, the running calls are told, and all are waited
   for together; those that end by themselves keep their own answer;
4. the rest is settled as started and detached, which
5. wakes the awaiting code;
6. only then, in slices that let the loop breathe: the running calls are told,
   and observers hear of it.

Steps 1 to 5 cost a fraction of a microsecond a call; step 6 costs 15 and more.
On the loop's thread, but for `request`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._core.ledger import Ending
from .._core.publication import Kind
from .._core.record import UNSET, CallRecord
from .._model.results import Reason, Status
from . import landing
from .backend import Timer, unbroken

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("Cutter",)

STOPS_KEPT_CALLS = frozenset({"call_cancelled", "call_timeout"})
"""Reasons aimed at one call, which ``on_interrupt="keep"`` does not ward off."""


class Cutter:
    """Cuts the calls of one batch."""

    __slots__ = (
        "_batch",
        "_graces",
        "_has_cut_running",
        "_hub",
        "_requests",
        "grace",
        "reason",
        "status",
    )

    def __init__(self, engine: BatchEngine, grace: float) -> None:
        self._batch: BatchEngine | None = engine
        self._hub = engine.hub
        self.grace = grace
        """Seconds that running calls get to give their own answer, by default."""
        self.reason: Reason | None = None
        """Why the whole batch was cut: the first reason, which stays."""
        self.status = Status.INTERRUPTED
        self._has_cut_running = False
        """Not only the waiting calls."""
        self._requests: list[tuple[str, str | None, float | None]] = []
        self._graces: list[tuple[float, Timer, list[CallRecord]]] = []

    @property
    def _engine(self) -> BatchEngine:
        assert self._batch is not None, "a batch is over before it is taken apart"
        return self._batch

    def forget(self) -> None:
        """Let go of the batch, which is over: nothing is cut any more."""
        self._batch = None

    # -- the whole batch ---------------------------------------------------

    @unbroken
    def request(self, kind: str, message: str | None, grace: float | None = None) -> None:
        """
        Ask for the batch to be cut; from any thread, and from a signal handler.

        Args:
            kind: The reason's: ``"user_interrupt"`` or ``"superseded"``.
            message: The reason's.
            grace: As for `cut_batch`.
        """
        self._requests.append((kind, message, grace))
        self._hub.post_urgent(Cutter.handle_requests, self)

    def handle_requests(self) -> None:
        """Do what has been asked for; cheap where nothing has."""
        while self._requests:
            kind, message, grace = self._requests.pop(0)
            reason = Reason(kind, message)
            if kind == "superseded":
                self.cut_waiting(reason)
            else:
                self.cut_batch(Status.INTERRUPTED, reason, grace=grace)

    def close_requests(self) -> None:
        """
        The last call has just been settled.

        Whoever was told before that there was something to interrupt finds
        the batch interrupted, though there is nothing left to cut.
        """
        while self._requests:
            kind, message, _ = self._requests.pop(0)
            if self.reason is None:
                self.reason = Reason(kind, message)
                self._engine.publisher.add(Kind.INTERRUPTED, self.reason)

    def cut_batch(self, status: Status, reason: Reason, *, grace: float | None = None) -> None:
        """Cut all that is unsettled; the first reason stays, a grace only shrinks."""
        engine = self._batch
        if engine is None or engine.closed:
            return
        if grace is None:
            grace = self.grace
        engine.halted = engine.stopping = True
        if self.reason is None:
            self._close_batch(status, reason)
        elif self._has_cut_running:
            self._shorten(grace)
            return
        self._has_cut_running = True
        self.cut(engine.unsettled(), status, reason, grace)

    def cut_waiting(self, reason: Reason) -> None:
        """Cut what has not started, and let the rest go on: the batch is superseded."""
        engine = self._batch
        if engine is None:
            return
        engine.halted = True
        if engine.closed or self.reason is not None:
            return
        self._close_batch(Status.INTERRUPTED, reason)
        waiting = [record for record in engine.unsettled() if record.is_waiting]
        self.cut(waiting, Status.INTERRUPTED, reason, starts_count=False)

    def _close_batch(self, status: Status, reason: Reason) -> None:
        """Nothing starts any more."""
        engine = self._engine
        self.reason, self.status = reason, status
        engine.state.forget(engine)
        engine.publisher.hold()
        engine.publisher.add(Kind.INTERRUPTED, reason)

    # -- some calls --------------------------------------------------------

    def cut(
        self,
        records: list[CallRecord],
        status: Status,
        reason: Reason,
        grace: float | None = None,
        *,
        starts_count: bool = True,
    ) -> None:
        """
        Cut these calls; steps 1 to 3.

        Args:
            records: Of this batch, unsettled.
            status: What those get that do not end by themselves.
            reason: The same.
            grace: Seconds for the running ones; the batch's by default.
            starts_count: False: one that has just started is not cut.
        """
        engine = self._engine
        not_started = Ending(status, reason, started=False, at=engine.hub.clock())
        running = []
        preparing = []
        over = []
        tickets = engine.tickets
        for record in records:
            if record in tickets.starts:
                try:
                    tickets.starts.remove(record)
                except KeyError:
                    pass  # it has just been started
                else:
                    record.halted = True
                    engine.settle(record, not_started)
                    over.append(record)
                    if record.stopper is not None:
                        preparing.append(record)
                    continue
            if not starts_count:
                continue
            record.halted = True
            if record in tickets.ends or record.awaiting:
                if record.cut_reason is None or _is_kept(record):
                    record.cut_status, record.cut_reason = status, reason
                if not _is_kept(record):
                    record.stopping = True
                running.append(record)
            else:
                if record.held_back:
                    engine.settle(record, not_started)
                else:
                    landing.take_end(record)
                over.append(record)
        if over and engine.state.scheduling is not None:
            engine.hub.run_in_slices(self._withdraw(over))
        if preparing:
            engine.hub.run_in_slices(self._stop(preparing))
        if grace is None:
            grace = self.grace
        if running and grace > 0.0:
            engine.hub.run_in_slices(self._tell(running, grace))
            self._wait(running, grace)
        else:
            self._let_go(running)

    def _withdraw(self, records: list[CallRecord]) -> Iterator[None]:
        """Take calls out of their lines, or their places from them; a small step each."""
        state = self._engine.state
        for record in records:
            if record.question is not None:
                record.question.withdraw()
            state.release(record)
            yield
        state.grant()
        self._engine.look_at_clock()

    def _stop(self, records: list[CallRecord]) -> Iterator[None]:
        """End what was being prepared for calls that will not start."""
        for record in records:
            self._engine.teller.stop(record)
            yield

    # -- the grace ---------------------------------------------------------

    def _wait(self, records: list[CallRecord], grace: float) -> None:
        hub = self._engine.hub
        deadline = hub.clock() + grace
        timer = hub.backend.call_later(grace, lambda: self._out_of_grace(deadline))
        self._graces.append((deadline, timer, records))

    def _out_of_grace(self, deadline: float) -> None:
        due = [item for item in self._graces if item[0] <= deadline]
        self._graces = [item for item in self._graces if item[0] > deadline]
        for _, _, records in due:
            self._let_go(records)

    def _shorten(self, grace: float) -> None:
        """Let no grace last longer than this from now on."""
        until = self._engine.hub.clock() + grace
        graces, self._graces = self._graces, []
        for deadline, timer, records in graces:
            if deadline <= until:
                self._graces.append((deadline, timer, records))
                continue
            timer.cancel()
            if grace > 0.0:
                self._wait(records, grace)
            else:
                self._let_go(records)

    def close(self) -> None:
        """The batch is over: no grace is waited for any more."""
        for _, timer, _ in self._graces:
            timer.cancel()
        self._graces.clear()

    # -- letting go --------------------------------------------------------

    def _let_go(self, records: list[CallRecord]) -> None:
        """Let go of what still runs; steps 4 to 6."""
        engine = self._engine
        state = engine.state
        engine.publisher.hold()  # until the awaiting code has run
        now = engine.hub.clock()
        # One pass, written flat: the user is waiting for its end.
        endings = engine.ledger.endings
        ends = engine.tickets.ends
        gone: list[CallRecord] = []
        over: list[CallRecord] = []  # ended by themselves
        alike: list[CallRecord] = []  # differ in nothing, and share one ending
        reason = records[0].cut_reason if records else None
        for record in records:
            if endings[record.index] is not None:
                continue
            try:
                ends.remove(record)
            except KeyError:
                if not record.awaiting:
                    if record.held_back:
                        engine.settle(record, self.not_started(record))
                    else:
                        landing.take_end(record)
                    over.append(record)
                    continue
                # Between thread and loop: `landing.awaitable` will find it settled.
                record.move_to_loop()
            gone.append(record)
            record.was_cut = not _is_kept(record)
            if (
                record.kept_partial is UNSET
                and record.items is None
                and record.cut_reason is reason
                and record.tool.on_interrupt == "cancel"
                and record.tool.carrier != "process"
            ):
                alike.append(record)
        state.account.enter(gone, time.monotonic())
        if alike:
            # Made by hand: no record of them may be read, a tool may publish now.
            status = alike[0].cut_status
            assert status is not None
            shared = Ending(status, reason, started=True, detached=True, at=now)
            engine.settle_many(alike, shared)
        if len(alike) < len(gone):
            for record in gone:
                if endings[record.index] is None:
                    engine.settle(record, self.ending(record, now, detached=True))
        # The awaiting code is awake; the rest waits for its turn behind it.
        freed_threads = sum(record.has_thread for record in gone)
        if freed_threads:
            state.lane.abandon(freed_threads)
        if state.scheduling is not None:
            engine.hub.run_in_slices(self._free(gone))  # the next turn may wait for it
        engine.hub.run_in_slices(self._tell(gone, 0.0))
        if over and state.scheduling is not None:
            engine.hub.run_in_slices(self._withdraw(over))

    def not_started(self, record: CallRecord) -> Ending:
        """Make the ending of a call that was cut just before its first line."""
        status, reason = record.cut_status, record.cut_reason
        if status is None:
            status, reason = self.status, self.reason
        return Ending(status, reason, started=False, at=self._engine.hub.clock())

    def ending(self, record: CallRecord, at: float, *, detached: bool) -> Ending:
        """Make the ending of a call that had started when it was cut."""
        status, reason = record.cut_status, record.cut_reason
        assert status is not None
        assert reason is not None
        if record.items is not None:  # what it gave until now
            self._engine.note_start(record)
            self._engine.publisher.add_items(record)
        return Ending(
            status,
            reason,
            started=True,
            detached=detached,
            partial=record.partial_output(),
            kept=detached and _is_kept(record),
            stopped=detached and record.tool.carrier == "process" and not _is_kept(record),
            at=at,
        )

    def _tell(self, records: list[CallRecord], grace: float) -> Iterator[None]:
        """Tell the running calls, then the observers; a small step each."""
        engine = self._engine
        endings = engine.ledger.endings
        account = engine.state.account
        account.look(engine.state.max_detached)
        for record in records:
            ending = endings[record.index]
            # Who has given an answer of its own meanwhile is left alone.
            if (ending is None or ending.detached) and not _is_kept(record):
                if not record.told:
                    engine.teller.tell(record, grace)
                if ending is not None:
                    engine.teller.stop(record)
            if ending is not None and ending.detached:
                account.busy_threads.watch(record)
                if not _is_kept(record):
                    account.long_detached.watch(record)
            yield
        yield from engine.publisher.feed()

    def _free(self, records: list[CallRecord]) -> Iterator[None]:
        """Free the places of calls that were let go."""
        state = self._engine.state
        for record in records:
            state.let_go(record)
            yield
        state.grant()
        self._engine.look_at_clock()


def _is_kept(record: CallRecord) -> bool:
    return (
        record.tool.on_interrupt == "keep"
        and record.cut_reason is not None
        and record.cut_reason.kind not in STOPS_KEPT_CALLS
    )
