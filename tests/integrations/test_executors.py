"""Where a framework's blocking functions run: no pool is joined, and each answer comes."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch.integrations._frameworks import run_inline
from anyio_toolbatch.integrations._worker_executor import WorkerExecutor

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
framework_work: Any = importlib.import_module("framework_work")

Way = Callable[[Callable[[], Any]], Awaitable[Any]]


async def inline(function: Callable[[], Any]) -> Any:
    return await run_inline(lambda: asyncio.to_thread(function))


async def in_a_worker(function: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(WorkerExecutor(), function)


@pytest.fixture(params=framework_work.ASYNCIO)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[inline, in_a_worker])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


async def test_what_the_function_gives_is_handed_on(way: Way) -> None:
    """P1: a value, or the very error."""
    error = ValueError("no")

    def fail() -> None:
        raise error

    assert await way(lambda: "yes") == "yes"
    with pytest.raises(ValueError, match="no") as caught:
        await way(fail)
    assert caught.value is error


async def test_a_stop_iteration_is_an_error_like_others(way: Way) -> None:
    """P1: asyncio's futures can't carry it, and nobody is to wait for ever."""
    with (
        anyio.fail_after(framework_work.LIVENESS),
        pytest.raises(RuntimeError, match="StopIteration") as caught,
    ):
        await way(lambda: next(iter(())))
    assert isinstance(caught.value.__cause__, StopIteration)
