"""Cases D: threads, and the life of the process."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    CallSettled,
    RunnerClosedError,
    Status,
    Tool,
    ToolCall,
    ToolCallError,
    ToolResult,
    ToolRunner,
)
from anyio_toolbatch.testing import GatedTool, PromiseObserver, ScriptedTool, give

LIVENESS = 20.0  # seconds where milliseconds are meant
SCRIPTS = Path(__file__).parent / "scripts"

CUT = ("interrupted", "user_interrupt", True, True)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@contextlib.contextmanager
def letting_go(*tools: GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, let its tools through."""
    try:
        yield
    finally:
        for tool in tools:
            tool.open()


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; one that cannot leave raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-W", "error", SCRIPTS / name, *arguments],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
    )


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_d1_one_break_ends_a_program_with_a_blocked_thread(backend: str) -> None:
    """D1, P7: Ctrl-C while a tool blocks for ever: the program is gone, by that signal."""
    done = run_script("d1_break_and_leave.py", backend)
    # What any Python program does that nobody stops from being interrupted.
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "running\n"
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception in thread" not in done.stderr


@pytest.mark.parametrize("way", ["interrupt", "cancel", "timeout"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_d2_program_leaves_while_let_go_threads_block(backend: str, way: str) -> None:
    """D2, P7: two tools block on queues when main returns: status 0, in silence."""
    done = run_script("d2_main_returns.py", backend, way)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 still run\n", "")


async def test_d3_interrupted_is_an_end_that_every_waiter_sees(
    promises: PromiseObserver,
) -> None:
    """D3, P1, P2: `run`, `wait`, a handle's `wait` and a reader all come to their end."""
    gate = GatedTool()
    seen: dict[str, Any] = {}

    async def wait_for_run() -> None:
        seen["run"] = await runner.run(calls("gated"))

    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], observers=[promises]) as runner:
            async with anyio.create_task_group() as group:
                group.start_soon(wait_for_run)
                async with runner.open_batch(calls("gated")) as batch:

                    async def wait_for_batch() -> None:
                        seen["wait"] = await batch.wait()

                    async def read() -> None:
                        seen["events"] = [event async for event in batch.events()]

                    group.start_soon(wait_for_batch)
                    group.start_soon(read)
                    await gate.wait_started(2)
                    assert runner.interrupt() == 2
                seen["block"] = batch.results

                # A late asker is answered as well.
                seen["wait again"] = await batch.wait()
            assert all(shape(seen.pop(way)) == [CUT] for way in ("run", "wait", "block"))
            assert shape(seen.pop("wait again")) == [CUT]
            assert [type(event) for event in seen["events"][-3:]] == [
                BatchInterrupted,
                CallSettled,
                BatchSettled,
            ]
            assert gate.ended == 0
            gate.open()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_d3_interrupted_call_ends_the_wait_of_its_handle() -> None:
    """D3: who waits for one call sees its end, before the batch is sealed."""
    gate = GatedTool()
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool]) as runner:
            async with runner.open_batch() as batch:
                handle = batch.submit(calls("gated")[0])
                await gate.wait_started()
                batch.interrupt()
                assert shape([await handle.wait()]) == [CUT]
                assert shape(await batch.wait()) == [CUT]
            gate.open()
            assert await runner.wait_detached(LIVENESS)


async def test_d4_close_with_a_stuck_thread_is_bounded(promises: PromiseObserver) -> None:
    """D4, P7: closing interrupts and then waits `close_timeout`, whatever still runs."""
    gate = GatedTool()
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], close_timeout=0.02, observers=[promises]) as runner:
            batch = await opened(runner)
            await gate.wait_started()
        assert gate.ended == 0
        assert shape(batch.results) == [("interrupted", "runner_closed", True, True)]
        await runner.aclose()  # again: nothing to do, and no longer a wait
        with pytest.raises(RunnerClosedError):
            await runner.run(calls("gated"))
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


async def test_d4_forgotten_runner_is_collected_without_a_join() -> None:
    """D4, P7: no finaliser waits for the stuck thread; afterwards nothing keeps the runner."""
    gate = GatedTool()
    runner = ToolRunner([gate.tool])
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()
            batch.interrupt()
        results = batch.results
        gone = weakref.ref(runner)
        del runner, batch
        gc.collect()
        # Back from the collection, and the thread is still stuck.
        assert gate.ended == 0
        assert shape(results) == [CUT]
        gate.open()
        await gate.wait_ended()
        while gone() is not None:
            await anyio.sleep(0.001)
            gc.collect()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_d4_stuck_runner_does_not_hold_the_interpreters_end(backend: str) -> None:
    """D4, P7: a runner that dies with the interpreter, thread stuck: status 0, in silence."""
    done = run_script("d4_forgotten_runner.py", backend)
    assert (done.returncode, done.stdout, done.stderr) == (0, "main is over\n", "")


LEAVING: dict[str, tuple[SystemExit, str]] = {
    "with a code": (SystemExit(1), "SystemExit: 1"),
    "with success": (SystemExit(0), "SystemExit: 0"),
    "with nothing": (SystemExit(), "SystemExit"),
    "with a message": (SystemExit("out of ideas"), "SystemExit: out of ideas"),
}


@pytest.mark.parametrize("how", LEAVING)
async def test_d7_exit_in_a_worker_is_that_calls_error(
    promises: PromiseObserver, how: str
) -> None:
    """D7, P1: `sys.exit` in a blocking tool is no success, and ends neither host nor thread."""
    error, text = LEAVING[how]

    def leave() -> None:
        sys.exit(error.code)

    def leave_in_the_middle() -> Iterator[int]:
        yield 1
        sys.exit(error.code)

    def fine() -> str:
        return "real"

    # One thread: the call behind is served by the one that was exited from.
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [leave, leave_in_the_middle, fine], max_threads=1, observers=[promises]
        ) as runner:
            async with runner.open_batch(
                calls("leave", "fine", "leave_in_the_middle", "fine")
            ) as batch:
                pass
            results = batch.results
            assert [r.value for r in results] == [None, "real", None, "real"]
            for left in (results[0], results[2]):
                assert_left(left, text)
            assert results[2].partial == [1]
            assert not batch.interrupted
            assert [r.value for r in await runner.run(calls("fine"))] == ["real"]
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("how", LEAVING)
async def test_d8_exit_in_an_async_tool_is_contained(
    promises: PromiseObserver, how: str
) -> None:
    """D8, P1: `SystemExit` out of a coroutine ends neither the loop nor a sibling."""
    error, text = LEAVING[how]

    async def at_once() -> None:
        sys.exit(error.code)

    async def after_a_while() -> None:
        await anyio.lowlevel.checkpoint()
        sys.exit(error.code)

    async def streaming() -> AsyncIterator[int]:
        yield 1
        sys.exit(error.code)

    async def elsewhere() -> None:
        await after_a_while()

    go_on = anyio.Event()

    async def sibling() -> str:
        await go_on.wait()
        return "real"

    tools = [at_once, after_a_while, streaming, Tool(elsewhere, runs_in="thread"), sibling]
    names = ["at_once", "after_a_while", "streaming", "elsewhere", "sibling"]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                *leaving, other = [batch.submit(call) for call in calls(*names)]
                for handle in leaving:
                    assert_left(await handle.wait(), text)
                assert other.result is None
                go_on.set()
            assert batch.results[-1].value == "real"
            assert not batch.interrupted
            again = ScriptedTool(give("still here"), name="again")
            (result,) = await runner.run([ToolCall("next", "again", tool=again.tool)])
            assert result.value == "still here"
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_d8_exit_does_not_end_the_host(backend: str) -> None:
    """D8, P1, P7: tools call `exit()`; the agent goes on and leaves when it wants to."""
    done = run_script("d8_tools_that_exit.py", backend)
    assert (done.returncode, done.stderr) == (0, "")
    left = ["failed", "SystemExit: 3", True]
    assert json.loads(done.stdout) == [left, left, left, ["completed", "real", False]]


def assert_left(result: ToolResult, text: str) -> None:
    assert result.status is Status.FAILED
    assert result.started and not result.detached
    assert isinstance(result.error, SystemExit)
    assert result.text.splitlines()[0] == text
    assert result.is_error
    assert result.effects == "unknown"
    with pytest.raises(ToolCallError) as caught:
        result.unwrap()
    assert caught.value.__cause__ is result.error


async def opened(runner: ToolRunner) -> Any:
    """Open a batch that outlives this function, as a framework's own task would."""
    return await runner.open_batch(calls("gated")).__aenter__()
