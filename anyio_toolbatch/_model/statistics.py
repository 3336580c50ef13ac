"""Snapshots of what a runner is doing."""

from __future__ import annotations

from dataclasses import dataclass

from .calls import ToolCall

__all__ = ("DetachedCall", "RunnerStatistics", "WaitingCall")


@dataclass(frozen=True, slots=True)
class DetachedCall:
    """
    A call that its batch let go of and whose work still runs.

    Also one that never started, but whose approver, or the resolving of whose
    paths, still occupies a thread.
    """

    call: ToolCall
    batch_id: str
    since: float
    """`time.monotonic()` at the moment it was let go."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that has not started, and why."""

    call: ToolCall
    batch_id: str
    index: int
    """The call's place in its batch."""
    kind: str
    """
    ``"approval"``, ``"order"`` (behind one that waits for approval),
    ``"claim"``, ``"place"``, ``"thread"``, ``"executor"`` (it has the call, and
    has not begun it), ``"paths"`` (they are being resolved), or ``"turn"``: about to start.
    """
    waits_for: str
    """The same in words, with the calls that are in the way."""


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """
    What a runner is doing on all its loops, at one moment.

    A detached call is in `detached` alone: it is no longer counted as running.
    """

    open_batches: int
    waiting: int
    """Calls submitted and not started."""
    running: int
    """Calls started and not ended, wherever they run."""
    running_threads: int
    """Those of them that occupy a worker thread."""
    detached: tuple[DetachedCall, ...]
    """Let go and still running, threads and async calls alike; oldest first."""
    late_results: int
    """How many results came too late since the runner was made."""
    waiting_calls: tuple[WaitingCall, ...] = ()
    """What each waiting call waits for; by batch, in call order."""
