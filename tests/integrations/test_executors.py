"""Where a framework's blocking functions run: in workers, as in a pool that nobody joins."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    CallStarted,
    Tool,
    ToolCall,
    ToolResult,
    current_call,
    from_thread,
    open_batch,
    run_batch,
)
from anyio_toolbatch.integrations._worker_executor import WorkerExecutor, keep_from_pool

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

Way = Callable[[Callable[[], Any]], Awaitable[ToolResult]]

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


async def run_tool(function: Callable[..., Any], **options: Any) -> ToolResult:
    with anyio.fail_after(framework_work.LIVENESS):
        (result,) = await run_batch(
            [ToolCall("1", "tool")], [Tool(function, name="tool", **options)]
        )
    return result


async def from_a_worker(function: Callable[[], Any]) -> ToolResult:
    """As a framework does whose tool is a plain function."""

    async def tool() -> Any:
        return await keep_from_pool(lambda: asyncio.to_thread(function))

    return await run_tool(tool, runs_in="thread")


async def from_the_loop(function: Callable[[], Any]) -> ToolResult:
    """As pydantic-ai does behind a toolset that is not its own."""

    async def tool() -> Any:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(WorkerExecutor(), context.run, function)

    return await run_tool(tool)


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[from_a_worker, from_the_loop])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


async def test_what_the_function_gives_is_handed_on(way: Way) -> None:
    """P1: a value, or the very error."""
    error = ValueError("no")

    def fail() -> None:
        raise error

    assert (await way(lambda: "yes")).value == "yes"
    assert (await way(fail)).error is error


async def test_a_stop_iteration_is_an_error_like_others(way: Way) -> None:
    """P1: asyncio's futures can't carry it, and nobody is to wait for ever."""
    error = (await way(lambda: next(iter(())))).error
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, StopIteration)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_the_function_may_start_a_loop_of_its_own(way: Way, backend: str) -> None:
    """P9: as it may in a pool's thread: many a plain tool is an async one inside."""

    async def inside() -> str:
        await anyio.sleep(0)
        return "inside"

    result = await way(lambda: anyio.run(inside, backend=backend))
    assert result.error is None
    assert result.value == "inside"


async def test_the_function_is_in_its_call(way: Way) -> None:
    """P5, P7: what it sees of its call, and that no exit waits for its thread."""
    variable.set("the submitter's")

    async def on_the_loop() -> int:
        return threading.get_ident()

    def look() -> Any:
        thread = threading.current_thread()
        there = from_thread.run(on_the_loop)
        return current_call().call.id, variable.get(), thread.daemon, there

    assert (await way(look)).value == ("1", "the submitter's", True, threading.get_ident())


async def test_a_function_does_not_begin_in_a_call_that_was_cut() -> None:
    """P4: not even one that was on its way to its thread."""
    begun: list[int] = []
    through = threading.Event()

    async def late_for_its_thread() -> None:
        current_call().cancelled.wait(framework_work.LIVENESS)
        try:
            await asyncio.to_thread(begun.append, 1)
        finally:
            through.set()

    async def tool() -> None:
        await keep_from_pool(late_for_its_thread)

    call = ToolCall("1", "tool", tool=Tool(tool, runs_in="thread"))
    async with open_batch([call]) as batch:
        async for event in batch.events():
            if isinstance(event, CallStarted):
                batch.interrupt()
    await asyncio.to_thread(through.wait, framework_work.LIVENESS)
    assert through.is_set()
    assert begun == []
