"""LangGraph: a node answers a message's calls in one batch, and closes what was cut."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolRuntime, tools_condition
from langgraph.types import Command, interrupt

from anyio_toolbatch.integrations.langgraph import NOT_KNOWN, ToolBatchNode

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

THREAD: Any = {"configurable": {"thread_id": "1"}}
CUT = (
    "Tool call interrupted by the user (enough) before it finished. "
    "It may have had side effects; its outcome is unknown."
)


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def work() -> AsyncIterator[Any]:  # async: its gates open before the loop ends
    with framework_work.at_work() as made:
        yield made


class Script:
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    def __init__(self, *calls: tuple[str, Any], invalid: Any = ()) -> None:
        self.calls = [
            {"name": name, "args": {"n": n}, "id": f"c{index}"}
            for index, (name, n) in enumerate(calls)
        ]
        self.invalid = list(invalid)
        self.requests: list[list[Any]] = []

    async def __call__(self, state: Any) -> Any:
        self.requests.append(state["messages"])
        if len(self.requests) > 1:
            return {"messages": [AIMessage("good")]}
        message: Any = AIMessage("", tool_calls=self.calls, invalid_tool_calls=self.invalid)
        return {"messages": [message]}

    def answers(self) -> list[tuple[str, str, Any]]:
        """What the last request has of tool results: call, status, content."""
        return [
            (message.tool_call_id, message.status, message.content)
            for message in self.requests[-1]
            if isinstance(message, ToolMessage)
        ]


def graph_for(
    script: Script, work: Any, runner: Any, checkpointer: Any = None, **options: Any
) -> Any:
    node = ToolBatchNode(runner, options.pop("tools", work.functions), **options)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("close", node.close)
    graph.add_node("model", script)
    graph.add_node("tools", node)
    graph.add_edge(START, "close")
    graph.add_edge("close", "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer or InMemorySaver())


def said(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


async def test_interrupt_answers_every_call_and_the_graph_goes_on(work: Any) -> None:
    """P1, P2, P3, P6: finished results are real, the rest says what happened."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4), ("other", 5))
    runner = work.runner()
    graph = graph_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=3)
            assert runner.interrupt("enough") == 1  # all calls are one batch

        group.start_soon(stop)
        result = await graph.ainvoke(said("work"), THREAD)
    assert result["messages"][-1].content == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    answers = script.answers()
    assert answers[:4] == [
        ("c0", "success", "quick 1"),
        ("c1", "error", CUT),
        ("c2", "error", CUT),
        ("c3", "success", "quick 4"),
    ]
    assert answers[4][:2] == ("c4", "error")
    assert work.daemons == {True}


async def cancelled_in_the_batch(graph: Any, work: Any) -> None:
    task = asyncio.ensure_future(graph.ainvoke(said("work"), THREAD))
    await work.until(started=4, settled=2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.gate.is_set()


async def test_cancelled_run_s_results_are_written_when_the_thread_goes_on(work: Any) -> None:
    """P2, P3, P8: the cancellation goes on; the next request has one answer per call."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    graph = graph_for(script, work, work.runner())
    await cancelled_in_the_batch(graph, work)
    await graph.ainvoke(said("go on"), THREAD)
    kinds = [message.type for message in script.requests[-1]]
    assert kinds == ["human", "ai", "tool", "tool", "tool", "tool", "human"]
    answers = script.answers()
    assert [answer[:2] for answer in answers] == [
        ("c0", "success"),
        ("c1", "error"),
        ("c2", "error"),
        ("c3", "success"),
    ]
    assert answers[0][2] == "quick 1"
    assert "may have had side effects" in answers[1][2]


async def test_resumed_run_runs_nothing_twice(work: Any) -> None:
    """P4, P6: going on without new input gives the results of the cut batch."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    graph = graph_for(script, work, work.runner())
    await cancelled_in_the_batch(graph, work)
    await graph.ainvoke(None, THREAD)
    assert [answer[1] for answer in script.answers()] == [
        "success",
        "error",
        "error",
        "success",
    ]
    assert len(work.started) == 4


async def test_another_process_closes_the_calls_too(work: Any) -> None:
    """P1, P6: where the results are not known any more, the text says so."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    saver = InMemorySaver()
    await cancelled_in_the_batch(graph_for(script, work, work.runner(), saver), work)
    await graph_for(script, work, work.runner(), saver).ainvoke(said("go on"), THREAD)
    assert script.answers() == [(f"c{n}", "error", NOT_KNOWN) for n in range(4)]


async def test_nothing_late_lands(work: Any) -> None:
    """P5: what a call gives after the stop is in no later request."""
    script = Script(("stuck", 1))
    late: list[Any] = []
    runner = work.runner(on_late=late.append)
    graph = graph_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        await graph.ainvoke(said("work"), THREAD)
    work.gate.set()
    await runner.wait_detached(framework_work.LIVENESS)
    await graph.ainvoke(said("go on"), THREAD)
    assert script.answers() == [("c0", "error", CUT)]
    assert len(late) == 1


async def test_a_tool_s_failure_is_its_own(work: Any) -> None:
    """P8: an exception, and a cancellation that a tool invents, harm no sibling."""
    script = Script(("broken", 1), ("rogue", 2), ("quick", 3), ("quick", "four"))
    await graph_for(script, work, work.runner()).ainvoke(said("work"), THREAD)
    assert [answer[1] for answer in script.answers()] == ["error", "error", "success", "error"]
    assert script.answers()[0][2] == "ValueError: no 1 here"
    assert "valid integer" in script.answers()[3][2]


async def test_calls_that_langchain_could_not_parse_are_answered(work: Any) -> None:
    """P1: they have an id, so the provider wants an answer."""
    broken = {"name": "quick", "args": '{"n": ', "id": "c9", "error": "?"}
    script = Script(("quick", 1), invalid=[broken])
    await graph_for(script, work, work.runner()).ainvoke(said("work"), THREAD)
    assert [answer[:2] for answer in script.answers()] == [("c0", "success"), ("c9", "error")]
    assert work.started == ["quick"]


async def test_injected_arguments_and_commands_work(work: Any) -> None:
    """P1: each call is LangGraph's own `ToolNode`'s, with all that it does."""

    @tool
    def who(n: int, state: Annotated[Any, InjectedState], runtime: ToolRuntime) -> str:
        """Say who asks."""
        return f"{len(state['messages'])} {runtime.tool_call_id}"

    @tool
    async def move(n: int, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Update the state."""
        return Command(update={"messages": [ToolMessage(f"moved {n}", tool_call_id=call_id)]})

    script = Script(("who", 1), ("move", 2), ("quick", 3))
    tools = [who, move, *work.functions]
    await graph_for(script, work, work.runner(), tools=tools).ainvoke(said("work"), THREAD)
    assert script.answers() == [
        ("c0", "success", "2 c0"),
        ("c1", "success", "moved 2"),
        ("c2", "success", "quick 3"),
    ]


async def test_langgraph_s_own_interrupt_pauses_the_graph(work: Any) -> None:
    """P4: a tool may ask by `interrupt()`; its siblings do not run again for that."""

    @tool
    async def ask(n: int) -> str:
        """Ask a person."""
        return f"{interrupt('may I?')} {n}"

    script = Script(("quick", 1), ("ask", 2))
    graph = graph_for(script, work, work.runner(), tools=[ask, *work.functions])
    paused = await graph.ainvoke(said("work"), THREAD)
    assert [asked.value for asked in paused["__interrupt__"]] == ["may I?"]
    await graph.ainvoke(Command(resume="yes"), THREAD)
    assert script.answers() == [("c0", "success", "quick 1"), ("c1", "success", "yes 2")]
    assert work.started.count("quick") == 1


async def test_options_and_approval_reach_the_calls(work: Any) -> None:
    """P6: tools get the library's own options by name, and the runner asks as always."""
    asked: list[Any] = []

    def approve(call: Any) -> str:
        asked.append(call)
        return "not today"

    script = Script(("quick", 1))
    runner = work.runner(approve=approve)
    options = {"quick": {"writes": "file"}}
    await graph_for(script, work, runner, options=options).ainvoke(said("work"), THREAD)
    assert "not today" in script.answers()[0][2]
    assert asked[0].arguments == {"n": 1}
    assert asked[0].tool.writes == ("file",)


async def test_what_is_kept_for_threads_that_never_go_on_is_bounded(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: the oldest goes."""
    monkeypatch.setattr("anyio_toolbatch.integrations.langgraph.MAX_KEPT", 2)
    node = ToolBatchNode(work.runner(), work.functions)
    for number in range(4):
        call: Any = {"name": "deaf", "args": {"n": 1}, "id": "c"}
        message = AIMessage("", tool_calls=[call], id=f"m{number}")
        task = asyncio.ensure_future(node({"messages": [message]}))
        await work.until(started=number + 1, settled=0)
        task.cancel()
        await asyncio.wait([task])
    assert list(node._kept) == ["m2", "m3"]


def test_trio_is_refused_clearly() -> None:
    """P9: LangGraph's own loop fails there before; the node by itself says why."""
    work = framework_work.Work()
    node = ToolBatchNode(work.runner(), work.functions)
    with pytest.raises(RuntimeError, match="LangGraph runs on asyncio only"):
        anyio.run(node, {"messages": []}, backend="trio")
