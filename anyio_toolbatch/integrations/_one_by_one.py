"""For frameworks that ask each tool for its own answer: each call is a batch of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import ToolCall, ToolResult, ToolRunner
from ._frameworks import check_runner, checked_options, require_asyncio
from ._options import check_names

__all__ = ("answer_alone", "replaced_tools")


def replaced_tools(
    runner: ToolRunner,
    tools: Iterable[Any],
    options: Mapping[str, Mapping[str, Any]] | None,
    *,
    kind: Any,
    make: Callable[[Any], Any],
    replace: Callable[[ToolRunner, Any, Mapping[str, Any]], Any],
) -> list[Any]:
    """
    Return tools with those of a kind replaced, and all others as they are.

    Args:
        runner: Runs the calls.
        tools: The framework's, or plain functions.
        options: By the name of a tool of that kind, options of `Tool` for it.
        kind: The framework's class of tools that have a name and can be replaced.
        make: Makes one of a plain function.
        replace: Given the runner, a tool and its options, returns what takes its place.

    Raises:
        TypeError, ValueError: `runner` is none; `options` has something that `Tool` does not
            take, or is for none of the tools.
    """
    check_runner(runner)
    own = checked_options(options)
    given: list[Any] = [
        make(tool) if callable(tool) and not isinstance(tool, kind) else tool for tool in tools
    ]
    check_names(own, [tool.name for tool in given if isinstance(tool, kind)])
    return [
        replace(runner, tool, own.get(tool.name, {})) if isinstance(tool, kind) else tool
        for tool in given
    ]


async def answer_alone(framework: str, runner: ToolRunner, call: ToolCall) -> ToolResult:
    """
    Run a call, and return its result.

    Raises:
        RuntimeError: The event loop is not asyncio's.
        Exception: What the tool raised: the framework knows what is to be done with it.
            Not what would end the framework's own task, such as a `SystemExit`.
    """
    require_asyncio(framework)
    (result,) = await runner.run([call])
    if isinstance(result.error, Exception) and result.reason is None:
        raise result.error
    return result
