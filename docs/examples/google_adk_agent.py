"""
An agent of Google ADK that can be stopped. Its model is a script, in place of Gemini.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import Agent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.integrations.google_adk import runner_tools


class ScriptedModel(BaseLlm):
    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        asked = [part for content in llm_request.contents for part in content.parts]
        parts = [types.Part(text="I see.")]
        if len(asked) == 1:
            calls = [("search", {"text": "trio"}), ("report", {"year": 2026})]
            parts = [types.Part.from_function_call(name=n, args=args) for n, args in calls]
        else:
            print("  the model gets:")
        for part in asked:
            if answer := part.function_response:
                print(f"    {answer.name}: {answer.response}")
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1, candidates_token_count=1, total_token_count=2
        )
        content = types.Content(role="model", parts=parts)
        yield LlmResponse(content=content, usage_metadata=usage)


# -- the agent ---------------------------------------------------------------


async def search(text: str) -> str:
    """Search the web."""
    return f"found: {text}"


def report(year: int) -> str:
    """Write the report."""
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


runner = ToolRunner()
agent = Agent(
    name="worker",
    model=ScriptedModel(model="script"),
    tools=runner_tools(runner, [search, report]),
)


# -- two ways to stop --------------------------------------------------------

adk = InMemoryRunner(agent, app_name="example")


async def say(session: str, text: str, *, ends_after_tools: bool = False) -> None:
    events = adk.run_async(
        user_id="me", session_id=session, new_message=types.UserContent(text)
    )
    async with contextlib.aclosing(events):
        async for event in events:
            if event.is_final_response() and event.content:
                print(f"  {event.content.parts[0].text}")
            if ends_after_tools and event.get_function_responses():
                break


async def main() -> None:
    for session in ("one", "two"):
        await adk.session_service.create_session(
            app_name="example", user_id="me", session_id=session
        )
    loop = asyncio.get_running_loop()

    print("interrupted: the agent goes on at once")
    loop.call_later(1.0, runner.interrupt, "the user pressed stop")
    await say("one", "Look it up, and write the report.")

    print("interrupted, and left after the tools: the session has it all")
    loop.call_later(1.0, runner.interrupt, "the user pressed stop")
    await say("two", "Look it up, and write the report.", ends_after_tools=True)
    await say("two", "What have you got?")


if __name__ == "__main__":
    asyncio.run(main())
