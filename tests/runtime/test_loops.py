"""P7, §4.1, §4.5: many loops, loops that end, forks, threads that cannot be had."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    RunnerClosedError,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    run_batch,
)
from anyio_toolbatch.testing import DeafTool, GatedTool

LIVENESS = 20.0
BACKENDS: list[tuple[str, dict[str, Any]]] = [
    ("asyncio", {}),
    ("asyncio", {"use_uvloop": True}),
    ("trio", {}),
]


@pytest.fixture(params=BACKENDS, ids=["asyncio", "uvloop", "trio"])
def loop_kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def in_loop(kind: tuple[str, dict[str, Any]], function: Any) -> Any:
    return anyio.run(function, backend=kind[0], backend_options=kind[1])


def test_one_runner_over_many_loops_one_after_the_other() -> None:
    """§3.1: a runner made outside of any loop serves loop after loop, of any kind."""

    async def async_tool() -> str:
        await anyio.sleep(0)
        return "async"

    runner = ToolRunner({"sync": lambda: "sync", "async": async_tool})

    async def turn() -> list[Any]:
        results = await runner.run([ToolCall("0", "sync"), ToolCall("1", "async")])
        return [r.value for r in results]

    for _ in range(5):
        for kind in BACKENDS:
            assert in_loop(kind, turn) == ["sync", "async"]
    assert runner.statistics().open_batches == 0


def test_one_runner_in_four_loops_at_once() -> None:
    """§3.1: at once in several threads; limits are per loop; interrupt reaches all."""
    gate = GatedTool()
    runner = ToolRunner([gate.tool], max_threads=1)
    results: list[list[ToolResult]] = []

    async def turn() -> None:
        results.append(await runner.run([ToolCall("0", "gated"), ToolCall("1", "gated")]))

    kinds = [*BACKENDS, BACKENDS[0]]
    threads = [threading.Thread(target=in_loop, args=(kind, turn)) for kind in kinds]
    for thread in threads:
        thread.start()

    async def all_started() -> None:
        await gate.wait_started(4)

    anyio.run(all_started)
    assert runner.statistics().open_batches == 4
    assert runner.interrupt("from the main thread") == 4
    for thread in threads:
        thread.join(LIVENESS)
        assert not thread.is_alive()
    assert len(results) == 4
    for batch in results:
        assert [r.started for r in batch] == [True, False]
        assert [r.status.value for r in batch] == ["interrupted"] * 2
    gate.open()


def test_hundred_finished_loops_leave_nothing(loop_kind: Any) -> None:
    """§4.1: no table keeps a loop, a batch or a state after its `anyio.run`."""
    gate = GatedTool()
    runner = ToolRunner([gate.tool], max_detached=1000)
    loops: list[Any] = []

    async def turn() -> None:
        async with runner.open_batch([ToolCall("0", "gated")]) as batch:
            await gate.wait_started(len(loops) + 1)
            batch.interrupt()
        loops.append(weakref.ref(anyio.lowlevel.current_token().native_token))

    for _ in range(100):
        in_loop(loop_kind, turn)
    # Detached threads still run, and keep no loop alive. (anyio's own helper
    # thread of the last loop may need a moment to let go of it.)
    wait_for(lambda: gc.collect() >= 0 and all(ref() is None for ref in loops))
    assert len(runner.statistics().detached) == 100
    gate.open()

    async def settled() -> None:
        await gate.wait_ended(100)

    anyio.run(settled)
    del settled, turn
    wait_for(lambda: not runner.statistics().detached)
    gc.collect()
    assert runner._live_states() == []


def test_late_end_after_the_loop_has_closed_is_silent(
    loop_kind: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """P7: a worker that ends after its loop is gone says nothing, and breaks nothing."""
    gate = GatedTool()
    polled = threading.Event()

    def tool() -> None:
        gate.tool.func()
        current_call()
        polled.set()

    async def turn() -> None:
        async with ToolRunner([tool], close_timeout=0) as runner:
            async with runner.open_batch([ToolCall("0", "tool")]) as batch:
                await gate.wait_started()
                batch.interrupt()

    in_loop(loop_kind, turn)
    gate.open()
    assert polled.wait(LIVENESS)
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")


def test_worker_that_visits_a_closed_loop_is_let_go(loop_kind: Any) -> None:
    """P7, FACTS §1: `from_thread` on a loop that is gone raises, and does not hang."""
    from anyio_toolbatch import CallDetached, from_thread

    gate = GatedTool()
    seen: list[str] = []

    def tool() -> None:
        gate.tool.func()
        try:
            from_thread.run_sync(print)
        except CallDetached:
            seen.append("let go")

    async def turn() -> None:
        async with ToolRunner([tool], close_timeout=0) as runner:
            async with runner.open_batch([ToolCall("0", "tool")]) as batch:
                await gate.wait_started()
                batch.interrupt()

    in_loop(loop_kind, turn)
    gate.open()
    wait_for(lambda: seen == ["let go"])


async def test_closed_runner_refuses() -> None:
    """§3.1: after `aclose` nothing can be opened; closing twice is fine."""
    runner = ToolRunner()
    await runner.aclose()
    await runner.aclose()
    with pytest.raises(RunnerClosedError):
        await runner.run([])
    with pytest.raises(RunnerClosedError):
        async with runner.open_batch():
            pass
    with pytest.raises(RunnerClosedError):
        async with runner:
            pass


async def test_closing_interrupts_and_is_bounded() -> None:
    """D4, P7: `aclose` ends open batches as `runner_closed`, and waits for a bounded time."""
    gate, deaf = GatedTool(), DeafTool()
    results: list[ToolResult] = []
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            async with ToolRunner([gate.tool, deaf.tool], close_timeout=0.05) as runner:

                async def turn() -> None:
                    results.extend(
                        await runner.run([ToolCall("0", "gated"), ToolCall("1", "deaf")])
                    )

                group.start_soon(turn)
                await gate.wait_started()
    assert [r.reason.kind for r in results if r.reason] == ["runner_closed"] * 2
    gate.open()
    deaf.release()


async def test_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14: a failed thread start is that call's failure; the others keep their results."""
    from anyio_toolbatch._runtime import threads

    bring = threads._bring_thread
    brought = 0

    def refuse_the_third(lane: threads.Lane) -> None:
        nonlocal brought
        if lane.limit == 17:  # this test's own; others may be ending still
            brought += 1
            if brought == 3:
                raise RuntimeError("can't start new thread")
        bring(lane)

    monkeypatch.setattr(threads, "_bring_thread", refuse_the_third)
    gate = GatedTool(value="real")
    async with ToolRunner([gate.tool], max_threads=17) as runner:
        async with runner.open_batch([ToolCall(str(i), "gated") for i in range(3)]) as batch:
            await gate.wait_started(2)
            await until(lambda: batch.snapshot()[2] is not None)
            gate.open()
    assert [r.status.value for r in batch.results] == ["completed", "completed", "failed"]
    failed = batch.results[2]
    assert isinstance(failed.error, RuntimeError) and not failed.started
    assert failed.effects == "none"


async def test_no_thread_at_all_fails_every_waiting_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P1: where nobody would ever come for them, all calls have a result at once."""
    from anyio_toolbatch._runtime import threads

    bring = threads._bring_thread

    def refuse(lane: threads.Lane) -> None:
        if lane.limit == 18:
            raise RuntimeError("can't start new thread")
        bring(lane)

    monkeypatch.setattr(threads, "_bring_thread", refuse)
    calls = [ToolCall(str(i), "t") for i in range(5)]
    results = await run_batch(calls, {"t": lambda: 1}, max_threads=18)
    assert [r.status.value for r in results] == ["failed"] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_is_safe() -> None:
    """§4.5: the child has no threads of ours and starts its own."""

    async def turn() -> Any:
        return (await run_batch([ToolCall("0", "t")], {"t": lambda: "ran"}))[0].value

    assert anyio.run(turn) == "ran"  # leaves idle threads behind
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if anyio.run(turn) == "ran" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_no_more_threads_than_asked_for() -> None:
    """P10: `max_threads` counts attached work, and is kept."""
    running = 0
    most = 0
    lock = threading.Lock()
    gate = GatedTool()

    def tool() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.tool.func()
        with lock:
            running -= 1

    async with ToolRunner([tool], max_threads=3) as runner:
        async with runner.open_batch([ToolCall(str(i), "tool") for i in range(20)]) as batch:
            await gate.wait_started(3)
            numbers = runner.statistics()
            assert (numbers.running_threads, numbers.waiting) == (3, 17)
            gate.open()
        assert all(r.status == "completed" for r in batch.results)
    assert most == 3


async def test_small_batch_is_not_stuck_behind_a_large_one() -> None:
    """§4.5: batches take turns in the line for threads."""
    gate = GatedTool()
    async with ToolRunner(
        {"gated": gate.tool, "quick": lambda: "quick"}, max_threads=1
    ) as runner:
        async with runner.open_batch([ToolCall(str(i), "gated") for i in range(50)]) as large:
            await gate.wait_started()
            async with runner.open_batch([ToolCall("s", "quick")]) as small:
                gate.let_through(2)
            assert small.results[0].value == "quick"
            assert sum(r is not None for r in large.snapshot()) <= 2
            gate.open()


def wait_for(condition: Any) -> None:
    deadline = threading.Event()
    timer = threading.Timer(LIVENESS, deadline.set)
    timer.daemon = True
    timer.start()
    while not condition():
        assert not deadline.wait(0.005), "waited in vain"
    timer.cancel()


async def until(condition: Any) -> None:
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not there")
def test_running_loop_is_needed() -> None:
    """Misuse: outside of a loop the error says so."""
    runner = ToolRunner()
    coroutine = runner.run([])
    with pytest.raises(Exception, match=r"[Nn]ot? .*event loop"):
        coroutine.send(None)
