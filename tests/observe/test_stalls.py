"""Who blocks the loop is said while it is blocked."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    BatchStarted,
    CallContext,
    Event,
    Tool,
    ToolCall,
    ToolRunner,
    report_progress,
    run_batch,
)
from anyio_toolbatch.observe import stalls
from anyio_toolbatch.observe.stalls import Stall, StallDetector

LIVENESS = 20.0  # seconds where milliseconds are meant


@pytest.fixture(autouse=True)
def _no_idling(monkeypatch: pytest.MonkeyPatch) -> None:
    # The threads of one test are not to be waited for by the next.
    monkeypatch.setattr(stalls, "IDLE_SECONDS", 0.01)


class Seen:
    """What the detector tells, and a tool that blocks the loop until it does."""

    def __init__(self, enough: int = 1) -> None:
        self.stalls: list[Stall] = []
        self.threads: list[str] = []
        self._enough = enough
        self._changed = threading.Event()

    def __call__(self, stall: Stall) -> None:
        self.threads.append(threading.current_thread().name)
        self.stalls.append(stall)
        if len(self.stalls) >= self._enough:
            self._changed.set()

    async def blocks(self) -> bool:
        await anyio.lowlevel.checkpoint()
        return self._changed.wait(LIVENESS)

    async def computes(self) -> bool:
        deadline = time.monotonic() + LIVENESS
        while not self._changed.is_set() and time.monotonic() < deadline:
            sum(range(1000))
        return self._changed.is_set()

    async def blocks_at_once(self) -> bool:
        return self._changed.wait(LIVENESS)

    async def items(self) -> Any:
        yield 1
        yield self._changed.wait(LIVENESS)

    def sync(self) -> bool:
        return self._changed.wait(LIVENESS)


def detector(seen: Seen) -> StallDetector:
    return StallDetector(0.05, on_stall=seen)


@pytest.mark.parametrize("name", ["blocks", "blocks_at_once", "items", "sync", "computes"])
async def test_tool_is_named_while_it_blocks(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool goes on only when it has been named: so it was, while it blocked."""
    if name == "computes":  # however little of a processor it may have
        monkeypatch.setattr(stalls, "COMPUTES", 0.001)
    seen = Seen()
    tool = Tool(getattr(seen, name), name=name, runs_in="loop")

    async def idle() -> None:
        await anyio.sleep(0.01)

    (result, *_) = await run_batch(
        [ToolCall("call_1", name), ToolCall("2", "idle"), ToolCall("3", "idle")],
        [tool, idle],
        observers=[detector(seen)],
    )
    assert result.value is True
    (stall,) = seen.stalls
    assert stall.tool == name
    assert stall.call is result.call
    assert stall.batch_id is not None
    assert stall.seconds >= 0.05
    assert seen.threads == ["anyio_toolbatch stall detector"]
    assert f"in {name}\n" in stall.stack
    assert "run_stoppable" not in stall.stack
    (warning,) = [r for r in caplog.records if getattr(r, "kind", "") == "loop_stalled"]
    assert warning.levelno == logging.WARNING
    assert vars(warning)["tools"] == [name]
    assert vars(warning)["call_ids"] == ["call_1"]
    assert name in warning.getMessage()
    if hasattr(time, "pthread_getcpuclockid"):
        assert stall.is_computing is (name == "computes")
        assert f"runs_in='{'process' if name == 'computes' else 'thread'}'" in caplog.text


async def test_once_a_tool_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each stall is told to the program, but a person reads of each tool once."""
    seen = Seen()
    watching = detector(seen)
    for _ in range(3):
        await run_batch([ToolCall("1", "blocks")], [seen.blocks], observers=[watching])
        seen._changed.clear()
    assert [stall.tool for stall in seen.stalls] == ["blocks"] * 3
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


async def test_other_code_than_tools() -> None:
    """Where no tool is at work the stack says what is, and no tool is blamed."""
    seen = Seen()

    async def innocent() -> None:
        await anyio.sleep(0)

    async with ToolRunner([innocent], observers=[detector(seen)]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("1", "innocent"))
            await batch.wait()
            seen.sync()
    (stall,) = seen.stalls
    assert stall.tool is stall.call is stall.batch_id is None
    assert "test_other_code_than_tools" in stall.stack


class Slow:
    """An observer that blocks the loop at one moment of a call."""

    def __init__(self, seen: Seen, moment: str) -> None:
        self._seen = seen
        self._moment = moment

    def __call__(self, event: Event) -> None:
        if type(event).__name__ == self._moment:
            self._seen.sync()

    def enter_call(self, context: CallContext) -> None:
        if self._moment == "enter_call":
            self._seen.sync()


@pytest.mark.parametrize(
    "moment", ["CallStarted", "enter_call", "CallProgress", "CallSettled"]
)
async def test_an_observer_is_no_tool(moment: str) -> None:
    """It is called in the task of a call, which has nothing to do with how slow it is."""
    seen = Seen()

    async def innocent() -> None:
        report_progress(1)
        await anyio.sleep(0)
        report_progress(2)

    observers = [detector(seen), Slow(seen, moment)]
    await run_batch([ToolCall("1", "innocent")], [innocent], observers=observers)
    (stall,) = seen.stalls
    assert stall.tool is None
    assert "in sync" in stall.stack


async def test_who_waits_for_long_is_not_blamed() -> None:
    """Tools that wait longer than the threshold, in threads and on the loop, block nobody."""
    seen = Seen()

    async def waits() -> None:
        await anyio.sleep(0.2)

    def waits_in_a_thread() -> None:
        time.sleep(0.2)

    async def blocks_its_own_loop() -> None:
        time.sleep(0.2)

    await run_batch(
        [ToolCall("1", "waits"), ToolCall("2", "waits_in_a_thread"), ToolCall("3", "own")],
        [waits, waits_in_a_thread, Tool(blocks_its_own_loop, name="own", runs_in="thread")],
        observers=[detector(seen)],
    )
    assert not stalls._watchdog.loops
    # On a busy machine the loop itself may be late; but that is nobody's fault.
    assert [stall for stall in seen.stalls if stall.tool is not None] == []


async def test_many_short_steps_blame_nobody() -> None:
    """A loop that is late because each of its looks meets another call has no culprit."""
    watching = StallDetector(0.05)
    loop = stalls._Loop(watching, stalls.current_hub())
    told: list[Any] = []
    watching._tell = lambda loop, record, seconds: told.append((record, seconds))  # type: ignore[method-assign]
    loop.ask(0.0)
    records = iter(["a", "b", "c", "d", "e"])

    def sample() -> Any:
        record = next(records)
        loop.is_steady = record is loop._last
        loop._last = record
        return record

    loop.sample = sample  # type: ignore[method-assign]
    for now in (0.02, 0.04, 0.06, 0.08, 0.11):
        watching._look(loop, now, 0.0)
    assert told == [(None, 0.11)]


async def test_time_in_which_the_detector_did_not_run_either_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A suspended machine is no blocked loop; a tool that has kept the lock is."""
    used = [0.0]
    monkeypatch.setattr(stalls._Loop, "_cpu", lambda self: used[0])
    watching = StallDetector(0.5)
    told: list[float] = []
    watching._tell = lambda loop, record, seconds: told.append(seconds)  # type: ignore[method-assign]
    loop = stalls._Loop(watching, stalls.current_hub())
    loop.ask(0.0)
    watching._look(loop, 100.0, 99.9)
    watching._look(loop, 100.1, 0.0)
    assert told == []
    loop.ask(200.0)
    used[0] = 99.9
    watching._look(loop, 300.0, 99.9)
    watching._look(loop, 300.1, 0.0)
    assert told == [pytest.approx(100.0)]


def test_several_loops(anyio_backend: Any) -> None:
    """One detector watches loops in several threads, and names each culprit."""
    seen = Seen(enough=3)
    watching = detector(seen)
    name, options = anyio_backend

    def agent(number: int) -> None:
        async def blocks() -> bool:
            return seen._changed.wait(LIVENESS)

        async def main() -> None:
            tool = Tool(blocks, name=f"blocks_{number}")
            await run_batch([ToolCall("1", tool.name)], [tool], observers=[watching])

        anyio.run(main, backend=name, backend_options=options)

    agents = [threading.Thread(target=agent, args=(n,)) for n in range(3)]
    for thread in agents:
        thread.start()
    for thread in agents:
        thread.join(LIVENESS)
    assert sorted(str(stall.tool) for stall in seen.stalls) == [
        "blocks_0",
        "blocks_1",
        "blocks_2",
    ]


def watchdogs() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "anyio_toolbatch stall detector"]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_thread_ends_and_comes_back(anyio_backend: Any) -> None:
    """P10: nothing is left when nothing runs, and it works again afterwards."""
    name, options = anyio_backend
    until(lambda: not watchdogs())
    for _ in range(3):
        seen = Seen()
        watching = detector(seen)
        anyio.run(
            lambda seen=seen, watching=watching: run_batch(
                [ToolCall("1", "blocks")], [seen.blocks], observers=[watching]
            ),
            backend=name,
            backend_options=options,
        )
        assert len(seen.stalls) == 1
        until(lambda: not watchdogs())


def test_loop_that_is_stopped_or_gone_is_not_asked() -> None:
    """A loop between two `run_until_complete` does not answer, and is not blocked."""
    seen = Seen()
    watching = detector(seen)
    loop = asyncio.new_event_loop()
    runner = ToolRunner(observers=[watching])
    context = runner.open_batch()
    loop.run_until_complete(context.__aenter__())
    assert len(stalls._watchdog.loops) == 1
    time.sleep(0.3)
    loop.run_until_complete(asyncio.sleep(0))
    assert seen.stalls == []
    loop.close()
    until(lambda: not stalls._watchdog.loops)
    gc.collect()


async def test_any_number_of_detectors_has_one_thread() -> None:
    """P10: a detector for each batch is no thread for each batch."""
    seen = Seen(enough=3)
    for _ in range(20):
        await run_batch([], observers=[StallDetector(0.05)])
        assert len(watchdogs()) <= 1
    observers = [detector(seen), StallDetector(0.1, on_stall=seen), detector(seen)]
    await run_batch([ToolCall("1", "blocks")], [seen.blocks], observers=observers)
    assert [stall.tool for stall in seen.stalls] == ["blocks"] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_fork() -> None:
    """The thread is not in the child, and is made anew there."""
    program = """
import os, sys, threading, anyio
from anyio_toolbatch import ToolCall, run_batch
from anyio_toolbatch.observe.stalls import StallDetector
told = threading.Event()
detector = StallDetector(0.05, on_stall=lambda stall: told.set())
async def blocks():
    return told.wait(20)
def turn():
    return anyio.run(lambda: run_batch([ToolCall("1", "b")], {"b": blocks}, observers=[detector]))
assert turn()[0].value
told.clear()
pid = os.fork()
if not pid:
    os._exit(0 if turn()[0].value else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


async def test_who_is_patient_holds_up_nobody() -> None:
    """A detector with a long threshold, or none at all, does not make another one slow."""
    seen = Seen()
    patient = [StallDetector(float("inf")), StallDetector(1e5)]
    async with ToolRunner(observers=patient).open_batch():
        await anyio.sleep(0.05)  # its thread has begun to pause
        call = ToolCall("1", "blocks")
        (result,) = await run_batch([call], [seen.blocks], observers=[detector(seen)])
    assert result.value


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
async def test_what_on_stall_raises_is_logged(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The detector goes on."""
    seen = Seen()

    def raises(stall: Stall) -> None:
        seen(stall)
        raise error

    watching = StallDetector(0.05, on_stall=raises)
    for _ in range(2):
        await run_batch([ToolCall("1", "blocks")], [seen.blocks], observers=[watching])
        seen._changed.clear()
    assert len(seen.stalls) == 2
    until(lambda: len([r for r in caplog.records if r.exc_info]) == 2)


def test_bad_options() -> None:
    """A clear error at once."""
    for threshold in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="threshold"):
            StallDetector(threshold)
    with pytest.raises(TypeError, match="threshold"):
        StallDetector("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_stall"):
        StallDetector(on_stall=1)  # type: ignore[arg-type]


def test_batch_that_starts_outside_a_loop_is_an_error() -> None:
    """It is called by runners, on their loops."""
    with pytest.raises(RuntimeError):
        StallDetector()(BatchStarted("batch"))
