"""
Warns of tools that hold the event loop: that block, or compute, between two awaits.

Known only when the loop runs again; `observe.stalls` tells it while it lasts.
"""

from __future__ import annotations

import logging

from .._core.record import CallRecord
from .hub import Hub
from .logs import about

__all__ = ("LONG_STEP", "blocked")

logger = logging.getLogger(__name__)

LONG_STEP = 1.0
"""Seconds without a pass of the loop. Chosen: a person notices less than that, but
a machine that is merely busy does not take so long."""
REMEMBERED_TOOLS = 1000


class _Blocked:
    """Who has been warned of on one loop, and the last long step."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.begun_at = self.seconds = 0.0


def blocked(record: CallRecord, begun_at: float, ended_at: float) -> None:
    """A call's step on the loop took long; once for each tool of a loop."""
    hub: Hub = record.batch.hub
    known: _Blocked = hub.shared.setdefault("blocked", _Blocked())
    seconds = ended_at - begun_at
    if known.begun_at >= begun_at:
        # That one ran inside this one: an eager task begins within its creator's step.
        seconds -= known.seconds
    if seconds < LONG_STEP:
        return
    known.begun_at, known.seconds = begun_at, ended_at - begun_at
    name = record.call.name
    if name in known.told or len(known.told) >= REMEMBERED_TOOLS:
        return
    known.told.add(name)
    logger.warning(
        "the tool %r has held the event loop for %.1f s: nothing else ran there, and no "
        "interrupt was handled. It blocks between two awaits: runs_in='thread' takes it "
        "off the loop",
        name,
        seconds,
        extra=about("loop_blocked", [record], seconds=seconds),
    )
