"""§4.3, §4.10: timeouts take the way of an interrupt, with their own reason."""

from __future__ import annotations

import anyio
import pytest

from anyio_toolbatch import Tool, ToolCall, ToolResult, ToolRunner, run_batch
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool]]:
    return [(r.status.value, r.reason.kind if r.reason else None, r.started) for r in results]


async def test_call_timeout_of_a_blocking_tool(promises: PromiseObserver) -> None:
    """C1, C4, P2: the result comes when the limit is reached, not when the tool is done."""
    gate = GatedTool(timeout=0.05)
    other = GatedTool("other", value="kept")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, other.tool], observers=[promises]) as runner:
            async with runner.open_batch(
                [ToolCall("0", "gated"), ToolCall("1", "other")]
            ) as batch:
                await batch.events().__anext__()
                while batch.snapshot()[0] is None:
                    await anyio.sleep(0.001)
                other.open()
            assert shape(batch.results) == [
                ("timed_out", "call_timeout", True),
                ("completed", None, True),
            ]
            assert batch.reason is None and not batch.interrupted
            assert "outcome is unknown" in batch.results[0].text
            gate.open()


async def test_batch_timeout_cuts_all_that_is_left(promises: PromiseObserver) -> None:
    """P3, P6: at the batch's limit results are kept, waiting calls were never started."""
    gate = GatedTool()
    quick = GatedTool("quick")
    quick.open()
    names = ("quick", "gated", "gated")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, quick.tool], max_threads=1, observers=[promises]
        ) as runner:
            results = await runner.run(
                [ToolCall(str(i), n) for i, n in enumerate(names)], timeout=0.1
            )
            gate.open()
    assert shape(results) == [
        ("completed", None, True),
        ("timed_out", "batch_timeout", True),
        ("timed_out", "batch_timeout", False),
    ]


async def test_timed_out_calls_do_not_hold_a_thread() -> None:
    """C3: four tools that never end do not keep a quick one from running."""
    gate = GatedTool(timeout=0.02)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            {"gated": gate.tool, "quick": lambda: "ran"}, max_threads=4
        ) as runner:
            results = await runner.run(
                [*(ToolCall(str(i), "gated") for i in range(4)), ToolCall("4", "quick")]
            )
            assert [r.status.value for r in results] == [*["timed_out"] * 4, "completed"]
            assert len(runner.statistics().detached) == 4
            gate.open()
            assert await runner.wait_detached(LIVENESS)


async def test_cap_on_detached_threads_refuses_clearly() -> None:
    """C2, P10, T19: a visible count and a cap; async calls are still served."""

    async def still_served() -> str:
        return "yes"

    gate = GatedTool(timeout=0.01)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, still_served], max_threads=2, max_detached=3
        ) as runner:
            results = await runner.run([ToolCall(str(i), "gated") for i in range(40)])
            refused = [r for r in results if r.status == "failed"]
            timed_out = [r for r in results if r.status == "timed_out"]
            assert len(refused) + len(timed_out) == 40
            # Two threads may be under way when the cap is reached.
            assert 3 <= len(timed_out) <= 4
            assert gate.started == len(timed_out) == len(runner.statistics().detached)
            for result in refused:
                assert result.reason is not None
                assert result.reason.kind == "too_many_detached"
                assert not result.started and result.error is not None
                assert "gated ×" in result.text
            assert (await runner.run([ToolCall("a", "still_served")]))[0].value == "yes"
            gate.open()
            assert await runner.wait_detached(LIVENESS)
            gate2 = await runner.run([ToolCall("b", "gated")])
            assert gate2[0].value == "done"


async def test_module_level_batches_share_the_cap() -> None:
    """§3.1: `max_detached` holds across the batches of the module-level functions."""
    gate = GatedTool(timeout=0.01)
    with anyio.fail_after(LIVENESS):
        statuses = []
        for _ in range(4):
            results = await run_batch([ToolCall("0", "gated")], [gate.tool], max_detached=2)
            statuses.append(results[0].status.value)
        assert statuses == ["timed_out", "timed_out", "failed", "failed"]
        gate.open()


@pytest.mark.parametrize("bad", [-1, float("nan"), "5", True])
async def test_bad_timeouts_are_refused_at_once(bad: object) -> None:
    """Misuse raises TypeError or ValueError before anything runs."""
    ran: list[int] = []
    runner = ToolRunner({"tool": lambda: ran.append(1)})
    calls = [ToolCall("0", "tool")]
    for attempt in (
        lambda: Tool(print, timeout=bad),  # type: ignore[arg-type]
        lambda: ToolRunner(interrupt_grace=bad),  # type: ignore[arg-type]
        lambda: runner.open_batch(calls, timeout=bad),  # type: ignore[arg-type]
        lambda: runner.interrupt(grace=bad),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError)):
            attempt()
    with pytest.raises((TypeError, ValueError)):
        await runner.run(calls, timeout=bad)  # type: ignore[arg-type]
    assert ran == []
