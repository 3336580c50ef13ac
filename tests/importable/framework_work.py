"""Functions to be made tools of any framework, held by gates, and who sees them run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import CallSettled, CallStarted, Event, ToolResult, ToolRunner

LIVENESS = 10.0  # seconds, where milliseconds are meant

ASYNCIO = [pytest.param(("asyncio", {"debug": True}), id="asyncio")]
if sys.platform != "win32":
    ASYNCIO.append(pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"))
"""The frameworks' own loops run on nothing else."""


class Work:
    """
    The functions, and what has become of their calls.

    * ``quick(n)`` answers at once, ``stuck(n)`` blocks until the gate is opened,
      ``deaf(n)`` is async and swallows cancellations until then, ``broken(n)`` raises,
      ``rogue(n)`` cancels itself.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started: list[str] = []
        self.results: list[ToolResult] = []
        self.daemons: list[bool] = []
        """Whether the threads that `block` are such as no exit waits for."""
        self._changed: anyio.Event | None = None

        def quick(n: int) -> str:
            """Answer."""
            return f"quick {n}"

        def stuck(n: int) -> str:
            """Block."""
            self.block()
            return f"late {n}"

        async def deaf(n: int) -> str:
            """Refuse to stop."""
            while not self.gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            return f"late {n}"

        async def broken(n: int) -> str:
            """Fail."""
            raise ValueError(f"no {n} here")

        async def rogue(n: int) -> str:
            """Cancel itself."""
            raise asyncio.CancelledError

        self.functions: list[Callable[..., Any]] = [quick, stuck, deaf, broken, rogue]

    def runner(self, **options: Any) -> ToolRunner:
        return ToolRunner(observers=[self._observe], **options)

    def _observe(self, event: Event) -> None:
        if isinstance(event, CallStarted):
            self.started.append(event.call.name)
        elif isinstance(event, CallSettled):
            self.results.append(event.result)
        if self._changed is not None:
            self._changed.set()

    def block(self) -> None:
        """Wait for the gate, in a worker thread."""
        self.daemons.append(threading.current_thread().daemon)
        self.gate.wait(LIVENESS)

    async def until(self, *, started: int, settled: int, blocked: int | None = None) -> None:
        """Wait until so many calls have begun and ended, and so many, or all stuck, block."""
        with anyio.fail_after(LIVENESS):
            while len(self.started) < started or len(self.results) < settled:
                self._changed = anyio.Event()
                await self._changed.wait()
            if blocked is None:
                blocked = self.started.count("stuck")
            while len(self.daemons) < blocked:
                await anyio.sleep(0.001)  # one is on its way to its thread


@contextlib.contextmanager
def at_work() -> Iterator[Work]:
    work = Work()
    try:
        yield work
    finally:
        work.gate.set()
