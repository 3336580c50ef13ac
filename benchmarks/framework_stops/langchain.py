"""A turn in LangChain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import RunControl
from pydantic import Field

from anyio_toolbatch import ToolRunner

from .turn import CALLS, Answers, Turn, measure

THREAD: Any = {"configurable": {"thread_id": "1"}}


class Scripted(BaseChatModel):
    requests: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        self.requests.append(messages)
        calls: Any = [{"name": "work", "args": {"n": n}, "id": id_} for id_, n in CALLS]
        message = AIMessage("good") if self.requests[1:] else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class LangChainTurn(Turn):
    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        self.model = Scripted()
        self.control = RunControl()
        if runner is None:
            tools: dict[str, Any] = {"tools": [work]}
        else:
            from anyio_toolbatch.integrations.langchain import ToolBatchMiddleware

            tools = {"middleware": [ToolBatchMiddleware(runner, [work])]}
        self.agent = create_agent(self.model, checkpointer=InMemorySaver(), **tools)

    async def run(self) -> None:
        await self.agent.ainvoke(
            {"messages": [("user", "work")]}, THREAD, control=self.control
        )

    def end_early(self) -> None:
        self.control.request_drain("stop")

    async def next_request(self) -> tuple[list[str], Answers]:
        await self.agent.ainvoke({"messages": [("user", "go on")]}, THREAD)
        request = self.model.requests[-1]
        return (
            [
                str(call["id"])
                for message in request
                if isinstance(message, AIMessage)
                for call in message.tool_calls
            ],
            [
                (message.tool_call_id, str(message.content))
                for message in request
                if isinstance(message, ToolMessage)
            ],
        )


if __name__ == "__main__":
    measure(LangChainTurn)
