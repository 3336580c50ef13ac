"""
The tests of this folder run in virtual time: clocks jump when nothing is ready.

No test here may use a worker thread: virtual clocks do not see them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
import trio.testing


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that skips ahead to its next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0.0
        self._really_select = self._selector.select
        self._selector.select = self._select  # type: ignore[method-assign]

    def _select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return self._really_select(None)
        ready = self._really_select(0)
        if not ready:
            self._skipped += timeout
        return ready

    def time(self) -> float:
        return super().time() + self._skipped


def eager_virtual_loop() -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


BACKENDS = ["asyncio", *(["eager"] if sys.version_info >= (3, 12) else []), "trio"]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    match request.param:
        case "asyncio":
            return ("asyncio", {"loop_factory": VirtualTimeLoop})
        case "eager":
            return ("asyncio", {"loop_factory": eager_virtual_loop})
        case _:
            # One clock serves one run only.
            return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})
