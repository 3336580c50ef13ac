"""Kind J: order, ids and duplicates."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    CallSettled,
    Event,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


async def until(condition: Callable[[], object]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


class Doors:
    """A tool `step(n)` whose n-th call ends when its door is opened."""

    def __init__(self, carrier: str, count: int) -> None:
        self.tool = Tool(
            self._in_thread if carrier == "thread" else self._on_loop, name="step"
        )
        self._flags = [threading.Event() for _ in range(count)]
        self._events = [anyio.Event() for _ in range(count)]

    def _in_thread(self, n: int) -> str:
        assert self._flags[n].wait(LIVENESS)
        return f"value {n}"

    async def _on_loop(self, n: int) -> str:
        await self._events[n].wait()
        return f"value {n}"

    def open(self, n: int) -> None:
        self._flags[n].set()
        self._events[n].set()


def steps(count: int, *, id: str = "id-{}") -> list[ToolCall]:
    return [ToolCall(id.format(n), "step", {"n": n}) for n in range(count)]


def settled_order(events: list[Event]) -> list[int]:
    return [event.index for event in events if isinstance(event, CallSettled)]


async def run_in_order(
    calls: list[ToolCall], doors: Doors, order: list[int], observer: PromiseObserver
) -> list[ToolResult]:
    """Run the calls so that they end in this order, each one settled before the next."""
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([doors.tool], observers=[observer]) as runner:
            async with runner.open_batch(calls) as batch:
                for n in order:
                    doors.open(n)
                    await until(lambda: batch.snapshot()[n] is not None)
            observer.check(batch.id, batch.results)
            assert settled_order(observer.events) == order
            return batch.results


carriers = pytest.mark.parametrize("carrier", ["loop", "thread"])


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (ToolCall("second", "no_such_tool"), "unknown_tool"),
        (ToolCall("second", "slow", '{"cut of'), "bad_arguments"),
        (ToolCall("denied", "slow"), "not_approved"),
    ],
    ids=["unknown tool", "broken arguments", "denied"],
)
async def test_j1_refused_call_does_not_come_before_a_running_one(
    refused: ToolCall, kind: str, promises: PromiseObserver
) -> None:
    """J1, P1: results in call order; the order of completion is seen in events alone."""
    slow = GatedTool("slow", value="real")
    status = Status.DENIED if refused.id == "denied" else Status.INVALID

    async def approve(call: ToolCall) -> bool:
        return call.id != "denied"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([slow.tool], approve=approve, observers=[promises]) as runner:
            async with runner.open_batch([ToolCall("first", "slow"), refused]) as batch:
                await slow.wait_started()
                await until(lambda: batch.snapshot()[1] is not None)
                running, settled = batch.snapshot()
                assert running is None
                assert settled is not None and settled.status is status
                assert settled.reason is not None and settled.reason.kind == kind
                slow.open()
            assert [r.call for r in batch.results] == batch.calls
            assert batch.results[0].value == "real"
            assert settled_order(promises.events) == [1, 0]
            rendered = openai_chat.render_results(batch.results)
            assert [m["tool_call_id"] for m in rendered] == ["first", refused.id]


@carriers
async def test_j2_two_calls_that_end_in_reverse(
    carrier: str, promises: PromiseObserver
) -> None:
    """J2, P1: results stand in call order, so that pairing by position is right, too."""
    results = await run_in_order(steps(2), Doors(carrier, 2), [1, 0], promises)
    assert [r.value for r in results] == ["value 0", "value 1"]
    blocks = anthropic.render_results(results)["content"]
    assert [(b["tool_use_id"], b["content"]) for b in blocks] == [
        ("id-0", "value 0"),
        ("id-1", "value 1"),
    ]


@carriers
async def test_j3_five_calls_that_end_last_to_first(
    carrier: str, promises: PromiseObserver
) -> None:
    """J3, P1: call order, however many run at once and whenever they end."""
    results = await run_in_order(steps(5), Doors(carrier, 5), [4, 3, 2, 1, 0], promises)
    assert [r.index for r in results] == [0, 1, 2, 3, 4]
    assert [r.value for r in results] == [f"value {n}" for n in range(5)]


async def test_j4_equal_outcomes_give_equal_bytes() -> None:
    """J4, P1, P6: other timings change no byte of what the provider is sent."""

    def failing() -> None:
        raise ValueError("always the same")

    async def turn(order: list[int]) -> tuple[list[ToolResult], bytes]:
        doors = Doors("thread", 2)
        stuck = GatedTool("stuck")
        with anyio.fail_after(LIVENESS):
            async with ToolRunner([doors.tool, stuck.tool, failing]) as runner:
                async with runner.open_batch() as batch:
                    for call in [*steps(2), ToolCall("f", "failing"), ToolCall("s", "stuck")]:
                        batch.submit(call)
                    await stuck.wait_started()
                    for n in order:
                        doors.open(n)
                        await until(lambda: batch.snapshot()[n] is not None)
                    await until(lambda: batch.snapshot()[2] is not None)
                    batch.interrupt("enough")
                    batch.submit(ToolCall("l", "step", {"n": 0}))
                stuck.open()
                assert await runner.wait_detached(LIVENESS)
        sent = [openai_chat.render_results(batch.results)]
        sent.append([anthropic.render_results(batch.results)])
        return batch.results, json.dumps(sent).encode()

    first, first_bytes = await turn([0, 1])
    second, second_bytes = await turn([1, 0])
    assert first_bytes == second_bytes
    assert [r.status.value for r in first] == [
        "completed",
        "completed",
        "failed",
        "interrupted",
        "interrupted",
    ]
    assert [r.started for r in first] == [True, True, True, True, False]
    # Also as values: times take no part in equality. (Errors are never equal.)
    assert [first[i] == second[i] for i in (0, 1, 3, 4)] == [True] * 4
    assert first[3].run_time != second[3].run_time, "the scenario needs other timings"


DUPLICATES = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "step", "arguments": json.dumps({"n": n})},
        }
        for n in range(3)
    ],
}


@carriers
async def test_j5_three_calls_with_one_id(carrier: str, promises: PromiseObserver) -> None:
    """J5, P1: calls are kept apart by position: none is dropped, ids are as given."""
    calls = openai_chat.parse_calls(DUPLICATES)
    results = await run_in_order(calls, Doors(carrier, 3), [2, 0, 1], promises)
    assert openai_chat.render_results(results) == [
        {"role": "tool", "tool_call_id": "call_0", "content": f"value {n}"} for n in range(3)
    ]


async def test_j5_cancelling_a_shared_id_cuts_all_that_have_it() -> None:
    """J5, P1: `cancel(id)` reaches each unsettled call of that id, and says how many."""
    doors = Doors("loop", 3)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([doors.tool]) as runner:
            async with runner.open_batch(steps(3, id="same")) as batch:
                await until(lambda: runner.statistics().running == 3)
                doors.open(1)
                await until(lambda: batch.snapshot()[1] is not None)
                assert batch.cancel("same") == 2
                assert batch.cancel("same") == 0
                assert batch.cancel("other") == 0
            assert [r.value for r in batch.results] == [None, "value 1", None]
            kinds = [r.reason.kind if r.reason else None for r in batch.results]
            assert kinds == ["call_cancelled", None, "call_cancelled"]
            assert not batch.interrupted


@carriers
async def test_j7_each_result_carries_its_own_calls_id(
    carrier: str, promises: PromiseObserver
) -> None:
    """J7, P1: four calls that end as 3, 1, 4, 2 keep their ids, in call order."""
    results = await run_in_order(steps(4), Doors(carrier, 4), [2, 0, 3, 1], promises)
    expected: list[Any] = [(f"id-{n}", f"value {n}") for n in range(4)]
    assert [(r.call.id, r.value) for r in results] == expected
    told = [e.result for e in promises.events if isinstance(e, CallSettled)]
    assert [(r.call.id, r.value) for r in told] == [expected[n] for n in (2, 0, 3, 1)]
    rendered = openai_chat.render_results(results)
    assert [(m["tool_call_id"], m["content"]) for m in rendered] == expected
