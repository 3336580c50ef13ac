"""A turn in Google ADK."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.adk.agents import Agent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

from anyio_toolbatch import ToolRunner

from .turn import CALLS, Answers, Turn, measure

SESSION: Any = {"user_id": "me", "session_id": "1"}


class Scripted(BaseLlm):
    requests: list[list[types.Part]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        self.requests.append([part for c in llm_request.contents for part in c.parts])
        parts = [types.Part(text="good")]
        if not self.requests[1:]:
            calls = [
                types.FunctionCall(name="work", args={"n": n}, id=id_) for id_, n in CALLS
            ]
            parts = [types.Part(function_call=call) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class AdkTurn(Turn):
    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        tools: list[Any] = [work]
        if runner is not None:
            from anyio_toolbatch.integrations.google_adk import runner_tools

            tools = runner_tools(runner, tools)
        self.model = Scripted(model="scripted")
        agent = Agent(name="worker", model=self.model, tools=tools)
        self.adk = InMemoryRunner(agent, app_name="bench")
        self.ends = False

    async def run(self) -> None:
        await self.adk.session_service.create_session(app_name="bench", **SESSION)
        await self.say("work")

    async def say(self, text: str) -> None:
        message = types.UserContent(text)
        events = self.adk.run_async(**SESSION, new_message=message)
        async with contextlib.aclosing(events):
            async for event in events:
                if self.ends and event.get_function_responses():
                    break

    def end_early(self) -> None:
        self.ends = True

    async def next_request(self) -> tuple[list[str], Answers]:
        self.ends = False
        await self.say("go on")
        parts = self.model.requests[-1]
        return (
            [str(part.function_call.id) for part in parts if part.function_call],
            [
                (str(answer.id), str((answer.response or {}).get("result")))
                for part in parts
                if (answer := part.function_response)
            ],
        )


if __name__ == "__main__":
    measure(AdkTurn)
