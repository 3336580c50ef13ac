"""
Every error of the library, one sentence each on when it is raised.

Caller mistakes are raised at once as `TypeError`, `ValueError` or one of the
classes below; a tool's own failure is a result and is raised only by
`ToolResult.unwrap()`, with the original as `__cause__`.
"""

from __future__ import annotations

__all__ = (
    "BatchNotSettledError",
    "BatchSealedError",
    "CallDetached",
    "InvalidArgumentsError",
    "ProcessDiedError",
    "ResourceBusyError",
    "RunnerClosedError",
    "TooManyDetachedError",
    "ToolBatchError",
    "ToolCallError",
    "UnknownToolError",
)


class ToolBatchError(Exception):
    """Base of the library's own errors; never raised itself."""


class RunnerClosedError(ToolBatchError):
    """Raised when a batch is opened or run on a runner that has been closed."""


class BatchSealedError(ToolBatchError):
    """Raised by `submit` when the batch has been told that no more calls will come."""


class BatchNotSettledError(ToolBatchError):
    """Raised by `results` while the batch is unsealed or a call has no result yet."""


class ToolCallError(ToolBatchError):
    """Raised by `ToolResult.unwrap()` when the call did not complete."""


class UnknownToolError(ToolBatchError):
    """The `error` of a call whose name no tool of the runner answers to."""


class InvalidArgumentsError(ToolBatchError):
    """The `error` of a call whose arguments are no object or do not fit the tool."""


class TooManyDetachedError(ToolBatchError):
    """The `error` of a blocking call refused since `max_detached` threads still run."""


class ResourceBusyError(ToolBatchError):
    """The `error` of a call whose claims are held by work that it can not wait for."""


class ProcessDiedError(ToolBatchError):
    """The `error` of a call whose worker process ended before it gave an answer."""


class CallDetached(BaseException):
    """
    Raised in a worker thread by `from_thread` functions once its call was cut.

    A `BaseException`, as cancellation is, so that a tool's own
    ``except Exception`` does not swallow it.
    """
