"""What the modules for agent frameworks have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anyio

from .._runtime.backend import current_loop_key

__all__ = ("InlineExecutor", "missing", "require_asyncio", "run_inline")


def missing(framework: str, extra: str) -> str:
    """Return what to say when a framework is not installed."""
    return f"this module needs {framework}: pip install 'anyio-toolbatch[{extra}]'"


def require_asyncio(framework: str) -> None:
    """
    Raise unless the running event loop is asyncio's (uvloop's included).

    Raises:
        RuntimeError: It is trio's. The framework's own loop would fail there too, but
            somewhere deep inside.
    """
    loop = current_loop_key()
    if type(loop).__module__.partition(".")[0] == "trio":
        msg = (
            f"{framework} runs on asyncio only, not on trio: start the program with "
            "anyio.run(main, backend='asyncio')"
        )
        raise RuntimeError(msg)


class InlineExecutor(ThreadPoolExecutor):
    """
    Calls at once, in the thread that submits; it never has threads of its own.

    For frameworks that hand a blocking function to a pool: they do so in a worker
    thread of ours already, and there is no pool that would be joined at exit. asyncio
    takes nothing but thread pools as a loop's default executor, so it is one.
    """

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as exc:  # noqa: BLE001 - passed on where it is awaited
            future.set_exception(exc)
        return future


async def run_inline(function: Callable[[], Awaitable[Any]]) -> Any:
    """
    Await what hands a blocking function to asyncio's pool, and have it called here.

    To be called on an event loop that a worker thread has for one call.
    """
    current_loop_key().set_default_executor(InlineExecutor())
    # The way out is no place to be cancelled: what the function gave would be lost to
    # `on_late`.
    with anyio.CancelScope(shield=True):
        return await function()
