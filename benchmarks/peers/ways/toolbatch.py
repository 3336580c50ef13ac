"""This library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio_toolbatch import ToolCall, ToolResult, ToolRunner, from_thread

from ..peer import THREADS, Answers, Peer


class Toolbatch(Peer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.runner = ToolRunner({"work": self.tool}, max_threads=THREADS)
        self.calls = [ToolCall(str(n), "work", {"n": n}) for n in range(self.count)]
        self.last: list[ToolResult] = []

    async def turn(self) -> None:
        self.last = await self.runner.run(self.calls)

    def stop(self) -> None:
        self.runner.interrupt()

    async def results(self) -> Answers:
        return [(result.index, result.text) for result in self.last]

    def hand_over(self, function: Callable[[], object]) -> None:
        from_thread.run_sync(function)
