"""The public face of a batch: thin, every decision is the engine's."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from sys import is_finalizing
from types import TracebackType

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._model.events import Event
from .._model.results import Reason, ToolResult
from .._model.statistics import WaitingCall
from .._model.tools import check_seconds
from .backend import unbroken
from .disbanding import forsake
from .engine import BatchEngine
from .explaining import explain, waiting_call

__all__ = ("BatchContext", "CallHandle", "ToolBatch", "check_call", "check_message")


class CallHandle:
    """One submitted call; given by `ToolBatch.submit`."""

    __slots__ = ("_batch", "_engine", "_record")

    def __init__(self, batch: ToolBatch, record: CallRecord) -> None:
        self._batch = batch  # kept: as long as somebody may ask, it is not taken apart
        self._engine = batch._engine
        self._record = record

    @property
    def index(self) -> int:
        """The call's place in its batch, from 0."""
        return self._record.index

    @property
    def call(self) -> ToolCall:
        """What was submitted."""
        return self._record.call

    @property
    def result(self) -> ToolResult | None:
        """The call's result; None until it is settled."""
        return self._engine.ledger.result(self._record)

    def cancel(self, message: str | None = None) -> bool:
        """
        Cut this one call; its siblings go on.

        It is settled in the next pass of the loop, after the batch's
        `interrupt_grace`; once this has returned it does not start any more.

        Args:
            message: Why; goes into the result's reason.

        Returns:
            True if there was something to cut; False if the call is settled
            or has been asked to stop before. A call that is kept
            (``on_interrupt="keep"``) can be stopped until its work has ended; its
            result stays, and there is no late one.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        check_message(message)
        return self._engine.cancel(self._record, message)

    def explain(self) -> str:
        """
        Say in a sentence where the call is, and what it waits for.

        Such as ``call 2 (edit) waits for the path '/srv/a', which call 0
        (edit) has``. For people: the wording may change.

        Threads:
            Any; a best effort from outside the loop's own thread.
        """
        return explain(self._record)

    async def wait(self) -> ToolResult:
        """
        Wait until the call is settled and return its result.

        Cancellation:
            Stops this wait only; the call goes on.
        """
        await self._engine.waits.for_call(self._record)
        result = self.result
        assert result is not None, "woken before the call was settled"
        return result

    def __repr__(self) -> str:
        result = self.result
        state = "unsettled" if result is None else result.status.value
        return f"<CallHandle {self.index} {self.call.name!r} {state}>"


class ToolBatch:
    """
    The calls of one turn, while they run and after.

    Given by ``async with runner.open_batch() as batch``. Leaving the block
    normally seals the batch and waits until every call is settled; leaving it
    by an exception or a cancellation lets go of what still runs, at once. The
    results stay readable on the object.
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def __del__(self) -> None:
        if not is_finalizing():  # else little still works, and it all goes anyway
            forsake(self._engine)

    @property
    def id(self) -> str:
        """The batch's own name, unique in the process."""
        return self._engine.id

    @property
    def calls(self) -> list[ToolCall]:
        """The calls submitted so far, in call order; a fresh list."""
        return [record.call for record in list(self._engine.records)]

    @property
    def results(self) -> list[ToolResult]:
        """
        One result per call, in call order; a fresh list.

        Raises:
            BatchNotSettledError: The batch is not sealed, or a call has no
                result yet; `snapshot()` gives what there is.
        """
        return self._engine.results()

    def snapshot(self) -> list[ToolResult | None]:
        """Return what there is: one item per call, None where it is not settled."""
        return self._engine.snapshot()

    @property
    def reason(self) -> Reason | None:
        """Why the whole batch was cut; None if it was not."""
        return self._engine.reason

    @property
    def interrupted(self) -> bool:
        """The whole batch was cut, for whatever `reason`."""
        return self._engine.reason is not None

    def waiting_call(self, index: int) -> WaitingCall | None:
        """
        Return what a call waits for; None if it has started or is settled.

        Raises:
            IndexError: The batch has no such call yet.

        Threads:
            Any; a best effort from outside the loop's own thread.
        """
        record = self._engine.records[index]
        if not record.is_waiting or self._engine.is_settled(record):
            return None
        return waiting_call(record)

    def submit(self, call: ToolCall) -> CallHandle:
        """
        Add a call and bring it to its start.

        On a batch that was cut it starts nothing: the call is settled at
        once, not started, with the batch's reason.

        Raises:
            TypeError: `call` is no `ToolCall`.
            BatchSealedError: The batch was sealed.
            RuntimeError: Called from another thread.

        Threads:
            The event loop's thread only.
        """
        check_call(call)
        self._check_thread("submit")
        return CallHandle(self, self._engine.submit([call])[0])

    def seal(self) -> None:
        """
        Say that no more calls will come; idempotent.

        Threads:
            The event loop's thread only.
        """
        self._check_thread("seal")
        self._engine.seal()

    def _check_thread(self, what: str) -> None:
        if threading.get_ident() != self._engine.hub.thread_id:
            msg = f"ToolBatch.{what} belongs to the event loop's thread"
            raise RuntimeError(msg)

    def interrupt(self, message: str | None = None, *, grace: float | None = None) -> bool:
        """
        End the batch now: every call gets its result, nothing new starts.

        Results that are in are kept. Waiting calls are settled as not
        started. Running ones are told to stop and, after the grace, let go
        with a placeholder. The awaiting code runs again at once.

        Args:
            message: Why; goes into the reason of the batch and its results.
            grace: Seconds that running calls have to give their own answer;
                the batch's `interrupt_grace` by default.

        Returns:
            True if the batch was open and not yet asked to stop. A later
            interrupt can only shorten the grace; the first reason stays.

        Threads:
            Any, and signal handlers. Sets a flag and posts, never blocks;
            settles in the next pass of the loop.
        """
        check_message(message)
        check_seconds("grace", grace)
        return self._engine.interrupt(message, grace)

    def supersede(self, message: str | None = None) -> bool:
        """
        Start nothing more: newer instructions have come.

        Running calls go on to their own end. Waiting ones, approvals
        included, are settled as not started (``superseded``), and so is what
        is submitted later.

        Args:
            message: Why; goes into the reason of the batch and its results.

        Returns:
            True if the batch was open and nothing had cut it before. A later
            interrupt still cuts what runs.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        check_message(message)
        return self._engine.supersede(message)

    def cancel(self, call_id: str, message: str | None = None) -> int:
        """
        Cut the calls with this id; see `CallHandle.cancel`.

        Returns:
            How many there were to cut; ids need not be unique.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        if not isinstance(call_id, str):
            msg = f"call_id must be a str, not {type(call_id).__name__}"
            raise TypeError(msg)
        check_message(message)
        engine = self._engine
        return sum(
            engine.cancel(record, message)
            for record in list(engine.records)
            if record.call.id == call_id
        )

    async def wait(self) -> list[ToolResult]:
        """
        Wait until the calls submitted so far are settled; return their results.

        Raises:
            KeyboardInterrupt: A tool raised it; once per batch.

        Cancellation:
            Stops this wait only; the calls go on.
        """
        engine = self._engine
        count = len(engine.records)
        await engine.waits.for_first(count)
        raise_keyboard_interrupt(engine)
        return [result for result in engine.snapshot()[:count] if result is not None]

    def events(self) -> AsyncIterator[Event]:
        """
        Iterate over all events from the batch's start, up to `BatchSettled`.

        Several readers each see all. A reader that is slow, or has stopped
        reading, holds nothing up; progress that it has not read yet is
        replaced by newer progress, nothing else is lost.

        Cancellation:
            Stops that reader only.

        Threads:
            The event loop's thread only.
        """
        self._check_thread("events")
        return _EventIterator(self)

    def __repr__(self) -> str:
        engine = self._engine
        count = len(engine.records)
        settled = count - engine.ledger.unsettled
        state = "sealed" if engine.sealed else "open"
        cut = f" cut={engine.reason.kind}" if engine.reason is not None else ""
        return f"<ToolBatch {engine.id} {state}{cut} settled={settled}/{count}>"


class _EventIterator:
    __slots__ = ("_batch", "_engine", "_reader")

    def __init__(self, batch: ToolBatch) -> None:
        self._batch = batch  # kept, as a handle keeps it
        self._engine = batch._engine
        self._reader = self._engine.open_reader()

    def __aiter__(self) -> _EventIterator:
        return self

    async def __anext__(self) -> Event:
        event = await self._engine.publisher.next_event(self._reader)
        if event is None:
            raise StopAsyncIteration
        return event


class BatchContext:
    """
    The block of `open_batch`; see `ToolBatch`.

    `on_open` is called with the batch's engine as soon as there is one, before its
    first call is taken in: for who lets another thread interrupt it by then.
    """

    __slots__ = ("_batch", "_calls", "_open", "on_open")

    def __init__(self, open_: Callable[[], ToolBatch], calls: list[ToolCall] | None) -> None:
        self.on_open: Callable[[BatchEngine], object] | None = None
        self._open = open_
        self._calls = calls
        self._batch: ToolBatch | None = None

    @unbroken
    async def __aenter__(self) -> ToolBatch:
        if self._batch is not None:
            msg = "this batch has been opened already; call open_batch() again"
            raise RuntimeError(msg)
        batch = self._batch = self._open()
        engine = batch._engine
        if self.on_open is not None:
            self.on_open(engine)
        if self._calls is not None:
            try:
                engine.submit(self._calls, seal=True)
            except BaseException as cut:  # a KeyboardInterrupt out of a `validate`
                engine.detach(_left_by(cut))
                raise
            self._calls = None
        return batch

    @unbroken
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._batch is not None, "left before it was entered"
        engine = self._batch._engine
        if exc is not None:
            # No await on this way out: it may be a generator that is closed.
            engine.detach(_left_by(exc))
            if isinstance(exc, Exception):
                raise_keyboard_interrupt(engine)
            return
        try:
            engine.seal()
            await engine.wait_settled()
        except BaseException as cut:
            engine.detach(_left_by(cut))
            raise
        raise_keyboard_interrupt(engine)


def _left_by(error: BaseException) -> Reason:
    """Word why the awaiting code went away."""
    # The host's own error is named, not told: the model reads this.
    message = None
    if isinstance(error, Exception):
        message = f"the code around it ended with {type(error).__name__}"
    return Reason("caller_cancelled", message)


def raise_keyboard_interrupt(engine: BatchEngine) -> None:
    """Raise what a tool raised, if it was a KeyboardInterrupt; once per batch."""
    error = engine.take_keyboard_interrupt()
    if error is not None:
        raise error


def check_call(call: object) -> None:
    if not isinstance(call, ToolCall):
        msg = f"a call must be a ToolCall, not {type(call).__name__}"
        raise TypeError(msg)


def check_message(message: object) -> None:
    if message is not None and not isinstance(message, str):
        msg = f"message must be a str or None, not {type(message).__name__}"
        raise TypeError(msg)
