"""
Tools that run on a Ray cluster, and are killed there.

``Tool(function, runs_in=ray_carrier(num_cpus=2))`` runs each call as one Ray task. A cut
kills the task's worker process (`ray.cancel` with `force`): Ray's
other way, an exception in the worker, does not reach a call that blocks.

Ray has to be running (`ray.init`) when the first call is made. It tells a future
nothing when it is shut down, so a thread looks for that while calls are out.
"""

# Types are checked without Ray. Pyright then takes `import ray` for this very file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Literal

from .. import ExecutorCarrier
from ._remote import RemoteFuture, name_of, packed, run

try:
    import ray
    from ray import cloudpickle
except ImportError as exc:
    msg = "this module needs Ray: pip install 'anyio-toolbatch[ray]'"
    raise ImportError(msg) from exc

__all__ = ("RayExecutor", "ray_carrier")

OWN_OPTIONS = frozenset({"max_retries", "name", "num_returns", "retry_exceptions"})
"""What is no user's to say: a call runs once, and has one result."""

STOP_TIMEOUT = 10.0
"""Seconds in which a killed task should be over; measured: some 12 ms. Arbitrary, ample."""

WATCH_INTERVAL = 0.2
"""Seconds between two looks at whether Ray still runs; arbitrary."""


class RayExecutor(Executor):
    """
    Runs each call as a Ray task, once: Ray never repeats it.

    To be handed to a tool by way of `ray_carrier`, which adds how its calls are stopped.
    `shutdown` does nothing; Ray is the caller's to start and to end.

    Args:
        **options: Those of Ray's `RemoteFunction.options`, such as `num_cpus`,
            `resources` or `runtime_env`.

    Raises:
        TypeError: An option is one that the library sets itself.
        ValueError: Ray does not know an option.
    """

    def __init__(self, **options: Any) -> None:
        refused = sorted(OWN_OPTIONS & options.keys())
        if refused:
            msg = f"{', '.join(refused)}: set by the library, a call runs once"
            raise TypeError(msg)
        self._options = {**options, "max_retries": 0, "retry_exceptions": False}
        self._task = ray.remote(_run_task)
        self._task.options(**self._options)  # raises now rather than with the first call
        self._lock = threading.Lock()
        self._pending: set[RemoteFuture] = set()
        self._is_watched = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """
        Send a call to Ray.

        Returns:
            A future that counts as running: its `cancel` says False, and stops nothing.

        Raises:
            RuntimeError: Ray is not running.
            TypeError: The call can't be pickled.
        """
        if not ray.is_initialized():  # or Ray would start a cluster of its own accord
            msg = "Ray is not running: call ray.init() before the first tool call"
            raise RuntimeError(msg)
        if args or kwargs:
            fn = functools.partial(fn, *args, **kwargs)
        future = RemoteFuture()
        try:
            self._watch(future)
            task = self._task.options(**self._options, name=name_of(fn))
            future.handle = ref = task.remote(packed(cloudpickle, fn))
            ref.future().add_done_callback(functools.partial(self._done, future))
        except BaseException:
            self._forget(future)
            raise
        return future

    def _done(self, future: RemoteFuture, ended: Future[Any]) -> None:
        """Hand on how the task has ended; in a thread of Ray's."""
        self._forget(future)
        error = ended.exception()
        if error is None:
            future.settle_with(ended.result())
        elif isinstance(error, ray.exceptions.TaskCancelledError):
            future.settle(None, CancelledError("the Ray task was cancelled"))
        else:
            future.settle(None, error)

    # -- the end of Ray itself ---------------------------------------------------------

    def _watch(self, future: RemoteFuture) -> None:
        with self._lock:
            self._pending.add(future)
            if not self._is_watched:
                threading.Thread(target=self._look, name="ray watch", daemon=True).start()
                self._is_watched = True

    def _forget(self, future: RemoteFuture) -> None:
        with self._lock:
            self._pending.discard(future)

    def _look(self) -> None:
        while True:
            time.sleep(WATCH_INTERVAL)
            with self._lock:
                if not self._pending:
                    self._is_watched = False
                    return
                lost = [] if ray.is_initialized() else list(self._pending)
                self._pending.difference_update(lost)
            for future in lost:
                future.settle(None, RuntimeError("Ray was shut down while the call ran"))


def ray_carrier(**options: Any) -> ExecutorCarrier:
    """
    Return a carrier for a tool's `runs_in`: a `RayExecutor`, whose running tasks are killed.

    One carrier may serve several tools.

    Args:
        **options: Those of `RayExecutor`.
    """
    return ExecutorCarrier(RayExecutor(**options), _kill_task)


def _kill_task(future: RemoteFuture) -> Literal["stopped", "requested"]:
    """Kill a task with its process; "stopped" only if it was seen to be over."""
    if not ray.is_initialized():
        return "requested"
    ray.cancel(future.handle, force=True)
    try:
        ray.get(future.handle, timeout=STOP_TIMEOUT)
    except ray.exceptions.GetTimeoutError:
        return "requested"
    except ray.exceptions.RayError:
        return "stopped"
    return "requested"  # it was quicker; its future tells


def _run_task(call: bytes) -> bytes:
    return run(cloudpickle, call)
