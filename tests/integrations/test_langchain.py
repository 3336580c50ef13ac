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
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command
from pydantic import Field

from anyio_toolbatch import current_call
from anyio_toolbatch.integrations._langgraph_history import NOT_KNOWN
from anyio_toolbatch.integrations.langchain import NOT_READ, ToolBatchMiddleware

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
    invalid: list[Any] = Field(default_factory=list)
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
        message = AIMessage("", tool_calls=calls, invalid_tool_calls=self.invalid)
        if self.requests[1:]:
            message = AIMessage("good")
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
    assert set(work.daemons) == {True}


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


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("mode", ["per_call", "batched"])
@pytest.mark.parametrize(
    ("decision", "ran", "answer"),
    [
        ({"type": "approve"}, [1], ("success", "quick 1")),
        ({"type": "reject", "message": "no!"}, [], ("error", "no!")),
        ({"type": "respond", "message": "42"}, [], ("success", "42")),
        (
            {"type": "edit", "edited_action": {"name": "book", "args": {"n": 9}}},
            [9],
            ("success", "quick 9"),
        ),
    ],
    ids=["approve", "reject", "respond", "edit"],
)
async def test_what_a_person_decides_holds(
    work: Any, place: str, mode: Any, decision: Any, ran: Any, answer: Any
) -> None:
    """P6: LangChain's own way to ask comes before the call, wherever it is in the list."""
    booked: list[int] = []

    async def book(n: int) -> str:
        """Book."""
        booked.append(n)
        return f"quick {n}"

    script = Script(calls=[("quick", 2), ("book", 1)])
    asking = HumanInTheLoopMiddleware(interrupt_on={"book": True}, interrupt_mode=mode)
    ours: Any = ToolBatchMiddleware(work.runner(), [book, *work.functions])
    agent = create_agent(
        script,
        middleware=[asking, ours] if place == "before" else [ours, asking],
        checkpointer=InMemorySaver(),
    )
    paused = await agent.ainvoke(said("work"), THREAD)
    assert len(paused["__interrupt__"]) == 1
    assert booked == []
    answers = {"decisions": [decision]} if mode == "batched" else decision
    await agent.ainvoke(Command(resume=answers), THREAD)
    assert booked == ran
    # LangChain writes what a person says as soon as it is said.
    (c0,), (c1,) = ([a for a in script.answers() if a[0] == c] for c in ("c0", "c1"))
    assert c0 == ("c0", "success", "quick 2")
    assert c1[1] == answer[0]
    assert answer[1] in c1[2]
    assert work.started.count("quick") == 1


async def test_two_calls_are_decided_apart(work: Any) -> None:
    """P6: each answer is for the call that was asked about."""
    script = Script(calls=[("quick", 1), ("quick", 2)])
    asking = HumanInTheLoopMiddleware(interrupt_on={"quick": True}, interrupt_mode="per_call")
    ours: Any = ToolBatchMiddleware(work.runner(), work.functions)
    agent = create_agent(script, middleware=[ours, asking], checkpointer=InMemorySaver())
    paused = await agent.ainvoke(said("work"), THREAD)
    answers = {
        question.id: {"type": "approve" if question.value["args"]["n"] == 2 else "reject"}
        for question in paused["__interrupt__"]
    }
    await agent.ainvoke(Command(resume=answers), THREAD)
    assert [answer[:2] for answer in script.answers()] == [("c0", "error"), ("c1", "success")]


async def test_hooks_of_other_middlewares_wrap_the_calls(work: Any) -> None:
    """P6: in their order; a call that is made again is another one of the batch."""
    seen: list[Any] = []

    class Outer(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            first = await handler(request)
            again = await handler(request)
            seen.append((first.content, again.content))
            return again

    class Inner(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            seen.append(current_call().call.name)
            return await handler(request)

    script = Script(calls=[("quick", 1)])
    ours: Any = ToolBatchMiddleware(work.runner(), work.functions)
    agent = create_agent(script, middleware=[Outer(), ours, Inner()])
    events: list[Any] = [
        event["name"]
        async for event in agent.astream_events(said("work"), version="v2")
        if event["event"] == "on_tool_end"
    ]
    assert seen == ["quick", "quick", ("quick 1", "quick 1")]
    assert events == ["quick", "quick"]  # the first call's gate is not the second's


async def test_a_hook_that_gives_up_a_call_harms_no_sibling(work: Any) -> None:
    """P8: the cancellation that it makes is of this call."""

    class Impatient(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            if request.tool_call["name"] != "stuck":
                return await handler(request)
            task = asyncio.ensure_future(handler(request))
            await work.until(started=2, settled=0)
            task.cancel()
            await asyncio.wait([task])
            await work.until(started=2, settled=1)
            finish.set()
            call = request.tool_call
            return ToolMessage("too slow", tool_call_id=call["id"], name=call["name"])

    finish = anyio.Event()

    async def patient(n: int) -> str:
        """Wait for the other one's end."""
        await finish.wait()
        return f"patient {n}"

    script = Script(calls=[("stuck", 1), ("patient", 2)])
    runner = work.runner()
    ours: Any = ToolBatchMiddleware(runner, [patient, *work.functions])
    await create_agent(script, middleware=[Impatient(), ours]).ainvoke(said("work"))
    assert sorted(answer[2] for answer in script.answers()) == ["patient 2", "too slow"]
    assert [result.status for result in work.results] == ["interrupted", "completed"]
    assert runner.statistics().open_batches == 0
    assert ours._steps == {}


async def test_a_hook_may_make_a_call_again_that_it_gave_up(work: Any) -> None:
    """P6: it has asked for that; what is kept is for a run that goes on with a cut step."""

    class Persistent(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            task = asyncio.ensure_future(handler(request))
            await work.until(started=1, settled=0)
            task.cancel()
            await asyncio.wait([task])
            return await handler(request)

    async def slow_at_first(n: int) -> str:
        """Take long, once."""
        if len(work.started) == 1:
            await anyio.sleep_forever()
        return f"done {n}"

    script = Script(calls=[("slow_at_first", 1)])
    ours: Any = ToolBatchMiddleware(work.runner(), [slow_at_first])
    await create_agent(script, middleware=[Persistent(), ours]).ainvoke(said("work"))
    assert script.answers() == [("c0", "success", "done 1")]


async def test_tools_that_return_directly_end_the_run(work: Any) -> None:
    """P6: the tool's own option is LangChain's business, and stays so."""

    @tool(return_direct=True)
    async def final(n: int) -> str:
        """Give the last word."""
        return f"final {n}"

    script = Script(calls=[("final", 1)])
    middleware: Any = ToolBatchMiddleware(work.runner(), [final])
    result = await create_agent(script, middleware=[middleware]).ainvoke(said("work"))
    assert result["messages"][-1].content == "final 1"
    assert len(script.requests) == 1


@pytest.mark.parametrize("calls", [[], [("quick", 1)]], ids=["alone", "beside another"])
async def test_calls_that_could_not_be_read_are_answered(work: Any, calls: Any) -> None:
    """P1, P6: the model is told, also where it has made no other call, and goes on."""
    broken = {"name": "quick", "args": '{"n": ', "id": "c9", "error": "?"}
    script = Script(calls=calls, invalid=[broken])
    result = await agent_for(script, work, work.runner()).ainvoke(said("work"), THREAD)
    assert result["messages"][-1].content == "good"
    (answer,) = [answer for answer in script.answers() if answer[0] == "c9"]
    assert answer[1:] == ("error", NOT_READ)
    assert len(script.answers()) == len(calls) + 1
    assert len(work.started) == len(calls)


async def test_barriers_hold_among_the_calls_of_a_step(work: Any) -> None:
    """P1, P10: in call order, one at a time; nothing of the step stays open."""
    inside = 0
    most: list[int] = []

    async def alone(n: int) -> str:
        """Work alone."""
        nonlocal inside
        inside += 1
        await asyncio.sleep(0)
        most.append(inside)
        inside -= 1
        return f"{n}"

    script = Script(calls=[("alone", n) for n in range(20)])
    runner = work.runner()
    ours: Any = ToolBatchMiddleware(runner, [alone], options={"alone": {"exclusive": True}})
    await create_agent(script, middleware=[ours]).ainvoke(said("work"))
    assert sorted(script.answers()) == sorted((f"c{n}", "success", str(n)) for n in range(20))
    assert most == [1] * 20
    assert runner.statistics().open_batches == 0
    assert ours._steps == {}


async def test_after_an_interrupt_no_call_of_the_step_starts(work: Any) -> None:
    """P4: also one that LangGraph has held back until the others had ended."""
    script = Script(calls=[("stuck", 1), ("quick", 2), ("quick", 3)])
    runner = work.runner()
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        await agent.ainvoke(said("work"), {**THREAD, "max_concurrency": 1})
    assert work.started == ["stuck"]
    assert [answer[1] for answer in script.answers()] == ["error"] * 3
    assert all("enough" in answer[2] for answer in script.answers())
    assert "It had no effects" in script.answers()[1][2]


async def test_resumed_run_runs_nothing_twice(work: Any) -> None:
    """P4, P6: going on without new input gives the results of the cut step."""
    script = Script(calls=[("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4)])
    runner = work.runner()
    agent = agent_for(script, work, runner)
    task = asyncio.ensure_future(agent.ainvoke(said("work"), THREAD))
    await work.until(started=4, settled=2)
    task.cancel()
    await asyncio.wait([task])
    assert runner.statistics().open_batches == 0
    await agent.ainvoke(None, THREAD)
    statuses = ["success", "error", "error", "success"]
    assert [answer[1] for answer in script.answers()] == statuses
    assert len(work.started) == 4
    assert runner.statistics().open_batches == 0


async def test_results_of_a_step_that_is_not_taken_up_again_are_known(work: Any) -> None:
    """P3: a person says something else, instead of yes or no to one of the calls."""
    asking = HumanInTheLoopMiddleware(interrupt_on={"deaf": True}, interrupt_mode="per_call")
    script = Script(calls=[("quick", 1), ("deaf", 2)])
    ours: Any = ToolBatchMiddleware(work.runner(), work.functions)
    agent = create_agent(script, middleware=[ours, asking], checkpointer=InMemorySaver())
    await agent.ainvoke(said("work"), THREAD)
    await agent.ainvoke(said("something else"), THREAD)
    assert script.answers() == [("c0", "success", "quick 1"), ("c1", "error", NOT_KNOWN)]


def test_arguments_of_the_wrong_kind_are_an_error_at_once() -> None:
    """P1: here, and not deep in a run."""
    work = framework_work.Work()
    runner: Any = framework_work.ToolRunner  # the class
    with pytest.raises(TypeError, match="runner must be a ToolRunner, not type"):
        ToolBatchMiddleware(runner, work.functions)
    with pytest.raises(ValueError, match="timeout must be"):
        ToolBatchMiddleware(work.runner(), work.functions, timeout=-1)


def test_options_for_a_tool_that_there_is_not_are_refused() -> None:
    """P6: a misspelled name is no silent loss of a claim."""
    work = framework_work.Work()
    with pytest.raises(ValueError, match="no tool named 'quik'"):
        ToolBatchMiddleware(work.runner(), work.functions, options={"quik": {}})
    with pytest.raises(TypeError, match=r"options\['quick'\].*'write'"):
        ToolBatchMiddleware(
            work.runner(), work.functions, options={"quick": {"write": "file"}}
        )


def test_without_a_loop_it_says_that_it_is_async() -> None:
    """P6: `invoke` is refused, rather than that the calls run in another way."""
    work = framework_work.Work()
    script = Script(calls=[("quick", 1)])
    with pytest.raises(RuntimeError, match=r"use ainvoke\(\) or astream\(\)"):
        agent_for(script, work, work.runner()).invoke(said("work"), THREAD)
    assert work.started == []
