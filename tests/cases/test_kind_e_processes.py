"""Cases E8 and E9 from the field: process pools that don't stop, and workers that die."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import CallProgress, ProcessDiedError, Status, Tool, ToolCall, ToolRunner
from anyio_toolbatch.testing import PromiseObserver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
process_tools: Any = importlib.import_module("process_tools")
carrier_tools: Any = importlib.import_module("carrier_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant


async def test_e8_busy_worker_is_stopped_and_the_next_call_is_clean(
    promises: PromiseObserver,
) -> None:
    """E8: a loop that only computes ends at its limit; nothing of it is there afterwards."""
    busy = Tool(process_tools.computes_for_ever, name="busy", runs_in="process", timeout=0.2)
    after = Tool(process_tools.what_is_left, name="after", runs_in="process")
    async with ToolRunner([busy, after], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            (stopped,) = await runner.run([ToolCall("0", "busy")])
            (clean,) = await runner.run([ToolCall("1", "after")])
        assert (stopped.status, stopped.detached) == (Status.TIMED_OUT, False)
        assert clean.value == []
        assert await runner.wait_detached(LIVENESS)


async def test_e9_worker_killed_from_outside_fails_its_call_alone(
    promises: PromiseObserver,
) -> None:
    """E9: that call's failure says how its worker ended; the sibling goes on to its own end."""
    victim = Tool(process_tools.says_who_it_is, name="victim", runs_in="process")
    sibling = Tool(process_tools.add, name="sibling", runs_in="process")
    async with ToolRunner([victim, sibling], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                killed = batch.submit(ToolCall("0", "victim"))
                async for event in batch.events():
                    if isinstance(event, CallProgress):
                        break
                fine = batch.submit(ToolCall("1", "sibling", {"a": 1}))
                # What it has published is read from its result; until then from its record.
                os.kill(killed._record.kept_partial, signal.SIGKILL)
                died = await killed.wait()
                assert (await fine.wait()).value == 2
    assert isinstance(died.error, ProcessDiedError)
    assert "ended by SIGKILL" in died.text
    assert (died.effects, died.partial) == ("unknown", killed._record.kept_partial)


async def test_e9_worker_of_an_executor_is_killed_from_outside(
    tmp_path: Path, promises: PromiseObserver
) -> None:
    """E9: no waiter hangs: the pool is broken, and so are its calls; others go on."""
    with carrier_tools.new_executor("processes") as pool:
        victim = Tool(carrier_tools.gated, name="victim", runs_in=pool)
        sibling = Tool(process_tools.add, name="sibling", runs_in="process")
        async with ToolRunner([victim, sibling], observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    arguments = {"folder": tmp_path}
                    killed = batch.submit(ToolCall("0", "victim", arguments))
                    fine = batch.submit(ToolCall("1", "sibling", {"a": 1}))
                    while not (tmp_path / "started-0").exists():
                        await anyio.sleep(0.005)
                    os.kill(int((tmp_path / "started-0").read_text()), signal.SIGKILL)
                    died = await killed.wait()
                    assert (await fine.wait()).value == 2
            # The pool does not get over that; the runner does.
            (refused,) = await runner.run([ToolCall("2", "victim", arguments)])
            assert runner.statistics().detached == ()
    promises.check(batch.id, batch.results)
    for result, started in [(died, True), (refused, False)]:
        assert isinstance(result.error, BrokenExecutor)
        assert (result.status, result.started) == (Status.FAILED, started)
    assert died.effects == "unknown"
