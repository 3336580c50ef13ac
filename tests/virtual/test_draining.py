"""§4.4: each call that was told to stop is looked after by its own clock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import pytest
import trio

from anyio_toolbatch import ToolCall, ToolRunner
from anyio_toolbatch.testing import DeafTool


def timers_left() -> int:
    """Return how many timers the loop has, or whether trio has any deadline."""
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return int(left != math.inf)
    return sum(not handle.cancelled() for handle in loop._scheduled)


async def test_each_call_has_its_own_pause() -> None:
    """§4.4: a call that is told later has its whole `cleanup_grace`, too."""
    first, second = DeafTool("first"), DeafTool("second")
    runner = ToolRunner([first.tool, second.tool], cleanup_grace=4.0)
    async with runner.open_batch() as batch:
        handles = [batch.submit(ToolCall(name, name)) for name in ("first", "second")]
        await anyio.wait_all_tasks_blocked()
        try:
            handles[0].cancel()
            await anyio.sleep(3)
            handles[1].cancel()
            await anyio.sleep(3)  # at 6: the first has had its pulse at 4
            assert (first.cancellations, second.cancellations) == (2, 1)
            await anyio.sleep(2)  # at 8: the second has had its own at 7
            assert (first.cancellations, second.cancellations) == (2, 2)
            await anyio.sleep(6)  # at 14: the first has had its next at 12
            assert (first.cancellations, second.cancellations) == (3, 2)
        finally:
            first.release()
            second.release()
    assert await runner.wait_detached(1)
    await anyio.wait_all_tasks_blocked()
    assert timers_left() == 0


async def test_cancellation_that_does_not_arrive_spins_for_no_call(
    anyio_backend_name: str,
) -> None:
    """§4.4: the shield of a call that is told later goes up in its own time."""
    if anyio_backend_name != "asyncio":
        pytest.skip("only asyncio has tasks that a cancellation can get stuck behind")
    deaf = DeafTool("deaf")
    released = asyncio.Event()
    cancelled_at: list[float] = []

    async def child() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                cancelled_at.append(anyio.current_time())

    async def stuck() -> None:
        await asyncio.create_task(child())

    runner = ToolRunner([deaf.tool, stuck], cleanup_grace=4.0)
    async with runner.open_batch() as batch:
        handles = [batch.submit(ToolCall(name, name)) for name in ("deaf", "stuck")]
        await anyio.wait_all_tasks_blocked()
        try:
            handles[0].cancel()
            await anyio.sleep(1)
            told_at = anyio.current_time()
            handles[1].cancel()
            await anyio.sleep(3)  # the pulse of the first comes after these
            assert 0 <= cancelled_at[-1] - told_at < 1
        finally:
            released.set()
            deaf.release()
    assert await runner.wait_detached(1)
    await anyio.wait_all_tasks_blocked()
    assert timers_left() == 0
