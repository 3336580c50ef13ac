"""Ray: a call that was cut is killed with its process."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import LateResult, Status, ToolCall, ToolRunner, run_batch

pytest.importorskip("ray")

from anyio_toolbatch.integrations.ray import (
    RayExecutor,
    ray_carrier,
)

# Older ones leave log files and processes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
engine_tools: Any = importlib.import_module("engine_tools")
process_tools: Any = importlib.import_module("process_tools")


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_interrupt_kills_the_process(ray_engine: Any, held: Any) -> None:
    """The turn is back at once; a moment later the process is gone, and nothing is late."""
    holder = held()
    late: list[LateResult] = []
    async with ToolRunner(on_late=late.append) as runner:
        call = ray_engine.call(engine_tools.holds, folder=holder.folder)
        async with runner.open_batch([call]) as batch:
            pid = await holder.begun()
            assert is_running(pid)
            batch.interrupt()
        assert (batch.results[0].status, batch.results[0].started) == ("interrupted", True)
        assert await runner.wait_detached(30)
        assert not is_running(pid)  # "stopped" is not said before
        # A place is free again, and the end of the killed one is nobody's news.
        await runner.run([ray_engine.call(process_tools.pid) for _ in range(2)])
    assert late == []
    assert not holder.is_done


async def test_kept_call_goes_on(ray_engine: Any, held: Any, eventually: Any) -> None:
    """``on_interrupt="keep"`` is not killed; its end is told."""
    holder = held()
    late: list[LateResult] = []
    tool = ray_engine.tool(engine_tools.holds, on_interrupt="keep")
    async with ToolRunner(on_late=late.append) as runner:
        call = ToolCall("id", "t", {"folder": holder.folder}, tool=tool)
        async with runner.open_batch([call]) as batch:
            await holder.begun()
            batch.interrupt()
        holder.let_go()
        await eventually(lambda: bool(late))
    assert [each.value for each in late] == ["let go"]


async def test_shutdown_of_ray_ends_the_call(ray_engine: Any, held: Any) -> None:
    """Ray itself would leave the future pending for ever; and none is started instead."""
    ray = pytest.importorskip("ray")
    holder = held()
    async with ToolRunner() as runner:
        call = ray_engine.call(engine_tools.holds, folder=holder.folder)
        async with runner.open_batch([call]) as batch:
            await holder.begun()
            await anyio.to_thread.run_sync(ray.shutdown)
            with anyio.fail_after(30):
                (lost,) = await batch.wait()
        (refused,) = await runner.run([ray_engine.call(process_tools.pid)])
    assert (lost.status, lost.started) == (Status.FAILED, True)
    # Ray kills its workers first, and now and then still tells of that.
    told = isinstance(lost.error, ray.exceptions.RayError)
    assert told or "Ray was shut down" in str(lost.error)
    assert (refused.status, refused.started) == (Status.FAILED, False)
    assert "call ray.init()" in str(refused.error)
    assert not ray.is_initialized()


async def test_keyboard_interrupt_in_a_worker_is_no_ctrl_c(ray_engine: Any) -> None:
    """It is how Ray cancels without force, so it is taken for that."""
    call = ray_engine.call(process_tools.raises, error=KeyboardInterrupt())
    (result,) = await run_batch([call])
    assert (result.status, str(result.error)) == ("failed", "the Ray task was cancelled")


async def test_options_reach_ray(ray_engine: Any) -> None:
    """Those of `RemoteFunction.options`."""
    carrier = ray_carrier(runtime_env={"env_vars": {"FLAVOUR": "vanilla"}})
    call = ToolCall("id", "t", tool=ray_engine.tool(lambda: os.environ.get("FLAVOUR")))
    other = ToolCall("id", "t", tool=type(call.tool)(call.tool.func, runs_in=carrier))
    results = await run_batch([call, other])
    assert [r.unwrap() for r in results] == [None, "vanilla"]


def test_options_are_checked_at_once() -> None:
    """A call runs once, so what would repeat it is refused; Ray refuses what it does not know."""
    with pytest.raises(TypeError, match="max_retries"):
        RayExecutor(max_retries=3)
    with pytest.raises(ValueError, match="num_cpu"):
        RayExecutor(num_cpu=1)


def test_future_does_not_claim_to_be_cancelled(ray_engine: Any) -> None:
    """`ref.future().cancel()` says True, and stops nothing."""
    future = RayExecutor().submit(pow, 2, 3)
    assert not future.cancel()
    assert future.result(30) == 8
