"""A `ThreadPoolExecutor` that is shut down without waiting; the futures are kept."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..peer import THREADS, Answers, AsyncioPeer


class Executor(AsyncioPeer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pool = ThreadPoolExecutor(THREADS)
        self.futures: list[asyncio.Future[str]] = []

    async def turn(self) -> None:
        tool: Any = self.tool
        self.futures = [
            self.loop.run_in_executor(self.pool, tool, n) for n in range(self.count)
        ]
        await asyncio.wait(self.futures)

    def stop(self) -> None:
        super().stop()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = ThreadPoolExecutor(THREADS)

    async def results(self) -> Answers:
        return [
            (n, future.result())
            for n, future in enumerate(self.futures)
            if future.done() and not future.cancelled()
        ]
