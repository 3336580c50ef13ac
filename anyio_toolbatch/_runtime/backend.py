"""
The one file that knows asyncio and trio.

It gives the rest of the runtime what anyio has no public word for: posting to
a loop from any thread without waiting, timers without a task, one waiter to
park on, a background task that outlives its caller, and telling whose
cancellation it is that enters a coroutine.

Loops are held weakly: a detached worker may hold a batch, and through it one
of these objects, long after the loop has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import itertools
import logging
import math
import os
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import anyio

if TYPE_CHECKING:
    import trio

__all__ = (
    "Backend",
    "Group",
    "GroupItem",
    "LoopGoneError",
    "Timer",
    "Waiter",
    "after_fork",
    "backend_of",
    "current_loop_key",
    "forget_library",
    "local_of",
    "on_loop",
    "unbroken",
    "worker_context",
)


GroupItem = tuple[Callable[..., Coroutine[Any, Any, None]], Any, contextvars.Context, str]
"""A function, its argument, the context and the name of the task to run it in."""


logger = logging.getLogger(__name__)


class LoopGoneError(RuntimeError):
    """The event loop has been closed, or collected."""


F = TypeVar("F", bound=Callable[..., Any])
_unbroken: list[Callable[..., Any]] = []


def unbroken(function: F) -> F:
    """
    Mark a function that a Ctrl-C must not cut in two.

    trio raises KeyboardInterrupt at any line of the main thread, unless the
    running code is protected; then the main task has it at its next
    checkpoint. asyncio's runner cancels the main task instead, and needs no
    such mark.
    """
    _unbroken.append(function)
    return function


@functools.cache
def _protect_from_breaks() -> None:
    import trio

    for function in _unbroken:
        trio.lowlevel.enable_ki_protection(function)


class Waiter(Protocol):
    """What one task parks on. `set` is idempotent and belongs to the loop's thread."""

    def set(self) -> None: ...

    async def wait(self) -> None: ...


class Timer(Protocol):
    """A pending call of a function; `cancel` is idempotent."""

    def cancel(self) -> None: ...


class Group(Protocol):
    """A background task that runs tasks until the last of them has ended."""

    def spawn(
        self,
        function: Callable[..., Coroutine[Any, Any, None]],
        argument: Any,
        context: contextvars.Context,
        name: str,
    ) -> bool:
        """Start ``function(argument)``; False if the group has ended."""
        ...


class Backend(ABC):
    """One event loop, as the runtime sees it."""

    name: str
    clock: Callable[[], float]
    """The loop's clock in seconds; may be read from any thread."""
    cancelled_class: type[BaseException]
    cancels_again: bool
    """A cancelled scope cancels again on every pass, not only where the task waits."""
    scope_class: Callable[..., anyio.CancelScope]
    """Makes a cancel scope; called in a task of this loop."""
    hops_to_run_after_wake: int
    """How many posts later a callback surely runs after a task woken now."""

    @property
    @abstractmethod
    def key(self) -> Any:
        """The native loop; what tables are (weakly) keyed by."""

    @property
    @abstractmethod
    def is_closed(self) -> bool: ...

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether the loop is being run; from any thread."""

    @abstractmethod
    def post(self, function: Callable[[], None]) -> None:
        """
        Have `function` called on the loop; from any thread, or a signal handler.

        Raises:
            LoopGoneError: It will never be called.
        """

    @abstractmethod
    def call_later(self, delay: float, function: Callable[[], None]) -> Timer:
        """Call `function` after `delay` seconds; from the loop's thread."""

    @abstractmethod
    def waiter(self) -> Waiter: ...

    @abstractmethod
    def start_group(
        self,
        first: GroupItem,
        *,
        on_end: Callable[[Any], None],
        on_teardown: Callable[[], None],
    ) -> Group:
        """
        Start a background task that runs a group of tasks, `first` of all.

        Args:
            first: The arguments of the first `spawn`.
            on_end: Called with the argument of each task that ended, also
                of one that was cancelled before its first step.
            on_teardown: Called when the loop itself is being ended, so that
                what shields the tasks from outer cancellation is taken down.
        """

    @abstractmethod
    def start_background(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """
        Run an async function as a task that belongs to the loop.

        It is cancelled when the loop is ended.

        Raises:
            RuntimeError: The loop is past that.
        """

    @abstractmethod
    async def next_pass(self) -> None:
        """Let the loop make a pass; cancellable."""

    @abstractmethod
    def carries(self, mark: str, sent: Any, thrown: BaseException | None) -> bool:
        """Tell whether what enters a coroutine is the cancellation with this mark."""

    @abstractmethod
    def is_wait(self, yielded: Any) -> bool:
        """Tell whether what a coroutine yields is a wait, not a mere checkpoint."""

    @abstractmethod
    def own_nurseries(self) -> tuple[Any, ...]:
        """Return the task groups that the current task holds open, as the loop sees them."""


# -- asyncio ---------------------------------------------------------------


class _AsyncioWaiter:
    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future


class _AsyncioBackend(Backend):
    name = "asyncio"
    cancelled_class = asyncio.CancelledError
    cancels_again = True
    # A woken task and a later callback stand in one queue, in order.
    hops_to_run_after_wake = 1

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self.clock = _asyncio_clock(loop)
        self.scope_class = _asyncio_scope_class()
        self._context = on_loop(contextvars.Context(), self)

    @property
    def key(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        if loop is None:
            raise LoopGoneError
        return loop

    @property
    def is_closed(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    @property
    def is_running(self) -> bool:
        loop = self._loop()
        return loop is not None and loop.is_running()

    def post(self, function: Callable[[], None]) -> None:
        loop = self._loop()
        if loop is None:
            raise LoopGoneError
        try:
            loop.call_soon_threadsafe(function, context=self._context)
        except RuntimeError:
            raise LoopGoneError from None

    def call_later(self, delay: float, function: Callable[[], None]) -> Timer:
        return self.key.call_later(min(delay, _MAX_DELAY), function, context=self._context)

    def waiter(self) -> Waiter:
        return _AsyncioWaiter(self.key)

    def start_group(
        self,
        first: GroupItem,
        *,
        on_end: Callable[[Any], None],
        on_teardown: Callable[[], None],
    ) -> Group:
        # At the loop's end asyncio cancels every task natively, which no
        # scope keeps out: there is nothing to take down.
        del on_teardown
        return _AsyncioGroup(self.key, first, on_end)

    def start_background(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = self.key
        if loop.is_closed():
            raise LoopGoneError
        task = loop.create_task(
            function(), name="anyio_toolbatch chores", context=contextvars.Context()
        )
        tasks: set[asyncio.Task[None]] = local_of(loop, "background", set)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def next_pass(self) -> None:
        await asyncio.sleep(0)

    def carries(self, mark: str, sent: Any, thrown: BaseException | None) -> bool:
        return (
            isinstance(thrown, asyncio.CancelledError)
            and bool(thrown.args)
            and isinstance(thrown.args[0], str)
            and mark in thrown.args[0]
        )

    def is_wait(self, yielded: Any) -> bool:
        return yielded is not None  # a bare yield is ``sleep(0)``

    def own_nurseries(self) -> tuple[Any, ...]:
        return ()


class _AsyncioGroup:
    """
    Tasks, and the host task that holds them.

    By hand, since one callback a task does here what `asyncio.TaskGroup`
    would do with one of its own beside ours (measured: 2 µs a call), and
    since no child of ours ever raises. The host's context is empty: it
    outlives the caller and must keep nothing of it alive. asyncio holds tasks
    weakly, so the loop is given a strong reference while there are any.
    """

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_ended",
        "_hosts",
        "_is_over",
        "_loop",
        "_on_end",
        "_task",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        first: GroupItem,
        on_end: Callable[[Any], None],
    ) -> None:
        self._loop = weakref.ref(loop)
        self._on_end = on_end
        self._is_over = False
        self._arguments: dict[asyncio.Task[None], Any] = {}
        self._ended: asyncio.Future[None] | None = None
        self._hosts: set[_AsyncioGroup] = local_of(loop, "hosts", set)
        self._task: asyncio.Task[None] | None = None
        self.spawn(*first)
        task = loop.create_task(
            self._hold(), name="anyio_toolbatch host", context=contextvars.Context()
        )
        if not task.done():  # an eager one may be
            self._task = task

    async def _hold(self) -> None:
        """Live as long as there are tasks; who cancels the host cancels them."""
        try:
            while self._arguments:
                self._ended = asyncio.get_running_loop().create_future()
                try:
                    await self._ended
                except asyncio.CancelledError:
                    for task in list(self._arguments):
                        task.cancel()
        finally:
            # A batch may be kept for long, and must not keep the loop.
            self._is_over = True
            self._task = self._ended = None

    def spawn(
        self,
        function: Callable[..., Coroutine[Any, Any, None]],
        argument: Any,
        context: contextvars.Context,
        name: str,
    ) -> bool:
        loop = self._loop()
        if loop is None or self._is_over or (self._task is not None and self._task.done()):
            return False
        if not self._arguments:
            self._hosts.add(self)
        task = loop.create_task(function(argument), name=name, context=context)
        self._arguments[task] = argument
        task.add_done_callback(self._done)
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        argument = self._arguments.pop(task)
        if not self._arguments:
            self._hosts.discard(self)
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)
        self._on_end(argument)


@functools.cache
def _asyncio_scope_class() -> Any:
    # What `anyio.CancelScope()` gives on asyncio; asking for it by its class
    # saves two look-ups of the running library a call.
    return type(anyio.CancelScope())


def _asyncio_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """
    Return what `loop.time` would, callable from any thread.

    The standard loops use `time.monotonic`. uvloop's `time` has its scale,
    but stands still during a callback. Only a loop that has a clock of its
    own (virtual time) is asked, through a weak reference.
    """
    standard = asyncio.BaseEventLoop.time
    if type(loop).time is standard or type(loop).__module__.startswith("uvloop"):
        return time.monotonic
    reference = weakref.ref(loop)

    def clock() -> float:
        alive = reference()
        return time.monotonic() if alive is None else alive.time()

    return clock


# -- trio ------------------------------------------------------------------


class _TrioWaiter:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        import trio

        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class _TrioBackend(Backend):
    name = "trio"
    cancels_again = False
    # One round wakes tasks and runs posts in random order; the post after
    # the next is in a later round.
    hops_to_run_after_wake = 2

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        import trio

        _protect_from_breaks()
        self._token = weakref.ref(token)
        self.clock = trio.lowlevel.current_clock().current_time
        self._timers = _TrioTimers()
        self.cancelled_class = trio.Cancelled
        self.scope_class = cast("Any", trio.CancelScope)
        self._wait_class: type = _trio_wait_class()

    @property
    def key(self) -> trio.lowlevel.TrioToken:
        token = self._token()
        if token is None:
            raise LoopGoneError
        return token

    @property
    def is_closed(self) -> bool:
        token = self._token()
        if token is None:
            return True
        try:
            token.run_sync_soon(_nothing, idempotent=True)
        except Exception:  # noqa: BLE001 - RunFinishedError, without importing trio
            return True
        return False

    @property
    def is_running(self) -> bool:
        return not self.is_closed  # there is no pausing it

    def post(self, function: Callable[[], None]) -> None:
        import trio

        token = self._token()
        if token is None:
            raise LoopGoneError
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise LoopGoneError from None

    def call_later(self, delay: float, function: Callable[[], None]) -> Timer:
        return self._timers.add(self.clock() + delay, function)

    def waiter(self) -> Waiter:
        return _TrioWaiter()

    def start_group(
        self,
        first: GroupItem,
        *,
        on_end: Callable[[Any], None],
        on_teardown: Callable[[], None],
    ) -> Group:
        return _TrioGroup(first, on_end, on_teardown)

    def start_background(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import trio

        trio.lowlevel.spawn_system_task(
            function, name="anyio_toolbatch chores", context=contextvars.Context()
        )

    async def next_pass(self) -> None:
        import trio

        await trio.lowlevel.checkpoint()

    def carries(self, mark: str, sent: Any, thrown: BaseException | None) -> bool:
        # trio sends an outcome in; a cancellation is its error, not thrown.
        error = getattr(sent, "error", None) if thrown is None else thrown
        return isinstance(error, self.cancelled_class) and _trio_reason(error) == mark

    def is_wait(self, yielded: Any) -> bool:
        return isinstance(yielded, self._wait_class)

    def own_nurseries(self) -> tuple[Any, ...]:
        import trio

        return tuple(trio.lowlevel.current_task().child_nurseries)


def _trio_reason(error: BaseException) -> object:
    return getattr(error, "reason", None)


@functools.cache
def _trio_wait_class() -> type:
    """Return the class of the message by which a trio task parks itself."""
    import trio

    # Not public by name; found by asking: this is what the documented
    # `wait_task_rescheduled` sends to trio's loop.
    parked: Any = trio.lowlevel.wait_task_rescheduled(_never_abort)  # noqa: ASYNC105 - it is only looked at
    message = parked.send(None)
    parked.close()
    return type(message)


def _never_abort(_raise_cancel: object) -> Any:  # pragma: no cover - never called
    import trio

    return trio.lowlevel.Abort.FAILED


def _nothing() -> None: ...


class _TrioGroup:
    """
    A nursery in a system task.

    Two nurseries: the inner one runs the calls, whose scopes are shielded, so
    that one call that ends its task badly (a nursery left open) cannot cancel
    the others; the outer one has a watcher that feels the end of the run.
    """

    __slots__ = ("__weakref__", "_closed", "_nursery", "_on_end", "_on_teardown", "_pending")

    def __init__(
        self,
        first: GroupItem,
        on_end: Callable[[Any], None],
        on_teardown: Callable[[], None],
    ) -> None:
        import trio

        self._on_end = on_end
        self._on_teardown = on_teardown
        self._pending = [first]
        self._nursery: trio.Nursery | None = None
        self._closed = False
        trio.lowlevel.spawn_system_task(
            self._run, name="anyio_toolbatch host", context=contextvars.Context()
        )

    async def _run(self) -> None:
        import trio

        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._watch)
                try:
                    async with trio.open_nursery() as self._nursery:
                        for item in self._pending:
                            self._start(self._nursery, *item)
                        self._pending.clear()
                finally:
                    self._closed = True
                    self._nursery = None
                    outer.cancel_scope.cancel()
        except BaseException as exc:
            # A call that left a nursery or scope open has been answered as a
            # failure already. What else there may be is a fault of ours.
            ours = _not_corrupted(exc)
            if ours is not None:
                logger.exception("error in the host of a batch", exc_info=ours)

    async def _watch(self) -> None:
        import trio

        try:
            await trio.sleep_forever()
        finally:
            if not self._closed:
                self._on_teardown()

    def spawn(
        self,
        function: Callable[..., Coroutine[Any, Any, None]],
        argument: Any,
        context: contextvars.Context,
        name: str,
    ) -> bool:
        if self._closed:
            return False
        if self._nursery is None:
            self._pending.append((function, argument, context, name))
            return True
        return self._start(self._nursery, function, argument, context, name)

    def _start(
        self,
        nursery: trio.Nursery,
        function: Callable[..., Coroutine[Any, Any, None]],
        argument: Any,
        context: contextvars.Context,
        name: str,
    ) -> bool:
        try:
            context.run(self._spawn_in, nursery, function, argument, name)
        except RuntimeError:  # the nursery is closed to new arrivals
            return False
        return True

    def _spawn_in(
        self,
        nursery: trio.Nursery,
        function: Callable[..., Coroutine[Any, Any, None]],
        argument: Any,
        name: str,
    ) -> None:
        nursery.start_soon(self._child, function, argument, name=name)

    @unbroken
    async def _child(
        self, function: Callable[..., Coroutine[Any, Any, None]], argument: Any
    ) -> None:
        try:
            await function(argument)
        finally:
            self._on_end(argument)


def _not_corrupted(error: BaseException) -> BaseException | None:
    """Return what is left of an error without cancellations and misnested scopes."""
    import trio

    if isinstance(error, trio.Cancelled):
        return None
    if isinstance(error, RuntimeError) and "corrupted" in str(error):
        return None
    if isinstance(error, BaseExceptionGroup):
        left = [e for e in error.exceptions if _not_corrupted(e) is not None]
        return BaseExceptionGroup("in a host", left) if left else None
    return error


class _TrioTimer:
    __slots__ = ("__weakref__", "_owner", "function")

    def __init__(self, owner: _TrioTimers, function: Callable[[], None]) -> None:
        self._owner: _TrioTimers | None = owner
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        if self.function is not None:
            self.function = None
            owner, self._owner = self._owner, None
            if owner is not None:
                owner.dropped()


class _TrioTimers:
    """
    Timers without a task each: one system task, there while a timer is.

    trio has no ``call_later``; a task that sleeps until the nearest deadline
    serves all, and is gone when the last timer is.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _TrioTimer]] = []
        self._numbers = itertools.count()
        self._live = 0
        self._scope: trio.CancelScope | None = None
        self._runs = False

    def add(self, deadline: float, function: Callable[[], None]) -> Timer:
        import trio

        timer = _TrioTimer(self, function)
        heapq.heappush(self._heap, (deadline, next(self._numbers), timer))
        self._live += 1
        if not self._runs:
            self._runs = True
            trio.lowlevel.spawn_system_task(
                self._run, name="anyio_toolbatch timers", context=contextvars.Context()
            )
        elif self._scope is not None and deadline < self._scope.deadline:
            self._scope.deadline = deadline
        return timer

    def dropped(self) -> None:
        self._live -= 1
        if not self._live:
            self._heap.clear()
            if self._scope is not None:
                self._scope.deadline = -math.inf
        elif len(self._heap) > 2 * self._live + 64:
            self._heap = [item for item in self._heap if item[2].function is not None]
            heapq.heapify(self._heap)

    async def _run(self) -> None:
        import trio

        try:
            while self._heap:
                with trio.CancelScope(deadline=self._heap[0][0]) as self._scope:
                    await trio.sleep_forever()
                self._scope = None
                self._fire(trio.current_time())
        finally:
            # Ended early only where the run itself ends.
            self._scope = None
            self._runs = False

    def _fire(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            function, timer.function = timer.function, None
            if function is not None:
                self._live -= 1
                try:
                    function()
                except BaseException:
                    logger.exception("error in a timer")


# -- which one -------------------------------------------------------------


def backend_of(key: Any) -> Backend:
    """Return a new `Backend` for the running loop whose key this is."""
    if isinstance(key, asyncio.AbstractEventLoop):
        return _AsyncioBackend(key)
    return _TrioBackend(key)


def current_loop_key() -> Any:
    """
    Return the native loop that runs the current task.

    trio is asked for its current *task*: in guest mode trio and asyncio share
    a thread, and only the task tells who is at work.
    """
    if "trio" in sys.modules:
        import trio

        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            pass
        else:
            return trio.lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        msg = "no asyncio or trio event loop is running in this thread"
        raise anyio.NoEventLoopError(msg) from None


T = TypeVar("T")


def local_of(key: Any, name: str, make: Callable[[], T]) -> T:
    """
    Return what is kept under `name` for the loop, made if missing.

    It is kept *on* the loop and so goes with it: there is no table of loops
    to be cleaned, and nothing here keeps a loop alive. From its thread only.
    """
    if isinstance(key, asyncio.AbstractEventLoop):
        attribute = f"_anyio_toolbatch_{name}"
        try:
            value: T = getattr(key, attribute)
        except AttributeError:
            value = make()
            setattr(key, attribute, value)
        return value
    variable = _trio_variable(name)
    try:
        return cast("T", variable.get())
    except LookupError:
        value = make()
        variable.set(value)
        return value


@functools.cache
def _trio_variable(name: str) -> Any:
    import trio

    return trio.lowlevel.RunVar(f"anyio_toolbatch_{name}")


# -- contexts --------------------------------------------------------------


def worker_context() -> contextvars.Context:
    """
    Copy the current context for a call.

    sniffio's variable is reset in the copy: a worker thread that inherits
    "asyncio" could not start a loop of its own ("already running asyncio").
    Tasks on the loop do not need it; they are recognised as tasks.
    """
    context = contextvars.copy_context()
    variable = _sniffio_variable()
    if variable is not None and context.get(variable) is not None:
        context.run(variable.set, None)
    return context


def forget_library() -> None:
    """Reset sniffio's variable as `worker_context` does, in the current context of a task."""
    variable = _sniffio_variable()
    if variable is not None:
        variable.set(None)


def on_loop(context: contextvars.Context, backend: Backend) -> contextvars.Context:
    """Return a copy of a context for callbacks on the loop, where no task is current."""
    copy = context.copy()
    variable = _sniffio_variable()
    if variable is not None:
        copy.run(variable.set, backend.name)
    return copy


def _sniffio_variable() -> contextvars.ContextVar[str | None] | None:
    module = sys.modules.get("sniffio")
    return None if module is None else module.current_async_library_cvar


_MAX_DELAY = 86_400.0 * 365  # seconds; asyncio's selectors refuse much more


def after_fork(function: Callable[[], None]) -> None:
    """Have `function` called in the child after each `os.fork`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
