"""
Which waiting call may start next, where the number of running calls is capped.

Facts come in (`add`, `release`, `forget`), the decision comes out (`grant`).
Nothing is held while waiting: a call takes its slot, and a blocking one its
thread, in one step and only when both are free. A freed place goes to the
first call of a batch, in call order, that may use it; batches take turns, so
that a small one is not stuck behind a large one.

A call is anything hashable to this file; a batch is its owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ("Scheduler",)

C = TypeVar("C", bound=Hashable)


class _Line(Generic[C]):
    """The waiting calls of one batch, in call order, by what they need."""

    __slots__ = ("blocking", "number", "plain")

    def __init__(self) -> None:
        self.number = 0
        self.plain: deque[tuple[int, C]] = deque()
        self.blocking: deque[tuple[int, C]] = deque()

    def add(self, call: C, *, needs_thread: bool) -> None:
        self.number += 1
        (self.blocking if needs_thread else self.plain).append((self.number, call))

    def take(self, *, has_thread: bool) -> tuple[C, bool] | None:
        plain, blocking = self.plain, self.blocking
        if blocking and has_thread and (not plain or blocking[0] < plain[0]):
            return blocking.popleft()[1], True
        if plain:
            return plain.popleft()[1], False
        return None


class Scheduler(Generic[C]):
    """
    Gives out slots.

    Args:
        slots: How many calls may run at once.
        threads: How many of them may be blocking ones.
    """

    def __init__(self, slots: int, threads: int) -> None:
        self.free_slots = slots
        self.free_threads = threads
        self._lines: dict[Hashable, _Line[C]] = {}
        self._turns: deque[Hashable] = deque()
        self._running: dict[C, bool] = {}

    def add(self, batch: Hashable, call: C, *, needs_thread: bool) -> None:
        """Put a call at the end of its batch's line."""
        line = self._lines.get(batch)
        if line is None:
            line = self._lines[batch] = _Line()
            self._turns.append(batch)
        line.add(call, needs_thread=needs_thread)

    def grant(self) -> C | None:
        """Return the next call to start now, its places taken; None if none may."""
        if not self.free_slots:
            return None
        for turn, batch in enumerate(self._turns):
            line = self._lines[batch]
            taken = line.take(has_thread=self.free_threads > 0)
            if taken is None:
                continue  # it keeps its turn for when a thread is free
            del self._turns[turn]
            if line.plain or line.blocking:
                self._turns.append(batch)
            else:
                del self._lines[batch]
            call, needs_thread = taken
            self.free_slots -= 1
            self.free_threads -= needs_thread
            self._running[call] = needs_thread
            return call
        return None

    def release(self, call: C) -> bool:
        """Take back the places of a call that ended or was let go; False if it had none."""
        needs_thread = self._running.pop(call, None)
        if needs_thread is None:
            return False
        self.free_slots += 1
        self.free_threads += needs_thread
        return True

    def forget(self, batch: Hashable) -> None:
        """Drop what waits of a batch; what runs keeps its places."""
        if self._lines.pop(batch, None) is not None:
            self._turns.remove(batch)
