"""Draining an async tool that ignores its cancellation, and one that tidies up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

import anyio

from anyio_toolbatch import ToolCall, ToolRunner

from .backends import run_on
from .report import Report, seconds

DEAF_SECONDS = 1.0
CLEANUP_SECONDS = 0.2
BOUND = 0.1


class _Tools:
    """Say when they run and how they ended; for one interrupt."""

    def __init__(self) -> None:
        self.running = anyio.Event()
        self.cancellations = 0
        self.closed = False

    async def deaf(self) -> None:
        cancelled = anyio.get_cancelled_exc_class()
        until = time.monotonic() + DEAF_SECONDS
        self.running.set()
        while (left := until - time.monotonic()) > 0:
            try:
                await anyio.sleep(left)
            except cancelled:
                self.cancellations += 1

    async def tidy(self) -> None:
        self.running.set()
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(CLEANUP_SECONDS)
            self.closed = True


def measure(backend: str, quick: bool, report: Report) -> None:
    rows = []
    count = 1 if quick else 5
    for name, drain in (("ToolRunner", _interrupt), ("anyio task group", _cancel_group)):
        runs = [run_on(backend, _measure, drain) for _ in range(count)]
        cpu = statistics.median(run[0] for run in runs)
        closed = all(run[2] for run in runs)
        cancellations = int(statistics.median(run[1] for run in runs))
        rows.append([name, seconds(cpu), f"{cancellations:,}", "yes" if closed else "no"])
        if name == "ToolRunner":
            what = f"deaf tool drained for {DEAF_SECONDS:g} s: CPU"
            report.at_most(backend, what, BOUND, cpu, seconds)
            report.expect(
                backend, "`finally: await …` completes", "yes", "yes" if closed else "no"
            )
    head = ("interrupted", "CPU, deaf tool", "cancellations seen", "clean-up completes")
    report.table(
        f"{backend}: a tool that is deaf for {DEAF_SECONDS:g} s, one that tidies up",
        head,
        rows,
    )


Drain = Callable[[_Tools, Callable[[], Awaitable[None]]], Awaitable[None]]


async def _measure(drain: Drain) -> tuple[float, int, bool]:
    deaf, tidy = _Tools(), _Tools()
    cpu = time.process_time()
    await drain(deaf, deaf.deaf)
    cpu = time.process_time() - cpu
    await drain(tidy, tidy.tidy)
    return cpu, deaf.cancellations, tidy.closed


async def _interrupt(tools: _Tools, tool: Callable[[], Awaitable[None]]) -> None:
    runner = ToolRunner({"tool": tool})
    async with runner.open_batch([ToolCall("1", "tool")]) as batch:
        await tools.running.wait()
        batch.interrupt()
    await runner.wait_detached()


async def _cancel_group(tools: _Tools, tool: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(tool)
        await tools.running.wait()
        group.cancel_scope.cancel()
