"""
pydantic-ai: a capability that runs an agent's tool calls as batches of a runner.

``Agent(model, tools=[…], capabilities=[ToolBatches(runner)])``: nothing else changes.
It stands in pydantic-ai's own place for what calls a tool, innermost: checks of arguments,
hooks, spans, retries, approvals and the order of a step's calls are the framework's. The
calls that a step makes are the calls of one batch.

When the run is cancelled, each call gives at once what the batch has of it by then, and
pydantic-ai writes that into the interrupted request with which it closes such a history.
"""

# mypy and pyright look at this file without pydantic-ai, as the default checks have none.
# pyright: reportMissingImports=false
# ... and pyright takes this file for it, by its name.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextvars
import copy
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import anyio

from .. import CallHandle, Tool, ToolBatch, ToolCall, ToolResult, ToolRunner, current_call
from ._frameworks import check_runner, checked_options, missing, require_asyncio
from ._options import check_names
from ._worker_executor import WorkerExecutor, keep_from_pool

try:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import (
        ApprovalRequired,
        CallDeferred,
        ModelRetry,
        RunCancelled,
        SkipToolExecution,
        ToolFailed,
        ToolFailedError,
        ToolRetryError,
    )
    from pydantic_ai.messages import ToolReturnPart
    from pydantic_ai.toolsets import CombinedToolset, FunctionToolset, WrapperToolset
except ImportError as exc:
    raise ImportError(missing("pydantic-ai", "pydantic-ai")) from exc

__all__ = ("Invocation", "ToolBatches")

UNDERSTOOD = (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunCancelled,  # of an agent inside the tool
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
"""What a tool may raise to say something to pydantic-ai."""

_serving: contextvars.ContextVar[ToolBatches] = contextvars.ContextVar("_serving")
"""Whose call the code runs in."""


@dataclass(frozen=True)
class Invocation:
    """A call as pydantic-ai has prepared it: the `metadata` of its `ToolCall`."""

    ctx: Any
    """The call's own `RunContext`."""
    arguments: Mapping[str, Any]
    """Checked and converted by pydantic-ai."""
    toolset: Any
    tool: Any
    run: ToolBatches


@dataclass
class _Step:
    """The batch of a step, open until the next."""

    context: AbstractAsyncContextManager[ToolBatch]
    batch: ToolBatch
    waiting: int = 0
    """For how many calls pydantic-ai waits."""
    run_is_over: bool = False


class ToolBatches(AbstractCapability[Any]):
    """
    Runs the calls of each step of an agent as one batch of a runner.

    Args:
        runner: Runs them. Tools of its own are not used.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take, from its first call on.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind, or `options` has something
            that `Tool` does not take. In a run: it names a tool that the agent does not have.
    """

    def __init__(
        self,
        runner: ToolRunner,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        check_runner(runner, timeout)
        self.runner = runner
        self.timeout = timeout
        self._options = checked_options(options)
        self._tools: dict[tuple[Any, ...], Tool] = {}
        """Made once for each tool, also for later runs: its own limits go by identity."""
        self._step: _Step | None = None
        self._dropped: dict[str, CallHandle] = {}
        """By the call's id: pydantic-ai, or a hook in it, did not wait for its answer."""

    def get_ordering(self) -> Any:
        """Stand outside of other capabilities: what they cancel is theirs to deal with."""
        return CapabilityOrdering(position="outermost")

    async def for_run(self, ctx: Any) -> ToolBatches:
        """Keep what belongs to one run apart from all others."""
        require_asyncio("pydantic-ai")
        own = copy.copy(self)
        own._step = None
        own._dropped = {}
        return own

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """Come between pydantic-ai and all function tools."""
        return _Batched(toolset, self)

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """End the batch of the step before."""
        await self._end_step()
        return request_context

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """End the last batch; at once, if the run is cut."""
        try:
            result = await handler()
        except BaseException as exc:
            if self._step is not None:
                self._step.run_is_over = True
            await self._end_step(exc)
            raise
        await self._end_step()
        return result

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Give the answer of a call for which nobody waits; pydantic-ai writes it down."""
        try:
            return await handler(args)
        except anyio.get_cancelled_exc_class():
            handle = self._dropped.pop(call.tool_call_id, None)
            if handle is None:
                raise
            with anyio.CancelScope(shield=True):
                await handle.wait()
            return _answer(handle.result)
        finally:
            self._dropped.pop(call.tool_call_id, None)

    async def _call(self, invocation: Invocation) -> Any:
        """Run one call in the batch of its step, and give or raise its answer."""
        call = ToolCall(
            invocation.ctx.tool_call_id or "",
            invocation.tool.tool_def.name,
            invocation.arguments,
            tool=self._tool(invocation),
            metadata=invocation,
        )
        if _serving.get(None) is self:  # a tool that has others called
            (result,) = await self.runner.run([call], timeout=self.timeout)
        else:
            result = await self._in_step(call)
        return _answer(result)

    async def _in_step(self, call: ToolCall) -> ToolResult:
        step = self._step
        if step is None:
            context = self.runner.open_batch(timeout=self.timeout)
            step = self._step = _Step(context, await context.__aenter__())
        handle = step.batch.submit(call)
        step.waiting += 1
        try:
            try:
                result = await handle.wait()
                if step.run_is_over:
                    # It is about to be cancelled: then pydantic-ai writes down what answers
                    # there are, but not if the whole step has come to its end before.
                    await anyio.sleep_forever()
                return result
            finally:
                step.waiting -= 1
        except anyio.get_cancelled_exc_class() as exc:
            self._dropped[call.id] = handle
            if step.waiting:
                handle.cancel()
            elif self._step is step:
                await self._end_step(exc)
            raise

    async def _end_step(self, exc: BaseException | None = None) -> None:
        step, self._step = self._step, None
        if step is not None:
            await step.context.__aexit__(None if exc is None else type(exc), exc, None)

    def _tool(self, invocation: Invocation) -> Tool:
        definition = invocation.tool.tool_def
        is_blocking, timeout = _function(invocation.toolset, invocation.tool)
        if definition.timeout is not None:
            timeout = definition.timeout
        key = definition.name, is_blocking, timeout, definition.sequential
        if key not in self._tools:
            defaults = {
                "runs_in": "thread" if is_blocking else "loop",
                "timeout": timeout,
                "exclusive": definition.sequential,
            }
            options = {**defaults, **self._options.get(definition.name, {})}
            run = _run_blocking if is_blocking else _run
            self._tools[key] = Tool(run, name=definition.name, **options)
        return self._tools[key]


@dataclass
class _Batched(WrapperToolset[Any]):
    batches: ToolBatches

    async def get_tools(self, ctx: Any) -> Any:
        tools = await super().get_tools(ctx)
        check_names(self.batches._options, {*tools, *_functions(self.wrapped)})
        return tools

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        invocation = Invocation(ctx, tool_args, self.wrapped, tool, self.batches)
        return await self.batches._call(invocation)


async def _run(**_arguments: Any) -> Any:
    """Have a call made on the loop; plain functions on its way run in workers."""
    executor = WorkerExecutor()
    with Agent.using_thread_executor(executor):
        try:
            return await _call_tool()
        except anyio.get_cancelled_exc_class():
            # While they run, so does this call: what it may write is not free.
            await executor.wait_idle()
            raise


async def _run_blocking(**_arguments: Any) -> Any:
    with Agent.using_thread_executor(WorkerExecutor()):
        return await keep_from_pool(_call_tool)


async def _call_tool() -> Any:
    # Not the keyword arguments: what pydantic-ai has made of them need not be a copy.
    todo: Invocation = current_call().call.metadata
    _serving.set(todo.run)
    # The time limit is the batch's to keep: it lets go of calls that are deaf.
    tool = replace(todo.tool, tool_def=replace(todo.tool.tool_def, timeout=math.inf))
    return await todo.toolset.call_tool(
        tool.tool_def.name, dict(todo.arguments), todo.ctx, tool
    )


def _function(toolset: Any, tool: Any) -> tuple[bool, float | None]:
    """
    Return whether a plain function is called, and its toolset's time limit.

    Both are known only if nothing but pydantic-ai stands between here and the function:
    what others have put there is async, and belongs to the agent's event loop.
    """
    while type(toolset).call_tool.__module__.startswith("pydantic_ai.toolsets."):
        if isinstance(toolset, FunctionToolset):
            return not tool.is_async, toolset.timeout
        if isinstance(toolset, CombinedToolset) and hasattr(tool, "source_tool"):
            toolset, tool = tool.source_toolset, tool.source_tool
        elif isinstance(toolset, WrapperToolset):
            toolset = toolset.wrapped
        else:
            break
    return False, None


def _functions(toolset: Any) -> set[str]:
    """Return the names of all functions, also of those that are hidden now."""
    names: set[str] = set()
    toolset.apply(
        lambda leaf: names.update(leaf.tools if isinstance(leaf, FunctionToolset) else ())
    )
    return names


def _answer(result: ToolResult | None) -> Any:
    """
    Return what the tool returned.

    Raises:
        ToolFailed: It did not complete; the message says how.
        ToolFailedError: The run is being cancelled; for its history.
        Exception: What the tool raised, of pydantic-ai's own ways to answer.
    """
    assert result is not None, "not settled"
    error = result.error
    if error is not None and isinstance(error, UNDERSTOOD):
        raise error
    if result.reason is not None and result.reason.kind == "caller_cancelled":
        part = ToolReturnPart(
            tool_name=result.call.name,
            content=result.text,
            tool_call_id=result.call.id,
            outcome="interrupted",
        )
        raise ToolFailedError(part)
    if result.is_error:
        raise ToolFailed(result.text) from error
    return result.value
