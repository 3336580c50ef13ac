"""`run_command`: what it returns, and that nothing is left of a command that was stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from anyio_toolbatch import (
    CommandResult,
    Tool,
    ToolCall,
    ToolRunner,
    keep_partial,
    run_batch,
    run_command,
)
from anyio_toolbatch._runtime import command_output, command_pipes, commands, sessions

LIVENESS = 20.0  # seconds where milliseconds are meant
LONG = 600.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="speaks to a POSIX shell")

TREE = [
    *("sh", "-c", 'sh -c "$1" second "$2" & echo $$ >> "$JOURNAL"; wait', "first"),
    'sh -c "$1" & echo $$ >> "$JOURNAL"; wait',
    'echo $$ >> "$JOURNAL"; exec sleep 600',
]
"""Three generations, each of which writes its process id."""
DEAF = 'trap "" TERM; echo $$ >> "$JOURNAL"; while :; do sleep 600; done'


class Journal:
    """What the commands of a test write down: process ids and marks, one a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self.env = {**os.environ, "JOURNAL": str(path)}

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    async def has(self, count: int) -> list[str]:
        """Wait for so many lines."""
        while len(self.lines()) < count:
            await anyio.sleep(0.002)
        return self.lines()

    def living(self) -> list[str]:
        """Who has written, and lives."""
        pids = [line for line in self.lines() if line.isdigit()]
        if not pids:
            return []
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-o", "stat=", "-p", ",".join(pids)],
            capture_output=True,
            text=True,
        ).stdout
        found = [line.split() for line in listed.splitlines()]
        return [pid for pid, state, *_ in found if not state.startswith(("Z", "X"))]

    def are_gone(self) -> bool:
        """Within a moment: killed by another process's exit, say."""
        deadline = time.monotonic() + LIVENESS
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self.living()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    yield made
    for pid in made.living():
        os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(params=["selected", "threaded"])
def pipes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read: the second is Windows', and runs everywhere."""
    if request.param == "threaded":
        monkeypatch.setattr(commands, "Pipes", command_pipes.ThreadedPipes)
    return str(request.param)


def children() -> set[int]:
    """Our child processes, dead ones that nobody has reaped included."""
    listed = subprocess.Popen(
        ["ps", "-A", "-o", "pid=", "-o", "ppid="], stdout=subprocess.PIPE, text=True
    )
    out, _ = listed.communicate()
    pairs = [tuple(map(int, line.split())) for line in out.splitlines()]
    return {pid for pid, parent in pairs if parent == os.getpid() and pid != listed.pid}


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


# -- results ---------------------------------------------------------------


async def test_output_and_ending_are_returned(pipes: str) -> None:
    """Both streams, apart; a shell line or a program with arguments."""
    with anyio.fail_after(LIVENESS):
        done = await run_command("echo out; echo err >&2; exit 3")
        assert done == CommandResult(3, None, "out\n", "err\n", truncated=False)
        done = await run_command(["printf", "%s-", "a b", "$HOME"])
        assert done == CommandResult(0, None, "a b-$HOME-", "", truncated=False)


async def test_signal_is_named(pipes: str) -> None:
    """What a signal ended has no exit status."""
    with anyio.fail_after(LIVENESS):
        done = await run_command("kill -SEGV $$")
    assert (done.returncode, done.signal) == (None, "SIGSEGV")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (CommandResult(0, None, "a\nb\n", "", False), "a\nb"),
        (CommandResult(0, None, "", "", False), "[no output, exit status 0]"),
        (CommandResult(0, None, " \n", "\n", False), "[no output, exit status 0]"),
        (CommandResult(0, None, "a\n", "b\n", False), "a\n[stderr]\nb"),
        (CommandResult(2, None, "", "b\r\n", False), "b\n[exit status 2]"),
        (CommandResult(1, None, "", "", False), "[exit status 1]"),
        (CommandResult(None, "SIGKILL", "a", "", False), "a\n[ended by signal SIGKILL]"),
    ],
)
def test_text_says_what_a_model_should_know(result: CommandResult, text: str) -> None:
    """The output, and the ending where it is not a plain success."""
    assert str(result) == text


def test_signal_without_a_name_has_its_number() -> None:
    """A real-time signal, say."""
    assert commands._signal_name(int(signal.SIGTERM)) == "SIGTERM"
    assert commands._signal_name(99) == "99"


async def test_program_that_is_missing_is_named() -> None:
    """The error names the program, on every loop."""
    with pytest.raises(FileNotFoundError, match="no-such-program") as caught:
        await run_command(["no-such-program", "argument"])
    assert caught.value.filename == "no-such-program"


async def test_program_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    """The same where it is there."""
    program = tmp_path / "program"
    program.write_text("no program")
    with pytest.raises(PermissionError) as caught:
        await run_command([program])
    assert caught.value.filename == str(program)


async def test_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """The error names the folder then, not the program."""
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as caught:
        await run_command(["true"], cwd=missing)
    assert str(caught.value.filename) == str(missing)


async def test_error_without_a_file_names_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No processes left, say."""

    def full(*args: object, **options: object) -> None:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", full)
    before = descriptors()
    with pytest.raises(BlockingIOError) as caught:
        await run_command(["true"])
    assert caught.value.filename == "true"
    with pytest.raises(BlockingIOError) as caught:
        await run_command("true")
    assert caught.value.filename is None
    assert descriptors() == before


async def test_what_the_shell_can_not_find_is_a_result() -> None:
    """The shell was there; it says so itself."""
    with anyio.fail_after(LIVENESS):
        done = await run_command("no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


async def test_folder_and_environment_are_the_given_ones(tmp_path: Path) -> None:
    """`env` replaces the environment, as in `subprocess`."""
    with anyio.fail_after(LIVENESS):
        done = await run_command("pwd -P", cwd=tmp_path)
        assert done.stdout.rstrip() == str(tmp_path.resolve())
        done = await run_command('echo "$A$HOME"', env={"A": "é"})
        assert done.stdout == "é\n"
        done = await run_command('echo "$PATH"')
        assert done.stdout.rstrip() == os.environ["PATH"]


async def test_it_leads_a_session_of_its_own() -> None:
    """E2: what is sent to our group does not reach it, nor the other way round."""
    script = "import os; print(os.getpid(), os.getpgrp(), os.getsid(0))"
    with anyio.fail_after(LIVENESS):
        done = await run_command([sys.executable, "-c", script])
    pid, group, session = done.stdout.split()
    assert pid == group == session
    assert int(pid) != os.getpgrp()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"command": []}, ValueError),
        ({"command": ""}, ValueError),
        ({"command": " "}, ValueError),
        ({"command": [""]}, ValueError),
        ({"command": ["a\0b"]}, ValueError),
        ({"command": b"true"}, TypeError),
        ({"command": {"true"}}, TypeError),
        ({"command": ["true", 1]}, TypeError),
        ({"command": [b"true"]}, TypeError),
        ({"command": ["true", b"a"]}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"kill_grace": None}, TypeError),
        ({"kill_grace": float("nan")}, ValueError),
        ({"max_output": 1}, ValueError),
        ({"max_output": None}, TypeError),
        ({"encoding": "no-such"}, LookupError),
        ({"encoding": "hex"}, LookupError),
        ({"input": 1}, TypeError),
        ({"input": "é", "encoding": "ascii"}, ValueError),
        ({"env": {"A": 1}}, TypeError),
    ],
)
async def test_wrong_arguments_are_refused_at_once(
    options: dict[str, Any], error: type[Exception]
) -> None:
    """Nothing is started, and nothing stays open."""
    before = descriptors()
    with pytest.raises(error):
        await run_command(**{"command": ["true"], **options})
    assert descriptors() == before


# -- input -----------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65536, 3_000_000])
async def test_input_of_any_size_is_passed_on(pipes: str, size: int) -> None:
    """More than a pipe holds, too: it is written while the output is read."""
    with anyio.fail_after(LIVENESS):
        done = await run_command(["cat"], input="x" * size, max_output=2 * size + 2)
    assert done.stdout == "x" * size


async def test_input_is_encoded_or_given_as_bytes() -> None:
    """A str takes the encoding, bytes are left alone."""
    with anyio.fail_after(LIVENESS):
        done = await run_command(["cat"], input="é", encoding="latin-1")
        assert done.stdout == "é"
        done = await run_command(["cat"], input=b"\xc3\xa9")
        assert done.stdout == "é"


@pytest.mark.parametrize("program", ["true", "exec 0<&-; sleep 0.05; echo"])
async def test_input_that_nobody_reads_is_no_fault(pipes: str, program: str) -> None:
    """A program may end, or close its input, before it has read all of it."""
    with anyio.fail_after(LIVENESS):
        done = await run_command(program, input=b"x" * 3_000_000)
    assert done.returncode == 0


async def test_without_input_there_is_nothing_to_read() -> None:
    """The program meets the end of its input, not our terminal."""
    with anyio.fail_after(LIVENESS):
        assert (await run_command(["cat"])).stdout == ""


# -- output ----------------------------------------------------------------


async def test_characters_may_come_in_pieces(pipes: str) -> None:
    """A character that two reads have cut is whole; half a one at the end is replaced."""
    script = r"printf 'a\303'; sleep 0.05; printf '\251\377\303'"
    with anyio.fail_after(LIVENESS):
        assert (await run_command(script)).stdout == "aé\ufffd\ufffd"
        assert (await run_command(script, encoding="latin-1")).stdout == "aÃ©ÿÃ"


@pytest.mark.parametrize("limit", [2, 3, 10, 101, 102])
@pytest.mark.parametrize("excess", [-1, 0, 1, 500])
def test_the_middle_goes_where_there_is_too_much(limit: int, excess: int) -> None:
    """`max_output` characters stay, however they come in; the mark counts the others."""
    text = "".join(chr(0x100 + i) for i in range(limit + excess))
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    expected = text
    if excess > 0:
        expected = f"{head}\n[… {excess} characters left out …]\n{tail}"
    pick = random.Random(limit * 1000 + excess)
    for most in (1, 7, 1000):
        output = command_output.Output("utf-8", limit)
        left = text.encode()
        while left:
            size = pick.randint(1, most)
            output.add(left[:size])
            left = left[size:]
            assert len(output.text()) <= limit + 50
        assert output.text(final=True) == expected
        assert output.is_cut is (excess > 0)


async def test_flood_is_cut_and_does_not_hold_the_loop() -> None:
    """The memory is bounded by `max_output`, and other tasks run meanwhile."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    script = "head -c 50000000 /dev/zero | tr '\\0' x"
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            done = await run_command(script, max_output=1001)
            group.cancel_scope.cancel()
    mark = "\n[… 49998999 characters left out …]\n"
    assert done.stdout == "x" * 501 + mark + "x" * 500
    assert done.truncated
    assert ticks >= 5


async def test_grandchild_that_keeps_the_pipe_is_not_waited_for(
    pipes: str, journal: Journal
) -> None:
    """The command has ended: its result is there, and what it left behind goes on."""
    with anyio.fail_after(LIVENESS):
        done = await run_command("sleep 600 & echo $! | tee -a $JOURNAL", env=journal.env)
    assert done.stdout.split() == journal.living()


async def test_exit_status_that_somebody_else_took_is_not_made_up() -> None:
    """With SIGCHLD ignored nobody can know it; 0 would be a lie."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with anyio.fail_after(LIVENESS):
            done = await run_command(["true"])
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert done.returncode == 255


@pytest.mark.parametrize("lacks", ["pidfd_open", "waitid"])
async def test_works_where_the_system_does_not_tell_an_end(
    monkeypatch: pytest.MonkeyPatch, journal: Journal, lacks: str
) -> None:
    """macOS has not all that Linux has: the exit status is looked at, then."""
    monkeypatch.delattr(os, lacks, raising=False)
    with anyio.fail_after(LIVENESS):
        assert (
            await run_command("echo a; exec 1>&- 2>&-; sleep 0.05; exit 2")
        ).returncode == 2
        assert (await run_command("sleep 0.05; echo a")).stdout == "a\n"
        with pytest.raises(TimeoutError):
            await run_command(TREE, env=journal.env, timeout=0.2)
    assert not journal.living()


# -- stopping --------------------------------------------------------------


async def test_cancelled_caller_starts_nothing(journal: Journal) -> None:
    """P4: not even for a moment."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_command('echo ran >> "$JOURNAL"', env=journal.env)
    assert scope.cancelled_caught
    assert journal.lines() == []


@pytest.mark.parametrize("look", ["proc", "ps"])
async def test_cancelled_command_is_gone_with_its_tree(
    pipes: str, look: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: three generations are gone when the scope is left, our zombie too."""
    if look == "ps":
        monkeypatch.setattr(sessions, "HAS_PROC", False)
    before = children()
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_command(TREE, env=journal.env))
            await journal.has(3)
            group.cancel_scope.cancel()
    assert journal.living() == []
    assert children() <= before


async def test_timeout_says_so_and_leaves_nothing(pipes: str, journal: Journal) -> None:
    """The clock is that of the command; a TimeoutError of ours is not taken for it."""
    with anyio.fail_after(LIVENESS):
        with pytest.raises(TimeoutError, match=r"longer than 0\.2 s and was stopped"):
            await run_command(TREE, env=journal.env, timeout=0.2)
        assert (await run_command("sleep 0.01; echo a", timeout=LIVENESS)).stdout == "a\n"
    assert journal.living() == []


async def test_command_has_time_to_tidy_up(journal: Journal) -> None:
    """SIGTERM first; what it writes then is read, else it would hang and be killed."""
    script = """
        tidy() { head -c 500000 /dev/zero; echo tidy >> "$JOURNAL"; exit; }
        trap tidy TERM; echo $$ >> "$JOURNAL"; while :; do sleep 0.01; done
    """
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_command(script, env=journal.env, kill_grace=LONG))
            await journal.has(1)
            group.cancel_scope.cancel()
    assert journal.lines()[1:] == ["tidy"]


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_command_that_ignores_the_request_is_killed(
    pipes: str, journal: Journal, grace: float
) -> None:
    """After the grace, and not before it."""
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_command(DEAF, env=journal.env, kill_grace=grace))
            await journal.has(1)
            started = time.monotonic()
            group.cancel_scope.cancel()
    assert time.monotonic() - started >= grace
    assert journal.living() == []


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_who_left_the_group_is_found_in_the_session(
    journal: Journal, is_deaf: bool
) -> None:
    """`timeout`, and shells with job control, put their children in other groups."""
    stray = DEAF if is_deaf else 'echo $$ >> "$JOURNAL"; exec sleep 600'
    leave = "import os, sys; os.setpgid(0, 0); os.execvp('sh', ['sh', '-c', sys.argv[1]])"
    script = 'trap "" TERM; "$1" -c "$2" "$3" & wait; wait'
    command = ["sh", "-c", script, "sh", sys.executable, leave, stray]
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run_command(command, env=journal.env, kill_grace=0.05))
            await journal.has(1)
            group.cancel_scope.cancel()
    assert journal.living() == []


async def test_cut_after_its_end_takes_the_background_along(journal: Journal) -> None:
    """Whoever is cut leaves nothing, also in the moment when only pipes are read."""
    script = 'sleep 600 & echo $! >> "$JOURNAL"'
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(commands, "DRAIN_SECONDS", LONG)
                group.start_soon(lambda: run_command(script, env=journal.env))
                await journal.has(1)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    while journal.living():
                        await anyio.sleep(0.002)


async def test_closing_in_a_cancelled_scope_leaves_no_orphan(journal: Journal) -> None:
    """E6: an error and a cancelled scope around it at the same time."""
    with anyio.fail_after(LIVENESS):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: run_command(TREE, env=journal.env))
                await journal.has(3)
                scope.cancel()
                group.cancel_scope.cancel()
    assert journal.living() == []


async def test_cut_at_every_step_leaves_nothing(journal: Journal) -> None:
    """However far it has come: starting, reading, draining, ended."""
    before, open_before = children(), descriptors()
    script = (
        'echo $$ >> "$JOURNAL"; head -c 200000 /dev/zero; sleep 0.01 & echo $! >> "$JOURNAL"'
    )
    for steps in range(40):
        with anyio.fail_after(LIVENESS):
            async with anyio.create_task_group() as group:
                group.start_soon(
                    lambda: run_command(script, env=journal.env, input=b"x" * 100_000)
                )
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                if steps % 2:
                    await anyio.sleep(steps / 5000)
                group.cancel_scope.cancel()
        assert children() <= before
        assert descriptors() == open_before
    assert journal.are_gone()


def our_threads() -> int:
    """Count threads, but for those that trio keeps idle for the next call."""
    return sum(not thread.name.startswith("Trio thread") for thread in threading.enumerate())


async def test_nothing_grows_with_the_number_of_stopped_commands(journal: Journal) -> None:
    """P10: no process, zombie, thread or descriptor is left of a hundred."""
    gc.collect()
    before, open_before, threads = children(), descriptors(), our_threads()
    with anyio.fail_after(LIVENESS):
        for _ in range(5):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(lambda: run_command(TREE, env=journal.env))
                await journal.has(len(journal.lines()) + 30)
                group.cancel_scope.cancel()
    assert journal.are_gone()
    assert descriptors() == open_before
    with anyio.fail_after(LIVENESS):
        # Under load a thread waits for what was killed and is slow to be reaped.
        while our_threads() > threads:
            await anyio.sleep(0.005)
    assert children() <= before


async def test_what_can_not_be_killed_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, journal: Journal
) -> None:
    """E5: the wait for it is bounded, and nobody claims that it was stopped."""
    kill = os.kill
    monkeypatch.setattr(sessions, "_signal", lambda *args: None)
    monkeypatch.setattr(commands, "REAP_SECONDS", 0.05)
    with anyio.fail_after(LIVENESS):
        with pytest.raises(TimeoutError, match="could not be stopped"):
            await run_command(
                'echo $$ >> "$JOURNAL"; exec sleep 600',
                env=journal.env,
                timeout=0.1,
                kill_grace=0.02,
            )
    (pid,) = journal.living()
    assert f"process {pid}" in caplog.text
    kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + LIVENESS
    while int(pid) in children():  # somebody waits for it still
        assert time.monotonic() < deadline
        await anyio.sleep(0.005)


async def test_second_native_cancellation_hurries(
    anyio_backend: Any, journal: Journal
) -> None:
    """asyncio's cuts through shields: the grace is over, and the kill comes at once."""
    if anyio_backend[0] != "asyncio":
        pytest.skip("trio has no such cancellation")
    with anyio.fail_after(LIVENESS):
        running = asyncio.ensure_future(
            run_command(["sh", "-c", DEAF], env=journal.env, kill_grace=LONG)
        )
        await journal.has(1)
        running.cancel()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert journal.living()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert journal.are_gone()


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize(
    "new_loop",
    [
        pytest.param(asyncio.new_event_loop, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop"),
    ],
)
def test_coroutine_that_is_thrown_away_takes_its_command_along(
    new_loop: Callable[[], asyncio.AbstractEventLoop], journal: Journal, timeout: float | None
) -> None:
    """A loop is closed with tasks in it: nothing can be awaited any more."""
    loop = new_loop()
    coroutine = run_command(TREE, env=journal.env, timeout=timeout, kill_grace=LONG)
    running = loop.create_task(coroutine)
    loop.run_until_complete(journal.has(3))
    assert len(journal.living()) == 3
    loop.close()
    with contextlib.suppress(RuntimeError):  # anyio's scopes do not like it
        coroutine.close()
    running._log_destroy_pending = False  # type: ignore[attr-defined]
    assert journal.are_gone()


# -- the life of the process -----------------------------------------------

ENDS = {
    "return": "",
    "exit": "sys.exit()",
    "error": "1 / 0",
    "break": "os.kill(os.getpid(), signal.SIGINT); await anyio.sleep(60)",
}

PROGRAM = """
import logging, os, signal, sys, threading, warnings, anyio
from anyio_toolbatch import run_command

# With -X dev it tells of slow callbacks, which are the machine's.
logging.getLogger("asyncio").setLevel(logging.ERROR)

def lines():
    with open(os.environ["JOURNAL"]) as file:
        return file.read().splitlines()

async def command(started):
    async with anyio.create_task_group() as group:
        group.start_soon(run_command, {tree!r})
        while len(lines()) < 3:
            await anyio.sleep(0.005)
        await started()
"""


def run_program(body: str, journal: Journal) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM.format(tree=TREE) + body],
        env=journal.env,
        capture_output=True,
        text=True,
        timeout=LIVENESS,
    )


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("end", [*ENDS.values()], ids=[*ENDS])
def test_command_ends_with_the_loop(loop: str, end: str, journal: Journal) -> None:
    """However the main function ends."""
    kind = "trio" if loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    run_program(
        f"""
async def main():
    async def started():
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        async def end():
            {end or "group.cancel_scope.cancel()"}
        await command(end)

anyio.run(main, backend={kind!r}, backend_options={options!r})
""",
        journal,
    )
    assert len(journal.lines()) == 3
    assert journal.are_gone()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_end_of_the_loop_takes_the_grace_away(loop: str, journal: Journal) -> None:
    """P7, P9: a command of a call that was cut does not hold the end of its loop."""
    kind = "trio" if loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    ended = run_program(
        f"""
from anyio_toolbatch import ToolCall, ToolRunner

async def deaf():
    line = 'trap "" TERM; echo $$ >> "$JOURNAL"; while :; do sleep 600; done'
    await run_command(line, kill_grace=600)

async def main():
    runner = ToolRunner([deaf])
    async with runner.open_batch([ToolCall("", "deaf")]) as batch:
        while not lines():
            await anyio.sleep(0.005)
        batch.interrupt()

anyio.run(main, backend={kind!r}, backend_options={options!r})
""",
        journal,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(journal.lines()) == 1
    assert journal.are_gone()


def test_command_ends_with_the_program(journal: Journal) -> None:
    """Also if its loop runs in a daemon thread, where nobody is told."""
    ended = run_program(
        """
started = threading.Event()

async def main():
    async def end():
        started.set()
        await anyio.sleep(60)
    await command(end)

threading.Thread(target=anyio.run, args=[main], daemon=True).start()
started.wait()
""",
        journal,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(journal.lines()) == 3
    assert journal.are_gone()


def test_forked_child_leaves_its_parents_commands_alone(journal: Journal) -> None:
    """The end of a fork is not the end of the program."""
    ended = run_program(
        """
started = threading.Event()

async def main():
    async def end():
        started.set()
        await anyio.sleep(60)
    await command(end)

threading.Thread(target=anyio.run, args=[main], daemon=True).start()
started.wait()
warnings.simplefilter("ignore")  # newer Pythons warn of forks where there are threads
if (child := os.fork()) == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for pid in lines():
    os.kill(int(pid), 0)
print("all alive")
""",
        journal,
    )
    assert (ended.stdout, ended.stderr) == ("all alive\n", "")
    assert journal.are_gone()


# -- inside a tool ---------------------------------------------------------


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partial outputs, as they are published."""
    found: list[str] = []

    def keep(value: str) -> None:
        keep_partial(value)
        found.append(value)

    monkeypatch.setattr(commands, "keep_partial", keep)
    return found


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_output_until_the_cut_is_kept(
    runs_in: str, journal: Journal, published: list[str]
) -> None:
    """P3: what the command has written is the placeholder's partial output."""

    async def run() -> CommandResult:
        # The journal first: what comes after the output may be cut before it ran.
        script = 'echo $$ >> "$JOURNAL"; echo out; echo err >&2; exec sleep 600'
        return await run_command(script, env=journal.env)

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([Tool(run, runs_in=runs_in)]) as runner:
            async with runner.open_batch(calls("run")) as batch:
                while published[-1:] != ["out\n[stderr]\nerr"]:
                    await anyio.sleep(0.002)
                batch.interrupt()
            assert batch.results[0].partial == "out\n[stderr]\nerr"
            await journal.has(1)
            assert await runner.wait_detached(LIVENESS)
    assert journal.are_gone()


async def test_output_until_the_timeout_is_kept() -> None:
    """P3: the last word included; the model sees it with the error."""

    async def run() -> CommandResult:
        script = "echo a; sleep 0.01; trap 'echo last word; exit' TERM; sleep 600 & wait"
        return await run_command(script, timeout=0.3)

    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch(calls("run"), [run])
    assert result.text == (
        "TimeoutError: the command took longer than 0.3 s and was stopped\n"
        "Partial output until then:\na\nlast word"
    )


async def test_partial_output_says_nothing_of_an_end(published: list[str]) -> None:
    """There was none; blank lines are no output."""

    async def run() -> CommandResult:
        return await run_command("echo; exec sleep 600")

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([run]) as runner:
            async with runner.open_batch(calls("run")) as batch:
                while not published:
                    await anyio.sleep(0.002)
                batch.interrupt()
            assert batch.results[0].partial == ""
            assert await runner.wait_detached(LIVENESS)


async def test_it_is_a_tool_as_it_stands() -> None:
    """The model's arguments are its own."""
    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch(
            [ToolCall("1", "run_command", {"command": "echo a; exit 3"})], [run_command]
        )
    assert result.text == "a\n[exit status 3]"
    assert result.value.returncode == 3
