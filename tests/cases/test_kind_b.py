"""
Cases B: the turn does not return on an interrupt.

B7 (a tool with a limit of its own) is in `virtual/`, as it is about time.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from anyio_toolbatch import (
    BatchSettled,
    CallSettled,
    Event,
    LateResultDropped,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    on_cancel,
    run_batch,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant
SCRIPTS = Path(__file__).parent / "scripts"

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@contextlib.contextmanager
def letting_go(*tools: GatedTool | DeafTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tools: a deaf one would hold the loop's end."""
    try:
        yield
    finally:
        for tool in tools:
            if isinstance(tool, GatedTool):
                tool.open()
            else:
                tool.release()


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_b1_interrupt_does_not_join_running_threads(
    promises: PromiseObserver, grace: float
) -> None:
    """B1, P2, P3: one of three blocking tools has ended: one real result, two placeholders."""
    quick = GatedTool("quick", value="real")
    quick.open()
    gate = GatedTool()
    with letting_go(quick, gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([quick.tool, gate.tool], observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                first, *_ = [batch.submit(call) for call in calls("quick", "gated", "gated")]
                await gate.wait_started(2)
                await first.wait()
                batch.interrupt(grace=grace)
            assert shape(batch.results) == [DONE, CUT, CUT]
            assert batch.results[0].value == "real"
            # The threads go on, and are to be seen.
            assert gate.ended == 0
            assert [d.call for d in runner.statistics().detached] == batch.calls[1:]
            gate.open()
            await gate.wait_ended(2)
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().detached == ()
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("inner_of", ["no runner", "same runner"])
async def test_b2_wedged_inner_call_holds_no_turn(
    promises: PromiseObserver, inner_of: str
) -> None:
    """B2, P2: a tool that runs a batch with a wedged call is let go, and its batch with it."""
    gate = GatedTool("wedged")
    inner: dict[int, ToolResult] = {}
    inner_over = anyio.Event()

    def watch(event: Event) -> None:
        if event.batch_id == outer_id:
            return
        if isinstance(event, CallSettled):
            inner[event.index] = event.result
        elif isinstance(event, BatchSettled):
            inner_over.set()

    async def child() -> str:
        return "from the child"

    async def inner_agent() -> list[ToolResult]:
        asked = calls("child", "wedged")
        if inner_of == "same runner":
            return await runner.run(asked)
        return await run_batch(asked, [child, gate.tool], observers=[watch])

    tools = [inner_agent, child, gate.tool]
    outer_id = ""
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises, watch]) as runner:
            async with runner.open_batch() as batch:
                outer_id = batch.id
                batch.submit(calls("inner_agent")[0])
                await gate.wait_started()
                batch.interrupt("by the user")
            assert shape(batch.results) == [CUT]
            await inner_over.wait()
            assert gate.ended == 0
            assert inner[0].value == "from the child"
            assert shape([inner[1]]) == [CUT]
            assert inner[1].reason == batch.reason
            gate.open()
            await gate.wait_ended()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_b4_stalled_remote_call_is_let_go_and_its_transport_told(
    promises: PromiseObserver, kind: str
) -> None:
    """B4, P2, P8: the caller's cancellation leaves a placeholder and reaches the transport."""
    here, peer = socket.socketpair()
    told: list[str] = []
    waiting = threading.Event()
    send, receive = anyio.create_memory_object_stream[str]()

    def remote() -> bytes:
        def hang_up() -> None:
            told.append("hang up")
            here.shutdown(socket.SHUT_RDWR)

        with on_cancel(hang_up):
            waiting.set()
            return here.recv(1)

    async def remote_async() -> str:
        waiting.set()
        try:
            return await receive.receive()
        except anyio.get_cancelled_exc_class():
            told.append("hang up")
            raise

    tool = remote if kind == "blocking" else remote_async
    with here, peer, send, receive, anyio.fail_after(LIVENESS):
        async with ToolRunner({"remote": tool}, observers=[promises]) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch(calls("remote")) as batch:
                    await until(waiting.is_set)
                    scope.cancel()
            assert scope.cancelled_caught
            assert shape(batch.results) == [("interrupted", "caller_cancelled", True, True)]
            # The other side never answered: only being told can have ended it.
            assert await runner.wait_detached(LIVENESS)
            assert told == ["hang up"]
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("way", ["handle", "id"])
@pytest.mark.parametrize("kind", ["blocking", "deaf"])
async def test_b5_cancelled_call_settles_and_its_siblings_finish(
    promises: PromiseObserver, kind: str, way: str
) -> None:
    """B5, P1: one of three is cancelled; the group waits for the two others only."""
    gate = GatedTool("slow")
    deaf = DeafTool("slow")
    second = {"blocking": gate.tool, "deaf": deaf.tool}[kind]
    sibling = GatedTool("sibling", value="real")
    with letting_go(gate, deaf, sibling), anyio.fail_after(LIVENESS):
        async with ToolRunner([second, sibling.tool], observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                asked = calls("sibling", "slow", "sibling")
                one, two, three = [batch.submit(call) for call in asked]
                await sibling.wait_started(2)
                await until(lambda: gate.started + deaf.started == 1)
                if way == "handle":
                    assert two.cancel("not needed") is True
                    assert two.cancel("again") is False
                else:
                    assert batch.cancel("id-1", "not needed") == 1
                    assert batch.cancel("id-1", "again") == 0
                cancelled = await two.wait()
                assert one.result is None and three.result is None
                assert gate.ended == deaf.ended == 0
                sibling.open()
            assert shape(batch.results) == [
                DONE,
                ("interrupted", "call_cancelled", True, True),
                DONE,
            ]
            assert batch.results[1] == cancelled
            assert cancelled.reason is not None and cancelled.reason.message == "not needed"
            assert not batch.interrupted
            gate.open()
            deaf.release()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_b6_nothing_of_the_turn_changes_after_its_return(
    promises: PromiseObserver,
) -> None:
    """B6, P2, P5: twenty deaf calls end after the abort, and nothing of it lands in the turn."""
    gate = GatedTool()
    deaf = DeafTool()
    events: list[Event] = []
    observers = [promises, events.append]
    with letting_go(gate, deaf), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, deaf.tool], observers=observers) as runner:
            async with runner.open_batch(calls(*["gated", "deaf"] * 10)) as batch:
                reader = batch.events()
                await gate.wait_started(10)
                await until(lambda: deaf.started == 10)
                batch.interrupt()
            returned = batch.results
            assert shape(returned) == [CUT] * 20
            assert gate.ended == deaf.ended == 0
            read = [event async for event in reader]
            assert isinstance(read[-1], BatchSettled)
            await until(lambda: isinstance(events[-1], BatchSettled))
            told = len(events)

            gate.open()
            deaf.release()
            await gate.wait_ended(10)
            assert await runner.wait_detached(LIVENESS)
            await until(lambda: runner.statistics().late_results == 20)
            assert deaf.ended == 10
            assert batch.results == returned
            assert all(a is b for a, b in zip(batch.results, returned, strict=True))
            assert {type(event) for event in events[told:]} == {LateResultDropped}
            assert len(events[told:]) == 20
        promises.check(batch.id, returned)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_b9_first_of_three_breaks_ends_the_batch(backend: str) -> None:
    """B9, P2: a blocking tool does not hold the loop, so the first SIGINT is enough."""
    script = SCRIPTS / "b9_three_breaks.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, backend],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "breaks before the return": 1,
        "answers": [True, False, False],
        "results": [["interrupted", "user_interrupt", "Ctrl-C 1"]],
    }


async def test_b9_plain_functions_run_beside_the_loop() -> None:
    """B9: a plain function has a thread unless the loop was asked for."""

    def where() -> int:
        assert current_call().call.name in {"by_default", "asked_for"}
        return threading.get_ident()

    tools = [Tool(where, name="by_default"), Tool(where, name="asked_for", runs_in="loop")]
    with anyio.fail_after(LIVENESS):
        by_default, asked_for = await run_batch(calls("by_default", "asked_for"), tools)
    assert asked_for.value == threading.get_ident()
    assert by_default.value not in {None, threading.get_ident()}


async def until(condition: object) -> None:
    """Pass the loop on until something that a worker does has happened."""
    assert callable(condition)
    while not condition():
        await anyio.sleep(0.001)
