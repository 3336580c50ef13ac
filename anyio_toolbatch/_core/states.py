"""
Where a call can be between its submission and its end, as the scheduler sees it.

One table says which fact leads from which state to which; the scheduler moves
a call by it and by nothing else, and the diagram in the documentation is drawn
from it. A fact that the table does not know in a state is a fault of ours, and
raises.
"""

from __future__ import annotations

import enum

__all__ = ("TRANSITIONS", "CallState", "Fact")


class CallState(enum.StrEnum):
    """The states of a call."""

    PREPARING = "preparing"
    """Checked, its claims looked up; not in any line yet."""
    ASKED = "asked"
    """Somebody is asked for approval."""
    BEHIND = "behind"
    """Approved, but behind an earlier call of its batch that still is asked for."""
    IN_LINE = "in line"
    """Waits for its claims and for a place to run in; holds nothing."""
    RUNNING = "running"
    """Has its claims and places."""
    DETACHED = "detached"
    """Let go of, still running: its places are free, its write claims are not."""
    OVER = "over"


class Fact(enum.StrEnum):
    """What can happen to a call."""

    ASK = "ask"
    APPROVE = "approve"
    LINE_UP = "line up"
    GRANT = "grant"
    LET_GO = "let go"
    END = "end"
    """Ended, cut before its start, denied or refused."""


TRANSITIONS: dict[CallState, dict[Fact, CallState]] = {
    CallState.PREPARING: {
        Fact.ASK: CallState.ASKED,
        Fact.LINE_UP: CallState.IN_LINE,
    },
    CallState.ASKED: {
        Fact.APPROVE: CallState.BEHIND,
        Fact.END: CallState.OVER,
    },
    CallState.BEHIND: {
        Fact.LINE_UP: CallState.IN_LINE,
        Fact.END: CallState.OVER,
    },
    CallState.IN_LINE: {
        Fact.GRANT: CallState.RUNNING,
        Fact.END: CallState.OVER,
    },
    CallState.RUNNING: {
        Fact.LET_GO: CallState.DETACHED,
        Fact.END: CallState.OVER,
    },
    CallState.DETACHED: {
        Fact.END: CallState.OVER,
    },
    CallState.OVER: {},
}
"""From a state, by a fact, to the next state."""
