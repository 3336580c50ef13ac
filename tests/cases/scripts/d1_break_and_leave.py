"""Nobody handles Ctrl-C, and a tool blocks for ever."""

from __future__ import annotations

import os
import signal
import sys
import threading

import anyio

from anyio_toolbatch import ToolCall, from_thread, run_batch


def stuck() -> None:
    # Once the loop has answered, the main task is parked, and gets the break there.
    from_thread.run_sync(lambda: None)
    print("running", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()


async def main() -> None:
    await run_batch([ToolCall("1", "stuck")], [stuck])
    print("not reached")


if sys.argv[1] == "uvloop":
    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})
else:
    anyio.run(main, backend=sys.argv[1])
