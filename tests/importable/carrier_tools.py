"""
Tools that leave traces in a folder, for carriers of all kinds; and an executor that can stop.

Imports little: each call of `KillableExecutor` starts a Python that imports this file.
"""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

LIVENESS = 20.0  # seconds where milliseconds are meant
PAUSE = 0.002  # seconds between two looks at what another process may have done


def leave_trace(folder: Path, name: str, text: str = "") -> None:
    """Make a file at once, its content included; the order of traces is that of their times."""
    hidden = folder / f".{name}-{os.getpid()}-{threading.get_ident()}"
    hidden.write_text(text)
    hidden.replace(folder / name)


def wait_for(path: Path) -> None:
    until = time.monotonic() + LIVENESS
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"nobody has made {path}")
        time.sleep(PAUSE)


def gated(folder: Path, name: str = "0") -> str:
    """Runs until there is a file `go`."""
    leave_trace(folder, f"started-{name}", str(os.getpid()))
    wait_for(folder / "go")
    leave_trace(folder, f"ended-{name}")
    return f"value of {name}"


def quick(folder: Path, name: str = "0") -> str:
    leave_trace(folder, f"started-{name}", str(os.getpid()))
    return f"value of {name}"


def fails_late(folder: Path, name: str = "0") -> None:
    gated(folder, name)
    raise ValueError(f"error of {name}")


def streams(folder: Path) -> Any:
    yield "first"
    leave_trace(folder, "started-0", str(os.getpid()))
    wait_for(folder / "go")
    yield "second"


def streams_and_breaks(folder: Path) -> Any:
    yield from quick(folder).split()
    raise ValueError("no more")


def interrupted() -> None:
    raise KeyboardInterrupt("in the tool")


def exits() -> None:
    raise SystemExit(3)


def dies(folder: Path) -> None:
    leave_trace(folder, "started-dies")
    os._exit(3)


def new_executor(kind: str, count: int = 1) -> Executor:
    """One of the standard library's; forking a process with threads would warn."""
    if kind == "threads":
        return ThreadPoolExecutor(count)
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


class KillableExecutor(Executor):
    """Runs each call in a process of its own, and can kill it."""

    def __init__(self) -> None:
        self._processes: dict[Future[Any], subprocess.Popen[bytes]] = {}

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._processes[future] = process
        try:
            request = pickle.dumps((sys.path, pickle.dumps((fn, args, kwargs))))
        except BaseException:
            self.stop(future)
            process.communicate()
            raise
        future.set_running_or_notify_cancel()
        work = threading.Thread(
            target=self._serve, args=(future, process, request), daemon=True
        )
        work.start()
        return future

    def _serve(
        self, future: Future[Any], process: subprocess.Popen[bytes], request: bytes
    ) -> None:
        answer, _ = process.communicate(request)
        self._processes.pop(future, None)
        if process.returncode:
            future.set_exception(ChildProcessError(f"ended with {process.returncode}"))
            return
        is_error, value = pickle.loads(answer)
        if is_error:
            future.set_exception(value)
        else:
            future.set_result(value)

    def stop(self, future: Future[Any]) -> Any:
        """What an `ExecutorCarrier` takes as its canceller."""
        process = self._processes.get(future)
        if process is not None:
            process.kill()
            process.wait()
        return "stopped"


_CHILD = """
import os, pickle, sys
sys.path, request = pickle.load(sys.stdin.buffer)
answers, sys.stdout = sys.stdout.buffer, sys.stderr
try:
    function, args, kwargs = pickle.loads(request)
    answer = False, function(*args, **kwargs)
    answer = pickle.dumps(answer)
except BaseException as error:
    answer = pickle.dumps((True, error))
answers.write(answer)
answers.flush()
os._exit(0)
"""


# -- the same for every carrier; those with `_async` run on an event loop ---------------

session: contextvars.ContextVar[str] = contextvars.ContextVar("session", default="unset")


async def gated_async(folder: Path, name: str = "0") -> str:
    import anyio

    leave_trace(folder, f"started-{name}", str(os.getpid()))
    while not (folder / "go").exists():
        await anyio.sleep(PAUSE)
    return f"value of {name}"


async def quick_async(folder: Path, name: str = "0") -> str:
    return quick(folder, name)


async def fails_late_async(folder: Path, name: str = "0") -> None:
    fails_late(folder, name)


async def exits_async() -> None:
    exits()


async def streams_async(folder: Path) -> Any:
    yield "first"
    await gated_async(folder)
    yield "second"


def stubborn(folder: Path) -> None:
    gated(folder)


async def stubborn_async(folder: Path) -> None:
    import anyio

    with anyio.CancelScope(shield=True):
        await gated_async(folder)


def attentive(folder: Path) -> str:
    """Notes that it was told to stop, where it can be, and runs on."""
    from anyio_toolbatch import on_cancel

    with contextlib.suppress(RuntimeError):
        on_cancel(lambda: leave_trace(folder, "told"))
    return gated(folder)


async def attentive_async(folder: Path) -> str:
    try:
        return await gated_async(folder)
    except BaseException:
        leave_trace(folder, "cancelled")
        raise


def takes(what: Any) -> str:
    return "taken"


async def takes_async(what: Any) -> str:
    return "taken"


def gives_a_lock() -> Any:
    return threading.Lock()


async def gives_a_lock_async() -> Any:
    return threading.Lock()


def reads_context() -> str:
    return session.get()


async def reads_context_async() -> str:
    return session.get()


def asks_for_its_call() -> str:
    from anyio_toolbatch import current_call, on_cancel

    on_cancel(int).unregister()
    return current_call().call.id


async def asks_for_its_call_async() -> str:
    return asks_for_its_call()


def reports() -> str:
    from anyio_toolbatch import keep_partial, report_progress

    keep_partial("half")
    report_progress(1, 2)
    return "all"


async def reports_async() -> str:
    return reports()


def output() -> Any:
    from anyio_toolbatch import ToolOutput

    return ToolOutput("no such file", is_error=True)


async def output_async() -> Any:
    return output()


class TwoPartError(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a}, {b}")


def raises_what_can_not_be_read(in_group: bool = False) -> None:
    error = TwoPartError("this", "that")
    raise ExceptionGroup("several", [error]) if in_group else error


def gives_what_can_not_be_read() -> Any:
    return TwoPartError("this", "that")
