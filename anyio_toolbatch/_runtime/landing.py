"""
What the loop does with a call that comes back from its carrier.

Workers post these functions (`record.landing` is the last one of a call); tasks on
the loop call them. What they find out goes to the batch: `BatchEngine.settle` and,
for what was let go of, the fence. A function of a module, not a method: a message
that is still on its way keeps the record, and nothing more.

On the loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .._core.ledger import COMPLETED, COMPLETED_WITH_ERROR, FAILED, Ending
from .._core.record import UNSET, CallRecord
from .._errors import CallDetached
from .._model.results import LateResult, Reason, Status, text_of_error
from .._model.tools import ToolOutput
from .foreign_values import close_awaitable, is_a
from .nesting import leave_inner_batches

if TYPE_CHECKING:
    from .cancellation import Outcome
    from .engine import BatchEngine

__all__ = (
    "awaitable",
    "ended",
    "ended_on_loop",
    "held_back",
    "items",
    "late",
    "late_quietly",
    "refused",
    "started",
    "stopped",
    "take_end",
    "task_gone",
    "thread_failed",
    "unstartable",
)

logger = logging.getLogger(__name__)


# -- it has started ----------------------------------------------------------


def started(record: CallRecord) -> None:
    """A worker has started a call."""
    batch: BatchEngine = record.batch
    if not batch.ledger.is_settled(record.index):
        batch.started(record)
    elif not batch.is_gone(record):
        batch.set_timeout(record)  # it was cut before this message, and is kept


def items(record: CallRecord) -> None:
    """A generator has given items."""
    batch: BatchEngine = record.batch
    record.items_posted = False  # before the look: what comes now is posted again
    if not batch.ledger.is_settled(record.index):
        batch.publisher.add_items(record)


# -- it has not started ------------------------------------------------------


def held_back(record: CallRecord) -> None:
    """A worker that had taken a call's tickets saw a cut at the last moment."""
    batch: BatchEngine = record.batch
    if batch.ledger.is_settled(record.index):
        return
    # In a grace, which it does not need; or the batch was superseded, and
    # it was taken for one that runs.
    if record.cut_reason is not None or batch.cutter.reason is not None:
        batch.end_unstarted(record, batch.cutter.not_started(record))
        return
    # For the cut that is on its way.
    record.held_back = record.ended = False
    batch.tickets.issue([record])
    if not batch.refuses(record):
        batch.start([record])


def refused(record: CallRecord) -> None:
    """A blocking call may not start: too many that were let go still run."""
    batch: BatchEngine = record.batch
    error = batch.state.account.refusal(batch.state.max_detached)
    batch.not_run(record, error, Reason("too_many_detached", str(error)))


def unstartable(record: CallRecord) -> None:
    """A worker has found that a call can't be started."""
    batch: BatchEngine = record.batch
    if batch.ledger.is_settled(record.index):
        return  # cut meanwhile; its record may have been emptied
    assert record.error is not None
    batch.not_run(record, record.error)


def thread_failed(failure: tuple[CallRecord, BaseException]) -> None:
    """No thread could be started for a call."""
    record, error = failure
    batch: BatchEngine = record.batch
    batch.not_run(record, error)


def task_gone(record: CallRecord) -> None:
    """A call's task is through; it may have been cancelled before its start."""
    batch: BatchEngine = record.batch
    if record.ended:
        return
    if batch.ledger.is_settled(record.index):
        if record.awaiting:
            close_awaitable(record.value)
            _task_ended_late(record)
        return
    if not record.is_waiting or record.refused or batch.must_not_start(record):
        return  # another task of it has begun, or a cut settles it
    if not record.restarted:
        # Somebody has cancelled the host, not the call: it is made anew.
        record.restarted = True
        batch.start_on_loop(record)
        return
    record.halted = record.ended = True
    if record.awaiting:
        close_awaitable(record.value)
    error = RuntimeError("the call's task was cancelled twice before its first step")
    batch.not_run(record, error)


# -- it goes on --------------------------------------------------------------


def awaitable(record: CallRecord) -> None:
    """A blocking call gave an awaitable: the rest of it runs here."""
    batch: BatchEngine = record.batch
    batch.state.leave_thread(record)
    ending = batch.ledger.endings[record.index]
    if ending is None:
        batch.start_on_loop(record)
    elif ending.kept:
        # Its end is late, whichever side of the hand-over the cut has met it on.
        record.move_to_loop()
        batch.tickets.ends.discard(record)
        batch.state.account.leave_thread(record)
        batch.run_on_loop(record)
    else:
        close_awaitable(record.value)
        _task_ended_late(record)


# -- it has ended ------------------------------------------------------------


def ended(record: CallRecord) -> None:
    """A worker has ended a call in time."""
    batch: BatchEngine = record.batch
    if batch.ledger.endings[record.index] is None:
        take_end(record)
        batch.after_settling(record)
    # else: a cut found it finished before this message was read


def ended_on_loop(record: CallRecord, outcome: Outcome) -> None:
    """A call's task has come to its end."""
    batch: BatchEngine = record.batch
    record.ended_at = batch.hub.clock()
    record.ended = True
    record.cancel_hooks = None  # what they would unblock is over
    if batch.publisher.leaving:
        batch.publisher.leave(record)
    batch.teller.ended(record.stopper)
    record.stopper = None
    error = outcome.error
    if outcome.stopped:
        error = CallDetached()
    try:
        batch.tickets.ends.remove(record)
    except KeyError:
        record.value, record.error = outcome.value, error
        late(record)
        return
    record.value, record.error = outcome.value, error
    take_end(record)
    batch.after_settling(record)


def take_end(record: CallRecord) -> None:
    """Settle a call by what its record says of its end."""
    batch: BatchEngine = record.batch
    if record.inner:
        leave_inner_batches(record)
    error = record.error
    if error is None:
        value = record.value
        ending = COMPLETED
        if is_a(value, ToolOutput):
            record.value = value.value
            ending = COMPLETED_WITH_ERROR if value.is_error else COMPLETED
        batch.settle(record, _with_partial(record, ending))
    elif is_a(error, CallDetached) and record.cut_reason is not None:
        # It stopped within the grace, as it was asked to.
        batch.settle(record, batch.cutter.ending(record, record.ended_at, detached=False))
    elif is_a(error, KeyboardInterrupt):
        _keyboard_interrupt(record, error)
    else:
        batch.settle(record, _with_partial(record, FAILED))
        if batch.fail_fast:
            batch.cutter.cut_batch(Status.INTERRUPTED, _sibling_failed(record))


def _with_partial(record: CallRecord, ending: Ending) -> Ending:
    """Keep what was published until now: a thread of the tool may outlive it."""
    if record.kept_partial is UNSET:
        return ending
    return Ending(
        ending.status,
        started=True,
        is_error=ending.is_error,
        error=record.error,
        partial=record.kept_partial,
        at=record.ended_at,
    )


def _sibling_failed(record: CallRecord) -> Reason:
    error = record.error
    assert error is not None
    return Reason(
        "sibling_failed",
        f"call {record.index} ({record.call.name}) failed with {text_of_error(error)}",
    )


def _keyboard_interrupt(record: CallRecord, error: KeyboardInterrupt) -> None:
    """A tool raised KeyboardInterrupt: it ends the batch, and comes out once."""
    batch: BatchEngine = record.batch
    reason = Reason("user_interrupt", f"KeyboardInterrupt in call {record.index}")
    batch.publisher.add_items(record)
    batch.settle(
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
    batch.keyboard = error
    batch.cutter.cut_batch(Status.INTERRUPTED, reason)


# -- it has ended too late: the fence ----------------------------------------


def late(record: CallRecord) -> None:
    """A call that was let go has ended after all."""
    batch: BatchEngine = record.batch
    ending = batch.ledger.endings[record.index]
    if ending is None or not ending.detached:
        logger.error(
            "call %d (%r) of %s ended twice", record.index, record.call.name, batch.id
        )
        return
    value, error = record.value, record.error
    record.value = record.error = None
    if is_a(error, (CallDetached, batch.hub.backend.cancelled_class)):
        stopped(record)  # our own cancellation, or the loop's
    else:
        _end_late(record)
        _tell_late(record, value, error)


def late_quietly(record: CallRecord) -> None:
    """A detached call has ended in a way that gives no result."""
    record.value = record.error = None
    _end_late(record)


def stopped(record: CallRecord) -> None:
    """A call that was let go has been stopped by us, which is no late result."""
    _end_late(record)
    batch: BatchEngine = record.batch
    ending, reason = batch.ledger.endings[record.index], record.cut_reason
    is_kept = ending is not None and ending.kept
    if is_kept and reason is not None and reason.kind == "call_timeout":
        # Who was told that it goes on is told why it does not.
        error = TimeoutError("the call has run out of its own time limit")
        _tell_late(record, None, error)


def _task_ended_late(record: CallRecord) -> None:
    record.ended = True
    late_quietly(record)


def _end_late(record: CallRecord) -> None:
    record.reported = True
    batch: BatchEngine = record.batch
    batch.ended_late(record)


def _tell_late(record: CallRecord, value: Any, error: BaseException | None) -> None:
    batch: BatchEngine = record.batch
    ending = batch.ledger.endings[record.index]
    assert ending is not None, "it was let go"
    ended_at = record.ended_at if record.ended else batch.hub.clock()
    let_go_at = ended_at if ending.at is None else ending.at
    late_by = max(ended_at - let_go_at, 0.0)
    batch.count_late()
    batch.publisher.add_late(
        LateResult(batch.id, record.call, record.index, value, error, late_by)
    )
