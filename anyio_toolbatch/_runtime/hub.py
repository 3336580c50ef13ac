"""
One event loop's door: what comes in from other threads, and work in slices.

Everything that a worker, a foreign thread or a signal handler has to say to a
loop goes through the loop's one mailbox and is handled on the loop's thread,
in the order in which it was said.

The mailbox race: a poster appends its item and then test-and-sets the flag; if
it got the flag it schedules a drain. The drain releases the flag *before* it
empties the queue. An item appended before the release is seen by this drain;
one appended after finds the flag free and schedules the next. None is left
behind, and any number of posts costs one wake-up. Nothing here blocks, so a
signal handler may post in the middle of a post or a drain.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

from .backend import (
    Backend,
    LoopGoneError,
    Waiter,
    backend_of,
    current_loop_key,
    local_of,
    unbroken,
)

__all__ = ("Hub", "current_hub")

logger = logging.getLogger(__name__)

LOOK_AFTER = 1000
"""Unread items after which the poster looks whether the loop is still there."""
ITEMS_PER_PASS = 250
"""Mailbox items handled in one pass of the loop; about 1 ms (measured)."""
SLICE_SECONDS = 0.0003
"""How long one pass of the loop may be held by work that grows with a batch. Each
call that is told in it then has its own clean-up in the same pass."""


class Hub:
    """What the runtime keeps for one event loop. It lives on the loop."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.clock = backend.clock
        self.thread_id = get_ident()
        self.states: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        """By runner: its limits and counts on this loop."""
        self.shared: dict[str, Any] = {}
        """What the runners of the module-level functions share on this loop."""
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._urgent: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._wake_pending = Lock()
        self.slice_seconds = SLICE_SECONDS
        """0: one step a pass, however quick the machine is."""
        self.keeps_batches = False
        """Those that are over are not taken apart: an explorer is to look at them."""
        self._chores: deque[Iterator[None]] = deque()
        self._chores_running = False
        self._is_stepping = False
        """A step of a chore is being run, which is taken out meanwhile."""

    @property
    def is_idle(self) -> bool:
        """Nothing was posted that has not been handled, and nothing put off."""
        return not (self._queue or self._urgent or self._chores or self._chores_running)

    @unbroken
    def post(self, function: Callable[[Any], None], argument: Any) -> bool:
        """
        Have ``function(argument)`` called on the loop.

        Returns:
            False if the loop is gone; then it is never called, silently.

        Threads:
            Any, and signal handlers. Never blocks.
        """
        queue = self._queue
        queue.append((function, argument))
        if len(queue) % LOOK_AFTER == 0 and self.backend.is_closed:
            queue.clear()  # a drain was under way when the loop was closed
            return False
        return self._drain_soon()

    @unbroken
    def post_urgent(self, function: Callable[[Any], None], argument: Any) -> bool:
        """
        The same, before all that was posted otherwise: a stop overtakes what tools say.

        What has been finished before counts as finished all the same: the
        tickets tell, not the order of the mailbox.

        It wakes the loop by itself, flag or no flag: who has the flag may be a
        worker that does not get the processor for its own post for a while. The
        drain that is then one too many finds an empty mailbox.
        """
        self._urgent.append((function, argument))
        return self._post_drain()

    @unbroken
    def _drain_soon(self) -> bool:
        """Have the mailbox read, if that is not under way; False if it can't be."""
        return not self._wake_pending.acquire(blocking=False) or self._post_drain()

    @unbroken
    def _post_drain(self) -> bool:
        try:
            self.backend.post(self._drain)
        except LoopGoneError:
            # Nobody will ever read it; let go of what it holds.
            self._queue.clear()
            self._urgent.clear()
            self._release_flag()
            return False
        except BaseException:
            self._release_flag()
            raise
        return True

    def _release_flag(self) -> None:
        try:
            self._wake_pending.release()
        except RuntimeError:
            pass  # free already: after a Ctrl-C in a post, or an urgent one

    def _drain(self) -> None:
        self._release_flag()
        queue = self._queue
        for _ in range(ITEMS_PER_PASS):
            try:
                function, argument = (self._urgent or queue).popleft()
            except IndexError:
                return
            try:
                function(argument)
            except KeyboardInterrupt:
                self._drain_soon()
                raise
            except BaseException:
                # One item's fault must not strand those behind it.
                logger.exception("error while handling %r", function)
        # The rest in the next pass, so that the loop can breathe.
        self._drain_soon()

    def run_in_slices(self, steps: Iterator[None]) -> None:
        """
        Run a generator step by step, a little of it per pass of the loop.

        It starts only after every task woken until now has run: what the user
        waits for goes first. If the loop is ended before it is through, the
        rest is done at once: running calls must hear that they are to stop.
        """
        self._chores.append(steps)
        if not self._chores_running:
            self._chores_running = True
            try:
                self.backend.start_background(self._work)
            except RuntimeError:  # the loop is past its end
                self.finish_chores()
                self._chores_running = False

    @property
    def has_chores(self) -> bool:
        """Something has been put off, and is not done."""
        return bool(self._chores) or self._is_stepping

    async def chores_until_now(self) -> None:
        """Park until what has been put off so far is done; no checkpoint if nothing is."""
        if self._chores:
            waiter = self.backend.waiter()
            self.run_in_slices(_set(waiter))
            await waiter.wait()

    async def _work(self) -> None:
        try:
            for _ in range(self.backend.hops_to_run_after_wake):
                await self.backend.next_pass()
            while self._chores:
                until = time.perf_counter() + self.slice_seconds
                self._step()  # at least one, also where the system has let us wait
                while self._chores and time.perf_counter() < until:
                    self._step()
                await self.backend.next_pass()
        finally:
            # Cancelled: the loop is being ended, or somebody cancels all tasks.
            self._chores_running = False
            self.finish_chores()

    def _step(self) -> None:
        # Taken out while it runs: a step may end up in `finish_chores` again.
        steps = self._chores.popleft()
        was_stepping, self._is_stepping = self._is_stepping, True
        try:
            next(steps)
        except StopIteration:
            pass
        except BaseException:
            logger.exception("error in deferred work")
        else:
            self._chores.appendleft(steps)
        finally:
            self._is_stepping = was_stepping

    def finish_chores(self) -> None:
        """Do now what was to be done in slices; for an orderly close."""
        while self._chores:
            self._step()


def _set(waiter: Waiter) -> Iterator[None]:
    waiter.set()
    yield


def current_hub() -> Hub:
    """
    Return the hub of the running loop, made if missing.

    Raises:
        anyio.NoEventLoopError: No supported loop is running in this thread.
    """
    key = current_loop_key()
    hub = local_of(key, "hub", lambda: Hub(backend_of(key)))
    hub.thread_id = get_ident()  # a loop may be run from another thread later
    return hub
