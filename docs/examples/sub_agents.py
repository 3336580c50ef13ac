"""
A tool that is an agent itself: it runs calls of its own on the same runner.

The runner has one place only, and that is enough, at any depth.
"""

from __future__ import annotations

import sys

import anyio

from anyio_toolbatch import CallSettled, CallStarted, Event, ToolCall, ToolRunner


class Listener:
    """Tell how each call ended, those of the inner batches indented."""

    searching = anyio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallStarted) and event.call.name == "search":
            self.searching.set()
        elif isinstance(event, CallSettled):
            result = event.result
            indent = "      " if result.call.name == "search" else "  "
            print(f"{indent}{result.call.id} {result.status.value}: {result.text}")


listener = Listener()


# -- the tools ---------------------------------------------------------------


async def search(query: str) -> str:
    await anyio.sleep(0.1)
    return f"3 pages on {query}"


async def research(topic: str) -> str:
    """Be the sub-agent; its model would say what to search for."""
    queries = [f"{topic} {aspect}" for aspect in ("history", "today")]
    results = await runner.run(
        [ToolCall(f"search-{n}", "search", {"query": q}) for n, q in enumerate(queries)]
    )
    return f"a report on {topic} from {len(results)} searches"


runner = ToolRunner([search, research], max_concurrency=1, observers=[listener])


# -- the agent ---------------------------------------------------------------


def calls(*topics: str) -> list[ToolCall]:
    return [ToolCall(topic, "research", {"topic": topic}) for topic in topics]


async def main() -> None:
    print("one place, lent to the inner batch")
    await runner.run(calls("tea", "coffee"))

    print("the outer call is cut, and its inner batch with it")
    listener.searching = anyio.Event()
    async with runner.open_batch() as batch:
        handle = batch.submit(calls("tea")[0])
        await listener.searching.wait()
        handle.cancel("not needed")
    await runner.wait_detached()

    print("the user has changed his mind: what runs ends, nothing more starts")
    listener.searching = anyio.Event()
    async with runner.open_batch(calls("tea", "coffee", "milk")) as batch:
        await listener.searching.wait()
        batch.supersede("now about juice, please")

    await runner.aclose()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
