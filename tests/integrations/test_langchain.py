"""LangChain: `create_agent` runs a step's calls as one batch; the node has its own tests."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from pydantic import Field

from anyio_toolbatch.integrations.langchain import ToolBatchMiddleware

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

THREAD: Any = {"configurable": {"thread_id": "1"}}


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def work() -> AsyncIterator[Any]:  # async: its gates open before the loop ends
    with framework_work.at_work() as made:
        yield made


class Script(BaseChatModel):
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    calls: list[tuple[str, Any]]
    requests: list[list[Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        self.requests.append(messages)
        calls: Any = [
            {"name": name, "args": {"n": n}, "id": f"c{index}"}
            for index, (name, n) in enumerate(self.calls)
        ]
        message = AIMessage("good") if self.requests[1:] else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def answers(self) -> list[tuple[str, str, Any]]:
        """What the last request has of tool results: call, status, content."""
        return [
            (message.tool_call_id, message.status, message.content)
            for message in self.requests[-1]
            if isinstance(message, ToolMessage)
        ]


def agent_for(script: Script, work: Any, runner: Any, **options: Any) -> Any:
    middleware: Any = ToolBatchMiddleware(runner, work.functions)
    return create_agent(
        script, middleware=[middleware], checkpointer=InMemorySaver(), **options
    )


def said(text: str) -> Any:
    return {"messages": [("user", text)]}


async def test_interrupt_answers_every_call_and_the_agent_goes_on(work: Any) -> None:
    """P1, P2, P3: the tools are bound to the model, and their calls are one batch."""
    script = Script(calls=[("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4)])
    runner = work.runner()
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=2)
            assert runner.interrupt("enough") == 1

        group.start_soon(stop)
        result = await agent.ainvoke(said("work"), THREAD)
    assert result["messages"][-1].content == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    assert [answer[:2] for answer in script.answers()] == [
        ("c0", "success"),
        ("c1", "error"),
        ("c2", "error"),
        ("c3", "success"),
    ]
    assert work.daemons == {True}


async def test_drained_and_interrupted_the_run_ends_with_its_step(work: Any) -> None:
    """P2, P3: LangGraph's own orderly end need not wait for the tools any more."""
    script = Script(calls=[("quick", 1), ("stuck", 2)])
    runner = work.runner()
    agent = agent_for(script, work, runner)
    control = RunControl()
    task = asyncio.ensure_future(agent.ainvoke(said("work"), THREAD, control=control))
    await work.until(started=2, settled=1)
    control.request_drain("stop")
    runner.interrupt("enough")
    with pytest.raises(GraphDrained):
        await task
    assert not work.gate.is_set()
    assert len(script.requests) == 1
    state = await agent.aget_state(THREAD)
    assert [message.type for message in state.values["messages"]] == [
        "human",
        "ai",
        "tool",
        "tool",
    ]


async def test_cancelled_run_s_results_are_written_when_the_thread_goes_on(work: Any) -> None:
    """P2, P3, P8: the cancellation goes on; the next request has one answer per call."""
    script = Script(calls=[("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4)])
    agent = agent_for(script, work, work.runner())
    task = asyncio.ensure_future(agent.ainvoke(said("work"), THREAD))
    await work.until(started=4, settled=2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.gate.is_set()
    await agent.ainvoke(said("go on"), THREAD)
    kinds = [message.type for message in script.requests[-1]]
    assert kinds == ["human", "ai", "tool", "tool", "tool", "tool", "human"]
    assert [answer[1] for answer in script.answers()] == [
        "success",
        "error",
        "error",
        "success",
    ]


async def test_calls_for_other_tools_stay_with_langchain(work: Any) -> None:
    """P1: each call has one answer, whoever gives it."""

    async def other(n: int) -> str:
        """Do something else."""
        return f"other {n}"

    script = Script(calls=[("quick", 1), ("other", 2)])
    await agent_for(script, work, work.runner(), tools=[other]).ainvoke(said("work"), THREAD)
    assert script.answers() == [("c0", "success", "quick 1"), ("c1", "success", "other 2")]
    assert work.started == ["quick"]


def test_without_a_loop_langchain_says_that_it_is_async() -> None:
    """P6: `invoke` is refused, rather than that the calls run in another way."""
    work = framework_work.Work()
    script = Script(calls=[("quick", 1)])
    with pytest.raises((TypeError, RuntimeError, NotImplementedError)):
        agent_for(script, work, work.runner()).invoke(said("work"), THREAD)
    assert work.started == []
