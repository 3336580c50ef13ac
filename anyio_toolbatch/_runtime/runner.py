"""Runners: the limits and hooks that the batches of an agent share."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import anyio
import anyio.lowlevel

from .._core.record import CallRecord
from .._errors import RunnerClosedError
from .._model.calls import ToolCall
from .._model.events import Event
from .._model.results import LateResult, Reason, ToolResult
from .._model.statistics import RunnerStatistics
from .._model.tools import (
    Tool,
    check_count,
    check_flag,
    check_seconds,
    collect_tools,
    kind_of,
)
from .approvals import Approver
from .backend import unbroken
from .batch import (
    BatchContext,
    ToolBatch,
    check_call,
    check_message,
    raise_keyboard_interrupt,
)
from .context import current
from .engine import BatchEngine
from .explaining import waiting_call
from .hub import Hub, current_hub
from .nesting import ancestors_of
from .state import DetachedAccount, LoopState

__all__ = ("BatchOptions", "ToolRunner", "checked_calls", "open_batch", "run_batch")

Tools = Iterable[Tool | Callable[..., Any]] | Mapping[str, Tool | Callable[..., Any]]
Observer = Callable[[Event], object]
LateHook = Callable[[LateResult], object]


class ToolRunner:
    """
    Runs batches of tool calls under common limits.

    It may be made anywhere, also at import, and used from several event
    loops, one after the other or at once in several threads: limits and
    counts are per loop. Usable with or without ``async with``; leaving the
    block closes it. Claims (`Tool.reads`, `Tool.writes`) hold between all its
    batches on one loop.

    Args:
        tools: `Tool` objects or plain callables, or a mapping name → either.
        max_concurrency: How many calls may run at once; None for no limit.
        max_threads: How many worker threads may run blocking calls at once.
            A call that was let go does not count: its place is free.
        max_detached: How many blocking calls that were let go may still run;
            at that number further blocking calls are refused
            (``too_many_detached``) until some have ended. Calls that run
            when the number is reached may still be let go, so that there can
            be as many more as there are threads at work. Threads that are
            left in a plain approver, or in the resolving of paths, count too.
        interrupt_grace: Seconds that running calls get to give their own
            answer when they are cut, for interrupts and timeouts alike.
        cleanup_grace: Seconds that an async tool which was told to stop can
            tidy up in before it is cancelled once more; and that a call waits
            for what a call that was let go of may still be writing, before it
            is refused (``resource_busy``).
        close_timeout: Seconds that closing waits for detached work.
        approve: Asked before each call, ``approve(call)``: True lets it run,
            False or a reason (a `str`) denies it; anything else fails the
            call, never started, and so does raising. An async function is
            called on the loop, many at once; a plain one in a worker thread,
            one at a time, so that it may ask in a terminal. Asked in call
            order; waiting for it holds nothing. When the call is cut an async
            one is cancelled; a late answer is ignored.
        approval_timeout: Seconds that an answer may take, from asking on.
        observers: Called with each event of each batch, on the loop's
            thread; must be quick. What they raise is logged. One that has a
            method `enter_call` gets it called with the `CallContext` of each
            call that starts, in the call's own thread and context;
            `leave_call` and `watch_batch` are described with the events.
        on_late: Called with the `LateResult` of each call that ended after
            it was let go, on the loop's thread.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.
    """

    def __init__(
        self,
        tools: Tools = (),
        *,
        max_concurrency: int | None = None,
        max_threads: int = 32,
        max_detached: int = 64,
        interrupt_grace: float = 0.0,
        cleanup_grace: float = 5.0,
        close_timeout: float = 1.0,
        approve: Callable[[ToolCall], Any] | None = None,
        approval_timeout: float | None = None,
        observers: Iterable[Observer] = (),
        on_late: LateHook | None = None,
    ) -> None:
        self._tools = collect_tools(tools)
        check_count("max_concurrency", max_concurrency, minimum=1, optional=True)
        check_count("max_threads", max_threads, minimum=1, optional=False)
        check_count("max_detached", max_detached, minimum=1, optional=False)
        check_seconds("interrupt_grace", interrupt_grace, optional=False)
        check_seconds("cleanup_grace", cleanup_grace, optional=False)
        check_seconds("close_timeout", close_timeout, optional=False)
        check_seconds("approval_timeout", approval_timeout)
        if approve is not None and not callable(approve):
            msg = f"approve must be callable or None, not {type(approve).__name__}"
            raise TypeError(msg)
        if approve is not None and kind_of(approve).endswith("generator"):
            msg = "approve must return its answer; a generator function can not"
            raise TypeError(msg)
        self._approve = approve
        self._approval_timeout = approval_timeout
        self._max_concurrency = max_concurrency
        self._max_threads = max_threads
        self._max_detached = max_detached
        self._interrupt_grace = float(interrupt_grace)
        self._cleanup_grace = float(cleanup_grace)
        self._close_timeout = float(close_timeout)
        self._observers = _checked_observers(observers)
        if on_late is not None and not callable(on_late):
            msg = f"on_late must be callable or None, not {type(on_late).__name__}"
            raise TypeError(msg)
        if inspect.iscoroutinefunction(on_late):
            msg = "on_late must be a plain function; it is called, not awaited"
            raise TypeError(msg)
        self._on_late = on_late
        self._is_for_one = False
        self._closed = False
        # Weak: a state belongs to its loop, and lives on while detached work does.
        self._states: list[weakref.ref[LoopState]] = []
        self._lock = threading.Lock()
        self._late_results = 0

    # -- running -------------------------------------------------------------

    @unbroken
    async def run(
        self,
        calls: Iterable[ToolCall],
        *,
        timeout: float | None = None,
        interrupt_grace: float | None = None,
        fail_fast: bool = False,
    ) -> list[ToolResult]:
        """
        Run the calls and return one result per call, in call order.

        A tool's failure is a result; it is never raised.

        Args:
            calls: The calls of one turn; an empty list gives an empty list.
            timeout: Seconds that the whole batch may take.
            interrupt_grace: In place of the runner's own.
            fail_fast: The first call whose tool raises cuts its siblings.

        Raises:
            TypeError: An item is no `ToolCall`; nothing was run.
            RunnerClosedError: The runner was closed.
            KeyboardInterrupt: A tool raised it; all calls were settled first.

        Cancellation:
            A checkpoint. When the awaiting code is cancelled, what runs is
            let go at once, without a grace, and the cancellation goes on;
            use `open_batch` to have the settled results all the same.

        Threads:
            An event loop's thread; any number of loops.
        """
        given = checked_calls(calls)
        options = _checked_batch_options(timeout, interrupt_grace, fail_fast)
        await anyio.lowlevel.checkpoint_if_cancelled()
        batch = self._open(*options)
        engine = batch._engine
        try:
            engine.submit(given, seal=True)
            if engine.closed:
                # Shielded: a cancellation must not lose finished results.
                await anyio.lowlevel.cancel_shielded_checkpoint()
            else:
                await engine.wait_settled()
            raise_keyboard_interrupt(engine)
            return engine.results()
        except BaseException:
            engine.detach(Reason("caller_cancelled"))
            raise
        finally:
            del batch  # forsaken; also where a traceback keeps this frame

    def open_batch(
        self,
        calls: Iterable[ToolCall] | None = None,
        *,
        timeout: float | None = None,
        interrupt_grace: float | None = None,
        fail_fast: bool = False,
    ) -> AbstractAsyncContextManager[ToolBatch]:
        """
        Open a batch: ``async with runner.open_batch() as batch``.

        Args:
            calls: With calls the batch is complete (sealed) from the start;
                without, they are submitted until `seal()` or the block's end.
            timeout: Seconds that the batch may take, from its opening on.
            interrupt_grace: In place of the runner's own.
            fail_fast: The first call whose tool raises cuts its siblings.

        Raises:
            TypeError: An item is no `ToolCall`; nothing was run.
            RunnerClosedError: On entering: the runner was closed.

        Cancellation:
            Leaving the block normally waits for all calls, cancellably;
            leaving it by an exception or a cancellation does not wait.
        """
        given = None if calls is None else checked_calls(calls)
        options = _checked_batch_options(timeout, interrupt_grace, fail_fast)
        return BatchContext(lambda: self._open(*options), given)

    @unbroken
    def _open(
        self, timeout: float | None, interrupt_grace: float | None, fail_fast: bool
    ) -> ToolBatch:
        if self._closed:
            msg = "this runner has been closed"
            raise RunnerClosedError(msg)
        state = self._state(current_hub())
        outer = _outer_call()
        if outer is not None:
            _schedule_family(state, outer)
        engine = BatchEngine(
            state,
            self._tools,
            timeout=timeout,
            interrupt_grace=(
                self._interrupt_grace if interrupt_grace is None else interrupt_grace
            ),
            fail_fast=fail_fast,
            outer=outer,
            approve=self._approve,
            observers=self._observers,
            on_late=self._on_late,
            count_late=self._count_late,
        )
        batch = ToolBatch(engine)
        engine.publisher.show(batch)
        if self._closed:  # by another thread, which did not see this batch
            engine.close_for_runner()
        return batch

    def _state(self, hub: Hub) -> LoopState:
        state = hub.states.get(self)
        if state is None:
            account = DetachedAccount(hub.backend)
            if self._is_for_one:
                account = hub.shared.setdefault("account", account)
            state = LoopState(
                hub,
                max_concurrency=self._max_concurrency,
                max_threads=self._max_threads,
                max_detached=self._max_detached,
                cleanup_grace=self._cleanup_grace,
                account=account,
                approver=(
                    None
                    if self._approve is None
                    else Approver(
                        hub,
                        self._approval_timeout,
                        is_async=kind_of(self._approve) == "async",
                    )
                ),
                shares_claims=self._is_for_one,
            )
            hub.states[self] = state
            with self._lock:
                self._states = [ref for ref in self._states if ref() is not None]
                self._states.append(weakref.ref(state))
        return state

    def _live_states(self) -> list[LoopState]:
        # The list is replaced and appended to, never edited in place: a copy
        # of it is whole, also in a signal handler.
        return [state for ref in list(self._states) if (state := ref()) is not None]

    def _open_engines(self) -> list[BatchEngine]:
        return [engine for state in self._live_states() for engine in list(state.batches)]

    def _count_late(self) -> None:
        with self._lock:
            self._late_results += 1

    # -- ending --------------------------------------------------------------

    def interrupt(self, message: str | None = None, *, grace: float | None = None) -> int:
        """
        Interrupt the batches that are open now, on all loops.

        Args:
            message: Why; goes into the reason of the batches and results.
            grace: Seconds that running calls have to give their own answer.

        Returns:
            How many batches were open and not yet asked to stop. 0 means that
            there was nothing to stop; the next batch is unaffected.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        check_message(message)
        check_seconds("grace", grace)
        # Looked up before any is told: a batch that is opened in answer to the
        # first of them, on another loop, belongs to the turn that comes next.
        return sum(engine.interrupt(message, grace) for engine in self._open_engines())

    async def wait_detached(
        self,
        timeout: float | None = None,
    ) -> bool:
        """
        Wait until no detached call of this loop runs any more.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            True if none is left, False if the time ran out.
        """
        check_seconds("timeout", timeout)
        state = self._state(current_hub())
        with anyio.move_on_after(timeout) as scope:
            await state.wait_for_detached()
        return not (scope.cancelled_caught and len(state.account))

    async def aclose(self) -> None:
        """
        Close the runner: what leaving ``async with`` does; idempotent.

        Open batches are interrupted (``runner_closed``) on all loops; then
        detached work of this loop is waited for, `close_timeout` seconds at
        most. Nothing new can be opened after that.

        Cancellation:
            Ends the wait at once; the runner is closed all the same.
        """
        self._closed = True
        hub = current_hub()
        own = self._state(hub)
        engines = self._open_engines()
        for engine in engines:  # all, before a place that is freed starts a call
            engine.halted = engine.stopping = True
        for engine in engines:
            if engine.state is own:
                engine.close_for_runner()
            else:
                engine.state.hub.post(BatchEngine.close_for_runner, engine)
        try:
            with anyio.move_on_after(self._close_timeout):
                for engine in list(own.batches):
                    await engine.wait_settled()
                await own.wait_for_detached()
        finally:
            hub.finish_chores()

    async def __aenter__(self) -> Self:
        if self._closed:
            msg = "this runner has been closed"
            raise RunnerClosedError(msg)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- looking -------------------------------------------------------------

    def statistics(self) -> RunnerStatistics:
        """
        Return a snapshot over all loops.

        Threads:
            Any; a best effort from outside the loops' own threads.
        """
        states = self._live_states()
        engines = self._open_engines()
        unsettled = [
            record
            for engine in engines
            for record in list(engine.records)
            if not engine.is_settled(record)
        ]
        running: list[CallRecord] = []
        waiting: list[CallRecord] = []
        for record in unsettled:
            (waiting if record.is_waiting else running).append(record)
        accounts = {id(state.account): state.account for state in states}
        detached = [call for account in accounts.values() for call in account.calls()]
        return RunnerStatistics(
            open_batches=len(engines),
            waiting=len(waiting),
            running=len(running),
            running_threads=sum(record.has_thread for record in running),
            detached=tuple(sorted(detached, key=lambda call: call.since)),
            late_results=self._late_results,
            waiting_calls=tuple(waiting_call(record) for record in waiting),
        )

    def __repr__(self) -> str:
        numbers = self.statistics()
        closed = " closed" if self._closed else ""
        kinds = Counter(call.kind for call in numbers.waiting_calls)
        for_what = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
        return (
            f"<ToolRunner{closed} tools={len(self._tools)} "
            f"open_batches={numbers.open_batches} waiting={numbers.waiting}"
            f"{f' ({for_what})' if for_what else ''} "
            f"running={numbers.running} detached={len(numbers.detached)}>"
        )


class BatchOptions(TypedDict, total=False):
    """The options of `run_batch` and `open_batch`: a runner's and a batch's."""

    max_concurrency: int | None
    max_threads: int
    max_detached: int
    interrupt_grace: float
    cleanup_grace: float
    close_timeout: float
    approve: Callable[[ToolCall], Any] | None
    approval_timeout: float | None
    observers: Iterable[Observer]
    on_late: LateHook | None
    timeout: float | None
    fail_fast: bool


async def run_batch(
    calls: Iterable[ToolCall], tools: Tools = (), **options: Unpack[BatchOptions]
) -> list[ToolResult]:
    """
    Run the calls and return one result per call, in call order.

    Needs no set-up and has no lifespan: a `ToolRunner` of its own for the one
    batch. All such batches of a loop share one account of detached calls, so
    that `max_detached` holds across them, and one table of claims.

    Args:
        calls: The calls of one turn.
        tools: As for `ToolRunner`.
        **options: Those of `ToolRunner` and of `ToolRunner.run`.

    Raises:
        TypeError, ValueError: Misuse; nothing was run.
        KeyboardInterrupt: A tool raised it; all calls were settled first.

    Cancellation:
        As for `ToolRunner.run`.
    """
    timeout = options.pop("timeout", None)
    fail_fast = options.pop("fail_fast", False)
    runner = _runner_for_one(tools, options)
    return await runner.run(calls, timeout=timeout, fail_fast=fail_fast)


def open_batch(
    calls: Iterable[ToolCall] | None = None,
    tools: Tools = (),
    **options: Unpack[BatchOptions],
) -> AbstractAsyncContextManager[ToolBatch]:
    """
    Open a batch without a runner, in an ``async with`` block.

    Args:
        calls: As for `ToolRunner.open_batch`.
        tools: As for `ToolRunner`.
        **options: Those of `ToolRunner` and of `ToolRunner.open_batch`.

    Raises:
        TypeError, ValueError: Misuse; nothing was run.
    """
    timeout = options.pop("timeout", None)
    fail_fast = options.pop("fail_fast", False)
    runner = _runner_for_one(tools, options)
    return runner.open_batch(calls, timeout=timeout, fail_fast=fail_fast)


def _runner_for_one(tools: Tools, options: Any) -> ToolRunner:
    runner = ToolRunner(tools, **options)
    runner._is_for_one = True
    return runner


def checked_calls(calls: object) -> list[ToolCall]:
    if isinstance(calls, ToolCall):
        msg = "calls must be an iterable of ToolCalls; put the one call into a list"
        raise TypeError(msg)
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
        msg = f"calls must be an iterable of ToolCalls, not {type(calls).__name__}"
        raise TypeError(msg)
    given = list(calls)
    for call in given:
        check_call(call)
    return given


def _checked_batch_options(
    timeout: object, interrupt_grace: object, fail_fast: object
) -> tuple[Any, Any, bool]:
    check_seconds("timeout", timeout)
    check_seconds("interrupt_grace", interrupt_grace)
    check_flag("fail_fast", fail_fast)
    return timeout, interrupt_grace, bool(fail_fast)


def _checked_observers(observers: object) -> Sequence[Observer]:
    if callable(observers) or not isinstance(observers, Iterable):
        msg = "observers must be an iterable of callables"
        raise TypeError(msg)
    checked = tuple(observers)
    for observer in checked:
        if inspect.iscoroutinefunction(observer):
            msg = "an observer must be a plain function; it is called, not awaited"
            raise TypeError(msg)
        if not callable(observer):
            msg = f"an observer must be callable, not {type(observer).__name__}"
            raise TypeError(msg)
        for name in ("enter_call", "leave_call", "watch_batch"):
            method = getattr(observer, name, None)
            if method is not None and (
                not callable(method) or inspect.iscoroutinefunction(method)
            ):
                msg = (
                    f"an observer's {name} must be a plain function; it is called, not awaited"
                )
                raise TypeError(msg)
    return checked


def _outer_call() -> CallRecord | None:
    """Return the running call that a batch is opened inside of, if it is."""
    outer = current.get(None)
    if outer is None or (outer.ended and not outer.was_cut):
        return None  # the code outlives the call that it was started by
    return outer


def _schedule_family(state: LoopState, outer: CallRecord) -> None:
    """
    Let schedulers decide for a batch that is opened inside a call.

    They know whose places can be lent to it, and who waits for whom: calls that
    have never been in a scheduler could close a circle that nobody sees.
    """
    state.schedule()
    for record in (outer, *ancestors_of(outer.batch)):
        if record.batch.hub is state.hub:
            record.batch.state.schedule()
