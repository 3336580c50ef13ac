"""An agent whose tools call `exit()`: on the loop, in a thread, in a loop of their own."""

from __future__ import annotations

import json
import sys

import anyio
import anyio.lowlevel

from anyio_toolbatch import Tool, ToolCall, run_batch


async def on_the_loop() -> None:
    await anyio.lowlevel.checkpoint()
    exit(3)


def in_a_thread() -> None:
    exit(3)


async def in_its_own_loop() -> None:
    await anyio.lowlevel.checkpoint()
    exit(3)


async def sibling() -> str:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    return "real"


TOOLS = [on_the_loop, in_a_thread, Tool(in_its_own_loop, runs_in="thread"), sibling]
NAMES = ["on_the_loop", "in_a_thread", "in_its_own_loop", "sibling"]


async def main() -> None:
    results = await run_batch([ToolCall(name, name) for name in NAMES], TOOLS)
    print(json.dumps([[r.status, r.text, r.is_error] for r in results]))


if sys.argv[1] == "uvloop":
    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": True})
else:
    anyio.run(main, backend=sys.argv[1])
