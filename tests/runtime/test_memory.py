"""P10: nothing grows with the number of batches run."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections import Counter

import anyio
import pytest

from anyio_toolbatch import LateResult, ToolCall, ToolRunner, current_call
from anyio_toolbatch._runtime import threads
from anyio_toolbatch.testing import GatedTool, ScriptedTool, sleep

LIVENESS = 60.0
BATCHES = 300  # per round; a leak of one object a batch shows clearly


def census() -> Counter[str]:
    gc.collect()
    return Counter(type(o).__qualname__ for o in gc.get_objects())


async def drop_cancelled_timers() -> None:
    """
    Have asyncio let go of the timers that tools have left, cancelled, with their contexts.

    It does so when they are a hundred, and most of all that there are.
    """
    loop = asyncio.get_running_loop()
    for _ in range(200):
        loop.call_later(600, print).cancel()
    await anyio.sleep(0)


async def test_interrupted_batches_leave_no_growth(anyio_backend_name: str) -> None:
    """P10: objects, threads and descriptors stay as they were, batch after batch."""

    def cooperative() -> None:
        current_call().cancelled.wait(LIVENESS)

    scripted = ScriptedTool(sleep(600))
    calls = [
        ToolCall("0", "scripted"),
        ToolCall("1", "cooperative"),
        ToolCall("2", "quick"),
        ToolCall("3", "cooperative"),
    ]
    tools = {"scripted": scripted.tool, "cooperative": cooperative, "quick": lambda: 1}

    async def some_batches(runner: ToolRunner) -> None:
        for _ in range(BATCHES):
            async with runner.open_batch(calls, timeout=600) as batch:
                await anyio.sleep(0)
                batch.interrupt()
            assert len(batch.results) == 4
        assert await runner.wait_detached(LIVENESS)
        # Each that is just leaving holds its last call, and by it a batch.
        with anyio.fail_after(LIVENESS):
            while threads.at_work:
                await anyio.sleep(0.01)
        if anyio_backend_name == "asyncio":
            await drop_cancelled_timers()

    async with ToolRunner(tools, max_threads=2, max_detached=10_000) as runner:
        await some_batches(runner)
        before = census()
        descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc") else 0
        thread_count = threading.active_count()
        await some_batches(runner)
        after = census()
        # Idle ones stay for a while, as many as were on their way out at once: that
        # is for the machine's load to say, and not for the number of batches.
        assert threading.active_count() < thread_count + BATCHES // 4
        if descriptors:
            assert len(os.listdir("/proc/self/fd")) <= descriptors
        grown = {
            name: count - before[name]
            for name, count in after.items()
            if count - before[name] >= BATCHES // 4
        }
        assert grown == {}
        assert runner.statistics().detached == ()


@pytest.mark.parametrize("hook", [True, False])
async def test_late_value_is_free_at_once(hook: bool) -> None:
    """P10: a value that comes late is not kept by anything of ours."""

    class Value:
        pass

    made: list[weakref.ref[Value]] = []

    def make() -> Value:
        value = Value()
        made.append(weakref.ref(value))
        return value

    def on_late(late: LateResult) -> None:
        assert isinstance(late.value, Value)

    gate = GatedTool(value=make)
    async with ToolRunner([gate.tool], on_late=on_late if hook else None) as runner:
        async with runner.open_batch([ToolCall("0", "gated")]) as batch:
            await gate.wait_started()
            batch.interrupt()
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        with anyio.fail_after(LIVENESS):
            while made[0]() is not None:  # the worker may still be on its way out
                await anyio.sleep(0.001)
        assert batch.results[0].value is None
