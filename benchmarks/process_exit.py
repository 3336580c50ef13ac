"""A program whose detached threads still sleep, print, or read: how long until it is gone?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .pairing import percentile
from .report import Report, seconds

THREADS = 50
BOUND = 1.0
PATIENCE = 30.0
"""Seconds after which the process is killed; half of what the threads sleep."""

TOOLS = ("sleep", "print", "read a socket", "read stdin")

PROGRAM = """
import socket, sys, threading, time
import anyio
from anyio_toolbatch import ToolCall, ToolRunner

what, backend, uvloop, ended_at = sys.argv[1:]
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
    else:
        sys.stdin.buffer.readline()

async def main():
    runner = ToolRunner([tool], max_threads=THREADS, max_detached=THREADS)
    async with runner.open_batch([ToolCall(str(n), "tool") for n in range(THREADS)]) as batch:
        while len(started) < THREADS:
            await anyio.sleep(0.001)
        batch.interrupt()
    assert all(r.detached for r in batch.results)

options = {"use_uvloop": True} if uvloop else {}
anyio.run(main, backend=backend, backend_options=options)
with open(ended_at, "w") as file:
    file.write(str(time.monotonic()))
"""


def measure(backend: str, quick: bool, report: Report) -> None:
    rows = []
    for what in TOOLS:
        runs = [_run(backend, what) for _ in range(1 if quick else 5)]
        taken = [run[0] for run in runs]
        ends = sorted({run[1] for run in runs})
        name = f"exit, {THREADS} detached threads that {what}"
        report.at_most(backend, name, BOUND, max(taken), seconds)
        report.expect(backend, f"{name}: ending", "status 0, silent", "; ".join(ends))
        rows.append([what, seconds(percentile(taken, 0.5)), seconds(max(taken)), *ends])
    head = ("what they do", "p50", "longest", "ending")
    report.table(f"{backend}: from anyio.run returned to process gone", head, rows)


def _run(backend: str, what: str) -> tuple[float, str]:
    """Return how long it took, and how it ended."""
    native = "trio" if backend == "trio" else "asyncio"
    uvloop = "yes" if backend == "uvloop" else ""
    program = PROGRAM.replace("THREADS", str(THREADS))
    with tempfile.TemporaryDirectory() as folder:
        ended_at = Path(folder, "ended-at")
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", program, what, native, uvloop, str(ended_at)],
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
        if what != "print":
            said = out.read_text(errors="replace").strip() + said
        taken = gone - float(ended_at.read_text()) if ended_at.exists() else PATIENCE
    how = "silent" if not said else f"said {said[-60:]!r}"
    return taken, f"status {status}, {how}"
