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
3. *The cancellation does not arrive*: the tool is in a shield of its own, or
   awaits something that refuses to be cancelled. After `UNSEEN_SECONDS` the
   shield goes up, so that nothing spins, and down whenever the tool runs, so
   that it is cancelled as soon as it can be.

Whoever ignores a cancellation gets another after `cleanup_grace` seconds, and
then after twice as long each time.

Two things stay as anyio and trio have them: tasks that the tool has started in
a task group of its own are cancelled again and again by that group; and on
trio a clean-up behind such a group gets a second cancellation.

All of this runs on the loop's thread.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import anyio

from .backend import Backend, Timer

__all__ = ("Draining", "Stopper", "run_stoppable")

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
        "told",
    )

    def __init__(self, backend: Backend, mark: str) -> None:
        self._backend = backend
        self._mark = mark
        # Shielded: on trio, a sibling that corrupts the host's nursery must
        # not reach this call.
        self._outer = backend.scope_class(shield=True)
        self._inner = backend.scope_class()
        self.told = False
        self.ended = False
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

    def hush(self) -> None:
        """Raise the shield if the cancellation has not arrived (case 3)."""
        if self._unseen and not self.ended and not self._released:
            self._lower_to_run = True
            self._inner.shield = True

    def release(self) -> None:
        """Take all shields down for good: the event loop itself is being ended."""
        self._released = True
        self._outer.shield = False
        self._inner.shield = False

    # -- from `_drive`, inside the tool's task -----------------------------

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
            value = body()
            if isinstance(value, Coroutine):
                # The first step here: many tools need no other.
                coroutine = value
                try:
                    yielded = coroutine.send(None)
                except StopIteration as end:
                    value = end.value
                else:
                    value = await _drive(stopper, coroutine, yielded)
            through = True
    except BaseException as exc:  # noqa: BLE001 - contained here, whatever it is
        # A tool may answer our cancellation with a bare one of its own.
        stopped = stopper.told and isinstance(exc, stopper.cancelled_class)
        return Outcome(None, exc, stopped=stopped)
    finally:
        stopper.ended = True
    if through:
        return Outcome(value, None, stopped=False)
    return Outcome(None, None, stopped=True)


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
        try:
            if thrown is None:
                yielded = send(sent)
            else:
                # Not kept in this frame: the exception refers to the frame.
                passed, thrown = thrown, None
                try:
                    yielded = coroutine.throw(passed)
                finally:
                    del passed
        except StopIteration as end:
            return end.value
        sent = None


class Draining:
    """
    Looks after async calls that were told to stop, until all have ended.

    One timer for all of them: first to raise the shields of those whose
    cancellation has not arrived, then for the next pulse, after a pause that
    doubles each time. When the last has ended nothing is left on the loop.
    """

    __slots__ = ("_backend", "_next_pulse", "_stoppers", "_timer")

    def __init__(self, backend: Backend, cleanup_grace: float) -> None:
        self._backend = backend
        self._stoppers: set[Stopper] = set()
        self._next_pulse = max(cleanup_grace, UNSEEN_SECONDS)
        self._timer: Timer | None = None

    def add(self, stopper: Stopper) -> None:
        """Tell one call to stop and look after it."""
        stopper.tell()
        self._stoppers.add(stopper)
        if self._timer is None:
            self._timer = self._backend.call_later(UNSEEN_SECONDS, self._hush)

    def ended(self, stopper: Stopper) -> None:
        """The call has ended."""
        self._stoppers.discard(stopper)
        if not self._stoppers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hush(self) -> None:
        for stopper in self._stoppers:
            stopper.hush()
        self._timer = self._backend.call_later(self._next_pulse, self._pulse)

    def _pulse(self) -> None:
        self._next_pulse *= 2
        for stopper in list(self._stoppers):
            stopper.tell()
        self._timer = self._backend.call_later(UNSEEN_SECONDS, self._hush)
