"""
Several kinds of work under one runner, and who waits for what.
"""

from __future__ import annotations

import sys

import anyio

from anyio_toolbatch import CallStarted, ToolBatch, ToolCall, ToolRunner, from_thread, tool

finish = anyio.Event()  # all the work below waits for it, so that there is time to look


@tool
async def fetch(url: str) -> str:
    await finish.wait()
    return f"fetched {url}"


@tool(max_concurrency=1)
async def ask_model(question: str) -> str:
    """Its provider takes one request at a time."""
    await finish.wait()
    return f"answered {question}"


@tool(needs_slot=False)
async def wait_for_reply(person: str) -> str:
    """Does nothing but wait: it should not take a place from those that work."""
    await finish.wait()
    return f"{person} has answered"


@tool
def convert(file: str) -> str:
    """Blocks, and so needs a thread."""
    from_thread.run(finish.wait)
    return f"converted {file}"


async def running(batch: ToolBatch, count: int) -> None:
    """Wait until so many calls have started."""
    async for event in batch.events():
        count -= isinstance(event, CallStarted)
        if not count:
            break


async def main() -> None:
    tools = [fetch, ask_model, wait_for_reply, convert]
    async with ToolRunner(tools, max_concurrency=4, max_threads=1) as runner:
        async with runner.open_batch() as batch:
            convert_a = batch.submit(ToolCall("c0", "convert", {"file": "a.png"}))
            convert_b = batch.submit(ToolCall("c1", "convert", {"file": "b.png"}))
            batch.submit(ToolCall("c2", "ask_model", {"question": "why?"}))
            ask_again = batch.submit(ToolCall("c3", "ask_model", {"question": "how?"}))
            batch.submit(ToolCall("c4", "fetch", {"url": "/news"}))
            batch.submit(ToolCall("c5", "wait_for_reply", {"person": "Ada"}))
            await running(batch, 4)
            print(convert_a.explain())
            print(convert_b.explain())
            print(ask_again.explain())

            batch.submit(ToolCall("c6", "fetch", {"url": "/weather"}))
            too_many = batch.submit(ToolCall("c7", "fetch", {"url": "/traffic"}))
            await running(batch, 5)
            print(too_many.explain())

            statistics = runner.statistics()
            print(f"{statistics.running} run, {statistics.waiting} wait")
            for waiting in statistics.waiting_calls:
                print(f"  {waiting.call.id}: {waiting.kind}")
            print(runner)
            finish.set()
        print(*(result.status.value for result in batch.results))


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
