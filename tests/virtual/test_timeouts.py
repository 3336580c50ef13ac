"""§4.10: clocks, in virtual time."""

from __future__ import annotations

import anyio
import pytest

from anyio_toolbatch import ToolCall, ToolRunner, current_call, open_batch
from anyio_toolbatch.testing import (
    DeafTool,
    PromiseObserver,
    ScriptedTool,
    give,
    partial,
    progress,
    sleep,
)


async def test_call_timeout_runs_while_the_call_runs(promises: PromiseObserver) -> None:
    """§4.10: waiting for a slot does not count against the call's own limit."""
    tool = ScriptedTool(sleep(3), give("done"), timeout=4)
    runner = ToolRunner([tool.tool], max_concurrency=1, observers=[promises])
    start = anyio.current_time()
    results = await runner.run([ToolCall(str(i), "scripted") for i in range(4)])
    assert [r.value for r in results] == ["done"] * 4
    assert anyio.current_time() - start == pytest.approx(12, abs=0.5)
    assert [round(r.wait_time) for r in results] == [0, 3, 6, 9]
    assert [round(r.run_time) for r in results] == [3, 3, 3, 3]


async def test_call_timeout_cuts_one_call_and_frees_its_slot() -> None:
    """C6: the one that hangs times out; the others keep their real results."""
    hangs = ScriptedTool(partial("so far"), sleep(10_000), name="hangs", timeout=5)
    fine = ScriptedTool(sleep(1), give("fine"), name="fine")
    runner = ToolRunner([hangs.tool, fine.tool], max_concurrency=1)
    results = await runner.run(
        [ToolCall("0", "hangs"), ToolCall("1", "fine"), ToolCall("2", "fine")]
    )
    assert [r.status.value for r in results] == ["timed_out", "completed", "completed"]
    assert results[0].partial == "so far"
    assert results[0].reason is not None and results[0].reason.kind == "call_timeout"
    assert await runner.wait_detached(1)


async def test_batch_timeout_starts_at_opening() -> None:
    """§3.1: the batch's limit runs from its opening, also while calls still come."""
    tool = ScriptedTool(sleep(10_000))
    runner = ToolRunner([tool.tool])
    async with runner.open_batch(timeout=5) as batch:
        await anyio.sleep(4)
        first = batch.submit(ToolCall("0", "scripted"))
        await anyio.sleep(2)
        late = batch.submit(ToolCall("1", "scripted"))
        assert late.result is not None
    assert [r.status.value for r in batch.results] == ["timed_out", "timed_out"]
    assert [r.started for r in batch.results] == [True, False]
    assert first.result is not None and first.result.run_time == pytest.approx(1, abs=0.1)
    assert batch.reason is not None and batch.reason.kind == "batch_timeout"
    assert "user" not in batch.results[0].text  # P3: a limit is not a person


async def test_grace_applies_to_timeouts_too() -> None:
    """C5: the same grace for timeout and interrupt; what ends in it keeps its answer."""

    async def tidy() -> str:
        try:
            await anyio.sleep(10_000)
        except anyio.get_cancelled_exc_class():
            await anyio.sleep(0.5)
            return "saved what there was"
        return "unreachable"

    deaf = DeafTool()
    runner = ToolRunner([tidy, deaf.tool], interrupt_grace=2)
    start = anyio.current_time()
    async with runner.open_batch(
        [ToolCall("0", "tidy"), ToolCall("1", "deaf")], timeout=10
    ) as batch:
        pass
    assert anyio.current_time() - start == pytest.approx(12, abs=0.2)
    assert [r.value for r in batch.results] == ["saved what there was", None]
    assert batch.results[1].detached
    deaf.release()
    assert await runner.wait_detached(10)


async def test_one_grace_for_all_not_one_each() -> None:
    """§4.3: all running calls are waited for together."""
    deaf = DeafTool()
    runner = ToolRunner([deaf.tool], interrupt_grace=3)
    async with runner.open_batch([ToolCall(str(i), "deaf") for i in range(20)]) as batch:
        await anyio.sleep(1)
        start = anyio.current_time()
        batch.interrupt()
    assert anyio.current_time() - start == pytest.approx(3, abs=0.2)
    deaf.release()
    assert await runner.wait_detached(10)


async def test_second_interrupt_shortens_the_grace() -> None:
    """§3.1: a second interrupt can only shorten the grace."""
    deaf = DeafTool()
    runner = ToolRunner([deaf.tool], interrupt_grace=100)
    async with runner.open_batch([ToolCall("0", "deaf")]) as batch:
        await anyio.sleep(1)
        start = anyio.current_time()
        batch.interrupt()
        await anyio.sleep(1)
        batch.interrupt(grace=2)
        await anyio.sleep(1)
        batch.interrupt(grace=500)
    assert anyio.current_time() - start == pytest.approx(3, abs=0.2)
    deaf.release()
    assert await runner.wait_detached(10)


@pytest.mark.parametrize("shortened", [False, True])
async def test_each_cut_has_its_own_grace(shortened: bool) -> None:
    """P2, §4.3: calls that were cut one after the other are let go one after the other."""
    deaf = DeafTool()
    async with ToolRunner([deaf.tool], interrupt_grace=3) as runner:
        async with runner.open_batch([ToolCall(str(i), "deaf") for i in range(3)]) as batch:
            await anyio.sleep(1)
            batch.cancel("0")
            await anyio.sleep(1)
            batch.cancel("1")
            await anyio.sleep(1)
            if shortened:
                batch.interrupt(grace=100)
                batch.interrupt(grace=1.5)  # now there are three, and two are longer
            with anyio.move_on_after(20):
                await batch.wait()
            batch.interrupt(grace=0)
        ran = [1 + 3, 2 + 2.5, 3 + 1.5] if shortened else [1 + 3, 2 + 3, 3 + 20]
        assert [r.run_time for r in batch.results] == pytest.approx(ran, abs=0.1)
        assert all(r.detached for r in batch.results)
        kinds = [r.reason.kind for r in batch.results if r.reason is not None]
        # P6: the first reason of each stays.
        assert kinds == ["call_cancelled", "call_cancelled", "user_interrupt"]
        deaf.release()


async def test_grace_ends_early_when_all_have_ended() -> None:
    """§4.3: a grace is a limit, not a pause."""
    tool = ScriptedTool(sleep(10_000))
    runner = ToolRunner([tool.tool], interrupt_grace=50)
    async with runner.open_batch([ToolCall("0", "scripted")]) as batch:
        await anyio.sleep(1)
        start = anyio.current_time()
        batch.interrupt()
    assert anyio.current_time() - start < 1
    assert not batch.results[0].detached and batch.results[0].started


async def test_cancel_one_call_of_several(promises: PromiseObserver) -> None:
    """B5: the one is cut, the others go on and finish."""
    tool = ScriptedTool(progress(1, 2), sleep(5), give("done"))
    runner = ToolRunner([tool.tool], observers=[promises])
    async with runner.open_batch() as batch:
        handles = [batch.submit(ToolCall(f"c{i}", "scripted")) for i in range(3)]
        await anyio.sleep(1)
        assert handles[1].cancel("wrong city") is True
        assert handles[1].cancel("again") is False
        result = await handles[1].wait()
        assert result.reason is not None
        assert (result.reason.kind, result.reason.message) == ("call_cancelled", "wrong city")
    assert [r.value for r in batch.results] == ["done", None, "done"]
    assert not batch.interrupted and handles[0].cancel() is False


async def test_cancel_by_id_counts_duplicates() -> None:
    """§3.1, J5: ids are labels; all calls with that id are cut, and counted."""
    tool = ScriptedTool(sleep(5), give("done"))
    async with open_batch(tools=[tool.tool]) as batch:
        for call_id in ("x", "y", "x"):
            batch.submit(ToolCall(call_id, "scripted"))
        await anyio.sleep(1)
        assert batch.cancel("x") == 2
        assert batch.cancel("nobody") == 0
    assert [r.value for r in batch.results] == [None, "done", None]


async def test_cancelled_waiter_gives_its_place_back() -> None:
    """F15: a call that is cancelled while it waits is never started."""
    started: list[str] = []

    async def tool() -> str:
        started.append(current_call().call.id)
        await anyio.sleep(5)
        return "done"

    runner = ToolRunner([tool], max_concurrency=1)
    async with runner.open_batch() as batch:
        handles = [batch.submit(ToolCall(str(i), "tool")) for i in range(3)]
        await anyio.sleep(1)
        assert handles[1].cancel() is True
    assert [r.value for r in batch.results] == ["done", None, "done"]
    assert started == ["0", "2"]
    assert not batch.results[1].started


async def test_kept_call_goes_on_and_its_end_is_late() -> None:
    """§3.2 `on_interrupt="keep"`: not told to stop; its end goes to `on_late`."""
    late: list[object] = []
    tool = ScriptedTool(sleep(10), give("mail sent"), on_interrupt="keep")
    runner = ToolRunner([tool.tool], on_late=lambda result: late.append(result.value))
    async with runner.open_batch([ToolCall("0", "scripted")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    assert batch.results[0].detached
    assert "goes on in the background" in batch.results[0].text
    assert await runner.wait_detached(60)
    assert late == ["mail sent"]


async def test_time_limit_of_a_kept_call_goes_off_in_the_background() -> None:
    """§4.10: a call's timeout runs while it runs, also when its turn is over."""
    late: list[object] = []
    tool = ScriptedTool(sleep(10_000), timeout=60, on_interrupt="keep")
    runner = ToolRunner([tool.tool], on_late=lambda result: late.append(result.error))
    start = anyio.current_time()
    async with runner.open_batch([ToolCall("0", "scripted")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    assert "goes on in the background" in batch.results[0].text
    assert await runner.wait_detached(1000)
    assert anyio.current_time() - start == pytest.approx(60, abs=0.1)
    assert [type(error) for error in late] == [TimeoutError]


async def test_time_limit_of_a_kept_call_that_ends_is_taken_down() -> None:
    """§4.1: nothing of ours stays on the loop when a kept call has ended before its limit."""
    late: list[object] = []
    tool = ScriptedTool(sleep(10), give("mail sent"), timeout=60, on_interrupt="keep")
    runner = ToolRunner([tool.tool], on_late=lambda result: late.append(result.value))
    async with runner.open_batch([ToolCall("0", "scripted")]) as batch:
        await anyio.sleep(1)
        batch.interrupt()
    assert await runner.wait_detached(1000)
    assert batch._engine.records[0].timer is None
    assert late == ["mail sent"]


async def test_kept_call_can_still_be_cancelled_by_itself() -> None:
    """§3.2: "keep" wards off the end of the turn, not a cancel aimed at the call."""
    tool = ScriptedTool(sleep(10_000), on_interrupt="keep")
    runner = ToolRunner([tool.tool])
    async with runner.open_batch() as batch:
        handle = batch.submit(ToolCall("0", "scripted"))
        await anyio.sleep(1)
        handle.cancel()
    assert await runner.wait_detached(60)
    assert tool.ended == 1


async def test_nothing_is_left_when_nothing_runs(anyio_backend_name: str) -> None:
    """§4.1: no task and no timer of ours stays on a loop that has nothing to run."""
    tool = ScriptedTool(sleep(1), timeout=10_000)
    runner = ToolRunner([tool.tool])
    await runner.run([ToolCall("0", "scripted")], timeout=20_000)
    await assert_nothing_is_left(anyio_backend_name)


async def test_no_grace_is_waited_for_where_nothing_has_started(
    anyio_backend_name: str,
) -> None:
    """§4.1, §4.3: a batch whose calls all wait is over at once, timers and all."""
    tool = ScriptedTool(sleep(1))
    async with ToolRunner([tool.tool], max_concurrency=1) as runner:
        async with runner.open_batch([ToolCall("0", "scripted")]):
            await anyio.wait_all_tasks_blocked()
            async with runner.open_batch([ToolCall("1", "scripted")]) as waiting:
                waiting.interrupt(grace=10_000)
            assert not waiting.results[0].started
    assert tool.started == 1
    await assert_nothing_is_left(anyio_backend_name)


async def test_nothing_is_left_of_a_call_that_was_let_go(anyio_backend_name: str) -> None:
    """§4.1: neither what tells it to stop nor what would warn of it, once it has ended."""
    deaf = DeafTool()
    async with ToolRunner([deaf.tool]) as runner:
        async with runner.open_batch([ToolCall("0", "deaf")]) as batch:
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
        await anyio.sleep(10)
        deaf.release()
        assert await runner.wait_detached(10)
    await assert_nothing_is_left(anyio_backend_name)


async def assert_nothing_is_left(anyio_backend_name: str) -> None:
    await anyio.wait_all_tasks_blocked()
    assert [t.name for t in anyio.get_running_tasks() if "toolbatch" in (t.name or "")] == []
    if anyio_backend_name == "asyncio":
        import asyncio

        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert [h for h in scheduled if not h.cancelled()] == []
    else:
        import trio

        tasks = trio.lowlevel.current_root_task().child_nurseries[0].child_tasks  # type: ignore[union-attr]
        assert [t.name for t in tasks if "toolbatch" in t.name] == []
