"""LangGraph: a node answers a message's calls in one batch, and closes what was cut."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest

pytest.importorskip("langgraph")

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command, interrupt

from anyio_toolbatch import RunnerClosedError
from anyio_toolbatch.integrations._langgraph_history import NOT_KNOWN
from anyio_toolbatch.integrations.langgraph import ToolBatchNode

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

THREAD: Any = {"configurable": {"thread_id": "1"}}
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
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
    schema = options.pop("schema", MessagesState)
    node = ToolBatchNode(runner, options.pop("tools", work.functions), **options)
    graph: Any = StateGraph(schema)
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
    assert set(work.daemons) == {True}


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


async def test_two_tools_that_ask_get_each_their_own_answer(work: Any) -> None:
    """P6: a consent is for the call that asked, whichever asks first when it goes on."""
    done: list[str] = []

    @tool
    def delete(n: int) -> str:
        """Delete something, in a worker thread."""
        work.block()
        return _if_allowed("delete", n)

    @tool
    async def send(n: int) -> str:
        """Send something."""
        return _if_allowed("send", n)

    def _if_allowed(what: str, n: int) -> str:
        if interrupt(f"{what}?") == "yes":
            done.append(what)
        return what

    work.gate.set()
    script = Script(("delete", 1), ("send", 2), ("quick", 3))
    graph = graph_for(script, work, work.runner(), tools=[delete, send, *work.functions])
    paused = await graph.ainvoke(said("work"), THREAD)
    asked = {question.value: question.id for question in paused["__interrupt__"]}
    with pytest.raises(RuntimeError, match="must specify the interrupt id"):
        await graph.ainvoke(Command(resume="yes"), THREAD)
    paused = await graph.ainvoke(Command(resume={asked["send?"]: "yes"}), THREAD)
    assert done == ["send"]
    assert [question.value for question in paused["__interrupt__"]] == ["delete?"]
    await graph.ainvoke(Command(resume="no"), THREAD)
    assert done == ["send"]
    assert [answer[2] for answer in script.answers()] == ["delete", "send", "quick 3"]
    assert work.started.count("quick") == work.started.count("send") - 1 == 1


async def test_resumed_in_another_process_finished_calls_do_not_run_again(work: Any) -> None:
    """P3: results that wait for a person's answer are in the checkpoint."""

    @tool
    async def ask(n: int) -> str:
        """Ask a person."""
        return f"{interrupt('may I?')} {n}"

    script, saver = Script(("quick", 1), ("ask", 2)), InMemorySaver()
    tools = [ask, *work.functions]
    await graph_for(script, work, work.runner(), saver, tools=tools).ainvoke(
        said("work"), THREAD
    )
    graph = graph_for(script, work, work.runner(), saver, tools=tools)
    await graph.ainvoke(Command(resume="yes"), THREAD)
    assert script.answers() == [("c0", "success", "quick 1"), ("c1", "success", "yes 2")]
    assert work.started.count("quick") == 1


async def test_what_is_kept_outlives_a_run_that_fails(work: Any) -> None:
    """P3: not before they are written do the results go."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    runner = work.runner()
    graph = graph_for(script, work, runner)
    await cancelled_in_the_batch(graph, work)
    await runner.aclose()
    with pytest.raises(RunnerClosedError):
        await graph.ainvoke(None, THREAD)
    await graph.ainvoke(said("go on"), THREAD)
    assert script.answers()[0] == ("c0", "success", "quick 1")
    assert script.answers()[3] == ("c3", "success", "quick 4")


async def test_what_is_kept_is_for_its_own_thread(work: Any) -> None:
    """P5: a history that was copied brings the ids of its messages along, not the results."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    graph = graph_for(script, work, work.runner())
    await cancelled_in_the_batch(graph, work)
    history = (await graph.aget_state(THREAD)).values["messages"]
    other: Any = {"configurable": {"thread_id": "2"}}
    await graph.ainvoke({"messages": [*history, HumanMessage("go on")]}, other)
    assert script.answers() == [(f"c{n}", "error", NOT_KNOWN) for n in range(4)]
    await graph.ainvoke(said("go on"), THREAD)
    assert script.answers()[0] == ("c0", "success", "quick 1")


class Counted(MessagesState, total=False):
    count: int


@tool
async def count(n: int, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Count."""
    message = ToolMessage(f"counted {n}", tool_call_id=call_id)
    return Command(update={"messages": [message], "count": n}, goto="nowhere")


@pytest.mark.parametrize("going_on", [None, said("go on")], ids=["resumed", "new input"])
async def test_a_command_s_update_of_the_state_is_not_lost(work: Any, going_on: Any) -> None:
    """P3: it is written with the messages, when the thread goes on."""
    script = Script(("count", 7), ("stuck", 2))
    tools = [count, *work.functions]
    graph = graph_for(script, work, work.runner(), tools=tools, schema=Counted)
    task = asyncio.ensure_future(graph.ainvoke(said("work"), THREAD))
    await work.until(started=2, settled=1)
    task.cancel()
    await asyncio.wait([task])
    result = await graph.ainvoke(going_on, THREAD)
    assert result["count"] == 7
    assert script.answers()[0] == ("c0", "success", "counted 7")
    assert script.answers()[1][:2] == ("c1", "error")


async def test_nothing_late_is_in_a_stream(work: Any) -> None:
    """P5: not by callbacks, nor writers, nor a graph inside the tool, in this run or later."""

    class Heard(AsyncCallbackHandler):
        def __init__(self) -> None:
            self.tools: list[str] = []

        async def on_tool_end(self, output: Any, **more: Any) -> None:
            self.tools.append(output.name)

    async def shout(state: Any) -> Any:
        get_stream_writer()("late")
        return {"messages": [AIMessage("late")]}

    inside: Any = StateGraph(MessagesState)
    inside.add_node("shout", shout)
    inside.add_edge(START, "shout")
    inside_graph = inside.compile()

    @tool
    def blocking(n: int, runtime: ToolRuntime) -> str:
        """Write after the stop, from a worker thread."""
        work.block()
        shout_all(runtime)
        return "late"

    @tool
    async def unwilling(n: int, runtime: ToolRuntime) -> str:
        """Write after the stop, and run a graph."""
        while not work.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        shout_all(runtime)
        await inside_graph.ainvoke({"messages": []})
        return "late"

    def shout_all(runtime: Any) -> None:
        get_stream_writer()("late")
        runtime.stream_writer("late")
        runtime.emit_output_delta("late")
        shouted.append(runtime.tool_call_id)

    shouted: list[Any] = []
    runner = work.runner()

    class Waiting(Script):
        async def __call__(self, state: Any) -> Any:
            if self.requests:
                work.gate.set()
                await runner.wait_detached(framework_work.LIVENESS)
            return await super().__call__(state)

    async def streamed(**options: Any) -> list[Any]:
        work.gate.clear()
        for seen in (work.started, work.results, work.daemons):
            seen.clear()
        script = Waiting(("blocking", 1), ("unwilling", 2), ("quick", 3))
        tools = [blocking, unwilling, *work.functions]
        graph = graph_for(script, work, runner, tools=tools)
        stream = graph.astream_events if "version" in options else graph.astream
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await work.until(started=3, settled=1, blocked=1)
                await anyio.wait_all_tasks_blocked()
                runner.interrupt("enough")

            group.start_soon(stop)
            heard = Heard()
            config = {**THREAD, "callbacks": [heard]}
            chunks = [chunk async for chunk in stream(said("work"), config, **options)]
        assert len(script.answers()) == 3
        assert heard.tools == ["quick"]
        return chunks

    modes = ["custom", "tools", "messages", "updates", "debug"]
    chunks = await streamed(stream_mode=modes, subgraphs=True)
    assert len(shouted) == 2
    assert "'tool-finished'" in str(chunks)  # of the quick one
    assert "late" not in str(chunks)
    events = await streamed(version="v2")
    assert len(shouted) == 4
    ended = [event["name"] for event in events if event["event"] == "on_tool_end"]
    assert ended == ["quick"]
    assert "late" not in str(events)


async def test_who_watches_the_graph_sees_what_a_tool_node_would_show(work: Any) -> None:
    """P9: in streams that ask for no graphs inside, and in the events of tools."""

    @tool
    async def talk(n: int, runtime: ToolRuntime) -> str:
        """Say something on the way."""
        get_stream_writer()(f"custom {n}")
        runtime.emit_output_delta(f"delta {n}")
        return f"said {n}"

    async def watched(node: Any) -> list[Any]:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("tools", node)
        graph.add_edge(START, "tools")
        calls: Any = [{"name": "talk", "args": {"n": 1}, "id": "c0"}]
        state = {"messages": [AIMessage("", tool_calls=calls, id="m")]}
        modes = ["custom", "tools", "messages", "updates", "values"]
        compiled = graph.compile()
        streamed = [chunk async for chunk in compiled.astream(state, stream_mode=modes)]
        of_tools = [
            (event["event"], event["name"], len(event["parent_ids"]))
            async for event in compiled.astream_events(state, version="v2")
            if "tool" in event["event"] or event["name"] == "tools"
        ]
        # Each message has an id of its own, and each task.
        return [re.sub(UUID, "", str(chunk)) for chunk in streamed] + of_tools

    expected = await watched(ToolNode([talk]))
    assert "custom 1" in str(expected)
    assert "delta 1" in str(expected)
    assert await watched(ToolBatchNode(work.runner(), [talk])) == expected


async def test_unknown_tool_is_told_what_there_is(work: Any) -> None:
    """P6: the model reads the names of the tools that it may call."""
    script = Script(("other", 1))
    await graph_for(script, work, work.runner()).ainvoke(said("work"), THREAD)
    assert script.answers()[0][:2] == ("c0", "error")
    assert "quick, stuck, deaf, broken, rogue" in script.answers()[0][2]
    assert work.results[0].status == "invalid"


async def test_what_has_no_id_or_name_is_answered_too(work: Any) -> None:
    """P1: a broken call does not end the run."""
    nothing = {"name": None, "args": None, "id": None, "error": "?"}
    script = Script(("quick", 1), invalid=[nothing])
    script.calls[0]["id"] = None
    await graph_for(script, work, work.runner()).ainvoke(said("work"), THREAD)
    assert [answer[:2] for answer in script.answers()] == [("", "success"), ("", "error")]


async def test_ids_need_not_differ(work: Any) -> None:
    """P1: calls are keyed by position."""
    script = Script(("quick", 1), ("stuck", 2))
    script.calls[1]["id"] = script.calls[0]["id"]
    runner = work.runner()
    graph = graph_for(script, work, runner)
    task = asyncio.ensure_future(graph.ainvoke(said("work"), THREAD))
    await work.until(started=2, settled=1)
    task.cancel()
    await asyncio.wait([task])
    await graph.ainvoke(None, THREAD)
    assert [answer[:2] for answer in script.answers()] == [("c0", "success"), ("c0", "error")]
    assert len(work.started) == 2


def test_arguments_of_the_wrong_kind_are_an_error_at_once() -> None:
    """P1: here, and not deep in a run."""
    work = framework_work.Work()
    runner: Any = framework_work.ToolRunner  # the class
    with pytest.raises(TypeError, match="runner must be a ToolRunner, not type"):
        ToolBatchNode(runner, work.functions)
    with pytest.raises(ValueError, match="timeout must be"):
        ToolBatchNode(work.runner(), work.functions, timeout=-1)


def test_options_for_a_tool_that_there_is_not_are_refused() -> None:
    """P6: a misspelled name is no silent loss of a claim."""
    work = framework_work.Work()
    with pytest.raises(ValueError, match=r"no tool named 'quik'.*known: .*quick"):
        ToolBatchNode(work.runner(), work.functions, options={"quik": {"writes": "file"}})
    with pytest.raises(TypeError, match=r"options\['quick'\].*'write'"):
        ToolBatchNode(work.runner(), work.functions, options={"quick": {"write": "file"}})


@pytest.mark.parametrize("sent", [[], {"tool_call": {}, "state": {}}])
async def test_single_calls_are_refused(work: Any, sent: Any) -> None:
    """P6: what `create_agent` sends to its own node would be answered by nobody."""
    with pytest.raises(TypeError, match="ToolBatchMiddleware"):
        await ToolBatchNode(work.runner(), work.functions)(sent)


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
    monkeypatch.setattr("anyio_toolbatch.integrations._langgraph_history.MAX_KEPT", 2)
    node = ToolBatchNode(work.runner(), work.functions)
    for number in range(4):
        call: Any = {"name": "deaf", "args": {"n": 1}, "id": "c"}
        message = AIMessage("", tool_calls=[call], id=f"m{number}")
        task = asyncio.ensure_future(node({"messages": [message]}))
        await work.until(started=number + 1, settled=0)
        task.cancel()
        await asyncio.wait([task])
    assert list(node._kept._kept) == [(None, "m2"), (None, "m3")]


def test_trio_is_refused_clearly() -> None:
    """P9: LangGraph's own loop fails there before; the node by itself says why."""
    work = framework_work.Work()
    node = ToolBatchNode(work.runner(), work.functions)
    with pytest.raises(RuntimeError, match="LangGraph runs on asyncio only"):
        anyio.run(node, {"messages": []}, backend="trio")
