"""
Three ways of running several things at once, and what takes their place.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.from_thread

from anyio_toolbatch import (
    CallSettled,
    Tool,
    ToolCall,
    ToolRunner,
    from_thread,
    run_batch,
    tool,
)

PAGES = {"/news": "3 stories", "/weather": "rain"}


async def fetch(url: str) -> str:
    return PAGES[url]


async def in_place_of_gather() -> None:
    calls = [ToolCall(url, "fetch", {"url": url}) for url in ("/news", "/sport", "/weather")]
    for result in await run_batch(calls, [fetch], timeout=10):
        print(f"  {result.call.id}: {result.status.value}, {result.text}")


def word_count(path: str) -> int:
    return len(path.split("/"))


async def in_place_of_to_thread() -> None:
    async with ToolRunner([word_count], max_threads=8) as runner:
        call = ToolCall("1", "word_count", {"path": "a/b/c"})
        (result,) = await runner.run([call])
        print(f"  {result.unwrap()}")


gate = threading.Event()


def convert(name: str) -> str:
    if name == "large":
        gate.wait()  # until the small ones are through
    return name


async def in_place_of_an_executor() -> None:
    calls = [ToolCall(name, "convert", {"name": name}) for name in ("large", "small")]
    async with ToolRunner([convert]) as runner, runner.open_batch(calls) as batch:
        async for event in batch.events():  # as they complete
            if isinstance(event, CallSettled):
                print(f"  {event.result.value} is there")
                gate.set()
    print(f"  in call order: {[result.value for result in batch.results]}")


def drawn_here() -> str:
    """Of a library that wants all its calls from one thread."""
    return threading.current_thread().name


async def in_one_thread() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="canvas") as canvas:
        draw = Tool(drawn_here, name="draw", runs_in=canvas)
        calls = [ToolCall(str(n), "draw") for n in range(3)]
        print(f"  { ({result.value for result in await run_batch(calls, [draw])}) }")


@tool
def summarize(url: str) -> str:
    """Blocks, and needs the event loop for a part of its work."""
    try:
        anyio.from_thread.run(fetch, url)
    except RuntimeError:
        print("  anyio.from_thread does not know this thread")
    return from_thread.run(fetch, url).upper()


async def back_to_the_loop() -> None:
    (result,) = await run_batch([ToolCall("1", "summarize", {"url": "/weather"})], [summarize])
    print(f"  {result.value}")


async def main() -> None:
    for step in (
        in_place_of_gather,
        in_place_of_to_thread,
        in_place_of_an_executor,
        in_one_thread,
        back_to_the_loop,
    ):
        print(f"{step.__name__.replace('_', ' ')}:")
        await step()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
