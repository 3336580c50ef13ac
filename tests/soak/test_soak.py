"""
P10: nothing grows with the number of batches run; `soak.py` says how that is seen.

Here the short form; the session `soak` runs a hundred thousand turns on each loop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the storm kills processes")

SCRIPT = Path(__file__).parent / "soak.py"
LIVENESS = 300.0  # seconds where a few are meant

LOOPS = ["asyncio", "trio", "uvloop", *(["eager"] if sys.version_info >= (3, 12) else [])]


@pytest.mark.parametrize("loops", [*LOOPS, ",".join(LOOPS)])
def test_random_turns_leave_nothing_behind(loops: str) -> None:
    """P1, P7, P10: two runners, on one loop and on all at once, each in a thread of its own."""
    done = run_soak("--loops", loops, "--turns", "800", "--rounds", "2")
    assert (done.stderr, done.returncode) == ("", 0), done.stdout


@pytest.mark.parametrize("leak", ["object", "thread", "descriptor", "task", "log"])
def test_a_leak_is_found(leak: str) -> None:
    """The test above can fail: for what is left by each turn, or by one, and for noise."""
    options = ["--loops", "asyncio", "--turns", "200", "--rounds", "1", "--leak", leak]
    if leak in {"thread", "task"}:
        options += ["--patience", "4"]  # it does not end
    done = run_soak(*options)
    assert done.returncode == 1
    said = {
        "object": "storm.Leaked: ",
        "thread": "threads are left: ",
        "descriptor": "descriptors: ",
        "task": "left on the loop: ",
        "log": "logged: as was asked for",
    }
    assert said[leak] in done.stderr


def run_soak(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", SCRIPT, *options],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        check=False,
    )
