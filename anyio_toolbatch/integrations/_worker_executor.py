"""
An executor for frameworks that hand a blocking function to a pool.

Its threads are the process's own idle workers: no exit joins them. And no event loop
runs in them, so a function may start one of its own, as it may in a pool's thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anyio

from .. import from_thread
from .._runtime.backend import current_loop_key, forget_library
from .._runtime.threads import Lane

__all__ = ("WorkerExecutor", "keep_from_pool")


class WorkerExecutor(ThreadPoolExecutor):
    """
    Runs the functions of one call, without a limit, and knows when they have ended.

    asyncio takes nothing but thread pools as a loop's default executor, so it is one; but
    it never has threads of its own.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._running: set[Future[Any]] = set()
        self._idle: Callable[[], object] = bool

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it in a worker, in the context of the caller, who is on the loop's thread."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._running.add(future)
        future.add_done_callback(self._ended)
        _lane.put(future, [(future, lambda: context.run(_begin, fn, args, kwargs))])
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
            _call_into(future, function)
        return True

    def report(self, job: Any, /) -> None:
        """Nobody is told of the thread: the future is done."""

    def thread_failed(self, job: Any, error: BaseException, /) -> None:
        job[0].set_exception(error)


_lane = Lane(sys.maxsize, _Functions())


def _begin(function: Any, args: Any, kwargs: Any) -> Any:
    from_thread.check_cancelled()  # the call may have been cut on the way to this thread
    return function(*args, **kwargs)


def _call_into(future: Future[Any], function: Callable[[], Any]) -> None:
    """Call a function, and have a future tell what came of it."""
    try:
        result = function()
    except StopIteration as exc:
        # asyncio's futures can't carry it: who awaits them would wait for ever.
        error = RuntimeError("the function raised StopIteration")
        error.__cause__ = exc
        future.set_exception(error)
    except BaseException as exc:  # noqa: BLE001 - passed on where it is awaited
        future.set_exception(exc)
    else:
        future.set_result(result)


async def keep_from_pool(function: Callable[[], Awaitable[Any]]) -> Any:
    """
    Await what hands a blocking function to asyncio's pool, and have a worker call it.

    To be called on an event loop that a worker thread has for one call: its end would wait
    for the pool, and so for the function. That thread waits meanwhile, and is the one of
    the two that counts.
    """
    current_loop_key().set_default_executor(WorkerExecutor())
    forget_library()
    # The way out is no place to be cancelled: what the function gave would be lost to
    # `on_late`.
    with anyio.CancelScope(shield=True):
        return await function()
