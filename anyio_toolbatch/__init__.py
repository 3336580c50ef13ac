"""
Run a model's batch of tool calls; be interrupted; have the turn back at once.

The names below are the whole public face, besides the submodules `formats`,
`from_thread`, `testing` and `errors of your own tools`. Everything behind an
underscore may change in any release.
"""

from __future__ import annotations

from ._errors import (
    BatchNotSettledError,
    BatchSealedError,
    CallDetached,
    InvalidArgumentsError,
    RunnerClosedError,
    ToolBatchError,
    ToolCallError,
    TooManyDetachedError,
    UnknownToolError,
)
from ._model.calls import ToolCall
from ._model.events import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    LateResultDropped,
)
from ._model.results import LateResult, Reason, Status, ToolResult
from ._model.statistics import DetachedCall, RunnerStatistics
from ._model.tools import Tool, ToolOutput, tool

__all__ = (
    "BatchInterrupted",
    "BatchNotSettledError",
    "BatchSealedError",
    "BatchSettled",
    "BatchStarted",
    "CallDetached",
    "CallOutput",
    "CallProgress",
    "CallSettled",
    "CallStarted",
    "DetachedCall",
    "Event",
    "InvalidArgumentsError",
    "LateResult",
    "LateResultDropped",
    "Reason",
    "RunnerClosedError",
    "RunnerStatistics",
    "Status",
    "Tool",
    "ToolBatchError",
    "ToolCall",
    "ToolCallError",
    "ToolOutput",
    "ToolResult",
    "TooManyDetachedError",
    "UnknownToolError",
    "tool",
)
