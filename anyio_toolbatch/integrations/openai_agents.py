"""
OpenAI Agents SDK: function tools whose calls are run by a runner.

``Agent(name=…, tools=runner_tools(runner, [search, read_file]))``: nothing else changes. The
SDK runs the calls of a turn side by side and asks each tool for its own answer, so each
call is a batch of its own here. Checks of arguments, approvals, guardrails, time limits and
what becomes of a tool's exception stay with the SDK.
"""

# mypy and pyright look at this file without the SDK, as the default checks have none.
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
    from agents import FunctionTool, function_tool
except ImportError as exc:
    raise ImportError(missing("the OpenAI Agents SDK", "openai-agents")) from exc

__all__ = ("Invocation", "runner_tools")


@dataclass(frozen=True)
class Invocation:
    """A call as the SDK makes it: the `metadata` of its `ToolCall`."""

    ctx: Any
    """The call's `ToolContext`."""
    arguments: str
    """As the model wrote them."""


def runner_tools(
    runner: ToolRunner,
    tools: Iterable[Any],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Any]:
    """
    Return the tools, with all calls of function tools run by the runner.

    Args:
        runner: Runs them. Tools of its own are not used.
        tools: The SDK's tools, or plain functions, which `function_tool` makes tools
            of. What is no function tool (hosted ones, a shell) is given back as it is.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.

    Raises:
        TypeError, ValueError: `runner` is none; `options` has something that `Tool` does not take, or is for
            none of the function tools.
    """
    return replaced_tools(
        runner,
        tools,
        options,
        kind=FunctionTool,
        make=function_tool,
        replace=_on_runner,
    )


def _on_runner(runner: ToolRunner, original: Any, options: Mapping[str, Any]) -> Any:
    invoke = original.on_invoke_tool

    async def run() -> Any:
        call: Invocation = current_call().call.metadata
        return await invoke(call.ctx, call.arguments)

    tool = framework_tool(original.name, run, blocks=_blocks(original), options=options)

    async def on_invoke_tool(ctx: Any, arguments: str) -> Any:
        invocation = Invocation(ctx, arguments)
        call = ToolCall(
            ctx.tool_call_id, original.name, arguments, tool=tool, metadata=invocation
        )
        if call.parse_error is not None:
            # The tool is to say so itself: it is given the arguments as they are.
            call = ToolCall(call.id, call.name, tool=tool, metadata=invocation)
        result = await answer_alone("the OpenAI Agents SDK", runner, call)
        return result.text if result.is_error else result.value

    replaced = copy.copy(original)
    replaced.on_invoke_tool = on_invoke_tool
    return replaced


def _blocks(tool: Any) -> bool:
    """Tell whether it is a plain function, which the SDK would run in a thread."""
    try:
        function = tool.__wrapped__
    except AttributeError:  # made by hand: its `on_invoke_tool` is async
        return False
    return kind_of(function) == "sync"
