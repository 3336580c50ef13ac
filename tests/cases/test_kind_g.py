"""
Kind G: cancellation that is swallowed, not passed on, or kills too much.

G3 and G11 are in `virtual/`, as they are about time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    open_batch,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


COMPLETED = ("completed", None, True, False)
FAILED = ("failed", None, True, False)
CALLER_CANCELLED = ("interrupted", "caller_cancelled", True, True)


async def until(condition: Callable[[], object]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


def runs_on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


async def stale_cancellation() -> BaseException:
    """Return a real cancellation of the running backend, of a scope that is over."""
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as exc:
            kept.append(exc)
            raise
    return kept[0]


async def invents_a_cancellation() -> None:
    raise await stale_cancellation()


async def cancels_its_own_task() -> None:
    if runs_on_asyncio():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(600)
    raise await stale_cancellation()  # trio has no such way


def raises_in_a_thread() -> None:
    raise asyncio.CancelledError


def check_invented(result: ToolResult) -> None:
    assert shape([result]) == [FAILED]
    assert isinstance(result.error, (anyio.get_cancelled_exc_class(), asyncio.CancelledError))
    assert result.is_error and result.effects == "unknown"
    assert type(result.error).__name__ in result.text


inventors = pytest.mark.parametrize(
    "inventor",
    [
        Tool(invents_a_cancellation, name="inventor"),
        Tool(invents_a_cancellation, name="inventor", runs_in="thread"),
        Tool(cancels_its_own_task, name="inventor"),
        Tool(raises_in_a_thread, name="inventor"),
    ],
    ids=["raises it", "in a loop of its own", "cancels its task", "in a thread"],
)


@inventors
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_g1_invented_cancellation_is_a_failure_of_that_call(
    inventor: Tool, size: int, promises: PromiseObserver
) -> None:
    """G1, P8: for a batch of one as for many; nobody else is cancelled by it."""

    async def sibling() -> str:
        await anyio.lowlevel.checkpoint()
        return "real"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([inventor, sibling], observers=[promises]) as runner:
            results = await runner.run(calls("inventor", *["sibling"] * (size - 1)))
            await anyio.lowlevel.checkpoint()  # the caller can go on
    check_invented(results[0])
    assert [r.value for r in results[1:]] == ["real"] * (size - 1)
    if runs_on_asyncio():
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0


@inventors
async def test_g2_cancellation_from_within_keeps_the_siblings(
    inventor: Tool, promises: PromiseObserver
) -> None:
    """G2, P3, P8: what had finished is kept, and what still runs comes to its end."""
    go = anyio.Event()

    async def finished() -> str:
        return "before"

    async def unfinished() -> str:
        await go.wait()
        await anyio.lowlevel.checkpoint()
        return "after"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [finished, inventor, unfinished], observers=[promises]
        ) as runner:
            async with runner.open_batch() as batch:
                first = batch.submit(ToolCall("a", "finished"))
                third = batch.submit(ToolCall("c", "unfinished"))
                await first.wait()
                second = batch.submit(ToolCall("b", "inventor"))
                await second.wait()
                assert third.result is None and not batch.interrupted
                go.set()
            assert [r.value for r in batch.results] == ["before", "after", None]
            check_invented(batch.results[2])
            promises.check(batch.id, batch.results)


class Connection:
    """A transport whose death is a cancellation in whoever waits for an answer."""

    def __init__(self) -> None:
        self.requests = 0
        self._dead = anyio.Event()
        self._future: asyncio.Future[Any] | None = None

    async def request(self) -> Any:
        self.requests += 1
        if runs_on_asyncio():
            self._future = asyncio.get_running_loop().create_future()
            return await self._future
        await self._dead.wait()
        raise await stale_cancellation()

    def die(self) -> None:
        if self._future is not None:
            self._future.cancel()
        self._dead.set()


async def test_g4_cancellation_out_of_a_transport_is_a_failure_of_that_call() -> None:
    """G4, P8: the process, the sibling and the next batch are none the worse for it."""
    connection = Connection()
    go = anyio.Event()

    async def local() -> str:
        await go.wait()
        return "real"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"remote": connection.request, "local": local}) as runner:
            async with runner.open_batch() as batch:
                remote = batch.submit(ToolCall("a", "remote"))
                sibling = batch.submit(ToolCall("b", "local"))
                await until(lambda: connection.requests)
                connection.die()
                check_invented(await remote.wait())
                assert sibling.result is None
                go.set()
            assert shape(batch.results) == [FAILED, COMPLETED]
            assert [r.value for r in await runner.run(calls("local"))] == ["real"]


async def cancel_around_the_block(
    runner: ToolRunner, ready: Callable[[], Awaitable[None]]
) -> ToolBatch:
    with anyio.CancelScope() as scope:
        async with runner.open_batch(calls("remote", "gated", "quick")) as batch:
            await ready()
            scope.cancel()
    assert scope.cancelled_caught
    return batch


async def cancel_the_waiting_task(
    runner: ToolRunner, ready: Callable[[], Awaitable[None]]
) -> ToolBatch:
    batches: list[ToolBatch] = []
    passed_on: list[bool] = []

    async def turn() -> None:
        try:
            async with runner.open_batch(calls("remote", "gated", "quick")) as batch:
                batches.append(batch)
        except anyio.get_cancelled_exc_class():
            passed_on.append(True)
            raise

    if runs_on_asyncio():
        task = asyncio.create_task(turn())
        await ready()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            await ready()
            group.cancel_scope.cancel()
    assert passed_on == [True]
    return batches[0]


@pytest.mark.parametrize("cancel", [cancel_around_the_block, cancel_the_waiting_task])
async def test_g6_cancelling_the_run_reaches_its_tools(
    cancel: Callable[..., Awaitable[ToolBatch]], promises: PromiseObserver
) -> None:
    """G6, P2, P8: async tools are cancelled and may tidy up, threads are let go."""
    gate = GatedTool()
    seen: list[str] = []

    async def remote() -> None:
        try:
            seen.append("open")
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            raise
        finally:
            await anyio.sleep(0.001)
            seen.append("closed")

    async def quick() -> str:
        return "real"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([remote, gate.tool, quick], observers=[promises]) as runner:

            async def ready() -> None:
                await gate.wait_started()
                await until(lambda: seen == ["open"])
                # The third call has ended by then, and is kept.
                await until(lambda: runner.statistics().running == 2)

            batch = await cancel(runner, ready)
            assert shape(batch.results) == [CALLER_CANCELLED, CALLER_CANCELLED, COMPLETED]
            assert batch.reason is not None and batch.reason.kind == "caller_cancelled"
            assert gate.ended == 0
            await until(lambda: len(runner.statistics().detached) == 1)
            assert runner.statistics().detached[0].call.name == "gated"
            assert seen == ["open", "cancelled", "closed"]
            gate.open()
            assert await runner.wait_detached(LIVENESS)


G7_SCRIPT = textwrap.dedent(
    """
    import sys, anyio
    from anyio_toolbatch import run_batch, ToolCall

    started = None

    async def fails():
        await started.wait()
        raise ValueError("the first")

    async def runs(how):
        started.set()
        try:
            await anyio.sleep(600)
        finally:
            if how == "raises":
                raise LookupError("out of the clean-up")
            if how == "awaits":
                await anyio.sleep(0)

    async def main():
        global started
        started = anyio.Event()
        results = await run_batch(
            [ToolCall("a", "fails")]
            + [ToolCall(how, "runs", {"how": how}) for how in ("raises", "awaits", "ends")],
            [fails, runs],
            fail_fast=True,
        )
        print(*(r.reason.kind if r.reason else r.text for r in results), sep=", ")

    anyio.run(main, backend=sys.argv[1])
    """
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_g7_fail_fast_leaves_no_orphan_and_no_warning(backend: str) -> None:
    """G7, P7: what it cuts has an owner: the process ends silently, status 0."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", G7_SCRIPT, backend],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        check=False,
    )
    cut = ", ".join(["sibling_failed"] * 3)
    assert done.stdout == f"ValueError: the first, {cut}\n"
    assert (done.stderr, done.returncode) == ("", 0)


async def test_g7_fail_fast_leaves_no_task_behind() -> None:
    """G7, P7, P10: when what was cut has ended, no task of ours is on the loop."""
    started = anyio.Event()
    ended: list[str] = []

    async def fails() -> None:
        await started.wait()
        raise ValueError("the first")

    async def runs() -> None:
        started.set()
        try:
            await anyio.sleep(600)
        finally:
            ended.append("runs")
            raise LookupError("out of the clean-up")

    async with ToolRunner([fails, runs]) as runner:
        with anyio.fail_after(LIVENESS):
            tasks = len(anyio.get_running_tasks())
            results = await runner.run(calls("fails", "runs"), fail_fast=True)
            assert shape(results) == [
                FAILED,
                ("interrupted", "sibling_failed", True, True),
            ]
            assert await runner.wait_detached(LIVENESS)
            assert ended == ["runs"]
            await until(lambda: len(anyio.get_running_tasks()) == tasks)


@pytest.mark.parametrize("inner_kind", ["open_batch", "ToolRunner", "same runner"])
async def test_g8_inner_interrupt_is_the_tools_own_affair(
    inner_kind: str, promises: PromiseObserver
) -> None:
    """G8, P6: the inner interrupt ends the inner batch; the outer one is not touched."""
    go = anyio.Event()
    inner_batches: list[ToolBatch] = []

    async def endless() -> None:
        await anyio.sleep(600)

    async def sub_agent() -> list[tuple[str, str]]:
        started = anyio.Event()

        async def says_started() -> str:
            started.set()
            return "inner result"

        tools = [endless, says_started]
        inner_calls = calls("endless", "says_started")
        match inner_kind:
            case "open_batch":
                opened = open_batch(inner_calls, tools)
            case "ToolRunner":
                opened = ToolRunner(tools).open_batch(inner_calls)
            case _:
                # Its runner knows these tools too, by the calls themselves.
                inner_calls = [
                    ToolCall(call.id, call.name, tool=func)
                    for call, func in zip(inner_calls, tools, strict=True)
                ]
                opened = runner.open_batch(inner_calls)
        async with opened as inner:
            inner_batches.append(inner)
            await started.wait()
            await until(lambda: inner.snapshot()[1] is not None)
            inner.interrupt("only this one")
        return [(r.call.name, r.status.value) for r in inner.results]

    async def sibling() -> str:
        await go.wait()
        return "outer result"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([sub_agent, sibling], observers=[promises]) as runner:
            async with runner.open_batch() as outer:
                agent = outer.submit(ToolCall("a", "sub_agent"))
                other = outer.submit(ToolCall("b", "sibling"))
                result = await agent.wait()
                assert result.value == [
                    ("endless", "interrupted"),
                    ("says_started", "completed"),
                ]
                assert other.result is None
                assert outer.reason is None
                go.set()
            assert shape(outer.results) == [COMPLETED, COMPLETED]
            # Each batch tells its own history.
            assert [c.name for c in outer.calls] == ["sub_agent", "sibling"]
            told = {e.batch_id for e in promises.events}
            assert (inner_batches[0].id in told) == (inner_kind == "same runner")
            assert inner_batches[0].reason is not None
            assert inner_batches[0].reason.message == "only this one"


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_g12_sync_and_async_tools_end_in_the_same_shape(how: str) -> None:
    """G12, P1, P9: under one cut both are paired, with one outcome for both."""
    gate = GatedTool("sync_tool")
    started: list[bool] = []

    async def async_tool() -> None:
        started.append(True)
        await anyio.sleep(600)

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, async_tool]) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch(calls("sync_tool", "async_tool")) as batch:
                    await gate.wait_started()
                    await until(lambda: started)
                    if how == "interrupt":
                        batch.interrupt()
                    else:
                        scope.cancel()
            kind = "user_interrupt" if how == "interrupt" else "caller_cancelled"
            assert shape(batch.results) == [("interrupted", kind, True, True)] * 2
            sync_result, async_result = batch.results
            assert sync_result.text == async_result.text
            assert sync_result.effects == async_result.effects == "unknown"
            ids = [call.id for call in batch.calls]
            chat = openai_chat.render_results(batch.results)
            blocks = anthropic.render_results(batch.results)["content"]
            assert [message["tool_call_id"] for message in chat] == ids
            assert [block["tool_use_id"] for block in blocks] == ids
            gate.open()
            assert await runner.wait_detached(LIVENESS)
    assert {r.status for r in batch.results} == {Status.INTERRUPTED}
