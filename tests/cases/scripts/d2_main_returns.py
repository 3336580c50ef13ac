"""Two tools block on queues; their batch is cut in one of three ways; main returns."""

from __future__ import annotations

import queue
import sys
import threading

import anyio

from anyio_toolbatch import ToolCall, ToolRunner

started = threading.Semaphore(0)


def stuck() -> None:
    started.release()
    queue.Queue[None]().get()


async def main(way: str) -> None:
    runner = ToolRunner([stuck])
    with anyio.CancelScope() as scope:
        async with runner.open_batch(timeout=0.02 if way == "timeout" else None) as batch:
            for i in range(2):
                batch.submit(ToolCall(str(i), "stuck"))
            for _ in range(2):
                started.acquire()  # holding the loop, so that no limit runs out before
            if way == "interrupt":
                batch.interrupt()
            elif way == "cancel":
                scope.cancel()
    print(len(runner.statistics().detached), "still run")


anyio.run(main, sys.argv[2], backend=sys.argv[1])
