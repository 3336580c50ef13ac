"""
A turn that its user stops: one answer is there, two calls still run.
"""

import time

import anyio

from anyio_toolbatch import CallSettled, CallStarted, ToolBatch, ToolCall, ToolRunner


def read_note(name: str) -> str:
    return f"{name}: buy milk"


async def search(words: str) -> str:
    await anyio.sleep(60)
    return f"3 pages on {words}"


def write_report(subject: str) -> str:
    time.sleep(60)  # blocks, and hears no cancellation
    return f"12 pages on {subject}"


CALLS = [
    ToolCall("call_1", "read_note", {"name": "today"}),
    ToolCall("call_2", "search", {"words": "milk"}),
    ToolCall("call_3", "write_report", {"subject": "milk"}),
]


async def press_stop(batch: ToolBatch) -> None:
    """Stand for the user: all calls have started, one has its result; that is enough."""
    seen = []
    async for event in batch.events():
        seen.append(type(event))
        if seen.count(CallStarted) == 3 and seen.count(CallSettled) == 1:
            batch.interrupt("the user pressed stop")


async def main() -> None:
    async with ToolRunner([read_note, search, write_report]) as runner:
        async with runner.open_batch(CALLS) as batch:
            await press_stop(batch)

        for result in batch.results:
            print(f"{result.call.id}  {result.status.value}, effects: {result.effects}")
            print(f"    {result.text}")


if __name__ == "__main__":
    anyio.run(main)
