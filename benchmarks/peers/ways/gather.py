"""`asyncio.gather` over coroutines, or over `asyncio.to_thread`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..peer import THREADS, Answers, AsyncioPeer


class Gather(AsyncioPeer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loop.set_default_executor(ThreadPoolExecutor(THREADS))
        self.last: list[str] = []

    async def turn(self) -> None:
        tool: Any = self.tool
        self.last = []
        if self.kind == "async":
            self.last = await asyncio.gather(*map(tool, range(self.count)))
        else:
            self.last = await asyncio.gather(
                *(asyncio.to_thread(tool, n) for n in range(self.count))
            )

    async def results(self) -> Answers:
        return list(enumerate(self.last))
