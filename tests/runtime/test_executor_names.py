"""What an executor can tell of the callable that it is given."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from anyio_toolbatch import Tool, ToolCall, run_batch


class Listing(ThreadPoolExecutor):
    """Notes what it would show of each call."""

    def __init__(self) -> None:
        super().__init__(1)
        self.names: list[str] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.names.append(fn.__name__)
        return super().submit(fn, *args, **kwargs)


async def test_submitted_callable_has_the_tools_name() -> None:
    """As a function has: engines put it on their dashboards."""
    with Listing() as executor:
        tool = Tool(lambda: 1, name="simulate", runs_in=executor)
        await run_batch([ToolCall("id", "simulate")], [tool])
    assert executor.names == ["simulate"]
