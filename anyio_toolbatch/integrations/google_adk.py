"""
Google ADK: tools whose calls are run by a runner.

``Agent(…, tools=runner_tools(runner, [search, read_file]))``: nothing else changes. ADK runs the calls of
a turn side by side and asks each tool for its own answer, so each call is a batch of its
own here. Plain functions, which ADK calls on the event loop itself, run in workers. Checks
of arguments, confirmations and callbacks stay with ADK.
"""

# mypy and pyright look at this file without ADK, as the default checks have none.
# pyright: reportMissingImports=false

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import ToolCall, ToolRunner, current_call
from .._model.tools import kind_of
from ._frameworks import framework_tool, missing
from ._one_by_one import answer_alone, replaced_tools

try:
    from google.adk.tools import BaseTool, FunctionTool
except ImportError as exc:
    raise ImportError(missing("Google ADK", "google-adk")) from exc

__all__ = ("Invocation", "runner_tools")


@dataclass(frozen=True)
class Invocation:
    """A call as ADK makes it: the `metadata` of its `ToolCall`."""

    arguments: dict[str, Any]
    tool_context: Any


def runner_tools(
    runner: ToolRunner,
    tools: Iterable[Any],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Any]:
    """
    Return the tools, with all their calls run by the runner.

    Args:
        runner: Runs them. Tools of its own are not used.
        tools: ADK's tools, or plain functions. What is neither (a toolset) is given back
            as it is.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.

    Raises:
        TypeError, ValueError: `runner` is none; `options` has something that `Tool` does not take, or is for
            none of the tools.
    """
    return replaced_tools(
        runner,
        tools,
        options,
        kind=BaseTool,
        make=FunctionTool,
        replace=_on_runner,
    )


def _on_runner(runner: ToolRunner, original: Any, options: Mapping[str, Any]) -> Any:
    invoke = original.run_async
    blocks = isinstance(original, FunctionTool) and kind_of(original.func) == "sync"

    async def run() -> Any:
        call: Invocation = current_call().call.metadata
        return await invoke(args=call.arguments, tool_context=call.tool_context)

    tool = framework_tool(original.name, run, blocks=blocks, options=options)

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        call = ToolCall(
            tool_context.function_call_id or "",
            original.name,
            args,
            tool=tool,
            metadata=Invocation(args, tool_context),
        )
        result = await answer_alone("Google ADK", runner, call)
        return {"error": result.text} if result.is_error else result.value

    replaced = copy.copy(original)
    replaced.run_async = run_async
    return replaced
