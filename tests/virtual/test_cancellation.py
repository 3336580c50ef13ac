"""§4.4: an async tool gets one cancellation, then a pause in which its awaits work."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import ToolCall, ToolRunner, on_cancel
from anyio_toolbatch.testing import DeafTool, ScriptedTool, clean_up_for, shielded_for, sleep


async def interrupted(
    tool: Any, *, cleanup_grace: float = 5.0, wait: float = 3600.0
) -> ToolRunner:
    """Start one call, cut it, and wait until its work has really ended."""
    runner = ToolRunner({"tool": tool}, cleanup_grace=cleanup_grace)
    async with runner.open_batch([ToolCall("1", "tool")]) as batch:
        await anyio.sleep(1)
        before = anyio.current_time()
        batch.interrupt()
    assert anyio.current_time() - before < 0.01, "the turn waited for the tool"
    assert batch.results[0].detached
    assert await runner.wait_detached(wait), "the tool never ended"
    return runner


async def test_ordinary_clean_up_completes() -> None:
    """§4.4: ``finally: await close()`` is cancelled once, and runs to its end."""
    tool = ScriptedTool(clean_up_for(3), sleep(600))
    await interrupted(tool.tool)
    assert tool.cleaned_up == 1


async def test_deaf_tool_sees_few_cancellations() -> None:
    """§4.4, T22: pulses come after a pause that doubles, not on every pass."""
    deaf = DeafTool()
    runner = ToolRunner([deaf.tool], cleanup_grace=1.0)
    async with runner.open_batch([ToolCall("1", "deaf")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    await anyio.sleep(0.5)
    assert deaf.cancellations == 1
    await anyio.sleep(1)  # 1.5 s after the cut: one pulse at 1 s
    assert deaf.cancellations == 2
    await anyio.sleep(2)  # 3.5 s: the next at 3 s, or a little later
    assert deaf.cancellations == 3
    await anyio.sleep(60)
    assert deaf.cancellations <= 7
    deaf.release()
    assert await runner.wait_detached(10)


async def test_own_shield_is_left_alone_and_cut_after() -> None:
    """§4.4: a tool in a shield of its own is cancelled when it leaves it."""
    tool = ScriptedTool(shielded_for(20), sleep(600))
    await interrupted(tool.tool)
    assert tool.ended == 1


async def test_own_deadline_in_the_same_moment_does_not_swallow_the_cut() -> None:
    """§4.4 case 1: the tool's own scope does not take our cancellation for its own."""
    went_on: list[str] = []

    async def tool() -> None:
        with anyio.move_on_after(1):  # the very moment of the cut
            await anyio.sleep(600)
        await anyio.sleep(600)
        went_on.append("never cancelled")

    await interrupted(tool, wait=4)  # before it is told a second time
    assert went_on == []


async def test_own_scope_that_a_callback_cancels_does_not_swallow_the_cut() -> None:
    """§4.4 case 1: both cancellations are under way when the tool is resumed."""

    async def tool() -> None:
        with anyio.CancelScope() as scope:
            on_cancel(scope.cancel)
            await anyio.sleep(600)
        await anyio.sleep(600)

    await interrupted(tool, wait=4)  # before it is told a second time


async def test_own_deadline_before_the_cut_is_its_own() -> None:
    """§4.4: the cancellation of a tool's own scope is not taken for ours."""

    async def tool() -> str:
        with anyio.move_on_after(0.5):
            await anyio.sleep(600)
        await anyio.sleep(0.1)
        return "value"

    results = await ToolRunner([tool]).run([ToolCall("1", "tool")])
    assert results[0].value == "value"


async def test_task_group_of_the_tool_is_cut_with_its_children() -> None:
    """§4.4 case 2: a tool's own task group neither swallows the cut nor leaves children."""
    ended: list[str] = []

    async def child(name: str) -> None:
        try:
            await anyio.sleep(600)
        finally:
            ended.append(name)

    async def tool() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child, "a")
            group.start_soon(child, "b")
            await anyio.sleep(600)
        await anyio.sleep(600)
        ended.append("swallowed")

    await interrupted(tool, wait=300)
    assert sorted(ended) == ["a", "b"]


async def test_waiting_inside_the_end_of_a_task_group() -> None:
    """§4.4 case 2: the same when the tool waits for its children at the block's end."""
    ended: list[str] = []

    async def child() -> None:
        try:
            await anyio.sleep(600)
        finally:
            ended.append("child")

    async def tool() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        ended.append("swallowed")

    await interrupted(tool, wait=300)
    assert ended == ["child"]


async def test_clean_up_may_use_scopes_and_checkpoints() -> None:
    """§4.4: after the one cancellation anyio's own functions work as usual."""
    done: list[str] = []

    async def tool() -> None:
        try:
            await anyio.sleep(600)
        finally:
            await anyio.lowlevel.checkpoint_if_cancelled()
            with anyio.move_on_after(1) as scope:
                await anyio.sleep(600)
            assert scope.cancelled_caught
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 1)
            with anyio.fail_after(10):
                await anyio.sleep(1)
            done.append("cleaned up")

    await interrupted(tool)
    assert done == ["cleaned up"]


async def test_swallowed_once_then_ends_by_the_next_pulse() -> None:
    """§4.4: what goes on after the first cancellation gets another."""
    seen: list[float] = []

    async def tool() -> None:
        start = anyio.current_time()
        for _ in range(3):
            try:
                await anyio.sleep(600)
            except anyio.get_cancelled_exc_class():
                seen.append(anyio.current_time() - start)
                if len(seen) == 3:
                    raise

    await interrupted(tool, cleanup_grace=2.0)
    assert [round(at) for at in seen] == [1, 3, 7]


async def test_every_moment_of_a_tool_can_be_cut() -> None:
    """§4.4: wherever the cut comes, the tool ends and its ``finally`` completes."""
    for moment in range(24):
        cleaned: list[int] = []

        async def tool(cleaned: list[int] = cleaned) -> None:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep, 2)
                    with anyio.move_on_after(1):
                        await anyio.sleep(600)
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(1)
                    await anyio.lowlevel.checkpoint()
                await anyio.sleep(600)
            finally:
                cleaned.append(1)
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.5)
                cleaned.append(2)

        runner = ToolRunner([tool])
        async with runner.open_batch([ToolCall("1", "tool")]) as batch:
            await anyio.sleep(moment / 8)
            batch.interrupt()
        assert await runner.wait_detached(60), f"cut at {moment / 8} s: never ended"
        assert cleaned in ([], [1, 2]), f"cut at {moment / 8} s: {cleaned}"
        assert bool(cleaned) == batch.results[0].started


async def test_value_of_a_tool_that_swallows_the_cut_is_late() -> None:
    """P5: what a deaf async tool returns after the cut goes to `on_late` alone."""
    late: list[Any] = []
    deaf = DeafTool(value="too late")
    runner = ToolRunner([deaf.tool], on_late=late.append)
    async with runner.open_batch([ToolCall("1", "deaf")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    await anyio.sleep(2)
    deaf.release()
    assert await runner.wait_detached(10)
    assert batch.results[0].value is None
    assert [(x.value, x.error, x.index, x.batch_id) for x in late] == [
        ("too late", None, 0, batch.id)
    ]
    assert late[0].late_by == pytest.approx(2, abs=0.2)
    assert runner.statistics().late_results == 1


async def test_tool_that_ends_by_our_cancellation_is_not_late() -> None:
    """§3.2: a call that ends by our own cancellation is no late result."""
    late: list[Any] = []
    runner = ToolRunner([ScriptedTool(sleep(600)).tool], on_late=late.append)
    async with runner.open_batch([ToolCall("1", "scripted")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    assert await runner.wait_detached(10)
    assert late == []
    assert runner.statistics().late_results == 0
