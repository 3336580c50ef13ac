"""Haystack: a step's calls are one batch, and the agent's messages keep what they gave."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # a test tells nobody
pytest.importorskip("haystack")

from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage
from haystack.dataclasses import ToolCall as HaystackCall
from haystack.tools import SearchableToolset, Tool

from anyio_toolbatch.integrations.haystack import ToolBatchHook

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

CUT = (
    "Tool call interrupted by the user (enough) before it finished. "
    "It may have had side effects; its outcome is unknown."
)
N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def work() -> AsyncIterator[Any]:  # async: its gates open before the loop ends
    with framework_work.at_work() as made:
        yield made


@component
class Script:
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    def __init__(self, *calls: tuple[str, Any]) -> None:
        self.calls = [
            HaystackCall(tool_name=name, arguments={"n": n}, id=f"c{index}")
            for index, (name, n) in enumerate(calls)
        ]
        self.requests: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **options: Any) -> Any:
        self.requests.append(list(messages))
        if self.requests[1:]:
            return {"replies": [ChatMessage.from_assistant("good")]}
        return {"replies": [ChatMessage.from_assistant(tool_calls=self.calls)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], tools: Any = None, **options: Any
    ) -> Any:
        return self.run(messages)

    def answers(self) -> list[tuple[str | None, bool, Any]]:
        """What the last request has of tool results: call, error, result."""
        return answers_in(self.requests[-1])


def answers_in(messages: list[ChatMessage]) -> list[tuple[str | None, bool, Any]]:
    return [
        (result.origin.id, result.error, result.result)
        for message in messages
        for result in message.tool_call_results
    ]


def made(function: Any, **options: Any) -> Tool:
    kind = "async_function" if inspect.iscoroutinefunction(function) else "function"
    options = {kind: function, **options}
    return Tool(function.__name__, function.__name__, N, **options)


def agent_for(script: Any, work: Any, hook: ToolBatchHook, **options: Any) -> Agent:
    tools = options.pop("tools", None) or [made(function) for function in work.functions]
    return Agent(chat_generator=script, tools=tools, hooks={"before_tool": [hook]}, **options)


USER = [ChatMessage.from_user("work")]


async def test_interrupt_answers_every_call_and_the_agent_goes_on(work: Any) -> None:
    """P1, P2, P3, P6: finished results are real, the rest says what happened."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    runner = work.runner()
    agent = agent_for(script, work, ToolBatchHook(runner))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=2)
            assert runner.interrupt("enough") == 1  # all calls are one batch

        group.start_soon(stop)
        result = await agent.run_async(messages=USER)
    assert result["last_message"].text == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    assert script.answers() == [
        ("c0", False, "quick 1"),
        ("c1", True, CUT),
        ("c2", True, CUT),
        ("c3", False, "quick 4"),
    ]
    assert set(work.daemons) == {True}


async def test_interrupt_may_end_the_run_with_its_step(work: Any) -> None:
    """P2, P3: the run's messages are complete, and the model is not asked again."""
    script = Script(("quick", 1), ("stuck", 2))
    runner = work.runner()
    agent = agent_for(script, work, ToolBatchHook(runner, ends_run=True))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=2, settled=1)
            runner.interrupt("enough")

        group.start_soon(stop)
        result = await agent.run_async(messages=USER)
    assert result["exit_reason"] == "interrupted"
    assert len(script.requests) == 1
    assert answers_in(result["messages"]) == [("c0", False, "quick 1"), ("c1", True, CUT)]


async def test_cancelled_run_hands_its_messages_over(work: Any) -> None:
    """P2, P3, P8: the cancellation goes on; the next request has one answer per call."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    kept: list[ChatMessage] = []
    hook = ToolBatchHook(
        work.runner(), on_cut=lambda state: kept.extend(state.data["messages"])
    )
    agent = agent_for(script, work, hook)
    task = asyncio.ensure_future(agent.run_async(messages=USER))
    await work.until(started=4, settled=2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.gate.is_set()
    await agent.run_async(messages=[*kept, ChatMessage.from_user("go on")])
    answers = script.answers()
    assert [answer[:2] for answer in answers] == [
        ("c0", False),
        ("c1", True),
        ("c2", True),
        ("c3", False),
    ]
    assert answers[0][2] == "quick 1"
    assert "may have had side effects" in answers[1][2]


async def test_nothing_late_lands(work: Any) -> None:
    """P5: neither in the messages, nor in the agent's state."""

    def stuck(n: int) -> dict[str, Any]:
        work.block()
        return {"note": f"late {n}"}

    script = Script(("stuck", 1))
    late: list[Any] = []
    runner = work.runner(on_late=late.append)
    agent = agent_for(
        script,
        work,
        ToolBatchHook(runner),
        tools=[made(stuck, outputs_to_state={"note": {"source": "note"}})],
        state_schema={"note": {"type": str}},
    )
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        result = await agent.run_async(messages=USER)
    before = answers_in(result["messages"])
    work.gate.set()
    await runner.wait_detached(framework_work.LIVENESS)
    assert before == [("c0", True, CUT)] == answers_in(result["messages"])
    assert result.get("note") is None
    assert [result.value for result in late] == [{"note": "late 1"}]


async def test_a_tool_s_failure_is_its_own(work: Any) -> None:
    """P8: an exception, and a cancellation that a tool invents, harm no sibling."""
    script = Script(("broken", 1), ("rogue", 2), ("quick", 3), ("other", 4))
    await agent_for(script, work, ToolBatchHook(work.runner())).run_async(messages=USER)
    answers = script.answers()
    assert [answer[:2] for answer in answers] == [
        ("c0", True),
        ("c1", True),
        ("c2", False),
        ("c3", True),
    ]
    assert "no 1 here" in answers[0][2]
    assert "no tool named 'other' (known: broken, deaf, quick, rogue, stuck)" in answers[3][2]


async def test_state_goes_in_and_out_as_haystack_has_it(work: Any) -> None:
    """P1: who reads what another call of the step writes runs after it."""

    def read(n: int, note: str) -> str:
        return f"read {note}"

    def write(n: int) -> dict[str, Any]:
        return {"note": f"note {n}", "text": "written"}

    def whole(n: int, state: State) -> str:
        return f"{len(state.data['messages'])} messages"

    script = Script(("read", 1), ("write", 2), ("whole", 3))
    agent = agent_for(
        script,
        work,
        ToolBatchHook(work.runner()),
        tools=[
            made(read, inputs_from_state={"note": "note"}),
            made(
                write,
                outputs_to_state={"note": {"source": "note"}},
                outputs_to_string={"source": "text"},
            ),
            made(whole),
        ],
        state_schema={"note": {"type": str}},
    )
    result = await agent.run_async(messages=USER)
    assert result["note"] == "note 2"
    assert script.answers() == [
        ("c0", False, "read note 2"),
        ("c1", False, "written"),
        ("c2", False, "2 messages"),
    ]


async def test_cut_between_steps_starts_nothing_more(work: Any) -> None:
    """P4: a call that waits for another's output is answered as not started."""

    def read(n: int, note: str) -> str:
        return "read"

    def stuck(n: int) -> dict[str, Any]:
        work.block()
        return {"note": "late"}

    script = Script(("read", 1), ("stuck", 2))
    runner = work.runner()
    agent = agent_for(
        script,
        work,
        ToolBatchHook(runner),
        tools=[
            made(read, inputs_from_state={"note": "note"}),
            made(stuck, outputs_to_state={"note": {"source": "note"}}),
        ],
        state_schema={"note": {"type": str}},
    )
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        await agent.run_async(messages=USER)
    assert work.started == ["stuck"]
    assert script.answers()[0][2] == (
        "Tool call not started: interrupted by the user (enough) before it began. "
        "It had no effects."
    )


async def test_options_and_approval_reach_the_calls(work: Any) -> None:
    """P6: tools get the library's own options by name, and the runner asks as always."""
    asked: list[Any] = []

    def approve(call: Any) -> str:
        asked.append(call)
        return "not today"

    script = Script(("quick", 1))
    hook = ToolBatchHook(work.runner(approve=approve), options={"quick": {"writes": "file"}})
    await agent_for(script, work, hook).run_async(messages=USER)
    assert "not today" in script.answers()[0][2]
    assert asked[0].arguments == {"n": 1}
    assert asked[0].tool.writes == ("file",)


def test_arguments_of_the_wrong_kind_are_an_error_at_once() -> None:
    """P1: here, and not deep in a run."""
    work = framework_work.Work()
    runner: Any = framework_work.ToolRunner  # the class
    with pytest.raises(TypeError, match="runner must be a ToolRunner, not type"):
        ToolBatchHook(runner)
    with pytest.raises(ValueError, match="timeout must be"):
        ToolBatchHook(work.runner(), timeout=-1)
    wrong: Any = "log"
    with pytest.raises(TypeError, match="on_cut must be a function"):
        ToolBatchHook(work.runner(), on_cut=wrong)


async def test_options_for_no_tool_are_an_error_before_anything_runs(work: Any) -> None:
    """P1: a name that is misspelled says so, and what the names are."""
    script = Script(("quick", 1))
    hook = ToolBatchHook(work.runner(), options={"quik": {"writes": "file"}})
    with pytest.raises(ValueError, match=r"no tool named 'quik' \(known: .*quick.*\)"):
        await agent_for(script, work, hook).run_async(messages=USER)
    assert work.started == []
    with pytest.raises(TypeError, match=r"options\['quick'\].*'write'"):
        ToolBatchHook(work.runner(), options={"quick": {"write": "file"}})


async def test_options_may_be_for_a_tool_that_is_not_found_yet(work: Any) -> None:
    """P1: with a toolset that is searched, the agent has more tools from step to step."""
    tools = SearchableToolset(
        [made(function) for function in work.functions], search_threshold=0
    )
    script = Script(("search_tools", 1))
    hook = ToolBatchHook(work.runner(), options={"quick": {"writes": "file"}})
    await agent_for(script, work, hook, tools=tools).run_async(messages=USER)
    assert work.started == ["search_tools"]


def test_without_a_loop_it_says_that_it_is_async() -> None:
    """P6: `Agent.run` is refused, rather than that the calls run in another way."""
    work = framework_work.Work()
    script = Script(("quick", 1))
    tools = [made(work.functions[0])]
    agent = agent_for(script, work, ToolBatchHook(work.runner()), tools=tools)
    with pytest.raises(RuntimeError, match="run_async"):
        agent.run(messages=USER)
    assert work.started == []


def test_trio_is_refused_clearly() -> None:
    """P9: Haystack's async agents need asyncio; under trio the hook says so."""
    work = framework_work.Work()
    hook = ToolBatchHook(work.runner())
    with pytest.raises(RuntimeError, match="Haystack runs on asyncio only"):
        anyio.run(hook.run_async, None, backend="trio")
