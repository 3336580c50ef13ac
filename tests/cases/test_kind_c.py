"""
Cases C: a timeout that does not time out, or that leaks its thread.

C6, and C4, C5 and C7 for tools on the loop, are in `virtual/`, as they are about time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    LateResult,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    TooManyDetachedError,
    current_call,
    from_thread,
    keep_partial,
    open_batch,
)
from anyio_toolbatch.testing import GatedTool, PromiseObserver

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
carrier_tools: Any = importlib.import_module("carrier_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant
LIMIT = 0.02  # seconds; a gate makes sure that no call ends before

DONE = ("completed", None, True, False)
TIMED_OUT = ("timed_out", "call_timeout", True, True)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@contextlib.contextmanager
def letting_go(*tools: GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, let its tools through."""
    try:
        yield
    finally:
        for tool in tools:
            tool.open()


async def test_c1_timeout_comes_while_the_tool_runs_and_the_loop_ticks(
    promises: PromiseObserver,
) -> None:
    """C1, P2: the result does not wait for the tool, and the loop was never frozen by it."""
    ticks = threading.Semaphore(0)
    release = threading.Event()
    seen: list[str] = []

    def slow() -> None:
        for _ in range(3):
            # Only a loop that runs beside this tool can give these.
            assert ticks.acquire(timeout=LIVENESS)
        seen.append("the loop ticked while the tool ran")
        release.wait(LIVENESS)
        seen.append("end")

    async def tick() -> None:
        while not seen:
            ticks.release()
            await anyio.sleep(0.001)

    with anyio.fail_after(LIVENESS):
        async with (
            ToolRunner([Tool(slow, timeout=LIMIT)], observers=[promises]) as runner,
            anyio.create_task_group() as group,
        ):
            group.start_soon(tick)
            async with runner.open_batch(calls("slow")) as batch:
                pass
            assert shape(batch.results) == [TIMED_OUT]
            await until(lambda: bool(seen))
            assert seen == ["the loop ticked while the tool ran"]
            release.set()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_c2_timed_out_threads_are_counted_and_capped(promises: PromiseObserver) -> None:
    """C2, P10: of 1000 endless calls a bounded number leave a thread, all seen; the rest is refused."""
    gate = GatedTool("endless", timeout=LIMIT)
    threads, cap = 4, 8
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool], max_threads=threads, max_detached=cap, observers=[promises]
        ) as runner:
            results = await runner.run(calls(*["endless"] * 1000))
            assert len(results) == 1000
            left = [r for r in results if r.status is Status.TIMED_OUT]
            refused = [r for r in results if r.status is Status.FAILED]
            assert len(left) + len(refused) == 1000
            # Those that already ran when the cap was reached may still join.
            assert cap <= len(left) < cap + threads
            detached = {d.call.id for d in runner.statistics().detached}
            assert detached == {r.call.id for r in left}
            for result in refused:
                assert result.reason is not None and result.reason.kind == "too_many_detached"
                assert not result.started and result.effects == "none"
                assert isinstance(result.error, TooManyDetachedError)
                assert re.search(
                    r"not started: \d+ detached .*max_detached=8.*endless", result.text
                )
            assert gate.started == len(left)

            # Work that needs no thread is served; work that does is refused at once …
            async def on_loop() -> str:
                return "served"

            quick = GatedTool("quick", value="served")
            quick.open()
            asked = [
                ToolCall("a", "on_loop", tool=on_loop),
                ToolCall("b", "quick", tool=quick.tool),
            ]
            served, not_served = await runner.run(asked)
            assert served.value == "served"
            assert not_served.reason is not None
            assert not_served.reason.kind == "too_many_detached"
            assert quick.started == 0
            # … until the threads have ended.
            gate.open()
            assert await runner.wait_detached(LIVENESS)
            assert [r.value for r in await runner.run(asked)] == ["served", "served"]


async def test_c3_timed_out_threads_hold_no_place(promises: PromiseObserver) -> None:
    """C3, P10: four endless calls fill the four places until their limit, and not a moment longer."""
    gate = GatedTool("endless", timeout=LIMIT)
    quick = GatedTool("quick", value="served")
    quick.open()
    with letting_go(gate, quick), anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, quick.tool], max_threads=4, observers=[promises]
        ) as runner:
            # Behind the four in the same batch, and in the next one.
            same = await runner.run(calls(*["endless"] * 4, "quick"))
            assert shape(same) == [*[TIMED_OUT] * 4, DONE]
            (following,) = await runner.run(calls("quick"))
            assert same[-1].value == following.value == "served"
            assert gate.ended == 0
            assert len(runner.statistics().detached) == 4
            gate.open()
            assert await runner.wait_detached(LIVENESS)


def _endless(release: threading.Event, gave_first: threading.Event) -> dict[str, Tool]:
    """Return a tool for each path that a limit may take; none ends before `release`."""

    def function() -> None:
        release.wait(LIVENESS)

    def generator() -> Iterator[str]:
        yield "first"
        gave_first.set()
        release.wait(LIVENESS)
        yield "second"

    async def own_loop() -> None:
        release.wait(LIVENESS)  # deaf: it blocks its own loop

    async def own_loop_polite() -> None:
        await anyio.sleep(LIVENESS)

    async def rest() -> None:
        await anyio.sleep(LIVENESS)

    def awaitable() -> Any:
        return rest()

    return {
        "function": Tool(function, timeout=LIMIT),
        "generator": Tool(generator, timeout=LIMIT),
        "own loop": Tool(own_loop, timeout=LIMIT, runs_in="thread"),
        "polite in its own loop": Tool(own_loop_polite, timeout=LIMIT, runs_in="thread"),
        "awaitable of a function": Tool(awaitable, timeout=LIMIT),
    }


@pytest.mark.parametrize("path", _endless(threading.Event(), threading.Event()))
@pytest.mark.parametrize("given", ["to the runner", "with the call"])
async def test_c4_limit_of_the_tool_is_honoured_on_each_path(
    promises: PromiseObserver, path: str, given: str
) -> None:
    """C4: the tool's own limit ends its call, whatever carries it; siblings have none."""
    release = threading.Event()
    gave_first = threading.Event()
    tool = _endless(release, gave_first)[path]
    sibling = GatedTool("sibling", value="real")
    tools: dict[str, Tool] = {"sibling": sibling.tool}
    if given == "to the runner":
        tools["slow"] = tool
        call = ToolCall("id-0", "slow")
    else:
        call = ToolCall("id-0", "slow", tool=tool)
    with letting_go(sibling), anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                limited = batch.submit(call)
                other = batch.submit(ToolCall("id-1", "sibling"))
                if path == "generator":
                    # Holding the loop, so that the limit does not run out before.
                    assert gave_first.wait(LIVENESS)
                await limited.wait()
                assert other.result is None
                sibling.open()
            assert shape(batch.results) == [TIMED_OUT, DONE]
            assert not batch.interrupted
            if path == "generator":
                assert batch.results[0].partial == ["first"]
            release.set()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_c4_limit_of_a_tool_in_a_process(promises: PromiseObserver) -> None:
    """C4: the same in a worker process, which is ended by it."""
    nap = functools.partial(time.sleep, 1000.0)
    tool = Tool(nap, name="slow", runs_in="process", timeout=LIMIT)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as runner:
            (result,) = await runner.run(calls("slow"))
            assert shape([result]) == [("timed_out", "call_timeout", True, False)]
            assert "was stopped" in result.text
            assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_c4_limit_of_a_tool_in_an_executor(
    promises: PromiseObserver, kind: str, tmp_path: Path
) -> None:
    """C4: the same in an executor, from which it is let go; what it had left goes on."""
    with carrier_tools.new_executor(kind) as executor:
        tool = Tool(carrier_tools.gated, name="slow", runs_in=executor, timeout=LIMIT)
        asked = [ToolCall("id-0", "slow", {"folder": tmp_path})]
        try:
            with anyio.fail_after(LIVENESS):
                async with ToolRunner([tool], observers=[promises]) as runner:
                    async with runner.open_batch(asked) as batch:
                        pass
                    assert shape(batch.results) == [TIMED_OUT]
                    assert "time limit" in batch.results[0].text
                    (tmp_path / "go").touch()
                    assert await runner.wait_detached(LIVENESS)
        finally:
            (tmp_path / "go").touch()
    promises.check(batch.id, batch.results)


def _cut_by_call_timeout(batch: ToolBatch) -> None: ...  # the tool has its own limit
def _cut_by_batch_timeout(batch: ToolBatch) -> None: ...  # so has the batch
def _cut_by_interrupt(batch: ToolBatch) -> None:
    batch.interrupt()


def _cut_by_cancel(batch: ToolBatch) -> None:
    assert batch.cancel("id-0") == 2


CUTS: dict[str, tuple[Callable[[ToolBatch], None], str]] = {
    "call_timeout": (_cut_by_call_timeout, "timed_out"),
    "batch_timeout": (_cut_by_batch_timeout, "timed_out"),
    "user_interrupt": (_cut_by_interrupt, "interrupted"),
    "call_cancelled": (_cut_by_cancel, "interrupted"),
}


@pytest.mark.parametrize("kind", CUTS)
async def test_c5_every_cut_gives_the_same_grace(promises: PromiseObserver, kind: str) -> None:
    """C5: a tool that stops within the grace gives its own answer, at a timeout too."""
    cut, status = CUTS[kind]
    started = threading.Semaphore(0)

    def answering() -> str:
        started.release()
        assert current_call().cancelled.wait(LIVENESS)
        return "what I have so far"

    def stopping() -> None:
        keep_partial("half of it")
        started.release()
        while True:
            from_thread.check_cancelled()
            time.sleep(0.001)

    limit = LIMIT if kind == "call_timeout" else None
    tools = [Tool(answering, timeout=limit), Tool(stopping, timeout=limit)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, interrupt_grace=LIVENESS, observers=[promises]) as runner:
            async with runner.open_batch(
                timeout=LIMIT if kind == "batch_timeout" else None
            ) as batch:
                # One id for both: a label, so that one `cancel` reaches both.
                batch.submit(ToolCall("id-0", "answering"))
                batch.submit(ToolCall("id-0", "stopping"))
                for _ in range(2):
                    # Holding the loop, so that no limit runs out before the start.
                    assert started.acquire(timeout=LIVENESS)
                cut(batch)
            answered, stopped = batch.results
            assert shape([answered]) == [DONE]
            assert answered.value == "what I have so far"
            assert shape([stopped]) == [(status, kind, True, False)]
            assert stopped.partial == "half of it"
            assert "half of it" in stopped.text
            assert runner.statistics().detached == ()
        promises.check(batch.id, batch.results)


async def test_c7_timeout_does_not_hide_that_the_effect_took_place(
    promises: PromiseObserver,
) -> None:
    """C7, P5, P6: the outcome is called unknown, and the late confirmation goes to the hook."""
    sent: list[str] = []
    release = threading.Event()

    def send_mail() -> str:
        sent.append("mail")
        assert release.wait(LIVENESS)
        return "confirmed"

    late: list[LateResult] = []
    tools = [Tool(send_mail, timeout=LIMIT)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises], on_late=late.append) as runner:
            async with runner.open_batch(calls("send_mail")) as batch:
                pass
            (result,) = batch.results
            assert shape([result]) == [TIMED_OUT]
            assert result.effects == "unknown"
            text = result.text.lower()
            assert "timed out" in text
            assert "may have had side effects" in text and "outcome is unknown" in text
            for untrue in ("not started", "did not run", "no effect", "again", "retry"):
                assert untrue not in text
            assert late == []

            release.set()
            assert await runner.wait_detached(LIVENESS)
            await until(lambda: bool(late))
            assert sent == ["mail"]
            assert [(item.batch_id, item.call, item.index) for item in late] == [
                (batch.id, batch.calls[0], 0)
            ]
            assert (late[0].value, late[0].error) == ("confirmed", None)
            assert late[0].late_by >= 0
            assert batch.results == [result]
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize("inner_of", ["no runner", "same runner"])
async def test_c8_policy_belongs_to_the_call_and_does_not_leak_inwards(
    promises: PromiseObserver, inner_of: str
) -> None:
    """C8: a tool that is to be kept runs a plain one, which is told to stop like any other."""
    told: list[bool] = []
    started = anyio.Event()

    def plain() -> None:
        from_thread.run_sync(started.set)
        told.append(current_call().cancelled.wait(LIVENESS))

    async def outer() -> ToolResult:
        opened = (
            open_batch(calls("plain"), [plain], observers=[promises])
            if inner_of == "no runner"
            else runner.open_batch(calls("plain"))
        )
        async with opened as inner:
            await started.wait()
            inner.interrupt()
        return inner.results[0]

    tools = [Tool(outer, on_interrupt="keep", timeout=LIVENESS), Tool(plain)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch(calls("outer")) as batch:
                pass
            assert shape(batch.results) == [DONE]
            inner_result: ToolResult = batch.results[0].value
            assert shape([inner_result]) == [("interrupted", "user_interrupt", True, True)]
            assert "goes on in the background" not in inner_result.text
            await until(lambda: bool(told))
            assert told == [True]
        promises.check(batch.id, batch.results)


async def until(condition: Callable[[], bool]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    while not condition():
        await anyio.sleep(0.001)
