"""
Four limits: of a call, of a batch, of an answer, and a grace.
"""

from __future__ import annotations

import sys
import threading

import anyio

from anyio_toolbatch import (
    CallStarted,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
)


def hang() -> str:
    """Blocks, and hears nothing."""
    threading.Event().wait()
    return "never"


def collect() -> str:
    """Blocks, but stops when it is told to, with what it has."""
    current_call().cancelled.wait()
    return "12 of 40 pages"


async def note() -> str:
    return "noted"


async def think_it_over(call: ToolCall) -> bool:
    await anyio.sleep_forever()
    return True


def show(limit: str, results: list[ToolResult]) -> None:
    print(limit)
    for result in results:
        kind = result.reason.kind if result.reason else "-"
        started = "started" if result.started else "not started"
        print(f"  {result.call.name}: {result.status.value}, {kind}, {started}")


async def main() -> None:
    tools = [Tool(hang, timeout=0.1), Tool(collect), Tool(note)]
    calls = [ToolCall("1", "hang"), ToolCall("2", "note")]
    async with ToolRunner(tools, close_timeout=0) as runner:
        show("a call's limit", await runner.run(calls))

    # One at a time: the second call waits for the first, and the batch's clock runs.
    async with ToolRunner([hang, note], max_concurrency=1, close_timeout=0) as runner:
        show("the batch's limit", await runner.run(calls, timeout=0.5))

    asking = ToolRunner([hang], approve=think_it_over, approval_timeout=0.1)
    async with asking as runner:
        show("an answer's limit", await runner.run([ToolCall("1", "hang")]))

    async with ToolRunner(tools, close_timeout=0) as runner:
        async with runner.open_batch([ToolCall("1", "collect")]) as batch:
            async for event in batch.events():
                if isinstance(event, CallStarted):
                    batch.interrupt(grace=10)  # as long as it takes, ten seconds at most
        show("a grace", batch.results)

    graceful = ToolRunner([Tool(collect, timeout=0.1)], interrupt_grace=10)
    async with graceful as runner:
        show("a grace after a limit", await runner.run([ToolCall("1", "collect")]))


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
