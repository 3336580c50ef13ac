"""A blocking tool is running when the user presses Ctrl-C; nobody handles the signal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import anyio

from anyio_toolbatch import ToolBatch, ToolCall, from_thread, open_batch

batch: ToolBatch


def quick() -> str:
    return "real"


def stuck() -> None:
    # Once the loop has answered, the main task is parked, and gets the break there.
    from_thread.run_sync(lambda: None)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()


async def main() -> None:
    global batch
    async with open_batch(tools=[quick, stuck], max_threads=1) as batch:
        await batch.submit(ToolCall("1", "quick")).wait()
        batch.submit(ToolCall("2", "stuck"))
        batch.submit(ToolCall("3", "quick"))


came_out = None
try:
    if sys.argv[1] == "uvloop":
        anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})
    else:
        anyio.run(main, backend=sys.argv[1])
except BaseException as exc:
    came_out = type(exc).__name__

report = {
    "came out": came_out,
    "results": [
        [r.call.id, r.status.value, r.reason.kind if r.reason else None, r.started]
        for r in batch.results
    ],
}
print(json.dumps(report))
