"""Every async test runs on each event loop; blocking tools are tested with gates."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from anyio_toolbatch.testing import PromiseObserver


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
