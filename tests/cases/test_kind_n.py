"""
Cases N: limits, and the deadlocks that they bring.

N2 with a deadline and N8 with its five seconds are in `virtual/`, too.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    CallProgress,
    Event,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    report_progress,
)
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Held:
    """Async tools each of whose calls ends when the test lets it; calls go by their ids."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    def tool(self, name: str, **options: Any) -> Tool:
        return Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> str:
        call_id = current_call().call.id
        self.started.append(call_id)
        self._begun[call_id].set()
        await self._may_end[call_id].wait()
        return call_id

    async def wait_started(self, *ids: str) -> None:
        with anyio.fail_after(LIVENESS):
            for call_id in ids:
                await self._begun[call_id].wait()
            await anyio.wait_all_tasks_blocked()

    def end(self, *ids: str) -> None:
        for call_id in ids:
            self._may_end[call_id].set()


def nesting_tools(carrier: str, runner: list[ToolRunner]) -> list[Tool]:
    """Return `outer`, which runs what `inner` says `depth` levels deep, and a leaf."""

    async def inner(names: list[str], depth: int) -> list[Any]:
        asked = [ToolCall(n, n, {"depth": depth} if n == "outer" else {}) for n in names]
        return [result.unwrap() for result in await runner[0].run(asked)]

    def names_at(depth: int) -> list[str]:
        return ["outer", "leaf"] if depth > 1 else ["leaf", "leaf"]

    if carrier == "loop":

        async def outer(depth: int = 1) -> Any:
            return await inner(names_at(depth), depth - 1)

        async def leaf() -> str:
            await anyio.lowlevel.checkpoint()
            return "leaf"

        return [Tool(outer), Tool(leaf)]

    def outer_in_thread(depth: int = 1) -> Any:
        return from_thread.run(inner, names_at(depth), depth - 1)

    return [Tool(outer_in_thread, name="outer"), Tool(lambda: "leaf", name="leaf")]


LIMITS = [
    ("loop", "max_concurrency"),
    ("thread", "max_concurrency"),
    ("thread", "max_threads"),
]


# -- N1 ------------------------------------------------------------------------


@pytest.mark.parametrize(("carrier", "limit"), LIMITS)
async def test_n1_parents_hold_no_slot_that_their_children_need(
    carrier: str, limit: str, promises: PromiseObserver
) -> None:
    """N1, §4.9: cap 3, and 3 tools that each open an inner batch of 2: all of it finishes."""
    runners: list[ToolRunner] = []
    caps: dict[str, Any] = {limit: 3}
    tools = nesting_tools(carrier, runners)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises], **caps) as runner:
            runners.append(runner)
            results = await runner.run(calls("outer", "outer", "outer"))
    assert [r.value for r in results] == [["leaf", "leaf"]] * 3
    assert runner.statistics().running == runner.statistics().waiting == 0


# -- N2 ------------------------------------------------------------------------


async def test_n2_a_tool_without_a_slot_gets_in(promises: PromiseObserver) -> None:
    """N2, §3.2: the call that frees the others is one that needs no slot."""
    freed = threading.Event()

    def waits() -> bool:
        return freed.wait(LIVENESS)

    tools = [Tool(waits), Tool(freed.set, name="frees", needs_slot=False)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, max_concurrency=2, observers=[promises]) as runner:
            results = await runner.run(calls("waits", "waits", "frees"))
    assert shape(results) == [DONE] * 3
    assert [r.value for r in results] == [True, True, None]


@pytest.mark.parametrize("limit", ["max_concurrency", "max_threads"])
async def test_n2_a_cap_is_a_cap_and_the_deadline_breaks_the_deadlock(
    limit: str, promises: PromiseObserver
) -> None:
    """N2, P1: else the third stays out, the batch ends by its limit, with all results."""
    gate = GatedTool("waits")
    tools = [gate.tool, Tool(gate.open, name="frees")]
    caps: dict[str, Any] = {limit: 2}
    async with ToolRunner(tools, observers=[promises], **caps) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                calls("waits", "waits", "frees"), timeout=0.3
            ) as batch:
                await gate.wait_started(2)
        assert shape(batch.results) == [
            ("timed_out", "batch_timeout", True, True),
            ("timed_out", "batch_timeout", True, True),
            ("timed_out", "batch_timeout", False, False),
        ]
        # And what was let go holds no slot: now it gets in.
        assert shape(await runner.run(calls("frees"))) == [DONE]
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


# -- N3 ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["child task", "worker thread", "both"])
async def test_n3_places_are_lent_by_context_not_by_thread(
    way: str, promises: PromiseObserver
) -> None:
    """N3, §4.9: cap 4, 3 sub-agents and a call that holds the fourth: nested calls run."""
    held = Held()

    async def leaf() -> str:
        return "leaf"

    async def nested() -> str:
        (result,) = await runner.run(calls("leaf"))
        return str(result.unwrap())

    async def in_child_task() -> str:
        values: list[str] = []

        async def child() -> None:
            values.append(await nested())

        async with anyio.create_task_group() as group:
            group.start_soon(child)
        return values[0]

    def in_thread() -> str:
        return from_thread.run(in_child_task if way == "both" else nested)

    agent = Tool(in_child_task if way == "child task" else in_thread, name="agent")
    tools = [agent, Tool(leaf), held.tool("held")]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, max_concurrency=4, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("held", "held"))
                await held.wait_started("held")
                agents = [batch.submit(call) for call in calls("agent", "agent", "agent")]
                assert [(await agent.wait()).value for agent in agents] == ["leaf"] * 3
                held.end("held")
    promises.check(batch.id, batch.results)


# -- N4 ------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 4])
@pytest.mark.parametrize(("carrier", "limit"), LIMITS)
async def test_n4_depth_five_in_a_small_pool(
    carrier: str, limit: str, cap: int, promises: PromiseObserver
) -> None:
    """N4, §4.9: it works at any depth, also where the pool is smaller than it is deep."""
    runners: list[ToolRunner] = []
    caps: dict[str, Any] = {limit: cap}
    tools = nesting_tools(carrier, runners)
    expected: Any = ["leaf", "leaf"]
    for _ in range(4):
        expected = [expected, "leaf"]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises], **caps) as runner:
            runners.append(runner)
            asked = [ToolCall(str(n), "outer", {"depth": 5}) for n in range(2)]
            results = await runner.run(asked)
    assert [r.value for r in results] == [expected] * 2


# -- N6 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_n6_waiting_for_approval_holds_no_slot(
    kind: str, promises: PromiseObserver
) -> None:
    """N6, §4.7: cap 1: a call awaits the approval that a later call of the batch gives."""
    approved = threading.Event()
    approved_here = anyio.Event()

    def ask(call: ToolCall) -> bool:
        return call.name == "approver" or approved.wait(LIVENESS)

    async def ask_async(call: ToolCall) -> bool:
        if call.name != "approver":
            await approved_here.wait()
        return True

    async def approver() -> None:
        approved.set()
        approved_here.set()

    async def needs_approval() -> str:
        return "ran"

    async with ToolRunner(
        [approver, needs_approval],
        max_concurrency=1,
        approve=ask if kind == "sync" else ask_async,
        observers=[promises],
    ) as runner:
        with anyio.fail_after(LIVENESS):
            if kind == "async":
                results = await runner.run(calls("needs_approval", "approver"))
            else:  # one question at a time: the approver's own must come first
                results = (await runner.run(calls("approver", "needs_approval")))[::-1]
    assert shape(results) == [DONE, DONE]
    assert results[0].value == "ran"


# -- N8 ------------------------------------------------------------------------


@pytest.mark.parametrize("lever", ["exclusive", "writes"])
async def test_n8_who_is_asked_for_holds_no_lock(
    lever: str, promises: PromiseObserver
) -> None:
    """N8, §4.7: while a writer's approval is open, reads before it and of others run."""
    held = Held()
    answered = anyio.Event()

    async def approve(call: ToolCall) -> bool:
        if call.name == "write":
            await answered.wait()
        return True

    options: dict[str, Any] = {lever: True if lever == "exclusive" else "record"}
    tools = [held.tool("read", reads="record"), held.tool("write", **options)]
    async with ToolRunner(tools, approve=approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch, runner.open_batch() as other:
                batch.submit(ToolCall("before", "read"))
                batch.submit(ToolCall("write", "write"))
                behind = batch.submit(ToolCall("behind", "read"))
                for n in range(3):
                    other.submit(ToolCall(f"other {n}", "read"))
                await held.wait_started("before", "other 0", "other 1", "other 2")
                # Call order holds among those of one batch, as it must.
                assert "behind" not in held.started
                assert "approval" in behind.explain()
                held.end("before", "other 0", "other 1", "other 2")
                await anyio.wait_all_tasks_blocked()
                assert len(held.started) == 4
                answered.set()
                await held.wait_started("write")
                assert "behind" not in held.started
                held.end("write")
                await held.wait_started("behind")
                held.end("behind")
    assert shape(batch.results + other.results) == [DONE] * 6


# -- N9 ------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_n9_a_flood_of_progress_stalls_nobody(
    carrier: str, promises: PromiseObserver
) -> None:
    """N9, §3.4: 10 talkative calls, a reader that sleeps: all end; progress is coalesced."""
    reports = 2000

    def talk() -> str:
        for n in range(1, reports + 1):
            report_progress(n, reports)
        return "said"

    async def talk_async() -> str:
        for n in range(1, reports + 1):
            report_progress(n, reports)
            if n % 100 == 0:
                await anyio.sleep(0)
        return "said"

    async def approve(_: ToolCall) -> bool:
        await anyio.sleep(0)
        return True

    tool = Tool(talk if carrier == "thread" else talk_async, name="talk")
    async with ToolRunner([tool], approve=approve, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                events = batch.events()
                first: Event = await anext(events)  # and then it reads no more
                for call in calls(*["talk"] * 10):
                    batch.submit(call)
        assert shape(batch.results) == [DONE] * 10
        rest = [event async for event in events]
    assert first.batch_id == batch.id
    seen = [e for e in rest if isinstance(e, CallProgress)]
    assert len(seen) <= 10  # the newest of each call, or nothing once it has ended
    promises.check(batch.id, batch.results)
