"""
Every async test runs on each event loop; blocking tools are tested with gates.

Where a test is about seconds it runs in virtual time: clocks jump when nothing is ready.
Its folder's ``conftest.py`` says so. It may use no worker thread: virtual clocks do not
see them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio.testing

from anyio_toolbatch.testing import PromiseObserver

# asyncio's debug mode warns of each step over 0.1 s: on a busy machine that is no news.
logging.getLogger("asyncio").setLevel(logging.ERROR)

# A shell lets what it starts in the background ignore Ctrl-C, which Python then leaves so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


def _backends() -> list[Any]:
    found = [pytest.param(("asyncio", {"debug": True}), id="asyncio")]
    if sys.platform != "win32":
        found.append(pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"))
    if sys.version_info >= (3, 12):
        found.append(pytest.param(("asyncio", {"loop_factory": eager_loop}), id="eager"))
    found.append(pytest.param(("trio", {}), id="trio"))
    return found


@pytest.fixture(params=_backends())
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def promises() -> Iterator[PromiseObserver]:
    """An observer to hand to a runner; a broken promise fails the test at its end."""
    observer = PromiseObserver()
    yield observer
    observer.check()


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


VIRTUAL_BACKENDS = ["asyncio", *(["eager"] if sys.version_info >= (3, 12) else []), "trio"]


@pytest.fixture(params=VIRTUAL_BACKENDS)
def virtual_backend(request: pytest.FixtureRequest) -> Any:
    """An event loop whose clock jumps."""
    match request.param:
        case "asyncio":
            return ("asyncio", {"loop_factory": VirtualTimeLoop})
        case "eager":
            return ("asyncio", {"loop_factory": eager_virtual_loop})
        case _:
            # One clock serves one run only.
            return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})
