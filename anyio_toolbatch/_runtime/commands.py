"""
Runs a command so that it can really be stopped, with everything that it has started.

The way of a command: it starts as the leader of a session and process group of
its own, so that what is sent to the group reaches none of us, and Ctrl-C in the
terminal does not reach it. One task reads, feeds and watches it, through one
file descriptor that stands for its pipes and for its end. Whatever ends the wait
before the command has ended (a cancellation, a timeout, an error) takes the one
way out: all of it is asked to terminate, has `kill_grace` seconds, and is killed.

Three waits that must not be endless:

* for the end of the output: a grandchild may keep the pipes open for ever. What
  counts is that the command itself has ended; its output is read for
  `DRAIN_SECONDS` more.
* for the end of what was killed: a process that hangs in the kernel does not
  die. After `REAP_SECONDS` it is left to the system, and that is logged.
* for a second cancellation: asyncio's cut through every shield. What is left is
  then killed at once. So it is where nobody awaits any more, because the
  program ends or the coroutine was thrown away (`_end_leftover`).

The command's zombie is kept until the very end: as long as it is there, the
system gives its process id, which names group and session too, to nobody else.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from .._model.tools import check_count, check_seconds
from .backend import unbroken
from .command_output import Output
from .command_pipes import Pipes, SelectedPipes, ThreadedPipes
from .context import current, keep_partial
from .logs import about
from .sessions import end_tree, kill_session, members_of, signal_group, signal_strays

__all__ = ("CommandResult", "run_command")

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 0.25
"""For what is still in the pipes when the command has ended; chosen, long for a pipe."""
REAP_SECONDS = 2.0
"""How long killed processes may take to be gone; chosen."""
BLOCK_SECONDS = 0.02
"""How long one is waited for where nothing can be awaited; most take less than 1 ms."""
FIRST_LOOK_SECONDS = 0.001
LOOK_SECONDS = 0.025
"""Where nobody tells that a process has ended: the first and the longest pause."""
PUBLISH_SECONDS = 0.05
"""How often new output is published as the call's partial output, at most."""

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """
    How a command ended; its `str` is what a model should see.

    Args:
        returncode: The exit status; None if a signal ended it.
        signal: The name of that signal, such as ``"SIGSEGV"``; else None.
        stdout: What it wrote, with the middle left out where it was too long.
        stderr: The same.
        truncated: Something was left out.
    """

    returncode: int | None
    signal: str | None
    stdout: str
    stderr: str
    truncated: bool

    def __str__(self) -> str:
        text = _joined(self.stdout, self.stderr)
        if self.signal is not None:
            ending = f"[ended by signal {self.signal}]"
        elif self.returncode:
            ending = f"[exit status {self.returncode}]"
        else:
            return text or "[no output, exit status 0]"
        return f"{text}\n{ending}" if text else ending


def _joined(stdout: str, stderr: str) -> str:
    parts = [stdout.rstrip("\r\n")] if stdout.strip() else []
    if stderr.strip():
        heading = "[stderr]\n" if parts else ""
        parts.append(heading + stderr.rstrip("\r\n"))
    return "\n".join(parts)


async def run_command(
    command: str | Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes | None = None,  # noqa: A002 - as `subprocess.run` has it
    timeout: float | None = None,
    max_output: int = 100_000,
    encoding: str = "utf-8",
    kill_grace: float = 2.0,
) -> CommandResult:
    """
    Run a command to its end and return what it wrote.

    An ending with an error status is a result, not an exception. What the
    command has written is the call's partial output while it runs. Processes
    that it has left in the background when it ends by itself are left alone.

    Args:
        command: A program with its arguments, or a line for the shell.
        cwd: Where to run it.
        env: Its environment; that of this process by default.
        input: What it reads; by default there is nothing to read.
        timeout: Seconds that it may take.
        max_output: Characters of each stream to keep; the middle goes.
        encoding: Of input and output; what can't be decoded is replaced.
        kill_grace: Seconds between the request to terminate and the kill.

    Raises:
        OSError: It can't be started; the error names the program, or `cwd`.
        TimeoutError: It took too long and was stopped.
        TypeError, ValueError, LookupError: An argument is wrong.

    Cancellation:
        Stops the command and all that it has started, but for what made a
        session of its own: SIGTERM, after `kill_grace` seconds SIGKILL; that
        much longer it may take, and 2 s more if there is something that can't
        be killed. On Windows the tree of processes is ended, without a grace.

    Threads:
        An event loop's thread; inside a tool or elsewhere.
    """
    arguments = _checked_command(command)
    check_seconds("timeout", timeout)
    check_seconds("kill_grace", kill_grace, optional=False)
    check_count("max_output", max_output, minimum=2, optional=False)
    fed = _checked_input(input, encoding)
    await anyio.lowlevel.checkpoint()  # who is cancelled already starts nothing
    running = _Command(encoding, max_output)
    try:
        running.start(arguments, cwd, env, fed)
        if await running.has_ended_within(timeout):
            await running.drain()
            return running.finish()
    except GeneratorExit:
        running.kill()  # the coroutine was thrown away: it must not await
        raise
    except BaseException:
        await running.stop(kill_grace)
        raise
    is_gone = await running.stop(kill_grace)
    stopped = "was stopped" if is_gone else "could not be stopped"
    msg = f"the command took longer than {timeout:g} s and {stopped}"
    raise TimeoutError(msg)


def _checked_command(command: object) -> str | list[str]:
    if isinstance(command, bytes | bytearray) or not isinstance(command, Sequence):
        msg = f"command must be a str or a sequence of them, not {type(command).__name__}"
        raise TypeError(msg)
    parts = command if isinstance(command, str) else [os.fspath(part) for part in command]
    for part in parts:
        if not isinstance(part, str):
            msg = f"command must be made of str or paths, not {type(part).__name__}"
            raise TypeError(msg)
    program = parts if isinstance(parts, str) else "".join(parts[:1])
    if not program.strip():
        msg = "command must not be empty"
        raise ValueError(msg)
    return parts


def _checked_input(given: object, encoding: str) -> bytes:
    "".encode(encoding)  # raises if there is no such encoding, or none of text
    if isinstance(given, str):
        return given.encode(encoding)
    if given is None or isinstance(given, bytes):
        return given or b""
    msg = f"input must be a str, bytes or None, not {type(given).__name__}"
    raise TypeError(msg)


class _Command:
    """A command: started, read, and either finished or stopped."""

    def __init__(self, encoding: str, max_output: int) -> None:
        self._stdout = Output(encoding, max_output)
        self._stderr = Output(encoding, max_output)
        self._pipes = Pipes()
        self._popen: subprocess.Popen[bytes] | None = None
        self._command: str | list[str] = ""
        self._record = current.get(None)
        """The call that it is a part of; None outside of a tool."""
        self._published = 0
        self._publish_at = 0.0

    @unbroken
    def start(
        self,
        command: str | list[str],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        fed: bytes,
    ) -> None:
        """Start it; no cancellation can come between the process and its handle."""
        self._command = command
        self._started_at = time.monotonic()
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            # Neither our console's Ctrl-C nor a window of its own.
            options["creationflags"] = (
                subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
            )
        else:
            options["start_new_session"] = True
        try:
            popen: Any = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=env,
                **options,
            )
        except OSError as exc:
            if exc.filename is None and not isinstance(command, str):
                exc.filename = command[0]  # no memory, no processes left, …
            raise
        self._popen = popen
        self._leftover = weakref.finalize(self, _end_leftover, popen, self._pipes, os.getpid())
        self._pipes.watch(popen.pid)
        self._pipes.read(cast("FileIO", popen.stdout), self._stdout)
        self._pipes.read(cast("FileIO", popen.stderr), self._stderr)
        if popen.stdin is not None:
            self._pipes.feed(cast("FileIO", popen.stdin), fed)

    async def has_ended_within(self, seconds: float | None) -> bool:
        """Wait for the command itself, not for the pipes."""
        deadline = anyio.current_time() + (math.inf if seconds is None else seconds)
        look = FIRST_LOOK_SECONDS
        while not self._has_ended():
            left = pause = deadline - anyio.current_time()
            if left <= 0:
                return False
            if not self._pipes.tell_the_end:
                pause = LOOK_SECONDS
                if self._is_read:  # it is about to end
                    look = pause = min(look * 2, LOOK_SECONDS)
            await self._go_on(min(left, pause))
        return True

    async def drain(self) -> None:
        """Read what is still in the pipes; each of them at least once."""
        deadline = anyio.current_time() + DRAIN_SECONDS
        while not self._is_read:
            await self._go_on(deadline - anyio.current_time())
            if anyio.current_time() >= deadline:
                break

    def finish(self) -> CommandResult:
        """Let go of a command that has ended, and say how."""
        assert self._popen is not None
        code = self._popen.wait()
        self._let_go()
        stdout, stderr = self._stdout, self._stderr
        return CommandResult(
            None if code < 0 else code,
            _signal_name(-code) if code < 0 else None,
            stdout.text(final=True),
            stderr.text(final=True),
            stdout.is_cut or stderr.is_cut,
        )

    async def stop(self, grace: float) -> bool:
        """
        End what still runs; shielded, and bounded.

        Its output is still read: what waits for a reader can't terminate.

        Returns:
            Nothing is left of it, as far as is known.
        """
        if self._popen is None:
            self._pipes.close()
            return True
        pid = self._popen.pid
        is_gone = False
        try:
            with anyio.CancelScope(shield=True):
                if sys.platform == "win32":
                    await anyio.to_thread.run_sync(end_tree, pid)
                    is_gone = await self.has_ended_within(REAP_SECONDS)
                else:
                    is_gone = await self._is_gone_within(
                        grace, signal.SIGTERM
                    ) or await self._is_gone_within(REAP_SECONDS, signal.SIGKILL)
                self._publish()
        finally:
            if not is_gone:
                self.kill()
        if is_gone:
            if sys.platform != "win32":
                # A look at all processes is not the look of one moment: once more.
                signal_group(pid, signal.SIGKILL)
            self._let_go()
            _reap(self._popen)
        else:
            logger.warning(
                "the command %.200r (process %d) was killed and is not gone yet",
                self._command,
                pid,
                extra=about(
                    "command_not_gone",
                    [] if self._record is None else [self._record],
                    pid=pid,
                ),
            )
        return is_gone

    def _is_left_behind(self) -> bool:
        """The loop is being ended: trio's end waits for what is shielded, so that is short."""
        return self._record is not None and self._record.batch.teller.is_released

    async def _is_gone_within(self, seconds: float, number: int) -> bool:
        assert self._popen is not None
        session = self._popen.pid
        deadline = anyio.current_time() + seconds
        pause = FIRST_LOOK_SECONDS
        signal_group(session, number)  # a look takes longer: first of all
        signal_strays(session, members_of(session, self._started_at), number)
        while True:
            if number == signal.SIGTERM and self._is_left_behind():
                return False
            look_at = min(anyio.current_time() + pause, deadline)
            while (left := look_at - anyio.current_time()) > 0:
                await self._go_on(left)
            members = members_of(session, self._started_at)
            if not members:
                return True
            if anyio.current_time() >= deadline:
                return False
            if number == signal.SIGKILL:  # and what it has started meanwhile
                signal_group(session, number)
                signal_strays(session, members, number)
            pause = min(pause * 2, LOOK_SECONDS)

    def kill(self) -> None:
        """End what still runs, without waiting; idempotent."""
        if self._popen is None:
            self._pipes.close()
        else:
            self._leftover()

    def _let_go(self) -> None:
        self._leftover.detach()
        self._pipes.close()

    def _has_ended(self) -> bool:
        """Look, and leave the zombie where it is, if the system has a way for that."""
        popen = self._popen
        assert popen is not None
        if popen.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # Windows; macOS before Python 3.13
            return popen.poll() is not None
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, popen.pid, how) is not None
        except ChildProcessError:
            # Somebody else waits for all of the program's children, or SIGCHLD is
            # ignored. Nobody can say how it ended; asyncio says 255 then.
            popen.returncode = 255
            return True

    @property
    def _is_read(self) -> bool:
        return self._stdout.is_at_end and self._stderr.is_at_end

    async def _go_on(self, seconds: float) -> None:
        """Wait for something to do, at most so long, and do it."""
        if self._record is not None and self._received != self._published:
            seconds = min(seconds, self._publish_at - anyio.current_time())
        await self._pipes.wait(max(seconds, 0.0))
        if anyio.current_time() >= self._publish_at:
            self._publish()

    @property
    def _received(self) -> int:
        return self._stdout.received + self._stderr.received

    def _publish(self) -> None:
        received = self._received
        if self._record is not None and received != self._published:
            self._published = received
            self._publish_at = anyio.current_time() + PUBLISH_SECONDS
            keep_partial(_joined(self._stdout.text(), self._stderr.text()))


def _end_leftover(
    popen: subprocess.Popen[bytes],
    pipes: SelectedPipes | ThreadedPipes,
    owner: int,
) -> None:
    """Kill what is left of a command that nobody waits for, and reap it."""
    if os.getpid() != owner:
        return  # a fork: it is our parent's command
    if sys.platform == "win32":
        if popen.poll() is None:
            end_tree(popen.pid)
    else:
        kill_session(popen.pid)
    pipes.close()
    _reap(popen)


def _reap(popen: subprocess.Popen[bytes]) -> None:
    """Wait for what was killed: for a moment here, and then in a thread."""
    try:
        popen.wait(BLOCK_SECONDS)
    except subprocess.TimeoutExpired:
        try:
            threading.Thread(target=popen.wait, daemon=True).start()
        except RuntimeError:
            pass  # the interpreter is ending, and the system reaps


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
