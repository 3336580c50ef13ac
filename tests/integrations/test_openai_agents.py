"""OpenAI Agents SDK: calls of function tools are a runner's, one by one."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    Usage,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import ModelBehaviorError
from agents.tool_context import ToolContext
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from anyio_toolbatch.integrations.openai_agents import runner_tools

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

set_tracing_disabled(True)
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


class Script(Model):
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    def __init__(self, *calls: tuple[str, Any]) -> None:
        self.calls = calls
        self.requests: list[Any] = []

    def output(self, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        self.requests.append(args[1] if args else options["input"])
        if self.requests[1:]:
            text = ResponseOutputText(text="good", type="output_text", annotations=[])
            return [
                ResponseOutputMessage(
                    id="m",
                    role="assistant",
                    status="completed",
                    type="message",
                    content=[text],
                )
            ]
        return [
            ResponseFunctionToolCall(
                name=name,
                arguments=n if isinstance(n, str) else json.dumps({"n": n}),
                call_id=f"c{index}",
                type="function_call",
            )
            for index, (name, n) in enumerate(self.calls)
        ]

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        return ModelResponse(
            output=self.output(args, options), usage=Usage(), response_id=None
        )

    async def stream_response(self, *args: Any, **options: Any) -> Any:
        response = Response(
            id="r",
            created_at=0,
            model="script",
            object="response",
            output=self.output(args, options),
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(
            type="response.completed", sequence_number=0, response=response
        )

    def answers(self) -> list[tuple[str, Any]]:
        """What the last request has of tool results: call, output."""
        return outputs(self.requests[-1])


def outputs(items: Any) -> list[tuple[str, Any]]:
    return [
        (item["call_id"], item["output"])
        for item in items
        if item.get("type") == "function_call_output"
    ]


def agent_for(script: Script, work: Any, runner: Any, **options: Any) -> Agent[Any]:
    tools = runner_tools(runner, options.pop("tools", work.functions), **options)
    return Agent(name="worker", model=script, tools=tools)


async def test_interrupt_answers_every_call_and_the_agent_goes_on(work: Any) -> None:
    """P1, P2, P3, P6: finished results are real, the rest says what happened."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    runner = work.runner()
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=2)
            assert runner.interrupt("enough") == 2  # each call is a batch of its own

        group.start_soon(stop)
        result = await Runner.run(agent, "work")
    assert result.final_output == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    assert script.answers() == [
        ("c0", "quick 1"),
        ("c1", CUT),
        ("c2", CUT),
        ("c3", "quick 4"),
    ]
    assert set(work.daemons) == {True}


async def streamed(agent: Any, session: Any) -> Any:
    result = Runner.run_streamed(agent, "work", session=session)

    async def consume() -> None:
        async for _ in result.stream_events():
            pass

    return result, asyncio.ensure_future(consume())


async def test_stopped_after_its_turn_and_interrupted_the_session_has_it_all(
    work: Any,
) -> None:
    """P2, P3: the SDK's own orderly end need not wait for the tools any more."""
    script = Script(("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    runner = work.runner()
    session = SQLiteSession("1")
    agent = agent_for(script, work, runner)
    result, task = await streamed(agent, session)
    await work.until(started=4, settled=2)
    result.cancel(mode="after_turn")
    runner.interrupt("enough")
    await task
    assert not work.gate.is_set()
    assert len(script.requests) == 1
    await Runner.run(agent, "go on", session=session)
    assert script.answers() == [
        ("c0", "quick 1"),
        ("c1", CUT),
        ("c2", CUT),
        ("c3", "quick 4"),
    ]


@pytest.mark.parametrize("how", ["task", "stream"])
async def test_cancelled_run_ends_at_once_and_the_session_stays_valid(
    work: Any, how: str
) -> None:
    """P2, P8: the SDK rolls the turn back; that is its own, and nothing is left open."""
    script = Script(("quick", 1), ("stuck", 2), ("quick", 3))
    session = SQLiteSession("1")
    agent = agent_for(script, work, work.runner())
    if how == "stream":
        result, task = await streamed(agent, session)
        await work.until(started=3, settled=2)
        result.cancel()
        await task
    else:
        task = asyncio.ensure_future(Runner.run(agent, "work", session=session))
        await work.until(started=3, settled=2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not work.gate.is_set()
    await Runner.run(agent, "go on", session=session)
    assert [item.get("type") for item in script.requests[-1]] == [None, None]


async def test_nothing_late_lands(work: Any) -> None:
    """P5: what a call gives after the stop is in no later request."""
    script = Script(("stuck", 1))
    late: list[Any] = []
    runner = work.runner(on_late=late.append)
    session = SQLiteSession("1")
    agent = agent_for(script, work, runner)
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        await Runner.run(agent, "work", session=session)
    work.gate.set()
    await runner.wait_detached(framework_work.LIVENESS)
    await Runner.run(agent, "go on", session=session)
    assert script.answers() == [("c0", CUT)]
    assert [result.value for result in late] == ["late 1"]


async def test_a_tool_s_failure_is_its_own(work: Any) -> None:
    """P8: an exception, and a cancellation that a tool invents, harm no sibling."""
    script = Script(("broken", 1), ("rogue", 2), ("quick", 3), ("quick", '{"n": "four"}'))
    await Runner.run(agent_for(script, work, work.runner()), "work")
    answers = script.answers()
    assert [answer[0] for answer in answers] == ["c0", "c1", "c2", "c3"]
    assert answers[0][1].startswith("An error occurred")  # the SDK shows no more
    assert answers[2][1] == "quick 3"
    assert len([result for result in work.results if result.call.name == "quick"]) == 2


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
async def test_what_would_end_the_run_is_a_failure_of_its_call(
    work: Any, error: type[BaseException]
) -> None:
    """P8: a task of the SDK that raises one of these takes the event loop with it."""

    async def leave(n: int) -> str:
        raise error

    script = Script(("leave", 1), ("quick", 2))
    tools = [leave, *work.functions]
    await Runner.run(agent_for(script, work, work.runner(), tools=tools), "work")
    assert script.answers() == [("c0", error.__name__), ("c1", "quick 2")]


async def test_what_the_user_wants_of_a_tool_s_exception_is_done(work: Any) -> None:
    """P6: without an error function the SDK ends the run with it, as always."""
    *_, broken, _ = work.functions
    script = Script(("broken", 1))
    tools = [function_tool(broken, failure_error_function=None)]
    agent = agent_for(script, work, work.runner(), tools=tools)
    with pytest.raises(Exception, match="no 1 here"):
        await Runner.run(agent, "work")


@pytest.mark.parametrize("arguments", ["{bad", "[1]", '{"n": "one"}'])
async def test_what_the_user_wants_of_broken_arguments_is_done(
    work: Any, arguments: str
) -> None:
    """P1: the tool's own error function words the answer, and the function is never called."""
    seen: list[Exception] = []

    def say(ctx: Any, error: Exception) -> str:
        seen.append(error)
        return "as JSON, please"

    called: list[int] = []

    def quick(n: int) -> str:
        """Answer."""
        called.append(n)
        return "quick"

    script = Script(("quick", arguments))
    tools = [function_tool(quick, failure_error_function=say)]
    await Runner.run(agent_for(script, work, work.runner(), tools=tools), "work")
    assert script.answers() == [("c0", "as JSON, please")]
    assert [type(error) for error in seen] == [ModelBehaviorError]
    assert called == []


def test_what_is_no_runner_is_an_error_at_once() -> None:
    """P1: here, and not deep in a run."""
    runner: Any = framework_work.ToolRunner  # the class
    with pytest.raises(TypeError, match="runner must be a ToolRunner, not type"):
        runner_tools(runner, [])


def test_options_for_no_tool_are_an_error_at_once() -> None:
    """P1: a name that is misspelled says so, and what the names are."""
    work = framework_work.Work()
    with pytest.raises(ValueError, match=r"no tool named 'quik' \(known: quick\)"):
        runner_tools(work.runner(), work.functions[:1], options={"quik": {}})
    with pytest.raises(TypeError, match=r"options\['quick'\].*'write'"):
        runner_tools(work.runner(), work.functions[:1], options={"quick": {"write": "file"}})


async def test_tools_have_their_context(work: Any) -> None:
    """P1: the SDK's own context, and plain functions in threads see it too."""

    @function_tool
    def who(ctx: RunContextWrapper[Any], n: int) -> str:
        """Say who asks."""
        assert isinstance(ctx, ToolContext)
        return f"{ctx.context} {ctx.tool_call_id}"

    script = Script(("who", 1))
    agent = agent_for(script, work, work.runner(), tools=[who])
    await Runner.run(agent, "work", context="me")
    assert script.answers() == [("c0", "me c0")]


async def test_options_and_approval_reach_the_calls(work: Any) -> None:
    """P6: tools get the library's own options by name, and the runner asks as always."""
    asked: list[Any] = []

    def approve(call: Any) -> str:
        asked.append(call)
        return "not today"

    script = Script(("quick", 1))
    runner = work.runner(approve=approve)
    agent = agent_for(script, work, runner, options={"quick": {"writes": "file"}})
    await Runner.run(agent, "work")
    assert "not today" in script.answers()[0][1]
    assert asked[0].arguments == {"n": 1}
    assert asked[0].tool.writes == ("file",)


async def test_the_sdk_s_time_limit_lets_go_of_the_call(work: Any) -> None:
    """P2: also of one that is deaf."""
    _, _, deaf, *_ = work.functions
    script = Script(("deaf", 1))
    tools = [function_tool(deaf, timeout=0.05)]
    await Runner.run(agent_for(script, work, work.runner(), tools=tools), "work")
    assert not work.gate.is_set()
    assert "timed out" in script.answers()[0][1]


def test_other_tools_and_the_originals_are_left_alone() -> None:
    """P10: what is no function tool goes through; a tool is copied, not changed."""
    hosted = WebSearchTool()
    work = framework_work.Work()
    original = function_tool(work.functions[0])
    invoke = original.on_invoke_tool
    found = runner_tools(work.runner(), [hosted, original])
    assert found[0] is hosted
    assert found[1] is not original
    assert original.on_invoke_tool is invoke


def test_trio_is_refused_clearly() -> None:
    """P9: the SDK's own loop fails there before; a tool by itself says why."""
    work = framework_work.Work()
    (tool,) = runner_tools(work.runner(), work.functions[:1])
    context = ToolContext(None, tool_name="quick", tool_call_id="c0", tool_arguments="{}")
    with pytest.raises(RuntimeError, match="OpenAI Agents SDK runs on asyncio only"):
        anyio.run(tool.on_invoke_tool, context, '{"n": 1}', backend="trio")
