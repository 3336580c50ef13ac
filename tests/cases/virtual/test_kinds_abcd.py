"""
Cases B7, C4, C5, C6, C7 and D4 for tools on the loop: their limits in virtual time.

The cases' times are stretched, where they need it, until a second more or less
is a fault: asyncio's virtual clock goes on ticking while code runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    LateResult,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    keep_partial,
    tool,
)
from anyio_toolbatch.testing import (
    DeafTool,
    PromiseObserver,
    ScriptedTool,
    clean_up_for,
    give,
    partial,
    shielded_for,
    sleep,
)

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
TIMED_OUT = ("timed_out", "call_timeout", True, True)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@contextlib.contextmanager
def letting_go(deaf: DeafTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tool: it would hold the loop's end."""
    try:
        yield
    finally:
        deaf.release()


def at(moment: float) -> Any:
    """Return what a clock reads at that moment, give or take what code takes to run."""
    return pytest.approx(moment, abs=1.0)


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = anyio.current_time()

    def read(self) -> float:
        return anyio.current_time() - self._start


@pytest.mark.parametrize("limited_by", ["Tool", "itself"])
@pytest.mark.parametrize("grace", [0.0, 3.0])
async def test_b7_stop_does_not_wait_for_the_tools_own_limit(
    promises: PromiseObserver, grace: float, limited_by: str
) -> None:
    """B7, P2: a stop at 5 s is over at 5 s plus the grace, not at the tool's 600 s."""

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(600)

    slow = Tool(stubborn, timeout=600) if limited_by == "Tool" else Tool(stubborn)
    async with ToolRunner([slow], observers=[promises]) as runner:
        clock = Clock()
        async with runner.open_batch(calls("stubborn")) as batch:
            await anyio.sleep(5)
            batch.interrupt(grace=grace)
        assert clock.read() == at(5 + grace)
        assert shape(batch.results) == [CUT]
        assert batch.results[0].run_time == at(5 + grace)
        assert await runner.wait_detached()
        assert clock.read() == at(600)
    promises.check(batch.id, batch.results)


async def _sleeping() -> None:
    await anyio.sleep(500)


async def _streaming() -> AsyncIterator[str]:
    yield "first"
    await anyio.sleep(500)
    yield "second"


@tool(name="slow", timeout=10)
async def _decorated() -> None:
    await anyio.sleep(500)


def _gives_a_coroutine() -> Any:
    return _sleeping()


PATHS: dict[str, Tool] = {
    "function": Tool(_sleeping, name="slow", timeout=10),
    "decorated": _decorated,
    "generator": Tool(_streaming, name="slow", timeout=10),
    "shielded": ScriptedTool(shielded_for(500), name="slow", timeout=10).tool,
    "plain on the loop": Tool(_gives_a_coroutine, name="slow", timeout=10, runs_in="loop"),
}


@pytest.mark.parametrize("path", PATHS)
async def test_c4_limit_of_the_tool_is_honoured_on_the_loop(
    promises: PromiseObserver, path: str
) -> None:
    """C4: a tool that sleeps 500 s with a limit of 10 s has its result at 10 s."""
    async with ToolRunner([PATHS[path]], close_timeout=1000, observers=[promises]) as runner:
        clock = Clock()
        async with runner.open_batch(calls("slow")) as batch:
            pass
        assert clock.read() == at(10)
        assert shape(batch.results) == [TIMED_OUT]
        assert batch.results[0].run_time == at(10)
        if path == "generator":
            assert batch.results[0].partial == ["first"]
    promises.check(batch.id, batch.results)


async def test_c4_limit_counts_from_the_start_of_the_call(promises: PromiseObserver) -> None:
    """C4: a call that waited for its place still has its whole limit."""
    slow = ScriptedTool(sleep(8), give("in time"), name="slow", timeout=10)
    async with ToolRunner([slow.tool], max_concurrency=1, observers=[promises]) as runner:
        clock = Clock()
        results = await runner.run(calls("slow", "slow", "slow"))
        assert clock.read() == at(24)
        assert [r.value for r in results] == ["in time"] * 3
        assert [r.wait_time for r in results] == [at(0), at(8), at(16)]


CUTS = {
    "call_timeout": "timed_out",
    "batch_timeout": "timed_out",
    "user_interrupt": "interrupted",
    "call_cancelled": "interrupted",
}


def _tool_that_needs_50_s(clock: list[Clock], told: list[float], limit: float | None) -> Tool:
    async def cooperative() -> str:
        keep_partial("half")
        try:
            await anyio.sleep(600)
        except anyio.get_cancelled_exc_class():
            told.append(clock[0].read())
            await anyio.sleep(50)
        return "what I have so far"

    return Tool(cooperative, timeout=limit)


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("grace", [0.0, 40.0, 60.0])
async def test_c5_time_to_stop_is_the_same_for_every_cut(
    promises: PromiseObserver, kind: str, grace: float
) -> None:
    """C5: a tool that needs 50 s to stop has them within the grace, whatever cuts it."""
    told: list[float] = []
    clock: list[Clock] = []
    limit = 10.0 if kind == "call_timeout" else None
    slow = _tool_that_needs_50_s(clock, told, limit)

    async with ToolRunner(
        [slow], interrupt_grace=grace, cleanup_grace=600, observers=[promises]
    ) as runner:
        clock.append(Clock())
        async with runner.open_batch(timeout=10 if kind == "batch_timeout" else None) as batch:
            batch.submit(ToolCall("id-0", "cooperative"))
            if kind in {"user_interrupt", "call_cancelled"}:
                await anyio.sleep(10)
                _cut(batch, kind)
        (result,) = batch.results
        if grace > 50:
            assert clock[0].read() == at(60)
            assert shape([result]) == [DONE]
            assert result.value == "what I have so far"
        else:
            assert clock[0].read() == at(10 + grace)
            assert shape([result]) == [(CUTS[kind], kind, True, True)]
            assert result.partial == "half"
        assert await runner.wait_detached()
        assert told == [at(10)]
    promises.check(batch.id, batch.results)


def _cut(batch: ToolBatch, kind: str) -> None:
    if kind == "user_interrupt":
        assert batch.interrupt() is True
    else:
        assert batch.cancel("id-0") == 1


@pytest.mark.parametrize("kind", ["polite", "deaf"])
async def test_c6_one_call_for_ever_does_not_hang_the_others(
    promises: PromiseObserver, kind: str
) -> None:
    """C6, P1: a dead transport costs that call its limit; the others keep their results."""
    deaf = DeafTool("dead", timeout=30)

    async def forever() -> None:
        await anyio.sleep_forever()

    dead = deaf.tool if kind == "deaf" else Tool(forever, name="dead", timeout=30)
    quick = ScriptedTool(sleep(10), give("first"), name="quick")
    slow = ScriptedTool(sleep(20), give("third"), name="slow")
    tools = [dead, quick.tool, slow.tool]
    with letting_go(deaf), anyio.fail_after(3600):
        async with ToolRunner(tools, observers=[promises]) as runner:
            clock = Clock()
            async with runner.open_batch(calls("quick", "dead", "slow")) as batch:
                pass
            assert clock.read() == at(30)
            assert shape(batch.results) == [DONE, TIMED_OUT, DONE]
            assert [r.value for r in batch.results] == ["first", None, "third"]
            assert not batch.interrupted
            deaf.release()
            assert await runner.wait_detached()
    promises.check(batch.id, batch.results)


async def test_c7_late_confirmation_can_be_had(promises: PromiseObserver) -> None:
    """C7, P5, P6: sent at 9 s, limit 10 s, confirmed at 30 s: unknown first, then the hook."""
    sent: list[float] = []
    late: list[LateResult] = []

    async def send() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(9)
            sent.append(clock.read())
            await anyio.sleep(21)
            return "confirmed"

    tools = [Tool(send, timeout=10)]
    async with ToolRunner(tools, observers=[promises], on_late=late.append) as runner:
        clock = Clock()
        async with runner.open_batch(calls("send")) as batch:
            pass
        assert clock.read() == at(10)
        assert sent == [at(9)]
        (result,) = batch.results
        assert shape([result]) == [TIMED_OUT]
        assert result.effects == "unknown" and "outcome is unknown" in result.text
        assert await runner.wait_detached()
        assert clock.read() == at(30)
        assert [(item.batch_id, item.value) for item in late] == [(batch.id, "confirmed")]
        assert late[0].late_by == at(20)
        assert batch.results == [result]
    promises.check(batch.id, batch.results)


async def test_c7_call_that_stops_when_told_has_no_late_result(
    promises: PromiseObserver,
) -> None:
    """C7, P5: the end of a call by our own cancellation is no confirmation of anything."""
    late: list[LateResult] = []
    send = ScriptedTool(
        clean_up_for(20),
        partial("sent"),
        sleep(600),
        give("confirmed"),
        name="send",
        timeout=10,
    )
    async with ToolRunner(
        [send.tool], cleanup_grace=600, observers=[promises], on_late=late.append
    ) as runner:
        clock = Clock()
        async with runner.open_batch(calls("send")) as batch:
            pass
        assert clock.read() == at(10)
        assert shape(batch.results) == [TIMED_OUT]
        assert "sent" in batch.results[0].text
        assert await runner.wait_detached()
        assert clock.read() == at(30)
        assert (send.cleaned_up, send.ended) == (1, 1)
        assert late == []
        assert runner.statistics().late_results == 0
    promises.check(batch.id, batch.results)


async def test_d4_close_is_bounded(promises: PromiseObserver) -> None:
    """D4, P7: a deaf call holds the close for `close_timeout` seconds and no longer."""
    deaf = DeafTool()
    with letting_go(deaf), anyio.fail_after(3600):
        async with ToolRunner([deaf.tool], close_timeout=15, observers=[promises]) as runner:
            async with runner.open_batch(calls("deaf")) as batch:
                await anyio.sleep(2)
                batch.interrupt()
            clock = Clock()
        assert clock.read() == at(15)
        assert deaf.ended == 0
        deaf.release()
        assert await runner.wait_detached()
    promises.check(batch.id, batch.results)


async def test_d4_close_does_not_wait_for_nothing(promises: PromiseObserver) -> None:
    """D4, P7: a runner without detached work is closed at once."""
    slow = ScriptedTool(sleep(5), give("real"), name="slow")
    async with ToolRunner([slow.tool], close_timeout=60, observers=[promises]) as runner:
        results = await runner.run(calls("slow"))
        clock = Clock()
    assert clock.read() == at(0)
    assert shape(results) == [DONE]
