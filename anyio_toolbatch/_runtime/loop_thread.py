"""
An event loop in a thread of its own, for callers that have none.

anyio's blocking portal does the same for code that may wait. Its calls wait
until the loop takes them, and leaving its block joins the thread; so a tool
that blocks the loop would hold back a Ctrl-C, a close and the end of the
program. Here nobody waits for the loop without a way out:

* What is to be done on the loop is posted, an *errand*. Whoever waits for its
  answer may be broken out of it by whatever a signal handler raises, or stop
  waiting, and knows afterwards whether there was an answer.
* The thread is a daemon and nobody's to join. At the interpreter's end it has
  a moment to cancel what runs on it; that is when commands are killed.
* However the loop ends, each errand is answered. Story: an errand enters itself
  in the set, then looks whether the loop is over; the loop's end marks itself
  as over, then answers what is in the set. One of the two sees the other.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.abc

from .._core.publication import Reader
from .._errors import RunnerClosedError
from .._model.events import Event
from .._model.results import Reason
from .backend import Waiter, current_loop_key, on_loop, worker_context
from .batch import ToolBatch
from .hub import Hub, current_hub
from .leaving import leave_streams_to_main_thread

__all__ = ("Errand", "LoopEvents", "LoopThread", "check_may_wait", "runner_closed")

LOOK_SECONDS = 0.2
"""
How late a Ctrl-C may come through at worst. Windows does not interrupt a wait for
a lock, and elsewhere a signal may come between the last look and the sleep.
"""
EXIT_SECONDS = 0.3
"""What the loops of runners that nobody closed have for their end, all together."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


def check_may_wait() -> None:
    """
    Refuse to block an event loop.

    Raises:
        RuntimeError: This is an event loop's thread; the loop of the runner
            itself would even wait for itself.
    """
    _hold_at_exit()
    if isinstance(threading.current_thread(), _Thread):
        msg = (
            "this would block the event loop that async tools, hooks and observers run on;"
            " make the tool a plain function, or use ToolRunner in it"
        )
        raise RuntimeError(msg)  # noqa: TRY004 - it is no matter of types
    try:
        current_loop_key()
    except anyio.NoEventLoopError:
        return
    msg = "this would block the event loop that it is called from; use ToolRunner there"
    raise RuntimeError(msg)


class _Thread(threading.Thread):
    """Tells the threads of this file from all others."""


class LoopThread:
    """
    An event loop that runs in a thread until it is told to stop.

    Args:
        backend: As for `anyio.run`.
        backend_options: The same.
    """

    def __init__(self, backend: str, backend_options: Mapping[str, Any] | None) -> None:
        self._thread = _Thread(target=self._run, name="anyio_toolbatch loop", daemon=True)
        self._backend = backend
        self._backend_options = None if backend_options is None else dict(backend_options)
        self._pid = os.getpid()
        self.hub: Hub | None = None
        """There while errands can be made."""
        self.is_over = False
        self._is_stopping = False
        self._is_left = False
        """The interpreter is ending."""
        self._error: BaseException | None = None
        self._ready = threading.Lock()
        self._ready.acquire()
        self._errands: set[Errand[Any]] = set()
        # -- on the loop
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped: Waiter | None = None

    @property
    def is_ours(self) -> bool:
        """The thread is one of this process, not of the one that was forked."""
        return self._pid == os.getpid()

    # -- from any thread -----------------------------------------------------

    def begin(self) -> None:
        """
        Start, and wait until the loop runs.

        Raises:
            Exception: What `anyio.run` raises of an unknown or unusable backend.
            RuntimeError: The system refuses another thread.
        """
        leave_streams_to_main_thread()
        _stop_at_exit()
        _live.add(self)
        try:
            self._thread.start()
            while not (self.hub or self.is_over):
                self._ready.acquire(timeout=LOOK_SECONDS)
        except BaseException:
            self.stop()
            raise
        if self.hub is None:
            error, self._error = self._error, None
            raise error or self.gone()

    def send(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Errand[T]:
        """
        Have an async function run on the loop, in a copy of the current context.

        Raises:
            RunnerClosedError: The loop is over.
            RuntimeError: The thread was left behind by a fork.
        """
        errand = Errand(self, function)
        self.post(errand)
        return errand

    def post(self, errand: Errand[Any]) -> None:
        """The same for an errand that its maker has in hand before it begins."""
        self.check_process()
        self._errands.add(errand)
        hub = self.hub
        assert hub is not None, "begun"
        if self.is_over or not hub.post(Errand.begin, errand):
            self.forget(errand)
            raise self.gone()

    def call(
        self, function: Callable[[], Coroutine[Any, Any, T]], timeout: float | None = None
    ) -> T:
        """
        Send an errand and wait for the answer; who is broken out takes it back.

        Raises:
            TimeoutError: There was none within so many seconds.
        """
        errand = self.send(function)
        try:
            if not errand.wait(timeout):
                msg = f"not settled within {timeout} s"
                raise TimeoutError(msg)
        except BaseException:
            errand.cancel()
            raise
        return errand.result()

    def stop(self) -> None:
        """Have the loop end, and cut what runs on it; never blocks, idempotent."""
        if not self.is_ours:
            return  # a post would wake the parent's loop
        self._is_stopping = True
        # Either this look sees the hub, or the loop's first look sees the wish.
        if self.hub is not None:
            self.hub.post_urgent(LoopThread._stop_now, self)

    def leave(self) -> None:
        """The same at the interpreter's end."""
        self._is_left = True
        self.stop()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; False if it has not within so many seconds."""
        self._thread.join(min(max(timeout, 0.0), threading.TIMEOUT_MAX / 2))
        return not self._thread.is_alive()

    def check_process(self) -> None:
        """
        Refuse what a fork has copied.

        Raises:
            RuntimeError: This process is a child of the one that runs the loop.
        """
        if not self.is_ours:
            msg = "this batch belongs to the process that this one was forked from"
            raise RuntimeError(msg)

    def gone(self) -> RunnerClosedError:
        """Word that no errand can be made any more."""
        if self._is_stopping:
            return runner_closed()
        error = RunnerClosedError("the event loop of this runner has ended; it starts anew")
        error.__cause__ = self._error
        return error

    def forget(self, errand: Errand[Any]) -> None:
        self._errands.discard(errand)

    # -- in the thread -------------------------------------------------------

    def _run(self) -> None:
        # Empty: Python 3.14 hands on the context of whoever starts a thread.
        contextvars.Context().run(self._serve)

    def _serve(self) -> None:
        try:
            anyio.run(self._main, backend=self._backend, backend_options=self._backend_options)
        except BaseException as exc:
            self._error = exc
            if self.hub is not None and not self._is_left:
                logger.exception("the event loop of a BlockingToolRunner has ended")
        finally:
            self.is_over = True
            self._tasks = self._stopped = None
            self._wake_beginner()
            for errand in list(self._errands):
                errand.answer(None, self.gone())

    async def _main(self) -> None:
        hub = current_hub()
        self._stopped = hub.backend.waiter()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self.hub = hub
            self._wake_beginner()
            try:
                if not self._is_stopping:
                    await self._stopped.wait()
            finally:  # or somebody on the loop cancels all its tasks
                self._tasks = None
                self._cut(hub)
            tasks.cancel_scope.cancel()

    def _wake_beginner(self) -> None:
        if self._ready.locked():
            self._ready.release()

    def _stop_now(self) -> None:
        if self._stopped is not None:
            self._stopped.set()

    @staticmethod
    def _cut(hub: Hub) -> None:
        """Nothing starts any more, and what runs hears that it is to stop."""
        for state in list(hub.states.values()):
            for engine in list(state.batches):
                engine.detach(Reason("runner_closed"))
        hub.finish_chores()

    def start_task(self, function: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start an errand's task, in the current context; False if the loop is ending."""
        if self._tasks is None:
            return False
        self._tasks.start_soon(function, name="anyio_toolbatch errand")
        return True


class Errand(Generic[T]):
    """Something that is done on the loop, and what came of it."""

    __slots__ = (
        "_answered",
        "_context",
        "_error",
        "_function",
        "_is_cancelled",
        "_loop",
        "_scope",
        "_value",
        "is_over",
    )

    def __init__(
        self, loop: LoopThread, function: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        self._loop = loop
        self._function = function
        self._context = worker_context()
        self.is_over = False
        """There is an answer."""
        self._answered = threading.Lock()
        self._answered.acquire()
        self._is_cancelled = False
        self._scope: anyio.CancelScope | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    # -- in the thread that waits --------------------------------------------

    def wait(self, seconds: float | None = None) -> bool:
        """
        Wait for the answer; False if there is none within so many seconds.

        May be broken out of, and called again.
        """
        until = None if seconds is None else time.monotonic() + seconds
        # The flag decides: a break may come between a lock and its taker.
        while not self.is_over:
            left = LOOK_SECONDS if until is None else until - time.monotonic()
            if left <= 0.0:
                return False
            self._answered.acquire(timeout=min(left, LOOK_SECONDS))
        _hold_at_exit()
        return True

    def result(self) -> T:
        """Return what the function returned, or raise what it raised."""
        assert self.is_over, "not answered"
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return cast("T", self._value)

    def cancel(self) -> None:
        """Cancel the function, at its first wait if need be. Never blocks."""
        self._is_cancelled = True
        if not self.is_over and self._loop.is_ours and self._loop.hub is not None:
            self._loop.hub.post_urgent(Errand._cancel, self)

    # -- on the loop ---------------------------------------------------------

    def begin(self) -> None:
        """Start the task."""
        loop = self._loop
        assert loop.hub is not None, "it runs this"
        context = on_loop(self._context, loop.hub.backend)
        if not context.run(loop.start_task, self._run):
            self.answer(None, loop.gone())

    async def _run(self) -> None:
        value: T | None = None
        error: BaseException | None = None
        was_cancelled = True
        try:
            with anyio.CancelScope() as self._scope:
                # A cancellation may be handled before the task's first step.
                if self._is_cancelled:
                    self._scope.cancel()
                value = await self._function()
                was_cancelled = False
        except Exception as exc:  # noqa: BLE001 - handed to the thread that waits
            error = exc
        except KeyboardInterrupt as exc:
            error = exc  # a tool's: it is not to end the loop
        finally:
            # By the thread, which does not look then, or by the loop's end.
            if was_cancelled and error is None:
                error = self._loop.gone()
            self._scope = None
            self.answer(value, error)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def answer(self, value: T | None, error: BaseException | None) -> None:
        """Let the thread go on; only the first answer counts."""
        self._loop.forget(self)
        if not self.is_over:
            self._value, self._error = value, error
            self.is_over = True
            self._answered.release()


class LoopEvents:
    """An iterator over a batch's events, which fetches them one by one."""

    __slots__ = ("_engine", "_errand", "_loop", "_reader")

    def __init__(self, batch: ToolBatch, loop: LoopThread) -> None:
        self._engine = batch._engine
        self._loop = loop
        try:
            self._reader = loop.call(self._open)
        except RunnerClosedError:  # nothing is entered any more
            self._reader = self._engine.publisher.open_reader()
        self._errand: Errand[Event | None] | None = None

    async def _open(self) -> Reader:
        return self._engine.open_reader()

    async def _next(self) -> Event | None:
        return await self._engine.publisher.next_event(self._reader)

    def __iter__(self) -> LoopEvents:
        return self

    def __next__(self) -> Event:
        check_may_wait()
        try:
            # Kept while it has no answer: who is broken out of the wait finds
            # the event here the next time.
            if self._errand is None:
                self._errand = self._loop.send(self._next)
            self._errand.wait()
            errand, self._errand = self._errand, None
            event = errand.result()
        except RunnerClosedError:
            self._errand = None
            event = self._next_without_loop()
        if event is None:
            raise StopIteration
        return event

    def _next_without_loop(self) -> Event | None:
        """Read on in what a closed runner's batch has left: that never waits."""
        reading = self._next()
        try:
            reading.send(None)
        except StopIteration as end:
            event: Event | None = end.value
            return event
        reading.close()
        raise self._loop.gone()


def runner_closed() -> RunnerClosedError:
    """Word that a runner has been closed."""
    return RunnerClosedError("this runner has been closed")


# -- the end of the interpreter ------------------------------------------------

_live: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_is_registered = False
_is_exiting = False
_for_ever = threading.Lock()
_for_ever.acquire()


def _stop_at_exit() -> None:
    global _is_registered  # noqa: PLW0603
    if not _is_registered:
        _is_registered = True
        atexit.register(_at_exit)


def _hold_at_exit() -> None:
    """
    Keep a thread that would go on while the interpreter ends.

    Only daemons are left by then. An agent in one of them has nothing to gain
    from an error about its runner, but to print it.
    """
    if _is_exiting and threading.current_thread() is not threading.main_thread():
        _for_ever.acquire()


def _at_exit() -> None:
    global _is_exiting  # noqa: PLW0603
    _is_exiting = True
    loops = [loop for loop in list(_live) if loop.is_ours]
    for loop in loops:
        loop.leave()
    until = time.monotonic() + EXIT_SECONDS
    for loop in loops:
        loop.join(until - time.monotonic())
