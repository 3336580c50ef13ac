"""
What one runner has on one event loop: its limits, its lines, its counts.

The account of detached calls is written by two sides: the loop enters a call
that it lets go, and the worker strikes it out when the call has really ended,
since by then the loop may be gone. Story of the race:

1. The loop takes the end ticket, *then* enters the record, *then* looks at
   ``record.reported`` and, if set, strikes it out again.
2. The worker posts the end to the loop, *then* sets ``record.reported``,
   *then* strikes the record out if it is there.

If the worker's look at the account comes before the entry, its ``reported``
was set before the loop's look; so one of the two strikes it out in every
order. And it is struck out only after the post: an empty account means that
every late end is in the mailbox.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from .._core.record import CallRecord
from .._core.scheduler import Limits
from .._errors import TooManyDetachedError
from .._model.calls import ToolCall
from .._model.statistics import DetachedCall
from .busy_threads import BusyThreads
from .executors import ExecutorCall, Submissions
from .logs import about, names_of
from .long_detached import LongDetached
from .scheduling import Scheduling
from .thread_carrier import THREAD_CARRIER
from .threads import Lane

if TYPE_CHECKING:
    from .approvals import Approver
    from .backend import Backend, Waiter
    from .engine import BatchEngine
    from .hub import Hub

__all__ = ("DetachedAccount", "LoopState")

logger = logging.getLogger(__name__)

RETURNING_SECONDS = 0.1
"""How long a thread may take to come back from a submit that does not hang; ample."""

NEAR = 0.75
"""The share of `max_detached` that is worth a warning,"""
NO_LONGER_NEAR = 0.5
"""and the one below which there may be another."""


class Helper(Protocol):
    """What has a thread on behalf of a call that has not started."""

    @property
    def call(self) -> ToolCall: ...

    @property
    def batch(self) -> Any: ...

    reported: bool
    """The thread is back; any thread writes it."""


class DetachedAccount:
    """The calls that were let go and still run; see the race at the file's head."""

    def __init__(self, backend: Backend) -> None:
        self._threads: dict[Helper, float] = {}
        self._others: dict[Helper, float] = {}
        self.threads = self._threads.keys()
        """What occupies threads: calls, and those that have one for a call."""
        self.busy_threads = BusyThreads()
        self.long_detached = LongDetached(backend)
        self._is_near_limit = False
        """And somebody has been warned of it."""

    def enter(self, records: list[CallRecord], since: float) -> None:
        threads: list[Helper] = [record for record in records if not _ends_soon(record)]
        self._threads.update(dict.fromkeys(threads, since))
        if len(threads) < len(records):
            self._others.update({r: since for r in records if _ends_soon(r)})
        for record in records:
            if record.reported:
                self.strike(record)

    def enter_helper(self, helper: Helper) -> None:
        """Enter a thread that was left in what was done for a call, before its start."""
        self._threads[helper] = time.monotonic()
        self.long_detached.watch(helper)
        if helper.reported:
            self.strike(helper)

    def leave_thread(self, record: CallRecord) -> None:
        """A call that was let go goes on without its thread."""
        since = self._threads.pop(record, None)
        if since is not None:
            self._others[record] = since

    def strike(self, helper: Helper) -> None:
        """Take out a call that has ended; its `reported` must be set. Any thread."""
        if self._threads or self._others:
            self._threads.pop(helper, None)
            self._others.pop(helper, None)
            self.busy_threads.forget(helper)

    def look(self, limit: int) -> None:
        """Warn if something is wrong with what was let go; on the loop."""
        self.busy_threads.look()
        if len(self._threads) < limit * NO_LONGER_NEAR:
            self._is_near_limit = False
        elif len(self._threads) >= limit * NEAR and not self._is_near_limit:
            self._is_near_limit = True
            held: list[Helper] = list(self._threads)
            logger.warning(
                "%d detached calls occupy threads; at max_detached=%d further blocking calls "
                "are refused: %s",
                len(held),
                limit,
                names_of(held),
                extra=about("max_detached_near", held, limit=limit),
            )

    def is_full(self, limit: int) -> bool:
        """Tell whether no further thread may be risked; any thread."""
        if len(self._threads) < limit:
            return False
        # A cut may meet a thread that is just coming back from a submit.
        since = time.monotonic() - RETURNING_SECONDS
        returning = [
            helper
            for helper, entered in dict(self._threads).items()
            if entered > since and isinstance(helper, ExecutorCall)
        ]
        return len(self._threads) - len(returning) >= limit

    def __len__(self) -> int:
        return len(self._threads) + len(self._others)

    def calls(self) -> list[DetachedCall]:
        # Whole copies first: making the pairs may set off the collector, which up to
        # CPython 3.11 runs at once, in the middle; code that it calls lets workers in.
        entries: dict[Helper, float] = dict(self._others)
        for helper, since in dict(self._threads).items():
            # A call may have begun while a thread was giving it away: that is one call.
            record = helper.record if isinstance(helper, ExecutorCall) else helper
            entries.setdefault(record, since)
        found = [DetachedCall(r.call, r.batch.id, since) for r, since in entries.items()]
        return sorted(found, key=lambda detached: detached.since)

    def refusal(self, limit: int) -> TooManyDetachedError:
        """Word the refusal of a blocking call, naming what holds the places."""
        held = list(self._threads)
        msg = (
            f"{len(held)} detached calls still occupy threads "
            f"(max_detached={limit}): {names_of(held)}"
        )
        return TooManyDetachedError(msg)


def _ends_soon(record: CallRecord) -> bool:
    """Tell whether a call occupies no thread of ours, or one whose process is being killed."""
    return not record.has_thread or (record.was_cut and record.tool.carrier == "process")


class LoopState:
    """Limits and counts of one runner on one loop. Loop thread only, but for the account."""

    def __init__(
        self,
        hub: Hub,
        *,
        max_concurrency: int | None,
        max_threads: int,
        max_detached: int,
        cleanup_grace: float,
        account: DetachedAccount,
        approver: Approver | None,
        shares_claims: bool,
    ) -> None:
        self.hub = hub
        self.max_detached = max_detached
        self.cleanup_grace = cleanup_grace
        self.account = account
        self.approver = approver
        self.lane = Lane(max_threads, THREAD_CARRIER)
        self.submissions = Submissions()
        self.limits = Limits(max_concurrency, max_threads, cleanup_grace)
        self.scheduling: Scheduling | None = None
        """There as soon as calls may have to wait for more than a thread."""
        self._shares_claims = shares_claims
        self.batches: dict[BatchEngine, None] = {}
        """The open batches of this runner on this loop, oldest first."""
        self._detached_waiters: list[Waiter] = []
        if max_concurrency is not None or approver is not None:
            self.schedule()

    # -- starting ----------------------------------------------------------

    def admit(self, batch: BatchEngine, records: list[CallRecord]) -> None:
        """Bring calls of one batch to their start, or into line for it."""
        if self.scheduling is None:
            if not any(record.tool.is_scheduled for record in records):
                batch.start(records)
                return
            self.schedule()
        assert self.scheduling is not None, "made just now"
        self.scheduling.admit(batch, records)

    def schedule(self) -> None:
        """
        Let the scheduler decide from now on.

        Until then every call starts at once, and threads take the blocking
        ones out of the lane themselves, which is cheaper. What waits there is
        taken back; what runs, or has been taken by a thread, is entered.
        """
        if self.scheduling is not None:
            return
        if self._shares_claims:
            self.scheduling = self.hub.shared.get("scheduling")
        if self.scheduling is None:
            self.scheduling = Scheduling(self.hub)
            if self._shares_claims:
                self.hub.shared["scheduling"] = self.scheduling
        waiting = self.lane.take_back()
        self.lane.limit = sys.maxsize  # the scheduler's threads are counted there
        for batch in list(self.batches):
            left = set(waiting.get(batch, ()))
            running = [r for r in batch.unsettled() if r.is_admitted and r not in left]
            self.scheduling.adopt(running)
        for batch, records in waiting.items():
            self.scheduling.admit(batch, records)

    def grant(self) -> None:
        """Start what may start."""
        if self.scheduling is not None:
            self.scheduling.grant()

    def approve(self, record: CallRecord) -> None:
        """A call that was asked for may start."""
        assert self.scheduling is not None, "who asks needs one"
        self.scheduling.approve(record)

    def release(self, record: CallRecord) -> None:
        """A call has ended, or will never start; `grant` gives on what it had."""
        if self.scheduling is not None:
            self.scheduling.release(record)

    def let_go(self, record: CallRecord) -> None:
        """A running call was detached; it keeps what it writes until its end."""
        if self.scheduling is not None:
            self.scheduling.let_go(record)

    def leave_thread(self, record: CallRecord) -> None:
        """A running call goes on without its thread."""
        if self.scheduling is not None:
            self.scheduling.core.leave_thread(record)
            self.scheduling.grant()

    def helper_ended(self, helper: Helper) -> None:
        """A thread that was left in what was done for a call is free; in that thread."""
        helper.reported = True
        self.account.strike(helper)
        self.hub.post(LoopState._tell_detached_waiters, self)

    def ended_late(self, record: CallRecord) -> None:
        """A detached call has ended."""
        self.account.strike(record)
        self.account.long_detached.forget(record)
        if self.scheduling is not None:
            self.scheduling.release(record)
            self.scheduling.grant()
        self._tell_detached_waiters()

    def held_back(self, batch: BatchEngine) -> int:
        """Return how many calls of a batch wait for a person, or behind one that does."""
        return 0 if self.scheduling is None else self.scheduling.core.held_back(batch)

    def forget(self, batch: BatchEngine) -> None:
        """Drop what waits of a batch that was cut; its calls are released one by one."""
        self.lane.forget(batch)
        self.submissions.forget(batch)
        if self.approver is not None:
            self.approver.lane.forget(batch)
        if self.scheduling is not None:
            self.scheduling.core.halt(batch)

    def left_over(self) -> list[str]:
        """Name what is not as if nothing had ever run."""
        found = {
            "open batches": bool(self.batches),
            "detached calls": bool(len(self.account)),
            "calls or threads in the line for threads": not self.lane.is_idle,
            "calls in the scheduler": not (self.scheduling is None or self.scheduling.is_idle),
            "questions": not (self.approver is None or self.approver.lane.is_idle),
            "waits for detached calls": bool(self._detached_waiters),
        }
        return [what for what, is_there in found.items() if is_there]

    # -- detached calls ----------------------------------------------------

    @property
    def is_full(self) -> bool:
        """No further blocking call may start: too many were let go and still run."""
        return self.account.is_full(self.max_detached)

    @property
    def refuses_submissions(self) -> bool:
        """
        No call may be given to an executor: it is full, and that has kept threads before.

        Threads that calls were left in are no obstacle: the executor has its own.
        """
        return self.is_full and any(
            isinstance(helper, ExecutorCall) for helper in list(self.account.threads)
        )

    def _tell_detached_waiters(self) -> None:
        if len(self.account):
            return
        self.account.long_detached.clear()
        if self._detached_waiters:
            waiters, self._detached_waiters = self._detached_waiters, []
            for waiter in waiters:
                waiter.set()

    async def wait_for_detached(self) -> None:
        """Park until no detached call is left and all late ends have been handled."""
        # A cut enters threads that were left in a submit only after the turn is back.
        await self.hub.chores_until_now()
        waiter = self.hub.backend.waiter()
        self._detached_waiters.append(waiter)
        self._tell_detached_waiters()
        try:
            await waiter.wait()
        finally:
            if waiter in self._detached_waiters:
                self._detached_waiters.remove(waiter)
        # The mailbox is read in order: what was posted before this is handled.
        flushed = self.hub.backend.waiter()
        self.hub.post(lambda waiter: waiter.set(), flushed)
        await flushed.wait()
