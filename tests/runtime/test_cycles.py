"""P10: a batch is freed when the last who can ask about it is gone, and not by the collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallSettled,
    CallStarted,
    Event,
    LateResult,
    LateResultDropped,
    Tool,
    ToolBatch,
    ToolCall,
    ToolOutput,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    report_progress,
    run_batch,
)
from anyio_toolbatch._runtime import disbanding
from anyio_toolbatch._runtime.hub import current_hub
from anyio_toolbatch.testing import DeafTool, GatedTool

LIVENESS = 20.0  # seconds where milliseconds are meant
LIMIT = 0.02  # seconds, of calls that have no end of their own


# -- tools ---------------------------------------------------------------------


async def quick() -> str:
    return "quick"


def computes() -> str:
    return "computed"


async def waits() -> None:
    await anyio.sleep(LIVENESS)


def listens() -> None:
    current_call().cancelled.wait(LIVENESS)


async def raises() -> None:
    await anyio.lowlevel.checkpoint()
    raise ValueError("as it happens")


def raises_blocking() -> None:
    raise ValueError("as it happens")


async def exits() -> None:
    sys.exit(3)


async def invents_a_cancellation() -> None:
    raise asyncio.CancelledError


async def streams() -> AsyncIterator[int]:
    for n in range(3):
        yield n


def yields() -> Iterator[int]:
    yield from range(3)


async def tells() -> ToolOutput:
    with on_cancel(lambda: None):
        report_progress(1, 2)
        keep_partial("half")
    return ToolOutput("told", is_error=True)


def visits_the_loop() -> None:
    from_thread.run(anyio.lowlevel.checkpoint)


def gives_an_awaitable() -> Awaitable[str]:
    return quick()


async def runs_a_batch() -> list[str]:
    inner = [ToolCall("a", "quick"), ToolCall("b", "computes")]
    return [result.text for result in await run_batch(inner, [quick, computes])]


def takes_one(one: int) -> None: ...


async def cleans_up() -> None:
    try:
        await anyio.sleep(LIVENESS)
    finally:
        await anyio.sleep(0)


async def opens_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, LIVENESS)


TOOLS = [
    *(quick, computes, waits, listens, raises, raises_blocking, exits, streams, yields, tells),
    *(invents_a_cancellation, visits_the_loop, gives_an_awaitable, runs_a_batch, takes_one),
    *(cleans_up, opens_a_group),
    Tool(quick, name="has_its_own_loop", runs_in="thread"),
    Tool(quick, name="writes", writes="a key"),
    Tool(computes, name="writes_blocking", writes="a key"),
    Tool(waits, name="writes_on_and_on", writes="a key"),
    Tool(quick, name="is_alone", exclusive=True),
    Tool(waits, name="is_limited", timeout=LIMIT),
    Tool(listens, name="is_limited_blocking", timeout=LIMIT),
]


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


# -- turns ---------------------------------------------------------------------

Turn = Callable[[ToolRunner], Awaitable[object]]


def run(*names: str, **options: Any) -> Turn:
    return lambda runner: runner.run(calls(*names), **options)


def cut(*names: str, by: Callable[[ToolBatch], object] = ToolBatch.interrupt) -> Turn:
    async def turn(runner: ToolRunner) -> None:
        async with runner.open_batch(calls(*names)) as batch:
            await until_running(runner)
            by(batch)
        assert len(batch.results) == len(names)

    return turn


async def until_running(runner: ToolRunner) -> None:
    """Let the calls of a turn start, those that can."""
    while not runner.statistics().running:
        await anyio.sleep(0)
    for _ in range(3):
        await anyio.sleep(0.001)


async def handles_and_events(runner: ToolRunner) -> None:
    async with runner.open_batch() as batch:
        handles = [
            batch.submit(call) for call in calls("streams", "yields", "raises", "tells")
        ]
        async for _ in batch.events():
            break  # a reader that is left alone
        for handle in handles:
            await handle.wait()
        batch.seal()
        assert len([event async for event in batch.events()]) > len(handles)
    with contextlib.suppress(Exception):
        batch.results[2].unwrap()


async def observed(_: ToolRunner) -> None:
    events: list[object] = []
    late: list[LateResult] = []
    async with ToolRunner(TOOLS, observers=[events.append], on_late=late.append) as runner:
        await runner.run(calls("quick", "computes", "raises"))
        await cut("waits", "quick")(runner)
    assert events


async def approved(_: ToolRunner) -> None:
    async def approve(call: ToolCall) -> bool:
        await anyio.lowlevel.checkpoint()
        return call.name != "computes"

    async with ToolRunner(TOOLS, approve=approve) as runner:
        await runner.run(calls("quick", "computes", "raises"))


async def approved_in_a_thread(_: ToolRunner) -> None:
    async with ToolRunner(TOOLS, approve=lambda call: call.name != "quick") as runner:
        await runner.run(calls("quick", "computes"))


async def cut_while_asked(_: ToolRunner) -> None:
    asked = anyio.Event()

    async def approve(call: ToolCall) -> bool:
        asked.set()
        await anyio.sleep(LIVENESS)
        return True

    async with ToolRunner(TOOLS, approve=approve) as runner:
        async with runner.open_batch(calls("quick", "computes")) as batch:
            await asked.wait()
            batch.interrupt()


async def caller_cancelled(runner: ToolRunner) -> None:
    with anyio.CancelScope() as scope:
        async with runner.open_batch(calls("waits", "listens", "quick")):
            await until_running(runner)
            scope.cancel()


async def block_left(runner: ToolRunner) -> None:
    with contextlib.suppress(LookupError):
        async with runner.open_batch(calls("waits", "listens")):
            await until_running(runner)
            raise LookupError


async def closed(_: ToolRunner) -> None:
    async with ToolRunner(TOOLS) as runner, anyio.create_task_group() as group:
        group.start_soon(runner.run, calls("waits", "listens", "cleans_up"))
        await until_running(runner)
        await runner.aclose()


async def in_an_executor(runner: ToolRunner) -> None:
    with ThreadPoolExecutor(1) as executor:
        tools = [Tool(func, runs_in=executor) for func in (computes, raises_blocking)]
        asked = [ToolCall(tool.name, tool.name, tool=tool) for tool in tools]
        await runner.run(asked)


TURNS: dict[str, Turn] = {
    "nothing at all": run(),
    "quick": run("quick"),
    "blocking": run("computes"),
    "many": run(*["quick", "computes"] * 20),
    "an error": run("raises"),
    "an error of a thread": run("raises_blocking"),
    "an exit": run("exits"),
    "a cancellation of its own": run("invents_a_cancellation"),
    "a stream": run("streams"),
    "a stream of a thread": run("yields"),
    "what a tool tells": run("tells"),
    "a visit": run("visits_the_loop"),
    "an awaitable": run("gives_an_awaitable"),
    "a loop of its own": run("has_its_own_loop"),
    "an inner batch": run("runs_a_batch"),
    "what is invalid": run("takes_one", "nowhere"),
    "claims": run("writes", "writes_blocking", "is_alone", "writes"),
    "handles and events": handles_and_events,
    "an executor": in_an_executor,
    "observers": observed,
    "approvals": approved,
    "approvals in a thread": approved_in_a_thread,
    "cut while asked": cut_while_asked,
    "interrupt": cut("waits", "quick"),
    "interrupt of a thread": cut("listens", "computes"),
    "interrupt of a clean-up": cut("cleans_up"),
    "interrupt of a group": cut("opens_a_group"),
    "interrupt in a line": cut("writes_on_and_on", "writes", "writes_blocking"),
    "grace": cut("listens", "cleans_up", by=lambda batch: batch.interrupt(grace=LIVENESS)),
    "supersede": cut("is_limited", "is_alone", by=ToolBatch.supersede),
    "a call cancelled": cut("waits", "quick", by=lambda batch: batch.cancel("id-0")),
    "a call's limit": run("is_limited", "quick"),
    "a thread's limit": run("is_limited_blocking", "computes"),
    "a batch's limit": run("waits", "listens", timeout=LIMIT),
    "fail fast": run("waits", "raises", fail_fast=True),
    "caller cancelled": caller_cancelled,
    "block left": block_left,
    "closed": closed,
}


OF_OTHERS = {
    # trio's main task and its nurseries know each other.
    ("trio", "a loop of its own"),
    # A cancellation, and the frame of anyio's that keeps it, do.
    ("asyncio", "interrupt of a group"),
}
"""What leaves a cycle of the event loop's, or anyio's, with our frames in its tracebacks."""


@pytest.mark.parametrize("kind", TURNS)
async def test_turn_leaves_nothing_to_the_collector(
    kind: str, anyio_backend_name: str
) -> None:
    """P10: of each kind of batch nothing is left in a cycle; values would stay with it."""
    turn = TURNS[kind]
    async with ToolRunner(TOOLS) as runner:
        for _ in range(2):  # what is made once is made
            await play(turn, runner)
        with collected() as left:
            await play(turn, runner)
    if (anyio_backend_name, kind) in OF_OTHERS:
        assert left, "it is no exception any more"
        assert "anyio_toolbatch._model.results.ToolResult" not in left
    else:
        assert left == Counter()


async def play(turn: Turn, runner: ToolRunner) -> None:
    """Run one turn, and let all that it has started come to its end."""
    tasks = len(anyio.get_running_tasks())
    await turn(runner)
    assert await runner.wait_detached(LIVENESS)
    with anyio.fail_after(LIVENESS):
        while len(anyio.get_running_tasks()) > tasks:
            await anyio.sleep(0.001)
    for _ in range(5):  # threads that are on their way out of a call
        await anyio.sleep(0.001)


@contextlib.contextmanager
def collected() -> Iterator[Counter[str]]:
    """Give what only the collector frees of all that the block leaves behind, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# -- who keeps a batch ---------------------------------------------------------


class Value:
    """Something whose end can be seen."""


@contextlib.contextmanager
def without_the_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("way", ["run", "block"])
async def test_values_go_with_the_last_result(carrier: str, way: str) -> None:
    """P10: a value is free when nobody has its result any more, without the collector."""
    made: list[weakref.ref[Value]] = []

    def make() -> Value:
        value = Value()
        made.append(weakref.ref(value))
        return value

    async def make_async() -> Value:
        return make()

    async with ToolRunner({"make": make if carrier == "thread" else make_async}) as runner:
        with without_the_collector():
            if way == "run":
                results = await runner.run(calls("make"))
            else:
                async with runner.open_batch(calls("make")) as batch:
                    pass
                results = batch.results
                del batch
            assert results[0].value is made[0]()
            results.clear()
            with anyio.fail_after(LIVENESS):  # the worker may be on its way out of the call
                while made[0]() is not None:
                    await anyio.sleep(0.001)


async def test_a_handle_or_a_reader_keeps_what_it_can_be_asked_for() -> None:
    """§3.1: with the `ToolBatch` gone, a handle has its result, and a reader all events."""
    async with ToolRunner(TOOLS) as runner:
        async with runner.open_batch() as batch:
            handles = [batch.submit(call) for call in calls("quick", "computes", "raises")]
            events = batch.events()
        identity, results = batch.id, batch.results
        del batch
        gc.collect()
        assert [handle.result for handle in handles] == results
        assert [await handle.wait() for handle in handles] == results
        assert [handle.cancel() for handle in handles] == [False] * 3
        handles.clear()
        gc.collect()
        read = [event async for event in events]
    assert [event.batch_id for event in read] == [identity] * 8
    assert {e.result.call.name for e in read if isinstance(e, CallSettled)} == {
        "quick",
        "computes",
        "raises",
    }


async def test_observers_and_the_late_hook_hear_all_of_a_batch_that_nobody_has() -> None:
    """P5, §3.4: it is let go of while a call still runs: its end and its late result are told."""
    gate = GatedTool(value="late")
    events: list[Event] = []
    late: list[LateResult] = []
    async with ToolRunner(
        [gate.tool], observers=[events.append], on_late=late.append
    ) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await gate.wait_started(2)
            batch.interrupt()
        del batch
        gc.collect()
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        with anyio.fail_after(LIVENESS):
            while len(late) < 2 or not isinstance(events[-1], LateResultDropped):
                await anyio.sleep(0.001)
    assert [item.value for item in late] == ["late", "late"]
    ends = [type(event) for event in events if not isinstance(event, CallStarted)]
    assert ends == [
        BatchStarted,
        BatchInterrupted,
        *[CallSettled] * 2,
        BatchSettled,
        *[LateResultDropped] * 2,
    ]


async def test_a_hook_drops_the_last_reference_to_the_batch_that_it_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P5, §3.4: who comes after it hears of that batch all the same."""
    held: list[ToolBatch] = []
    events: list[Event] = []

    def drop(what: Event | LateResult) -> None:
        if isinstance(what, LateResult):
            held.clear()

    deaf = DeafTool()
    async with ToolRunner([deaf.tool], observers=[events.append], on_late=drop) as runner:
        async with runner.open_batch(calls("deaf")) as batch:
            held.append(batch)
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
        gone = weakref.ref(batch._engine)
        del batch
        await current_hub().chores_until_now()
        deaf.release()
        assert await runner.wait_detached(LIVENESS)
        await until_apart(gone)
    assert not held
    assert isinstance(events[-1], LateResultDropped)
    assert not caplog.records


async def test_an_observer_drops_the_last_reference_to_the_batch_that_it_hears_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same for the batch's end, which is told behind the awaiting code."""
    held: list[ToolBatch] = []
    events: list[Event] = []

    def drop(event: Event) -> None:
        if isinstance(event, BatchSettled):
            held.clear()

    async def ask(call: ToolCall) -> bool:
        await anyio.sleep(LIVENESS)
        return True

    async with ToolRunner([quick], approve=ask, observers=[drop, events.append]) as runner:
        async with runner.open_batch(calls("quick")) as batch:
            held.append(batch)
            batch.interrupt()
        gone = weakref.ref(batch._engine)
        del batch
        await until_apart(gone)
    assert not held
    assert isinstance(events[-1], BatchSettled)
    assert not caplog.records


async def test_a_step_that_drops_the_last_reference_is_finished_first() -> None:
    """P10: what has been put off may have more to do for the batch, and may start user code."""
    hub = current_hub()
    held: list[ToolBatch] = []
    records_after: list[int] = []

    def step(engine: Any) -> Iterator[None]:
        held.clear()
        records_after.append(len(engine.records))
        yield

    async with ToolRunner([quick]) as runner:
        async with runner.open_batch(calls("quick")) as batch:
            held.append(batch)
        hub.run_in_slices(step(batch._engine))
        gone = weakref.ref(batch._engine)
        del batch
        await until_apart(gone)
    assert records_after == [1]


async def until_apart(gone: weakref.ref[Any]) -> None:
    """Pass the loop on until a batch has been taken apart."""
    with anyio.fail_after(LIVENESS):
        while gone() is not None and gone().records:
            await anyio.sleep(0.001)


async def test_what_was_put_off_comes_before_the_batch_is_taken_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10: its calls have ended and nobody has it, and some were still to be told."""
    hub = current_hub()
    hub.slice_seconds = 0.0  # one of them a pass
    may_end = anyio.Event()

    async def waits() -> None:
        with anyio.CancelScope(shield=True):
            await may_end.wait()

    async with ToolRunner([waits]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall(str(i), "waits") for i in range(20)]
            ) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
            gone = weakref.ref(batch._engine)
            may_end.set()
            del batch
            await runner.wait_detached()
            await hub.chores_until_now()
            while gone() is not None and gone().records:  # type: ignore[union-attr]
                await anyio.sleep(0.001)
    assert not caplog.records


async def test_a_batch_is_taken_apart_on_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: though its last reference is dropped in another thread."""
    where: list[int] = []
    take_apart = disbanding._disband

    def watched(batch: Any) -> None:
        where.append(threading.get_ident())
        take_apart(batch)

    monkeypatch.setattr(disbanding, "_disband", watched)
    async with ToolRunner([lambda: None]) as runner:
        async with runner.open_batch() as batch:
            pass
        held = [batch]
        del batch
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        with anyio.fail_after(LIVENESS):
            while not where:
                await anyio.sleep(0.001)
    assert set(where) == {threading.get_ident()}


async def test_the_last_reference_may_be_dropped_in_any_thread() -> None:
    """P10: the batch is then taken apart on its loop, all the same."""
    made: list[weakref.ref[Value]] = []

    async def make() -> Value:
        value = Value()
        made.append(weakref.ref(value))
        return value

    async with ToolRunner([make]) as runner:
        with without_the_collector():
            kept: list[ToolBatch] = []
            async with runner.open_batch(calls("make")) as batch:
                kept.append(batch)
            del batch
            assert kept[0].results[0].value is made[0]()
            await anyio.to_thread.run_sync(kept.clear)
            with anyio.fail_after(LIVENESS):
                while made[0]() is not None:
                    await anyio.sleep(0.001)
