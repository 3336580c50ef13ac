"""A trio nursery over coroutines, or over `trio.to_thread.run_sync`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ..peer import THREADS, Answers, Peer


class TrioNursery(Peer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limiter = trio.CapacityLimiter(THREADS)
        self.scope = trio.CancelScope()
        self.last: list[str | None] = []

    async def turn(self) -> None:
        one = self._await if self.kind == "async" else self._in_thread
        self.last = [None] * self.count
        async with trio.open_nursery() as nursery:
            self.scope = nursery.cancel_scope
            for n in range(self.count):
                nursery.start_soon(one, n)

    async def _await(self, n: int) -> None:
        tool: Any = self.tool
        self.last[n] = await tool(n)

    async def _in_thread(self, n: int) -> None:
        tool: Any = self.tool
        self.last[n] = await trio.to_thread.run_sync(
            tool, n, abandon_on_cancel=True, limiter=self.limiter
        )

    def stop(self) -> None:
        self.scope.cancel()

    async def results(self) -> Answers:
        return [(n, text) for n, text in enumerate(self.last) if text is not None]

    def hand_over(self, function: Callable[[], object]) -> None:
        trio.from_thread.run_sync(function)
