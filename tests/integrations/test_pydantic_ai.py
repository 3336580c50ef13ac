"""pydantic-ai: a step's calls are one batch, and its history keeps what they gave."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, ModelRetry, RunContext, Tool, capture_run_messages
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    RunCancelled,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.output import ToolOutput
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset

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


async def test_time_limit_of_a_toolset_is_the_batch_s_too(work: Any) -> None:
    """P2: a plain function is let go when it is up."""
    script = Script(("stuck", 1))
    toolset: Any = FunctionToolset(work.functions, timeout=0.05)
    agent = Agent(script.model, toolsets=[toolset], capabilities=[ToolBatches(work.runner())])
    await agent.run("work")
    assert not work.gate.is_set()
    assert "timed out" in script.answers()[0][2]


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
    assert set(work.daemons) == {True}


async def test_runs_at_once_do_not_mix(work: Any) -> None:
    """P5: two runs of one agent, with the same call ids, each have their own results."""
    tools = [lambda_tool(work)]
    scripts = [Script(("echo", 1)), Script(("echo", 2))]
    runner = work.runner()
    agent = agent_for(scripts[0], work, runner, tools=tools)
    async with anyio.create_task_group() as group:
        for script in scripts:
            group.start_soon(lambda model=script.model: agent.run("work", model=model))
        await work.until(started=2, settled=0)
        assert runner.statistics().open_batches == 2
        work.gate.set()
    assert [script.answers()[0][2] for script in scripts] == ["1", "2"]


def lambda_tool(work: Any) -> Any:
    def echo(n: int) -> str:
        work.block()
        return str(n)

    return echo


@pytest.mark.parametrize("strategy", ["early", "graceful", "exhaustive"])
async def test_calls_beside_an_output_are_answered_as_pydantic_ai_has_it(
    work: Any, strategy: Any
) -> None:
    """P1: run or skipped by the agent's `end_strategy`, but no call is left without an answer."""
    script = Script(("quick", 1), ("final", 2), ("quick", 3))
    agents = [
        Agent(
            script.model,
            output_type=ToolOutput(final_output, name="final"),
            tools=work.functions,
            capabilities=capabilities,
            end_strategy=strategy,
        )
        for capabilities in ([], [ToolBatches(work.runner())])
    ]
    histories = []
    for agent in agents:
        script.requests.clear()
        result = await agent.run("work")
        assert result.output == "final 2"
        histories.append(answers_in(result.all_messages()))
    alone, together = histories
    assert together == alone
    assert {answer[0] for answer in together} == {"c0", "c1", "c2"}
    assert work.started == ([] if strategy == "early" else ["quick", "quick"])


def final_output(n: int) -> str:
    return f"final {n}"


async def test_retries_are_counted_as_pydantic_ai_does(work: Any) -> None:
    """P1: a tool that asks for another try each time ends the run when its tries are used up."""
    seen: list[tuple[int, bool]] = []

    def again(ctx: RunContext[None], n: int) -> str:
        seen.append((ctx.retry, ctx.last_attempt))
        raise ModelRetry("once more, please")

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart("again", {"n": len(messages)})])

    agent = Agent(
        FunctionModel(model),
        tools=[again],
        capabilities=[ToolBatches(work.runner())],
        retries=2,
    )
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries count of 2"):
        await agent.run("work")
    assert seen == [(0, False), (1, False), (2, True)]


class OnItsLoop(WrapperToolset[Any]):
    """A user's own, with something that belongs to the agent's event loop."""

    loops: ClassVar[list[Any]] = []

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        self.loops.append(asyncio.get_running_loop())
        return await super().call_tool(name, tool_args, ctx, tool)


async def test_a_toolset_of_one_s_own_runs_on_the_loop_and_its_functions_in_workers(
    work: Any,
) -> None:
    """P2, P7: an interrupt lets go of the function; its call is let go, not over, till then."""
    OnItsLoop.loops.clear()
    script = Script(("quick", 1), ("stuck", 2))
    runner = work.runner()
    toolset: Any = OnItsLoop(FunctionToolset(work.functions))
    agent = Agent(script.model, toolsets=[toolset], capabilities=[ToolBatches(runner)])
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=2, settled=1)
            runner.interrupt()

        group.start_soon(stop)
        await agent.run("work")
    assert not work.gate.is_set()
    assert [answer[:2] for answer in script.answers()] == [("c0", "success"), ("c1", "failed")]
    assert OnItsLoop.loops == [asyncio.get_running_loop()] * 2
    assert set(work.daemons) == {True}
    assert [detached.call.name for detached in runner.statistics().detached] == ["stuck"]
    work.gate.set()
    assert await runner.wait_detached(framework_work.LIVENESS)


async def test_each_step_is_a_batch_and_none_stays_open(work: Any) -> None:
    """P10: it ends before the model is asked again, and with the run."""
    runner = work.runner()
    open_batches: list[int] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        open_batches.append(runner.statistics().open_batches)
        name = "quick" if len(messages) == 1 else "final"
        return ModelResponse(
            parts=[ToolCallPart("quick", {"n": 1}), ToolCallPart(name, {"n": 2})]
        )

    agent = Agent(
        FunctionModel(model),
        output_type=ToolOutput(final_output, name="final"),
        tools=work.functions,
        capabilities=[ToolBatches(runner)],
    )
    await agent.run("work")
    assert open_batches == [0, 0]
    assert runner.statistics().open_batches == 0


async def test_a_tool_that_has_another_called_does_not_wait_for_itself(work: Any) -> None:
    """P1: at one call at a time; its own place is lent to the inner one."""

    async def outer(ctx: RunContext[None], n: int) -> str:
        inner = ToolCallPart("quick", {"n": n}, tool_call_id=f"{ctx.tool_call_id}, inner")
        assert ctx.tool_manager is not None
        return str(await ctx.tool_manager.handle_call(inner))

    script = Script(("outer", 1), ("outer", 2))
    agent = agent_for(
        script, work, work.runner(max_concurrency=1), tools=[outer, work.functions[0]]
    )
    with anyio.fail_after(framework_work.LIVENESS):
        await agent.run("work")
    assert [answer[2] for answer in script.answers()] == ["quick 1", "quick 2"]


async def test_nothing_of_the_step_starts_after_an_interrupt(work: Any) -> None:
    """P4: nor what pydantic-ai itself has held back, as behind a `sequential` tool."""
    quick, stuck, *_ = work.functions
    script = Script(("stuck", 1), ("quick", 2))
    runner = work.runner()
    tools = [Tool(stuck, sequential=True), quick]
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt()

        group.start_soon(stop)
        await agent_for(script, work, runner, tools=tools).run("work")
    assert work.started == ["stuck"]
    assert "not started" in script.answers()[1][2]


async def test_one_at_a_time_is_what_the_agent_can_ask_for(work: Any) -> None:
    """P1: `parallel_tool_call_execution_mode("sequential")`, for a whole run."""
    now = most = 0

    async def alone(n: int) -> str:
        nonlocal now, most
        now += 1
        most = max(now, most)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now -= 1
        return "alone"

    script = Script(("alone", 1), ("alone", 2), ("alone", 3))
    agent = agent_for(script, work, work.runner(), tools=[alone])
    with agent.parallel_tool_call_execution_mode("sequential"):
        await agent.run("work")
    assert len(script.answers()) == 3
    assert most == 1


async def test_tools_can_leave_their_answer_to_somebody_else(work: Any) -> None:
    """P1: `CallDeferred` and `ApprovalRequired`, with what they say."""

    def later(n: int) -> str:
        raise CallDeferred(metadata={"job": n})

    async def ask(n: int) -> str:
        raise ApprovalRequired(metadata={"why": n})

    quick = work.functions[0]
    script = Script(("later", 1), ("ask", 2), ("quick", 3))
    agent = Agent(
        script.model,
        tools=[later, ask, quick],
        capabilities=[ToolBatches(work.runner())],
        output_type=[str, DeferredToolRequests],
    )
    result = await agent.run("work")
    assert isinstance(result.output, DeferredToolRequests)
    assert [part.tool_call_id for part in result.output.calls] == ["c0"]
    assert [part.tool_call_id for part in result.output.approvals] == ["c1"]
    assert result.output.metadata == {"c0": {"job": 1}, "c1": {"why": 2}}
    assert answers_in(result.all_messages()) == [("c2", "success", "quick 3")]


async def test_cancelled_run_keeps_all_that_a_tool_has_returned(work: Any) -> None:
    """P3: also what a `ToolReturn` has for the model beside its value."""

    async def rich(n: int) -> ToolReturn:
        return ToolReturn("rich", content=["a picture"], metadata={"n": n})

    stuck = work.functions[1]
    script = Script(("stuck", 1), ("rich", 2))
    agent = agent_for(script, work, work.runner(), tools=[stuck, rich])
    with capture_run_messages() as history:
        task = asyncio.ensure_future(agent.run("work"))
        await work.until(started=2, settled=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [answer[:2] for answer in answers_in(history)] == [
        ("c0", "interrupted"),
        ("c1", "success"),
    ]
    parts = history[-1].parts
    assert [part.content for part in parts if isinstance(part, UserPromptPart)] == [
        ["a picture"]
    ]
    assert "metadata={'n': 2}" in repr(parts)


async def test_a_failed_run_has_an_answer_for_each_call(work: Any) -> None:
    """P2, P6: a sibling that ends the run cuts the others at once, and the history says so."""

    async def hopeless(n: int) -> str:
        await work.until(started=2, settled=0)
        raise ModelRetry("once more, please")

    stuck = work.functions[1]
    script = Script(("stuck", 1), ("hopeless", 2))
    agent = Agent(
        script.model,
        tools=[stuck, Tool(hopeless, max_retries=0)],
        capabilities=[ToolBatches(work.runner(interrupt_grace=framework_work.LIVENESS))],
    )
    with capture_run_messages() as history, pytest.raises(UnexpectedModelBehavior):
        await agent.run("work")
    assert not work.gate.is_set()
    assert [answer[:2] for answer in answers_in(history)] == [("c0", "interrupted")]


class Impatient(AbstractCapability[Any]):
    """Another capability, with a time limit of its own for all calls but the quick ones."""

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        try:
            async with asyncio.timeout(None if call.tool_name == "quick" else 0.05):
                return await handler(args)
        except TimeoutError:
            return "too slow"


@pytest.mark.parametrize("is_first", [False, True])
async def test_hooks_of_other_capabilities_can_cancel_a_call(
    work: Any, is_first: bool
) -> None:
    """P8: the cancellation comes to them, the call is cut, and its siblings go on."""
    quick, stuck, deaf, *_ = work.functions
    script = Script(("stuck", 1), ("quick", 2), ("deaf", 3))
    runner = work.runner()
    capabilities = [ToolBatches(runner), Impatient()]
    agent = Agent(
        script.model,
        tools=[stuck, quick, deaf],
        capabilities=capabilities[::-1] if is_first else capabilities,
    )
    await agent.run("work")
    assert not work.gate.is_set()
    assert script.answers() == [
        ("c0", "success", "too slow"),
        ("c1", "success", "quick 2"),
        ("c2", "success", "too slow"),
    ]
    assert {result.status.value for result in work.results} == {"completed", "interrupted"}


async def test_tools_that_are_searched_for_are_calls_like_others(work: Any) -> None:
    """P1: pydantic-ai's own search stands between, and is a call itself."""
    quick = work.functions[0]
    script = Script(("search_tools", 1))
    agent = Agent(
        FunctionModel(searching(script)),
        tools=[Tool(quick, defer_loading=True)],
        capabilities=[ToolBatches(work.runner(), options={"quick": {"writes": "file"}})],
    )
    await agent.run("work")
    assert script.answers()[-1] == ("c1", "success", "quick 2")
    assert work.started == ["search_tools", "quick"]


def searching(script: Script) -> Any:
    calls = [
        ToolCallPart("search_tools", {"queries": ["answer"]}, tool_call_id="c0"),
        ToolCallPart("quick", {"n": 2}, tool_call_id="c1"),
    ]

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        script.requests.append(messages)
        step = len(script.requests) - 1
        part = calls[step] if step < len(calls) else TextPart("good")
        return ModelResponse(parts=[part])

    return answer


async def test_subclasses_and_their_state_are_kept(work: Any) -> None:
    """P1: a capability of one's own may have arguments of its own."""

    class Named(ToolBatches):
        def __init__(self, runner: Any, name: str) -> None:
            super().__init__(runner)
            self.name = name

    script = Script(("quick", 1))
    named = Named(work.runner(), "mine")
    await Agent(script.model, tools=work.functions, capabilities=[named]).run("work")
    assert script.answers() == [("c0", "success", "quick 1")]


def test_arguments_of_the_wrong_kind_are_an_error_at_once() -> None:
    """P1: here, and not deep in a run."""
    work = framework_work.Work()
    runner: Any = framework_work.ToolRunner  # the class
    with pytest.raises(TypeError, match="runner must be a ToolRunner, not type"):
        ToolBatches(runner)
    with pytest.raises(ValueError, match="timeout must be"):
        ToolBatches(work.runner(), timeout=-1)


async def test_options_for_no_tool_are_an_error_before_the_model_is_asked(work: Any) -> None:
    """P1: a name that is misspelled says so, and what the names are."""
    script = Script(("quick", 1))
    agent = agent_for(script, work, work.runner(), options={"quik": {"writes": "file"}})
    with pytest.raises(ValueError, match=r"no tool named 'quik' \(known: .*quick.*\)"):
        await agent.run("work")
    assert script.requests == []


async def test_options_may_be_for_a_tool_that_is_hidden_now(work: Any) -> None:
    """P1: a tool's `prepare` may show it in a later step."""

    async def hide(ctx: Any, definition: Any) -> None:
        return None

    quick, stuck, *_ = work.functions
    script = Script(("quick", 1))
    agent = agent_for(
        script,
        work,
        work.runner(),
        tools=[quick, Tool(stuck, prepare=hide)],
        options={"stuck": {"writes": "file"}},
    )
    await agent.run("work")
    assert script.answers() == [("c0", "success", "quick 1")]


@pytest.mark.parametrize(
    "options",
    [
        {"quick": {"write": "file"}},
        {"quick": {"timeout": "soon"}},
        {"quick": {"name": "slow"}},
        {"quick": "file"},
        "quick",
    ],
)
def test_options_that_no_tool_takes_are_an_error_at_once(work_less: Any, options: Any) -> None:
    """P1: before there is an agent."""
    with pytest.raises(TypeError, match="options"):
        ToolBatches(work_less.runner(), options=options)


@pytest.fixture
def work_less() -> Any:  # for tests without a loop
    return framework_work.Work()


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
