"""
What a tool can ask and say while it runs, from the loop and from threads.

The current call is found through a context variable that each call's own
context carries; nothing is keyed by thread or task.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Literal, Self

from .._core.record import CallRecord
from .._model.calls import ToolCall
from . import process_worker
from .backend import after_fork, on_loop
from .logs import about

__all__ = (
    "CallContext",
    "CancelFlag",
    "CancelHook",
    "current_call",
    "current_record",
    "keep_partial",
    "on_cancel",
    "report_progress",
    "requests_of",
    "run_hooks",
)

logger = logging.getLogger(__name__)

current: ContextVar[CallRecord] = ContextVar("anyio_toolbatch_current_call")


class CancelFlag:
    """
    Whether the call was asked to stop: like a `threading.Event` that you only read.

    Threads:
        Any. In an async tool use `is_set` alone: `wait` blocks.
    """

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        # Made when somebody waits: an Event costs more than most calls need.
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """Return True once the call was cut, or asked to stop within a grace."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the call is to stop or `timeout` seconds have passed."""
        if not self._is_set:
            with _lazily:
                if self._event is None:
                    self._event = threading.Event()
                event = self._event
            # Either `_set` sees the event, or this look sees the flag.
            if not self._is_set:
                event.wait(timeout)
        return self._is_set

    def _set(self) -> None:
        self._is_set = True
        event = self._event
        if event is not None:
            event.set()


_lazily = threading.Lock()
"""Guards the making of what most calls never need; held for a few bytecodes."""


def _new_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lazily  # noqa: PLW0603
    _lazily = threading.Lock()


after_fork(_new_lock)


class CallContext:
    """The running call, as its tool sees it; made by `current_call()`."""

    __slots__ = ("_record",)

    def __init__(self, record: CallRecord) -> None:
        self._record = record

    @property
    def call(self) -> ToolCall:
        """What the model asked for."""
        return self._record.call

    @property
    def batch_id(self) -> str:
        """The batch that the call belongs to."""
        return str(self._record.batch.id)

    @property
    def index(self) -> int:
        """The call's place in its batch."""
        return self._record.index

    @property
    def runs_in(self) -> Literal["loop", "thread", "process", "executor"]:
        """Where the call runs; `Tool.runs_in` when ``"auto"`` has been decided."""
        carrier: Literal["loop", "thread", "process", "executor"] = self._record.tool.carrier
        return carrier

    @property
    def cancelled(self) -> CancelFlag:
        """Tells whether the call is to stop, by ``is_set()`` or ``wait(timeout)``."""
        return flag_of(self._record)

    def __repr__(self) -> str:
        return f"<CallContext {self.call!r} of batch {self.batch_id}>"


def current_record() -> CallRecord:
    """
    Return the record of the call that is running here.

    Raises:
        RuntimeError: No call is: the code was not called by a tool.
    """
    try:
        return current.get()
    except LookupError:
        msg = "this can only be used inside a tool that a batch is running"
        if process_worker.in_worker():
            msg = "this can't be used in a worker process; progress and partial output can"
        raise RuntimeError(msg) from None


def current_call() -> CallContext:
    """
    Return the call that is running here.

    Raises:
        RuntimeError: The code was not called by a tool of a batch.

    Threads:
        The tool's own, and any thread started with a copy of its context.
    """
    return CallContext(current_record())


def report_progress(
    progress: float, total: float | None = None, message: str | None = None
) -> None:
    """
    Tell the observers and readers of the batch how far the call is.

    Reports are coalesced: a slow reader sees the newest. After the call was
    cut they go nowhere, silently.

    Args:
        progress: How much is done, in any unit.
        total: How much there is, in the same unit, if known.
        message: A few words for a person.

    Raises:
        TypeError: `progress` or `total` is no number.
        RuntimeError: The code was not called by a tool of a batch.

    Threads:
        Any thread that has the tool's context. Never blocks.
    """
    for name, value in (("progress", progress), ("total", total)):
        if value is None and name == "total":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            msg = f"{name} must be a number, not {type(value).__name__}"
            raise TypeError(msg)
    speaker = process_worker.speaker.get(None)
    if speaker is not None and current.get(None) is None:
        speaker.send(process_worker.PROGRESS, (progress, total, message))
        return
    record = current_record()
    record.batch.publisher.report_progress(record, (progress, total, message))


def keep_partial(value: Any) -> None:
    """
    Publish what is to be shown as `ToolResult.partial` if the call is cut now.

    The newest value counts. It is kept as it is, not copied: hand over
    something that you will not change any more.

    Raises:
        RuntimeError: The code was not called by a tool of a batch.

    Threads:
        Any thread that has the tool's context.
    """
    speaker = process_worker.speaker.get(None)
    if speaker is not None and current.get(None) is None:
        speaker.send(process_worker.PARTIAL, value)
        return
    record = current_record()
    if not record.ended:
        record.kept_partial = value


def on_cancel(callback: Callable[[], object]) -> CancelHook:
    """
    Register what to do when the call is cut, to unblock a blocking call.

    Such as ``connection.interrupt`` (sqlite3), ``process.kill``, or
    ``lambda: sock.shutdown(SHUT_RDWR)``. Runs at most once; at once if the
    call has been cut already. What it raises is logged and goes no further.

    Args:
        callback: A plain function without arguments. For a tool in a worker
            thread it runs in another thread and may block; for one on the
            event loop it runs there and must be quick.

    Returns:
        A hook; ``hook.unregister()`` or leaving it as a context manager
        takes the callback away again.

    Raises:
        TypeError: `callback` is not callable, or is an async function.
        RuntimeError: The code was not called by a tool of a batch.

    Threads:
        Any thread that has the tool's context.
    """
    if not callable(callback):
        msg = f"on_cancel takes a callable, not {type(callback).__name__}"
        raise TypeError(msg)
    if inspect.iscoroutinefunction(callback):
        msg = "on_cancel takes a plain function; it is called, not awaited"
        raise TypeError(msg)
    record = current_record()
    hook = CancelHook(record, callback)
    with _lazily:
        if record.cancel_hooks is None:
            record.cancel_hooks = []
        hooks = record.cancel_hooks  # the call drops them with its end, at any moment
    hooks.append(hook)
    # Either the cut finds the hook in the list, or this look finds the cut;
    # `remove` tells which of the two has it.
    if flag_of(record).is_set() and hook.unregister():
        hook._run()
    return hook


class CancelHook:
    """A registered callback of `on_cancel`; a context manager that unregisters it."""

    __slots__ = ("_callback", "_context", "_record")

    def __init__(self, record: CallRecord, callback: Callable[[], object]) -> None:
        self._record = record
        self._callback = callback
        # Of the tool, as it is now: the callback runs elsewhere.
        self._context = copy_context()
        if record.hosted:
            self._context = on_loop(self._context, record.batch.hub.backend)

    def unregister(self) -> bool:
        """Take the callback away; False if it has been called, or is being called."""
        try:
            (self._record.cancel_hooks or []).remove(self)
        except ValueError:
            return False
        return True

    def _run(self) -> None:
        try:
            self._context.run(self._callback)
        except BaseException:
            logger.exception(
                "on_cancel callback of call %d (%r) of %s failed",
                self._record.index,
                self._record.call.name,
                self._record.batch.id,
                extra=about("hook_failed", [self._record]),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.unregister()


def flag_of(record: CallRecord) -> CancelFlag:
    """Return the call's cancel flag, made when first asked for."""
    flag: CancelFlag | None = record.cancel_flag
    if flag is None:
        with _lazily:
            flag = record.cancel_flag
            if flag is None:
                flag = record.cancel_flag = CancelFlag()
                if record.told:
                    flag._set()
    return flag


def requests_of(record: CallRecord) -> list[Any]:
    """Return the list of the call's visits to the loop, made when first asked for."""
    with _lazily:
        if record.loop_requests is None:
            record.loop_requests = []
        return record.loop_requests


def set_flag(record: CallRecord) -> None:
    """Mark the call as asked to stop; `record.told` must be set before."""
    with _lazily:
        flag = record.cancel_flag
    if flag is not None:
        flag._set()


def run_hooks(record: CallRecord) -> None:
    """Run the call's callbacks, newest first; each at most once, whoever comes."""
    hooks = record.cancel_hooks
    while hooks:
        try:
            hook = hooks.pop()
        except IndexError:
            return
        hook._run()
