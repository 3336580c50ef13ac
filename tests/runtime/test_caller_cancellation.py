"""P8: cancellation of the awaiting code detaches the batch and is passed on."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from anyio_toolbatch import Status, ToolBatch, ToolCall, ToolResult, ToolRunner, open_batch
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver, ScriptedTool, sleep

LIVENESS = 20.0


def kinds(results: list[ToolResult]) -> list[tuple[str | None, bool]]:
    return [(r.reason.kind if r.reason else None, r.started) for r in results]


async def test_cancelled_scope_detaches_and_goes_on(promises: PromiseObserver) -> None:
    """P8, G6: a cancel scope around `open_batch` is not held up, nor swallowed."""
    gate, deaf = GatedTool(), DeafTool()
    quick = GatedTool("quick")
    quick.open()
    batch: ToolBatch | None = None
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, deaf.tool, quick.tool], max_threads=2, observers=[promises]
        ) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch() as batch:
                    first = batch.submit(ToolCall("0", "quick"))
                    await first.wait()
                    batch.submit(ToolCall("1", "gated"))
                    batch.submit(ToolCall("2", "gated"))
                    batch.submit(ToolCall("3", "gated"))
                    batch.submit(ToolCall("4", "deaf"))
                    await gate.wait_started(2)
                    scope.cancel()
                    await anyio.sleep(60)
            assert scope.cancelled_caught
            assert batch is not None
            assert batch.results[0].status is Status.COMPLETED
            assert kinds(batch.results)[1:] == [
                ("caller_cancelled", True),
                ("caller_cancelled", True),
                ("caller_cancelled", False),
                ("caller_cancelled", True),
            ]
            gate.open()
            deaf.release()
            assert await runner.wait_detached(LIVENESS)
    assert gate.started == 2


async def test_deadline_while_waiting_at_the_end_of_the_block() -> None:
    """P8: the same when the cancellation comes in the wait of the block's end."""
    gate = GatedTool()
    with anyio.move_on_after(0.05) as scope:
        async with open_batch([ToolCall("1", "gated")], [gate.tool]) as batch:
            pass
    assert scope.cancelled_caught
    assert kinds(batch.results) == [("caller_cancelled", True)]
    gate.open()


async def test_cancelled_run_raises_and_harms_nothing() -> None:
    """P8: `run` passes the cancellation on; the runner goes on working."""
    gate = GatedTool()
    async with ToolRunner([gate.tool]) as runner:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    await gate.wait_started()
                    scope.cancel()

                group.start_soon(stop)
                await runner.run([ToolCall("1", "gated")], interrupt_grace=600)
        assert scope.cancelled_caught
        assert runner.statistics().open_batches == 0
        gate.open()
        assert [r.value for r in await runner.run([ToolCall("2", "gated")])] == ["done"]


async def test_already_cancelled_caller_starts_nothing() -> None:
    """P4, P8: with a cancelled scope around it, `run` runs no tool."""
    gate = GatedTool()
    gate.open()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ToolRunner([gate.tool]).run([ToolCall("1", "gated")])
    assert gate.started == 0


async def test_native_task_cancel(anyio_backend_name: str) -> None:
    """P8: `Task.cancel()` is passed on as asyncio expects, with the batch detached."""
    if anyio_backend_name != "asyncio":
        pytest.skip("native tasks are asyncio's")
    gate = GatedTool()
    batch: ToolBatch | None = None

    async def turn() -> None:
        nonlocal batch
        async with open_batch([ToolCall("1", "gated")], [gate.tool]) as batch:
            pass

    task = asyncio.ensure_future(turn())
    await gate.wait_started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert batch is not None
    assert kinds(batch.results) == [("caller_cancelled", True)]
    gate.open()


async def test_native_timeout_around_run(anyio_backend_name: str) -> None:
    """P8: `asyncio.timeout` around a run turns into its TimeoutError."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio.timeout is asyncio's")
    gate = GatedTool()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ToolRunner([gate.tool]).run([ToolCall("1", "gated")])
    gate.open()


async def test_exception_in_the_block_detaches_first(promises: PromiseObserver) -> None:
    """§3.1: leaving the block by an exception does not wait for the calls."""
    gate = GatedTool()
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        with pytest.raises(LookupError):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("1", "gated"))
                await gate.wait_started()
                raise LookupError("model stream broke")
        assert kinds(batch.results) == [("caller_cancelled", True)]
        # The kind of the host's error is named; its text is not for the model.
        assert "LookupError" in str(batch.results[0].reason)
        assert "model stream broke" not in batch.results[0].text
        gate.open()


async def test_generator_that_is_closed_inside_the_block() -> None:
    """P8: an async generator around a batch can be closed while tools run."""
    gate = GatedTool()
    seen: list[ToolBatch] = []

    async def turns() -> object:
        async with open_batch([ToolCall("1", "gated")], [gate.tool]) as batch:
            seen.append(batch)
            yield batch

    generator = turns()
    await anext(generator)  # type: ignore[call-overload]
    await gate.wait_started()
    await generator.aclose()  # type: ignore[attr-defined]
    assert kinds(seen[0].results) == [("caller_cancelled", True)]
    gate.open()


async def test_cancelling_a_wait_stops_that_wait_only() -> None:
    """§3.1: `batch.wait`, `handle.wait` and readers may be cancelled freely."""
    gate = GatedTool()
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("1", "gated"))
            await gate.wait_started()
            for wait in (batch.wait, handle.wait):
                with anyio.move_on_after(0.01) as scope:
                    await wait()
                assert scope.cancelled_caught
            with anyio.move_on_after(0.01) as scope:
                async for _ in batch.events():
                    pass
            assert scope.cancelled_caught
            assert handle.result is None
            gate.open()
        assert batch.results[0].value == "done"


async def test_finished_results_survive_a_cancellation_at_the_last_moment() -> None:
    """P3: a `run` whose calls are all settled at once is not undone by a cancellation."""
    with anyio.CancelScope() as scope:

        def observe(_: object) -> None:
            scope.cancel()

        runner = ToolRunner(observers=[observe])
        results = await runner.run([ToolCall("1", "unknown")])
        assert results[0].status is Status.INVALID


async def test_cancelled_caller_leaves_async_tools_cancelled() -> None:
    """G6: the run's own async tools are told to stop, and end."""
    scripted = ScriptedTool(sleep(600))
    runner = ToolRunner([scripted.tool])
    with anyio.move_on_after(0.05):
        await runner.run([ToolCall("1", "scripted")])
    assert await runner.wait_detached(LIVENESS)
    assert scripted.ended == 1
