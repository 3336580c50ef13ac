"""
A live view of a turn, here as the plain lines that it writes where no terminal is.
"""

from __future__ import annotations

import io
import re
import sys
import threading

import anyio

from anyio_toolbatch import CallStarted, ToolCall, ToolRunner, report_progress, tool
from anyio_toolbatch.observe.live import LiveView

arrived = threading.Event()


@tool(writes="disk")
def download(url: str) -> str:
    report_progress(3, 12, "MB")
    arrived.wait()
    return "a large file"


@tool(writes="disk")
def unpack() -> str:
    return "never"


async def main() -> None:
    lines = io.StringIO()  # in a program without it: the terminal, by standard error
    with LiveView(file=lines) as view:
        runner = ToolRunner([download, unpack], observers=[view])
        calls = [ToolCall("call_1", "download", {"url": "…"}), ToolCall("call_2", "unpack")]
        async with runner.open_batch(calls) as batch:
            async for event in batch.events():
                if isinstance(event, CallStarted):
                    batch.interrupt()
        arrived.set()
        await runner.wait_detached()
        view.note("The download has ended, too.")
    print(re.sub(r"\d+\.\d+ s", "… s", lines.getvalue()), end="")  # without the times


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
