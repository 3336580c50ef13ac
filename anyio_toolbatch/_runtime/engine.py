"""
One batch: from its calls to their results.

All decisions are made here, on the loop's thread, and written down in one
ledger. The way of a call: `submit` prepares it (parse → validate) → the
state's scheduler and lane bring it to its start → a carrier runs it → `land`
or `end_on_loop` → `_settle`.

Whatever comes from elsewhere comes through one of two doors:

* `interrupt` and `cancel` may be called from any thread and from a signal
  handler, in the middle of any line of this file. They set a flag that every
  start looks at (so nothing starts once they have returned) and post.
* the ``land_…`` methods are what workers post; they run on the loop.

The order of a cut (`_cut`, `_let_go`), which is the point of it all:

1. mark: the flags are up, the reason stands;
2. what a worker has finished counts as finished, also if its message is still
   on the way (the tickets tell); what has not started never will;
3. if a grace was asked for, the running calls are told and all are waited
   for together; those that end by themselves keep their own answer;
4. the rest is settled as started and detached;
5. the awaiting code is woken;
6. only then, in slices: running calls are told, observers hear of it.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, cast

import anyio.lowlevel

from .._core.ledger import COMPLETED, COMPLETED_WITH_ERROR, FAILED, Ending, Ledger
from .._core.publication import EventLog, Kind, Reader, to_event
from .._core.record import CallRecord
from .._errors import (
    BatchNotSettledError,
    BatchSealedError,
    CallDetached,
    InvalidArgumentsError,
    ToolBatchError,
    UnknownToolError,
)
from .._model.calls import ToolCall
from .._model.events import Event, LateResultDropped
from .._model.results import LateResult, Reason, Status, ToolResult, text_of_error
from .._model.tools import Tool, ToolOutput, as_tool
from .backend import Group, GroupItem, Timer, Waiter, publishing_context, worker_context
from .cancellation import Draining, Outcome, Stopper
from .context import run_hooks, set_flag
from .hub import Hub
from .loop_carrier import run_on_loop
from .state import LoopState
from .thread_carrier import HOOK_CARRIER, OwnLoop, close_awaitable
from .threads import Lane

__all__ = ("BatchEngine",)

logger = logging.getLogger("anyio_toolbatch.runtime")

HOOK_THREADS = 32
"""Threads that `on_cancel` callbacks may occupy on one loop; arbitrary, ample."""

STOPS_KEPT_CALLS = frozenset({"call_cancelled", "call_timeout"})
"""Reasons aimed at one call, which `on_interrupt="keep"` does not ward off."""


class _Wait:
    """Somebody waits until the first `limit` calls are settled."""

    __slots__ = ("limit", "remaining", "waiter")

    def __init__(self, limit: int, remaining: int, waiter: Waiter) -> None:
        self.limit = limit
        self.remaining = remaining
        self.waiter = waiter


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
        observers: Sequence[Callable[[Event], object]],
        on_late: Callable[[LateResult], object] | None,
        count_late: Callable[[], None],
    ) -> None:
        self.id = f"{_prefix}{next(_numbers)}"
        self.state = state
        self.hub: Hub = state.hub
        self.records: list[CallRecord] = []
        self.ledger = Ledger()
        self.log = EventLog()
        self.sealed = False
        self.closed = False
        """Sealed, and every call settled: nothing can happen any more."""
        self.reason: Reason | None = None
        self.status = Status.INTERRUPTED
        # -- written by any thread, read by every start
        self.halted = False
        self.tells_starts = bool(observers)
        """Workers post their starts: somebody listens."""
        # -- the rest on the loop's thread
        self._tools = tools
        self._grace = interrupt_grace
        self._fail_fast = fail_fast
        self._observers = observers
        self._on_late = on_late
        self._count_late = count_late
        self._context = (
            publishing_context(self.hub.backend) if observers or on_late is not None else None
        )
        self._observed: Reader | None = self.log.open_reader() if observers else None
        self._observers_wait = False
        self._requests: deque[tuple[str | None, float | None]] = deque()
        self._waits: list[_Wait] = []
        self._call_waits: dict[CallRecord, list[Waiter]] = {}
        self._reader_waits: list[Waiter] = []
        self._timers: set[Timer] = set()
        self._graced: list[tuple[float, Timer, list[CallRecord]]] = []
        self._group: Group | None = None
        self._draining: Draining | None = None
        self._keyboard: BaseException | None = None

        state.batches[self] = None
        self._publish(Kind.BATCH_STARTED)
        if timeout is not None:
            self._timers.add(self.hub.backend.call_later(timeout, self._on_batch_timeout))

    # -- calls come in -------------------------------------------------------

    def submit(self, calls: Iterable[ToolCall], *, seal: bool = False) -> list[CallRecord]:
        """Take calls in; each is settled at once or on its way to its start."""
        if self.sealed:
            msg = f"batch {self.id} is sealed: no more calls can be submitted"
            raise BatchSealedError(msg)
        if self._requests:
            self._process_requests()
        now = self.hub.clock()
        new = [CallRecord(self, call, now) for call in calls]
        open_place = self.ledger.open
        for record in new:
            record.index = open_place()
        self.records.extend(new)
        # Only now: a call that settles at once must not close a batch whose
        # later calls have no place in the ledger yet.
        self.sealed = seal
        ready = [record for record in new if self._prepare(record)]
        if ready:
            self.state.admit(ready)
        if not new and seal:
            self._check_closed()
        return new

    def seal(self) -> None:
        if self._requests:
            self._process_requests()
        if not self.sealed:
            self.sealed = True
            self._check_closed()

    def _prepare(self, record: CallRecord) -> bool:
        """Parse, look up, validate; False if the call is settled by that."""
        if self.reason is not None:
            self._settle(
                record,
                Ending(self.status, self.reason, started=False, at=record.submitted_at),
            )
            return False
        call = record.call
        if call.parse_error is not None:
            return self._refuse(record, InvalidArgumentsError(call.parse_error))
        if call.tool is not None:
            record.tool = as_tool(call.tool)
        else:
            found = self._tools.get(call.name)
            if found is None:
                return self._refuse(record, self._unknown(call.name), "unknown_tool")
            record.tool = found
        validate = record.tool.validate
        try:
            if validate is None:
                record.tool.bind(record.arguments)
            else:
                replaced = validate(call)
                if replaced is not None:
                    record.arguments = dict(replaced)
        except Exception as exc:  # noqa: BLE001 - whatever a user's check may raise
            return self._refuse(record, exc)
        if record.tool.carrier == "thread":
            if self.state.is_full:
                self.land_refused(record)
                return False
        else:
            record.hosted = True
        record.context = worker_context()
        return True

    def _unknown(self, name: str) -> UnknownToolError:
        known = ", ".join(sorted(self._tools)) or "none"
        return UnknownToolError(f"there is no tool named {name!r} (known: {known})")

    def _refuse(
        self, record: CallRecord, error: Exception, kind: str = "bad_arguments"
    ) -> bool:
        self._settle(
            record,
            Ending(
                Status.INVALID,
                Reason(kind, _worded(error)),
                started=False,
                error=error,
                at=record.submitted_at,
            ),
        )
        return False

    # -- calls start ---------------------------------------------------------

    def start_on_loop(self, record: CallRecord) -> None:
        """Start a call as a task of the host, which is made if there is none."""
        if self.ledger.is_settled(record.index):
            return  # an eager sibling has cut it meanwhile
        self._spawn((run_on_loop, record, record.context, record.call.name))

    def _spawn(self, item: GroupItem) -> None:
        if self._group is None or not self._group.spawn(*item):
            self._group = self.hub.backend.start_group(
                item, on_stray=self._task_gone, on_teardown=self._release_shields
            )

    def start_in_threads(self, records: list[CallRecord]) -> None:
        self.state.lane.put(self, records)

    def begin(self, record: CallRecord) -> bool:
        """Decide, in the call's task, whether its first line may run."""
        if self.halted or record.halted:
            return False  # the cut that is on its way settles it
        try:
            record.start_ticket.pop()
        except IndexError:
            return False
        record.started_at = self.hub.clock()
        self._started(record)
        return True

    def land_start(self, record: CallRecord) -> None:
        """A worker has started a call."""
        if not self.ledger.is_settled(record.index):
            self._started(record)

    def _started(self, record: CallRecord) -> None:
        if record.start_told:
            return
        record.start_told = True
        self._publish(Kind.CALL_STARTED, record)
        timeout = record.tool.timeout
        if timeout is not None:
            left = timeout - (self.hub.clock() - record.started_at)
            record.timer = self.hub.backend.call_later(
                left if left > 0.0 else 0.0, lambda: self._on_call_timeout(record)
            )

    # -- calls end -----------------------------------------------------------

    def land(self, record: CallRecord) -> None:
        """A worker has ended a call in time."""
        if not self.ledger.is_settled(record.index):
            self._take_end(record)
            self._after_settling(record)
        # else: a cut found it finished before this message was read

    def end_on_loop(self, record: CallRecord, outcome: Outcome) -> None:
        """A call's task has come to its end."""
        record.ended_at = self.hub.clock()
        record.ended = True
        self.drained(record.stopper)
        record.stopper = None
        error = outcome.error
        if outcome.stopped:
            error = CallDetached()
        try:
            record.end_ticket.pop()
        except IndexError:
            record.value, record.error = outcome.value, error
            self.land_late(record)
            return
        record.value, record.error = outcome.value, error
        self._take_end(record)
        self._after_settling(record)

    def _take_end(self, record: CallRecord) -> None:
        """Settle a call by what its record says of its end."""
        error = record.error
        if error is None:
            value = record.value
            ending = COMPLETED
            if isinstance(value, ToolOutput):
                record.value = value.value
                ending = COMPLETED_WITH_ERROR if value.is_error else COMPLETED
            self._settle(record, ending)
        elif isinstance(error, CallDetached) and record.cut_reason is not None:
            # It stopped within the grace, as it was asked to.
            self._settle(record, self._cut_ending(record, record.ended_at, detached=False))
        elif isinstance(error, KeyboardInterrupt):
            self._keyboard_interrupt(record, error)
        else:
            self._settle(record, FAILED)
            if self._fail_fast:
                self._cut_batch(Status.INTERRUPTED, self._sibling_failed(record))

    def _sibling_failed(self, record: CallRecord) -> Reason:
        error = record.error
        assert error is not None
        return Reason(
            "sibling_failed",
            f"call {record.index} ({record.call.name}) failed with {text_of_error(error)}",
        )

    def halt_after(self, error: BaseException) -> None:
        """Keep everything from starting if this error cuts the batch; any thread."""
        if isinstance(error, KeyboardInterrupt) or (
            self._fail_fast and not isinstance(error, CallDetached)
        ):
            self.halted = True

    def _keyboard_interrupt(self, record: CallRecord, error: KeyboardInterrupt) -> None:
        """A tool raised KeyboardInterrupt: it ends the batch, and comes out once."""
        reason = Reason("user_interrupt", f"KeyboardInterrupt in call {record.index}")
        self._settle(
            record,
            Ending(
                Status.INTERRUPTED,
                reason,
                started=True,
                error=error,
                partial=record.partial_output(),
                at=record.ended_at,
            ),
        )
        self._keyboard = error
        self._cut_batch(Status.INTERRUPTED, reason)

    def land_refused(self, record: CallRecord) -> None:
        """A blocking call may not start: too many that were let go still run."""
        error = self.state.account.refusal(self.state.max_detached)
        self._not_run(record, error, Reason("too_many_detached", str(error)))

    def land_thread_failed(self, failure: tuple[CallRecord, BaseException]) -> None:
        """No thread could be started for a call."""
        record, error = failure
        self._not_run(record, error, None)

    def _not_run(
        self, record: CallRecord, error: BaseException, reason: Reason | None
    ) -> None:
        if self._settle(
            record,
            Ending(Status.FAILED, reason, started=False, error=error, at=self.hub.clock()),
        ):
            record.halted = True
            self._after_settling(record)

    def land_awaitable(self, record: CallRecord) -> None:
        """A blocking call gave an awaitable: the rest of it runs here."""
        if self.ledger.is_settled(record.index):
            close_awaitable(record.value)
            self._task_ended_late(record)
        else:
            self.start_on_loop(record)

    def land_late_quietly(self, record: CallRecord) -> None:
        """A detached call has ended in a way that gives no result."""
        record.value = record.error = None
        self.state.account.strike(record)
        self.state.tell_detached_waiters()

    def _task_ended_late(self, record: CallRecord) -> None:
        record.ended = True
        self.land_late_quietly(record)

    def _task_gone(self, record: object) -> None:
        """A task of the host is through; it may have been cancelled before its start."""
        if not isinstance(record, CallRecord) or record.ended:
            return
        if self.ledger.is_settled(record.index):
            if record.awaiting:
                close_awaitable(record.value)
                self._task_ended_late(record)
            return
        if self.halted or record.halted:
            return  # never begun, and the cut settles it
        if not record.restarted:
            # Somebody has cancelled the host, not the call: it is made anew.
            record.restarted = True
            self.start_on_loop(record)
            return
        record.halted = record.ended = True
        if record.awaiting:
            close_awaitable(record.value)
        error = RuntimeError("the call's task was cancelled twice before its first step")
        self._not_run(record, error, None)

    # -- late ----------------------------------------------------------------

    def land_late(self, record: CallRecord) -> None:
        """A call that was let go has ended after all: the fence."""
        value, error = record.value, record.error
        record.value = record.error = None
        self.state.account.strike(record)
        self.state.tell_detached_waiters()
        if isinstance(error, CallDetached | self.hub.backend.cancelled_class):
            return  # our own cancellation, or the loop's
        self._count_late()
        if self._on_late is None and not self._observers:
            return
        ending = self.ledger.endings[record.index]
        assert ending is not None, "let go without an ending"
        let_go_at = record.ended_at if ending.at is None else ending.at
        late = LateResult(
            self.id,
            record.call,
            record.index,
            value,
            error,
            max(record.ended_at - let_go_at, 0.0),
        )
        if self._observed is None or self._observed.has_read_all:
            self._tell_late(late)
        else:
            # The cut is still being told: the call's end comes before what is late.
            self.hub.run_in_slices(self._tell_late_later(late))

    def _tell_late_later(self, late: LateResult) -> Iterator[None]:
        self._tell_late(late)
        yield

    def _tell_late(self, late: LateResult) -> None:
        if self._on_late is not None:
            self._call_out(self._on_late, late, "on_late")
        for observer in self._observers:
            self._call_out(observer, LateResultDropped(self.id, late), "observer")

    # -- settling ------------------------------------------------------------

    def is_settled(self, record: CallRecord) -> bool:
        return self.ledger.is_settled(record.index)

    def _settle(self, record: CallRecord, ending: Ending) -> bool:
        """Give a call its one ending; False if it has one."""
        if not self.ledger.settle(record.index, ending):
            return False
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None
        # Before anybody hears of it: from here on there is nothing to interrupt.
        is_last = self._is_over()
        if ending.started and not record.start_told:
            record.start_told = True
            self._publish(Kind.CALL_STARTED, record)
        if record.items is not None and ending.at is None:
            self.land_items(record, settled=True)
        self._publish(Kind.CALL_SETTLED, record)
        if self._call_waits:
            for waiter in self._call_waits.pop(record, ()):
                waiter.set()
        for wait in self._waits:
            if record.index < wait.limit:
                wait.remaining -= 1
                if not wait.remaining:
                    wait.waiter.set()
        if is_last:
            self._close()
        return True

    def _after_settling(self, record: CallRecord) -> None:
        """Give the call's place to the next."""
        self.state.release(record)
        self.state.grant()

    def _is_over(self) -> bool:
        """Mark the batch as closed if nothing can happen in it any more."""
        if not self.sealed or self.ledger.unsettled or self.closed:
            return False
        if self._requests:
            # Whoever was told "there was something to interrupt" finds it so.
            self._process_requests()
        self.closed = True
        return True

    def _check_closed(self) -> None:
        if self._is_over():
            self._close()

    def _close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for _, timer, _ in self._graced:
            timer.cancel()
        self._graced.clear()
        self.state.batches.pop(self, None)
        self._publish(Kind.BATCH_SETTLED)

    # -- cutting -------------------------------------------------------------

    def interrupt(self, message: str | None, grace: float | None) -> bool:
        """From any thread or a signal handler; see the head of this file."""
        if self.closed:
            return False
        first = not self.halted and self.reason is None
        self.halted = True
        self._requests.append((message, grace))
        self.hub.post(BatchEngine._process_requests, self)
        return first

    def cancel(self, record: CallRecord, message: str | None) -> bool:
        """From any thread or a signal handler; see the head of this file."""
        if record.halted or self.halted or self.ledger.is_settled(record.index):
            return False
        record.halted = True
        self.hub.post(self._on_cancel_call, (record, message))
        return True

    def detach(self, reason: Reason) -> None:
        """Cut everything now, without a grace, and take no more calls; on the loop."""
        self.sealed = True
        self._cut_batch(Status.INTERRUPTED, reason, grace=0.0)
        self._check_closed()

    def _process_requests(self) -> None:
        while self._requests:
            message, grace = self._requests.popleft()
            if self.closed:
                continue
            self._cut_batch(Status.INTERRUPTED, Reason("user_interrupt", message), grace=grace)

    def close_for_runner(self) -> None:
        """The runner is being closed; on the loop."""
        self._cut_batch(Status.INTERRUPTED, Reason("runner_closed"))

    def _on_cancel_call(self, request: tuple[CallRecord, str | None]) -> None:
        record, message = request
        if not self.ledger.is_settled(record.index):
            self._cut(
                [record], Status.INTERRUPTED, Reason("call_cancelled", message), self._grace
            )

    def _on_call_timeout(self, record: CallRecord) -> None:
        record.timer = None
        if not self.ledger.is_settled(record.index):
            self._cut([record], Status.TIMED_OUT, Reason("call_timeout"), self._grace)

    def _on_batch_timeout(self) -> None:
        self._cut_batch(Status.TIMED_OUT, Reason("batch_timeout"))

    def _cut_batch(
        self, status: Status, reason: Reason, *, grace: float | None = None
    ) -> None:
        """Cut all that is unsettled; the first reason stays, a grace only shrinks."""
        if grace is None:
            grace = self._grace
        if self.closed:
            return
        self.halted = True
        if self.reason is not None:
            self._shorten_grace(grace)
            return
        self.reason = reason
        self.status = status
        self.state.forget(self)
        self._publish(Kind.INTERRUPTED, reason, cutting=True)
        records = self.records
        self._cut([records[i] for i in self.ledger.unsettled_indices()], status, reason, grace)

    def _shorten_grace(self, grace: float) -> None:
        until = self.hub.clock() + grace
        graced, self._graced = self._graced, []
        for deadline, timer, records in graced:
            if deadline <= until:
                self._graced.append((deadline, timer, records))
            else:
                timer.cancel()
                self._wait_for(records, grace)

    def _cut(
        self, records: list[CallRecord], status: Status, reason: Reason, grace: float
    ) -> None:
        """Steps 1 to 3 of a cut."""
        now = self.hub.clock()
        not_started = Ending(status, reason, started=False, at=now)
        running = []
        for record in records:
            record.halted = True
            if record.cut_reason is None:
                record.cut_status, record.cut_reason = status, reason
            if record.start_ticket:
                try:
                    record.start_ticket.pop()
                except IndexError:
                    pass  # it has just been started
                else:
                    self._settle(record, not_started)
                    # It may have been given its places, and not used them yet.
                    self.state.release(record)
                    continue
            if record.end_ticket or record.awaiting:
                running.append(record)
            else:
                self._take_end(record)
                self.state.release(record)
        if running and grace > 0.0:
            self.hub.run_in_slices(self._tell_all(running))
            self._wait_for(running, grace)
            self.state.grant()
        else:
            self._let_go(running)

    def _wait_for(self, records: list[CallRecord], grace: float) -> None:
        if grace <= 0.0:
            self._let_go(records)
            return
        backend = self.hub.backend
        deadline = self.hub.clock() + grace
        timer = backend.call_later(grace, lambda: self._let_go_after(deadline))
        self._graced.append((deadline, timer, records))

    def _let_go_after(self, deadline: float) -> None:
        due = [item for item in self._graced if item[0] <= deadline]
        self._graced = [item for item in self._graced if item[0] > deadline]
        for _, _, records in due:
            self._let_go(records)

    def _let_go(self, records: list[CallRecord]) -> None:
        """Steps 4 to 6 of a cut."""
        self._observers_wait = True  # until the awaiting code has run
        now = self.hub.clock()
        state = self.state
        gone: list[CallRecord] = []
        freed_threads = 0
        shared: Ending | None = None
        for record in records:
            if self.ledger.is_settled(record.index):
                continue
            try:
                record.end_ticket.pop()
            except IndexError:
                if not record.awaiting:
                    self._take_end(record)
                    state.release(record)
                    continue
                # Between thread and loop: `land_awaitable` will find it settled.
                record.hosted = True
            if not record.hosted:
                freed_threads += 1
            state.account.enter(record, now)
            state.release(record)
            gone.append(record)
            ending = self._cut_ending(record, now, detached=True)
            if (
                shared is not None
                and shared.reason is ending.reason
                and ending.partial is None
                and not ending.kept
            ):
                ending = shared
            elif ending.partial is None and not ending.kept:
                shared = ending
            self._settle(record, ending)
        # The awaiting code is awake; the rest waits for its turn behind it.
        if freed_threads:
            state.lane.abandon(freed_threads)
        self.hub.run_in_slices(self._tell_all(gone))
        state.grant()

    def _cut_ending(self, record: CallRecord, at: float, *, detached: bool) -> Ending:
        status, reason = record.cut_status, record.cut_reason
        assert status is not None
        assert reason is not None
        return Ending(
            status,
            reason,
            started=True,
            detached=detached,
            partial=record.partial_output(),
            kept=detached and self._is_kept(record),
            at=at,
        )

    @staticmethod
    def _is_kept(record: CallRecord) -> bool:
        return (
            record.tool.on_interrupt == "keep"
            and record.cut_reason is not None
            and record.cut_reason.kind not in STOPS_KEPT_CALLS
        )

    # -- telling running calls -------------------------------------------------

    def _tell_all(self, records: list[CallRecord]) -> Iterator[None]:
        """Step 6 of a cut, a call a step."""
        self._observers_wait = False
        for record in records:
            if not record.ended and not record.told and not self._is_kept(record):
                self._tell(record)
            yield
        while self._observed is not None and not self._observed.has_read_all:
            self._observe_next(self._observed)
            yield

    def _tell(self, record: CallRecord) -> None:
        """Ask one running call to stop."""
        record.told = True
        set_flag(record)
        stopper = record.stopper
        if isinstance(stopper, Stopper):
            self.drain(stopper)
        elif isinstance(stopper, OwnLoop):
            stopper.tell()
        for request in list(record.loop_requests or ()):
            request.cut()
        if record.cancel_hooks:
            if record.hosted:
                run_hooks(record)
            else:
                self._hook_lane().put(self, [record])

    def run_for_thread(
        self, record: CallRecord, function: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run what a blocking tool asked for, as a task of the host."""
        self._spawn((_run_visit, function, record.context.copy(), record.call.name))

    def drained(self, stopper: Stopper) -> None:
        if self._draining is not None:
            self._draining.ended(stopper)

    def drain(self, stopper: Stopper) -> None:
        """Tell an async call to stop, and look after it until it has."""
        if self._draining is None:
            self._draining = Draining(self.hub.backend, self.state.cleanup_grace)
        self._draining.add(stopper)

    def _hook_lane(self) -> Lane:
        lane = self.hub.shared.get("hooks")
        if lane is None:
            lane = self.hub.shared["hooks"] = Lane(HOOK_THREADS, HOOK_CARRIER)
        return lane

    def mark_of(self, record: CallRecord) -> str:
        """Return what tells this call's cancellation from every other."""
        return f"tool call cut [{self.id}#{record.index}]"

    def _release_shields(self) -> None:
        """The loop is being ended: nothing of ours may keep that from a tool."""
        for record in self.records:
            if isinstance(record.stopper, Stopper):
                record.stopper.release()

    # -- publishing ----------------------------------------------------------

    def _publish(
        self, kind: Kind, subject: Any = None, item: Any = None, *, cutting: bool = False
    ) -> None:
        self.log.add(kind, subject, item)
        if cutting:
            self._observers_wait = True
        self._tell_readers()

    def _tell_readers(self) -> None:
        if self._observed is not None and not self._observers_wait:
            self._observe_all(self._observed)
        if self._reader_waits:
            waits, self._reader_waits = self._reader_waits, []
            for waiter in waits:
                waiter.set()

    def _observe_all(self, reader: Reader) -> None:
        while not reader.has_read_all:
            self._observe_next(reader)

    def _observe_next(self, reader: Reader) -> None:
        entry = reader.next()
        if entry is not None:
            event = to_event(self.id, self.ledger, entry)
            for observer in self._observers:
                self._call_out(observer, event, "observer")

    def _call_out(self, function: Callable[[Any], object], argument: Any, what: str) -> None:
        """Call a user's function; its errors are logged and go no further."""
        context = self._context or contextvars.Context()
        try:
            # A copy: an observer may cause the next event while it runs.
            context.copy().run(function, argument)
        except Exception:
            logger.exception("%s %r failed", what, function)

    def report_progress(
        self, record: CallRecord, report: tuple[float, float | None, str | None]
    ) -> None:
        """From the tool, on any thread."""
        record.progress = report
        if record.progress_posted:
            return  # the loop has not looked yet, and will see this one
        record.progress_posted = True
        if threading.get_ident() == self.hub.thread_id:
            self.land_progress(record)
        else:
            self.hub.post(self.land_progress, record)

    def land_progress(self, record: CallRecord) -> None:
        record.progress_posted = False
        if not self.ledger.is_settled(record.index) and self.log.add_progress(record):
            self._tell_readers()

    def land_items(self, record: CallRecord, *, settled: bool = False) -> None:
        """Publish the items of a generator that have not been published yet."""
        if not settled and self.ledger.is_settled(record.index):
            return
        items = record.items
        assert items is not None
        for item in items[record.items_told :]:
            record.items_told += 1
            self._publish(Kind.OUTPUT, record, item)

    # -- reading -------------------------------------------------------------

    def open_reader(self) -> Reader:
        """Start reading the events from the batch's start."""
        self.tells_starts = True
        # Either a worker sees the flag and posts its start, or its start is
        # seen here: it stores the time, then looks at the flag.
        for index in list(self.ledger.unsettled_indices()):
            record = self.records[index]
            if record.started_at and not record.start_ticket:
                self._started(record)
        return self.log.open_reader()

    async def next_event(self, reader: Reader) -> Event | None:
        """Return the reader's next event; None after the last."""
        while True:
            entry = reader.next()
            if entry is not None:
                return to_event(self.id, self.ledger, entry)
            if self.closed:
                return None
            waiter = self.hub.backend.waiter()
            self._reader_waits.append(waiter)
            try:
                await waiter.wait()
            finally:
                if waiter in self._reader_waits:
                    self._reader_waits.remove(waiter)

    def results(self) -> list[ToolResult]:
        if not self.sealed:
            msg = f"batch {self.id} is not sealed: more calls may come"
            raise BatchNotSettledError(msg)
        if self.ledger.unsettled:
            msg = f"{self.ledger.unsettled} calls of batch {self.id} have no result yet"
            raise BatchNotSettledError(msg)
        result_of = self.ledger.result
        return [cast("ToolResult", result_of(record)) for record in self.records]

    def snapshot(self) -> list[ToolResult | None]:
        return [self.ledger.result(record) for record in self.records]

    async def wait_settled(self, limit: int | None = None) -> None:
        """Park until the first `limit` calls (all, by default) are settled."""
        if limit is None:
            limit = len(self.records)
        remaining = sum(1 for i in self.ledger.unsettled_indices() if i < limit)
        await self._park(limit, remaining)

    async def wait_for_call(self, record: CallRecord) -> None:
        if self.ledger.is_settled(record.index):
            await anyio.lowlevel.checkpoint()
            return
        waiter = self.hub.backend.waiter()
        waiters = self._call_waits.setdefault(record, [])
        waiters.append(waiter)
        try:
            await waiter.wait()
        finally:
            waiters.remove(waiter)

    async def _park(self, limit: int, remaining: int) -> None:
        if not remaining:
            await anyio.lowlevel.checkpoint()
            return
        wait = _Wait(limit, remaining, self.hub.backend.waiter())
        self._waits.append(wait)
        try:
            await wait.waiter.wait()
        finally:
            self._waits.remove(wait)

    def take_keyboard_interrupt(self) -> BaseException | None:
        """Return the KeyboardInterrupt that a tool raised; once."""
        error, self._keyboard = self._keyboard, None
        return error


def _worded(error: Exception) -> str:
    """Word a refusal: our own errors speak for themselves, others by their type."""
    return str(error) if isinstance(error, ToolBatchError) else text_of_error(error)


async def _run_visit(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await function()


_numbers = itertools.count(1)
_prefix = f"batch-{os.urandom(3).hex()}-"
