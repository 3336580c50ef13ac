"""P1, P8, §4.6: whatever comes out of a tool is that call's own affair."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    Status,
    Tool,
    ToolCall,
    ToolCallError,
    ToolOutput,
    ToolResult,
    ToolRunner,
    UnknownToolError,
    from_thread,
    run_batch,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

ERRORS = [
    ValueError("plain"),
    SystemExit(3),
    GeneratorExit("odd"),
    StopIteration("stop"),
    StopAsyncIteration("stop"),
    asyncio.CancelledError("foreign"),
    BaseExceptionGroup("group", [SystemExit(1), ValueError("inside")]),
    TimeoutError("its own"),
]


def hold_until(condition: Callable[[], bool]) -> None:
    """Hold the loop until a worker has come so far; there is no event for it."""
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("runs_in", ["sync thread", "sync loop", "async loop", "async thread"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
async def test_any_error_is_one_failure(
    error: BaseException, runs_in: str, promises: PromiseObserver
) -> None:
    """§4.6: any BaseException fails its call; the siblings finish."""

    def sync_tool() -> None:
        raise error

    async def async_tool() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    kind, carrier = runs_in.split()
    bad = Tool(sync_tool if kind == "sync" else async_tool, name="bad", runs_in=carrier)  # type: ignore[arg-type]

    async def good() -> str:
        await anyio.sleep(0.01)
        return "fine"

    calls = [ToolCall("0", "good"), ToolCall("1", "bad"), ToolCall("2", "good")]
    async with ToolRunner([bad, good], observers=[promises]) as runner:
        for size in (3, 1):  # G1: a batch of one takes the same way
            results = await runner.run(calls[:3] if size == 3 else calls[1:2])
            failed = results[1] if size == 3 else results[0]
            assert failed.status is Status.FAILED
            assert failed.error is not None
            if isinstance(error, StopIteration) and kind == "async":
                assert isinstance(failed.error, RuntimeError)  # Python's own rule
            else:
                assert type(failed.error) is type(error)
            assert failed.started and failed.effects == "unknown"
            with pytest.raises(ToolCallError) as caught:
                failed.unwrap()
            assert caught.value.__cause__ is failed.error
            if size == 3:
                assert [results[0].value, results[2].value] == ["fine", "fine"]


@pytest.mark.parametrize("carrier", ["loop", "thread"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_keyboard_interrupt_of_a_tool(carrier: Any, is_async: bool) -> None:
    """§4.6, A14: it cuts the batch, is raised once, and the results stay readable."""

    def sync_tool() -> None:
        raise KeyboardInterrupt

    async def async_tool() -> None:
        raise KeyboardInterrupt

    gate = GatedTool()
    bad = Tool(async_tool if is_async else sync_tool, name="bad", runs_in=carrier)
    async with ToolRunner([bad, gate.tool]) as runner:
        with pytest.raises(KeyboardInterrupt):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("0", "gated"))
                await gate.wait_started()
                batch.submit(ToolCall("1", "bad"))
        first, second = batch.results
        assert first.reason is not None and first.reason.kind == "user_interrupt"
        assert second.status is Status.INTERRUPTED and second.started and not second.detached
        assert isinstance(second.error, KeyboardInterrupt)
        await batch.wait()  # not a second time
        gate.open()
        with pytest.raises(KeyboardInterrupt):
            await runner.run([ToolCall("2", "bad")])


async def test_keyboard_interrupt_out_of_a_generator_keeps_its_items() -> None:
    """P3: also those that the loop has not heard of when an interrupt finds its end."""
    gate = GatedTool()

    def items() -> Iterator[int]:
        gate.tool.func()
        yield 1
        yield 2
        raise KeyboardInterrupt

    async with ToolRunner([items]) as runner:
        with pytest.raises(KeyboardInterrupt), anyio.fail_after(LIVENESS):
            async with runner.open_batch([ToolCall("0", "items")]) as batch:
                await gate.wait_started()
                # The loop is held here, and the interrupt overtakes the items.
                batch.interrupt()
                gate.open()
                hold_until(lambda: not batch._engine.tickets.ends)
        (result,) = batch.results
        assert isinstance(result.error, KeyboardInterrupt)
        assert result.partial == [1, 2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
async def test_nothing_starts_once_a_tool_has_raised_what_ends_the_batch(
    error: type[BaseException],
) -> None:
    """P4: the thread that ran it does not take the next call, however busy the loop is."""
    started: list[str] = []
    gate = GatedTool()

    def bad() -> None:
        gate.tool.func()
        raise error

    tools = [bad, Tool(lambda: started.append("next"), name="next")]
    async with ToolRunner(tools, max_threads=1) as runner:
        batch = None
        with contextlib.suppress(KeyboardInterrupt), anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall("0", "bad"), ToolCall("1", "next")], fail_fast=error is ValueError
            ) as batch:
                await gate.wait_started()
                gate.open()
                # The loop is held until the thread has looked for more.
                lane = batch._engine.state.lane
                hold_until(lambda: lane.attached == 0)
        assert batch is not None
        assert started == []
        assert not batch.results[1].started


async def test_a_tool_that_fails_within_its_grace_keeps_its_own_error() -> None:
    """P3, P6: an answer of its own is what it is, good or bad."""

    async def tidies_up_and_fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("while it tidied up")

    async with ToolRunner([tidies_up_and_fails], interrupt_grace=LIVENESS) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch([ToolCall("0", "tidies_up_and_fails")]) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
    (result,) = batch.results
    assert (result.status, result.reason) == (Status.FAILED, None)
    assert isinstance(result.error, ValueError)


async def test_foreign_cancellation_harms_no_sibling(anyio_backend_name: str) -> None:
    """P8, G1: a tool that cancels its own task fails alone."""
    if anyio_backend_name != "asyncio":
        pytest.skip("native tasks are asyncio's")

    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    async def good() -> str:
        await anyio.sleep(0.01)
        return "fine"

    results = await run_batch(
        [ToolCall("0", "suicidal"), ToolCall("1", "good")], [suicidal, good]
    )
    assert [r.status.value for r in results] == ["failed", "completed"]
    assert isinstance(results[0].error, asyncio.CancelledError)


async def test_task_cancelled_before_its_first_step(anyio_backend_name: str) -> None:
    """P1: a host's task that somebody cancels before it ran still has a result."""
    if anyio_backend_name != "asyncio":
        pytest.skip("native tasks are asyncio's")

    async def tool() -> str:
        return "ran"

    async with ToolRunner([tool]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("0", "tool"))
            ours = {"anyio_toolbatch host", "tool"}
            for task in asyncio.all_tasks():
                if task.get_name() in ours:
                    task.cancel()
        # The host was cancelled while the loop lives on: it is made anew.
        assert [r.value for r in batch.results] == ["ran"]
        assert [r.value for r in await runner.run([ToolCall("1", "tool")])] == ["ran"]


@pytest.mark.parametrize("where", ["tool", "own loop", "approver", "visit"])
async def test_generator_exit_out_of_a_task_that_is_awaited(
    where: str, anyio_backend_name: str
) -> None:
    """P1: asyncio throws it into our task, where it closes all that is below; still a failure."""
    if anyio_backend_name != "asyncio":
        pytest.skip("trio's tasks give it in a group")
    tidied: list[bool] = []

    async def leave() -> None:
        await anyio.sleep(0)
        raise GeneratorExit("odd")

    async def waits() -> None:
        try:
            await asyncio.create_task(leave())
        finally:
            tidied.append(True)

    def visits() -> None:
        from_thread.run(waits)

    async def approves(call: ToolCall) -> bool:
        await waits()
        return True

    tools = {
        "tool": Tool(waits),
        "own loop": Tool(waits, runs_in="thread"),
        "approver": Tool(lambda: None),
        "visit": Tool(visits),
        "good": Tool(lambda: "fine"),
    }
    approve = approves if where == "approver" else None
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, approve=approve) as runner:
            results = await runner.run([ToolCall("0", where)])
            if where != "approver":
                assert [r.value for r in await runner.run([ToolCall("1", "good")])] == ["fine"]
    assert [r.status.value for r in results] == ["failed"]
    assert isinstance(results[0].error, GeneratorExit)
    assert tidied == [True]


async def test_host_cancelled_while_the_loop_lives_on(anyio_backend_name: str) -> None:
    """§4.1: later calls of the same batch get a new host."""
    if anyio_backend_name != "asyncio":
        pytest.skip("native tasks are asyncio's")
    started = anyio.Event()

    async def long() -> None:
        started.set()
        await anyio.sleep(600)

    async def tool() -> str:
        return "ran"

    async with ToolRunner([tool, long]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("0", "long"))
            await started.wait()
            for task in asyncio.all_tasks():
                if task.get_name() == "anyio_toolbatch host":
                    task.cancel()
            batch.submit(ToolCall("1", "tool"))
        # The running one was cancelled natively; the other had not begun.
        assert [r.status.value for r in batch.results] == ["failed", "completed"]


@pytest.mark.parametrize("what", ["scope", "group"])
async def test_scope_left_open_harms_that_call_only(what: str) -> None:
    """§4.1, H1: a tool that enters and never leaves fails; its siblings finish."""
    kept: list[Any] = []

    async def leaves_open() -> None:
        manager: Any
        if what == "scope":
            manager = anyio.CancelScope()
            manager.__enter__()
        else:
            manager = anyio.create_task_group()
            await manager.__aenter__()
        kept.append(manager)

    async def good() -> str:
        await anyio.sleep(0.02)
        return "fine"

    calls = [ToolCall("0", "good"), ToolCall("1", "leaves_open"), ToolCall("2", "good")]
    async with ToolRunner([leaves_open, good]) as runner:
        results = await runner.run(calls)
        assert [r.status.value for r in results] == ["completed", "failed", "completed"]
        assert isinstance(results[1].error, RuntimeError)
        assert [r.value for r in await runner.run([ToolCall("3", "good")])] == ["fine"]


async def test_sync_function_that_gives_an_awaitable() -> None:
    """§3.2: it is awaited on the loop, in the call's context."""
    loop_thread = threading.get_ident()

    async def inner() -> int:
        await anyio.sleep(0.01)
        return threading.get_ident()

    async def failing() -> None:
        raise ValueError("inside")

    tools = {"awaitable": lambda: inner(), "failing": lambda: failing()}
    results = await run_batch([ToolCall("0", "awaitable"), ToolCall("1", "failing")], tools)
    assert results[0].value == loop_thread
    assert isinstance(results[1].error, ValueError)


async def test_awaitable_of_a_detached_call_is_dropped_silently() -> None:
    """P5: an awaitable that a detached call returns is not awaited, and not warned of."""
    ran: list[str] = []

    async def inner() -> None:
        ran.append("late")

    gate = GatedTool(value=inner)
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch([ToolCall("0", "gated")]) as batch:
            await gate.wait_started()
            batch.interrupt()
        gate.open()
        assert await runner.wait_detached(20)
    assert ran == []


async def test_tool_output_marks_an_error_without_failing() -> None:
    """§3.2, I5: an error *result* completes its call and never cuts siblings."""
    gate = GatedTool()
    tools = {
        "bad": lambda: ToolOutput("exit status 1", is_error=True),
        "fine": lambda: ToolOutput({"a": 1}),
        "gated": gate.tool,
    }
    async with ToolRunner(tools) as runner:
        async with runner.open_batch(fail_fast=True) as batch:
            batch.submit(ToolCall("0", "gated"))
            batch.submit(ToolCall("1", "fine"))
            await batch.submit(ToolCall("2", "bad")).wait()
            gate.open()
        assert [(r.value, r.is_error, r.status.value) for r in batch.results] == [
            ("done", False, "completed"),
            ({"a": 1}, False, "completed"),
            ("exit status 1", True, "completed"),
        ]


async def test_fail_fast_names_the_culprit(promises: PromiseObserver) -> None:
    """§3.1, I6: siblings are cut as `sibling_failed`, naming the call that raised."""

    def boom() -> None:
        raise RuntimeError("disk full")

    gate, deaf = GatedTool(), DeafTool()
    async with ToolRunner(
        [gate.tool, deaf.tool, boom], max_threads=2, observers=[promises]
    ) as runner:
        async with runner.open_batch(fail_fast=True) as batch:
            for call_id, name in enumerate(("gated", "deaf", "boom", "gated", "gated")):
                batch.submit(ToolCall(str(call_id), name))
            await batch.wait()
            late = batch.submit(ToolCall("5", "gated"))
            assert late.result is not None
        gated, deafs, failed, *rest = batch.results
        assert failed.status is Status.FAILED and failed.reason is None
        for result in (gated, deafs, *rest):
            assert result.status is Status.INTERRUPTED
            assert result.reason is not None and result.reason.kind == "sibling_failed"
            assert "call 2 (boom)" in result.text and "disk full" in result.text
        assert not any(r.started for r in batch.results[4:])
        gate.open()
        deaf.release()
        assert await runner.wait_detached(20)


async def test_without_fail_fast_siblings_are_independent() -> None:
    """I1, I4: one failure changes nothing for the others."""

    def boom() -> None:
        raise RuntimeError

    results = await run_batch(
        [ToolCall("0", "boom"), *(ToolCall(str(i), "ok") for i in range(1, 5))],
        {"boom": boom, "ok": lambda: "ok"},
    )
    assert [r.status.value for r in results] == ["failed", *["completed"] * 4]


def texts(results: list[ToolResult]) -> list[str]:
    return [r.text for r in results]


async def test_invalid_calls_have_results() -> None:
    """P1, R1–R3: unknown tools and broken arguments get a result, and never run."""
    ran: list[Any] = []

    def tool(x: int) -> int:
        ran.append(x)
        return x

    results = await run_batch(
        [
            ToolCall("0", "tool", '{"x": 1}'),
            ToolCall("1", "tool", '{"x": 1'),
            ToolCall("2", "tool", "[1]"),
            ToolCall("3", "tool", {"y": 2}),
            ToolCall("4", "nobody"),
            ToolCall("", "tool", {"x": 5}),
        ],
        [tool],
    )
    assert [(r.status.value, r.reason.kind if r.reason else None) for r in results] == [
        ("completed", None),
        ("invalid", "bad_arguments"),
        ("invalid", "bad_arguments"),
        ("invalid", "bad_arguments"),
        ("invalid", "unknown_tool"),
        ("completed", None),
    ]
    assert sorted(ran) == [1, 5]
    assert "nobody" in results[4].text and "tool" in results[4].text
    assert all(r.effects == "none" for r in results[1:5])


async def test_validate_replaces_or_refuses() -> None:
    """§3.2: `validate` may replace the arguments, add a context, or refuse."""

    def check(call: ToolCall) -> dict[str, Any]:
        if call.arguments.get("amount", 0) > 10:
            raise ValueError("too much")
        return {**call.arguments, "session": "s1"}

    def pay(amount: int, session: str) -> str:
        return f"{amount} in {session}"

    pay_tool = Tool(pay, validate=check)
    results = await run_batch(
        [ToolCall("0", "pay", {"amount": 3}), ToolCall("1", "pay", {"amount": 30})], [pay_tool]
    )
    assert results[0].value == "3 in s1"
    assert results[1].status is Status.INVALID
    assert isinstance(results[1].error, ValueError)
    assert "too much" in results[1].text


async def test_validate_may_say_that_there_is_no_such_tool() -> None:
    """P6: for a framework that has the tools, and answers to a name that is none of them."""

    def check(_call: ToolCall) -> None:
        msg = "there is no tool named 'pay' (known: look)"
        raise UnknownToolError(msg)

    stands_in = Tool(lambda: None, name="pay", validate=check)
    (result,) = await run_batch([ToolCall("0", "pay", tool=stands_in)])
    assert result.reason is not None
    assert result.reason.kind == "unknown_tool"
    assert "known: look" in result.text
    assert not result.started
