"""
An executor for a framework that hands out a blocking function while it runs on the loop.

Its threads are the process's own idle workers: no exit joins them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import anyio

from .._runtime.backend import current_loop_key
from .._runtime.threads import Lane
from ._frameworks import call_into

__all__ = ("WorkerExecutor",)


class WorkerExecutor(Executor):
    """Runs the functions of one call, without a limit, and knows when they have ended."""

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._idle: Callable[[], object] = bool

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it in a worker; on the loop's thread."""
        future: Future[Any] = Future()
        self._running.add(future)
        future.add_done_callback(self._ended)
        _lane.put(future, [(future, lambda: fn(*args, **kwargs))])
        return future

    def _ended(self, future: Future[Any]) -> None:
        self._running.discard(future)
        if not self._running:
            self._idle()

    async def wait_idle(self) -> None:
        """Wait, not to be cancelled, until no function runs."""
        if not self._running:
            return
        loop = current_loop_key()
        idle = anyio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(idle.set)

        self._idle = tell
        with anyio.CancelScope(shield=True):
            if self._running:
                await idle.wait()


class _Functions:
    """What the workers of `WorkerExecutor` do."""

    def run(self, job: Any, /) -> bool:
        future, function = job
        if future.set_running_or_notify_cancel():
            call_into(future, function)
        return True

    def report(self, job: Any, /) -> None:
        """Nobody is told of the thread: the future is done."""

    def thread_failed(self, job: Any, error: BaseException, /) -> None:
        job[0].set_exception(error)


_lane = Lane(sys.maxsize, _Functions())
