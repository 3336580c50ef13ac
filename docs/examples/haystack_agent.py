"""
A Haystack agent that can be stopped. Its model is a script, in place of a provider.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.integrations.haystack import ToolBatchHook


@component
class ScriptedModel:
    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        if len(messages) == 1:
            calls = [
                ToolCall(tool_name="search", arguments={"text": "trio"}, id="call_1"),
                ToolCall(tool_name="report", arguments={"year": 2026}, id="call_2"),
            ]
            return {"replies": [ChatMessage.from_assistant(tool_calls=calls)]}
        print("  the model gets:")
        for answer in (a for message in messages for a in message.tool_call_results):
            print(f"    {answer.origin.tool_name}, error {answer.error}: {answer.result}")
        return {"replies": [ChatMessage.from_assistant("I see.")]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], tools: Any = None
    ) -> dict[str, Any]:
        return self.run(messages)


# -- the agent ---------------------------------------------------------------


@tool
def search(text: Annotated[str, "what to look for"]) -> str:
    """Search the web."""
    return f"found: {text}"


@tool
def report(year: Annotated[int, "which one"]) -> str:
    """Write the report."""
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


history: list[ChatMessage] = []


def keep(state: Any) -> None:
    history[:] = state.data["messages"]


runner = ToolRunner()
agent = Agent(
    chat_generator=ScriptedModel(),
    tools=[search, report],
    hooks={"before_tool": [ToolBatchHook(runner, ends_run=True, on_cut=keep)]},
)


# -- two ways to stop --------------------------------------------------------


async def interrupted() -> None:
    print("interrupted: the run ends with this step")
    asyncio.get_running_loop().call_later(0.5, runner.interrupt, "the user pressed stop")
    messages = [ChatMessage.from_user("Look it up, and write the report.")]
    result = await agent.run_async(messages=messages)
    print(f"  {result['exit_reason']}")
    question = ChatMessage.from_user("What have you got?")
    result = await agent.run_async(messages=[*result["messages"], question])
    print(f"  {result['last_message'].text}")


async def cancelled() -> None:
    print("cancelled: the hook hands the messages over")
    messages = [ChatMessage.from_user("Look it up, and write the report.")]
    task = asyncio.create_task(agent.run_async(messages=messages))
    asyncio.get_running_loop().call_later(0.5, task.cancel)
    await asyncio.wait([task])
    question = ChatMessage.from_user("What have you got?")
    result = await agent.run_async(messages=[*history, question])
    print(f"  {result['last_message'].text}")


async def main() -> None:
    await interrupted()
    await cancelled()


if __name__ == "__main__":
    asyncio.run(main())
