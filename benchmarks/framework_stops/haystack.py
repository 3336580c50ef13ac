"""A turn in Haystack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

from anyio_toolbatch import ToolRunner

from .turn import CALLS, Answers, Turn, measure


@component
class Scripted:
    def __init__(self) -> None:
        self.requests: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> Any:
        self.requests.append(list(messages))
        if self.requests[1:]:
            return {"replies": [ChatMessage.from_assistant("good")]}
        calls = [ToolCall(tool_name="work", arguments={"n": n}, id=id_) for id_, n in CALLS]
        return {"replies": [ChatMessage.from_assistant(tool_calls=calls)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage], tools: Any = None) -> Any:
        return self.run(messages)


class HaystackTurn(Turn):
    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        self.model = Scripted()
        self.history = [ChatMessage.from_user("work")]
        hooks: Any = None
        if runner is not None:
            from anyio_toolbatch.integrations.haystack import ToolBatchHook

            def keep(state: Any) -> None:
                self.history = state.data["messages"]

            hooks = {"before_tool": [ToolBatchHook(runner, ends_run=True, on_cut=keep)]}
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        self.agent = Agent(
            chat_generator=self.model,
            tools=[Tool("work", "Work.", parameters, work)],
            hooks=hooks,
            # Alone, it has four threads by default, and would not start all eight calls.
            tool_concurrency_limit=8,
        )

    async def run(self) -> None:
        result = await self.agent.run_async(messages=self.history)
        self.history = result["messages"]

    async def next_request(self) -> tuple[list[str], Answers]:
        await self.agent.run_async(messages=[*self.history, ChatMessage.from_user("go on")])
        request = self.model.requests[-1]
        return (
            [str(call.id) for message in request for call in message.tool_calls],
            [
                (str(result.origin.id), str(result.result))
                for message in request
                for result in message.tool_call_results
            ],
        )


if __name__ == "__main__":
    measure(HaystackTurn)
