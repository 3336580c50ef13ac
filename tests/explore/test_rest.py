"""P10: when nothing runs nothing is left; and what the explorer's checks find."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import LateResult, Reason, Status, ToolCall, ToolResult, ToolRunner
from anyio_toolbatch._runtime.hub import current_hub
from anyio_toolbatch._runtime.threads import at_work
from anyio_toolbatch.testing import GatedTool
from anyio_toolbatch.testing._checks import (
    problems_at_rest,
    problems_of_late_results,
    untruths,
)

LIVENESS = 20.0  # seconds where milliseconds are meant


def calls(name: str, count: int = 1) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i in range(count)]


def becomes(condition: Any) -> bool:
    until = time.monotonic() + LIVENESS
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(condition())


# -- threads at work ---------------------------------------------------------------


async def test_thread_is_at_work_until_it_has_said_all() -> None:
    """One that runs a call is; one that waits for the next call is not."""
    strangers = set(at_work)
    gate = GatedTool()
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls("gated", 3)):
            await gate.wait_started(3)
            assert len(at_work - strangers) == 3
            gate.open()
    assert becomes(lambda: at_work <= strangers)


async def test_no_thread_is_forgotten_or_left_over_at_work() -> None:
    """A thread that is given work while it still reports its last is at work again."""
    strangers = set(at_work)
    gate = GatedTool()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        async with ToolRunner([gate.tool, abs], max_threads=3) as runner:
            for _ in range(300):
                await runner.run([ToolCall(str(i), "abs", {}) for i in range(3)])
            async with runner.open_batch(calls("gated", 3)):
                await gate.wait_started(3)
                assert len(at_work - strangers) >= 3
                gate.open()
    finally:
        sys.setswitchinterval(before)
    assert becomes(lambda: at_work <= strangers)


# -- deferred work --------------------------------------------------------------------


async def test_deferred_work_makes_a_step_in_each_pass() -> None:
    """However slow the machine is: it comes to its end with no time to spend, too."""
    hub = current_hub()
    hub.slice_seconds = 0.0
    done = []

    def steps() -> Iterator[None]:
        for number in range(5):
            done.append(number)
            yield

    hub.run_in_slices(steps())
    with anyio.fail_after(LIVENESS):
        await hub.chores_until_now()
    assert done == [0, 1, 2, 3, 4]


async def test_a_fault_in_deferred_work_strands_nothing_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10: nor does one in the mailbox; both are logged."""
    hub = current_hub()
    done: list[str] = []

    def broken() -> Iterator[None]:
        yield
        raise ValueError

    hub.post(broken_item, None)
    hub.post(done.append, "item")
    hub.run_in_slices(broken())
    with anyio.fail_after(LIVENESS):
        await hub.chores_until_now()
        while not done:
            await anyio.sleep(0.001)
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]


def broken_item(_: object) -> None:
    raise ValueError


async def test_a_ctrl_c_in_the_mailbox_strands_nothing_behind_it() -> None:
    """P8: it comes out as what it is; the rest is handled in the next pass."""
    hub = current_hub()
    done: list[int] = []

    def broken(_: object) -> None:
        raise KeyboardInterrupt

    hub._queue.append((broken, None))
    hub._queue.append((done.append, 1))
    with pytest.raises(KeyboardInterrupt):
        hub._drain()
    with anyio.fail_after(LIVENESS):
        while not done:
            await anyio.sleep(0.001)
    assert done == [1]


# -- what is found ----------------------------------------------------------------------


async def test_what_still_runs_is_named() -> None:
    """And nothing is named when all has ended."""
    gate = GatedTool()
    hub = current_hub()
    runner = ToolRunner([gate.tool], max_concurrency=1)
    with anyio.fail_after(LIVENESS):
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()
            assert set(problems_at_rest(hub)) >= {
                "a runner still has open batches",
                "a runner still has calls in the scheduler",
            }
            batch.interrupt()
        await hub.chores_until_now()
        assert set(problems_at_rest(hub)) >= {"a runner still has detached calls"}
        gate.open()
        assert await runner.wait_detached()
        while found := list(problems_at_rest(hub)):
            assert found == ["the loop's mailbox or its deferred work is not empty"] or (
                "threads" in str(found)
            )
            await anyio.sleep(0.001)


CALL = ToolCall("id", "tool")
CUT = Reason("user_interrupt")


def result(status: Status, **more: Any) -> ToolResult:
    return ToolResult(CALL, 0, status, **more)


GOOD = {
    "completed": result(Status.COMPLETED, value=1),
    "marked as an error": result(Status.COMPLETED, value=1, is_error=True),
    "failed": result(Status.FAILED, error=ValueError()),
    "detached": result(Status.INTERRUPTED, reason=CUT, started=True, detached=True),
    "never started": result(Status.INTERRUPTED, reason=CUT, started=False),
    "timed out": result(Status.TIMED_OUT, reason=Reason("call_timeout"), started=True),
    "invalid": result(Status.INVALID, reason=Reason("unknown_tool"), error=LookupError()),
    "denied": result(Status.DENIED, reason=Reason("not_approved")),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_true_results_are_left_alone(good: ToolResult) -> None:
    """The check does not cry wolf."""
    assert list(untruths(good)) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (result(Status.COMPLETED, reason=CUT), "does not go with the reason user_interrupt"),
        (result(Status.INTERRUPTED), "does not go with the reason None"),
        (result(Status.COMPLETED, started=False), "completed, but not started"),
        (result(Status.COMPLETED, detached=True), "completed, but not started, or detached"),
        (result(Status.INTERRUPTED, reason=CUT, value=1), "interrupted, and has a value"),
        (
            result(Status.INTERRUPTED, reason=CUT, is_error=False),
            "interrupted, and not marked as an error",
        ),
        (
            result(Status.INTERRUPTED, reason=CUT, started=False, detached=True),
            "detached, but not started",
        ),
        (
            result(Status.INTERRUPTED, reason=CUT, started=False, run_time=1.0),
            "not started, and has a run time",
        ),
    ],
)
def test_untrue_results_are_found(bad: ToolResult, problem: str) -> None:
    """P6, as data."""
    assert any(problem in found for found in untruths(bad))


async def test_late_results_are_checked() -> None:
    """P5: one for each detached call, and for no other."""
    async with ToolRunner({"now": abs}) as runner:
        async with runner.open_batch([ToolCall("id", "now", {})]) as batch:
            pass
    late = LateResult(batch.id, CALL, 0, "late", None, 0.0)
    where = f"call 0 (tool) of {batch.id}"
    assert list(problems_of_late_results([late, late], [batch._engine])) == [
        f"{where} was late, but never let go of",
        f"{where} was late twice",
        f"{where} was late, but never let go of",
    ]
    assert list(problems_of_late_results([late], [])) == []
