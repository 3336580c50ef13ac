"""Calls that run until they are released: what a user interrupts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from anyio_toolbatch import Tool, ToolCall, ToolRunner

__all__ = ("Caller", "Kind", "Parked", "Stopwatch")

Kind = Literal["async", "blocking"]
Caller = Literal["loop", "thread"]

IDLE_SECONDS = 0.005
"""How long everything has been quiet when the interrupt comes."""


class Stopwatch:
    """When the interrupt was asked for."""

    def __init__(self) -> None:
        self.start = 0.0

    def __call__(self) -> float:
        """Return the seconds since then."""
        return time.perf_counter() - self.start


class Parked:
    """
    A number of calls, async sleepers or threads that wait for an event.

    The runner is made once, as in a program; `release` makes ready for the
    next round.
    """

    def __init__(self, kind: Kind, count: int) -> None:
        self.kind = kind
        self.count = count
        self.calls = [ToolCall(str(number), "park") for number in range(count)]
        function = self.sleep if kind == "async" else self.block
        self.runner = ToolRunner(
            [Tool(function, name="park")], max_threads=count, max_detached=2 * count
        )
        self._started: list[None] = []
        self._ended: list[None] = []
        self._gate = threading.Event()

    async def sleep(self) -> None:
        self._started.append(None)
        try:
            await anyio.sleep_forever()
        finally:
            self._ended.append(None)

    def block(self) -> None:
        gate = self._gate
        self._started.append(None)
        gate.wait()
        self._ended.append(None)

    async def all_run(self) -> None:
        """Wait until all calls run and nothing else goes on."""
        while len(self._started) < self.count:
            await anyio.sleep(0.002)
        await anyio.sleep(IDLE_SECONDS)

    @property
    def all_ended(self) -> bool:
        return len(self._ended) == self.count

    async def release(self) -> None:
        """End the calls; return when all have ended."""
        self._gate.set()
        while not self.all_ended:
            await anyio.sleep(0.002)
        await self.runner.wait_detached()
        self._started.clear()
        self._ended.clear()
        self._gate = threading.Event()

    def interrupt_soon(
        self,
        group: TaskGroup,
        caller: Caller,
        stopwatch: Stopwatch,
        interrupt: Callable[[], object],
    ) -> None:
        """Interrupt when all calls run, from a task or from a foreign thread."""

        def strike() -> None:
            stopwatch.start = time.perf_counter()
            interrupt()

        def strike_later() -> None:
            time.sleep(IDLE_SECONDS)  # until the loop is asleep
            strike()

        async def wait_and_strike() -> None:
            await self.all_run()
            if caller == "loop":
                strike()
            else:
                threading.Thread(target=strike_later, daemon=True).start()

        group.start_soon(wait_and_strike)
