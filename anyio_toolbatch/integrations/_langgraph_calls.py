"""
Calls of a `ToolNode`, made in a batch.

A ``wrap_tool_call`` hook gets a request, and LangGraph's own way to execute it; it hands both to
`BatchedTools.submit`, and gives back what comes of `answered`. Each call comes from a task of the graph that is its own, so what LangGraph
keeps by tasks is kept by calls: answers to `interrupt()`, and results that wait for siblings.
"""

# mypy and pyright look at this file without LangGraph, as the default checks have none.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp, is_invalid_resume

from .. import CallHandle, Tool, ToolBatch, ToolCall, ToolResult, current_call
from ._frameworks import checked_options
from ._langgraph_fence import Fence
from ._options import check_names
from ._worker_executor import keep_from_pool

__all__ = ("BatchedTools", "Handler", "answered", "answers_of", "refusal")

Handler = Callable[[Any], Awaitable[Any]]
"""Executes a `ToolCallRequest`; gives a `ToolMessage`, a `Command`, or a list of them."""


@dataclass(frozen=True)
class Invocation:
    """How LangGraph would make the call: the `metadata` of its `ToolCall`."""

    request: Any
    handler: Handler
    position: int
    """The call's in its message."""


class BatchedTools:
    """
    A graph's tools as tools of a batch.

    Args:
        tools: By name, LangChain's.
        options: By the name of a tool, options of `Tool` for it.

    Raises:
        TypeError, ValueError: `Tool` does not take the options, or they are for none of the
            tools.
    """

    def __init__(
        self, tools: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]] | None
    ) -> None:
        own = checked_options(options)
        check_names(own, tools)
        self._tools = {
            name: _make_tool(tool, own.get(name, {})) for name, tool in tools.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def submit(
        self, batch: ToolBatch, request: Any, handler: Handler, position: int
    ) -> CallHandle:
        """
        Have a call made in the batch.

        Args:
            batch: Takes the call in.
            request: LangGraph's, a `ToolCallRequest`.
            handler: Executes it.
            position: The call's in its message.
        """
        fence = Fence()
        wanted = request.tool_call
        if not isinstance(wanted["args"], dict):  # as the model has written them
            parsed = dict(ToolCall("", "", wanted["args"] or "").arguments)
            request = request.override(tool_call={**wanted, "args": parsed})
        call = ToolCall(
            wanted["id"] or "",
            wanted["name"] or "",
            wanted["args"] or "",
            tool=self._tools.get(wanted["name"]),
            metadata=Invocation(fence.around(request), handler, position),
            wire=wanted,
        )
        fence.handle = batch.submit(call)
        return fence.handle


async def answered(handle: CallHandle) -> Any:
    """
    Wait for a call's answer.

    Returns:
        What its handler has given, or an error message with what the result says.

    Raises:
        GraphBubbleUp: The tool has a word to the graph, such as an `interrupt()`.
        ValidationError: An answer to an `interrupt()` is none that it takes.
    """
    result = await handle.wait()
    if result.error is not None and _is_for_the_graph(result.error):
        raise result.error
    if result.reason is not None and result.reason.kind == "unknown_tool":
        made = result.call.metadata
        return await made.handler(made.request)  # its text has the names that there are
    return _answer_of(result)


def answers_of(results: Iterable[ToolResult]) -> dict[int, Any]:
    """Return, by the positions of their calls, the answers that a batch has."""
    return {
        result.call.metadata.position: _answer_of(result)
        for result in results
        if result.error is None or not _is_for_the_graph(result.error)
    }


def refusal(call: Any, text: str) -> ToolMessage:
    """Return the error message that answers a call."""
    return ToolMessage(
        text, name=call["name"] or "", tool_call_id=call["id"] or "", status="error"
    )


def _answer_of(result: ToolResult) -> Any:
    """Return what a `ToolNode` would give for the call."""
    return refusal(result.call.wire, result.text) if result.is_error else result.value


def _is_for_the_graph(error: BaseException) -> bool:
    return isinstance(error, GraphBubbleUp) or is_invalid_resume(error)


def _make_tool(tool: Any, options: Mapping[str, Any]) -> Tool:
    async def run(**_arguments: Any) -> Any:
        invocation: Invocation = current_call().call.metadata
        return await invocation.handler(invocation.request)

    async def run_blocking(**_arguments: Any) -> Any:
        # LangChain would hand it to the loop's pool, which is joined at exit.
        return await keep_from_pool(run)

    function, runs_in = (run, "loop") if _is_async(tool) else (run_blocking, "thread")
    return Tool(function, name=tool.name, **{"runs_in": runs_in, **options})


def _is_async(tool: Any) -> bool:
    """Tell whether LangChain would run it on the loop."""
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun
