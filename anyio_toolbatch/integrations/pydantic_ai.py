"""
pydantic-ai: a capability that runs an agent's tool calls as one batch.

``Agent(model, tools=[…], capabilities=[ToolBatches(runner)])``: nothing else changes.
The framework checks the arguments; then all function tools of a step are run
together by the runner. They are shown to pydantic-ai as *external* tools, which is its
own way to have calls answered by somebody else, all at once.

A cancelled run ends before these answers are asked for. What the batch had by then is
written into the interrupted request with which pydantic-ai closes such a history.
"""

# mypy and pyright look at this file without pydantic-ai, as the default checks have none.
# pyright: reportMissingImports=false
# ... and pyright takes this file for it, by its name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import Status, Tool, ToolBatch, ToolCall, ToolResult, ToolRunner, current_call
from ._frameworks import InlineExecutor, missing, require_asyncio, run_inline

try:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import (
        CallDeferred,
        ModelRetry,
        SkipToolValidation,
        ToolFailed,
    )
    from pydantic_ai.messages import ModelRequest, ToolReturn, ToolReturnPart
    from pydantic_ai.tools import DeferredToolResults
except ImportError as exc:
    raise ImportError(missing("pydantic-ai", "pydantic-ai")) from exc

__all__ = ("Invocation", "ToolBatches")


@dataclass(frozen=True)
class Invocation:
    """A call as pydantic-ai has prepared it: the `metadata` of its `ToolCall`."""

    ctx: Any
    """The call's own `RunContext`."""
    arguments: Mapping[str, Any]
    """Checked and converted by pydantic-ai."""
    toolset: Any
    tool: Any


class ToolBatches(AbstractCapability[Any]):
    """
    Runs the calls of each step of an agent as one batch of a runner.

    Args:
        runner: Runs them. Tools of its own are not used.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take.
    """

    def __init__(
        self,
        runner: ToolRunner,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.runner = runner
        self.timeout = timeout
        self._options = options or {}
        self._tools: dict[tuple[Any, ...], Tool] = {}
        """Made once for each tool, also for later runs: its own limits go by identity."""
        self._ready: dict[str, Invocation] = {}

    async def for_run(self, ctx: Any) -> ToolBatches:
        """Keep what belongs to one run apart from all others."""
        require_asyncio("pydantic-ai")
        own = type(self)(self.runner, options=self._options, timeout=self.timeout)
        own._tools = self._tools
        return own

    async def wrap_tool_validate(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Keep arguments that were found to be good, and put the call off."""
        try:
            arguments = await handler(args)
        except SkipToolValidation as exc:
            arguments = exc.validated_args
        if tool_def.kind != "function":
            return arguments
        manager = ctx.tool_manager
        self._ready[call.tool_call_id] = Invocation(
            ctx, arguments, manager.toolset, manager.tools[call.tool_name]
        )
        raise CallDeferred

    async def handle_deferred_tool_calls(self, ctx: Any, *, requests: Any) -> Any:
        """Run the batch, and give pydantic-ai its answers."""
        calls = [
            self._call(part, self._ready.pop(part.tool_call_id))
            for part in requests.calls
            if part.tool_call_id in self._ready
        ]
        if not calls:
            return None
        batch: ToolBatch | None = None
        try:
            async with self.runner.open_batch(calls, timeout=self.timeout) as batch:
                pass
        except BaseException:
            if batch is not None:
                # pydantic-ai adds one more request, with what else was done in this step,
                # and joins the two when the history is used.
                parts = [_part_of(result) for result in batch.results]
                ctx.messages.append(ModelRequest(parts=parts, state="interrupted"))
            raise
        answers = {
            result.call.id: _answer_of(result)
            for result in batch.results
            if not isinstance(result.error, CallDeferred)  # somebody else's to answer
        }
        return DeferredToolResults(calls=answers)

    def _call(self, part: Any, invocation: Invocation) -> ToolCall:
        return ToolCall(
            part.tool_call_id,
            part.tool_name,
            invocation.arguments,
            tool=self._tool(invocation.tool),
            metadata=invocation,
            wire=part,
        )

    def _tool(self, tool: Any) -> Tool:
        definition = tool.tool_def
        name = definition.name
        while hasattr(tool, "source_tool"):  # what a combined toolset shows
            tool = tool.source_tool
        # Only function toolsets tell; all other kinds of tools are async.
        is_async = getattr(tool, "is_async", True)
        key = name, is_async, definition.timeout, definition.sequential
        if key not in self._tools:
            defaults = {
                "runs_in": "loop" if is_async else "thread",
                "timeout": definition.timeout,
                "exclusive": definition.sequential,
            }
            options = {**defaults, **self._options.get(name, {})}
            run = _run if is_async else _run_blocking
            self._tools[key] = Tool(run, name=name, **options)
        return self._tools[key]


async def _run(**_arguments: Any) -> Any:
    # Not the keyword arguments: what pydantic-ai has made of them need not be a copy.
    todo: Invocation = current_call().call.metadata
    # The time limit is the batch's to keep: it lets go of calls that are deaf.
    tool = replace(todo.tool, tool_def=replace(todo.tool.tool_def, timeout=None))
    return await todo.toolset.call_tool(
        todo.tool.tool_def.name, dict(todo.arguments), todo.ctx, tool
    )


async def _run_blocking(**arguments: Any) -> Any:
    with Agent.using_thread_executor(InlineExecutor()):
        return await run_inline(functools.partial(_run, **arguments))


def _answer_of(result: ToolResult) -> Any:
    if isinstance(result.error, ModelRetry | ToolFailed):
        return result.error
    return ToolFailed(result.text) if result.is_error else result.value


def _part_of(result: ToolResult) -> ToolReturnPart:
    content, metadata = (result.text, None) if result.is_error else (result.value, None)
    if isinstance(content, ToolReturn):
        content, metadata = content.return_value, content.metadata
    outcome = "failed" if result.is_error else "success"
    return ToolReturnPart(
        tool_name=result.call.name,
        content=content,
        tool_call_id=result.call.id,
        metadata=metadata,
        outcome="interrupted" if result.status is Status.INTERRUPTED else outcome,
    )
