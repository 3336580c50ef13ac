"""pydantic-ai: a step's calls are one batch, and its history keeps what they gave."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, ModelRetry, RunContext, Tool, capture_run_messages
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from anyio_toolbatch import ToolCall
from anyio_toolbatch.integrations.pydantic_ai import ToolBatches

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def work() -> AsyncIterator[Any]:  # async: its gates open before the loop ends
    with framework_work.at_work() as made:
        yield made


class Script:
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    def __init__(self, *calls: tuple[str, Any]) -> None:
        self.calls = calls
        self.requests: list[list[ModelMessage]] = []
        self.model = FunctionModel(self.answer, stream_function=self.stream)

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(messages)
        if len(self.requests) > 1:
            return ModelResponse(parts=[TextPart("good")])
        return ModelResponse(
            parts=[
                ToolCallPart(name, {"n": n}, tool_call_id=f"c{index}")
                for index, (name, n) in enumerate(self.calls)
            ]
        )

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        for index, part in enumerate(self.answer(messages, info).parts):
            if isinstance(part, ToolCallPart):
                args = part.args_as_json_str()
                call = DeltaToolCall(part.tool_name, args, tool_call_id=part.tool_call_id)
                yield {index: call}
            else:
                yield part.content

    def answers(self) -> list[tuple[str, str, Any]]:
        """What the last request has of tool results: call, outcome, content."""
        return answers_in(self.requests[-1])


def answers_in(messages: list[ModelMessage]) -> list[tuple[str, str, Any]]:
    return [
        (part.tool_call_id, part.outcome, part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def agent_for(script: Script, work: Any, runner: Any, **options: Any) -> Agent:
    tools = options.pop("tools", work.functions)
    return Agent(
        script.model, tools=tools, capabilities=[ToolBatches(runner, **options)], retries=2
    )


async def test_interrupt_answers_every_call_and_the_agent_goes_on(work: Any) -> None:
    """P1, P2, P3, P6: finished results are real, the rest says what happened."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    runner = work.runner()
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=2)
            assert runner.interrupt("enough") == 1  # all calls are one batch

        group.start_soon(stop)
        result = await agent.run("work")
    assert result.output == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    cut = (
        "Tool call interrupted by the user (enough) before it finished. "
        "It may have had side effects; its outcome is unknown."
    )
    assert script.answers() == [
        ("c0", "success", "quick 1"),
        ("c1", "failed", cut),
        ("c2", "failed", cut),
        ("c3", "success", "quick 4"),
    ]


async def run(agent: Agent) -> None:
    await agent.run("work")


async def run_stream(agent: Agent) -> None:
    async with agent.run_stream("work") as stream:
        await stream.get_output()


async def run_stream_events(agent: Agent) -> None:
    async with agent.run_stream_events("work") as events:
        async for _ in events:
            pass


async def iterate(agent: Agent) -> None:
    async with agent.iter("work") as nodes:
        async for _ in nodes:
            pass


@pytest.mark.parametrize("how", [run, run_stream, run_stream_events, iterate])
async def test_cancelled_run_keeps_its_results_in_the_history(work: Any, how: Any) -> None:
    """P2, P3, P8: the cancellation goes on; the next request has one answer per call."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    agent = agent_for(script, work, work.runner())
    with capture_run_messages() as history:
        task = asyncio.ensure_future(how(agent))
        await work.until(started=4, settled=2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not work.gate.is_set()
    await agent.run("go on", message_history=history)
    answers = script.answers()
    assert [answer[0] for answer in answers] == ["c0", "c1", "c2", "c3"]
    assert [answer[1] for answer in answers] == [
        "success",
        "interrupted",
        "interrupted",
        "success",
    ]
    assert answers[0][2] == "quick 1"
    assert "may have had side effects" in answers[1][2]


async def test_pydantic_ai_s_own_cancel_has_the_results_too(work: Any) -> None:
    """P3: `AgentRun.cancel` gives them in the exception's messages."""
    script = Script(("quick", 1), ("stuck", 2))
    agent = agent_for(script, work, work.runner())
    run: Any = None

    async def iterate_until_cancelled() -> None:
        nonlocal run
        async with agent.iter("work") as run:
            async for _ in run:
                pass

    task = asyncio.ensure_future(iterate_until_cancelled())
    await work.until(started=2, settled=1)
    run.cancel()
    with pytest.raises(RunCancelled) as raised:
        await task
    assert not work.gate.is_set()
    await agent.run("go on", message_history=raised.value.all_messages())
    assert [answer[:2] for answer in script.answers()] == [
        ("c0", "success"),
        ("c1", "interrupted"),
    ]


async def test_nothing_late_lands(work: Any) -> None:
    """P5: what a call gives after the stop is in no later request."""
    script = Script(("stuck", 1))
    late: list[Any] = []
    runner = work.runner(on_late=late.append)
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt()

        group.start_soon(stop)
        result = await agent.run("work")
    before = answers_in(result.all_messages())
    work.gate.set()
    await runner.wait_detached(framework_work.LIVENESS)
    again = await agent.run("go on", message_history=result.all_messages())
    assert answers_in(again.all_messages()) == before
    assert [result.value for result in late] == ["late 1"]


async def test_a_tool_s_failure_is_its_own(work: Any) -> None:
    """P8: an exception, and a cancellation that a tool invents, harm no sibling."""
    script = Script(("broken", 1), ("rogue", 2), ("quick", 3))
    await agent_for(script, work, work.runner()).run("work")
    assert [answer[1] for answer in script.answers()] == ["failed", "failed", "success"]
    assert script.answers()[0][2] == "ValueError: no 1 here"


async def test_arguments_are_checked_by_pydantic_ai(work: Any) -> None:
    """P1: a call whose arguments do not fit never runs, and the model is told."""
    script = Script(("quick", "one"), ("quick", 2))
    await agent_for(script, work, work.runner()).run("work")
    assert sorted(answer[:2] for answer in script.answers()) == [
        ("c0", "retried"),
        ("c1", "success"),
    ]
    assert work.started == ["quick"]


async def test_tools_have_their_context_and_say_what_pydantic_ai_understands(
    work: Any,
) -> None:
    """P1: `RunContext`, `ToolReturn` and `ModelRetry` mean what they mean without us."""

    def who(ctx: RunContext[str], n: int) -> str:
        return f"{ctx.deps} {ctx.tool_name} {ctx.tool_call_id}"

    async def rich(n: int) -> ToolReturn:
        return ToolReturn("rich", metadata={"n": n})

    def again(n: int) -> str:
        raise ModelRetry("once more, please")

    script = Script(("who", 1), ("rich", 2), ("again", 3))
    agent = agent_for(script, work, work.runner(), tools=[who, rich, again])
    result = await agent.run("work", deps="me")
    assert [answer[:2] for answer in script.answers()] == [
        ("c0", "success"),
        ("c1", "success"),
        ("c2", "retried"),
    ]
    assert script.answers()[0][2] == "me who c0"
    assert "metadata={'n': 2}" in repr(result.all_messages())


async def test_options_and_approval_reach_the_calls(work: Any) -> None:
    """P6: tools get the library's own options by name, and the runner asks as always."""
    asked: list[ToolCall] = []

    def approve(call: ToolCall) -> str:
        asked.append(call)
        return "not today"

    script = Script(("quick", 1))
    agent = agent_for(
        script, work, work.runner(approve=approve), options={"quick": {"writes": "file"}}
    )
    await agent.run("work")
    assert "not today" in script.answers()[0][2]
    assert asked[0].arguments == {"n": 1}
    assert asked[0].tool.writes == ("file",)  # type: ignore[union-attr]
    assert work.started == []


async def test_sequential_tools_and_time_limits_are_the_batch_s(work: Any) -> None:
    """P2: pydantic-ai's `sequential` is a barrier, its `timeout` lets go of the call."""
    quick, stuck, *_ = work.functions
    script = Script(("stuck", 1), ("quick", 2))
    tools = [Tool(quick, sequential=True), Tool(stuck, timeout=0.05)]
    await agent_for(script, work, work.runner(), tools=tools).run("work")
    assert [answer[1] for answer in script.answers()] == ["failed", "success"]
    assert "timed out" in script.answers()[0][2]
    assert work.started == ["stuck", "quick"]
    assert [result.call.name for result in work.results] == ["stuck", "quick"]


@pytest.mark.parametrize("prefixed", [False, True])
async def test_plain_functions_run_in_workers_that_no_exit_waits_for(
    work: Any, prefixed: bool
) -> None:
    """P7: also those of a toolset that is wrapped in others."""
    toolset: Any = FunctionToolset(work.functions)
    script = Script(("x_stuck" if prefixed else "stuck", 1))
    agent = Agent(
        script.model,
        toolsets=[toolset.prefixed("x") if prefixed else toolset],
        capabilities=[ToolBatches(work.runner())],
    )
    work.gate.set()
    await agent.run("work")
    assert script.answers() == [("c0", "success", "late 1")]
    assert work.daemons == {True}


async def test_runs_at_once_do_not_mix(work: Any) -> None:
    """P5: two runs of one agent, with the same call ids, each have their own results."""
    tools = [lambda_tool(work)]
    scripts = [Script(("echo", 1)), Script(("echo", 2))]
    agent = agent_for(scripts[0], work, work.runner(), tools=tools)
    async with anyio.create_task_group() as group:
        for script in scripts:
            group.start_soon(lambda model=script.model: agent.run("work", model=model))
        await work.until(started=2, settled=0)
        work.gate.set()
    assert [script.answers()[0][2] for script in scripts] == ["1", "2"]


def lambda_tool(work: Any) -> Any:
    def echo(n: int) -> str:
        work.gate.wait(framework_work.LIVENESS)
        return str(n)

    return echo


def test_trio_is_refused_clearly() -> None:
    """P9: pydantic-ai needs asyncio; under trio the error says so before a model is asked."""
    script = Script(("quick", 1))
    work = framework_work.Work()
    agent = agent_for(script, work, work.runner())

    async def main() -> None:
        await agent.run("work")

    with pytest.raises(RuntimeError, match="pydantic-ai runs on asyncio only"):
        anyio.run(main, backend="trio")
    assert script.requests == []
