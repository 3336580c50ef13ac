"""
Worker processes: where a call can be killed.

A blocking thread stands before each process: it has the call loaded, says go, hands
on what the tool tells, and waits for the answer. To stop the call the process is
killed, with all that it has started; its pipe closes, and the thread is free.

Workers are kept for a moment after a call, for the next one; one that was
killed, or has died, is replaced. None is kept for longer than `IDLE_SECONDS`, and
none outlives the program: it ends with the pipe to us, however we end.

Story of a kill (who may touch which worker): a call owns its worker from `prepare`
until its answer is there. `kill` and the end of the call take the call's lock:
if the kill comes first, the worker is dead and is not kept; if the end comes
first, the call has no worker any more, and the kill finds nothing. So nobody
kills a worker that is serving another call.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .._errors import CallDetached, ProcessDiedError
from .._model.tools import Tool
from .backend import after_fork
from .process_worker import (
    ERROR,
    GO,
    LOAD,
    PREPARE,
    VALUE,
    FunctionName,
    bootstrap,
    read_message,
    refuse_recursion,
    text_of,
    unpickled,
    write_message,
)
from .sessions import kill_session

if TYPE_CHECKING:
    from io import FileIO

__all__ = ("ProcessCall",)

IDLE_SECONDS = 0.5
"""How long a worker waits for its next call; a batch's workers are gone soon after it."""
DYING_SECONDS = 1.0
"""How long a process may take to be gone, its pipe closed or killed; chosen, ample."""
LEAVING_SECONDS = 0.5
"""How long the end of the program waits for its workers; it is to be gone in a second."""

Tell = Callable[[bytes, Any], None]


class _GoneError(Exception):
    """A worker has closed its pipe."""


class ProcessCall:
    """One call and the worker that serves it."""

    __slots__ = ("_is_killed", "_lock", "_worker")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_killed = False
        self._worker: _Worker | None = None

    def prepare(self, tool: Tool, arguments: dict[str, Any]) -> None:
        """
        Have the call loaded by a worker; nothing of it has begun after that. Blocks.

        Raises:
            TypeError: The function or an argument can't be brought there.
            OSError: No process can be started.
            ProcessDiedError: One was started, and has ended.
            CallDetached: It was killed meanwhile.
        """
        refuse_recursion()
        request = _pickled(tool, arguments)
        while True:
            worker, is_new = _take()
            self._worker = worker
            # Either the kill sees the worker, or this look sees the kill.
            if self._is_killed:
                self.kill()
            try:
                worker.load(request)
            except _GoneError:
                how = self._bury()
                if is_new:
                    raise ProcessDiedError(how) from None
                # Else one that was kept, and has ended meanwhile.
            except BaseException:
                self.give_back()
                raise
            else:
                return

    def run(self, tell: Tell, *, streams: bool) -> Any:
        """
        Have the function called and return its value; once, after `prepare`. Blocks.

        Args:
            tell: Called with the kind of each message on the way, and what it brings.
            streams: It is a generator function.

        Raises:
            ProcessDiedError: The worker has ended.
            CallDetached: It was killed.
            BaseException: What the function raised.
        """
        worker = self._worker
        assert worker is not None, "prepared"
        try:
            worker.go(streams=streams)
            kind, value = worker.read()
            while kind not in {VALUE, ERROR}:
                tell(kind, value)
                kind, value = worker.read()
        except _GoneError:
            raise ProcessDiedError(self._bury()) from None
        except BaseException:  # something that can't be read, or a fault of ours
            self.kill()
            self.give_back()
            raise
        self.give_back()
        if kind == ERROR:
            raise value
        return value

    def kill(self) -> None:
        """Stop the call; from any thread, idempotent, never blocks for long."""
        with self._lock:
            self._is_killed = True
            if self._worker is not None:
                self._worker.kill()

    def give_back(self) -> None:
        """The worker is free again, or dead."""
        with self._lock:
            worker, self._worker = self._worker, None
            is_killed = self._is_killed  # what comes later has found no worker
        if worker is not None:
            if is_killed:
                worker.end()
            else:
                _keep(worker)

    def _bury(self) -> str:
        """
        Say how the worker has ended.

        Raises:
            CallDetached: It was killed.
        """
        with self._lock:
            worker, self._worker = self._worker, None
        assert worker is not None, "buried once"
        how = worker.end()
        if self._is_killed:
            raise CallDetached from None
        return how


def _pickled(tool: Tool, arguments: dict[str, Any]) -> bytes:
    """
    Pickle a call.

    Raises:
        TypeError: It can't be; the message names what can't.
    """
    function: Any = tool.func
    try:
        return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - a decorated function's name stands for its Tool
        function = FunctionName.of(tool) or function
    try:
        return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        culprit = _culprit(function, arguments)
        msg = f"{culprit} can't be sent to a worker process: {text_of(exc)}"
        raise TypeError(msg) from exc


def _culprit(function: Any, arguments: dict[str, Any]) -> str:
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception:  # noqa: BLE001 - that is the question
            return f"the argument {name!r} of type {type(value).__qualname__}"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"the function {name}"


class _Worker:
    """
    One process, and the pipes to it.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, preparation: bytes) -> None:
        if getattr(sys, "frozen", False):
            msg = (
                "there is no Python interpreter to start: the program is frozen into one file"
            )
            raise OSError(msg)
        options: dict[str, Any] = {}
        if sys.platform != "win32":
            options["start_new_session"] = True  # Ctrl-C is for us
        if not _is_open(2):
            options["stderr"] = subprocess.DEVNULL
        # Without buffers: those have locks, which a thread would hold while it waits.
        self._process = subprocess.Popen(
            _command(), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
        )
        self._requests = cast("FileIO", self._process.stdin)
        self._answers = cast("FileIO", self._process.stdout)
        self.preparation = preparation
        self.idle_since = 0.0
        _all.add(self)
        with contextlib.suppress(OSError):  # it has died: the first request will tell
            write_message(self._requests, PREPARE, preparation)

    def load(self, request: bytes) -> None:
        self._write(LOAD, request)
        kind, value = self.read()
        if kind == ERROR:
            raise value

    def go(self, *, streams: bool) -> None:
        try:
            directory = os.getcwd()
        except OSError:
            directory = None
        self._write(GO, pickle.dumps((directory, streams)))

    def read(self) -> tuple[bytes, Any]:
        """
        Return the next message: its kind, and what it brings.

        Raises:
            _GoneError: There is none.
            TypeError: It can't be unpickled.
        """
        try:
            kind, body = read_message(self._answers)
        except (EOFError, OSError):
            raise _GoneError from None
        return kind, unpickled(body)

    def _write(self, kind: bytes, body: bytes) -> None:
        try:
            write_message(self._requests, kind, body)
        except OSError:
            raise _GoneError from None

    def kill(self) -> None:
        """End the process and what it has started, now."""
        # One that has been reaped is left alone: its number may be another's.
        if self._process.returncode is not None:
            return
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> str:
        """
        Reap a process that ends, with what it has started, and close the pipes.

        Returns:
            How it ended, in words.
        """
        try:
            status = self._process.wait(DYING_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        # Its children live on, those too that have left its group, under the number of
        # their session, which is not given to anybody else before they have ended.
        if sys.platform == "win32":
            self._process.kill()
        else:
            kill_session(self._process.pid)
        if status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DYING_SECONDS)
        self._close()
        return _worded(status)

    def _close(self) -> None:
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                stream.close()
        _all.discard(self)

    def disown(self) -> None:
        """It is the parent's, and we have been forked: never touch it again."""
        self._process.returncode = 0
        self._close()


def _command() -> list[str]:
    # What warns, asserts or decodes here should do so there: as `multiprocessing` has it.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", bootstrap()]


def _worded(status: int | None) -> str:
    if status is None:
        return "the worker process closed its pipe and did not end"
    if status >= 0:
        return f"the worker process ended with exit status {status}"
    name = f"signal {-status}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"the worker process was ended by {name}{hint}"


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _preparation() -> bytes:
    """Say what a worker must know of the program, to find functions as we do."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    return pickle.dumps((sys.path, sys.argv, (name, path)))


# -- workers that wait for a call ------------------------------------------

_lock = threading.Lock()
"""Guards what follows; held for a few bytecodes."""
_idle: list[_Worker] = []
"""The last to come is the first to go."""
_has_janitor = False
_all: set[_Worker] = set()
"""All that there are, the busy ones included; written by atomic steps."""


def _take() -> tuple[_Worker, bool]:
    """Return a worker, and whether it was made for this."""
    preparation = _preparation()
    while True:
        with _lock:
            worker = _idle.pop() if _idle else None
        if worker is None:
            return _Worker(preparation), True
        if worker.preparation == preparation:
            return worker, False
        worker.kill()
        worker.end()


def _keep(worker: _Worker) -> None:
    global _has_janitor
    worker.idle_since = time.monotonic()
    with _lock:
        _idle.append(worker)
        is_looked_after, _has_janitor = _has_janitor, True
    if not is_looked_after:
        try:
            threading.Thread(
                target=_tidy_up, name="anyio_toolbatch janitor", daemon=True
            ).start()
        except RuntimeError:  # no thread can be started: none is kept
            _end_idle(math.inf)


def _tidy_up() -> None:
    """End workers that have waited for long; until there are none that wait."""
    while True:
        time.sleep(IDLE_SECONDS / 4)
        if _end_idle(time.monotonic() - IDLE_SECONDS):
            return


def _end_idle(until: float) -> bool:
    """End those that have waited since then; True if there are no others."""
    global _has_janitor  # noqa: PLW0603 - the one of this process
    with _lock:
        old = [worker for worker in _idle if worker.idle_since <= until]
        for worker in old:
            _idle.remove(worker)
        _has_janitor = bool(_idle)
        is_over = not _has_janitor
    for worker in old:
        worker.kill()
    for worker in old:
        worker.end()
    return is_over


@atexit.register
def _end_all() -> None:
    """
    The program ends, and so do they.

    Those that serve a call are reaped by its thread, which still runs now. They are
    waited for, so that none is left to the end of the interpreter, which would warn.
    """
    until = time.monotonic() + LEAVING_SECONDS
    while _all and time.monotonic() < until:
        for worker in list(_all):
            worker.kill()
        _end_idle(math.inf)
        time.sleep(0.002)


def _forget_workers() -> None:
    # They are the parent's; and a thread of its may have held the lock.
    global _lock, _has_janitor  # noqa: PLW0603 - the ones of this process
    _lock = threading.Lock()
    _has_janitor = False
    _idle.clear()
    for worker in list(_all):
        worker.disown()


after_fork(_forget_workers)
