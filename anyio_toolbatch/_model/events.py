"""What a batch tells its observers and readers, in the order it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .calls import ToolCall
from .results import LateResult, Reason, ToolResult

__all__ = (
    "BatchInterrupted",
    "BatchSettled",
    "BatchStarted",
    "CallOutput",
    "CallProgress",
    "CallSettled",
    "CallStarted",
    "Event",
    "LateResultDropped",
)


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    batch_id: str


@dataclass(frozen=True, slots=True)
class BatchStarted(Event):
    """The batch was opened; the first event of every batch."""


@dataclass(frozen=True, slots=True)
class CallStarted(Event):
    """The tool's first line may have run; at most once a call."""

    call: ToolCall
    index: int


@dataclass(frozen=True, slots=True)
class CallProgress(Event):
    """What `report_progress` said; a newer one replaces an unread older one."""

    call: ToolCall
    index: int
    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class CallOutput(Event):
    """One item that a generator tool gave."""

    call: ToolCall
    index: int
    output: Any


@dataclass(frozen=True, slots=True)
class CallSettled(Event):
    """The call has its one result; exactly once a call, in completion order."""

    result: ToolResult

    @property
    def call(self) -> ToolCall:
        """The call whose result this is."""
        return self.result.call

    @property
    def index(self) -> int:
        """The call's place in its batch."""
        return self.result.index


@dataclass(frozen=True, slots=True)
class BatchInterrupted(Event):
    """The whole batch was cut; at most once."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class BatchSettled(Event):
    """Every call has its result and no more will come; the last event of a batch."""


@dataclass(frozen=True, slots=True)
class LateResultDropped(Event):
    """A detached call ended after all; told to runner-level observers only."""

    late: LateResult
