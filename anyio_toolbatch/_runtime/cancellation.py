"""
Telling an async tool to stop: one cancellation, then a pause in which it can tidy up.

A cancelled scope cancels again: trio at every checkpoint, anyio on asyncio on
every pass of the loop. A tool that closes a connection in its ``finally``
would be cancelled inside that close, which then never completes, and a deaf
tool would spin the loop at 100 % CPU. So each call runs in two scopes:

* the *outer* scope is cancelled, once, with a mark of this call as reason;
* the *inner* scope is shielded as soon as that cancellation has entered the
  tool, *before* it is passed on: from then on the tool's awaits work.

`_drive` stands between the tool's coroutine and the event loop, sees what
enters the coroutine and what it waits for, and so knows when. The mark tells
our cancellation from all others: a tool's own deadline ends in one too.

Cases in which a raised shield would do harm, and what is done instead:

1. *A scope of the tool's own is cancelled as well* (its deadline passed in the
   same moment). With our shield up, that scope would take our cancellation
   for its own and swallow it. `current_effective_deadline()` still says −inf
   then: the shield stays down while the tool runs and is raised when it waits.
2. *A nursery of the tool's own is open* (trio). It would swallow the
   cancellation when it closes. Same treatment while it is open.
3. *The cancellation does not arrive*: the tool is in a shield of its own,
   awaits something that refuses to be cancelled, or something that takes its
   time over it, such as an `asyncio.gather` of clean-ups. The shield goes up
   all the same (at once on asyncio, whose scopes cancel again on every pass;
   after `UNSEEN_SECONDS` on trio), and down whenever the tool runs, so that
   it is cancelled as soon as it can be.

Whoever ignores a cancellation gets another after `cleanup_grace` seconds, and
then after twice as long each time.

Two things stay as anyio and trio have them: tasks that the tool has started in
a task group of its own are cancelled again and again by that group; and on
trio a clean-up behind such a group gets a second cancellation.

All of this runs on the loop's thread.
"""

from __future__ import annotations

import heapq
import itertools
import math
import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any

import anyio

from .backend import Backend, Timer
from .blocked_loop import LONG_STEP
from .foreign_values import is_a
from .tool_body import Ready

__all__ = ("Draining", "Stopper", "outcome_of_close", "run_stoppable")

UNSEEN_SECONDS = 0.05
"""How long a cancellation may take to enter the tool before case 3 applies.
Chosen: long against a loop pass, short against a person's patience."""


class Stopper:
    """The two scopes of one async call, and what has become of its cancellation."""

    __slots__ = (
        "_backend",
        "_inner",
        "_lower_to_run",
        "_mark",
        "_nurseries",
        "_outer",
        "_released",
        "_unseen",
        "ended",
        "on_long_step",
        "told",
    )

    def __init__(
        self,
        backend: Backend,
        mark: str,
        on_long_step: Callable[[float, float], None] | None = None,
    ) -> None:
        self._backend = backend
        self._mark = mark
        # Shielded: on trio, a sibling that corrupts the host's nursery must
        # not reach this call.
        self._outer = backend.scope_class(shield=True)
        self._inner = backend.scope_class()
        self.told = False
        self.ended = False
        self.on_long_step = on_long_step
        """Called with begin and end of a step that has held a loop that others share."""
        self._unseen = False
        self._lower_to_run = False
        self._released = False
        self._nurseries: tuple[Any, ...] = ()

    @property
    def cancelled_class(self) -> type[BaseException]:
        return self._backend.cancelled_class

    # -- from the loop, outside the tool -----------------------------------

    def tell(self) -> None:
        """Cancel the tool, once; calling it again is a pulse."""
        if self.ended or self._released:
            return
        self._unseen = True
        if not self.told:
            self.told = True
            self._outer.cancel(reason=self._mark)
        else:
            self._inner.shield = False
        if self._backend.cancels_again:
            # That was one, given synchronously. What the tool waits through
            # (a gather, another task) must not get a second while it cleans up.
            self.hush()

    def hush(self) -> None:
        """Raise the shield: the cancellation has not arrived (case 3), or one is enough."""
        if self._unseen and not self.ended and not self._released:
            self._lower_to_run = True
            self._inner.shield = True

    def release(self) -> None:
        """Take all shields down for good: the event loop itself is being ended."""
        self._released = True
        self._outer.shield = False
        self._inner.shield = False

    # -- from inside the tool's task ---------------------------------------

    def was_long(self, begun_at: float) -> None:
        """The tool has come to a halt only now."""
        if self.on_long_step is not None:
            self.on_long_step(begun_at, perf_counter())

    def entering(self, sent: Any, thrown: BaseException | None) -> None:
        """The tool is about to be resumed with this."""
        if self._released:
            return
        if self._unseen and self._backend.carries(self._mark, sent, thrown):
            self._unseen = False
            self._nurseries = self._backend.own_nurseries()
            self._lower_to_run = bool(self._nurseries) or not self._shielded()
        if self._lower_to_run:
            self._inner.shield = False

    def waiting(self, yielded: Any) -> None:
        """The tool has come to a halt, waiting for this."""
        if not self._lower_to_run or self._released or not self._backend.is_wait(yielded):
            return
        if self._unseen:
            # Case 3: if the tool has left its own shield, leave ours down.
            if anyio.current_effective_deadline() != -math.inf:
                self._inner.shield = True
            return
        if self._shielded() and not self._still_open():
            self._lower_to_run = False

    def _shielded(self) -> bool:
        """Raise the shield; lower it again if a scope of the tool's own is cancelled."""
        self._inner.shield = True
        if anyio.current_effective_deadline() == -math.inf:
            self._inner.shield = False
            return False
        return True

    def _still_open(self) -> bool:
        if self._nurseries:
            now_open = self._backend.own_nurseries()
            self._nurseries = tuple(n for n in self._nurseries if n in now_open)
        return bool(self._nurseries)


class Outcome:
    """How an async tool ended: with a value, an error, or by our cancellation."""

    __slots__ = ("error", "stopped", "value")

    def __init__(self, value: Any, error: BaseException | None, stopped: bool) -> None:
        self.value = value
        self.error = error
        self.stopped = stopped


async def run_stoppable(stopper: Stopper, body: Callable[[], Any]) -> Outcome:
    """
    Start a body and run the coroutine that it gives, if any, to its end; never raises.

    Returns:
        The outcome. `stopped` is true where the tool was told to stop and its
        cancellation came out of it. A scope or task group that the tool has
        left open is an error of the tool.
    """
    value: Any = None
    through = False
    try:
        with stopper._outer, stopper._inner:
            coroutine: Coroutine[Any, Any, Any] | None = None
            yielded: Any = None
            begun_at = perf_counter()
            try:
                value = body()
                if type(value) is Ready:
                    value = value.value
                elif is_a(value, Coroutine):
                    # The first step here: many tools need no other.
                    coroutine = value
                    try:
                        yielded = coroutine.send(None)
                    except StopIteration as end:
                        value, coroutine = end.value, None
            finally:
                if perf_counter() - begun_at > LONG_STEP:
                    stopper.was_long(begun_at)
            if coroutine is not None:
                value = await _drive(stopper, coroutine, yielded)
            through = True
    except BaseException as exc:  # noqa: BLE001 - contained here, whatever it is
        # A tool may answer our cancellation with a bare one of its own.
        stopped = stopper.told and is_a(exc, stopper.cancelled_class)
        return Outcome(None, exc, stopped=stopped)
    finally:
        stopper.ended = True
    if through:
        return Outcome(value, None, stopped=False)
    return Outcome(None, None, stopped=True)


def outcome_of_close(error: GeneratorExit, backend: Backend) -> Outcome:
    """
    Return the outcome where `run_stoppable` was closed, and its task goes on.

    What a future was given as its error, asyncio throws into the task that awaits it. A
    GeneratorExit then closes every coroutine but the task's own: there it comes out,
    and whoever is that has to look for it.

    Raises:
        GeneratorExit: The task itself is being closed, without a loop.
    """
    if not backend.is_running:
        raise error
    return Outcome(None, error, stopped=False)


@types.coroutine
def _drive(
    stopper: Stopper, coroutine: Coroutine[Any, Any, Any], yielded: Any
) -> Generator[Any, Any, Any]:
    """
    Run `coroutine` on as ``await`` would, and let the stopper see what passes.

    Args:
        stopper: Of this call.
        coroutine: Has made its first step,
        yielded: and waits for this.
    """
    send = coroutine.send
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        if stopper.told:
            stopper.waiting(yielded)
        try:
            sent = yield yielded
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as exc:  # noqa: BLE001 - handed to the tool
            thrown = exc
        if stopper.told:
            stopper.entering(sent, thrown)
        # Neither stays in this frame: an exception refers to the frames that it came
        # through. On trio a cancellation is in what is sent.
        value, sent = sent, None
        error, thrown = thrown, None
        begun_at = perf_counter()
        try:
            yielded = send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            value = error = None
            if perf_counter() - begun_at > LONG_STEP:
                stopper.was_long(begun_at)


class Draining:
    """
    Looks after async calls that were told to stop, until all have ended.

    Each has its own times: first to raise its shield if its cancellation has
    not arrived, then for its next pulse, after a pause that doubles each time.
    One timer serves them all, set for the nearest; when the last call has
    ended nothing is left on the loop.
    """

    __slots__ = (
        "_backend",
        "_due",
        "_first_pause",
        "_live",
        "_numbers",
        "_timer",
        "_timer_at",
    )

    def __init__(self, backend: Backend, cleanup_grace: float) -> None:
        self._backend = backend
        self._first_pause = max(cleanup_grace, UNSEEN_SECONDS)
        # When, a tie-breaker, who, the pause before the next pulse (0: hush).
        self._due: list[tuple[float, int, Stopper, float]] = []
        self._numbers = itertools.count()
        self._live: set[Stopper] = set()
        self._timer: Timer | None = None
        self._timer_at = math.inf

    def add(self, stopper: Stopper) -> None:
        """Tell one call to stop and look after it."""
        self._live.add(stopper)
        self._pulse(stopper, self._first_pause)
        self._arm()

    def ended(self, stopper: Stopper) -> None:
        """The call has ended."""
        self._live.discard(stopper)
        if not self._live:
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._timer_at = math.inf

    def _pulse(self, stopper: Stopper, pause: float) -> None:
        stopper.tell()
        now = self._backend.clock()
        self._push(now + UNSEEN_SECONDS, stopper, 0.0)
        # The pause begins when the cancellation has surely arrived.
        self._push(now + UNSEEN_SECONDS + pause, stopper, pause * 2)

    def _push(self, at: float, stopper: Stopper, pause: float) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), stopper, pause))

    def _arm(self) -> None:
        """Set the timer for the nearest time, if it is not set for that already."""
        if not self._due or self._due[0][0] >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._due[0][0]
        try:
            self._timer = self._backend.call_later(
                max(self._timer_at - self._backend.clock(), 0.0), self._look
            )
        except RuntimeError:  # the loop is being ended, and ends the calls itself
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self._backend.clock()
        while self._due and self._due[0][0] <= now:
            _, _, stopper, pause = heapq.heappop(self._due)
            if stopper not in self._live:
                continue
            if pause:
                self._pulse(stopper, pause)
            else:
                stopper.hush()
        self._arm()
