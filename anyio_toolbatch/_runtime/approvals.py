"""
Asks somebody whether a call may run.

An async approver runs as a task of the batch's host, many at once; a sync one
in a worker thread of its own lane, one question at a time, so that it may ask in
a terminal. Questions are asked in call order: trio runs new tasks in any order,
so each task has the next one started when it has begun itself.

The answer goes to the batch, which looks whether it still wants one: a call
that was cut has its result, and a late yes is nothing. A question that is
withdrawn is cancelled if it is a task. A thread cannot be: its place in the
lane is given to the next question.

A thread that is left in a question counts as detached until it comes back, and
at `max_detached` nobody is asked any more.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._core.ledger import Ending
from .._core.record import CallRecord
from .._model.results import Reason, Status
from .backend import Timer
from .cancellation import Stopper, outcome_of_close, run_stoppable
from .foreign_values import as_coroutine, close_awaitable, is_a, is_awaitable
from .hub import Hub
from .landing import refused
from .threads import Abandonable, Lane

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("Approver",)

_asking: contextvars.ContextVar[tuple[Approver, ...]] = contextvars.ContextVar(
    "anyio_toolbatch_asking"
)
"""The plain approvers that what runs is called by."""


class Approver:
    """The approval hook of one runner on one loop."""

    def __init__(self, hub: Hub, timeout: float | None, *, is_async: bool) -> None:
        self.hub = hub
        self.timeout = timeout
        self.lane = Lane(1, _ASKER)
        # Not the hook itself: it may belong to who owns the runner, and this
        # lives as long as the loop.
        self.is_async = is_async
        self._to_start: deque[Question] = deque()
        self._is_starting = False

    def ask(self, record: CallRecord) -> None:
        """Ask for one call; its batch is told the answer."""
        if self in record.context.get(_asking, ()):
            self.hub.post(_refuse_inner, record)
            return
        question = record.question = Question(self, record)
        record.asked_at = self.hub.clock()
        if self.is_async:
            self._to_start.append(question)
            if not self._is_starting:
                self._start_next()
        else:
            self.lane.put(record.batch, [question])

    def _start_next(self) -> None:
        while self._to_start:
            question = self._to_start.popleft()
            if question.may_be_asked():
                self._is_starting = True
                question.run_on_loop()
                return
        self._is_starting = False

    def task_begun(self) -> None:
        """The task started last has come to its first step, or will never."""
        if self.is_async:
            # Posted: an eager task would run before the one that starts it.
            self.hub.post(Approver._start_next, self)


def _refuse_inner(record: CallRecord) -> None:
    # It would wait for itself, since there is one question at a time.
    msg = "a plain approve is asked one question at a time, and this call is made inside of it"
    _answered(record, None, RuntimeError(msg))


def _answered(record: CallRecord, answer: Any, error: BaseException | None) -> None:
    """Somebody has answered whether a call may run."""
    batch: BatchEngine = record.batch
    if batch.is_settled(record):
        return  # too late
    record.answered_at = batch.hub.clock()
    if is_a(error, KeyboardInterrupt):
        batch.on_break(error, "the approval of a call")
    elif error is not None:
        batch.not_run(record, error)
    elif answer is True:
        # Also if a cut is on its way: whatever starts it looks for that.
        batch.state.approve(record)
        batch.look_at_clock()
    elif answer is False or is_a(answer, str):
        _refuse(record, Status.DENIED, Reason("not_approved", answer or None))
    else:
        said = f"approve must give True, False or a str, not {type(answer).__name__}"
        batch.not_run(record, TypeError(said))


def _refuse(record: CallRecord, status: Status, reason: Reason) -> None:
    batch: BatchEngine = record.batch
    ending = Ending(status, reason, started=False, at=batch.hub.clock())
    batch.end_unstarted(record, ending)


class Question(Abandonable):
    """One call that somebody is asked about."""

    __slots__ = (
        "_approver",
        "_awaitable",
        "_context",
        "_has_begun",
        "_record",
        "_stopper",
        "_timer",
        "answer",
        "error",
        "is_over",
        "landing",
    )

    def __init__(self, approver: Approver, record: CallRecord) -> None:
        super().__init__()
        self._approver = approver
        self._record = record
        # The submitter's: the call's own copy is for the tool.
        self._context: contextvars.Context = record.context.copy()
        if not approver.is_async:
            self._context.run(_asking.set, (*record.context.get(_asking, ()), approver))
        self.is_over = False
        self._stopper: Stopper | None = None
        self._timer: Timer | None = None
        self._awaitable: Any = None
        self._has_begun = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.landing: Callable[[Question], None] | None = None
        """What the loop has to do with it; a worker's to write."""

    def may_be_asked(self) -> bool:
        """Tell whether the call is neither cut nor about to be; any thread."""
        return not self.is_over and not self._record.batch.refuses(self._record)

    # -- as a task of the batch's host ---------------------------------------

    def run_on_loop(self) -> None:
        batch: BatchEngine = self._record.batch
        batch.run_visit(self, self._context, f"approval of {self._record.call.name}")

    async def run(self) -> None:
        """Be the task: of an async approver, or of the awaitable that a sync one gave."""
        self._has_begun = True
        self._approver.task_begun()
        if not self.may_be_asked():
            close_awaitable(self._awaitable)
            return
        self._begin()
        batch: BatchEngine = self._record.batch
        stopper = self._stopper = Stopper(batch.hub.backend, batch.mark_of(self._record))
        batch.teller.begun(stopper)
        try:
            outcome = await run_stoppable(stopper, self._body)
        except GeneratorExit as exc:
            outcome = outcome_of_close(exc, batch.hub.backend)
        batch.teller.ended(stopper)
        self.answer, self.error = outcome.value, outcome.error
        if not outcome.stopped:
            self.land()

    def _body(self) -> Any:
        awaitable, self._awaitable = self._awaitable, None
        if awaitable is None:
            awaitable = self._record.batch.approve(self._record.call)
        return as_coroutine(awaitable)

    def gone(self) -> None:
        """The task is through; or it was cancelled before its first step, by a stranger."""
        if not self._has_begun:
            self._approver.task_begun()
            close_awaitable(self._awaitable)
            self.error = RuntimeError("the approver's task was cancelled before its start")
            self.land()

    # -- on the loop ---------------------------------------------------------

    def begun(self) -> None:
        """A worker is asking now."""
        if not self.is_over:
            self._begin()

    def _begin(self) -> None:
        timeout = self._approver.timeout
        if timeout is not None and self._timer is None:
            self._timer = self._approver.hub.backend.call_later(timeout, self._on_timeout)

    def _on_timeout(self) -> None:
        if not self.is_over:
            _refuse(self._record, Status.TIMED_OUT, Reason("approval_timeout"))
            self.withdraw()

    def land(self) -> None:
        """There is an answer, or an error."""
        if self.is_over:
            return
        self._close()
        _answered(self._record, self.answer, self.error)

    def land_refused(self) -> None:
        """Too many threads are left in questions and calls that nobody waits for."""
        if not self.is_over:
            self._close()
            refused(self._record)

    def land_awaitable(self) -> None:
        """The sync approver gave an awaitable: the rest of it runs here."""
        if self.is_over:
            close_awaitable(self._awaitable)
        else:
            self.run_on_loop()

    def withdraw(self) -> None:
        """Nobody wants the answer any more; idempotent."""
        if self.is_over:
            return
        self._close()
        if self._stopper is not None:
            self._record.batch.teller.drain(self._stopper)
        elif self.withdraw_from(self._approver.lane):
            self._record.batch.state.account.enter_helper(self._record)

    def _close(self) -> None:
        self.is_over = True
        self._record.question = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- in a worker thread --------------------------------------------------

    def ask_here(self) -> bool:
        """Ask; False if the thread was given away meanwhile."""
        # A look first: who withdraws one question lets the next be asked, and
        # may be about to withdraw that one, too.
        if not self.may_be_asked() or not self.begin():
            return True
        if self._record.batch.state.is_full:
            return self._come_back(Question.land_refused)
        hub = self._approver.hub
        if self._approver.timeout is not None:
            hub.post(Question.begun, self)
        landing = Question.land
        try:
            answer = self._context.run(self._record.batch.approve, self._record.call)
        except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
            self.error = exc
        else:
            if is_awaitable(answer):
                self._awaitable = answer
                landing = Question.land_awaitable
            else:
                self.answer = answer
        return self._come_back(landing)

    def _come_back(self, landing: Callable[[Question], None]) -> bool:
        """Be through with it; False if the thread was given away meanwhile."""
        if not self.end():
            close_awaitable(self._awaitable)
            self._record.batch.state.helper_ended(self._record)
            return False
        self.landing = landing
        return True


class _Asker:
    """What the lane of a sync approver does."""

    def run(self, question: Question) -> bool:
        return question.ask_here()

    def report(self, question: Question) -> None:
        if question.landing is not None:
            question._approver.hub.post(question.landing, question)

    def thread_failed(self, question: Question, error: BaseException) -> None:
        question.error = error
        question._approver.hub.post(Question.land, question)


_ASKER = _Asker()
