"""
A tool that is async by name only, named while the loop stands still.
"""

from __future__ import annotations

import sys
import threading

import anyio

from anyio_toolbatch import Tool, ToolCall, ToolRunner
from anyio_toolbatch.observe.stalls import Stall, StallDetector

named = threading.Event()


def on_stall(stall: Stall) -> None:
    """In the detector's own thread: the loop has stopped."""
    state = "computes" if stall.is_computing else "waits"
    print(f"{stall.tool} ({stall.call.id if stall.call else None}) {state}:")
    print(stall.stack.splitlines()[1])  # the tool's own line; below it, what it calls
    named.set()


async def fetch(url: str) -> str:
    if url.endswith("slow"):
        named.wait(20)  # meant to be awaited, like everything in an async function
    return f"{len(url)} bytes"


async def main() -> None:
    observers = [StallDetector(0.1, on_stall=on_stall)]
    calls = [
        ToolCall("call_1", "fetch", {"url": "https://fast"}),
        ToolCall("call_2", "fetch", {"url": "https://slow"}),
    ]
    async with ToolRunner([fetch], observers=observers) as runner:
        print([result.value for result in await runner.run(calls)])

    remedy = Tool(fetch, runs_in="thread")
    async with ToolRunner([remedy], observers=observers) as runner:
        print([result.value for result in await runner.run(calls)])


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
