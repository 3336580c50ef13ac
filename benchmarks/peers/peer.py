"""What a way of running a batch of calls has to offer, to be measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

__all__ = ("THREADS", "Answers", "AsyncioPeer", "Kind", "Peer", "ToolFunction")

Kind = Literal["async", "blocking"]
ToolFunction = Callable[[int], str] | Callable[[int], Awaitable[str]]
Answers = list[tuple[int, str]]
"""The number of a call, and what the model is told of it; in the order of the answers."""

THREADS = 8
"""How many calls block at the same time, in each of them."""


class Peer:
    """
    One way to run a batch of calls ``tool(0)``, ``tool(1)``, …

    Made on the event loop. Turns follow one another; each runs the batch again.

    Args:
        tool: What is called; gives a text.
        count: How many calls a batch has.
        kind: Whether the tool is a coroutine function, or blocks.
        history: Keep the conversation, as whoever wants to go on after a stop would. Off
            where only the cost of a turn is measured.
    """

    def __init__(self, tool: ToolFunction, count: int, kind: Kind, *, history: bool) -> None:
        self.tool = tool
        self.count = count
        self.kind = kind
        self.history = history

    async def turn(self) -> None:
        """Run a turn to its end."""
        raise NotImplementedError

    async def start(self) -> None:
        """Run a turn that `stop` may end; returns when its caller has the say again."""
        await self.turn()

    def stop(self) -> None:
        """Stop the turn at once, in the way that is meant for it. On the event loop."""
        raise NotImplementedError

    async def results(self) -> Answers:
        """Return what the next request to the model would hold of the last turn."""
        raise NotImplementedError

    def hand_over(self, function: Callable[[], object]) -> None:
        """Have a function called on the event loop, from within a blocking tool."""
        raise NotImplementedError


class AsyncioPeer(Peer):
    """One that is stopped by cancelling the task that awaits it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.ensure_future(self.turn())
        try:
            await self._task
        except asyncio.CancelledError:
            pass

    def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def hand_over(self, function: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(function)
