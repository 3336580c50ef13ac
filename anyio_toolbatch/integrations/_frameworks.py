"""What the modules for agent frameworks have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anyio

from .. import Tool
from .._runtime.backend import current_loop_key

__all__ = (
    "InlineExecutor",
    "call_into",
    "checked_options",
    "framework_tool",
    "missing",
    "require_asyncio",
    "run_inline",
)


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


def checked_options(options: Any) -> dict[str, dict[str, Any]]:
    """
    Return options of `Tool` by the names of tools, once they are known to be some.

    Raises:
        TypeError, ValueError: They are no such mapping, or `Tool` does not take them.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        msg = f"options must be a mapping of names to options, not {type(options).__name__}"
        raise TypeError(msg)
    checked = {}
    for name, given in options.items():
        if not isinstance(given, Mapping):
            msg = f"options[{name!r}] must be a mapping, not {type(given).__name__}"
            raise TypeError(msg)
        try:
            Tool(_any_tool, name=name, **given)
        except (TypeError, ValueError) as exc:
            msg = f"options[{name!r}]: {exc}"
            raise type(exc)(msg) from None
        checked[name] = dict(given)
    return checked


async def _any_tool(**_arguments: Any) -> None:
    """Have the options of some tool checked."""


def framework_tool(
    name: str,
    invoke: Callable[[], Awaitable[Any]],
    *,
    blocks: bool,
    options: Mapping[str, Any],
) -> Tool:
    """
    Make the tool whose calls have the framework make a call.

    Args:
        name: The tool's.
        invoke: Does so; what it needs is the `metadata` of the current call.
        blocks: The framework hands a plain function to asyncio's pool in it: it is run
            in a worker, and the function there, since the pool is joined at exit.
        options: The user's own, for this tool.
    """

    async def run(**_arguments: Any) -> Any:
        return await (run_inline(invoke) if blocks else invoke())

    return Tool(run, name=name, **{"runs_in": "thread" if blocks else "loop", **options})


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
        call_into(future, lambda: fn(*args, **kwargs))
        return future


def call_into(future: Future[Any], function: Callable[[], Any]) -> None:
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
