"""An agent of pydantic-ai, with a scripted model."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from pydantic_ai import Agent, Tool, capture_run_messages
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ..peer import THREADS, Answers, AsyncioPeer


class PydanticAI(AsyncioPeer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        tool: Any = self.tool
        self.agent = Agent(
            FunctionModel(self._answer),
            tools=[Tool(tool, takes_ctx=False, name="work", description="Work.")],
        )
        self.request: list[ModelMessage] = []
        self.messages: list[ModelMessage] = []

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.request = messages
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("good")])
        return ModelResponse(
            parts=[
                ToolCallPart("work", {"n": n}, tool_call_id=str(n)) for n in range(self.count)
            ]
        )

    async def turn(self) -> None:
        if not self.history:
            await self.agent.run("work")
            return
        with capture_run_messages() as self.messages:
            await self.agent.run("work")

    async def results(self) -> Answers:
        if self.history:
            await self.agent.run("go on", message_history=self.messages)
        return [
            (int(part.tool_call_id), str(part.content))
            for message in self.request
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
