"""
A LangChain agent that can be stopped. Its model is a script, in place of a provider.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.integrations.langchain import ToolBatchMiddleware


class Model(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        message = AIMessage("I see.")
        if len(messages) == 1:
            calls: Any = [
                {"name": "search", "args": {"text": "trio"}, "id": "call_1"},
                {"name": "report", "args": {"year": 2026}, "id": "call_2"},
            ]
            message = AIMessage("", tool_calls=calls)
        for answer in messages:
            if isinstance(answer, ToolMessage):
                print(f"    {answer.name}, {answer.status}: {answer.content}")
        return ChatResult(generations=[ChatGeneration(message=message)])


# -- the agent ---------------------------------------------------------------


async def search(text: str) -> str:
    """Search the web."""
    return f"found: {text}"


def report(year: int) -> str:
    """Write the report."""
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


runner = ToolRunner()
agent = create_agent(
    Model(),
    middleware=[ToolBatchMiddleware(runner, [search, report])],
    checkpointer=InMemorySaver(),
)


async def main() -> None:
    asyncio.get_running_loop().call_later(1.0, runner.interrupt, "the user pressed stop")
    result = await agent.ainvoke(
        {"messages": [("user", "Look it up, and write the report.")]},
        {"configurable": {"thread_id": "one"}},
    )
    print(f"  {result['messages'][-1].content}")


if __name__ == "__main__":
    asyncio.run(main())
