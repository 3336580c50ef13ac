"""Case Q1: steering in mid-batch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import pytest

from anyio_toolbatch import CallStarted, Tool, ToolCall, ToolResult, ToolRunner, current_call
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
SUPERSEDED = ("interrupted", "superseded", False, False)

SERIAL = {
    "max_concurrency": ({"max_concurrency": 1}, {}),
    "tool's own cap": ({}, {"max_concurrency": 1}),
    "exclusive": ({}, {"exclusive": True}),
    "writes": ({}, {"writes": "the file"}),
}


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@pytest.mark.parametrize("serial", SERIAL)
async def test_q1_steering_lets_what_runs_finish_and_starts_no_more(
    serial: str, promises: PromiseObserver
) -> None:
    """Q1, §3.1: 6 serial calls, steered in the second: it finishes, four never start."""
    may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
    begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def step() -> str:
        call_id = current_call().call.id
        begun[call_id].set()
        await may_end[call_id].wait()
        return f"step {call_id}"

    limits: dict[str, Any]
    limits, options = SERIAL[serial]
    tool = Tool(step, **options)
    async with ToolRunner([tool], observers=[promises], **limits) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall(str(n), "step") for n in range(6)]
            ) as batch:
                may_end["0"].set()
                await begun["1"].wait()
                assert batch.supersede("use the other branch") is True
                assert batch.supersede("again") is False
                await anyio.wait_all_tasks_blocked()
                # At once, and not when the running one has ended.
                assert [r is not None for r in batch.snapshot()] == [True, False, *[True] * 4]
                may_end["1"].set()
    assert shape(batch.results) == [DONE, DONE, *[SUPERSEDED] * 4]
    assert batch.results[1].value == "step 1"
    for result in batch.results[2:]:
        assert "not started" in result.text
        assert "use the other branch" in result.text
    started = [e.index for e in promises.events if isinstance(e, CallStarted)]
    assert started == [0, 1]
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("limit", ["max_concurrency", "max_threads"])
async def test_q1_the_same_in_threads(limit: str, promises: PromiseObserver) -> None:
    """Q1, P4: a blocking call is let finish too, and the thread that gets free takes nothing."""
    gate = GatedTool("step")
    limits: dict[str, Any] = {limit: 1}
    async with ToolRunner([gate.tool], observers=[promises], **limits) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall(str(n), "step") for n in range(6)]
            ) as batch:
                gate.let_through()
                await gate.wait_started(2)
                assert batch.supersede() is True
                gate.open()
        assert shape(batch.results) == [DONE, DONE, *[SUPERSEDED] * 4]
        assert gate.started == 2
        # The turn that was steered to runs.
        assert shape(await runner.run([ToolCall("new", "step")])) == [DONE]
    promises.check(batch.id, batch.results)
