"""
Event loops that ask before each step, and have no time of their own.

A *step* is one callback of an asyncio loop, or one task step of trio. Before
each one the loop asks its `World`. Time stands still while there is anything to
do; when nothing is left that could run, the world decides what happens next: it
may have a worker go on, or let time jump to the next deadline.

How a loop knows that it is idle: it makes a pass in which no step was made, has
the world wait until the worker threads have come to rest, and makes one more
such pass, since they may have posted something meanwhile.

The loops are the real ones: asyncio and uvloop with a few methods extended,
trio with a clock and an instrument. Only sockets, signals and the like are not
steps, and are not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVarTuple

import anyio

__all__ = ("LoopControl", "World", "backends", "run_stepped")

Ts = TypeVarTuple("Ts")


def backends() -> tuple[str, ...]:
    """
    Return the names of the backends that `explore` can use here.

    All of ``"asyncio"``, ``"uvloop"``, ``"eager"`` (asyncio with eager tasks) and
    ``"trio"`` that this Python has.
    """
    found = {
        "asyncio": True,
        "uvloop": importlib.util.find_spec("uvloop") is not None,
        "eager": sys.version_info >= (3, 12),
        "trio": importlib.util.find_spec("trio") is not None,
    }
    return tuple(name for name, is_there in found.items() if is_there)


class LoopControl(Protocol):
    """What a loop lets the world do."""

    def next_deadline(self) -> float:
        """Return when the next timer is due; infinity if there is none."""
        ...

    def jump(self) -> None:
        """Let time pass until then."""
        ...

    def tasks_left(self) -> list[str]:
        """Name what runs on the loop besides the task that runs the scenario."""
        ...

    has_native_cancel: bool
    """A task can be cancelled by itself, without a scope."""

    def cancel_main(self) -> None:
        """Cancel the scenario's task so."""
        ...

    def uncancel_main(self) -> None:
        """Forget that it was cancelled; in that task."""
        ...

    def break_main(self) -> None:
        """Raise something in the scenario's task, which is waiting, whatever its shields."""
        ...


class World(Protocol):
    """Who is asked."""

    def before_step(self) -> None: ...

    def after_step(self) -> None: ...

    def wait_quiet(self) -> None:
        """Wait until the worker threads have come to rest."""
        ...

    def idle(self) -> None:
        """Nothing is left that could run: make something happen."""
        ...


class _Idleness:
    """Tells when a loop is idle; see the file's head."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._has_stepped = True
        self._is_quiet = False

    def stepped(self) -> None:
        self._has_stepped = True

    def look(self) -> None:
        """Between two passes."""
        if self._has_stepped:
            self._has_stepped = self._is_quiet = False
        elif not self._is_quiet:
            self._world.wait_quiet()
            self._is_quiet = True
        else:
            self._is_quiet = False
            self._world.idle()


# -- asyncio and uvloop ----------------------------------------------------


if TYPE_CHECKING:
    _AnyLoop = asyncio.SelectorEventLoop
else:
    _AnyLoop = object


class _SteppedLoop(_AnyLoop):
    """What is put before the class of an asyncio loop, whichever."""

    has_native_cancel = True
    _now = 0.0
    main_task: asyncio.Task[Any] | None = None

    def use(self, world: World) -> None:
        self._world = world
        self._idleness = _Idleness(world)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        super().call_soon(self._between_passes)

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._step, callback, args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        if when <= self._now:
            self._fire()
        return timer

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """As `asyncio.TimerHandle.cancel` calls it; cancelled ones are passed over."""

    def _step(self, callback: Any, args: tuple[Any, ...]) -> None:
        self._idleness.stepped()
        self._world.before_step()
        try:
            callback(*args)
        finally:
            self._world.after_step()

    def _between_passes(self) -> None:
        self._idleness.look()
        super().call_soon(self._between_passes)

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self.call_soon(_run_timer, timer)

    # -- for the world -----------------------------------------------------

    def next_deadline(self) -> float:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def jump(self) -> None:
        self._now = max(self.next_deadline(), self._now)
        self._fire()

    def tasks_left(self) -> list[str]:
        tasks = [task for task in asyncio.all_tasks(self) if task is not self.main_task]
        return [f"the task {task.get_name()!r} is still there" for task in tasks]

    def cancel_main(self) -> None:
        assert self.main_task is not None, "it runs the scenario"
        self.main_task.cancel()

    def uncancel_main(self) -> None:
        assert self.main_task is not None, "it runs the scenario"
        while self.main_task.cancelling():
            self.main_task.uncancel()

    def break_main(self) -> None:
        self.cancel_main()


def _run_timer(timer: asyncio.TimerHandle) -> None:
    if not timer.cancelled():
        timer._run()


def _asyncio_factory(world: World, backend: str) -> Callable[[], Any]:
    base: Any = asyncio.SelectorEventLoop
    if backend == "uvloop":
        import uvloop

        base = uvloop.Loop
    # Made anew each time, at little cost: `type` can't be told of uvloop beforehand.
    loop_class: Any = type("SteppedLoop", (_SteppedLoop, base), {"__module__": __name__})

    def make() -> Any:
        loop = loop_class()
        loop.use(world)
        if backend == "eager":
            loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return loop

    return make


# -- trio ------------------------------------------------------------------


class BrokenOff(BaseException):
    """Raised in a scenario that can't be ended otherwise."""


class _TrioControl:
    """A clock that stands still, and an instrument that sees each step."""

    has_native_cancel = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._idleness = _Idleness(world)
        self._now = 0.0
        self._deadline = math.inf
        self._tasks_at_first = 0
        self._main_task: Any = None

    # -- a `trio.abc.Clock`

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # Asked by trio when no task can run.
        self._deadline = deadline
        if deadline > self._now:
            self._idleness.look()
        return 0.0

    # -- a `trio.abc.Instrument`

    def before_task_step(self, _task: object) -> None:
        self._idleness.stepped()
        self._world.before_step()

    def after_task_step(self, _task: object) -> None:
        self._world.after_step()

    # -- for the world

    def begin(self) -> None:
        import trio

        self._main_task = trio.lowlevel.current_task()
        self._tasks_at_first = trio.lowlevel.current_statistics().tasks_living

    def next_deadline(self) -> float:
        return self._deadline

    def jump(self) -> None:
        self._now = max(self._deadline, self._now)

    def tasks_left(self) -> list[str]:
        import trio

        more = trio.lowlevel.current_statistics().tasks_living - self._tasks_at_first
        return [f"{more} tasks are still there"] if more else []

    def cancel_main(self) -> None:
        msg = "trio cancels scopes, not tasks"
        raise NotImplementedError(msg)

    def uncancel_main(self) -> None: ...

    def break_main(self) -> None:
        import outcome
        import trio

        trio.lowlevel.reschedule(self._main_task, outcome.Error(BrokenOff()))


@contextlib.contextmanager
def _trio_order(seed: int) -> Iterator[None]:
    """Have trio choose the order of its tasks by a seed, as it does for Hypothesis."""
    import trio

    core: Any = trio._core._run
    was, state = core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    try:
        yield
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = was
        core._r.setstate(state)


# -- running ---------------------------------------------------------------


def run_stepped(
    backend: str,
    seed: int,
    world: World,
    main: Callable[[LoopControl], Coroutine[Any, Any, None]],
) -> None:
    """Run an async function on a loop that asks the world before each step."""
    if backend not in backends():
        msg = f"backend must be one of {', '.join(backends())}, not {backend!r}"
        raise ValueError(msg)
    if backend != "trio":

        async def on_asyncio() -> None:
            loop: Any = asyncio.get_running_loop()
            loop.main_task = asyncio.current_task()
            await main(loop)

        factory = _asyncio_factory(world, backend)
        anyio.run(on_asyncio, backend_options={"loop_factory": factory})
        return
    control = _TrioControl(world)

    async def on_trio() -> None:
        control.begin()
        await main(control)

    options = {"clock": control, "instruments": [control]}
    with _trio_order(seed):
        anyio.run(on_trio, backend="trio", backend_options=options)
