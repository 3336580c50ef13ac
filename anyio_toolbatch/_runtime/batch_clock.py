"""The time limit of a batch, which stands still while nothing but people is waited for."""

from __future__ import annotations

from collections.abc import Callable

from .backend import Backend, Timer

__all__ = ("BatchClock",)


class BatchClock:
    """
    Calls `on_end` when the time is up, pauses not counted; on the loop's thread.

    Args:
        backend: The loop.
        seconds: How long it runs.
        on_end: Called once.
    """

    __slots__ = ("_backend", "_left", "_on_end", "_started_at", "_timer")

    def __init__(self, backend: Backend, seconds: float, on_end: Callable[[], None]) -> None:
        self._backend = backend
        self._left = seconds
        self._on_end = on_end
        self._started_at = 0.0
        self._timer: Timer | None = None
        self._run()

    def let_run(self, runs: bool) -> None:
        """Let it run, or stand still."""
        if runs == (self._timer is not None):
            return
        if runs:
            self._run()
        else:
            self._left -= self._backend.clock() - self._started_at
            self.stop()

    def stop(self) -> None:
        """Stop it for good, or until `let_run`; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._started_at = self._backend.clock()
        self._timer = self._backend.call_later(max(self._left, 0.0), self._on_end)
