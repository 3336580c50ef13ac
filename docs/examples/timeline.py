"""
The timeline of two turns, the first of which is interrupted; and what is in it.
"""

from __future__ import annotations

import json
import sys
import threading

import anyio

from anyio_toolbatch import CallStarted, ToolCall, ToolRunner, tool
from anyio_toolbatch.observe.trace import TraceRecorder

arrived = threading.Event()


@tool(writes="shop.db")
def import_prices() -> str:
    arrived.wait()
    return "prices"


async def search(words: str) -> str:
    return f"3 pages on {words}"


async def main() -> None:
    recorder = TraceRecorder()
    runner = ToolRunner([import_prices, search], observers=[recorder])
    calls = [
        ToolCall("call_1", "import_prices"),
        ToolCall("call_2", "import_prices"),  # waits for the one before
    ]
    async with runner.open_batch(calls) as batch:
        async for event in batch.events():
            if isinstance(event, CallStarted):
                batch.interrupt("the user pressed stop")

    # The next turn goes on; the first import is still at it.
    await runner.run([ToolCall("call_3", "search", {"words": "cups"})])
    arrived.set()
    await runner.wait_detached()

    recorder.save("timeline.json")  # open it in https://ui.perfetto.dev
    show("timeline.json")


def show(path: str) -> None:
    """Print what the file says of each call: its phases, in their order."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    tracks: dict[str, list[dict]] = {}
    for event in events:
        if event["ph"] in "bn":  # a slice begins, or a mark
            tracks.setdefault(event["id2"]["local"], []).append(event)
    calls = [track for track in tracks.values() if track[0]["name"] != "batch"]
    for call, *phases in sorted(calls, key=lambda track: track[0]["args"]["id"]):
        names = [phase["name"] for phase in phases]
        if "running" in names[1:]:
            names.remove("waiting")  # for a free thread, as a rule; very short
        print(f"{call['args']['id']} {call['name']}: {', '.join(names)}")


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
