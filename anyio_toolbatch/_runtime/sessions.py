"""
Finds and signals the processes of a session, those too that have left its group.

A shell with job control and programs such as `timeout` put what they start into
groups of their own; the session stays. Windows has neither: there the tree of a
process is ended.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from .logs import about

__all__ = ("Member", "end_tree", "kill_session", "members_of", "signal_group", "signal_strays")

logger = logging.getLogger(__name__)

REAP_SECONDS = 2.0
"""How long a helper program may take."""
BLOCK_SECONDS = 0.02
"""How long one is waited for where nothing can be awaited; most take less than 1 ms."""


def end_tree(pid: int) -> None:
    """End a process and its descendants: Windows' way."""
    try:
        subprocess.run(
            ["taskkill", "/T", "/F", "/PID", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REAP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        logger.warning(
            "process %d could not be ended",
            pid,
            exc_info=True,
            extra=about("process_not_ended", pid=pid),
        )


Member = tuple[int, int]
"""A process and its group."""


def kill_session(session: int) -> None:
    """Kill at once, and again what was started meanwhile; blocks, for a moment at most."""
    deadline = time.monotonic() + BLOCK_SECONDS
    signal_group(session, signal.SIGKILL)
    while members := _living_processes().get(session):
        signal_group(session, signal.SIGKILL)
        signal_strays(session, members, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break


def signal_group(session: int, number: int) -> None:
    """Signal those in the command's own group, at one blow."""
    _signal(os.killpg, session, number)


def signal_strays(session: int, members: Sequence[Member], number: int) -> None:
    """Signal those that have left the group, as `timeout` does."""
    for pid, group in members:
        if group != session:
            _signal(os.kill, pid, number)


def _signal(send: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or of another user; macOS says the second of zombies, too


_looked_at = _looked_until = 0.0
_sessions: dict[int, list[Member]] = {}


def members_of(session: int, started_at: float) -> Sequence[Member]:
    """
    Return who lives in a session; those that only wait to be reaped do not.

    A look at all processes takes milliseconds, so that commands that are
    stopped together share it: it is good for as long again as it took. One
    from before the command's start is not. Who was found gone stays gone.
    """
    global _looked_at, _looked_until, _sessions  # noqa: PLW0603 - one for all commands
    now = time.monotonic()
    if now >= _looked_until or started_at >= _looked_at:
        _looked_at, _sessions = now, _living_processes()
        taken = time.monotonic() - now
        _looked_until = now + 2 * taken
    return _sessions.get(session, ())


def _living_processes() -> dict[int, list[Member]]:
    found: dict[int, list[Member]] = {}
    for pid, state, group, session in _from_proc() if HAS_PROC else _from_ps():
        if state not in "ZX":
            found.setdefault(session, []).append((pid, group))
    return found


HAS_PROC = os.path.exists("/proc/self/stat")


def _from_proc() -> Iterator[tuple[int, str, int, int]]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return  # too many open files: the group gets its signals all the same
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                # pid (command) state ppid pgrp session …; the command may be anything
                fields = file.read().rpartition(b")")[2].split(maxsplit=4)
        except OSError:
            continue  # gone meanwhile
        yield int(name), fields[0].decode(), int(fields[2]), int(fields[3])


def _from_ps() -> Iterator[tuple[int, str, int, int]]:
    command = ["ps", "-A", "-o", "pid=", "-o", "pgid=", "-o", "stat="]
    try:
        listed = subprocess.run(
            command, capture_output=True, timeout=REAP_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return  # the group gets its signals all the same
    for line in listed.splitlines():
        pid, group, state = line.split(maxsplit=2)
        try:
            yield int(pid), state[:1].decode(), int(group), os.getsid(int(pid))
        except OSError:
            continue  # gone meanwhile
