"""
Runs a call in an executor that is somebody else's.

What is submitted stands for the call (`_Submission`), and finds out where it
has come to. An executor with threads calls it: then the call is as in a thread of
ours, context, fence and all. One with processes or machines pickles it: then the
bare function goes there, and its future tells the end.

Submitting may block (it starts processes, talks to a cluster), so each
executor has one thread here that does it, in call order. The way of a call:
`Submissions.put` → `submit_here`, in that thread → `run_here`, or `reduce_here` and
later `done`, in threads of the executor → what a worker thread posts, too. How
it is stopped is told in `cancellers`.

When has it started? With its start ticket, as everywhere: taken before the first
line where it is called, and when all of it has been pickled where it is sent. Until
then a cut takes the ticket, and what the executor still does with the call
comes to nothing: it runs no line, and is not sent.

Story of a cut while the call is being submitted: the submitting thread stores the
future, then takes its end ticket. The loop looks for the future, then tries to
withdraw, then looks again. If it can withdraw, the thread finds its ticket gone, and
has the loop stop the call; if it can't, the second look finds what there is to stop.

Story of an executor that drops a call (raises, or ends its future) and may run it all
the same, as one of threads does that has queued it and can't start a thread: running
it here and dropping it need the one permission `_may_run`. So it either has begun, and
tells its own end, or never does. Being sent is another thing, therefore `_lock`.

An executor may keep what it was given for long, in a queue that nobody empties. So
that has but a reference to the call, which is taken away when the executor has no
business with it any more: a batch is not kept alive by somebody's queue.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
from concurrent.futures import CancelledError, Executor, Future
from typing import TYPE_CHECKING, Any
from weakref import ref

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._model.carriers import ExecutorCarrier
from . import landing
from .cancellers import CANCELLER_THREADS, CANCELLERS, CallStop
from .foreign_values import is_a
from .process_worker import FunctionName, can_travel, sendable, unpickled
from .thread_carrier import THREAD_CARRIER, begin, end, enter, hold_back, report
from .threads import Abandonable, Lane, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .engine import BatchEngine

__all__ = ("ExecutorCall", "Submissions")


class Submissions:
    """The lines of one runner on one loop for the executors of its tools."""

    def __init__(self) -> None:
        self._lines: dict[int, _Lines] = {}
        """By the executor's identity: it may be unhashable."""

    def put(self, record: CallRecord) -> None:
        """Have a call submitted to its tool's executor."""
        carrier = record.tool.runs_in
        if not isinstance(carrier, ExecutorCarrier):
            assert isinstance(carrier, Executor), "as the tool has checked"
            carrier = ExecutorCarrier(carrier)
        lines = self._lines_of(carrier.executor)
        record.stopper = call = ExecutorCall(record, carrier, lines)
        lines.submit.put(record.batch, [call])

    def _lines_of(self, executor: Executor) -> _Lines:
        key = id(executor)
        known = self._lines.get(key)
        if known is not None and known.executor() is executor:
            return known
        lines = self._lines[key] = _Lines()
        lines.executor = ref(executor, lambda _: self._lines.pop(key, None))
        return lines

    def forget(self, batch: BatchEngine) -> None:
        """Drop what waits of a batch that was cut."""
        for lines in list(self._lines.values()):
            lines.submit.forget(batch)


class _Lines:
    """What is to be done with one executor: it may block, and hold up nobody else's."""

    executor: ref[Executor]

    def __init__(self) -> None:
        self.submit = Lane(1, _SUBMITTER)  # one thread, or they would come in any order
        self.cancel = Lane(CANCELLER_THREADS, CANCELLERS)


class ExecutorCall(Abandonable):
    """One call in an executor."""

    __slots__ = (
        "_carrier",
        "_future",
        "_is_sent",
        "_lines",
        "_lock",
        "_may_run",
        "_pid",
        "_stop",
        "_submission",
        "record",
        "reported",
    )

    def __init__(self, record: CallRecord, carrier: ExecutorCarrier, lines: _Lines) -> None:
        super().__init__()
        self.record = record
        self._carrier = carrier
        self._lines = lines
        self._pid = os.getpid()
        self._submission = _Submission(self)
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()
        """Held for a few bytecodes, while it is decided whether it is sent or dropped."""
        self._is_sent = False
        """It has been pickled: it runs elsewhere."""
        self._may_run = [None]
        self._stop = CallStop(record, carrier.canceller, lines.cancel)
        self.reported = False
        """The thread that submits it is back, though nobody waits for that."""

    @property
    def call(self) -> ToolCall:
        return self.record.call

    @property
    def batch(self) -> BatchEngine:
        batch: BatchEngine = self.record.batch
        return batch

    # -- in the thread that submits --------------------------------------------

    def submit_here(self) -> bool:
        """Submit it; False if the thread was given away meanwhile."""
        record = self.record
        batch = self.batch
        if batch.refuses(record) or not self.begin():
            return True
        if batch.state.refuses_submissions:
            record.landing = landing.refused
            self._report()
        else:
            try:
                future = self._carrier.executor.submit(self._submission)
                self._future = future
                future.add_done_callback(self._submission.done)
            except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
                # Unless it is told already: it may be on its way to its start once more.
                if self._submission.call is not None and self._drop(exc):
                    self._ended(None, exc)
        if self.end():
            return True
        # It was cut meanwhile, and this thread is nobody's.
        if not batch.hub.post(ExecutorCall._ask, self) and self._future is not None:
            self._stop.without_loop(self._future)
        batch.state.helper_ended(self)
        return False

    # -- in a thread of the executor -------------------------------------------

    def run_here(self) -> Any:
        """Run the call, if it may still begin; what it gives is told to its batch."""
        if os.getpid() != self._pid:
            # Its start ticket can't be taken from here: a cut would say that it never began.
            msg = "an executor that forks must pickle what it is given before it calls it"
            raise RuntimeError(msg)
        if self._is_sent:
            return self._portable()()  # the future tells
        if take(self._may_run):  # once is enough
            THREAD_CARRIER.run(self.record)
            self._report()
        return None

    def reduce_here(self) -> tuple[Any, ...]:
        """Return what `pickle` needs to make a function of it; see `object.__reduce__`."""
        # A pickler takes the items of the list, of which there are none, after all else.
        return functools.partial, (self._portable(),), None, self._sent()

    def _sent(self) -> Iterator[Any]:
        """All of it has been pickled: it is about to leave, unless it was cut."""
        record = self.record
        batch = self.batch
        has_begun = False
        with self._lock:
            if not self._is_sent and not batch.refuses(record):
                self._is_sent = has_begun = begin(batch, record)
        if has_begun:
            enter(batch, record)
        if not self._is_sent:
            self._report()
            raise _cut_before_sent()
        yield from ()

    def _portable(self) -> Any:
        """Return what needs no batch to be called."""
        tool = self.record.tool
        function: Any = tool.func
        name = FunctionName.of(tool)
        if name is not None:
            function = functools.partial(_call_by_name, name)
        if tool.kind == "sync_generator":
            function = functools.partial(_collect, function)
        return functools.partial(_guarded, function, **self.record.arguments)

    def done(self, future: Future[Any]) -> None:
        """Say how the executor has ended it; in any thread."""
        self._future = None  # its value is the record's from now on
        if future.cancelled():
            error: BaseException | None = CancelledError("the executor has cancelled the call")
            self._stop.was_cancelled = True
        else:
            error = future.exception()
        if self._drop(error):
            value = future.result() if error is None else None
            if type(value) is _Packed:
                try:
                    value = unpickled(value.body)
                except TypeError as exc:
                    value, error = None, exc
            self._ended(value, error)

    def _drop(self, error: BaseException | None) -> bool:
        """
        The executor is through with it; True if it has begun, and this is its end.

        Else it is a failure, unless it was cut before; or it has begun here, and will
        tell its end itself.
        """
        record = self.record
        batch = self.batch
        has_begun = False
        with self._lock:
            if self._is_sent:
                return True
            if not take(self._may_run) or batch.refuses(record):
                return False
            if error is None:
                # It has got a value without ever calling the function.
                has_begun = begin(batch, record)
            else:
                hold_back(batch, record, error)
        if has_begun:
            enter(batch, record)
        else:
            self._report()
        return has_begun

    def _ended(self, value: Any, error: BaseException | None) -> None:
        record = self.record
        # What has never called the function may give anything.
        if record.tool.kind == "sync_generator" and is_a(value, list):
            record.items = value
            value = value[-1] if value else None
        record.value, record.error = value, error
        end(record.batch, record)
        self._report()

    def _report(self) -> None:
        """Say the last of it, as far as the executor is concerned; once."""
        self._submission.call = None
        record = self.record
        if record.landing is landing.late:
            record.landing = self._stop.land_late
        report(record)

    # -- on the loop ---------------------------------------------------------------

    def stop(self) -> None:
        """The call was cut: have it stopped where that can be done."""
        ending = self.batch.ledger.endings[self.record.index]
        if ending is not None and not ending.started:
            self._submission.call = None
        if self._future is None and self.withdraw_from(self._lines.submit):
            self.batch.state.account.enter_helper(self)
        else:
            self._ask()

    def _ask(self) -> None:
        """Have the canceller asked, if there is anything to stop."""
        if self._future is not None:
            self._stop.ask(self._future)


class _Submission:
    """What an executor is given: as much of a call as it may keep."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: ExecutorCall) -> None:
        self.call: ExecutorCall | None = call
        """None when the executor has no business with it any more."""

    def __call__(self) -> Any:
        call = self.call
        return None if call is None else call.run_here()

    def __reduce__(self) -> tuple[Any, ...]:
        call = self.call
        if call is None:
            raise _cut_before_sent()
        return call.reduce_here()

    def done(self, future: Future[Any]) -> None:
        call = self.call
        if call is not None:
            call.done(future)

    @property
    def __name__(self) -> str:
        """What an executor may show of it: the tool's name."""
        return "a call that was cut" if self.call is None else self.call.record.tool.name


def _cut_before_sent() -> CancelledError:
    return CancelledError("the call was cut before it was sent")


class _Packed:
    """A value on its way here. To fail to read it must be this call's fault, not the pool's."""

    def __init__(self, body: bytes) -> None:
        self.body = body


def _guarded(function: Any, /, **arguments: Any) -> Any:
    """Call a function there, and give nothing back that its executor may choke on."""
    try:
        value = function(**arguments)
    except BaseException as exc:
        if can_travel(exc):
            raise
        raise sendable(exc) from None
    try:
        return _Packed(pickle.dumps(value))
    except Exception:  # noqa: BLE001 - the executor may know a way, and else says why not
        return value


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
        call.batch.hub.post(landing.thread_failed, (call.record, error))


_SUBMITTER = _Submitter()
