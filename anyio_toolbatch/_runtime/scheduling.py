"""
Brings calls to their start where they may have to wait for each other.

The decisions are `_core.scheduler`'s; this carries them out, on the loop's
thread. The way of a call: `admit` → (its paths are resolved, in a worker) →
`Scheduler.add` → (approval) → `grant` → ``BatchEngine.start``.

Paths and order: a call's claims are known only when its paths are, so calls
wait for that in one queue, the *intake*, in the order of their submission.
Workers may resolve them in any order; only the head of the queue goes on. Calls
without claims pass it, unless one of their own batch is in it.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from .._core.claims import Modes, expand
from .._core.record import CallRecord
from .._core.scheduler import Needs, Refusal, Scheduler
from .._errors import ResourceBusyError
from .._model.results import Reason
from .backend import Timer
from .hub import Hub
from .landing import refused
from .nesting import entries_of_ancestors
from .paths import PathNames, has_paths, plain_nodes
from .threads import Abandonable, Lane

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("Scheduling",)

RESOLVER_THREADS = 4
"""Threads of one loop that may be resolving paths; arbitrary: one may hang on a dead disk."""


class Scheduling:
    """The scheduler of one runner on one loop, or of all module-level batches of a loop."""

    def __init__(self, hub: Hub) -> None:
        self.core = Scheduler()
        self._hub = hub
        self._granting = False
        self._timer: Timer | None = None
        self._timer_due: float | None = None
        self._intake: deque[_Arrival] = deque()
        self._in_intake: Counter[BatchEngine] = Counter()

    @property
    def is_idle(self) -> bool:
        """No call is known, and no timer is set."""
        return self.core.is_idle and not self._intake and self._timer is None

    # -- facts ---------------------------------------------------------------

    def admit(self, batch: BatchEngine, records: list[CallRecord]) -> None:
        """Take in calls of one batch, in call order."""
        to_resolve: list[_Arrival] = []
        for record in records:
            claims = record.claims
            by_path = claims is not None and (has_paths(claims[0]) or has_paths(claims[1]))
            if not by_path and not (
                self._intake and (claims is not None or batch in self._in_intake)
            ):
                self._take_in(record, _plain_modes(claims))
                continue
            if by_path and batch.state.is_full:
                refused(record)
                continue
            arrival = _Arrival(record)
            self._intake.append(arrival)
            self._in_intake[batch] += 1
            if by_path:
                to_resolve.append(arrival)
            else:
                arrival.modes = _plain_modes(claims)
        if to_resolve:
            resolution = _Resolution(self, to_resolve)
            for arrival in to_resolve:
                arrival.resolution = resolution
            self._resolver_lane().put(batch, [resolution])
        self.grant()

    def release(self, record: CallRecord) -> None:
        """A call has ended, or will never start; `grant` gives on what it had."""
        if not self.core.release(record, self._hub.clock()) and self._intake:
            self._shift_intake()  # it may have been the one that all others wait for

    def let_go(self, record: CallRecord) -> None:
        """A running call was detached, and may have ended since."""
        if record.reported:
            self.release(record)
        else:
            self.core.let_go(record, self._hub.clock())

    def approve(self, record: CallRecord) -> None:
        self.core.approve(record, self._hub.clock())
        self.grant()

    def adopt(self, records: list[CallRecord]) -> None:
        """Enter calls that run already."""
        for record in records:
            # One that has ended, and whose end the loop has not heard of yet,
            # has left its thread to the next.
            has_thread = record.has_thread and not record.ended
            self._add(record, Needs(thread=has_thread, slot=False), ask=False)
        adopted = set(records)
        # Their places are free: nobody else can have had them.
        self._start([r for r in self._granted() if r not in adopted])

    # -- decisions carried out -----------------------------------------------

    def grant(self) -> None:
        """
        Start what may start, and refuse what waits in vain.

        Not re-entrant: an eager task may run to its end inside `_start` and
        come back here; the outer turn of the loop then sees its place.
        """
        if self._granting:
            return
        self._granting = True
        try:
            while True:
                granted = self._granted()
                self._start(granted)
                refused = self.core.take_refusals(self._hub.clock())
                for refusal in refused:
                    _refuse(refusal)
                if not granted and not refused:
                    break
        finally:
            self._granting = False
        self._set_timer()

    def _granted(self) -> list[CallRecord]:
        granted = []
        while (record := self.core.grant()) is not None:
            granted.append(record)
        return granted

    def _start(self, records: list[CallRecord]) -> None:
        by_batch: dict[BatchEngine, list[CallRecord]] = {}
        for record in records:
            if record.batch.is_settled(record):  # cut, and not yet taken out of its line
                self.release(record)
            else:
                by_batch.setdefault(record.batch, []).append(record)
        for batch, calls in by_batch.items():
            batch.start(calls)

    def _set_timer(self) -> None:
        due = self.core.next_refusal()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due is not None:
            left = max(due - self._hub.clock(), 0.0)
            self._timer = self._hub.backend.call_later(left, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_due = None
        self.grant()

    # -- taking in -----------------------------------------------------------

    def _take_in(self, record: CallRecord, modes: Modes) -> None:
        batch: BatchEngine = record.batch
        if batch.is_settled(record):
            return
        tool = record.tool
        needs = Needs(
            modes,
            tool.exclusive,
            record.has_thread,
            tool.needs_slot,
            None if tool.max_concurrency is None else tool,
            tool.max_concurrency,
        )
        approver = batch.state.approver
        self._add(record, needs, ask=approver is not None)
        if approver is not None:
            approver.ask(record)
            batch.look_at_clock()

    def _add(self, record: CallRecord, needs: Needs, *, ask: bool) -> None:
        batch: BatchEngine = record.batch
        record.entry = self.core.add(
            batch,
            batch.state.limits,
            record,
            needs,
            self._hub.clock(),
            ask=ask,
            ancestors=entries_of_ancestors(batch),
        )

    def _resolver_lane(self) -> Lane:
        lane: Lane | None = self._hub.shared.get("paths")
        if lane is None:
            lane = self._hub.shared["paths"] = Lane(RESOLVER_THREADS, _RESOLVER)
        return lane

    def resolved(self) -> None:
        """Some paths have been resolved."""
        self._shift_intake()
        self.grant()

    def _shift_intake(self) -> None:
        """Let go on whoever is first in the intake, as far as their paths are known."""
        while self._intake:
            arrival = self._intake[0]
            record = arrival.record
            batch: BatchEngine = record.batch
            if not arrival.is_known and not batch.is_settled(record):
                break
            self._intake.popleft()
            self._in_intake[batch] -= 1
            if not self._in_intake[batch]:
                del self._in_intake[batch]
            if not arrival.is_known:
                assert arrival.resolution is not None, "somebody is at it"
                arrival.resolution.leave(record, self._resolver_lane())
            elif arrival.error is not None:
                batch.not_run(record, arrival.error)
            elif arrival.modes is not None:
                self._take_in(record, arrival.modes)

    def waits_for_paths(self, record: CallRecord) -> bool:
        """Tell whether a call stands in the intake: for its own paths, or behind others'."""
        return record.batch in self._in_intake and record.entry is None


class _Arrival:
    """A call in the intake. Modes or error are written by a worker, once."""

    __slots__ = ("error", "modes", "record", "resolution")

    def __init__(self, record: CallRecord) -> None:
        self.record = record
        self.resolution: _Resolution | None = None
        self.modes: Modes | None = None
        self.error: BaseException | None = None

    @property
    def is_known(self) -> bool:
        return self.modes is not None or self.error is not None


class _Resolution(Abandonable):
    """Paths to be resolved in one go."""

    __slots__ = ("arrivals", "cwd", "left", "owner", "wanted")

    def __init__(self, owner: Scheduling, arrivals: list[_Arrival]) -> None:
        super().__init__()
        self.owner = owner
        self.arrivals = arrivals
        self.wanted = len(arrivals)
        self.left: CallRecord | None = None
        """The call in whose name its thread was left behind."""
        try:
            self.cwd = os.getcwd()
        except OSError:  # it was removed; absolute paths do not need it
            self.cwd = os.sep

    def leave(self, record: CallRecord, lane: Lane) -> None:
        """One of its calls was cut; with the last one goes the thread that is at it."""
        self.wanted -= 1
        if not self.wanted:
            self.left = record
            if self.withdraw_from(lane):
                record.batch.state.account.enter_helper(record)

    def fail(self, error: BaseException) -> None:
        for arrival in self.arrivals:
            if not arrival.is_known:
                arrival.error = error

    def post(self) -> None:
        self.owner._hub.post(Scheduling.resolved, self.owner)


class _Resolver:
    """Resolves paths in a worker thread."""

    def run(self, job: _Resolution) -> bool:
        if not job.begin():
            return True
        names = PathNames(job.cwd)
        for arrival in job.arrivals:
            reads, writes = arrival.record.claims or ((), ())
            try:
                arrival.modes = expand(names.nodes(reads), names.nodes(writes))
            except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
                arrival.error = exc
        if job.end():
            return True
        assert job.left is not None, "it was withdrawn"
        job.left.batch.state.helper_ended(job.left)
        return False

    def report(self, job: _Resolution) -> None:
        job.post()

    def thread_failed(self, job: _Resolution, error: BaseException) -> None:
        job.fail(error)
        job.post()


_RESOLVER = _Resolver()


def _plain_modes(claims: tuple[Any, Any] | None) -> Modes:
    if claims is None:
        return {}
    reads, writes = claims
    return expand(plain_nodes(reads), plain_nodes(writes))


def _refuse(refusal: Refusal) -> None:
    """A call waits in vain: for one that was let go, or for one that waits for it."""
    record: CallRecord = refusal.call
    batch: BatchEngine = record.batch
    holder: CallRecord = refusal.holder
    # Named by what the model knows: equal outcomes give equal texts.
    name = f"call {holder.call.id!r} ({holder.call.name})"
    if refusal.since is None:
        said = f"it would wait for {name}, which waits for it in turn"
        error = ResourceBusyError(said)
    else:
        said = f"what it needs is still held by {name}, which was let go and still runs"
        seconds = batch.hub.clock() - refusal.since
        error = ResourceBusyError(f"{said} (detached for {seconds:.1f} s)")
    batch.not_run(record, error, Reason("resource_busy", said))
