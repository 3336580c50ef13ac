"""A turn in the OpenAI Agents SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
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
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from anyio_toolbatch import ToolRunner

from .turn import CALLS, Answers, Turn, measure


class Scripted(Model):
    def __init__(self) -> None:
        self.requests: list[list[Any]] = []

    def answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        request = args[1] if args else options["input"]
        self.requests.append([] if isinstance(request, str) else request)
        if self.requests[1:]:
            text = ResponseOutputText(text="good", type="output_text", annotations=[])
            return [
                ResponseOutputMessage(
                    id="m",
                    role="assistant",
                    status="completed",
                    type="message",
                    content=[text],
                )
            ]
        return [
            ResponseFunctionToolCall(
                name="work",
                arguments=json.dumps({"n": n}),
                call_id=id_,
                type="function_call",
            )
            for id_, n in CALLS
        ]

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        output = self.answer(args, options)
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        yield ResponseCompletedEvent(
            type="response.completed",
            sequence_number=0,
            response=Response(
                id="r",
                created_at=0,
                model="scripted",
                object="response",
                output=self.answer(args, options),
                tool_choice="auto",
                tools=[],
                parallel_tool_calls=True,
            ),
        )


class AgentsTurn(Turn):
    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        set_tracing_disabled(True)
        tools: list[Any] = [function_tool(work)]
        if runner is not None:
            from anyio_toolbatch.integrations.openai_agents import runner_tools

            tools = runner_tools(runner, tools)
        self.model = Scripted()
        self.agent = Agent(name="worker", model=self.model, tools=tools)
        self.session = SQLiteSession("1")

    async def run(self) -> None:
        self.result = Runner.run_streamed(self.agent, "work", session=self.session)
        async for _ in self.result.stream_events():
            pass

    def end_early(self) -> None:
        self.result.cancel(mode="after_turn")

    async def next_request(self) -> tuple[list[str], Answers]:
        await Runner.run(self.agent, "go on", session=self.session)
        request = self.model.requests[-1]
        return (
            [item["call_id"] for item in request if item.get("type") == "function_call"],
            [
                (item["call_id"], str(item["output"]))
                for item in request
                if item.get("type") == "function_call_output"
            ],
        )


if __name__ == "__main__":
    measure(AgentsTurn)
