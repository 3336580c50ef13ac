"""What an engine's worker can import; the tests put this folder on its path."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

is_being_pickled = threading.Event()
may_be_pickled = threading.Event()


class SlowToPickle:
    """An argument whose pickling waits for the test."""

    def __reduce__(self) -> Any:
        is_being_pickled.set()
        may_be_pickled.wait()
        return SlowToPickle, ()


def marks(mark: Path, what: Any = None) -> None:
    """Leaves a line in a file for each run."""
    with mark.open("a") as file:
        file.write(f"{os.getpid()}\n")


def holds(folder: Path) -> str:
    """Says that it has begun, and waits until somebody writes into the pipe."""
    marks(folder / "runs")
    folder.joinpath("pid.new").write_text(str(os.getpid()))
    folder.joinpath("pid.new").rename(folder / "pid")
    said = folder.joinpath("pipe").read_text()
    folder.joinpath("done").write_text(said)
    return said


def dies(mark: Path) -> None:
    marks(mark)
    os._exit(3)
