"""LangGraph's `ToolNode`, alone in a graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel

from ..peer import THREADS, Answers, AsyncioPeer

THREAD: Any = {"configurable": {"thread_id": "1"}}


class Arguments(BaseModel):
    n: int


class Langgraph(AsyncioPeer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loop.set_default_executor(ThreadPoolExecutor(THREADS))
        function: Any = {"coroutine" if self.kind == "async" else "func": self.tool}
        tool = StructuredTool.from_function(
            name="work", description="Work.", args_schema=Arguments, **function
        )
        graph: Any = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode([tool]))
        graph.add_edge(START, "tools")
        self.graph = graph.compile(checkpointer=InMemorySaver() if self.history else None)
        calls: Any = [
            {"name": "work", "args": {"n": n}, "id": str(n)} for n in range(self.count)
        ]
        self.request = {"messages": [AIMessage("", id="1", tool_calls=calls)]}
        self.last: list[Any] = []

    async def turn(self) -> None:
        state = await self.graph.ainvoke(self.request, THREAD)
        self.last = state["messages"]

    async def results(self) -> Answers:
        if self.history:
            self.last = (await self.graph.aget_state(THREAD)).values["messages"]
        return [
            (int(message.tool_call_id), str(message.content))
            for message in self.last
            if isinstance(message, ToolMessage)
        ]
