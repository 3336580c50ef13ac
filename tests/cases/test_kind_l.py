"""Kind L of the cases from the field: sync tools, loops, threads, context variables."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallSettled,
    Event,
    LateResult,
    LateResultDropped,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    from_thread,
    on_cancel,
    open_batch,
    report_progress,
    run_batch,
)
from anyio_toolbatch.blocking import BlockingToolRunner
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

session: ContextVar[str] = ContextVar("session")


sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
process_tools: Any = importlib.import_module("process_tools")
carrier_tools: Any = importlib.import_module("carrier_tools")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


async def happens(event: threading.Event) -> None:
    """Wait, on the loop, for what a worker thread does."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


def loop_here() -> object:
    return anyio.lowlevel.current_token().native_token


# -- L1 ------------------------------------------------------------------------


async def test_l1_blocking_calls_run_side_by_side_and_off_the_loop() -> None:
    """L1, P2: no sync tool runs on the loop, and three run at once."""
    together = threading.Barrier(3)
    loop_ran = threading.Event()
    threads: list[int] = []

    def blocking() -> bool:
        threads.append(threading.get_ident())
        together.wait(LIVENESS)
        # Only the loop sets this, so a stalled loop shows as False.
        return loop_ran.wait(LIVENESS)

    async with open_batch(calls(*["blocking"] * 3), [blocking]) as batch:
        await anyio.lowlevel.checkpoint()
        loop_ran.set()
    assert [r.value for r in batch.results] == [True] * 3
    assert len(set(threads)) == 3
    assert threading.get_ident() not in threads


# -- L2 ------------------------------------------------------------------------


async def test_l2_the_check_before_a_call_is_on_the_loop_and_says_so() -> None:
    """L2, §3.2: `validate` runs once a call, on the loop, before the start; it is documented."""
    order: list[tuple[str, bool]] = []
    here = threading.get_ident()

    def check(call: ToolCall) -> None:
        order.append((f"check {call.id}", threading.get_ident() == here))

    def blocking() -> None:
        order.append(("run", threading.get_ident() == here))

    tool = Tool(blocking, validate=check)
    results = await run_batch(calls(*["blocking"] * 3), [tool])
    assert all(r.status is Status.COMPLETED for r in results)
    assert order[:3] == [("check id-0", True), ("check id-1", True), ("check id-2", True)]
    assert order[3:] == [("run", False)] * 3
    assert "must be quick" in " ".join((Tool.__doc__ or "").split("validate:")[1].split())


def test_l2_a_check_that_would_have_to_be_awaited_is_refused() -> None:
    """L2, §3.2: an async `validate` would never run: TypeError at once."""

    async def check(_call: ToolCall) -> None: ...

    with pytest.raises(TypeError, match="not awaited"):
        Tool(lambda: None, name="t", validate=check)


# -- L3 ------------------------------------------------------------------------


async def test_l3_a_return_after_the_cancel_does_not_settle_again(
    promises: PromiseObserver,
) -> None:
    """L3, P1, P5: the second settle of a blocking call is a silent no-op."""
    gate = GatedTool(value="too late")
    late: list[LateResult] = []
    landed = anyio.Event()

    def on_late(result: LateResult) -> None:
        late.append(result)
        landed.set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], observers=[promises], on_late=on_late) as runner:
            async with runner.open_batch(calls("gated")) as batch:
                await gate.wait_started()
                batch.interrupt()
            before = batch.results
            gate.open()
            await landed.wait()
    assert batch.results == before
    assert batch.results[0].status is Status.INTERRUPTED
    assert [r.value for r in late] == ["too late"]
    assert sum(isinstance(e, CallSettled) for e in promises.events) == 1
    promises.check(batch.id, batch.results)


async def test_l3_a_cancel_read_after_the_return_does_not_settle_again(
    promises: PromiseObserver,
) -> None:
    """L3, P1, P3: a tool that held the loop during the interrupt keeps its one answer."""
    asked: list[bool] = []

    def holds_the_loop() -> str:
        # The loop is held here, so the interrupt is read after the return.
        thread = threading.Thread(target=lambda: asked.append(batch.interrupt()))
        thread.start()
        thread.join()
        return "answer"

    tool = Tool(holds_the_loop, runs_in="loop")
    async with ToolRunner([tool], observers=[promises]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("a", "holds_the_loop"))
            batch.seal()
            await batch.wait()
    assert asked == [True]
    assert [(r.status, r.value) for r in batch.results] == [(Status.COMPLETED, "answer")]
    assert sum(isinstance(e, CallSettled) for e in promises.events) == 1
    promises.check(batch.id, batch.results)


# -- L4 ------------------------------------------------------------------------


async def test_l4_thread_bound_things_are_served_on_the_loop() -> None:
    """L4, §3.2: with `runs_in="loop"` sync tools share the loop's one thread."""
    held: list[sqlite3.Connection] = []  # refuses every thread but its maker's

    def connect() -> int:
        held.append(sqlite3.connect(":memory:"))
        return threading.get_ident()

    def query() -> tuple[int, int]:
        (one,) = held[0].execute("SELECT 1").fetchone()
        return one, threading.get_ident()

    tools = [Tool(connect, runs_in="loop"), Tool(query, runs_in="loop")]
    async with ToolRunner(tools) as runner:
        (made,) = await runner.run(calls("connect"))
        used = await runner.run(calls("query", "query"))
    held[0].close()
    here = threading.get_ident()
    assert made.unwrap() == here
    assert [r.unwrap() for r in used] == [(1, here)] * 2


async def test_l4_the_carrier_is_chosen_per_tool() -> None:
    """L4, §3.2: beside a tool on the loop, the others keep their threads."""

    def here() -> int:
        return threading.get_ident()

    tools = {"bound": Tool(here, runs_in="loop"), "free": here}
    bound, free = await run_batch(calls("bound", "free"), tools)
    assert bound.value == threading.get_ident()
    assert free.value != threading.get_ident()


async def test_l4_thread_bound_things_are_served_behind_an_executor_of_one_thread(
    promises: PromiseObserver,
) -> None:
    """L4, §3.2: all calls share its one thread, across turns, and none holds the loop."""
    held: list[sqlite3.Connection] = []
    loop_ran = threading.Event()

    def connect() -> int:
        held.append(sqlite3.connect(":memory:"))
        assert loop_ran.wait(LIVENESS)  # only the loop sets this
        return threading.get_ident()

    def query() -> tuple[int, int]:
        (one,) = held[0].execute("SELECT 1").fetchone()
        return one, threading.get_ident()

    with ThreadPoolExecutor(1) as one_thread:
        tools = [Tool(connect, runs_in=one_thread), Tool(query, runs_in=one_thread)]
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch(calls("connect")) as batch:
                await anyio.lowlevel.checkpoint()
                loop_ran.set()
            used = await runner.run(calls("query", "query"))
        one_thread.submit(held[0].close).result()
    there = batch.results[0].unwrap()
    assert there != threading.get_ident()
    assert [r.unwrap() for r in used] == [(1, there)] * 2


# -- L6 ------------------------------------------------------------------------


async def test_l6_a_cached_client_lives_on_the_batchs_loop() -> None:
    """L6, §3.3: `from_thread.run` always reaches one loop, so that a cached client works."""
    send, requests = anyio.create_memory_object_stream[int](0)
    answers, receive = anyio.create_memory_object_stream[int](0)

    async def serve() -> None:
        async with requests, answers:
            async for request in requests:
                await answers.send(request * 10)

    async def ask(question: int) -> tuple[int, object]:
        await send.send(question)
        return await receive.receive(), loop_here()

    def blocking(start: int) -> list[tuple[int, object]]:
        return [from_thread.run(ask, start), from_thread.run(ask, start + 1)]

    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(serve)
        async with ToolRunner([blocking]) as runner:
            results = [
                *await runner.run([ToolCall("a", "blocking", {"start": 1})]),
                *await runner.run([ToolCall("b", "blocking", {"start": 3})]),
            ]
        await send.aclose()
    loop = loop_here()
    assert [r.unwrap() for r in results] == [
        [(10, loop), (20, loop)],
        [(30, loop), (40, loop)],
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_l6_one_off_loops_in_a_sync_tool_work(backend: str) -> None:
    """L6, P9: the worker does not look as if a loop ran in it: a tool may start its own."""

    async def inner(value: int) -> tuple[int, object]:
        await anyio.lowlevel.checkpoint()
        return value, loop_here()

    def blocking() -> list[tuple[int, object]]:
        return [anyio.run(inner, i, backend=backend) for i in range(2)]

    (result,) = await run_batch(calls("blocking"), [blocking])
    found = result.unwrap()
    assert [value for value, _ in found] == [0, 1]
    assert loop_here() not in [loop for _, loop in found]


# -- L7 ------------------------------------------------------------------------


async def by_run_batch(call: ToolCall, tool: Tool) -> list[ToolResult]:
    return await run_batch([call], [tool])


async def by_runner(call: ToolCall, tool: Tool) -> list[ToolResult]:
    async with ToolRunner([tool]) as runner:
        return await runner.run([call])


async def by_block(call: ToolCall, tool: Tool) -> list[ToolResult]:
    async with open_batch([call], [tool]) as batch:
        return await batch.wait()


async def by_submit(call: ToolCall, tool: Tool) -> list[ToolResult]:
    async with open_batch(tools=[tool]) as batch:
        return [await batch.submit(call).wait()]


@pytest.mark.parametrize("entry", [by_run_batch, by_runner, by_block, by_submit])
@pytest.mark.parametrize("runs_in", ["auto", "loop", "thread"])
async def test_l7_one_place_for_async_tools_through_every_entry(
    entry: Callable[[ToolCall, Tool], Any], runs_in: Any
) -> None:
    """L7, P9: async tools run on the caller's loop, unless the tool says "thread"."""

    async def where() -> tuple[bool, bool, type[BaseException]]:
        await anyio.lowlevel.checkpoint()
        same_thread = threading.get_ident() == here
        return same_thread, loop_here() is loop, anyio.get_cancelled_exc_class()

    here, loop = threading.get_ident(), loop_here()
    (result,) = await entry(ToolCall("a", "where"), Tool(where, runs_in=runs_in))
    on_the_loop = runs_in != "thread"
    # In a thread it has a loop of the same kind.
    kind = anyio.get_cancelled_exc_class()
    assert result.unwrap() == (on_the_loop, on_the_loop, kind)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("runs_in", ["auto", "loop", "thread"])
def test_l7_one_place_for_async_tools_through_the_synchronous_face(
    runs_in: Any, backend: str
) -> None:
    """L7, P9: there, too, they share one loop, the runner's own, unless the tool says "thread"."""
    kind = asyncio.CancelledError if backend == "asyncio" else trio.Cancelled

    async def where() -> tuple[int, type[BaseException]]:
        await anyio.lowlevel.checkpoint()
        return threading.get_ident(), anyio.get_cancelled_exc_class()

    def in_a_thread() -> int:
        return from_thread.run_sync(threading.get_ident)  # of the runner's loop

    tools = [Tool(where, runs_in=runs_in), Tool(in_a_thread)]
    with BlockingToolRunner(tools, backend=backend) as runner:
        turns = [runner.run(calls("where", "where", "in_a_thread")) for _ in range(2)]
    found = [[result.unwrap() for result in turn] for turn in turns]
    the_loop = found[0][2]
    assert the_loop == found[1][2] != threading.get_ident()
    for thread, cancelled_class in (answer for turn in found for answer in turn[:2]):
        assert (thread == the_loop) == (runs_in != "thread")
        assert thread != threading.get_ident()
        assert cancelled_class is kind


# -- L8 ------------------------------------------------------------------------


async def test_l8_the_submitters_context_is_copied_into_each_thread() -> None:
    """L8, §4.5: the caller's variables are seen; what a call sets is its own alone."""
    all_have_written = threading.Barrier(3)

    def blocking(name: str) -> tuple[str, str]:
        found = session.get()
        session.set(name)
        all_have_written.wait(LIVENESS)
        return found, session.get()

    session.set("caller")
    batch = [ToolCall(n, "blocking", {"name": n}) for n in "abc"]
    results = await run_batch(batch, [blocking])
    assert [r.unwrap() for r in results] == [("caller", n) for n in "abc"]
    assert session.get() == "caller"


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_l8_the_same_for_async_tools(runs_in: Any) -> None:
    """L8, §4.1: the context is the submitter's at submit, not the host's or a sibling's."""

    async def read(name: str) -> str:
        found = session.get()
        session.set(name)
        await anyio.lowlevel.checkpoint()
        assert session.get() == name
        return found

    async with open_batch(tools=[Tool(read, runs_in=runs_in)]) as batch:
        for n in "abc":
            session.set(f"submitter of {n}")
            batch.submit(ToolCall(n, "read", {"name": n}))
        session.set("later")
    assert [r.unwrap() for r in batch.results] == [f"submitter of {n}" for n in "abc"]


async def test_l8_the_same_in_an_executor_with_threads() -> None:
    """L8, §4.5: its threads are kept for long, and the context of no call is."""

    def blocking(name: str) -> tuple[str, str]:
        found = session.get()
        session.set(name)
        return found, session.get()

    session.set("caller")
    batch = [ToolCall(n, "blocking", {"name": n}) for n in "abc"]
    with ThreadPoolExecutor(1) as executor:
        results = await run_batch(batch, [Tool(blocking, runs_in=executor)])
        left = executor.submit(lambda: session.get("none")).result()
    assert [r.unwrap() for r in results] == [("caller", n) for n in "abc"]
    assert (session.get(), left) == ("caller", "none")


async def test_l8_context_does_not_cross_into_an_executor_with_processes() -> None:
    """L8: as with a process of ours; there the pool's worker keeps what a call has set."""
    process_tools.session.set("caller")
    batch = [ToolCall(n, "remembers", {"name": n}) for n in "ab"]
    with carrier_tools.new_executor("processes") as executor:
        results = await run_batch(batch, [Tool(process_tools.remembers, runs_in=executor)])
    assert [r.unwrap() for r in results] == [("unset", "a"), ("a", "b")]


async def test_l8_context_does_not_cross_into_a_process() -> None:
    """L8: a worker process shows the defaults, whatever was set here or by a call before."""
    session.set("caller")
    process_tools.session.set("caller")
    tool = Tool(process_tools.remembers, runs_in="process")
    batch = [ToolCall(n, "remembers", {"name": n}) for n in "ab"]
    results = await run_batch(batch, [tool], max_threads=1)  # one worker for both
    assert [r.unwrap() for r in results] == [("unset", n) for n in "ab"]


# -- L9 ------------------------------------------------------------------------


async def works() -> int:
    report_progress(1, 2)
    return 1


def works_in_a_thread() -> int:
    report_progress(1, 2)
    return 1


def streams() -> Any:
    yield 1
    yield 2


async def raises() -> None:
    raise ValueError


@pytest.mark.parametrize("func", [works, works_in_a_thread, streams, raises])
async def test_l9_one_call_gives_the_same_events_as_two(func: Callable[..., Any]) -> None:
    """L9, P1: a batch of one takes no special path: what is told of a call is the same."""

    async def told(count: int) -> list[Counter[str]]:
        events: list[Event] = []
        name = func.__name__
        async with ToolRunner([func], observers=[events.append]) as runner:
            await runner.run(calls(*[name] * count))
        assert isinstance(events[0], BatchStarted)
        assert isinstance(events[-1], BatchSettled)
        of_calls: Any = events[1:-1]
        return [
            Counter(type(e).__name__ for e in of_calls if e.index == index)
            for index in range(count)
        ]

    (alone,) = await told(1)
    assert alone["CallStarted"] == alone["CallSettled"] == 1
    assert await told(2) == [alone, alone]


async def test_l9_the_same_when_they_are_cut() -> None:
    """L9, P1: also for calls that an interrupt ends, and their late results."""

    async def told(count: int) -> list[Counter[str]]:
        events: list[Event] = []
        gate = GatedTool()
        all_late = anyio.Event()

        def observe(event: Event) -> None:
            events.append(event)
            if sum(isinstance(e, LateResultDropped) for e in events) == count:
                all_late.set()

        async with ToolRunner([gate.tool], observers=[observe]) as runner:
            async with runner.open_batch(calls(*["gated"] * count)) as batch:
                await gate.wait_started(count)
                batch.interrupt()
            gate.open()
            with anyio.fail_after(LIVENESS):
                await all_late.wait()
        # Once the runner is closed the observers have heard all.
        assert sum(isinstance(e, BatchInterrupted) for e in events) == 1
        by_call: list[Counter[str]] = [Counter() for _ in range(count)]
        for e in events:
            index = e.late.index if isinstance(e, LateResultDropped) else None
            index = getattr(e, "index", index)
            if index is not None:
                by_call[index][type(e).__name__] += 1
        return by_call

    (alone,) = await told(1)
    assert alone == {"CallStarted": 1, "CallSettled": 1, "LateResultDropped": 1}
    assert await told(2) == [alone, alone]


# -- L10 -----------------------------------------------------------------------


async def test_l10_a_long_c_call_is_let_go_and_stopped_by_its_hook() -> None:
    """L10, P2: the turn does not wait for a C call; `on_cancel` gives it the native stop."""
    running = threading.Event()
    late: list[LateResult] = []
    landed = anyio.Event()

    def on_late(result: LateResult) -> None:
        late.append(result)
        landed.set()

    def first_row() -> int:
        running.set()
        return 1

    def count_for_ever() -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            connection.create_function("first_row", 0, first_row)
            with on_cancel(connection.interrupt):
                connection.execute(
                    "WITH RECURSIVE c(x) AS (SELECT first_row() UNION ALL SELECT x + 1 FROM c)"
                    " SELECT count(*) FROM c"
                ).fetchall()
        finally:
            connection.close()

    async with ToolRunner([count_for_ever], on_late=on_late) as runner:
        async with runner.open_batch(calls("count_for_ever")) as batch:
            await happens(running)
            with anyio.fail_after(LIVENESS):
                batch.interrupt()
                await batch.wait()
        assert batch.results[0].status is Status.INTERRUPTED
        assert batch.results[0].detached
        with anyio.fail_after(LIVENESS):
            await landed.wait()
        assert runner.statistics().detached == ()
    # It did not end by itself: the hook stopped the statement.
    assert [type(r.error) for r in late] == [sqlite3.OperationalError]


async def test_l10_later_calls_do_not_queue_up_behind_it() -> None:
    """L10, P10: with a single thread allowed, the next call runs beside the stuck one."""
    stuck = GatedTool("stuck")
    async with ToolRunner([stuck.tool, Tool(lambda: 1, name="next")], max_threads=1) as runner:
        async with runner.open_batch(calls("stuck")) as batch:
            await stuck.wait_started()
            batch.interrupt()
        with anyio.fail_after(LIVENESS):
            results = await runner.run(calls("next", "next"))
        assert [r.value for r in results] == [1, 1]
        assert stuck.ended == 0
        stuck.open()


# -- L11 -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
async def test_l11_an_async_tool_that_blocks_is_served_by_a_thread(
    how: str, promises: PromiseObserver
) -> None:
    """L11, P2: with `runs_in="thread"` a blocking `async def` stalls neither loop nor stop."""
    running = threading.Event()
    release = threading.Event()

    async def custom() -> bool:
        running.set()
        return release.wait(LIVENESS)

    timeout = 0.05 if how == "timeout" else None
    tool = Tool(custom, runs_in="thread", timeout=timeout)
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("custom")) as batch:
                await happens(running)  # the loop goes on meanwhile
                if how == "interrupt":
                    batch.interrupt()
        (result,) = batch.results
        assert not release.is_set()
        assert result.started and result.detached and result.reason is not None
        assert result.reason.kind == {"interrupt": "user_interrupt"}.get(how, "call_timeout")
        release.set()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)
