"""
Warns of calls that still run long after they were let go.

One timer serves all of an account; it is there only while something is detached. So
nothing is left on the loop when nothing runs, and no thread is needed. A loop that
has ended warns of nothing any more.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol
from weakref import ref

from .backend import Backend, Timer
from .logs import HasCall, about, names_of

__all__ = ("LongDetached",)

logger = logging.getLogger(__name__)

WARN_AFTER = 60.0
"""Seconds. Chosen: longer than what is merely slow in noticing that it was let go."""
TOGETHER = 0.1
"""The share of that by which a warning may come early: one for all of a batch."""


class Detached(HasCall, Protocol):
    """What was let go and runs on."""

    reported: bool
    """It has ended; any thread writes it."""


class LongDetached:
    """The calls of one account that nobody has been warned of. Loop thread only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._since: dict[Detached, float] = {}
        """Oldest first, by the loop's clock."""
        self._timer: ref[Timer] | None = None
        """Weak: a timer holds its loop, and an account may be kept for long."""

    def watch(self, call: Detached) -> None:
        """A call has been let go."""
        if not call.reported:
            self._since[call] = self._backend.clock()
            if self._timer is None:
                self._arm(WARN_AFTER)

    def forget(self, call: Detached) -> None:
        """A call has ended after all."""
        if self._since.pop(call, None) is not None and not self._since:
            self.clear()

    def clear(self) -> None:
        """Nothing is detached any more."""
        self._since.clear()
        timer = None if self._timer is None else self._timer()
        if timer is not None:
            timer.cancel()
        self._timer = None

    def _arm(self, delay: float) -> None:
        try:
            self._timer = ref(self._backend.call_later(max(delay, 0.0), self._look))
        except RuntimeError:  # the loop is being ended
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._backend.clock()
        overdue: list[Detached] = []
        longest = 0.0
        for call, since in list(self._since.items()):
            left = since + WARN_AFTER - now
            if left > WARN_AFTER * TOGETHER:
                self._arm(left)
                break
            del self._since[call]
            if not call.reported:
                overdue.append(call)
                longest = max(longest, now - since)
        if overdue:
            _warn(overdue, longest)


def _warn(calls: list[Detached], seconds: float) -> None:
    let_go_at = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - seconds))
    logger.warning(
        "%d detached calls still run %.0f s after they were let go at %s, and nothing may "
        "ever end them: %s",
        len(calls),
        seconds,
        let_go_at,
        names_of(calls),
        extra=about("long_detached", calls, seconds=seconds, since=let_go_at),
    )
