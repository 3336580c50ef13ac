"""
P7: the process leaves, whatever the threads that were let go of are at, and however it ends.

Each pair of what they do and how the program ends is run on one event loop; those on
the others, some minutes' worth, are left to the session `soak`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="signals, and a signal's status"
)

SCRIPT = Path(__file__).parent / "scripts" / "leaves.py"
LIVENESS = 60.0  # seconds where less than one is meant

WHAT = ["sleep", "print", "socket", "stdin", "hash", "compress", "match", "compute"]
ENDS = {"return": 0, "an exception": 1, "sys.exit": 3, "ctrl-c": -signal.SIGINT}
LOOPS = ["asyncio", "uvloop", "trio"]


def matrix() -> Iterator[object]:
    for row, what in enumerate(WHAT):
        for column, end in enumerate(ENDS):
            for number, loop in enumerate(LOOPS):
                # In each row and in each column every loop has its turn.
                is_chosen = (row + column) % len(LOOPS) == number
                yield pytest.param(
                    what,
                    end,
                    loop,
                    marks=() if is_chosen else pytest.mark.soak,
                    id=f"{what}-{end}-{loop}",
                )


@pytest.mark.parametrize(("what", "end", "loop"), list(matrix()))
def test_program_leaves(what: str, end: str, loop: str, tmp_path: Path) -> None:
    """P7: with the status that was meant, and nothing on stderr but what it says itself."""
    output = tmp_path / "stdout"  # may become large
    read_end, write_end = os.pipe()  # an input that stays open and says nothing
    try:
        with output.open("wb") as stdout:
            done = subprocess.run(
                [sys.executable, "-W", "error", SCRIPT, what, end, loop],
                stdin=read_end,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                timeout=LIVENESS,
                check=False,
            )
    finally:
        gone = time.monotonic()
        os.close(read_end)
        os.close(write_end)
    over, *said = done.stderr.splitlines()
    assert over.startswith("over ")
    print(f"gone {gone - float(over.split()[1]):.2f} s after its last line")
    assert done.returncode == ENDS[end], done.stderr
    if end in {"return", "sys.exit"}:
        assert said == []
    else:
        # One traceback, of the program's own error, and nothing before or after it.
        assert said[0] == "Traceback (most recent call last):"
        last = (
            "LookupError: as was asked for" if end == "an exception" else "KeyboardInterrupt"
        )
        assert said[-1] == last
        for trouble in ("Exception in", "Exception ignored", "Fatal", "never", "destroyed"):
            assert trouble not in done.stderr
