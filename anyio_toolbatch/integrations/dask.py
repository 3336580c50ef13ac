"""
Tools that run on a Dask cluster.

``Tool(function, runs_in=dask_carrier(client))`` runs each call as one Dask task. Dask can't
stop a task that runs: a cut lets go of it, its end goes to `on_late`, and then the
cluster forgets its result. One that no worker has begun yet is withdrawn.

A call must not run twice. Dask, for its part, runs a task again when its worker
dies, is retired (while the first run still goes on), or loses the result. So a call asks the scheduler before its first line
whether it may begin (`_Starts`, a plugin there), and that is granted once: to the
worker, or to the one who withdraws the call. A call that the scheduler has forgotten may
not begin either.
"""

# Types are checked without Dask.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Literal

from .. import ExecutorCarrier, ProcessDiedError
from ._remote import RemoteFuture, name_of, outcome_of, packed, run

try:
    import cloudpickle
    import distributed
    from distributed.diagnostics.plugin import SchedulerPlugin
    from distributed.utils import sync
except ImportError as exc:
    msg = "this module needs Dask: pip install 'anyio-toolbatch[dask]'"
    raise ImportError(msg) from exc

__all__ = ("DaskExecutor", "dask_carrier")


class DaskExecutor(Executor):
    """
    Runs each call as a Dask task, once: what Dask would repeat is refused.

    To be handed to a tool by way of `dask_carrier`. `shutdown` does nothing; the client
    and its cluster are the caller's.

    Args:
        client: A `distributed.Client` that blocks, not an asynchronous one.
        workers, allow_other_workers, resources, priority: As for `Client.submit`.

    Raises:
        TypeError: `client` is no client, or an asynchronous one.
    """

    def __init__(
        self,
        client: Any,
        *,
        workers: str | Iterable[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        priority: int = 0,
    ) -> None:
        if not isinstance(client, distributed.Client):
            msg = f"client must be a distributed.Client, not {type(client).__name__}"
            raise TypeError(msg)
        if client.asynchronous:
            msg = "client must be a blocking one: calls are sent by a thread"
            raise TypeError(msg)
        client.register_plugin(_Starts())
        self._client = client
        self._options = {
            "workers": workers,
            "allow_other_workers": allow_other_workers,
            "resources": resources,
            "priority": priority,
        }

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """
        Send a call to the cluster.

        Returns:
            A future that counts as running: its `cancel` says False, and stops nothing.

        Raises:
            RuntimeError: The client is closed.
            TypeError: The call can't be pickled.
        """
        client = self._client
        if client.status != "running":
            msg = f"the Dask client is not running, but {client.status}"
            raise RuntimeError(msg)
        if args or kwargs:
            fn = functools.partial(fn, *args, **kwargs)
        key = f"{name_of(fn)}-{uuid.uuid4()}"
        task = client.submit(
            _run_task, packed(cloudpickle, fn), key=key, pure=False, **self._options
        )
        future = RemoteFuture(task)
        client.loop.add_callback(_follow, task, future)
        return future


async def _follow(task: Any, future: RemoteFuture) -> None:
    """Hand on how a task has ended; on the client's own loop."""
    try:
        outcome = await task
    except distributed.client.FutureCancelledError as exc:
        future.settle(
            None, CancelledError(f"Dask has cancelled the task, reason: {exc.reason}")
        )
    except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
        future.settle(None, exc)
    else:
        future.settle_with(outcome)


def dask_carrier(client: Any, **options: Any) -> ExecutorCarrier:
    """
    Return a carrier for a tool's `runs_in`: a `DaskExecutor`, whose waiting tasks are withdrawn.

    One carrier may serve several tools.

    Args:
        client: As for `DaskExecutor`.
        **options: Those of `DaskExecutor`.
    """
    return ExecutorCarrier(DaskExecutor(client, **options), _withdraw_task)


def _withdraw_task(future: RemoteFuture) -> Literal["stopped", "abandoned"]:
    """Withdraw a task that no worker has begun; what has begun can't be stopped."""
    task = future.handle
    client = task.client
    if client.sync(client.scheduler.toolbatch_begin, key=task.key, who="the one who cut it"):
        return "abandoned"
    task.cancel()
    return "stopped"


# -- on the cluster ----------------------------------------------------------------


class _Starts(SchedulerPlugin):
    """On the scheduler: which calls have begun, and where."""

    name = "anyio-toolbatch-starts"
    idempotent = True

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._begun: dict[str, str] = {}

    async def start(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        scheduler.handlers["toolbatch_begin"] = self._begin

    def _begin(self, key: str, who: str) -> str | None:
        """Return None if the call may begin; else who has begun it."""
        if key not in self._scheduler.tasks:
            return "nobody: it was given up"
        begun_by = self._begun.get(key)
        if begun_by is None:
            self._begun[key] = who
        return begun_by

    def transition(self, key: Any, start: str, finish: str, *args: Any, **more: Any) -> None:
        if finish == "forgotten":
            self._begun.pop(key, None)


def _run_task(call: bytes) -> bytes:
    worker = distributed.get_worker()
    key = worker.get_current_task()
    begun_by = sync(worker.loop, worker.scheduler.toolbatch_begin, key=key, who=worker.address)
    if begun_by is not None:
        msg = (
            f"the call had begun on {begun_by}, which has died or left before its end was "
            "known; it is not run a second time"
        )
        return outcome_of(cloudpickle, None, ProcessDiedError(msg))
    try:
        return run(cloudpickle, call)
    except KeyboardInterrupt as exc:  # Dask would end the worker
        return outcome_of(cloudpickle, None, exc)
