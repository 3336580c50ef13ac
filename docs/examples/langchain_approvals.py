"""
A LangChain agent that asks a person. Its model is a script, in place of a provider.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

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
                {"name": "delete", "args": {"path": "draft.txt"}, "id": "call_2"},
                {"name": "delete", "args": {"path": "thesis.txt"}, "id": "call_3"},
            ]
            message = AIMessage("", tool_calls=calls)
        for answer in messages:
            if isinstance(answer, ToolMessage):
                print(f"    {answer.name}, {answer.status}: {answer.content}")
        return ChatResult(generations=[ChatGeneration(message=message)])


# -- the agent ---------------------------------------------------------------


async def search(text: str) -> str:
    """Search the web."""
    print(f"  searching for {text}")
    return f"found: {text}"


def delete(path: str) -> str:
    """Delete a file."""
    print(f"  deleting {path}")
    return f"deleted {path}"


asking = HumanInTheLoopMiddleware({"delete": True}, interrupt_mode="per_call")
agent = create_agent(
    Model(),
    middleware=[asking, ToolBatchMiddleware(ToolRunner(), [search, delete])],
    checkpointer=InMemorySaver(),
)


def decide(path: str) -> dict[str, Any]:
    """Stand for a person."""
    if path == "thesis.txt":
        return {"type": "reject", "message": "I need that one"}
    return {"type": "approve"}


async def main() -> None:
    thread: Any = {"configurable": {"thread_id": "one"}}
    result = await agent.ainvoke({"messages": [("user", "Tidy up.")]}, thread)
    answers = {}
    for question in result["__interrupt__"]:
        path = question.value["args"]["path"]
        print(f"  may it delete {path}?")
        answers[question.id] = decide(path)
    result = await agent.ainvoke(Command(resume=answers), thread)
    print(f"  {result['messages'][-1].content}")


if __name__ == "__main__":
    asyncio.run(main())
