"""What the modules for agent frameworks have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .. import Tool, ToolRunner
from .._model.tools import check_seconds
from .._runtime.backend import current_loop_key
from ._worker_executor import keep_from_pool

__all__ = (
    "check_runner",
    "checked_options",
    "framework_tool",
    "missing",
    "require_asyncio",
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


def check_runner(runner: object, timeout: float | None = None) -> None:
    """
    Raise unless these can run batches: here, and not deep in a run of the framework.

    Raises:
        TypeError, ValueError: `runner` is none, or `timeout` no number of seconds.
    """
    if not isinstance(runner, ToolRunner):
        msg = f"runner must be a ToolRunner, not {type(runner).__name__}"
        raise TypeError(msg)
    check_seconds("timeout", timeout)


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
        blocks: The framework calls a plain function in it, or hands it to asyncio's pool:
            it is run in a worker thread, and the function in one that is not joined at exit.
        options: The user's own, for this tool.
    """

    async def run(**_arguments: Any) -> Any:
        return await (keep_from_pool(invoke) if blocks else invoke())

    return Tool(run, name=name, **{"runs_in": "thread" if blocks else "loop", **options})
