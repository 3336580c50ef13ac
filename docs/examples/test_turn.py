"""
Tests of one turn of an agent, without a model and without sleeping.
"""

import anyio
import pytest

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.formats import openai_chat
from anyio_toolbatch.testing import AsyncGatedTool, GatedTool, PromiseObserver

# -- what is to be tested


async def turn(runner: ToolRunner, message: dict, history: list) -> None:
    """Answer the calls of a model's message."""
    history.append(message)
    results = await runner.run(openai_chat.parse_calls(message))
    history.extend(openai_chat.render_results(results))


# -- the tests


MESSAGE = {
    "role": "assistant",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}},
        {
            "id": "b",
            "type": "function",
            "function": {"name": "write_report", "arguments": "{}"},
        },
    ],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_stop_keeps_the_answer_that_is_there() -> None:
    search = AsyncGatedTool("search", value="3 pages")
    write_report = GatedTool("write_report")
    history: list = []
    async with ToolRunner([search.tool, write_report.tool]) as runner:
        async with anyio.create_task_group() as group:
            group.start_soon(turn, runner, MESSAGE, history)
            await write_report.wait_started()
            search.open()
            await search.wait_ended()
            runner.interrupt("stop")

        answers = {item["tool_call_id"]: item["content"] for item in history[1:]}
        assert answers["a"] == "3 pages"
        assert "interrupted by the user (stop)" in answers["b"]
        write_report.open()  # its thread may go


@pytest.mark.anyio
async def test_nothing_of_a_stopped_turn_lands_in_the_next() -> None:
    search = AsyncGatedTool("search", value="3 pages")
    write_report = GatedTool("write_report", value="12 pages")
    promises, late, history = PromiseObserver(), [], []
    tools = [search.tool, write_report.tool]
    async with ToolRunner(tools, observers=[promises], on_late=late.append) as runner:
        async with anyio.create_task_group() as group:
            group.start_soon(turn, runner, MESSAGE, history)
            await write_report.wait_started()
            runner.interrupt()

        before = list(history)
        write_report.open()
        await runner.wait_detached()
        assert history == before
        assert [result.value for result in late] == ["12 pages"]
    promises.check()
