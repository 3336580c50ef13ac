"""Tools and arguments that a worker process can import; the tests put this folder on its path."""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyio_toolbatch import ToolOutput, current_call, keep_partial, report_progress, tool

FOR_EVER = 1000.0  # seconds
session: contextvars.ContextVar[str] = contextvars.ContextVar("session", default="unset")


def add(a: int, b: int = 1) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def gives(what: Any) -> Any:
    return what


@tool(runs_in="process")
def decorated(a: int) -> int:
    return a + 1


class Adder:
    def __init__(self, a: int) -> None:
        self.a = a

    def add(self, b: int) -> int:
        return self.a + b

    __call__ = add


def counts(to: int) -> Iterator[int]:
    yield from range(to)


def breaks_off() -> Iterator[int]:
    yield 1
    raise ValueError("no more")


def output() -> ToolOutput:
    return ToolOutput("no such file", is_error=True)


def raises(error: BaseException) -> None:
    raise error


class OddError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


def raises_oddly() -> None:
    raise OddError(1, "odd")


def gives_a_lock() -> Any:
    return [threading.Lock()]


def gives_a_generator() -> Any:
    return counts(3)


class Homebound:
    """Can be read in a worker, and not where the tests run."""

    def __init__(self, home: int) -> None:
        self.home = home

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["home"] == os.getpid():
            raise LookupError("not at home")
        self.__dict__.update(state)


class Blocking:
    """An argument that never ends being read; who opens the pipe knows that it has begun."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["pipe"].write_text("loading")
        time.sleep(FOR_EVER)


def dies(how: str) -> None:
    if how == "close":
        os.closerange(3, 256)  # the way back, among others
        return
    if how == "exit":
        os._exit(3)
    if os.fork() == 0:  # a child must not keep the pipe
        time.sleep(FOR_EVER)
    os.kill(os.getpid(), getattr(signal, how))


def asks() -> str:
    return input()


def prints() -> None:
    print("printed by a tool")


def looks_around() -> tuple[str, str]:
    return session.get(), os.getcwd()


def moves(to: str) -> None:
    os.chdir(to)


def asks_for_its_call() -> Any:
    return current_call()


def works() -> None:
    """Says that it has begun, and never ends; its child does not either."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"], process_group=0
    )
    keep_partial([os.getpid(), child.pid])
    report_progress(1)
    time.sleep(FOR_EVER)


def waits_for(pipe: Path) -> str:
    report_progress(1)
    return pipe.read_text()


def leaves_a_thread() -> int:
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_chatters,), daemon=True).start()
    return os.getpid()


def _chatters() -> None:
    while True:
        report_progress(99)
        time.sleep(0.001)


def leaves_a_child() -> int:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"]).pid


def remembers(name: str) -> tuple[str, str]:
    """What was found, and what is there now."""
    found = session.get()
    session.set(name)
    return found, session.get()


def commits(target: Path) -> None:
    """Writes, says so, and never ends."""
    target.write_text("done")
    report_progress(1)
    time.sleep(FOR_EVER)


left_behind: list[str] = []


def computes_for_ever() -> None:
    left_behind.append("by the call that was stopped")
    report_progress(1)
    while True:
        pass


def what_is_left() -> list[str]:
    return left_behind


def says_who_it_is() -> None:
    keep_partial(os.getpid())
    report_progress(1)
    time.sleep(FOR_EVER)


def books(pipe: Path) -> str:
    """Says that it has begun, waits, and says more, which is too late if it was let go."""
    keep_partial("in time")
    report_progress(1)
    with pipe.open() as waits:
        said = waits.readline()
    report_progress(2)
    keep_partial("too late")
    return _answer(said)


def books_in_steps(pipe: Path) -> Iterator[str]:
    yield "in time"
    report_progress(1)
    with pipe.open() as waits:
        said = waits.readline()
    report_progress(2)
    yield "too late"
    yield _answer(said)


def _answer(said: str) -> str:
    if said != "go\n":
        raise ValueError("no seat left")
    return "booked"


class ExitsWhenPickled:
    def __reduce__(self) -> Any:
        raise SystemExit(5)


class FalseError(Exception):
    """Can't even be asked whether it is there."""

    def __bool__(self) -> bool:
        raise RuntimeError("asked")


def raises_a_false_error() -> None:
    raise FalseError("sulky")


def gives_what_exits() -> ExitsWhenPickled:
    return ExitsWhenPickled()
