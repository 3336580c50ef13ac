"""Cases of the kinds P and T that turn on time, with async tools, in virtual time."""

from __future__ import annotations

import itertools
import re

import anyio
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    CallStarted,
    Status,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
)
from anyio_toolbatch.testing import (
    PromiseObserver,
    ScriptedTool,
    clean_up_for,
    fail,
    give,
    shielded_for,
    sleep,
)

INVITES_A_REPEAT = re.compile(r"try (it )?again|retry|repeat|re-?run|once more", re.I)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)

# Where in a batch each reason comes from, and whose doing it is.
KINDS = {
    "user_interrupt": "interrupted",
    "call_cancelled": "interrupted",
    "sibling_failed": "interrupted",
    "runner_closed": "interrupted",
    "caller_cancelled": "interrupted",
    "batch_timeout": "timed_out",
    "call_timeout": "timed_out",
}


async def cut_by(kind: str, promises: PromiseObserver) -> tuple[ToolBatch, ScriptedTool]:
    """Two calls that run and one that waits, cut in the given way after 10 seconds."""
    busy = ScriptedTool(
        sleep(600), name="busy", timeout=10 if kind == "call_timeout" else None
    )
    breaks = ScriptedTool(sleep(10), fail(OSError("disk full")), name="breaks")
    beside = "breaks" if kind == "sibling_failed" else "busy"
    asked = calls("busy", beside, "busy")
    runner = ToolRunner([busy.tool, breaks.tool], max_concurrency=2, observers=[promises])
    timeout = 10 if kind == "batch_timeout" else None
    with anyio.CancelScope() as scope:
        async with runner.open_batch(asked, timeout=timeout, fail_fast=True) as batch:
            if kind not in {"sibling_failed", "batch_timeout", "call_timeout"}:
                await anyio.sleep(10)
            match kind:
                case "user_interrupt":
                    batch.interrupt("the user pressed Escape")
                case "call_cancelled":
                    assert [batch.cancel(c.id, "not wanted") for c in asked] == [1, 1, 1]
                case "runner_closed":
                    await runner.aclose()
                case "caller_cancelled":
                    scope.cancel()
    await runner.wait_detached()
    promises.check(batch.id, batch.results)
    return batch, busy


# -- P3 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batch_timeout", "call_timeout"])
async def test_p3_a_limit_is_not_the_users_doing(kind: str, promises: PromiseObserver) -> None:
    """P3 (case), P6: where a deadline fired, neither data nor words speak of the user."""
    batch, _ = await cut_by(kind, promises)
    for result in batch.results:
        assert result.status is Status.TIMED_OUT
        assert result.reason is not None and result.reason.kind == kind
        assert "timed out" in result.text
        assert "user" not in result.text and "interrupt" not in result.text


# -- P6 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_p6_no_placeholder_invites_a_repeat(
    kind: str, promises: PromiseObserver
) -> None:
    """P6 (case), P6: no cut call runs twice, and no text of a started one asks for it."""
    batch, busy = await cut_by(kind, promises)
    started = [r for r in batch.results if r.started and r.call.name == "busy"]
    assert busy.started == len(started) > 0
    for result in started:
        assert not INVITES_A_REPEAT.search(result.text)
        assert "may have had side effects" in result.text


# -- T1, T2 --------------------------------------------------------------------


@pytest.mark.parametrize("how_many", [1, 2])
async def test_t2_one_call_is_stopped_as_two_are(
    how_many: int, promises: PromiseObserver
) -> None:
    """T1, T2, P2: stopped at 0.1 s of 12, the turn is over; what waited never starts."""
    slow = ScriptedTool(sleep(12), shielded_for(12))
    async with ToolRunner(
        [slow.tool], max_concurrency=1, close_timeout=60, observers=[promises]
    ) as runner:
        results: list[ToolResult] = []

        async def turn() -> None:
            results.extend(await runner.run(calls(*["scripted"] * how_many)))
            ended.append(anyio.current_time())

        ended: list[float] = []
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            await anyio.sleep(0.1)
            assert runner.interrupt() == 1
        assert shape(results) == [CUT, NOT_STARTED][:how_many]
        assert ended[0] - began < 6  # clocks skip at least 12 s to the tool's end
    assert slow.started == 1


async def test_t1_nor_does_a_shield_or_a_slow_clean_up_hold_the_turn(
    promises: PromiseObserver,
) -> None:
    """T1, P2: no second of a tool's own shield or clean-up is waited for."""
    shielded = ScriptedTool(shielded_for(600), name="shielded")
    tidy = ScriptedTool(clean_up_for(600), sleep(600), name="tidy")
    tools = [shielded.tool, tidy.tool]
    async with ToolRunner(
        tools, cleanup_grace=3600, close_timeout=3600, observers=[promises]
    ) as runner:
        began = anyio.current_time()
        async with runner.open_batch(calls("shielded", "tidy")) as batch:
            await anyio.sleep(0.1)
            batch.interrupt()
        assert anyio.current_time() - began < 300
        assert shape(batch.results) == [CUT, CUT]
        assert (shielded.ended, tidy.ended) == (0, 0)
    assert (shielded.ended, tidy.ended, tidy.cleaned_up) == (1, 1, 1)
    promises.check(batch.id, batch.results)


# -- T7 ------------------------------------------------------------------------


async def test_t7_waiting_is_no_running_at_the_batchs_limit(promises: PromiseObserver) -> None:
    """T7, P6: at the limit, what never started is said as such, without effects."""
    batch, _ = await cut_by("batch_timeout", promises)
    assert [(r.started, r.effects) for r in batch.results] == [
        (True, "unknown"),
        (True, "unknown"),
        (False, "none"),
    ]
    assert "not started" in batch.results[2].text
    assert "side effects" not in batch.results[2].text
    started = [e.index for e in promises.events if isinstance(e, CallStarted)]
    assert sorted(started) == [0, 1]


async def test_t7_waiting_does_not_use_up_a_calls_own_limit() -> None:
    """T7, §4.10: a call's limit runs while it runs; one that waits is not timed out."""
    slow = ScriptedTool(sleep(8), give("done"), timeout=10)
    async with ToolRunner([slow.tool], max_concurrency=1) as runner:
        results = await runner.run(calls("scripted", "scripted", "scripted"))
    assert [r.value for r in results] == ["done"] * 3


# -- T8 ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["call", "batch"])
async def test_t8_a_deadline_does_fire(limit: str, promises: PromiseObserver) -> None:
    """T8, P2: mended too widely it never would."""
    busy = ScriptedTool(sleep(600), timeout=10 if limit == "call" else None)
    began = anyio.current_time()
    async with ToolRunner([busy.tool], observers=[promises]) as runner:
        (result,) = await runner.run(
            calls("scripted"), timeout=10 if limit == "batch" else None
        )
        assert 10 <= anyio.current_time() - began < 300
    assert shape([result]) == [("timed_out", f"{limit}_timeout", True, True)]


# -- T13 -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_t13_the_reason_travels_with_every_kind_of_end(
    kind: str, promises: PromiseObserver
) -> None:
    """T13, P6: batch, event and each result name the one true reason and its message."""
    batch, _ = await cut_by(kind, promises)
    results = [r for r in batch.results if r.status is not Status.FAILED]
    assert len(results) == (2 if kind == "sibling_failed" else 3)
    message = {
        "user_interrupt": "the user pressed Escape",
        "call_cancelled": "not wanted",
        "sibling_failed": "call 1 (breaks) failed with OSError: disk full",
    }.get(kind)
    for result in results:
        assert result.reason is not None
        assert (result.reason.kind, result.reason.message) == (kind, message)
        assert result.status.value == KINDS[kind]
        assert message is None or message in result.text
    told = [e.reason for e in promises.events if isinstance(e, BatchInterrupted)]
    if kind in {"call_cancelled", "call_timeout"}:
        assert (batch.reason, told) == (None, [])
    else:
        assert [batch.reason] == told == [results[0].reason]


async def test_t13_a_later_stop_does_not_change_the_reason() -> None:
    """T13, P6: the first reason stays, whatever comes on top of it during the grace."""
    busy = ScriptedTool(clean_up_for(30), sleep(600), name="busy")
    async with ToolRunner([busy.tool], interrupt_grace=60, close_timeout=60) as runner:
        async with runner.open_batch(calls("busy"), timeout=10) as batch:
            await anyio.sleep(15)
            assert batch.reason is not None and batch.reason.kind == "batch_timeout"
            assert batch.interrupt("the user, impatient", grace=0) is False
        assert shape(batch.results) == [("timed_out", "batch_timeout", True, True)]
        assert "impatient" not in batch.results[0].text


# -- T21 -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_t21_cut_is_neither_failed_nor_nothing(
    kind: str, promises: PromiseObserver
) -> None:
    """T21, P6: each cut call has a state of its own, is an error to show, and no failure."""
    batch, _ = await cut_by(kind, promises)
    assert len(batch.results) == 3
    cut = [r for r in batch.results if r.call.name == "busy"]
    for result in cut:
        assert (result.status.value, result.value, result.error) == (KINDS[kind], None, None)
        assert result.is_error and result.text
    if kind != "call_timeout":  # there all three had their turn
        running, waiting = cut[0], cut[-1]
        assert (running.effects, waiting.effects) == ("unknown", "none")
        assert running.text != waiting.text


# -- T22 -----------------------------------------------------------------------


@pytest.mark.parametrize("cleanup_grace", [1.0, 5.0])
async def test_t22_a_deaf_tool_is_not_cancelled_again_and_again(cleanup_grace: float) -> None:
    """T22, §4.4: one cancellation, a pause, another: a handful in an hour, not thousands."""
    told: list[float] = []

    async def deaf() -> str:
        while len(told) < 1000:  # else a spin would hang this test
            try:
                await release.wait()
                break
            except anyio.get_cancelled_exc_class():
                told.append(anyio.current_time())
        return "released"

    release = anyio.Event()
    async with ToolRunner([deaf], cleanup_grace=cleanup_grace, close_timeout=60) as runner:
        async with runner.open_batch(calls("deaf")) as batch:
            await anyio.sleep(1)
            batch.interrupt()
        assert shape(batch.results) == [CUT]
        await anyio.sleep(3600)
        release.set()
        assert await runner.wait_detached()
    pauses = [after - before for before, after in itertools.pairwise(told)]
    assert 3 <= len(told) <= 13  # 1 + log2(3600 / grace)
    assert all(pause >= cleanup_grace for pause in pauses)
    assert pauses == sorted(pauses)  # growing


@pytest.mark.parametrize("style", ["finally", "except", "context"])
async def test_t22_an_ordinary_clean_up_completes(style: str) -> None:
    """T22, §4.4: awaits work in the clean-up of a tool that was cancelled."""
    closed: list[str] = []

    class Connection:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            await self.close()

        async def close(self) -> None:
            for _ in range(3):
                await anyio.sleep(1)
            closed.append("closed")

    async def works() -> None:
        connection = Connection()
        if style == "context":
            async with connection:
                await anyio.sleep(600)
        elif style == "finally":
            try:
                await anyio.sleep(600)
            finally:
                await connection.close()
        else:
            try:
                await anyio.sleep(600)
            except BaseException:
                await connection.close()
                raise

    async with ToolRunner([works], cleanup_grace=5, close_timeout=60) as runner:
        async with runner.open_batch(calls("works")) as batch:
            await anyio.sleep(1)
            batch.interrupt()
        assert shape(batch.results) == [CUT]
        assert closed == []  # the turn did not wait for it
        assert await runner.wait_detached()
        assert closed == ["closed"]
