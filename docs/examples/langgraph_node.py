"""
A LangGraph agent that can be stopped. Its model is a script, in place of a provider.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.runtime import RunControl

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.integrations.langgraph import ToolBatchNode


async def model(state: MessagesState) -> dict[str, Any]:
    before = state["messages"][:-1]
    if not before:
        calls: Any = [
            {"name": "search", "args": {"text": "trio"}, "id": "call_1"},
            {"name": "report", "args": {"year": 2026}, "id": "call_2"},
        ]
        return {"messages": [AIMessage("", tool_calls=calls)]}
    print("  the model gets:")
    for message in before:
        if isinstance(message, ToolMessage):
            print(f"    {message.name}, {message.status}: {message.content}")
    return {"messages": [AIMessage("I see.")]}


# -- the graph ---------------------------------------------------------------


async def search(text: str) -> str:
    """Search the web."""
    return f"found: {text}"


def report(year: int) -> str:
    """Write the report."""
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


runner = ToolRunner()
tools = ToolBatchNode(runner, [search, report])

graph = StateGraph(MessagesState)
graph.add_node("close", tools.close)  # what a cancelled run has left open
graph.add_node("model", model)
graph.add_node("tools", tools)
graph.add_edge(START, "close")
graph.add_edge("close", "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
agent = graph.compile(checkpointer=InMemorySaver())


# -- two ways to stop --------------------------------------------------------


def said(text: str) -> Any:
    return {"messages": [("user", text)]}


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


async def drained() -> None:
    print("drained and interrupted: the step is written, and nothing more begins")
    control = RunControl()

    def stop() -> None:
        control.request_drain("the user pressed stop")
        runner.interrupt("the user pressed stop")

    asyncio.get_running_loop().call_later(0.5, stop)
    request = said("Look it up, and write the report.")
    try:
        await agent.ainvoke(request, thread("one"), control=control)
    except GraphDrained as exc:
        print(f"  {exc}")
    result = await agent.ainvoke(said("What have you got?"), thread("one"))
    print(f"  {result['messages'][-1].content}")


async def cancelled() -> None:
    print("cancelled: what was done is written when the thread goes on")
    request = said("Look it up, and write the report.")
    task = asyncio.create_task(agent.ainvoke(request, thread("two")))
    asyncio.get_running_loop().call_later(0.5, task.cancel)
    await asyncio.wait([task])
    result = await agent.ainvoke(said("What have you got?"), thread("two"))
    print(f"  {result['messages'][-1].content}")


async def main() -> None:
    await drained()
    await cancelled()


if __name__ == "__main__":
    asyncio.run(main())
