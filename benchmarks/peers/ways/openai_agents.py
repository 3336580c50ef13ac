"""An agent of the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from ..peer import THREADS, Answers, AsyncioPeer


class Scripted(Model):
    def __init__(self, count: int) -> None:
        self.count = count
        self.request: list[Any] = []

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        request = args[1] if args else options["input"]
        self.request = [] if isinstance(request, str) else request
        output: list[Any]
        if len(self.request) > 1:
            text = ResponseOutputText(text="good", type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(
                    id="m",
                    role="assistant",
                    status="completed",
                    type="message",
                    content=[text],
                )
            ]
        else:
            output = [
                ResponseFunctionToolCall(
                    name="work",
                    arguments=json.dumps({"n": n}),
                    call_id=str(n),
                    type="function_call",
                )
                for n in range(self.count)
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class OpenAIAgents(AsyncioPeer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        set_tracing_disabled(True)
        self.loop.set_default_executor(ThreadPoolExecutor(THREADS))
        tool: Any = self.tool
        self.model = Scripted(self.count)
        self.agent = Agent(
            name="worker",
            model=self.model,
            tools=[function_tool(tool, name_override="work")],
        )
        self.session = SQLiteSession("1") if self.history else None

    async def turn(self) -> None:
        await Runner.run(self.agent, "work", session=self.session)

    async def results(self) -> Answers:
        if self.history:
            await Runner.run(self.agent, "go on", session=self.session)
        return [
            (int(item["call_id"]), str(item["output"]))
            for item in self.model.request
            if item.get("type") == "function_call_output"
        ]
