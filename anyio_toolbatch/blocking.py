"""
The same promises for synchronous agents.

A `BlockingToolRunner` is a `ToolRunner` for code without an event loop: a
thread calls `run(calls)` and waits, any other thread interrupts. The runner has
an event loop of its own, in a thread of its own, which starts at its first use.

Ctrl-C in the main thread is an interrupt: `run`, and leaving the block of
`open_batch`, end the batch as `interrupt()` does, at once, and then let
`KeyboardInterrupt` go on. What is settled stays readable on the batch::

    try:
        with runner.open_batch(calls) as batch:
            batch.wait()
    except KeyboardInterrupt:
        pass
    results = batch.results
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio

from ._errors import RunnerClosedError
from ._model.calls import ToolCall
from ._model.events import Event
from ._model.results import LateResult, Reason, ToolResult
from ._model.statistics import RunnerStatistics, WaitingCall
from ._model.tools import Tool, check_seconds
from ._runtime.backend import after_fork
from ._runtime.batch import BatchContext, CallHandle, ToolBatch, check_call, check_message
from ._runtime.breakable_block import Block, Opening
from ._runtime.loop_thread import LoopEvents, LoopThread, check_may_wait, runner_closed
from ._runtime.runner import ToolRunner, checked_calls

__all__ = ("BlockingCallHandle", "BlockingToolBatch", "BlockingToolRunner")

END_SECONDS = 0.2
"""What closing adds to `close_timeout` for the end of the loop itself."""
ANSWER_SECONDS = 0.2
"""What a wait with a time limit adds for the loop's answer, which takes it milliseconds."""


class BlockingToolRunner:
    """
    Runs batches of tool calls for synchronous code.

    It may be made anywhere and used from any number of threads at once; limits
    and claims hold between all its batches. Usable with or without ``with``;
    leaving the block closes it. Its event loop starts at the first use, in a
    daemon thread, and ends when the runner is closed or collected, at the
    latest with the program, which it does not hold up. In a process that was
    forked the runner starts a loop of its own.

    Args:
        tools: As for `ToolRunner`, and so are the options up to `on_late`.
            Hooks and observers are called in the runner's own thread, but for a
            plain `approve`, which has a worker thread.
        backend: The event loop: ``"asyncio"`` or ``"trio"``.
        backend_options: As for `anyio.run`, such as ``{"use_uvloop": True}``.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]]
        | Mapping[str, Tool | Callable[..., Any]] = (),
        *,
        max_concurrency: int | None = None,
        max_threads: int = 32,
        max_detached: int = 64,
        interrupt_grace: float = 0.0,
        cleanup_grace: float = 5.0,
        close_timeout: float = 1.0,
        approve: Callable[[ToolCall], Any] | None = None,
        approval_timeout: float | None = None,
        observers: Iterable[Callable[[Event], object]] = (),
        on_late: Callable[[LateResult], object] | None = None,
        backend: str = "asyncio",
        backend_options: Mapping[str, Any] | None = None,
    ) -> None:
        make = partial(
            ToolRunner,
            max_concurrency=max_concurrency,
            max_threads=max_threads,
            max_detached=max_detached,
            interrupt_grace=interrupt_grace,
            cleanup_grace=cleanup_grace,
            close_timeout=close_timeout,
            approve=approve,
            approval_timeout=approval_timeout,
            on_late=on_late,
        )
        self._runner = runner = make(tools, observers=observers)
        # For a forked process; the iterables may be used up.
        self._make = partial(make, runner._tools, observers=runner._observers)
        if backend not in anyio.get_all_backends():
            known = " or ".join(map(repr, anyio.get_all_backends()))
            msg = f"backend must be {known}, not {backend!r}"
            raise ValueError(msg)
        if backend_options is not None and not isinstance(backend_options, Mapping):
            msg = f"backend_options must be a mapping, not {type(backend_options).__name__}"
            raise TypeError(msg)
        self._backend = backend
        self._backend_options = backend_options
        self._close_timeout = float(close_timeout)
        self._grace = float(interrupt_grace)
        self._closed = False
        self._pid = os.getpid()
        self._loop: LoopThread | None = None
        self._stop_loop: weakref.finalize[..., Any] | None = None
        """Has the loop end with the runner; it keeps the loop for that long."""
        self._batches: dict[Opening, None] = {}
        """From before they are posted to the loop until their block is left."""

    # -- running -------------------------------------------------------------

    def run(
        self,
        calls: Iterable[ToolCall],
        *,
        timeout: float | None = None,
        interrupt_grace: float | None = None,
        fail_fast: bool = False,
    ) -> list[ToolResult]:
        """
        Run the calls and return one result per call, in call order.

        A tool's failure is a result; it is never raised. Tools see the context
        variables of the calling thread.

        Args:
            calls: The calls of one turn; an empty list gives an empty list.
            timeout: Seconds that the whole batch may take.
            interrupt_grace: In place of the runner's own.
            fail_fast: The first call whose tool raises cuts its siblings.

        Raises:
            TypeError: An item is no `ToolCall`; nothing was run.
            RunnerClosedError: The runner was closed, or its event loop was
                ended by a tool.
            RuntimeError: Called in an event loop's thread, which it would
                block; `ToolRunner` is for those.
            KeyboardInterrupt: Ctrl-C, or a tool raised it; the calls were
                settled first.

        Cancellation:
            What a signal handler raises in this thread cuts the batch, at
            once, and goes on. A `KeyboardInterrupt` counts as `interrupt()`, and a
            second one ends its grace; all else cuts as a cancellation does, without
            one. No tool is waited for. Use `open_batch` to have the settled results
            all the same, or a signal handler that calls `interrupt`: then this
            returns them.

        Threads:
            Any, several at once, that run no event loop. A plain tool may
            call it, too: its batch is an inner one.
        """
        given = checked_calls(calls)  # None would mean that they are still to come
        with self.open_batch(
            given, timeout=timeout, interrupt_grace=interrupt_grace, fail_fast=fail_fast
        ) as batch:
            pass
        return batch.results

    def open_batch(
        self,
        calls: Iterable[ToolCall] | None = None,
        *,
        timeout: float | None = None,
        interrupt_grace: float | None = None,
        fail_fast: bool = False,
    ) -> AbstractContextManager[BlockingToolBatch]:
        """
        Open a batch: ``with runner.open_batch() as batch``.

        Args:
            calls: With calls the batch is complete (sealed) from the start;
                without, they are submitted until `seal()` or the block's end.
            timeout: Seconds that the batch may take, from its opening on.
            interrupt_grace: In place of the runner's own.
            fail_fast: The first call whose tool raises cuts its siblings.

        Raises:
            TypeError: An item is no `ToolCall`; nothing was run.
            RunnerClosedError, RuntimeError: On entering, as for `run`.

        Cancellation:
            Leaving the block normally waits for all calls. Leaving it by an
            exception cuts what runs, and waits for no tool; by a
            `KeyboardInterrupt` it is as if `interrupt()` were called.

        Threads:
            As for `run`.
        """
        context = self._own_runner().open_batch(
            calls, timeout=timeout, interrupt_grace=interrupt_grace, fail_fast=fail_fast
        )
        assert isinstance(context, BatchContext)
        grace = self._grace if interrupt_grace is None else interrupt_grace
        return Block(
            Opening(context),
            grace,
            start=self._running_loop,
            entered=self._batches,
            face=lambda *entered: BlockingToolBatch(self, *entered),
        )

    # -- ending --------------------------------------------------------------

    def interrupt(self, message: str | None = None, *, grace: float | None = None) -> int:
        """
        Interrupt the batches that are open now, or on their way to be.

        Args:
            message: Why; goes into the reason of the batches and results.
            grace: Seconds that running calls have to give their own answer.

        Returns:
            How many batches were open and not yet asked to stop. 0 means that
            there was nothing to stop; the next batch is unaffected.

        Threads:
            Any, and signal handlers; the runner's own hooks and tools, too.
            Never blocks.
        """
        check_message(message)
        check_seconds("grace", grace)
        if self._pid != os.getpid():
            return 0
        # All are looked up before any is told. The race: the first is told, the main
        # thread leaves its block and opens the next turn's batch, and only then does
        # this thread go on; what it looked up then would be a batch of the next turn.
        openings = list(self._batches)
        engines = self._runner._open_engines()
        # Counted here alone: while a batch is being opened the other runner may have
        # it already. There are also those whose block was left by an error, which
        # has asked them to stop.
        count = sum(opening.interrupt(message, grace) for opening in openings)
        for engine in engines:
            engine.interrupt(message, grace)
        return count

    def wait_detached(self, timeout: float | None = None) -> bool:
        """
        Wait until no detached call runs any more.

        Args:
            timeout: Seconds to wait at most; None for no limit. Where a tool
                blocks the event loop it takes a moment longer, and the answer is
                judged by `statistics`; a batch that is being cut counts as detached.

        Returns:
            True if none is left, False if the time ran out.

        Raises:
            RunnerClosedError: The runner was closed; `statistics` still tells.
            RuntimeError: As for `run`.

        Threads:
            As for `run`.
        """
        check_seconds("timeout", timeout)
        check_may_wait()
        runner = self._own_runner()
        if self._closed:
            raise runner_closed()
        loop = self._loop
        if loop is None or loop.is_over:
            return not runner.statistics().detached
        limit = None if timeout is None else timeout + ANSWER_SECONDS
        try:
            return loop.call(lambda: runner.wait_detached(timeout), limit)
        except TimeoutError:
            is_cutting = any(
                engine.stopping and not engine.closed for engine in runner._open_engines()
            )
            return not (is_cutting or runner.statistics().detached)

    def close(self) -> None:
        """
        Close the runner: what leaving ``with`` does; idempotent.

        Open batches are interrupted (``runner_closed``); then detached work is
        waited for, `close_timeout` seconds at most; then the event loop is
        ended. A coroutine that refuses to end, or a tool that blocks the loop,
        is left behind in the runner's daemon thread. Nothing new can be opened
        after that.

        Raises:
            RuntimeError: As for `run`.

        Cancellation:
            Whatever a signal handler raises ends the wait; the runner is
            closed all the same.

        Threads:
            As for `run`. Those that wait for a batch get its results.
        """
        check_may_wait()
        self._closed = True
        loop = self._loop
        if loop is None or loop.is_over or not loop.is_ours:
            return
        until = time.monotonic() + self._close_timeout + END_SECONDS
        try:
            loop.send(self._runner.aclose).wait(self._close_timeout + END_SECONDS)
        except RunnerClosedError:
            pass  # by another thread, at the same time
        finally:
            loop.stop()
        loop.join(until - time.monotonic())

    def __enter__(self) -> Self:
        self._running_loop()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- looking -------------------------------------------------------------

    def statistics(self) -> RunnerStatistics:
        """
        Return a snapshot of what the runner is doing.

        Threads:
            Any; a best effort.
        """
        return self._own_runner().statistics()

    def __repr__(self) -> str:
        return repr(self._own_runner()).replace("<", "<Blocking", 1)

    # -- the loop ------------------------------------------------------------

    def _own_runner(self) -> ToolRunner:
        """Return the runner on the loop; that of the parent, after a fork, is replaced."""
        if self._pid != os.getpid():
            with _starting:
                if self._pid != os.getpid():
                    self._runner = self._make()
                    self._forget_loop()
                    self._batches.clear()  # of the parent
                    self._pid = os.getpid()
        return self._runner

    def _forget_loop(self) -> None:
        """Keep nothing of a loop that is over, or is the parent's."""
        self._loop = None
        if self._stop_loop is not None:
            self._stop_loop.detach()
            self._stop_loop = None

    def _running_loop(self) -> LoopThread:
        """Return the loop, started if there is none; who calls this is going to wait."""
        check_may_wait()
        self._own_runner()
        loop = self._loop
        if self._closed:
            raise runner_closed()
        if loop is None or loop.is_over:
            with _starting:
                loop = self._loop
                if loop is None or loop.is_over:
                    self._forget_loop()
                    loop = LoopThread(self._backend, self._backend_options)
                    stop = weakref.finalize(self, loop.stop)
                    # At the program's end there is more to be done than this.
                    stop.atexit = False
                    try:
                        loop.begin()
                    except BaseException:
                        stop()
                        raise
                    self._loop, self._stop_loop = loop, stop
            if self._closed:  # by another thread, which has not seen this loop
                loop.stop()
                raise runner_closed()
        return loop


class BlockingToolBatch:
    """
    The calls of one turn, while they run and after; a `ToolBatch` for threads.

    Given by ``with runner.open_batch() as batch``. Leaving the block normally
    seals the batch and waits until every call is settled; leaving it by an
    exception lets go of what still runs, at once. The results stay readable on
    the object.

    What waits (`submit`, `seal`, `wait`, `events`) may be called from any thread
    that runs no event loop, and raises `RuntimeError` in those that do; all else
    from anywhere. In a forked process all but reading raises `RuntimeError`.
    """

    __slots__ = ("__weakref__", "_batch", "_loop", "_raise_break", "_runner")

    def __init__(
        self,
        runner: BlockingToolRunner,
        batch: ToolBatch,
        loop: LoopThread,
        raise_break: Callable[[], None],
    ) -> None:
        self._raise_break = raise_break
        self._batch = batch
        self._loop = loop
        self._runner = runner  # the loop ends when it is collected

    @property
    def id(self) -> str:
        """The batch's own name, unique in the process."""
        return self._batch.id

    @property
    def calls(self) -> list[ToolCall]:
        """The calls submitted so far, in call order; a fresh list."""
        return self._batch.calls

    @property
    def results(self) -> list[ToolResult]:
        """
        One result per call, in call order; a fresh list.

        Raises:
            BatchNotSettledError: The batch is not sealed, or a call has no
                result yet; `snapshot()` gives what there is.
        """
        return self._batch.results

    def snapshot(self) -> list[ToolResult | None]:
        """Return what there is: one item per call, None where it is not settled."""
        return self._batch.snapshot()

    def waiting_call(self, index: int) -> WaitingCall | None:
        """Return what a call waits for; None if it has started or is settled."""
        return self._batch.waiting_call(index)

    @property
    def reason(self) -> Reason | None:
        """Why the whole batch was cut; None if it was not."""
        return self._batch.reason

    @property
    def interrupted(self) -> bool:
        """The whole batch was cut, for whatever `reason`."""
        return self._batch.interrupted

    def submit(self, call: ToolCall) -> BlockingCallHandle:
        """
        Add a call and bring it to its start; it sees the context of this thread.

        On a batch that was cut it starts nothing: the call is settled at
        once, not started, with the batch's reason.

        Raises:
            TypeError: `call` is no `ToolCall`.
            BatchSealedError: The batch was sealed.
            RunnerClosedError: The runner was closed, or its event loop was
                ended by a tool.
            RuntimeError: Called in an event loop's thread, or in a forked process.
            KeyboardInterrupt: Ctrl-C, now or while the batch was being opened.

        Cancellation:
            Broken out of, it may have submitted the call or not; `calls` tells.
        """
        check_call(call)
        check_may_wait()
        self._raise_break()

        async def submit() -> CallHandle:
            return self._batch.submit(call)

        return BlockingCallHandle(self._loop.call(submit), self._loop)

    def seal(self) -> None:
        """
        Say that no more calls will come; idempotent.

        Raises:
            RunnerClosedError, RuntimeError, KeyboardInterrupt: As for `submit`.
        """
        check_may_wait()
        self._raise_break()

        async def seal() -> None:
            self._batch.seal()

        self._loop.call(seal)

    def interrupt(self, message: str | None = None, *, grace: float | None = None) -> bool:
        """
        End the batch now: every call gets its result, nothing new starts.

        Results that are in are kept. Waiting calls are settled as not
        started. Running ones are told to stop and, after the grace, let go
        with a placeholder. Whoever waits for the batch goes on at once.

        Args:
            message: Why; goes into the reason of the batch and its results.
            grace: Seconds that running calls have to give their own answer;
                the batch's `interrupt_grace` by default.

        Returns:
            True if the batch was open and not yet asked to stop. A later
            interrupt can only shorten the grace; the first reason stays.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        self._loop.check_process()
        return self._batch.interrupt(message, grace=grace)

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
        self._loop.check_process()
        return self._batch.supersede(message)

    def cancel(self, call_id: str, message: str | None = None) -> int:
        """
        Cut the calls with this id; see `BlockingCallHandle.cancel`.

        Returns:
            How many there were to cut; ids need not be unique.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        self._loop.check_process()
        return self._batch.cancel(call_id, message)

    def wait(self, timeout: float | None = None) -> list[ToolResult]:
        """
        Wait until the calls submitted so far are settled; return their results.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: The time ran out; the calls go on.
            KeyboardInterrupt: A tool raised it, once per batch; or Ctrl-C.
            RunnerClosedError: The loop has ended before they were settled.
            RuntimeError: As for `submit`.

        Cancellation:
            What a signal handler raises stops this wait only; the calls go
            on, unless the block is left by it.
        """
        check_seconds("timeout", timeout)
        check_may_wait()
        self._raise_break()
        try:
            return self._loop.call(self._batch.wait, timeout)
        except RunnerClosedError:
            settled = [result for result in self.snapshot() if result is not None]
            if len(settled) < len(self.calls):
                raise
            return settled

    def events(self) -> Iterator[Event]:
        """
        Iterate over all events from the batch's start, up to `BatchSettled`.

        Several readers each see all. A reader that is slow, or has stopped
        reading, holds nothing up; progress that it has not read yet is
        replaced by newer progress, nothing else is lost. When the runner has been
        closed, what there is can be read.

        Raises:
            RuntimeError: As for `submit`; of each step, too.
            RunnerClosedError: Of a step: the loop has ended, and the batch had not.
            KeyboardInterrupt: Ctrl-C, now or while the batch was being opened.

        Cancellation:
            What a signal handler raises stops the wait for the next event;
            no event is lost by that, the iterator may be used again.

        Threads:
            Each iterator in one thread at a time.
        """
        check_may_wait()
        self._raise_break()
        return LoopEvents(self._batch, self._loop)

    def __repr__(self) -> str:
        return repr(self._batch).replace("<", "<Blocking", 1)


class BlockingCallHandle:
    """One submitted call; given by `BlockingToolBatch.submit`."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, handle: CallHandle, loop: LoopThread) -> None:
        self._handle = handle
        self._loop = loop

    @property
    def index(self) -> int:
        """The call's place in its batch, from 0."""
        return self._handle.index

    @property
    def call(self) -> ToolCall:
        """What was submitted."""
        return self._handle.call

    @property
    def result(self) -> ToolResult | None:
        """The call's result; None until it is settled."""
        return self._handle.result

    def cancel(self, message: str | None = None) -> bool:
        """
        Cut this one call; its siblings go on.

        It is settled in the next pass of the loop, after the batch's
        `interrupt_grace`; once this has returned it does not start any more.

        Args:
            message: Why; goes into the result's reason.

        Returns:
            True if there was something to cut; False if the call is settled
            or has been asked to stop before.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        self._loop.check_process()
        return self._handle.cancel(message)

    def explain(self) -> str:
        """
        Say in a sentence where the call is, and what it waits for.

        Threads:
            Any; a best effort.
        """
        return self._handle.explain()

    def wait(self, timeout: float | None = None) -> ToolResult:
        """
        Wait until the call is settled and return its result.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Raises:
            TimeoutError: The time ran out; the call goes on.
            RunnerClosedError: The loop has ended before it was settled.
            RuntimeError: Called in an event loop's thread, or in a forked process.

        Cancellation:
            What a signal handler raises stops this wait only.

        Threads:
            Any that runs no event loop.
        """
        check_seconds("timeout", timeout)
        check_may_wait()
        try:
            return self._loop.call(self._handle.wait, timeout)
        except RunnerClosedError:
            if self.result is None:
                raise
            return self.result

    def __repr__(self) -> str:
        return repr(self._handle).replace("<", "<Blocking", 1)


_starting = threading.Lock()
"""Held while a loop starts. One for all: a forked process needs a new one."""


def _new_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _starting  # noqa: PLW0603
    _starting = threading.Lock()


after_fork(_new_lock)
