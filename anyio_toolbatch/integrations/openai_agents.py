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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import Tool, ToolCall, ToolRunner, current_call
from .._model.tools import kind_of
from ._frameworks import missing, require_asyncio, run_inline

try:
    from agents import FunctionTool, function_tool
except ImportError as exc:
    raise ImportError(missing("the OpenAI Agents SDK", "openai-agents")) from exc

__all__ = ("Invocation", "runner_tools")

Invoke = Callable[[Any, str], Any]


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
    """
    options = options or {}
    made = []
    for tool in tools:
        if isinstance(tool, FunctionTool):
            made.append(_on_runner(runner, tool, options))
        elif callable(tool):
            made.append(_on_runner(runner, function_tool(tool), options))
        else:
            made.append(tool)
    return made


def _on_runner(
    runner: ToolRunner, original: Any, options: Mapping[str, Mapping[str, Any]]
) -> Any:
    function, runs_in = _run, "loop"
    if _blocks(original):
        function, runs_in = _run_blocking, "thread"
    own = options.get(original.name, {})
    invoke = original.on_invoke_tool

    async def run(**_arguments: Any) -> Any:
        return await function(invoke)

    tool = Tool(run, name=original.name, **{"runs_in": runs_in, **own})

    async def on_invoke_tool(ctx: Any, arguments: str) -> Any:
        require_asyncio("the OpenAI Agents SDK")
        call = ToolCall(
            ctx.tool_call_id,
            original.name,
            arguments,
            tool=tool,
            metadata=Invocation(ctx, arguments),
        )
        (result,) = await runner.run([call])
        if result.error is not None and result.reason is None:
            raise result.error  # the SDK knows what its user wants to be done with it
        return result.text if result.is_error else result.value

    replaced = copy.copy(original)
    replaced.on_invoke_tool = on_invoke_tool
    return replaced


async def _run(invoke: Invoke) -> Any:
    call: Invocation = current_call().call.metadata
    return await invoke(call.ctx, call.arguments)


async def _run_blocking(invoke: Invoke) -> Any:
    # The SDK would hand it to the loop's pool, which is joined at exit.
    return await run_inline(lambda: _run(invoke))


def _blocks(tool: Any) -> bool:
    """Tell whether it is a plain function, which the SDK would run in a thread."""
    try:
        function = tool.__wrapped__
    except AttributeError:  # made by hand: its `on_invoke_tool` is async
        return False
    return kind_of(function) == "sync"
