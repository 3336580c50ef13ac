"""A turn in pydantic-ai."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from anyio_toolbatch import ToolRunner

from .turn import CALLS, Answers, Turn, measure


class PydanticTurn(Turn):
    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        capabilities: list[Any] = []
        if runner is not None:
            from anyio_toolbatch.integrations.pydantic_ai import ToolBatches

            capabilities = [ToolBatches(runner)]
        self.requests: list[list[ModelMessage]] = []
        self.history: list[ModelMessage] = []
        self.agent = Agent(FunctionModel(self.model), tools=[work], capabilities=capabilities)

    def model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(messages)
        if len(self.requests) > 1:
            return ModelResponse(parts=[TextPart("good")])
        return ModelResponse(
            parts=[ToolCallPart("work", {"n": n}, tool_call_id=id_) for id_, n in CALLS]
        )

    async def run(self) -> None:
        with capture_run_messages() as self.history:
            await self.agent.run("work")

    async def next_request(self) -> tuple[list[str], Answers]:
        await self.agent.run("go on", message_history=self.history)
        parts = [part for message in self.requests[-1] for part in message.parts]
        return (
            [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)],
            [
                (part.tool_call_id, str(part.content))
                for part in parts
                if isinstance(part, ToolReturnPart)
            ],
        )


if __name__ == "__main__":
    measure(PydanticTurn)
