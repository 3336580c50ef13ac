"""A program whose detached threads are still at work: how long until it is gone?"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .report import Report, seconds

THREADS = 50
BUSY_THREADS = 4
"""Where they compute: more would say most of the machine."""
BOUND = 1.0
PATIENCE = 30.0
"""Seconds after which the process is killed; half of what the threads sleep."""

TOOLS = {
    "sleep": THREADS,
    "print": THREADS,
    "read a socket": THREADS,
    "read stdin": THREADS,
    "hash": BUSY_THREADS,
    "match a pattern": BUSY_THREADS,
    "count": BUSY_THREADS,
}
"""What they do → how many. Hashing frees the interpreter's lock, matching holds it, for
some ten milliseconds at a time; counting is a loop in Python."""
ENDS = {"return": 0, "an exception": 1, "sys.exit": 3, "ctrl-c": -signal.SIGINT}
"""How the program ends → its status."""

PROGRAM = """
import hashlib, os, re, signal, socket, sys, threading, time
import anyio
from anyio_toolbatch import ToolCall, ToolRunner

what, how, count, backend, uvloop, ended_at = sys.argv[1:]
count = int(count)
ends = socket.socketpair()
started = []

def tool():
    started.append(None)
    if what == "sleep":
        time.sleep(60)
    elif what == "print":
        until = time.monotonic() + 60
        while time.monotonic() < until:
            print("still here")
            time.sleep(0.001)
    elif what == "read a socket":
        ends[0].recv(1)
    elif what == "hash":
        while True:
            hashlib.sha256(bytes(1 << 24))
    elif what == "match a pattern":
        while True:
            re.match("(a+)+$", "a" * 18 + "b")
    elif what == "count":
        while True:
            pass
    else:
        sys.stdin.buffer.readline()

async def main():
    runner = ToolRunner([tool], max_threads=count, max_detached=count)
    async with runner.open_batch([ToolCall(str(n), "tool") for n in range(count)]) as batch:
        while len(started) < count:
            await anyio.sleep(0.001)
        batch.interrupt()
    assert all(r.detached for r in batch.results)
    with open(ended_at, "w") as file:
        file.write(str(time.monotonic()))
    if how == "an exception":
        raise LookupError
    if how == "sys.exit":
        sys.exit(3)
    if how == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(60)

options = {"use_uvloop": True} if uvloop else {}
anyio.run(main, backend=backend, backend_options=options)
"""


def measure(backend: str, quick: bool, report: Report) -> None:
    rows = []
    for what, count in TOOLS.items():
        longest = []
        endings = set()
        for how, status in ENDS.items():
            runs = [_run(backend, what, how) for _ in range(1 if quick else 3)]
            longest.append(max(taken for taken, _ in runs))
            wanted = f"status {status}, silent"
            endings |= {AS_MEANT if end == wanted else f"{how}: {end}" for _, end in runs}
        name = f"exit, {count} detached threads that {what}"
        report.at_most(backend, name, BOUND, max(longest), seconds)
        report.expect(backend, f"{name}: ending", AS_MEANT, "; ".join(sorted(endings)))
        rows.append([f"{count} that {what}", *map(seconds, longest)])
    report.table(f"{backend}: from the end of the turn to process gone", HEAD, rows)


AS_MEANT = "its own status, silent"
HEAD = ("detached threads", *(f"by {how}" for how in ENDS))


def _run(backend: str, what: str, how: str) -> tuple[float, str]:
    """Return how long it took, and how it ended."""
    native = "trio" if backend == "trio" else "asyncio"
    uvloop = "yes" if backend == "uvloop" else ""
    with tempfile.TemporaryDirectory() as folder:
        ended_at = Path(folder, "ended-at")
        out, err = Path(folder, "out"), Path(folder, "err")
        arguments = [what, how, str(TOOLS[what]), native, uvloop, str(ended_at)]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                stdin=subprocess.PIPE,  # open, and nothing comes
                stdout=stdout,
                stderr=stderr,
            )
            try:
                status = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            gone = time.monotonic()
            assert process.stdin is not None
            process.stdin.close()
        said = err.read_text(errors="replace").strip()
        last = {"an exception": "LookupError", "ctrl-c": "KeyboardInterrupt"}.get(how)
        if last is not None and said.startswith("Traceback") and said.endswith(last):
            said = ""  # its own
        if what != "print":
            said = out.read_text(errors="replace").strip() + said
        taken = gone - float(ended_at.read_text()) if ended_at.exists() else PATIENCE
    end = "silent" if not said else f"said {said[-60:]!r}"
    return taken, f"status {status}, {end}"
