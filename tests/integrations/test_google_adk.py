"""Google ADK: calls of an agent's tools are a runner's, one by one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("google.adk")

from google.adk.agents import Agent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types
from pydantic import Field

from anyio_toolbatch.integrations.google_adk import runner_tools

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

CUT = {
    "error": "Tool call interrupted by the user (enough) before it finished. "
    "It may have had side effects; its outcome is unknown."
}

# ADK tells of its own experimental parts.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def work() -> AsyncIterator[Any]:  # async: its gates open before the loop ends
    with framework_work.at_work() as made:
        yield made


class Script(BaseLlm):
    """A model that asks for the calls, then says "good"; it notes what it gets."""

    calls: list[tuple[str, Any]]
    requests: list[list[Any]] = Field(default_factory=list)

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.requests.append([p for c in llm_request.contents for p in c.parts])
        parts = [types.Part(text="good")]
        if len(self.requests) == 1:
            parts = [
                types.Part(
                    function_call=types.FunctionCall(name=name, args={"n": n}, id=f"c{index}")
                )
                for index, (name, n) in enumerate(self.calls)
            ]
        yield LlmResponse(content=types.Content(role="model", parts=parts))

    def answers(self) -> list[tuple[str, Any]]:
        """What the last request has of tool results: call, response."""
        found = [part.function_response for part in self.requests[-1]]
        return [(answer.id, answer.response) for answer in found if answer]


class Chat:
    """An agent and its one session."""

    def __init__(self, work: Any, runner: Any, *calls: Any, **options: Any) -> None:
        self.model = Script(model="script", calls=list(calls))
        tools = runner_tools(runner, options.pop("tools", work.functions), **options)
        agent = Agent(name="worker", model=self.model, tools=tools)
        self._adk = InMemoryRunner(agent, app_name="test")

    async def say(self, text: str, *, stop_after_tools: bool = False) -> list[Any]:
        sessions = self._adk.session_service
        ids = {"user_id": "me", "session_id": "1"}
        if await sessions.get_session(app_name="test", **ids) is None:
            await sessions.create_session(app_name="test", **ids)
        events = []
        message = types.UserContent(text)
        async with contextlib.aclosing(
            self._adk.run_async(**ids, new_message=message)
        ) as stream:
            async for event in stream:
                events.append(event)
                if stop_after_tools and event.get_function_responses():
                    break
        return events


async def test_interrupt_answers_every_call_and_the_agent_goes_on(work: Any) -> None:
    """P1, P2, P3, P6: finished results are real, the rest says what happened."""
    runner = work.runner()
    chat = Chat(work, runner, ("quick", 1), ("stuck", 2), ("deaf", 3), ("quick", 4))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=4, settled=2)
            assert runner.interrupt("enough") == 2  # each call is a batch of its own

        group.start_soon(stop)
        events = await chat.say("work")
    assert events[-1].content.parts[0].text == "good"
    assert not work.gate.is_set()  # nobody waited for the stuck ones
    assert chat.model.answers() == [
        ("c0", {"result": "quick 1"}),
        ("c1", CUT),
        ("c2", CUT),
        ("c3", {"result": "quick 4"}),
    ]
    assert set(work.daemons) == {True}


async def test_interrupted_and_left_after_the_tools_the_session_has_it_all(
    work: Any,
) -> None:
    """P2, P3: who stops reading events after the answers has them in the next request."""
    runner = work.runner()
    chat = Chat(work, runner, ("quick", 1), ("stuck", 2))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=2, settled=1)
            runner.interrupt("enough")

        group.start_soon(stop)
        await chat.say("work", stop_after_tools=True)
    assert len(chat.model.requests) == 1
    await chat.say("go on")
    assert chat.model.answers() == [("c0", {"result": "quick 1"}), ("c1", CUT)]


async def test_cancelled_run_ends_at_once_and_the_session_stays_valid(work: Any) -> None:
    """P2, P8: ADK drops the calls of that turn; that is its own, and none is left open."""
    chat = Chat(work, work.runner(), ("quick", 1), ("stuck", 2), ("deaf", 3))
    task = asyncio.ensure_future(chat.say("work"))
    await work.until(started=3, settled=1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.gate.is_set()
    await chat.say("go on")
    assert [part.text for part in chat.model.requests[-1]] == ["work", "go on"]


async def test_nothing_late_lands(work: Any) -> None:
    """P5: what a call gives after the stop is in no later request."""
    late: list[Any] = []
    runner = work.runner(on_late=late.append)
    chat = Chat(work, runner, ("stuck", 1))
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await work.until(started=1, settled=0)
            runner.interrupt("enough")

        group.start_soon(stop)
        await chat.say("work")
    work.gate.set()
    await runner.wait_detached(framework_work.LIVENESS)
    await chat.say("go on")
    assert chat.model.answers() == [("c0", CUT)]
    assert [result.value for result in late] == ["late 1"]


async def test_a_cancellation_that_a_tool_invents_is_its_own(work: Any) -> None:
    """P8: alone, ADK ends the run silently."""
    chat = Chat(work, work.runner(), ("rogue", 1), ("quick", 2))
    await chat.say("work")
    answers = chat.model.answers()
    assert "error" in answers[0][1]
    assert answers[1] == ("c1", {"result": "quick 2"})


async def test_a_tool_s_exception_is_adk_s_to_handle(work: Any) -> None:
    """P6: without a callback for it, ADK ends the run with it, as always."""
    chat = Chat(work, work.runner(), ("broken", 1))
    with pytest.raises(ValueError, match="no 1 here"):
        await chat.say("work")


async def test_tools_have_their_context(work: Any) -> None:
    """P1: ADK's own context, and plain functions in threads see it too."""

    def who(n: int, tool_context: ToolContext) -> str:
        """Say who asks."""
        return f"{tool_context.user_id} {tool_context.function_call_id}"

    chat = Chat(work, work.runner(), ("who", 1), tools=[who])
    await chat.say("work")
    assert chat.model.answers() == [("c0", {"result": "me c0"})]


async def test_options_and_approval_reach_the_calls(work: Any) -> None:
    """P6: tools get the library's own options by name, and the runner asks as always."""
    asked: list[Any] = []

    def approve(call: Any) -> str:
        asked.append(call)
        return "not today"

    runner = work.runner(approve=approve)
    chat = Chat(work, runner, ("quick", 1), options={"quick": {"writes": "file"}})
    await chat.say("work")
    assert "not today" in chat.model.answers()[0][1]["error"]
    assert asked[0].arguments == {"n": 1}
    assert asked[0].tool.writes == ("file",)


def test_toolsets_and_the_originals_are_left_alone() -> None:
    """P10: what is no tool goes through; a tool is copied, not changed."""

    class Toolset(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> Any:
            return []

    work = framework_work.Work()
    toolset = Toolset()
    original = FunctionTool(work.functions[0])
    found = runner_tools(work.runner(), [toolset, original])
    assert found[0] is toolset
    assert found[1] is not original
    assert "run_async" not in vars(original)


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


def test_trio_is_refused_clearly() -> None:
    """P9: ADK's own loop fails there before; a tool by itself says why."""
    work = framework_work.Work()
    (tool,) = runner_tools(work.runner(), work.functions[:1])

    async def main() -> None:
        await tool.run_async(
            args={"n": 1}, tool_context=SimpleNamespace(function_call_id="c0")
        )

    with pytest.raises(RuntimeError, match="Google ADK runs on asyncio only"):
        anyio.run(main, backend="trio")
