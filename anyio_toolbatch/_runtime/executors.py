"""
Runs a call in an executor that is somebody else's.

What is submitted is the call itself (`ExecutorCall`), and it finds out where it
has come to. An executor with threads calls it: then it is as in a thread of
ours, context, fence and all. One with processes or machines pickles it: then the
bare function goes there, and its future tells the end.

Submitting may block (it starts processes, talks to a cluster), so each
executor has one thread here that does it, in call order. The way of a call:
`Submissions.put` → `submit_here`, in that thread → `__call__`, or `__reduce__` and
later `_done`, in threads of the executor → what a worker thread posts, too.

When has it started? With its start ticket, as everywhere: taken before the first
line where it is called, and when all of it has been pickled where it is sent. Until
then a cut takes the ticket, and what the executor still does with the call
comes to nothing: it runs no line, and is not sent.

Story of a cut while the call is being submitted: the submitting thread stores the
future, then takes its end ticket. The loop looks for the future, then tries to
withdraw, then looks again. If it can withdraw, the thread finds its ticket gone, and
has the loop stop the call; if it can't, the second look finds what there is to stop.

Story of a canceller and the end that it brings about: the loop notes that it
asks, before a thread does; the answer and the late end are both handled on
the loop. If the end, an error, comes first, it is held until the answer is
there: an error that our own stop has caused is nobody's news. Only the news is held:
the work has ended.

Story of an executor that drops a call (raises, or ends its future) and may run it all
the same, as one of threads does that has queued it and can't start a thread: whoever
drops it takes the start ticket, too. So it either has begun, and tells its own end, or
never does. Being sent is more than a ticket, therefore `_lock`.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from concurrent.futures import CancelledError, Executor, Future
from typing import TYPE_CHECKING, Any
from weakref import ref

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._model.carriers import ExecutorCarrier
from .process_worker import FunctionName
from .thread_carrier import THREAD_CARRIER, begin, end, hold_back, report
from .threads import Abandonable, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .engine import BatchEngine
    from .hub import Hub

__all__ = ("ExecutorCall", "Submissions")

CANCELLER_THREADS = 32
"""Threads that cancellers may occupy on one loop; arbitrary, ample."""

logger = logging.getLogger("anyio_toolbatch.runtime")


class Submissions:
    """The lines of one runner on one loop for the executors of its tools."""

    def __init__(self) -> None:
        self._lanes: dict[int, tuple[ref[Executor], Lane]] = {}
        """By the executor's identity: it may be unhashable."""

    def put(self, record: CallRecord) -> None:
        """Have a call submitted to its tool's executor."""
        carrier = record.tool.runs_in
        if not isinstance(carrier, ExecutorCarrier):
            assert isinstance(carrier, Executor), "as the tool has checked"
            carrier = ExecutorCarrier(carrier)
        lane = self._lane_of(carrier.executor)
        record.stopper = call = ExecutorCall(record, carrier, lane)
        lane.put(record.batch, [call])

    def _lane_of(self, executor: Executor) -> Lane:
        key = id(executor)
        known = self._lanes.get(key)
        if known is not None and known[0]() is executor:
            return known[1]
        lane = Lane(1, _SUBMITTER)  # one thread, or they would be submitted in any order
        self._lanes[key] = ref(executor, lambda _: self._lanes.pop(key, None)), lane
        return lane

    def forget(self, batch: BatchEngine) -> None:
        """Drop what waits of a batch that was cut."""
        for _, lane in list(self._lanes.values()):
            lane.forget(batch)


class ExecutorCall(Abandonable):
    """One call in an executor: the callable that is submitted, and its future."""

    __slots__ = (
        "_answer",
        "_carrier",
        "_future",
        "_has_late_error",
        "_has_told",
        "_is_asked",
        "_is_sent",
        "_lane",
        "_lock",
        "_may_run",
        "_pid",
        "_record",
        "_was_asked",
        "reported",
    )

    def __init__(self, record: CallRecord, carrier: ExecutorCarrier, lane: Lane) -> None:
        super().__init__()
        self._record = record
        self._carrier = carrier
        self._lane = lane
        self._pid = os.getpid()
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()
        """Held for a few bytecodes, while it is decided whether it is sent or dropped."""
        self._is_sent = False
        """It has been pickled: it runs elsewhere."""
        self._may_run = [None]
        self._has_told = False
        """What becomes of it has been said otherwise than by its future."""
        # -- of a cut, written by the loop
        self._was_asked = False
        self._is_asked = False
        """A canceller is asked, and has not answered."""
        self._answer: str | None = None
        self._has_late_error = False
        self.reported = False
        """The thread that submits it is back, though nobody waits for that."""

    @property
    def __name__(self) -> str:
        """What an executor may show of it: the tool's name."""
        return self._record.tool.name

    @property
    def call(self) -> ToolCall:
        return self._record.call

    @property
    def record(self) -> CallRecord:
        return self._record

    @property
    def batch(self) -> BatchEngine:
        batch: BatchEngine = self._record.batch
        return batch

    # -- in the thread that submits --------------------------------------------

    def submit_here(self) -> bool:
        """Submit it; False if the thread was given away meanwhile."""
        record = self._record
        batch: BatchEngine = record.batch
        if batch.refuses(record) or not self.begin():
            return True
        if batch.state.refuses_submissions:
            record.landing = batch.land_refused
            report(record)
            return self.end()
        try:
            self._future = future = self._carrier.executor.submit(self)
            future.add_done_callback(self._done)
        except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
            self._not_submitted(exc)
        if self.end():
            return True
        # It was cut meanwhile, and this thread is nobody's.
        if not batch.hub.post(ExecutorCall._ask, self):
            self.cancel_here()
            self.answered()
        batch.state.helper_ended(self)
        return False

    def _not_submitted(self, error: BaseException) -> None:
        if not self._has_told and self._drop(error):
            self._ended(None, error)

    # -- in a thread of the executor -------------------------------------------

    def __call__(self) -> Any:
        """Run the call, if it may still begin; what it gives is told to its batch."""
        if os.getpid() != self._pid:
            # Its start ticket can't be taken from here: a cut would say that it never began.
            msg = "an executor that forks must pickle what it is given before it calls it"
            raise RuntimeError(msg)
        if self._is_sent:
            return self._portable()()  # the future tells
        if not _take(self._may_run):
            return None  # once is enough
        self._has_told = True
        THREAD_CARRIER.run(self._record)
        self._report()
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickler takes the items of the list, of which there are none, after all else.
        return functools.partial, (self._portable(),), None, self._sent()

    def _sent(self) -> Iterator[Any]:
        """All of it has been pickled: it is about to leave, unless it was cut."""
        record = self._record
        batch: BatchEngine = record.batch
        with self._lock:
            if not self._is_sent and not batch.refuses(record):
                self._is_sent = begin(batch, record)
        if not self._is_sent:
            self._has_told = True
            self._report()
            msg = "the call was cut before it was sent"
            raise CancelledError(msg)
        yield from ()

    def _portable(self) -> Any:
        """Return what needs no batch to be called."""
        tool = self._record.tool
        function: Any = tool.func
        name = FunctionName.of(tool)
        if name is not None:
            function = functools.partial(_call_by_name, name)
        if tool.kind == "sync_generator":
            function = functools.partial(_collect, function)
        return functools.partial(function, **self._record.arguments)

    def _done(self, future: Future[Any]) -> None:
        """Say how the executor has ended it; the future's callback, in any thread."""
        self._future = None  # its value is the record's from now on
        if self._has_told:
            return
        error = _error_of(future)
        if self._drop(error):
            self._ended(None if error else future.result(), error)

    def _drop(self, error: BaseException | None) -> bool:
        """
        The executor is through with it; True if it has begun, and this is its end.

        Else it is a failure, unless it was cut before; or it has begun here, and will
        tell its end itself.
        """
        record = self._record
        batch: BatchEngine = record.batch
        with self._lock:
            if self._is_sent:
                return True
            if batch.refuses(record):
                return False
            if error is None:
                # It has got a value without ever calling the function.
                has_begun = begin(batch, record)
            else:
                has_begun = False
                hold_back(batch, record, error)
        if record.held_back:
            self._report()
        return has_begun

    def _ended(self, value: Any, error: BaseException | None) -> None:
        record = self._record
        # What has never called the function may give anything.
        if record.tool.kind == "sync_generator" and isinstance(value, list):
            record.items = value
            value = value[-1] if value else None
        record.value, record.error = value, error
        end(record.batch, record)
        self._report()

    def _report(self) -> None:
        record = self._record
        if record.landing == record.batch.land_late:
            record.landing = self._land_late
        report(record)

    # -- stopping it -------------------------------------------------------------

    def stop(self) -> None:
        """The call was cut: have it stopped where that can be done. On the loop."""
        if self._future is None and self.withdraw_from(self._lane):
            self.batch.state.account.enter_helper(self)
        else:
            self._ask()

    def _ask(self) -> None:
        """Have the canceller asked, if there is anything to stop; once. On the loop."""
        if self._future is not None and not self._was_asked:
            self._was_asked = self._is_asked = True
            self._canceller_lane().put(self.batch, [self])

    def cancel_here(self) -> None:
        """Stop it, in a thread that may block."""
        future = self._future
        if future is None:
            return
        record = self._record
        try:
            if future.done():
                return
            canceller = self._carrier.canceller
            ending = self.batch.ledger.endings[record.index]
            if canceller is None or ending is None or not ending.started:
                self._answer = "requested" if future.cancel() else "abandoned"
            else:
                self._answer = _checked(canceller(future))
        except BaseException:
            logger.exception("error in the canceller of tool %r", record.call.name)

    def answered(self) -> None:
        """Tell the loop that whoever was to stop it has done what they could."""
        record = self._record
        hub: Hub = record.batch.hub
        if not hub.post(ExecutorCall._land_answer, self) and self._answer == "stopped":
            record.reported = True
            record.batch.state.account.strike(record)

    def _land_answer(self) -> None:
        record = self._record
        self._is_asked = False
        if self._has_late_error:
            self._land_late(record)
        elif self._answer == "stopped" and not record.reported:
            # Value and error are left alone: a thread may be bringing them now.
            record.reported = True
            self.batch.state.ended_late(record)

    def _land_late(self, record: CallRecord) -> None:
        batch: BatchEngine = record.batch
        is_error = record.error is not None
        if is_error and self._is_asked:
            self._has_late_error = True
            batch.state.ended_late(record)
        elif is_error and (
            self._answer == "stopped" or isinstance(record.error, CancelledError)
        ):
            batch.land_late_quietly(record)
        else:
            batch.land_late(record)

    def _canceller_lane(self) -> Lane:
        shared = self._record.batch.hub.shared
        lane: Lane | None = shared.get("cancellers")
        if lane is None:
            lane = shared["cancellers"] = Lane(CANCELLER_THREADS, _CANCELLER)
        return lane


def _take(permission: list[None]) -> bool:
    try:
        permission.pop()
    except IndexError:
        return False
    return True


def _checked(answer: object) -> str:
    if answer in {"stopped", "requested", "abandoned"}:
        return str(answer)
    msg = f"a canceller must say 'stopped', 'requested' or 'abandoned', not {answer!r}"
    raise TypeError(msg)


def _error_of(future: Future[Any]) -> BaseException | None:
    if future.cancelled():
        return CancelledError("the executor has cancelled the call")
    return future.exception()


def _call_by_name(name: FunctionName, /, **arguments: Any) -> Any:
    return name.resolve()(**arguments)


def _collect(function: Any, /, **arguments: Any) -> list[Any]:
    return list(function(**arguments))


class _Submitter:
    """What the lane of an executor does."""

    def run(self, call: ExecutorCall) -> bool:
        return call.submit_here()

    def report(self, call: ExecutorCall) -> None: ...

    def thread_failed(self, call: ExecutorCall, error: BaseException) -> None:
        batch: BatchEngine = call._record.batch
        batch.hub.post(batch.land_thread_failed, (call._record, error))


_SUBMITTER = _Submitter()


class _Canceller:
    """What the lane of the cancellers does."""

    def run(self, call: ExecutorCall) -> bool:
        call.cancel_here()
        return True

    def report(self, call: ExecutorCall) -> None:
        call.answered()

    def thread_failed(self, call: ExecutorCall, error: BaseException) -> None:
        call._record.batch.hub.post(_cancel_on_loop, call)


def _cancel_on_loop(call: ExecutorCall) -> None:
    # Better here than not at all.
    call.cancel_here()
    call.answered()


_CANCELLER = _Canceller()
