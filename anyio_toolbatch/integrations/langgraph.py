"""
LangGraph: a node that answers a message's tool calls as one batch.

``graph.add_node("tools", ToolBatchNode(runner, tools))``, in place of LangGraph's
`ToolNode`. Each call is made by a `ToolNode` behind it, so injected state, stores, runtimes and
`Command`s work as everywhere; this module decides how the calls run together.

The node is a small graph inside, with a task for each call: so LangGraph keeps the calls'
answers to `interrupt()` apart, and those that have a result do not run again when it goes on.
"""

# mypy and pyright look at this file without LangGraph, as the default checks have none.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict

from .. import ToolBatch, ToolRunner
from ._frameworks import check_runner, missing, require_asyncio

try:
    from langchain_core.runnables.config import set_config_context
    from langgraph.config import get_config, get_stream_writer
    from langgraph.errors import GraphBubbleUp
    from langgraph.graph import START, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.runtime import Runtime
    from langgraph.types import Command, Send
except ImportError as exc:
    raise ImportError(missing("LangGraph", "langgraph")) from exc

from . import _langgraph_history as history
from ._langgraph_calls import BatchedTools, Handler, answered, answers_of

__all__ = ("ToolBatchNode",)


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

    Raises:
        TypeError, ValueError: An argument is of the wrong kind, or `options` has something
            that `Tool` does not take, or names a tool that is not among `tools`.
    """

    def __init__(
        self,
        runner: ToolRunner,
        tools: Iterable[Any | Callable[..., Any]],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
        messages_key: str = "messages",
    ) -> None:
        check_runner(runner, timeout)
        self._runner = runner
        self._timeout = timeout
        self._key = messages_key
        self._node = ToolNode(
            list(tools), messages_key=messages_key, awrap_tool_call=self._ask
        )
        self.tools: dict[str, Any] = self._node.tools_by_name
        """LangChain's, by name, as they are to be bound to the model."""
        self._batched = BatchedTools(self.tools, options)
        self._kept = history.KeptAnswers()
        graph = StateGraph(_Answering)
        graph.add_node("call", self._answer_one)
        graph.add_conditional_edges(START, _one_task_each, ["call"])
        self._graph = graph.compile(name="calls")

    async def __call__(self, state: Any) -> Any:
        """
        Answer the open calls of the last message of the model.

        Returns:
            What a node returns to update the state; None if there is nothing to do.

        Raises:
            TypeError: `state` is a list or a single call, as LangChain's agents send them
                to a `ToolNode`.

        Cancellation:
            The cancellation goes on. What the batch had by then is kept for `close`.
        """
        require_asyncio("LangGraph")
        message, calls = history.last_calls(self._messages(state))
        if not calls:
            return None
        thread = history.current_thread()
        batch: ToolBatch | None = None
        try:
            async with self._runner.open_batch(timeout=self._timeout) as batch:
                earlier = self._kept.of_cut(thread, message)
                _turn.set(_Turn(batch, state, calls, _own_config(), earlier))
                ended = await self._graph.ainvoke({"positions": list(calls)})
        except BaseException as exc:
            if batch is not None:
                answers = answers_of(batch.results)
                cut_run = None if isinstance(exc, GraphBubbleUp) else history.SOME_RUN
                self._kept.add(thread, message, answers, cut_run=cut_run)
            raise
        # LangGraph has them now, for whoever takes this step up again; should the step never be
        # written, `close` has them here.
        self._kept.drop(thread, message)
        self._kept.add(thread, message, answers_of(batch.results))
        answers = dict(ended["answers"])
        return self._update([part for position in calls for part in answers[position]])

    def close(self, state: Any) -> Any:
        """
        Close the calls that a cancelled run left open; for a node at the graph's start.

        Each call gets the result that it had; if that is not known any more (another
        process ran it), a text that says so. What else a `Command` of a tool does to the
        state is done too; its `goto` is past. The state's messages need LangGraph's
        `add_messages`, as `MessagesState` has it: answers are put in between.
        """
        return history.close(self._messages(state), self._key, self._kept)

    def _messages(self, state: Any) -> list[Any]:
        if isinstance(state, list) or (isinstance(state, dict) and "tool_call" in state):
            msg = (
                "a ToolBatchNode takes the graph's state, and answers all calls of its last "
                f"message; it was sent {type(state).__name__} of calls. For agents of "
                "create_agent there is ToolBatchMiddleware"
            )
            raise TypeError(msg)
        found = state.get(self._key) if isinstance(state, dict) else getattr(state, self._key)
        return list(found or ())

    async def _answer_one(self, position: int) -> dict[str, Any]:
        """Answer one call; in a task of the graph that has only this."""
        turn = _turn.get()
        if position in turn.earlier:
            return {"answers": [(position, _parts(turn.earlier[position]))]}
        _turn.set(replace(turn, position=position))
        wanted = turn.calls[position]
        # `ToolNode` takes a call without an id for no call at all.
        named = {key: wanted[key] or "" for key in ("id", "name")}
        call = {
            "__type": "tool_call_with_context",
            "tool_call": {**wanted, **named, "type": "tool_call"},
            "state": turn.state,
        }
        given = await self._node.ainvoke(call, turn.seen_by_watchers(get_config()))
        parts = given if isinstance(given, list) else [given]
        answer = [m for part in parts for m in _parts(part, self._key)]
        return {"answers": [(position, answer)]}

    async def _ask(self, request: Any, handler: Handler) -> Any:
        turn = _turn.get()
        return await answered(
            self._batched.submit(turn.batch, request, handler, turn.position)
        )

    def _update(self, answers: list[Any]) -> Any:
        """Put the answers together as a `ToolNode` does, in the order of the calls."""
        if not any(isinstance(answer, Command) for answer in answers):
            return {self._key: answers}
        sends: list[Any] = []
        update: list[Any] = []
        for answer in answers:
            if not isinstance(answer, Command):
                update.append({self._key: [answer]})
            elif _only_sends(answer):
                sends += answer.goto
            else:
                update.append(answer)
        # LangGraph follows but one command to the graph around.
        return [*update, Command(graph=Command.PARENT, goto=sends)] if sends else update


class _Answering(TypedDict):
    """The state of the graph inside: what is left to answer, and what came of it."""

    positions: list[int]
    answers: Annotated[list[tuple[int, list[Any]]], operator.add]


@dataclass(frozen=True)
class _Turn:
    """What the tasks of a batch have in common, and do not put into a checkpoint."""

    batch: ToolBatch
    state: Any
    calls: Mapping[int, Any]
    config: Any
    """The node's own."""
    earlier: Mapping[int, Any]
    position: int = -1

    def seen_by_watchers(self, config: Any) -> Any:
        """
        Return a task's configuration, changed for who watches the user's graph.

        To them a tool is called by the node, not by a graph inside it. A graph inside has
        no stream, unless streams of such are asked for.
        """
        if not self.config:  # no graph is running
            return config
        known_by = ("callbacks", "metadata", "tags")
        own = {key: self.config[key] for key in known_by if key in self.config}
        configurable = {
            key: value.override(stream_writer=self._write)
            if isinstance(value, Runtime)
            else value
            for key, value in config["configurable"].items()
        }
        return {**config, **own, "configurable": configurable}

    def _write(self, chunk: Any) -> None:
        # LangGraph's writers look up where they are.
        with set_config_context(self.config) as context:
            context.run(lambda: get_stream_writer()(chunk))


_turn: ContextVar[_Turn] = ContextVar("_turn")


def _one_task_each(state: _Answering) -> list[Send]:
    return [Send("call", position) for position in state["positions"]]


def _own_config() -> Any:
    try:
        return get_config()
    except RuntimeError:  # called by hand
        return {}


def _parts(answer: Any, key: str | None = None) -> list[Any]:
    if key is not None and isinstance(answer, dict):
        return list(answer[key])
    return answer if isinstance(answer, list) else [answer]


def _only_sends(command: Any) -> bool:
    return (
        command.graph is Command.PARENT
        and isinstance(command.goto, list)
        and all(isinstance(send, Send) for send in command.goto)
    )
