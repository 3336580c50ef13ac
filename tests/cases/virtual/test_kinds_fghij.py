"""The cases of kinds F to J that are about time, on virtual clocks; no threads here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Self

import anyio
import pytest
import trio

from anyio_toolbatch import CallSettled, Event, ToolCall, ToolResult, ToolRunner, run_batch
from anyio_toolbatch.testing import PromiseObserver, ScriptedTool, fail, give, sleep


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


COMPLETED = ("completed", None, True, False)
FAILED = ("failed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)


async def with_anyio_scope() -> None:
    kept: list[BaseException] = []
    with anyio.move_on_after(1):
        try:
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class() as exc:
            kept.append(exc)
            raise
    raise kept[0]  # cleans up, then lets the cancellation out again


async def with_native_timeout() -> None:
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        await asyncio.wait_for(asyncio.sleep(600), 1)
    else:
        with trio.fail_after(1):
            await trio.sleep(600)


async def with_fail_after() -> None:
    with anyio.fail_after(1):
        await anyio.sleep(600)


@pytest.mark.parametrize("agent", [with_anyio_scope, with_native_timeout, with_fail_after])
async def test_g3_timeout_inside_one_sub_agent_spares_the_other(
    agent: Callable[[], Any], promises: PromiseObserver
) -> None:
    """G3, P6, P8: it is that call's failure, no timeout of ours; its sibling finishes."""
    other = ScriptedTool(sleep(5), give("real"), name="other")
    async with ToolRunner(
        {"agent": agent, "other": other.tool}, observers=[promises]
    ) as runner:
        began = anyio.current_time()
        async with runner.open_batch(calls("agent", "other")) as batch:
            await anyio.sleep(2)
            assert [r is None for r in batch.snapshot()] == [False, True]
        assert anyio.current_time() - began == pytest.approx(5, abs=0.5)
    assert shape(batch.results) == [FAILED, COMPLETED]
    assert batch.results[1].value == "real"
    assert isinstance(
        batch.results[0].error,
        (anyio.get_cancelled_exc_class(), TimeoutError, trio.TooSlowError),
    )


async def test_g11_kinds_of_outcome_are_distinct_as_data() -> None:
    """G11, P1, P6: a host that stores what `CallSettled` tells can tell them apart."""
    stored: dict[str, tuple[str, str | None, str]] = {}

    def store(event: Event) -> None:
        if isinstance(event, CallSettled):
            result = event.result
            assert result.call.id not in stored
            kind = result.reason.kind if result.reason else None
            stored[result.call.id] = (result.status.value, kind, result.effects)

    tools = [
        ScriptedTool(give("real"), name="done").tool,
        ScriptedTool(fail(ValueError("its own")), name="raises").tool,
        ScriptedTool(sleep(600), name="limited", timeout=1).tool,
        ScriptedTool(sleep(600), name="running").tool,
        ScriptedTool(give("never"), name="denied").tool,
    ]
    names = ["done", "raises", "limited", "running", "running", "running", "no_such_tool"]
    names.append("denied")

    async def approve(call: ToolCall) -> bool:
        return call.name != "denied"

    async with ToolRunner(
        tools, max_concurrency=2, approve=approve, observers=[store]
    ) as runner:
        async with runner.open_batch(calls(*names)) as batch:
            await anyio.sleep(2)
            assert batch.interrupt()
        assert await runner.wait_detached(60)
    expected = [
        ("completed", None, "done"),
        ("failed", None, "unknown"),
        ("timed_out", "call_timeout", "unknown"),
        ("interrupted", "user_interrupt", "unknown"),
        ("interrupted", "user_interrupt", "unknown"),
        ("interrupted", "user_interrupt", "none"),
        ("invalid", "unknown_tool", "none"),
        ("denied", "not_approved", "none"),
    ]
    assert [
        (r.status.value, r.reason.kind if r.reason else None, r.effects) for r in batch.results
    ] == expected
    assert [stored[f"id-{n}"] for n in range(len(names))] == expected
    # The batch itself says that it was cut: the step is not complete.
    assert batch.interrupted
    # As text, too, an interrupt does not read like the tool's own error.
    assert "interrupted by the user" in batch.results[3].text
    assert "interrupted" not in batch.results[1].text


class Refusing:
    """A wait that refuses to be cancelled, and counts how often it was asked."""

    def __init__(self) -> None:
        self.refused = 0
        self.is_waiting = False
        self._let_go: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()  # it would hold the loop's end

    def let_go(self) -> None:
        end, self._let_go = self._let_go, None
        if end is not None:
            end()

    async def wait(self) -> None:
        self.is_waiting = True
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            await self._future()
        else:
            self._let_go = self._rescheduler()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _future(self) -> asyncio.Future[None]:
        refusing = self

        class RefusingFuture(asyncio.Future[None]):
            def cancel(self, msg: object = None) -> bool:
                refusing.refused += 1
                return False

        future = RefusingFuture()
        self._let_go = lambda: future.set_result(None)
        return future

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.refused += 1
        return trio.lowlevel.Abort.FAILED

    @staticmethod
    def _rescheduler() -> Callable[[], object]:
        task = trio.lowlevel.current_task()
        return lambda: trio.lowlevel.reschedule(task)


@pytest.mark.parametrize("grace", [0.0, 4.0])
async def test_h5_call_that_cannot_be_cancelled_does_not_spin_the_loop(grace: float) -> None:
    """H5, P2, P10: waiting for it costs next to no CPU, in a grace and after it."""
    with Refusing() as refusing:
        async with ToolRunner({"stubborn": refusing.wait}) as runner:
            async with runner.open_batch(calls("stubborn")) as batch:
                await anyio.wait_all_tasks_blocked()
                assert refusing.is_waiting
                cpu = time.process_time()
                batch.interrupt(grace=grace)
            assert shape(batch.results) == [CUT]
            if not grace:
                assert await runner.wait_detached(4) is False
            # A loop that spins cannot skip ahead: 4 s of it would cost 4 s of CPU.
            assert time.process_time() - cpu < 0.4
            assert refusing.refused > 0, "the scenario needs a cancellation that is refused"
            refusing.let_go()
            assert await runner.wait_detached(60)


async def test_i8_cut_async_sibling_is_stopped_before_it_writes(
    promises: PromiseObserver,
) -> None:
    """I8, P2, P8: call 1 fails at 10 ms, call 2 would write at 500 ms and does not."""
    written: list[str] = []

    async def writes() -> None:
        await anyio.sleep(0.5)
        written.append("too late")

    fails = ScriptedTool(sleep(0.01), fail(ValueError("the first")), name="fails")
    async with ToolRunner([fails.tool, writes], observers=[promises]) as runner:
        began = anyio.current_time()
        results = await runner.run(calls("fails", "writes"), fail_fast=True)
        assert anyio.current_time() - began < 0.4
        assert shape(results) == [FAILED, ("interrupted", "sibling_failed", True, True)]
        assert await runner.wait_detached(0.4), "stopped, not merely let go"
        await anyio.sleep(10)
    assert written == []


@pytest.mark.parametrize(
    "delays", [[2, 1], [5, 4, 3, 2, 1], [3, 1, 4, 2]], ids=["J2", "J3", "J7"]
)
async def test_j2_j3_j7_results_are_in_call_order(delays: list[int]) -> None:
    """J2, J3, J7, P1: whatever the delays, result n is that of call n."""

    async def delayed(seconds: int) -> str:
        await anyio.sleep(seconds)
        return f"after {seconds} s"

    given = [ToolCall(f"id-{s}", "delayed", {"seconds": s}) for s in delays]
    ended: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, CallSettled):
            ended.append(event.call.id)

    results = await run_batch(given, [delayed], observers=[observe])
    assert [(r.call.id, r.value) for r in results] == [
        (f"id-{s}", f"after {s} s") for s in delays
    ]
    assert ended == [f"id-{s}" for s in sorted(delays)]
