"""
LangGraph: a node that answers a message's tool calls as one batch.

``graph.add_node("tools", ToolBatchNode(runner, tools))``, in place of LangGraph's
`ToolNode`. Each call is made by a `ToolNode` behind it, so injected state, stores, runtimes and
`Command`s work as everywhere; this module decides how the calls run together.

A cancelled graph writes nothing of the step that it was in, and leaves calls open in its
history. So the results that a cancelled batch had are kept in the node, and are written
when the thread goes on (`ToolBatchNode.close`).
"""

# mypy and pyright look at this file without LangGraph, as the default checks have none.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .. import Tool, ToolBatch, ToolCall, ToolResult, ToolRunner, current_call
from ._frameworks import missing, require_asyncio, run_inline

try:
    from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp
    from langgraph.graph.message import REMOVE_ALL_MESSAGES
    from langgraph.prebuilt import ToolNode
except ImportError as exc:
    raise ImportError(missing("LangGraph", "langgraph")) from exc

__all__ = ("ToolBatchNode",)

MAX_KEPT = 256
"""Cancelled turns whose results wait to be written; the oldest goes. Arbitrary, ample."""

NOT_KNOWN = (
    "The turn was cut before this tool call was answered. "
    "It may have had side effects; its outcome is unknown."
)


class ToolBatchNode:
    """
    A node that answers the tool calls of the last message, all in one batch.

    ``graph.add_node("tools", ToolBatchNode(runner, tools))``. Async only.

    Args:
        runner: Runs them. Tools of its own are not used.
        tools: LangChain tools or functions, as for `ToolNode`.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take.
        messages_key: Where the state has its messages.
    """

    def __init__(
        self,
        runner: ToolRunner,
        tools: Iterable[BaseTool | Callable[..., Any]],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
        messages_key: str = "messages",
    ) -> None:
        self._runner = runner
        self._timeout = timeout
        self._key = messages_key
        self._node = ToolNode(list(tools), messages_key=messages_key)
        self.tools: dict[str, BaseTool] = self._node.tools_by_name
        """By name, as they are to be bound to the model."""
        options = options or {}
        self._tools = {
            name: self._make_tool(tool, options.get(name, {}))
            for name, tool in self.tools.items()
        }
        self._kept: dict[str, dict[int, Any]] = {}
        """By the id of a model's message, then by the position of its call: the update."""

    async def __call__(self, state: Any) -> Any:
        """Answer the open calls of the last message of the model."""
        return await self.answer(state)

    async def answer(self, state: Any, *, own_only: bool = False) -> Any:
        """
        Answer the open calls of the last message of the model.

        Args:
            state: The graph's.
            own_only: Leave calls for tools that this node does not have.

        Returns:
            What a node returns to update the state; None if there is nothing to do.

        Cancellation:
            The cancellation goes on. What the batch had by then is kept for `close`.
        """
        require_asyncio("LangGraph")
        messages = self._messages(state)
        at = max((n for n, m in enumerate(messages) if isinstance(m, AIMessage)), default=None)
        if at is None:
            return None
        message = messages[at]
        calls = {
            position: call
            for position, call in _open_calls(message, messages[at + 1 :])
            if not own_only or call["name"] in self._tools
        }
        # Kept by a run that was cut here, and is now resumed: they must not run twice.
        updates = self._kept.pop(message.id, {})
        positions = [position for position in calls if position not in updates]
        batch: ToolBatch | None = None
        try:
            async with self._runner.open_batch(
                [self._call(calls[position]) for position in positions], timeout=self._timeout
            ) as batch:
                pass
            for result in batch.results:
                if isinstance(result.error, GraphBubbleUp):  # a word to the graph, no failure
                    raise result.error
        except BaseException:
            if batch is not None and message.id is not None:
                updates |= self._updates(positions, batch.results)
                self._keep(message.id, updates)
            raise
        updates |= self._updates(positions, batch.results)
        return self._joined([updates[position] for position in calls])

    def close(self, state: Any) -> Any:
        """
        Close the calls that a cancelled run left open; for a node at the graph's start.

        Each call gets the result that it had; if that is not known any more (another
        process ran it), a text that says so. The state's messages need LangGraph's
        `add_messages`, as `MessagesState` has it: answers are put in between.
        """
        messages = self._messages(state)
        closed: list[Any] = []
        answers: list[Any] = []
        for at, message in enumerate(messages):
            if not isinstance(message, ToolMessage):
                closed += answers
                answers = []
            closed.append(message)
            if isinstance(message, AIMessage):
                kept = self._kept.pop(message.id, {})
                for position, call in _open_calls(message, messages[at + 1 :]):
                    not_known = self._message(call, NOT_KNOWN)
                    answers += _messages_in(kept.get(position), self._key) or _messages_in(
                        not_known, self._key
                    )
        closed += answers
        if len(closed) == len(messages):
            return None
        return {self._key: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *closed]}

    def _messages(self, state: Any) -> list[Any]:
        found = state.get(self._key) if isinstance(state, dict) else getattr(state, self._key)
        return list(found or ())

    def _keep(self, message_id: str, updates: dict[int, Any]) -> None:
        self._kept[message_id] = updates
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def _call(self, call: Any) -> ToolCall:
        tool = self._tools.get(call["name"])
        return ToolCall(
            call["id"] or "", call["name"] or "", call["args"], tool=tool, wire=call
        )

    def _updates(self, positions: list[int], results: Iterable[ToolResult]) -> dict[int, Any]:
        return {
            position: self._message(result.call.wire, result.text)
            if result.is_error
            else result.value
            for position, result in zip(positions, results, strict=True)
            if not isinstance(result.error, GraphBubbleUp)
        }

    def _message(self, call: Any, text: str) -> Any:
        message = ToolMessage(
            text, name=call["name"] or "", tool_call_id=call["id"] or "", status="error"
        )
        return {self._key: [message]}

    def _joined(self, updates: list[Any]) -> Any:
        if all(isinstance(update, dict) for update in updates):
            return {self._key: [m for update in updates for m in update[self._key]]}
        # A tool has given a `Command`: LangGraph takes them in a list, with the rest.
        return [
            part
            for update in updates
            for part in (update if isinstance(update, list) else [update])
        ]

    def _make_tool(self, tool: Any, options: Mapping[str, Any]) -> Tool:
        async def run(**_arguments: Any) -> Any:
            call = {**current_call().call.wire, "type": "tool_call"}
            return await self._node.ainvoke([call], get_config())

        async def run_blocking(**_arguments: Any) -> Any:
            # LangChain would hand it to the loop's pool, which is joined at exit.
            return await run_inline(run)

        function, runs_in = (run, "loop") if _is_async(tool) else (run_blocking, "thread")
        return Tool(function, name=tool.name, **{"runs_in": runs_in, **options})


def _is_async(tool: Any) -> bool:
    """Tell whether LangChain would run it on the loop."""
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun


def _open_calls(message: Any, after: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Give the calls of a message that the messages right after it do not answer."""
    answers = itertools.takewhile(lambda m: isinstance(m, ToolMessage), after)
    answered = Counter(answer.tool_call_id for answer in answers)
    # The second list has what LangChain could not parse.
    for position, call in enumerate([*message.tool_calls, *message.invalid_tool_calls]):
        if answered[call["id"]]:
            answered[call["id"]] -= 1
        else:
            yield position, call


def _messages_in(update: Any, key: str) -> list[Any]:
    """Return the messages of what a `ToolNode` gives, or of None."""
    if update is None:
        return []
    if isinstance(update, list):
        return [message for part in update for message in _messages_in(part, key)]
    values = update if isinstance(update, dict) else update.update
    return list(values.get(key, ())) if isinstance(values, dict) else []
