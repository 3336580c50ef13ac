"""P10: what a detached loop in Python code does to everything else is said in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from anyio_toolbatch import Tool, ToolCall, ToolRunner, run_batch
from anyio_toolbatch._runtime import busy_threads

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not hasattr(time, "pthread_getcpuclockid"), reason="no clock for a thread's time"
    ),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Many looks while the test waits; the share is what counts, not the time.
    monkeypatch.setattr(busy_threads, "LOOK_AFTER", 0.1)
    monkeypatch.setattr(busy_threads, "WORTH_SAYING", 0.1)


class Spinning:
    """A tool that computes until it is released."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self) -> None:
        self.begun.release()
        while not self.is_over.is_set():
            sum(range(100))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if "keep computing" in r.getMessage()]


def warned_of(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many calls have been warned of."""
    return sum(int(r.args[0]) for r in warnings_in(caplog) if isinstance(r.args, tuple))


async def detach(runner: ToolRunner, name: str, begun: threading.Semaphore, n: int) -> None:
    calls = [ToolCall(str(i), name) for i in range(n)]
    async with runner.open_batch(calls) as batch:
        for _ in range(n):
            while not begun.acquire(blocking=False):
                await anyio.sleep(0.001)
        batch.interrupt()


async def until(condition: Callable[[], Any], again: Callable[[], Any]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await again()
            await anyio.sleep(0.01)


async def test_warning_names_the_tool(caplog: pytest.LogCaptureFixture) -> None:
    """P10: later batches set off a warning for two loops that were let go, once for each."""
    spinning = Spinning()
    runner = ToolRunner({"spin": spinning})
    try:
        await detach(runner, "spin", spinning.begun, 2)
        assert not warnings_in(caplog)
        await until(lambda: warned_of(caplog) == 2, lambda: runner.run([]))
        for warning in warnings_in(caplog):
            assert warning.levelno == logging.WARNING
            assert "detached calls (spin" in warning.getMessage()
            assert "runs_in='process'" in warning.getMessage()
        for _ in range(20):
            await anyio.sleep(0.01)
            await runner.run([])
        assert warned_of(caplog) == 2
    finally:
        spinning.is_over.set()
    assert await runner.wait_detached(30)


async def test_what_only_waits_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """P10: a detached thread that is parked takes no time; nor does one that has ended."""
    begun, gate = threading.Semaphore(0), threading.Event()

    def park() -> None:
        begun.release()
        gate.wait()

    spinning = Spinning()
    runner = ToolRunner({"park": park, "spin": spinning})
    try:
        await detach(runner, "park", begun, 1)
        await detach(runner, "spin", spinning.begun, 1)
        await until(lambda: warnings_in(caplog), lambda: runner.run([]))
        (warning,) = warnings_in(caplog)
        assert "1 detached calls (spin)" in warning.getMessage()
    finally:
        spinning.is_over.set()
        gate.set()
    assert await runner.wait_detached(30)
    assert not runner.statistics().detached


async def test_batches_without_a_runner_share_it(caplog: pytest.LogCaptureFixture) -> None:
    """P10: `run_batch` finds what an earlier one has left behind."""
    spinning = Spinning()
    tool = Tool(spinning, name="spin", timeout=0.01)
    try:
        (result,) = await run_batch([ToolCall("1", "spin")], [tool])
        assert result.detached
        await until(lambda: warnings_in(caplog), lambda: run_batch([]))
    finally:
        spinning.is_over.set()


async def test_call_that_has_left_its_thread_is_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P6: what a thread does for others is not what a call does that it once began."""
    begun, release = threading.Semaphore(0), anyio.Event()

    async def idle() -> None:
        begun.release()
        with anyio.CancelScope(shield=True):
            await release.wait()

    spinning = Spinning()
    runner = ToolRunner({"idle": lambda: idle(), "spin": spinning}, max_threads=1)
    try:
        await detach(runner, "idle", begun, 1)
        async with runner.open_batch([ToolCall("1", "spin")]):  # in the same thread
            deadline = time.monotonic() + 4 * busy_threads.LOOK_AFTER
            while time.monotonic() < deadline:
                await runner.run([])
                await anyio.sleep(0.01)
            spinning.is_over.set()
    finally:
        spinning.is_over.set()
        release.set()
    assert await runner.wait_detached(30)
    assert not warnings_in(caplog)
