"""§3.4: what observers can have beside events: a batch itself, and the end of work."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    BatchStarted,
    CallContext,
    CallSettled,
    Event,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
    current_call,
    run_batch,
)
from anyio_toolbatch.testing import GatedTool

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
tools: Any = importlib.import_module("process_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant


class Watching:
    """Notes what it is told, in the order of it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.batches: list[weakref.ref[ToolBatch]] = []
        self.outer: list[int | None] = []
        self.threads: list[str] = []
        self.places: set[str] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallSettled):
            self.heard.append(("settled", event.index))
        elif isinstance(event, BatchStarted):
            self.heard.append("started")

    def watch_batch(self, batch: ToolBatch) -> None:
        self.batches.append(weakref.ref(batch))
        try:
            self.outer.append(current_call().index)
        except RuntimeError:
            self.outer.append(None)
        self.heard.append("batch")

    def leave_call(self, context: CallContext) -> None:
        self.heard.append(("left", context.index))
        self.threads.append(threading.current_thread().name)
        self.places.add(context.runs_in)


async def on_the_loop() -> str:
    return "async"


def in_a_thread() -> str:
    return "sync"


def awaitable() -> Any:
    return on_the_loop()


def failing() -> None:
    raise ValueError


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Any]]:
    spawn = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) as threads, ProcessPoolExecutor(1, spawn) as processes:
        yield {"threads": threads, "processes": processes}


@pytest.mark.parametrize(
    ("func", "runs_in", "place"),
    [
        (on_the_loop, "auto", "loop"),
        (on_the_loop, "thread", "thread"),
        (in_a_thread, "auto", "thread"),
        (in_a_thread, "loop", "loop"),
        (awaitable, "auto", "thread"),
        (failing, "auto", "thread"),
        (in_a_thread, "threads", "executor"),
        (tools.add, "process", "process"),
        (tools.add, "processes", "executor"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_each_call_is_left_once_before_it_is_settled(
    func: Any, runs_in: str, place: str, pools: dict[str, Any]
) -> None:
    """On every carrier; and the context says where it ran."""
    watching = Watching()
    tool = Tool(func, runs_in=pools.get(runs_in, runs_in), name="tool")
    arguments = {"a": 0, "b": 1} if func is tools.add else {}
    await run_batch([ToolCall("0", "tool", arguments)], [tool], observers=[watching])
    assert watching.heard == ["started", "batch", ("left", 0), ("settled", 0)]
    assert watching.places == {place}


async def test_detached_work_is_left_when_it_has_ended() -> None:
    """Also what is stopped by its cancellation, of which no late result tells."""
    watching = Watching()
    gate = GatedTool(name="deaf")
    runner = ToolRunner(
        [gate.tool, Tool(anyio.sleep_forever, name="sleeper")], observers=[watching]
    )
    async with runner.open_batch([ToolCall("0", "deaf"), ToolCall("1", "sleeper")]) as batch:
        await gate.wait_started()
        batch.interrupt()
        await batch.wait()
        assert {r.detached for r in batch.results} == {True}
    settled = {("settled", 0), ("settled", 1)}
    while ("left", 1) not in watching.heard:
        await anyio.sleep(0)
    assert ("left", 0) not in watching.heard
    gate.open()
    assert await runner.wait_detached(LIVENESS)
    assert set(watching.heard[2:]) == settled | {("left", 0), ("left", 1)}


async def test_calls_that_never_started_are_not_left() -> None:
    """Only what was entered is left."""
    watching = Watching()
    await run_batch(
        [ToolCall("0", "nobody"), ToolCall("1", "in_a_thread", "[")],
        [in_a_thread],
        observers=[watching],
    )
    assert not watching.threads


async def test_a_batch_says_what_its_calls_wait_for() -> None:
    """A watched batch tells, call by call, what the events do not."""
    watching = Watching()
    gate = GatedTool(name="gated")
    runner = ToolRunner([gate.tool], observers=[watching], max_concurrency=1)
    async with runner.open_batch([ToolCall("0", "gated"), ToolCall("1", "gated")]):
        await gate.wait_started()
        batch = watching.batches[0]()
        assert batch is not None
        assert batch.waiting_call(0) is None
        waiting = batch.waiting_call(1)
        assert waiting is not None
        assert (waiting.kind, waiting.index) == ("place", 1)
        assert "max_concurrency=1" in waiting.waits_for
        with pytest.raises(IndexError):
            batch.waiting_call(2)
        gate.open()
    assert batch.waiting_call(1) is None


async def test_what_nobody_watches_is_no_less_its_users() -> None:
    """§3.1: with an observer that is not shown the batch, it answers after its end, too."""
    heard: list[Event] = []
    async with ToolRunner([on_the_loop], observers=[heard.append]) as runner:
        async with runner.open_batch([ToolCall("0", "on_the_loop")]) as batch:
            await batch.wait()
        for _ in range(3):
            await anyio.sleep(0)
        assert [result.value for result in batch.results] == ["async"]
        assert [type(event) async for event in batch.events()] == [*map(type, heard)]


@pytest.mark.parametrize("way", ["run", "block"])
async def test_who_keeps_a_watched_batch_can_ask_it(way: str) -> None:
    """§3.4: an observer that keeps it, against advice, has its results all the same."""
    kept: list[ToolBatch] = []

    class Keeping(Watching):
        def watch_batch(self, batch: ToolBatch) -> None:
            kept.append(batch)

    async with ToolRunner([on_the_loop], observers=[Keeping()]) as runner:
        if way == "run":
            await runner.run([ToolCall("0", "on_the_loop")])
        else:
            async with runner.open_batch([ToolCall("0", "on_the_loop")]):
                pass
        for _ in range(3):
            await anyio.sleep(0)
    assert [result.value for result in kept[0].results] == ["async"]
    assert kept[0].waiting_call(0) is None


@pytest.mark.parametrize("way", ["run", "block"])
async def test_a_watched_batch_lives_as_long_as_its_detached_calls(way: str) -> None:
    """P10: there is something to see until then; then it is free, without the collector."""
    watching = Watching()
    gate = GatedTool()
    async with ToolRunner([gate.tool], observers=[watching]) as runner:
        gc.collect()
        gc.disable()
        try:
            if way == "run":
                async with anyio.create_task_group() as group:
                    group.start_soon(runner.run, [ToolCall("0", "gated")])
                    await gate.wait_started()
                    group.cancel_scope.cancel()
            else:
                async with runner.open_batch([ToolCall("0", "gated")]) as batch:
                    await gate.wait_started()
                    batch.interrupt()
                del batch
            for _ in range(3):
                await anyio.sleep(0)
            assert watching.batches[0]() is not None
            gate.open()
            assert await runner.wait_detached(LIVENESS)
            with anyio.fail_after(LIVENESS):
                while watching.batches[0]() is not None:
                    await anyio.sleep(0.001)
        finally:
            gc.enable()


@pytest.mark.parametrize("runs_in", ["auto", "executor"])
async def test_a_call_that_is_still_being_taken_in_can_be_asked_for(
    runs_in: str, pools: dict[str, Any]
) -> None:
    """§3.4: an observer that asks about all calls when the first has failed is answered."""
    said: list[str] = []

    class Asking(Watching):
        def __call__(self, event: Event) -> None:
            batch = self.batches[0]() if self.batches else None
            if isinstance(event, CallSettled) and batch is not None:
                waiting = map(batch.waiting_call, range(len(batch.calls)))
                said.extend(w.waits_for for w in waiting if w is not None)

    tool = Tool(in_a_thread, runs_in=pools["threads"] if runs_in == "executor" else "auto")
    calls = [ToolCall("0", "unknown"), ToolCall("1", "in_a_thread")]
    results = await run_batch(calls, [tool], observers=[Asking()])
    assert [result.status for result in results] == [Status.INVALID, Status.COMPLETED]
    assert said == ["is about to start"]


async def test_a_watched_batch_is_not_kept() -> None:
    """P10: a weak reference to it ends with the batch."""
    watching = Watching()
    runner = ToolRunner([on_the_loop], observers=[watching])
    for _ in range(3):
        await runner.run([ToolCall("0", "on_the_loop")])
    gc.collect()
    assert [batch() for batch in watching.batches[:2]] == [None, None]


async def test_who_watches_an_inner_batch_is_inside_the_outer_call() -> None:
    """`current_call()` is the call that has opened the batch."""
    watching = Watching()

    async def outer() -> None:
        await runner.run([ToolCall("i", "on_the_loop")])

    runner = ToolRunner([outer, on_the_loop], observers=[watching])
    await runner.run([ToolCall("0", "on_the_loop"), ToolCall("1", "outer")])
    assert watching.outer == [None, 1]


@pytest.mark.parametrize("name", ["leave_call", "watch_batch"])
async def test_what_they_raise_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The batch goes on, and so do the other observers."""

    class Raising:
        def __call__(self, event: Event) -> None: ...

    def fail(self: Any, _: Any) -> None:
        raise SystemExit

    setattr(Raising, name, fail)
    watching = Watching()
    results = await run_batch(
        [ToolCall("0", "in_a_thread")], [in_a_thread], observers=[Raising(), watching]
    )
    assert results[0].value == "sync"
    assert len([r for r in caplog.records if "observer" in r.getMessage()]) == 1
    assert watching.heard == ["started", "batch", ("left", 0), ("settled", 0)]


@pytest.mark.parametrize("name", ["leave_call", "watch_batch"])
def test_bad_methods_are_refused(name: str) -> None:
    """Misuse is a TypeError at once."""

    class Bad:
        def __call__(self, event: Event) -> None: ...

    setattr(Bad, name, 1)
    with pytest.raises(TypeError, match=name):
        ToolRunner([], observers=[Bad()])


async def test_the_time_that_a_person_took_is_told_apart() -> None:
    """`approval_time` is the part of `wait_time` in which somebody was asked."""
    asked = anyio.Event()
    answer = anyio.Event()

    async def approve(call: ToolCall) -> bool | str:
        asked.set()
        if call.id == "0":
            await answer.wait()
        if call.id == "2":
            await anyio.sleep_forever()
        return call.id != "1"

    runner = ToolRunner([on_the_loop], approve=approve)
    calls = [ToolCall(str(n), "on_the_loop") for n in range(3)]
    async with runner.open_batch(calls) as batch:
        await asked.wait()
        began = time.monotonic()
        while time.monotonic() - began < 0.01:
            await anyio.sleep(0)
        answer.set()
        while batch.snapshot()[0] is None:
            await anyio.sleep(0)
        batch.interrupt()
    allowed, denied, cut = batch.results
    assert [r.status for r in batch.results] == [
        Status.COMPLETED,
        Status.DENIED,
        Status.INTERRUPTED,
    ]
    assert 0.01 <= allowed.approval_time <= allowed.wait_time
    assert 0.0 <= denied.approval_time <= denied.wait_time
    assert 0.01 <= cut.approval_time <= cut.wait_time
    (plain,) = await run_batch([ToolCall("0", "on_the_loop")], [on_the_loop])
    assert plain.approval_time == 0.0
