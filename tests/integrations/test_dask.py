"""Dask: what runs is let go, what waits is withdrawn, and nothing runs twice."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    LateResult,
    ProcessDiedError,
    Status,
    Tool,
    ToolCall,
    ToolRunner,
    run_batch,
)

distributed = pytest.importorskip("distributed")

from anyio_toolbatch.integrations.dask import (  # noqa: E402 - only where there is Dask
    DaskExecutor,
    dask_carrier,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
engine_tools: Any = importlib.import_module("engine_tools")
process_tools: Any = importlib.import_module("process_tools")


async def test_interrupted_call_is_detached_until_its_end(
    dask_engine: Any, held: Any, dask_cluster: Any, eventually: Any
) -> None:
    """It goes on; its end is told once, and then the cluster has forgotten it."""
    holder = held()
    late: list[LateResult] = []
    async with ToolRunner(on_late=late.append) as runner:
        call = dask_engine.call(engine_tools.holds, folder=holder.folder)
        async with runner.open_batch([call]) as batch:
            await holder.begun()
            batch.interrupt()
        (result,) = batch.results
        assert (result.status, result.started, result.detached) == ("interrupted", True, True)
        assert not await runner.wait_detached(0.3)
        assert len(runner.statistics().detached) == 1
        holder.let_go()
        assert await runner.wait_detached(30)
        await eventually(lambda: bool(late))
        assert holder.is_done
    assert [each.value for each in late] == ["let go"]
    tasks = dask_cluster.scheduler.tasks
    await eventually(lambda: not any("holds" in str(key) for key in tasks))
    plugin = dask_cluster.scheduler.plugins["anyio-toolbatch-starts"]
    await eventually(lambda: not plugin._begun)


@pytest.mark.parametrize("closes", ["client", "cluster"])
async def test_close_ends_the_call(held: Any, closes: str, workers_path: None) -> None:
    """The client or the whole cluster: that call's failure, and no hang."""
    holder = held()
    with (
        distributed.LocalCluster(
            n_workers=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        tool = Tool(engine_tools.holds, runs_in=dask_carrier(client))
        async with ToolRunner([tool]) as runner:
            call = ToolCall("id", "holds", {"folder": holder.folder})
            async with runner.open_batch([call]) as batch:
                await holder.begun()
                closed = client if closes == "client" else cluster
                await anyio.to_thread.run_sync(closed.close)
                with anyio.fail_after(60):
                    (lost,) = await batch.wait()
            (refused,) = await runner.run([call])
    assert (lost.status, lost.started) == (Status.FAILED, True)
    assert (refused.status, refused.started) == (Status.FAILED, False)
    assert len(holder.runs) == 1


async def test_worker_that_is_retired_does_not_repeat_the_call(
    held: Any, workers_path: None
) -> None:
    """Dask itself starts the task elsewhere at once, and the first run goes on beside it."""
    holder = held()
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        tool = Tool(engine_tools.holds, runs_in=dask_carrier(client))
        async with ToolRunner([tool]) as runner:
            call = ToolCall("id", "holds", {"folder": holder.folder})
            async with runner.open_batch([call]) as batch:
                await holder.begun()
                (address,) = [worker for worker, tasks in client.processing().items() if tasks]
                await anyio.to_thread.run_sync(client.retire_workers, [address])
                with anyio.fail_after(60):
                    (lost,) = await batch.wait()
        holder.let_go()
    assert isinstance(lost.error, ProcessDiedError)
    assert f"had begun on {address}" in str(lost.error)
    assert len(holder.runs) == 1


async def test_keyboard_interrupt_does_not_end_the_worker(dask_engine: Any) -> None:
    """It interrupts the batch, as anywhere."""
    calls = [dask_engine.call(process_tools.pid) for _ in range(4)]
    before = {r.unwrap() for r in await run_batch(calls)}
    with pytest.raises(KeyboardInterrupt):
        await run_batch(
            [dask_engine.call(process_tools.raises, error=KeyboardInterrupt("there"))]
        )
    assert {r.unwrap() for r in await run_batch(calls)} <= before


async def test_options_reach_dask(dask_engine: Any, dask_cluster: Any) -> None:
    """Pinned to one worker."""
    address = next(iter(dask_cluster.scheduler.workers))
    client = dask_engine.carrier.executor._client
    tool = Tool(
        lambda: distributed.get_worker().address,
        name="where",
        runs_in=dask_carrier(client, workers=address),
    )
    results = await run_batch([ToolCall(str(n), "where") for n in range(4)], [tool])
    assert [r.unwrap() for r in results] == [address] * 4


def test_client_is_checked_at_once() -> None:
    with pytest.raises(TypeError, match="Client, not str"):
        DaskExecutor("tcp://127.0.0.1:8786")


def test_future_does_not_claim_to_be_cancelled(dask_engine: Any) -> None:
    """Dask's own says True, and stops nothing."""
    future = dask_engine.carrier.executor.submit(pow, 2, 3)
    assert not future.cancel()
    assert future.result(30) == 8
