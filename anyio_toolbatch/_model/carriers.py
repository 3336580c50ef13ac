"""Somebody else's executor as the place where a tool runs."""

# Arguments are checked at run time, too: not everybody runs a type checker.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Callable
from typing import Any, Literal

from .frozen import Frozen

__all__ = ("Canceller", "ExecutorCarrier")

Canceller = Callable[[Any], Literal["stopped", "requested", "abandoned"]]


class ExecutorCarrier(Frozen):
    """
    An executor, and how its running work is stopped: for a tool's `runs_in`.

    Args:
        executor: Where the calls run. It stays the caller's: it is never shut
            down here, and its own limits hold.
        canceller: Called with the future of a call that was cut after it had
            begun; in a worker thread, so it may block, and after the turn is back. It
            says what has become of the work: ``"stopped"``: it is over, and
            the call no longer counts as detached; ``"requested"`` or
            ``"abandoned"``: it may go on, until the future is done. If it raises, that
            is logged and taken as ``"abandoned"``. None: ``future.cancel()`` is
            called, and believed where it says that the work never began.

    Raises:
        TypeError: `executor` is no `concurrent.futures.Executor`, or
            `canceller` is no plain function.
    """

    __slots__ = ("canceller", "executor")

    executor: concurrent.futures.Executor
    canceller: Canceller | None

    def __init__(
        self, executor: concurrent.futures.Executor, canceller: Canceller | None = None
    ) -> None:
        if not isinstance(executor, concurrent.futures.Executor):
            msg = (
                "executor must be a concurrent.futures.Executor, "
                f"not {type(executor).__name__}"
            )
            raise TypeError(msg)
        if canceller is not None and not callable(canceller):
            msg = f"canceller must be callable or None, not {type(canceller).__name__}"
            raise TypeError(msg)
        if canceller is not None and (
            inspect.iscoroutinefunction(canceller)
            or inspect.iscoroutinefunction(type(canceller).__call__)
        ):
            msg = "canceller must be a plain function; it is called, not awaited"
            raise TypeError(msg)
        fill = object.__setattr__
        fill(self, "executor", executor)
        fill(self, "canceller", canceller)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExecutorCarrier):
            return NotImplemented
        return (self.executor, self.canceller) == (other.executor, other.canceller)

    def __hash__(self) -> int:
        return hash((self.executor, self.canceller))
