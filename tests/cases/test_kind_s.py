"""Cases S: queued batches and nested runs that do not settle."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    on_cancel,
    open_batch,
    run_batch,
)
from anyio_toolbatch.testing import GatedTool, PromiseObserver, ScriptedTool, give, sleep

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


def cut_by(kind: str, *, started: bool = True) -> tuple[str, str, bool, bool]:
    status = "timed_out" if kind.endswith("timeout") else "interrupted"
    return (status, kind, started, started)


async def happens(event: threading.Event) -> None:
    """Wait, on the loop, for what a worker thread does."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


@contextlib.contextmanager
def letting_go(*gates: GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tools."""
    try:
        yield
    finally:
        for gate in gates:
            gate.open()


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns a hundred times as often as they do, so that races are met."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


# -- S2 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "why", ["max_threads", "max_concurrency", "tool's own cap", "claim", "approval"]
)
async def test_s2_closing_settles_the_queued_batches_too(
    why: str, promises: PromiseObserver
) -> None:
    """S2, P1, P4: 1 running and 2 queued batches at `aclose`: all return, nothing starts."""
    may_run = anyio.Event()

    async def approve(call: ToolCall) -> bool:
        if call.id != "id-0":
            await may_run.wait()
        return True

    options: dict[str, Any] = {
        "tool's own cap": {"max_concurrency": 1},
        "claim": {"writes": "the file"},
    }.get(why, {})
    limits: dict[str, Any] = {
        "max_threads": {"max_threads": 1},
        "max_concurrency": {"max_concurrency": 1},
        "approval": {"approve": approve},
    }.get(why, {})
    gate = GatedTool(**options)
    runner = ToolRunner([gate.tool], close_timeout=0.0, observers=[promises], **limits)
    found: dict[int, list[ToolResult]] = {}

    async def turn(number: int) -> None:
        found[number] = await runner.run([ToolCall(f"id-{number}", "gated")])

    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(turn, 0)
            await gate.wait_started()
            group.start_soon(turn, 1)
            group.start_soon(turn, 2)
            await anyio.wait_all_tasks_blocked()
            assert runner.statistics().open_batches == 3
            await runner.aclose()
        assert shape(found[0]) == [cut_by("runner_closed")]
        assert shape(found[1]) == shape(found[2]) == [cut_by("runner_closed", started=False)]
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    assert gate.started == 1
    assert runner.statistics().waiting == 0


async def test_s2_no_thread_takes_a_call_while_the_batches_are_being_closed(
    quick_switches: None, promises: PromiseObserver
) -> None:
    """S2, P4: a place that the first batch leaves is not taken by one that is about to go."""
    gate = GatedTool()
    idle = threading.Barrier(4)  # threads that are there at once when a place gets free
    await run_batch(calls(*["idle"] * 4), {"idle": lambda: idle.wait(LIVENESS)})
    runner = ToolRunner([gate.tool], max_threads=1, close_timeout=0.0, observers=[promises])
    found: list[ToolResult] = []

    async def turn() -> None:
        found.extend(await runner.run(calls("gated")))

    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(turn)
            await gate.wait_started()
            await anyio.wait_all_tasks_blocked()
            await runner.aclose()
        assert sum(r.started for r in found) == gate.started == 1
        assert {r.reason and r.reason.kind for r in found} == {"runner_closed"}
        gate.open()
        assert await runner.wait_detached(LIVENESS)


# -- S4 ------------------------------------------------------------------------


@pytest.mark.parametrize("inner_of", ["same runner", "another runner", "no runner"])
@pytest.mark.parametrize("carrier", ["loop", "from_thread", "own loop", "runs_in"])
@pytest.mark.parametrize("kind", ["user_interrupt", "caller_cancelled", "runner_closed"])
async def test_s4_stopping_the_parent_stops_its_sub_agents(
    inner_of: str, carrier: str, kind: str, anyio_backend_name: str
) -> None:
    """S4, §4.9: batches that a call has opened are cut with it, with its reason."""
    if kind == "runner_closed" and inner_of == "same runner":
        return  # that it closes them as its own is told elsewhere
    gate = GatedTool("leaf")
    inner: list[ToolBatch] = []
    inner_is_over = threading.Event()

    async def sub_agent() -> str:
        asked = calls("leaf", "leaf")
        match inner_of:
            case "same runner":
                opened = runner.open_batch(asked)
            case "another runner":
                opened = ToolRunner([gate.tool], max_threads=1).open_batch(asked)
            case _:
                opened = open_batch(asked, [gate.tool], max_threads=1)
        try:
            async with opened as batch:
                inner.append(batch)
        finally:
            inner_is_over.set()
        return "finished"

    match carrier:
        case "loop":
            agent = Tool(sub_agent, name="agent")
        case "from_thread":
            agent = Tool(lambda: from_thread.run(sub_agent), name="agent")
        case "own loop":
            agent = Tool(
                lambda: anyio.run(sub_agent, backend=anyio_backend_name), name="agent"
            )
        case _:
            agent = Tool(sub_agent, name="agent", runs_in="thread")

    runner = ToolRunner([agent, gate.tool], close_timeout=0.0)
    batches: list[ToolBatch] = []
    with letting_go(gate), anyio.fail_after(LIVENESS):
        with anyio.CancelScope() as scope:
            async with runner.open_batch(calls("agent")) as batch:
                batches.append(batch)
                await gate.wait_started()
                match kind:
                    case "user_interrupt":
                        assert batch.interrupt("the user pressed Escape") is True
                    case "caller_cancelled":
                        scope.cancel()
                    case _:
                        await runner.aclose()
        assert shape(batches[0].results) == [cut_by(kind)]
        await happens(inner_is_over)
        first, second = inner[0].results
        assert shape([first]) == [cut_by(kind)]
        assert second.status.value == "interrupted"
        assert second.reason is not None and second.reason.kind == kind
        assert inner[0].reason == batches[0].reason
        if kind == "user_interrupt":
            assert "the user pressed Escape" in first.text
        assert gate.ended == 0  # nothing waited for the leaves
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        await gate.wait_ended(gate.started)


# -- S5 ------------------------------------------------------------------------

ENDS = [
    "completed",
    "user_interrupt",
    "call_cancelled",
    "call_timeout",
    "batch_timeout",
    "caller_cancelled",
    "sibling_failed",
    "runner_closed",
]


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_s5_the_far_side_is_told_of_every_end_but_ok(
    kind: str, carrier: str, promises: PromiseObserver
) -> None:
    """S5, §3.3: the `on_cancel` hook of a remote tool runs on each cut, and only then."""
    told = threading.Event()
    answered = threading.Event()
    may_answer = anyio.Event()
    begun = anyio.Event()

    def tell_server() -> None:
        told.set()
        answered.set()

    async def remote() -> str:
        with on_cancel(tell_server):
            begun.set()
            await may_answer.wait()
        return "answer"

    def remote_in_thread() -> str:
        with on_cancel(tell_server):
            from_thread.run_sync(begun.set)
            assert answered.wait(LIVENESS)
            current_call().cancelled.is_set()
        return "answer"

    async def breaks() -> None:
        await begun.wait()
        raise OSError("disk full")

    timeout = 0.3 if kind == "call_timeout" else None
    func: Any = remote if carrier == "loop" else remote_in_thread
    tools = [Tool(func, name="remote", timeout=timeout), Tool(breaks)]
    runner = ToolRunner(tools, observers=[promises])
    asked = calls("remote", *(["breaks"] if kind == "sibling_failed" else []))
    batches: list[ToolBatch] = []
    with anyio.fail_after(LIVENESS):
        with anyio.CancelScope() as scope:
            async with runner.open_batch(
                asked, timeout=0.3 if kind == "batch_timeout" else None, fail_fast=True
            ) as batch:
                batches.append(batch)
                await begun.wait()
                match kind:
                    case "completed":
                        may_answer.set()
                        answered.set()
                    case "user_interrupt":
                        batch.interrupt()
                    case "call_cancelled":
                        batch.cancel("id-0")
                    case "caller_cancelled":
                        scope.cancel()
                    case "runner_closed":
                        await runner.aclose()
        result = batches[0].results[0]
        if kind == "completed":
            assert shape([result]) == [DONE]
            await anyio.wait_all_tasks_blocked()
            assert not told.is_set()
        else:
            assert (result.started, result.reason and result.reason.kind) == (True, kind)
            await happens(told)
        assert await runner.wait_detached(LIVENESS)


async def test_s5_the_clean_up_of_an_adapter_is_let_finish(promises: PromiseObserver) -> None:
    """S5, §4.4: its message to the server is sent, though the call was cancelled."""
    sent: list[str] = []

    async def remote() -> None:
        try:
            await anyio.sleep(600)
        finally:
            for _ in range(3):
                await anyio.sleep(0)
            sent.append("notifications/cancelled")

    async with ToolRunner([remote], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("remote")) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
    assert sent == ["notifications/cancelled"]


# -- S6 ------------------------------------------------------------------------


async def test_s6_a_settled_outcome_exists_also_when_the_peer_cancels(
    promises: PromiseObserver,
) -> None:
    """S6, P1, P8: a server's handler is cancelled: it has results to send, or not to."""
    sent: dict[str, list[ToolResult]] = {}
    quick = ScriptedTool(give("real"), name="quick")
    slow = ScriptedTool(sleep(600), name="slow")

    async def handle(request: str, scope: anyio.CancelScope) -> None:
        batch: ToolBatch | None = None
        with scope:
            async with runner.open_batch(calls("quick", "slow", "waits")) as batch:
                pass
        assert scope.cancelled_caught
        assert batch is not None
        sent[request] = batch.results

    waits = ScriptedTool(give("never"), name="waits")
    async with ToolRunner(
        [quick.tool, slow.tool, waits.tool], max_concurrency=1, observers=[promises]
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with anyio.create_task_group() as server:
                scope = anyio.CancelScope()
                server.start_soon(handle, "request 1", scope)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
            assert shape(sent["request 1"]) == [
                DONE,
                cut_by("caller_cancelled"),
                cut_by("caller_cancelled", started=False),
            ]
            assert [r.value for r in sent["request 1"]] == ["real", None, None]
            # And the place is free for the next request.
            assert shape(await runner.run(calls("quick"))) == [DONE]
    assert waits.started == 0
