"""
Waits until the worker threads have come to rest.

A thread rests when it waits at a gate, for the loop (a visit), or for work. One
that is blocked in something else can't be told from one that is computing: it is
waited for once, and then left out, which costs the run its determinism, no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .._runtime.engine import BatchEngine
from .._runtime.threads import Worker, at_work
from ._stage import Stage
from ._tools import GatedTool

__all__ = ("Quiet",)

PATIENCE = 0.5
"""Seconds that a thread has to come to rest; ample, also on a slow machine."""


class Quiet:
    """
    Of one run.

    Args:
        stage: Knows the gates.
        engines: The run's batches, as they become known: theirs are the visits.
    """

    def __init__(self, stage: Stage, engines: Iterable[BatchEngine]) -> None:
        self._stage = stage
        self._engines = engines
        self._strangers: set[Worker] = set()
        """Threads that have been busy with something else since before this run."""
        self._unseen = 0
        """How many are blocked in something that can't be seen."""

    def begin(self) -> None:
        """Wait for what the run before has left, and leave out what does not end."""
        self.wait()
        self._strangers, self._unseen = set(at_work), 0

    def wait(self) -> None:
        """Block until all threads of this run rest."""
        looks = 0
        until = 0.0
        while at_work:
            self._strangers &= at_work
            # In this order: who rests goes on resting, but may have brought in another.
            resting = self._resting()
            excess = len(at_work - self._strangers) - resting
            if excess <= self._unseen:
                self._unseen = max(excess, 0)
                return
            looks += 1
            if looks == 1:
                until = time.monotonic() + PATIENCE
            elif time.monotonic() > until:
                self._unseen = excess
                return
            time.sleep(0 if looks < 50 else 0.0002)

    def _resting(self) -> int:
        at_gates = sum(g.waiting for g in self._stage.gates if isinstance(g, GatedTool))
        for_loop = sum(
            not request.is_answered
            for engine in self._engines
            for record in engine.records
            for request in list(record.loop_requests or ())
        )
        return at_gates + for_loop
