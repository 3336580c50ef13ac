"""
A pydantic-ai agent that can be stopped. Its model is a script, in place of a provider.
"""

from __future__ import annotations

import asyncio
import time

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
from anyio_toolbatch.integrations.pydantic_ai import ToolBatches


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        calls = [("search", {"text": "trio"}), ("report", {"year": 2026})]
        return ModelResponse(parts=[ToolCallPart(*call) for call in calls])
    print("  the model gets:")
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolReturnPart):
            print(f"    {part.tool_name}, {part.outcome}: {part.content}")
    return ModelResponse(parts=[TextPart("I see.")])


# -- the agent ---------------------------------------------------------------

runner = ToolRunner()
agent = Agent(FunctionModel(model), capabilities=[ToolBatches(runner)])


@agent.tool_plain
async def search(text: str) -> str:
    return f"found: {text}"


@agent.tool_plain
def report(year: int) -> str:
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


# -- two ways to stop --------------------------------------------------------


async def interrupted() -> None:
    print("runner.interrupt: the agent goes on at once")
    asyncio.get_running_loop().call_later(0.5, runner.interrupt, "the user pressed stop")
    result = await agent.run("Look it up, and write the report.")
    print(f"  {result.output}")


async def cancelled() -> None:
    print("the run is cancelled: the next one knows what was done")
    with capture_run_messages() as history:
        task = asyncio.create_task(agent.run("Look it up, and write the report."))
        asyncio.get_running_loop().call_later(0.5, task.cancel)
        await asyncio.wait([task])
    result = await agent.run("What have you got?", message_history=history)
    print(f"  {result.output}")


async def main() -> None:
    await interrupted()
    await cancelled()


if __name__ == "__main__":
    asyncio.run(main())
