"""
For tools in worker threads: call back into the event loop.

The functions have the meanings of those in `anyio.from_thread`, which itself
knows nothing of this library's threads. Once the call has been cut they raise
`CallDetached` instead of reaching the loop: what is late does not land. A call
that is kept (``on_interrupt="keep"``) uses them until its own end.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

from ._core.record import CallRecord
from ._errors import CallDetached
from ._runtime.backend import on_loop, worker_context
from ._runtime.cancellation import Stopper, outcome_of_close, run_stoppable
from ._runtime.context import current_record, flag_of, requests_of
from ._runtime.foreign_values import as_coroutine

__all__ = ("check_cancelled", "run", "run_sync")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOOK_SECONDS = 0.5
"""How often a waiting thread looks whether the loop is still there."""


def run(async_fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """
    Run an async function on the batch's event loop and return its result.

    It runs in a copy of the calling context, in a task of the batch. When the
    call is cut, it is cancelled as an async tool is.

    Raises:
        CallDetached: The call was cut, before or while it ran.
        RuntimeError: Not called from a worker thread of a running tool.

    Threads:
        The tool's worker thread, or one that has its context. Blocks.
    """
    request = _Request(_record_in_thread("run"), async_fn, args, is_async=True)
    return request.perform()  # type: ignore[no-any-return]  # as the function says


def run_sync(fn: Callable[[*Ts], T], *args: *Ts) -> T:
    """
    Call a function on the batch's event loop and return its result.

    Raises:
        CallDetached: The call was cut before the loop came to it.
        RuntimeError: Not called from a worker thread of a running tool.

    Threads:
        The tool's worker thread, or one that has its context. Blocks.
    """
    request = _Request(_record_in_thread("run_sync"), fn, args, is_async=False)
    return request.perform()  # type: ignore[no-any-return]  # as the function says


def check_cancelled() -> None:
    """
    Raise `CallDetached` if the call was cut or asked to stop; else do nothing.

    Raises:
        CallDetached: It is time to stop.
        RuntimeError: Not called from a running tool.

    Threads:
        Any that has the tool's context. Cheap enough for inner loops.
    """
    if flag_of(current_record()).is_set():
        raise CallDetached


def _record_in_thread(name: str) -> CallRecord:
    record = current_record()
    if threading.get_ident() == record.batch.hub.thread_id:
        msg = f"from_thread.{name} would block the event loop; await or call it directly"
        raise RuntimeError(msg)
    return record


class _Request:
    """One visit to the loop. Written by the loop, read by the thread after `_done`."""

    def __init__(
        self,
        record: CallRecord,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        is_async: bool,
    ) -> None:
        self._record = record
        self._function = function
        self._args = args
        self._is_async = is_async
        # The calling context, which need not be the tool's own copy of it.
        self._context = worker_context()
        self._done = threading.Lock()
        self._done.acquire()
        self._value: Any = None
        self._error: BaseException | None = None
        self._answered = False
        self._is_told = False
        self._stopper: Stopper | None = None

    @property
    def is_answered(self) -> bool:
        """The thread need not wait any more."""
        return self._answered

    # -- in the worker thread ----------------------------------------------

    def perform(self) -> Any:
        record = self._record
        hub = record.batch.hub
        requests = requests_of(record)
        requests.append(self)
        try:
            # Either the cut finds the request in the list, or this look sees the cut.
            if record.told or not hub.post(_Request._start, self):
                raise CallDetached
            while not self._done.acquire(timeout=LOOK_SECONDS):
                if hub.backend.is_closed or record.batch.is_gone(record):
                    # The cut, which tells the task, may look for it only after this.
                    hub.post(_Request.cut, self)
                    raise CallDetached
        finally:
            requests.remove(self)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._value

    # -- on the loop -------------------------------------------------------

    def _start(self) -> None:
        record = self._record
        hub = record.batch.hub
        # The fence: a call that has its ending reaches the loop no more. One that
        # is kept has it, too, and was never told to stop: it needs its loop.
        if record.told or record.batch.is_gone(record):
            self._answer(None, CallDetached())
        elif self._is_async:
            record.batch.run_visit(self, self._context, record.call.name)
        else:
            try:
                value = on_loop(self._context, hub.backend).run(self._function, *self._args)
            except BaseException as exc:  # noqa: BLE001 - handed to the thread
                self._answer(None, exc)
            else:
                self._answer(value, None)

    async def run(self) -> None:
        """Be the task of a visit."""
        if self._answered:  # cut before the task's first step
            return
        batch = self._record.batch
        stopper = self._stopper = Stopper(batch.hub.backend, batch.mark_of(self._record))
        batch.teller.begun(stopper)
        try:
            outcome = await run_stoppable(
                stopper, lambda: as_coroutine(self._function(*self._args))
            )
        except GeneratorExit as exc:
            outcome = outcome_of_close(exc, batch.hub.backend)
        batch.teller.ended(stopper)
        self._answer(outcome.value, CallDetached() if outcome.stopped else outcome.error)

    def gone(self) -> None:
        """The task is through; if it never began, it was cancelled before."""
        self._answer(None, CallDetached())

    def cut(self) -> None:
        """The call was cut: let the thread go, and tell the task to stop."""
        self._answer(None, CallDetached())
        stopper = self._stopper
        if stopper is not None and not stopper.ended and not self._is_told:
            self._is_told = True  # once: the thread may have asked for it, too
            self._record.batch.teller.drain(stopper)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        if not self._answered:
            self._answered = True
            self._value, self._error = value, error
            self._done.release()
