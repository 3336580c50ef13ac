"""A8, §3.1: Ctrl-C in the middle of one of our own steps."""

from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest
import trio

from anyio_toolbatch import Tool, ToolBatch, ToolCall, ToolRunner


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_break_inside_a_submit(backend: str) -> None:
    """A8: the step is finished, the break comes at the next checkpoint, results stay."""
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    returned: list[Any] = []
    batch: ToolBatch | None = None

    def press_control_c(_: ToolCall) -> None:
        signal.raise_signal(signal.SIGINT)

    async def tool() -> str:
        return "ran"

    runner = ToolRunner([Tool(tool, validate=press_control_c)], max_concurrency=1)

    async def main() -> None:
        nonlocal batch
        async with runner.open_batch() as batch:
            returned.append(batch.submit(ToolCall("1", "tool")))
            await anyio.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=backend)
    assert len(returned) == 1, "the break cut `submit` in two"
    assert batch is not None
    assert len(batch.results) == 1
    assert runner.statistics().open_batches == 0


def test_break_reaches_the_main_task_not_a_tool() -> None:
    """A8: on trio a Ctrl-C while a tool's own code runs ends the turn, not the tool."""
    seen: list[str] = []

    async def tool() -> str:
        signal.raise_signal(signal.SIGINT)
        seen.append("the tool was not broken")
        await trio.sleep(600)
        return "unreachable"

    runner = ToolRunner([tool])
    batch: ToolBatch | None = None

    async def main() -> None:
        nonlocal batch
        async with runner.open_batch([ToolCall("1", "tool")]) as batch:
            pass

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert seen == ["the tool was not broken"]
    assert batch is not None
    reason = batch.results[0].reason
    assert reason is not None and reason.kind == "caller_cancelled"
