"""
The public API as users write it: checked by type checkers, never executed.

A line with an ``ignore`` of a named error is wrong on purpose: were it no longer
found, the checkers would report the unused comment.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, assert_type

import anyio

import anyio_toolbatch
from anyio_toolbatch import (
    BatchInterrupted,
    BatchNotSettledError,
    BatchOptions,
    BatchSealedError,
    BatchSettled,
    BatchStarted,
    CallContext,
    CallDetached,
    CallHandle,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    CancelFlag,
    CancelHook,
    DetachedCall,
    Event,
    LateResult,
    LateResultDropped,
    Reason,
    RunnerClosedError,
    RunnerStatistics,
    Status,
    Tool,
    ToolBatch,
    ToolBatchError,
    ToolCall,
    ToolCallError,
    ToolOutput,
    ToolResult,
    ToolRunner,
    WaitingCall,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    open_batch,
    report_progress,
    run_batch,
    tool,
)
from anyio_toolbatch.observe.live import LiveView
from anyio_toolbatch.observe.otel import TelemetryObserver
from anyio_toolbatch.observe.stalls import Stall, StallDetector
from anyio_toolbatch.observe.trace import TraceRecorder
from anyio_toolbatch.testing import (
    AsyncGatedTool,
    DeafTool,
    Exploration,
    GatedTool,
    Injection,
    Plan,
    PromiseObserver,
    ScriptedTool,
    Stage,
    backends,
    clean_up_for,
    explore,
    fail,
    give,
    partial,
    progress,
    replay,
    shielded_for,
    sleep,
)

# -- tools ---------------------------------------------------------------------


@tool
async def search(query: str, limit: int = 10) -> list[str]:
    report_progress(0.5, total=1.0, message="half")
    await anyio.sleep(0)
    return [query] * limit


@tool(name="read", timeout=5, runs_in="thread", on_interrupt="keep", metadata={"a": 1})
def read_file(path: str) -> ToolOutput:
    from_thread.check_cancelled()
    keep_partial(path)
    return ToolOutput("no such file", is_error=True)


def count(to: int) -> Iterator[int]:
    yield from range(to)


async def stream(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


class Multiply:
    def __call__(self, a: float, b: float) -> float:
        return a * b


def check(call: ToolCall) -> Mapping[str, Any] | None:
    return {**call.arguments, "user": "me"}


assert_type(search, Tool)
assert_type(read_file, Tool)
TOOLS: list[Tool | Callable[..., Any]] = [
    search,
    read_file,
    count,
    stream,
    Multiply(),
    lambda: None,
    Tool(count, name="counted", runs_in="loop", validate=check),
]
BY_NAME: dict[str, Tool | Callable[..., Any]] = {"a": search, "b": count}

Tool("search")  # type: ignore[arg-type]
Tool(count, runs_in="fiber")  # type: ignore[arg-type]
Tool(count, on_interrupt="ignore")  # type: ignore[arg-type]
Tool(count, time_out=5)  # type: ignore[call-arg]
tool(time_out=5)  # type: ignore[call-overload]


def query_database(sql: str) -> list[Any]:
    connection = sqlite3.connect(":memory:")
    with on_cancel(connection.interrupt) as hook:
        assert_type(hook, CancelHook)
        rows = connection.execute(sql).fetchall()
    assert_type(hook.unregister(), bool)
    return rows


async def fetch(url: str, attempts: int) -> bytes:
    return url.encode() * attempts


def in_a_worker(url: str) -> str:
    assert_type(from_thread.run(fetch, url, 3), bytes)
    assert_type(from_thread.run_sync(len, url), int)
    from_thread.run(fetch, url)  # type: ignore[arg-type]
    try:
        from_thread.check_cancelled()
    except CallDetached:
        raise
    context = current_call()
    assert_type(context, CallContext)
    assert_type(context.call, ToolCall)
    assert_type(context.batch_id, str)
    assert_type(context.cancelled, CancelFlag)
    assert_type(context.cancelled.is_set(), bool)
    assert_type(context.cancelled.wait(0.1), bool)
    return url


# -- calls and results ---------------------------------------------------------

CALLS = [
    ToolCall("1", "search", {"query": "x"}),
    ToolCall("2", "read", '{"path": "x"}', metadata=object(), wire={"type": "function"}),
    ToolCall("3", "own", tool=search),
    ToolCall("4", "own", tool=count),
]
ToolCall(5, "name")  # type: ignore[arg-type]


def frozen(call: ToolCall, result: ToolResult) -> None:
    assert_type(call.id, str)
    assert_type(call.name, str)
    assert_type(call.arguments, dict[str, Any])
    assert_type(call.parse_error, str | None)
    assert_type(call.tool, Tool | Callable[..., Any] | None)
    assert_type(result.call, ToolCall)
    assert_type(result.index, int)
    assert_type(result.status, Status)
    assert_type(result.error, BaseException | None)
    assert_type(result.reason, Reason | None)
    assert_type(result.started, bool)
    assert_type(result.detached, bool)
    assert_type(result.is_error, bool)
    assert_type(result.wait_time, float)
    assert_type(result.run_time, float)
    assert_type(result.text, str)
    assert_type(result.effects, Literal["none", "done", "unknown"])


def say(result: ToolResult) -> str:
    """Every status is told from the others: leaving one out is an error."""
    match result.status:
        case Status.COMPLETED:
            return str(result.unwrap())
        case Status.FAILED | Status.TIMED_OUT:
            return repr(result.error)
        case Status.INTERRUPTED:
            reason = result.reason
            return "" if reason is None else f"{reason.kind}: {reason.message}"
        case Status.DENIED | Status.INVALID:
            return result.text


# -- running -------------------------------------------------------------------


def observe(event: Event) -> None:
    assert_type(event.batch_id, str)
    match event:
        case CallStarted(call=call, index=index):
            assert_type(call, ToolCall)
            assert_type(index, int)
        case CallProgress():
            assert_type(event.progress, float)
            assert_type(event.total, float | None)
            assert_type(event.message, str | None)
        case CallOutput(output=_):
            pass
        case CallSettled(result=result):
            assert_type(result, ToolResult)
            assert_type(event.call, ToolCall)
            assert_type(event.index, int)
        case BatchInterrupted(reason=reason):
            assert_type(reason, Reason)
        case LateResultDropped(late=late):
            assert_type(late, LateResult)
        case BatchStarted() | BatchSettled():
            pass
        case _:
            # The base class is no sealed union: a later version may add events.
            pass


def take_late(late: LateResult) -> None:
    assert_type(late.late_by, float)
    assert_type(late.error, BaseException | None)


async def without_a_runner() -> None:
    assert_type(await run_batch(CALLS, TOOLS), list[ToolResult])
    await run_batch(iter(CALLS), BY_NAME, timeout=60, fail_fast=True, max_concurrency=4)
    await run_batch(CALLS, [search], observers=[observe], on_late=take_late)
    options: BatchOptions = {"max_threads": 4, "interrupt_grace": 0.5}
    async with open_batch(tools=[search, count], **options) as batch:
        assert_type(batch, ToolBatch)
    await run_batch(CALLS, max_thread=4)  # type: ignore[call-arg]
    await run_batch(["search"], TOOLS)  # type: ignore[list-item]


async def with_a_runner() -> None:
    runner = ToolRunner(
        TOOLS,
        max_concurrency=8,
        max_threads=16,
        max_detached=32,
        interrupt_grace=0.1,
        cleanup_grace=1,
        close_timeout=2,
        observers=(observe, PromiseObserver()),
        on_late=take_late,
    )
    async with runner as same:
        assert_type(same, ToolRunner)
        results = await runner.run(CALLS, timeout=60, interrupt_grace=1, fail_fast=True)
        assert_type(results, list[ToolResult])
        opened = runner.open_batch(CALLS, timeout=60)
        assert_type(opened, AbstractAsyncContextManager[ToolBatch])
        assert_type(runner.interrupt("enough", grace=0.5), int)
        assert_type(await runner.wait_detached(5), bool)
        statistics = runner.statistics()
        assert_type(statistics, RunnerStatistics)
        assert_type(statistics.running, int)
        assert_type(statistics.detached, tuple[DetachedCall, ...])
        assert_type(statistics.detached[0].since, float)
    await runner.aclose()
    ToolRunner(search)  # type: ignore[arg-type]
    ToolRunner([search], 8)  # type: ignore[call-arg]


class Loud(ToolRunner):
    """A runner may be subclassed; ``async with`` keeps the subclass."""


async def streaming(runner: ToolRunner) -> list[str]:
    async with Loud(TOOLS) as loud:
        assert_type(loud, Loud)
    async with runner.open_batch() as batch:
        handles = [batch.submit(call) for call in CALLS]
        assert_type(handles, list[CallHandle])
        handle = handles[0]
        assert_type(handle.index, int)
        assert_type(handle.result, ToolResult | None)
        assert_type(handle.cancel("not this one"), bool)
        assert_type(await handle.wait(), ToolResult)
        assert_type(batch.cancel("id", "nor these"), int)
        assert_type(batch.interrupt(grace=1), bool)
        batch.seal()
        assert_type(await batch.wait(), list[ToolResult])
        async for event in batch.events():
            assert_type(event, Event)
            observe(event)
    assert_type(batch.id, str)
    assert_type(batch.calls, list[ToolCall])
    assert_type(batch.snapshot(), list[ToolResult | None])
    assert_type(batch.reason, Reason | None)
    assert_type(batch.interrupted, bool)
    try:
        return [say(result) for result in batch.results]
    except (BatchNotSettledError, BatchSealedError, RunnerClosedError, ToolCallError) as exc:
        own_error: ToolBatchError = exc
        raise own_error from None


# -- observing -----------------------------------------------------------------


class Entering:
    def __call__(self, event: Event) -> None: ...

    def enter_call(self, context: CallContext) -> None: ...

    def leave_call(self, context: CallContext) -> None:
        assert_type(context.runs_in, Literal["loop", "thread", "process", "executor"])

    def watch_batch(self, batch: ToolBatch) -> None:
        assert_type(batch.waiting_call(0), WaitingCall | None)


async def seeing() -> None:
    recorder = TraceRecorder(max_calls=None, capture_content=True)
    recorder.save("trace.json")
    recorder.save(Path("trace.json"))
    assert_type(recorder.to_json(), str)
    with LiveView(file=sys.stderr, refresh_per_second=4) as view:
        assert_type(view, LiveView)
        view.note("words")
        view.restore()
    async with LiveView() as view, ToolRunner(observers=[view, recorder]) as runner:
        (result,) = await runner.run(CALLS)
    assert_type(result.approval_time, float)


def observers() -> ToolRunner:
    def on_stall(stall: Stall) -> None:
        assert_type(stall.tool, str | None)
        assert_type(stall.call, ToolCall | None)
        assert_type(stall.seconds, float)

    telemetry = TelemetryObserver(capture_content=True, max_content_chars=100)
    return ToolRunner(observers=[Entering(), telemetry, StallDetector(1, on_stall=on_stall)])


# -- testing -------------------------------------------------------------------


async def doubles() -> None:
    gate = GatedTool("gate", value=1, error=ValueError(), timeout=5)
    deaf = DeafTool(value=2, on_interrupt="keep")
    scripted = ScriptedTool(
        sleep(1),
        shielded_for(1),
        clean_up_for(1),
        progress(1, 2),
        partial("half"),
        fail(ValueError()),
        give(3),
        name="scripted",
    )
    assert_type([gate.tool, deaf.tool, scripted.tool], list[Tool])
    gate.open()
    gate.let_through(2)
    await gate.wait_started(2)
    await gate.wait_ended()
    deaf.release()
    assert_type(deaf.cancellations, int)
    observer = PromiseObserver()
    results = await run_batch(CALLS, [gate.tool], observers=[observer])
    observer.check("id", results)
    assert_type(observer.events, list[Event])


assert_type(anyio_toolbatch.run_batch is run_batch, bool)


async def scenario(stage: Stage) -> None:
    assert_type(stage.gated("blocking", value=1, timeout=5), GatedTool)
    waiting = assert_type(stage.gated_async(), AsyncGatedTool)
    tools = [waiting, stage.deaf(), scripted_search]
    async with assert_type(stage.runner(tools, max_threads=1), ToolRunner) as runner:
        await runner.run([ToolCall("id", "gated_async")])


def scripted_search(query: str) -> str:
    return query


def explored() -> None:
    for backend in backends():
        done = explore(scenario, backend=backend, injections=["cancel", Injection.CLOSE])
        assert_type(done, Exploration)
        assert_type(done.runs, int)
    replay(scenario, "seed=0 interrupt@3")
    replay(scenario, Plan(3, ((Injection.FINISH, 2),)), backend="trio")
    explore(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
