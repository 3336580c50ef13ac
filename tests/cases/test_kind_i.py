"""
Kind I: one failing call damages its siblings.

The async half of I8 is in `virtual/`, as it is about time.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable

import anyio
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    LateResult,
    Status,
    ToolCall,
    ToolOutput,
    ToolResult,
    ToolRunner,
    from_thread,
    run_batch,
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


async def until(condition: Callable[[], object]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


def check_pairing(given: list[ToolCall], results: list[ToolResult]) -> None:
    """Check that the next request is valid in both formats: one answer per call."""
    ids = [call.id for call in given]
    chat = openai_chat.render_results(results)
    assert [(m["role"], m["tool_call_id"]) for m in chat] == [("tool", i) for i in ids]
    message = anthropic.render_results(results)
    assert message["role"] == "user"
    assert [block["tool_use_id"] for block in message["content"]] == ids
    # An error block without content is refused by the provider.
    assert all(b["content"] for b in message["content"] if b.get("is_error"))


async def async_failing() -> None:
    raise RuntimeError("no such host")


def sync_failing() -> None:
    raise RuntimeError("no such host")


async def async_quick() -> str:
    return "real"


def sync_quick() -> str:
    return "real"


@pytest.mark.parametrize("failing", [async_failing, sync_failing])
@pytest.mark.parametrize("quick", [async_quick, sync_quick])
async def test_i1_raising_tool_does_not_end_the_batch(
    failing: Callable[[], object], quick: Callable[[], object]
) -> None:
    """I1, P1: one error, one real result; nothing is raised; the session goes on."""
    given = calls("failing", "quick")
    with anyio.fail_after(LIVENESS):
        results = await run_batch(given, {"failing": failing, "quick": quick})
    assert shape(results) == [FAILED, COMPLETED]
    assert [r.text for r in results] == ["RuntimeError: no such host", "real"]
    assert [r.is_error for r in results] == [True, False]
    check_pairing(given, results)
    blocks = anthropic.render_results(results)["content"]
    assert [block.get("is_error", False) for block in blocks] == [True, False]


async def test_i2_error_keeps_what_is_done_and_what_still_runs(
    promises: PromiseObserver,
) -> None:
    """I2, P1, P3: done is kept, the error is shown, the third call finishes."""
    still_running = GatedTool("still_running", value="finished later")

    def loses_connection() -> None:
        raise ConnectionResetError("connection reset by peer")

    tools = [async_quick, loses_connection, still_running.tool]
    given = calls("async_quick", "loses_connection", "still_running")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch(given) as batch:
                await still_running.wait_started()
                await until(lambda: batch.snapshot()[1] is not None)
                assert batch.snapshot()[2] is None
                assert batch.reason is None
                still_running.open()
            assert [r.text for r in batch.results] == [
                "real",
                "ConnectionResetError: connection reset by peer",
                "finished later",
            ]
            check_pairing(given, batch.results)


async def test_i3_first_error_out_of_the_pool_loses_no_result(
    promises: PromiseObserver,
) -> None:
    """I3, P1: four calls in threads, the second raises at once: four results."""
    gate = GatedTool("gated", value="real")
    given = calls("gated", "sync_failing", "gated", "gated")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, sync_failing], observers=[promises]) as runner:
            async with runner.open_batch(given) as batch:
                await gate.wait_started(3)
                await until(lambda: batch.snapshot()[1] is not None)
                gate.open()
            assert shape(batch.results) == [COMPLETED, FAILED, COMPLETED, COMPLETED]
            assert [r.value for r in batch.results] == ["real", None, "real", "real"]
            promises.check(batch.id, batch.results)
            check_pairing(given, batch.results)


@pytest.mark.parametrize("fail_fast", [False, True])
async def test_i4_edits_of_other_files_are_independent_unless_asked(
    tmp_path: pathlib.Path, fail_fast: bool
) -> None:
    """I4, P4, P6: by default all other edits are made; `fail_fast` makes none of them."""

    def edit(name: str) -> str:
        if name == "0":
            raise PermissionError(name)
        (tmp_path / name).write_text("edited")
        return "ok"

    given = [ToolCall(f"id-{n}", "edit", {"name": str(n)}) for n in range(5)]
    with anyio.fail_after(LIVENESS):
        # One thread: the first has failed before the second can start.
        async with ToolRunner([edit], max_threads=1) as runner:
            results = await runner.run(given, fail_fast=fail_fast)
    assert results[0].status is Status.FAILED
    written = sorted(path.name for path in tmp_path.iterdir())
    if fail_fast:
        assert shape(results[1:]) == [("interrupted", "sibling_failed", False, False)] * 4
        assert written == []
    else:
        assert shape(results[1:]) == [COMPLETED] * 4
        assert written == ["1", "2", "3", "4"]
    check_pairing(given, results)


@pytest.mark.parametrize("max_threads", [1, 32])
async def test_i5_error_result_never_triggers_fail_fast(max_threads: int) -> None:
    """I5, P1: an answer that reports an error is an answer; 26 siblings go on."""

    def shell(n: int) -> object:
        return ToolOutput("exit status 1", is_error=True) if n == 2 else f"output {n}"

    given = [ToolCall(f"id-{n}", "shell", {"n": n}) for n in range(27)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([shell], max_threads=max_threads) as runner:
            async with runner.open_batch(given, fail_fast=True) as batch:
                pass
    assert batch.reason is None
    assert shape(batch.results) == [COMPLETED] * 27
    assert [r.index for r in batch.results if r.is_error] == [2]
    assert batch.results[2].value == "exit status 1"
    blocks = anthropic.render_results(batch.results)["content"]
    assert [b["tool_use_id"] for b in blocks if b.get("is_error")] == ["id-2"]
    check_pairing(given, batch.results)


async def test_i6_placeholder_of_a_cut_sibling_names_the_cause(
    promises: PromiseObserver,
) -> None:
    """I6, P6: "cancelled because another call failed", which one, and not by the user."""
    gate = GatedTool("gated")
    go = threading.Event()

    def compile_it() -> None:
        go.wait(LIVENESS)
        raise ValueError("line 7")

    given = calls("gated", "gated", "compile_it", "gated")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool, compile_it], max_threads=3, observers=[promises]
        ) as runner:
            async with runner.open_batch(given, fail_fast=True) as batch:
                await gate.wait_started(2)
                go.set()
            gate.open()
            assert await runner.wait_detached(LIVENESS)
        assert gate.started == 2
    running = ("interrupted", "sibling_failed", True, True)
    waiting = ("interrupted", "sibling_failed", False, False)
    assert shape(batch.results) == [running, running, FAILED, waiting]
    for result in (batch.results[0], batch.results[3]):
        assert "another call of the batch failed" in result.text
        assert "call 2 (compile_it) failed with ValueError: line 7" in result.text
        assert "user" not in result.text
        assert result.reason is not None and result.reason == batch.reason
    cuts = [e.reason.kind for e in promises.events if isinstance(e, BatchInterrupted)]
    assert cuts == ["sibling_failed"]
    check_pairing(given, batch.results)


async def test_i8_cut_blocking_sibling_is_told_to_stop(tmp_path: pathlib.Path) -> None:
    """I8, P2, P6: fail-fast does not wait for it, says so, and its write never happens."""
    file = tmp_path / "written by the sibling"
    late: list[LateResult] = []
    started = threading.Event()
    may_write = threading.Event()
    stopped: list[type[BaseException]] = []

    def fails() -> None:
        started.wait(LIVENESS)
        raise ValueError("the first")

    def writes() -> None:
        started.set()
        may_write.wait(LIVENESS)
        try:
            from_thread.check_cancelled()
        except BaseException as exc:
            stopped.append(type(exc))
            raise
        file.write_text("too late")

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([fails, writes], on_late=late.append) as runner:
            results = await runner.run(calls("fails", "writes"), fail_fast=True)
            # It runs on: the result says that it could not be stopped in time.
            assert shape(results) == [FAILED, ("interrupted", "sibling_failed", True, True)]
            assert results[1].effects == "unknown"
            assert [d.call.name for d in runner.statistics().detached] == ["writes"]
            # The cut is told behind the awaiting code: one turn of the loop later.
            await anyio.wait_all_tasks_blocked()
            may_write.set()
            assert await runner.wait_detached(LIVENESS)
    assert [error.__name__ for error in stopped] == ["CallDetached"]
    assert not file.exists()
    assert late == []
