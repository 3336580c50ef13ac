"""
One stop, twice: of a turn that `gather` runs, and of a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from anyio_toolbatch import ToolCall, ToolRunner, from_thread


class Book:
    """A tool that blocks, and then shows the user something through the event loop."""

    def __init__(self, show: Callable[[str], Any]) -> None:
        self.show = show
        self.thread: threading.Thread | None = None
        self.opened = threading.Event()
        self.ends = threading.Event()
        self.closed = threading.Event()

    def read(self) -> str:
        try:
            self.thread = threading.current_thread()
            self.opened.set()
            self.ends.wait()
            self.show("the butler did it")
            return "300 pages"
        finally:
            self.closed.set()


answered = threading.Event()


async def look_up() -> str:
    answered.set()
    return "42"


async def until(*events: threading.Event) -> None:
    while not all(event.is_set() for event in events):  # noqa: ASYNC110 - set in threads
        await asyncio.sleep(0.001)


async def with_gather() -> None:
    loop = asyncio.get_running_loop()
    screen: list[str] = []
    book = Book(lambda text: loop.call_soon_threadsafe(screen.append, text))
    turn = asyncio.gather(look_up(), asyncio.to_thread(book.read), return_exceptions=True)
    await until(answered, book.opened)
    turn.cancel()
    try:
        print("  results:", await turn)
    except asyncio.CancelledError:
        print("  results: none, CancelledError")
    await the_next_turn(book, screen)


async def with_a_batch() -> None:
    screen: list[str] = []
    book = Book(lambda text: from_thread.run_sync(screen.append, text))
    runner = ToolRunner({"look_up": look_up, "read": book.read})
    async with runner.open_batch([ToolCall("1", "look_up"), ToolCall("2", "read")]) as batch:
        await until(answered, book.opened)
        batch.interrupt()
    for result in batch.results:
        print(f"  result {result.index}: {result.text}")
    await the_next_turn(book, screen)


async def the_next_turn(book: Book, screen: list[str]) -> None:
    assert book.thread is not None
    print("  the end of the program waits for the book:", not book.thread.daemon)
    book.ends.set()
    await until(book.closed)
    await asyncio.sleep(0.01)  # what was posted to the loop has come
    print("  the next turn's screen:", screen)


async def main() -> None:
    for turn in (with_gather, with_a_batch):
        print(turn.__name__.replace("_", " "))
        answered.clear()
        await turn()


if __name__ == "__main__":
    asyncio.run(main())
