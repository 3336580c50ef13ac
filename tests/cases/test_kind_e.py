"""
Cases E: child processes left alive, or waited for without end.

What a command is asked in detail is in `tests/runtime/test_commands.py`; here it
is the body of a tool, and the batch is what is cut.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    CommandResult,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    keep_partial,
    run_command,
)
from anyio_toolbatch._runtime import commands, sessions
from anyio_toolbatch.testing import PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

CUT = ("interrupted", "user_interrupt", True, True)

needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="speaks to a POSIX shell")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Shell:
    """A tool that runs a shell line, whose processes write their ids into a file."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        journal.touch()

    def tool(self, line: str, *, timeout: float | None = None) -> Tool:
        env = {**os.environ, "JOURNAL": str(self._journal)}

        async def shell() -> CommandResult:
            return await run_command(line, env=env, timeout=timeout, kill_grace=0.1)

        return Tool(shell)

    def has_written(self, count: int = 1) -> bool:
        return len(self._journal.read_text().splitlines()) >= count

    async def has_started(self, count: int = 1) -> None:
        while not self.has_written(count):
            await anyio.sleep(0.002)

    def living(self) -> list[str]:
        pids = self._journal.read_text().split()
        if not pids:
            return []
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-o", "stat=", "-p", ",".join(pids)],
            capture_output=True,
            text=True,
        ).stdout
        found = [line.split() for line in listed.splitlines()]
        return [pid for pid, state, *_ in found if not state.startswith(("Z", "X"))]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path / "journal")
    yield made
    for pid in made.living():
        os.kill(int(pid), signal.SIGKILL)


@needs_shell
async def test_e1_interrupted_command_is_gone_and_the_placeholder_tells_the_truth(
    shell: Shell, promises: PromiseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, P2, P6: the turn is back at once, the process gone within its grace."""
    read = anyio.Event()

    def keep(value: str) -> None:
        keep_partial(value)
        read.set()

    monkeypatch.setattr(commands, "keep_partial", keep)
    tool = shell.tool('echo half done; echo $$ >> "$JOURNAL"; exec sleep 600')
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as runner:
            async with runner.open_batch(calls("shell")) as batch:
                await shell.has_started()
                await read.wait()
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            assert "It may have had side effects" in batch.results[0].text
            assert "half done" in batch.results[0].text
            assert await runner.wait_detached(LIVENESS)
            assert shell.living() == []
        promises.check(batch.id, batch.results)


@needs_shell
async def test_e2_command_is_in_a_session_of_its_own(shell: Shell) -> None:
    """E2: what kills a command's group does not reach the host, and it is killed on timeout."""
    tool = shell.tool('echo $$ >> "$JOURNAL"; kill -KILL 0')
    late = shell.tool('echo $$ >> "$JOURNAL"; exec sleep 600', timeout=0.1)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"suicide": tool, "late": late}) as runner:
            results = await runner.run(calls("suicide", "late"))
    assert results[0].text == "[ended by signal SIGKILL]"
    assert results[1].text.startswith("TimeoutError")
    assert shell.living() == []


@needs_shell
async def test_e3_grandchildren_go_with_the_shell(shell: Shell) -> None:
    """E3: the shell, its worker and the worker's worker: no survivor."""
    worker = 'sh -c "sleep 600 & echo \\$! >> \\"\\$JOURNAL\\"; wait"'
    tool = shell.tool(f'{worker} & echo $$ $! >> "$JOURNAL"; wait')
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool]) as runner:
            async with runner.open_batch(calls("shell")) as batch:
                await shell.has_started(2)
                assert len(shell.living()) == 3
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
    assert shell.living() == []


CAUSES = {
    "interrupt": "user_interrupt",
    "call cancelled": "call_cancelled",
    "call timeout": "call_timeout",
    "batch timeout": "batch_timeout",
    "its own timeout": None,
    "caller cancelled": "caller_cancelled",
    "runner closed": "runner_closed",
    "sibling failed": "sibling_failed",
}


@needs_shell
@pytest.mark.parametrize("way", CAUSES)
@pytest.mark.parametrize("is_deaf", [False, True], ids=["heeds", "ignores"])
async def test_e4_one_way_to_stop_for_every_cause(
    shell: Shell, way: str, is_deaf: bool
) -> None:
    """E4: a command ends alike, and for good, whatever cuts it."""
    for seconds in (0.2, 1.0, 5.0) if "timeout" in way else (None,):
        await _stop(shell, way, is_deaf, seconds)
        if shell.has_written():
            return
        # The time was over before the shell had begun, on a machine with much else to do.
    pytest.fail("the shell did not begin")


async def _stop(shell: Shell, way: str, is_deaf: bool, seconds: float | None) -> None:
    trap = 'trap "" TERM; ' if is_deaf else ""
    tool = shell.tool(
        f'{trap}sleep 600 & echo $$ $! >> "$JOURNAL"; wait; wait',
        timeout=seconds if way == "its own timeout" else None,
    )
    if way == "call timeout":
        tool = Tool(tool.func, timeout=seconds)

    async def fail() -> None:
        await shell.has_started()
        raise ValueError

    names = ["shell", "fail"] if way == "sibling failed" else ["shell"]
    options: dict[str, Any] = {"fail_fast": way == "sibling failed"}
    if way == "batch timeout":
        options["timeout"] = seconds
    with anyio.fail_after(LIVENESS):
        runner = ToolRunner([tool, fail], close_timeout=LIVENESS)
        async with runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch(calls(*names), **options) as batch:
                    if seconds is None:
                        await shell.has_started()
                    if way == "interrupt":
                        batch.interrupt()
                    elif way == "call cancelled":
                        batch.cancel("id-0")
                    elif way == "caller cancelled":
                        scope.cancel()
                    elif way == "runner closed":
                        await runner.aclose()
            assert await runner.wait_detached(LIVENESS) or way == "runner closed"
    reason = batch.results[0].reason
    assert (reason.kind if reason else None) == CAUSES[way]
    assert shell.living() == []


@needs_shell
async def test_e5_wait_for_what_can_not_be_killed_is_bounded(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E5: settled as what could not be stopped, reported, and nobody waits any more."""
    # Signals that do not arrive, as with a process that hangs in the kernel.
    monkeypatch.setattr(sessions, "_signal", lambda *args: None)
    monkeypatch.setattr(commands, "REAP_SECONDS", 0.1)
    cut = shell.tool('echo $$ >> "$JOURNAL"; exec sleep 600')
    late = shell.tool('echo $$ >> "$JOURNAL"; exec sleep 600', timeout=0.1)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"cut": cut, "late": late}) as runner:
            (result,) = await runner.run(calls("late"))
            assert "could not be stopped" in result.text
            async with runner.open_batch(calls("cut")) as batch:
                await shell.has_started(2)
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            assert await runner.wait_detached(LIVENESS)
    living = shell.living()
    assert len(living) == 2
    for pid in living:
        assert f"(process {pid}) was killed and is not gone yet" in caplog.text


@needs_shell
async def test_e6_closing_in_a_cancelled_scope_leaves_no_orphan(shell: Shell) -> None:
    """E6: the caller's scope is cancelled already when the command is being stopped."""
    tool = shell.tool('sleep 600 & echo $$ $! >> "$JOURNAL"; wait')
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool]) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch(calls("shell")) as batch:
                    await shell.has_started()
                    scope.cancel()
                    batch.interrupt()
                    runner.interrupt()
            assert batch.results[0].started
            assert await runner.wait_detached(LIVENESS)
    assert shell.living() == []


@needs_shell
async def test_e_late_stop_does_not_hold_the_next_turn(shell: Shell) -> None:
    """E1, P2: while a deaf command has its grace, the next turn runs its own."""
    deaf = shell.tool('trap "" TERM; echo $$ >> "$JOURNAL"; while :; do sleep 600; done')
    quick = shell.tool("echo quick")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"deaf": deaf, "quick": quick}) as runner:
            async with runner.open_batch(calls("deaf")) as batch:
                await shell.has_started()
                batch.interrupt()
            started = time.monotonic()
            (result,) = await runner.run(calls("quick"))
            assert result.text == "quick"
            assert time.monotonic() - started < LIVENESS
            assert await runner.wait_detached(LIVENESS)
    assert shell.living() == []
