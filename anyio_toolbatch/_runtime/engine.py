"""
One batch: from its calls to their results.

All decisions are made on the loop's thread and written down in one ledger.
The way of a call: `submit` has it prepared (`intake`) → the state's scheduler and
lane bring it to its start → a carrier runs it → it comes back (`landing`) → `settle`.
Beside it stand those with a reason of their own: `Cutter` (what ends calls before
their time), `Teller`, `Publisher`, `Waits`.

Whatever comes from elsewhere comes through one of two doors:

* `interrupt` and `cancel` may be called from any thread and from a signal
  handler, in the middle of any line of this file. They set a flag that every
  start looks at (so nothing starts once they have returned) and post.
* the functions of `landing` are what workers post; they run on the loop.
"""

from __future__ import annotations

import contextvars
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from .._core.ledger import Ending, Ledger
from .._core.publication import Kind, Reader
from .._core.record import CallRecord, Tickets
from .._errors import BatchNotSettledError, BatchSealedError, CallDetached
from .._model.calls import ToolCall
from .._model.events import Event
from .._model.results import LateResult, Reason, Status, ToolResult
from .._model.tools import Tool
from .backend import Group, GroupItem, unbroken, worker_context
from .batch_clock import BatchClock
from .cutting import Cutter
from .disbanding import disband_if_over
from .foreign_values import is_a
from .hub import Hub
from .intake import prepare
from .landing import task_gone
from .loop_carrier import run_on_loop
from .nesting import is_cut_off, join, part
from .publisher import Publisher
from .state import LoopState
from .telling import Teller
from .waits import Waits

__all__ = ("BatchEngine",)


class Visit(Protocol):
    """What a worker thread has to do on the loop."""

    async def run(self) -> None: ...

    def gone(self) -> None:
        """The visit's task is through, or was cancelled before its first step."""
        ...


class BatchEngine:
    """One batch on one loop."""

    def __init__(
        self,
        state: LoopState,
        tools: dict[str, Tool],
        *,
        timeout: float | None,
        interrupt_grace: float,
        fail_fast: bool,
        outer: CallRecord | None,
        approve: Callable[[ToolCall], Any] | None,
        observers: Sequence[Callable[[Event], object]],
        on_late: Callable[[LateResult], object] | None,
        count_late: Callable[[], None],
    ) -> None:
        self.id = f"{_prefix}{next(_numbers)}"
        self.state = state
        self.hub: Hub = state.hub
        self.records: list[CallRecord] = []
        self.ledger = Ledger()
        self.tickets = Tickets()
        self.sealed = False
        self.closed = False
        """Sealed, and every call settled: nothing can happen any more."""
        self.outer = outer
        """The running call that this batch was opened inside of."""
        self.approve = approve
        # -- written by any thread, read by every start
        self.halted = False
        self.stopping = False
        """Running calls are to stop, too, and the batches that they have opened."""
        # -- the rest on the loop's thread
        self.tools = tools
        self.fail_fast = fail_fast
        self.count_late = count_late
        self.publisher = Publisher(
            self.id, self.hub, self.records, self.ledger, observers, on_late, self.on_break
        )
        self.cutter = Cutter(self, interrupt_grace)
        self.teller = Teller(self.hub, state.cleanup_grace)
        self.waits = Waits(self.hub.backend, self.ledger)
        self._clock: BatchClock | None = None
        self._group: Group | None = None
        self.keyboard: BaseException | None = None
        """A KeyboardInterrupt that a tool or a hook has raised; it comes out once."""
        self.is_forsaken = False
        """Nobody can ask about it any more: see `disbanding`."""
        self._let_go: set[CallRecord] = set()
        """Calls that were let go of, and whose end has not been handled."""
        self._submits_under_way = 0
        """One inside the other."""
        self._ready_behind: list[CallRecord] = []

        state.batches[self] = None
        state.account.look(state.max_detached)
        self.publisher.add(Kind.BATCH_STARTED)
        if timeout is not None:
            self._clock = BatchClock(self.hub.backend, timeout, self.time_is_up)
        if outer is not None:
            join(self, outer)

    @property
    def tool_names(self) -> Iterable[str]:
        """Under which its calls find tools."""
        return self.tools.keys()

    # -- calls come in -------------------------------------------------------

    @unbroken
    def submit(self, calls: Iterable[ToolCall], *, seal: bool = False) -> list[CallRecord]:
        """Take calls in; each is settled at once or on its way to its start."""
        if self.sealed:
            msg = f"batch {self.id} is sealed: no more calls can be submitted"
            raise BatchSealedError(msg)
        self.cutter.handle_requests()
        now = self.hub.clock()
        new = [CallRecord(self, call, now) for call in calls]
        for record, index in zip(new, self.ledger.open(len(new)), strict=True):
            record.index = index
        self.tickets.issue(new)
        self.records.extend(new)
        context = worker_context()
        # Only now: a call that settles at once must not close a batch whose
        # later calls have no place in the ledger yet.
        self.sealed = seal
        self._submits_under_way += 1
        ready: list[CallRecord] = []
        try:
            ready = [record for record in new if prepare(record, context)]
        finally:  # after a Ctrl-C in a `validate` none of these calls is started
            self._submits_under_way -= 1
            if self._submits_under_way:
                # Inside another one, by a `validate` or a key function: they are
                # taken in with the calls of that one, some of which come before.
                self._ready_behind += ready
            else:
                if self._ready_behind:
                    ready = sorted([*ready, *self._ready_behind], key=_index_of)
                    self._ready_behind = []
                if ready:
                    self.state.admit(self, ready)
                    self.look_at_clock()
        if not new and seal:
            self._check_closed()
        return new

    @unbroken
    def seal(self) -> None:
        self.cutter.handle_requests()
        if not self.sealed:
            self.sealed = True
            self._check_closed()

    # -- calls start ---------------------------------------------------------

    def start(self, records: list[CallRecord]) -> None:
        """Hand calls to their carriers; those for threads in one go."""
        for record in records:
            record.is_admitted = True
        blocking = [record for record in records if record.has_thread]
        # Before a worker sees any: one whose value is awaitable becomes hosted.
        others = [record for record in records if not record.has_thread]
        if blocking:
            self.state.lane.put(self, blocking)
        for record in others:
            if record.hosted:
                self.start_on_loop(record)
            else:
                self.state.submissions.put(record)

    def start_on_loop(self, record: CallRecord) -> None:
        """Start a call as a task of the host, which is made if there is none."""
        if self.ledger.is_settled(record.index):
            return  # an eager sibling has cut it meanwhile
        self.run_on_loop(record)

    def run_on_loop(self, record: CallRecord) -> None:
        """The same; also one that is settled, and kept."""
        self._spawn((run_on_loop, record, record.context, record.call.name))

    def _spawn(self, item: GroupItem) -> None:
        if self._group is None or not self._group.spawn(*item):
            self._group = self.hub.backend.start_group(
                item,
                on_end=_task_gone,
                on_teardown=self.teller.release,
            )

    def run_visit(self, visit: Visit, context: contextvars.Context, name: str) -> None:
        """Run what a blocking tool asked for, as a task of the host."""
        self._spawn((_run_visit, visit, context, name))

    def begin(self, record: CallRecord) -> bool:
        """Decide, in the call's task, whether its first line may run."""
        if self.refuses(record):
            return False
        record.started_at = self.hub.clock()
        try:
            self.tickets.starts.remove(record)
        except KeyError:
            return False
        # Once more: a signal handler may have interrupted since the first look.
        if self.refuses(record):
            self.tickets.starts.add(record)
            return False
        self.started(record)
        return True

    def started(self, record: CallRecord) -> None:
        """A call has started: enter it, once, and let its time run."""
        if record.start_told:
            return
        record.start_told = True
        self.publisher.add_start(record)
        self.set_timeout(record)

    def set_timeout(self, record: CallRecord) -> None:
        timeout = record.tool.timeout
        if timeout is not None:
            left = timeout - (self.hub.clock() - record.started_at)
            record.timer = self.hub.backend.call_later(
                left if left > 0.0 else 0.0, lambda: self.call_time_is_up(record)
            )

    # -- settling ------------------------------------------------------------

    def is_settled(self, record: CallRecord) -> bool:
        return self.ledger.is_settled(record.index)

    def is_gone(self, record: CallRecord) -> bool:
        """Tell whether a call has its ending and does not go on by agreement; any thread."""
        ending = self.ledger.endings[record.index]
        return ending is not None and (record.ended or not ending.kept)

    def settle(self, record: CallRecord, ending: Ending) -> bool:
        """Give a call its one ending; False if it has one."""
        if not self.ledger.settle(record.index, ending):
            return False
        if ending.detached:
            self._let_go.add(record)
        if not ending.kept:  # else its own limit still holds
            self._stop_timeout(record)
        # Before anybody hears of it: from here on there is nothing to interrupt.
        is_last = self._is_over()
        publisher = self.publisher
        if ending.started:
            self.note_start(record)
        if record.items is not None and not ending.detached:
            publisher.add_items(record)
        publisher.log.add_end(record)
        if publisher.is_heard:
            publisher.tell()
        self.waits.settled(record)
        if is_last:
            self._close()
        return True

    @staticmethod
    def _stop_timeout(record: CallRecord) -> None:
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None

    def note_start(self, record: CallRecord) -> None:
        """Enter that a call has started, if its end comes before that news."""
        if not record.start_told:
            record.start_told = True
            self.publisher.log.add_start(record)

    def settle_many(self, records: list[CallRecord], ending: Ending) -> None:
        """
        Give many running calls the same ending, at a fraction of the cost.

        For the calls of a cut that have published nothing and have no ending.
        """
        self.ledger.settle_many(records, ending)
        is_last = self._is_over()
        for record in [record for record in records if record.timer is not None]:
            record.timer.cancel()
            record.timer = None
        untold = {record for record in records if not record.start_told}
        for record in untold:
            record.start_told = True
        self.publisher.add(Kind.MANY_SETTLED, records, untold)
        self.waits.settled_many()
        if ending.detached:
            self._let_go.update(records)
        if is_last:
            self._close()

    def not_run(
        self, record: CallRecord, error: BaseException, reason: Reason | None = None
    ) -> None:
        """A call can't be run, and that is its failure, unless it is settled."""
        self.end_unstarted(
            record,
            Ending(Status.FAILED, reason, started=False, error=error, at=self.hub.clock()),
        )

    def end_unstarted(self, record: CallRecord, ending: Ending) -> None:
        """Settle a call that will not start, unless it is settled."""
        if self.settle(record, ending):
            record.halted = True
            self.after_settling(record)

    def ended_late(self, record: CallRecord) -> None:
        """A call that was let go has ended, or has been stopped where it is."""
        self._stop_timeout(record)
        self.state.ended_late(record)
        if record.ended:  # an executor may say that it was stopped, and give a value after all
            self._let_go.discard(record)
        self._disband_later()

    def after_settling(self, record: CallRecord) -> None:
        """Give the call's place to the next."""
        if self.state.scheduling is not None:
            self.state.release(record)
            self.state.grant()
            self.look_at_clock()

    def _is_over(self) -> bool:
        """Mark the batch as closed if nothing can happen in it any more."""
        if self.ledger.unsettled or not self.sealed or self.closed:
            return False
        self.closed = True
        self.cutter.close_requests()
        return True

    def _check_closed(self) -> None:
        if self._is_over():
            self._close()

    def _close(self) -> None:
        self._stop_clock()
        self.cutter.close()
        self.state.batches.pop(self, None)
        self.publisher.add(Kind.BATCH_SETTLED)
        if self.outer is not None:
            part(self, self.outer)
        self._disband_later()

    def _disband_later(self) -> None:
        if self.is_forsaken or self.publisher.watched is not None:
            self.hub.post(disband_if_over, self)  # when all has been told, too

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.stop()
            self._clock = None

    @property
    def is_closed_for_good(self) -> bool:
        """Closed, and all that was let go of has ended."""
        return self.closed and not self._let_go and self not in self.state.batches

    # -- cutting -------------------------------------------------------------

    @property
    def reason(self) -> Reason | None:
        """Why the whole batch was cut."""
        return self.cutter.reason

    @unbroken
    def interrupt(self, message: str | None, grace: float | None) -> bool:
        """From any thread or a signal handler; see the head of this file."""
        if self.closed:
            return False
        first = not self.stopping
        self.halted = self.stopping = True
        self.cutter.request("user_interrupt", message, grace)
        return first

    @unbroken
    def supersede(self, message: str | None) -> bool:
        """From any thread or a signal handler; see the head of this file."""
        if self.closed or self.halted:
            return False
        self.halted = True
        self.cutter.request("superseded", message)
        return True

    @unbroken
    def cancel(self, record: CallRecord, message: str | None) -> bool:
        """From any thread or a signal handler; see the head of this file."""
        if record.stopping or self.is_gone(record):
            return False
        if self.stopping and (record.tool is None or record.tool.on_interrupt != "keep"):
            return False
        record.halted = record.stopping = True
        self.hub.post_urgent(self._on_cancel, (record, message))
        return True

    def _on_cancel(self, request: tuple[CallRecord, str | None]) -> None:
        record, message = request
        if not self.ledger.is_settled(record.index):
            self.cutter.cut([record], Status.INTERRUPTED, Reason("call_cancelled", message))
        elif not record.ended and not record.told and record.started_at:
            # A cut of the batch has kept it meanwhile, and it is to stop all the same.
            self._stop_kept(record)

    def _stop_kept(self, record: CallRecord) -> None:
        record.stopping = True
        self.teller.tell(record, 0.0)
        self.teller.stop(record)

    def call_time_is_up(self, record: CallRecord) -> None:
        """A call has used up its timeout."""
        self._stop_timeout(record)
        reason = Reason("call_timeout")
        if not self.ledger.is_settled(record.index):
            self.cutter.cut([record], Status.TIMED_OUT, reason)
        elif not record.ended and not record.told:
            # It was kept from the end of its turn, not from its own limit.
            record.cut_status, record.cut_reason = Status.TIMED_OUT, reason
            self._stop_kept(record)

    def time_is_up(self) -> None:
        """The batch has used up its timeout."""
        self._stop_clock()
        self.cutter.cut_batch(Status.TIMED_OUT, Reason("batch_timeout"))

    @unbroken
    def detach(self, reason: Reason) -> None:
        """Cut everything now, without a grace, and take no more calls."""
        self.sealed = True
        status = Status.INTERRUPTED
        outer = self.outer
        if outer is not None and outer.was_cut and outer.cut_reason is not None:
            # That is why the awaiting code was cancelled.
            assert outer.cut_status is not None
            status, reason = outer.cut_status, outer.cut_reason
        self.cutter.cut_batch(status, reason, grace=0.0)
        self._check_closed()

    def close_for_runner(self) -> None:
        """The runner is being closed."""
        self.cutter.cut_batch(Status.INTERRUPTED, Reason("runner_closed"))

    def halt_after(self, error: BaseException) -> None:
        """Keep everything from starting if this error cuts the batch; any thread."""
        if is_a(error, KeyboardInterrupt) or (
            self.fail_fast and not is_a(error, CallDetached)
        ):
            self.halted = self.stopping = True

    # -- what may start ------------------------------------------------------

    def must_not_start(self, record: CallRecord) -> bool:
        """Tell whether a cut is done or on its way; any thread."""
        return (
            self.halted or record.halted or (self.outer is not None and is_cut_off(self.outer))
        )

    def refuses(self, record: CallRecord) -> bool:
        """
        Tell whether a call that was to start must not; any thread.

        Then the cut settles it, with one exception: if only the call around
        the batch was to be cut, and has ended by itself before that, no cut
        comes. Story: who refuses notes it and then looks once more; the call's
        end is visible before `start_refused` looks for what was noted. So either
        the second look sees that end, or `start_refused` sees the note.
        """
        if not self.must_not_start(record):
            return False
        record.refused = True
        if self.must_not_start(record):
            return True
        record.refused = False
        return False

    def start_refused(self) -> None:
        """The call around this batch has ended by itself, and the batch goes on."""
        to_start = []
        for record in [record for record in self.unsettled() if record.refused]:
            record.refused = False
            if record.question is not None:
                record.question.withdraw()
                assert self.state.approver is not None, "who asked?"
                self.state.approver.ask(record)
            elif record.is_admitted and record.is_waiting:
                to_start.append(record)
        self.start(to_start)

    def look_at_clock(self) -> None:
        """Let the batch's time stand still while nothing but people is waited for."""
        if self._clock is not None and self.state.approver is not None:
            unsettled = self.ledger.unsettled
            self._clock.let_run(not unsettled or self.state.held_back(self) < unsettled)

    def mark_of(self, record: CallRecord) -> str:
        """Return what tells this call's cancellation from every other."""
        return f"tool call cut [{self.id}#{record.index}]"

    # -- reading -------------------------------------------------------------

    @unbroken
    def open_reader(self) -> Reader:
        """Start reading the events from the batch's start."""
        reader = self.publisher.open_reader()
        # Either a worker sees that starts are wanted and posts its own, or
        # its start is seen here: it stores the time, then looks.
        for record in self.unsettled():
            if not record.is_waiting and record.started_at:
                self.started(record)
        return reader

    def unsettled(self) -> list[CallRecord]:
        """Return the calls without an ending, in call order."""
        if not self.ledger.unsettled:
            return []  # and it may have been taken apart
        pairs = zip(self.records, self.ledger.endings, strict=True)
        return [record for record, ending in pairs if ending is None]

    def results(self) -> list[ToolResult]:
        if not self.sealed:
            msg = f"batch {self.id} is not sealed: more calls may come"
            raise BatchNotSettledError(msg)
        if self.ledger.unsettled:
            msg = f"{self.ledger.unsettled} calls of batch {self.id} have no result yet"
            raise BatchNotSettledError(msg)
        return self.ledger.all_results(self.records)

    def snapshot(self) -> list[ToolResult | None]:
        return [self.ledger.result(record) for record in list(self.records)]

    async def wait_settled(self) -> None:
        """Park until the calls submitted so far are settled."""
        await self.waits.for_first(len(self.records))

    def on_break(self, error: KeyboardInterrupt, where: str = "an observer") -> None:
        """A hook was broken by a Ctrl-C: the batch ends, and it comes out once."""
        self.keyboard = error
        self.interrupt(f"KeyboardInterrupt in {where}", None)

    def take_keyboard_interrupt(self) -> BaseException | None:
        """Return the KeyboardInterrupt that a tool raised; once."""
        error, self.keyboard = self.keyboard, None
        return error


def _index_of(record: CallRecord) -> int:
    return record.index


def _task_gone(what: CallRecord | Visit) -> None:
    """A task of a host is through. Not a method: a host that is kept keeps no batch."""
    if isinstance(what, CallRecord):
        task_gone(what)
    else:
        what.gone()


async def _run_visit(visit: Visit) -> None:
    await visit.run()


_numbers = itertools.count(1)
_prefix = f"batch-{os.urandom(3).hex()}-"
