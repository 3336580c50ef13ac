"""An anyio task group over coroutines, or over `anyio.to_thread.run_sync`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from ..peer import THREADS, Answers, Peer


class AnyioGroup(Peer):
    abandons = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limiter = anyio.CapacityLimiter(THREADS)
        self.scope = anyio.CancelScope()
        self.last: list[str | None] = []

    async def turn(self) -> None:
        one = self._await if self.kind == "async" else self._in_thread
        self.last = [None] * self.count
        async with anyio.create_task_group() as group:
            self.scope = group.cancel_scope
            for n in range(self.count):
                group.start_soon(one, n)

    async def _await(self, n: int) -> None:
        tool: Any = self.tool
        self.last[n] = await tool(n)

    async def _in_thread(self, n: int) -> None:
        tool: Any = self.tool
        self.last[n] = await anyio.to_thread.run_sync(
            tool, n, abandon_on_cancel=self.abandons, limiter=self.limiter
        )

    def stop(self) -> None:
        self.scope.cancel()

    async def results(self) -> Answers:
        return [(n, text) for n, text in enumerate(self.last) if text is not None]

    def hand_over(self, function: Callable[[], object]) -> None:
        anyio.from_thread.run_sync(function)


class AnyioGroupWaiting(AnyioGroup):
    """As it is by default: a thread is waited for."""

    abandons = False
