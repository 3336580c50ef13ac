"""
Run a model's batch of tool calls; be interrupted; have the turn back at once.

The names below are the whole public face, besides the submodules `blocking`,
`formats`, `from_thread`, `observe` and `testing`. Everything behind an underscore may
change in any release.
"""

from __future__ import annotations

import logging

from . import from_thread
from ._errors import (
    BatchNotSettledError,
    BatchSealedError,
    CallDetached,
    InvalidArgumentsError,
    ProcessDiedError,
    ResourceBusyError,
    RunnerClosedError,
    ToolBatchError,
    ToolCallError,
    TooManyDetachedError,
    UnknownToolError,
)
from ._model.calls import ToolCall
from ._model.carriers import ExecutorCarrier
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
from ._model.statistics import DetachedCall, RunnerStatistics, WaitingCall
from ._model.tools import Tool, ToolOutput, tool
from ._runtime.batch import CallHandle, ToolBatch
from ._runtime.commands import CommandResult, run_command
from ._runtime.context import (
    CallContext,
    CancelFlag,
    CancelHook,
    current_call,
    keep_partial,
    on_cancel,
    report_progress,
)
from ._runtime.runner import BatchOptions, ToolRunner, open_batch, run_batch

__all__ = (
    "BatchInterrupted",
    "BatchNotSettledError",
    "BatchOptions",
    "BatchSealedError",
    "BatchSettled",
    "BatchStarted",
    "CallContext",
    "CallDetached",
    "CallHandle",
    "CallOutput",
    "CallProgress",
    "CallSettled",
    "CallStarted",
    "CancelFlag",
    "CancelHook",
    "CommandResult",
    "DetachedCall",
    "Event",
    "ExecutorCarrier",
    "InvalidArgumentsError",
    "LateResult",
    "LateResultDropped",
    "ProcessDiedError",
    "Reason",
    "ResourceBusyError",
    "RunnerClosedError",
    "RunnerStatistics",
    "Status",
    "TooManyDetachedError",
    "Tool",
    "ToolBatch",
    "ToolBatchError",
    "ToolCall",
    "ToolCallError",
    "ToolOutput",
    "ToolResult",
    "ToolRunner",
    "UnknownToolError",
    "WaitingCall",
    "current_call",
    "from_thread",
    "keep_partial",
    "on_cancel",
    "open_batch",
    "report_progress",
    "run_batch",
    "run_command",
    "tool",
)

# Quiet by default: whoever wants to hear warnings sets up logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
