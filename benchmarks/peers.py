"""
The same stop, in what people use today.

Eight blocking calls, of which seven are done and one has `LEFT` seconds to go,
are stopped by cancelling whoever awaits them (this library: by an interrupt).
Each way is driven as its own documentation has it, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .pairing import percentile
from .report import Report, seconds

LEFT = 2.0  # seconds; what everything that waits for the last tool must take
PATIENCE = 30.0

WAYS = {
    "asyncio.gather + asyncio.to_thread": "gather",
    "asyncio.gather + ThreadPoolExecutor, shutdown(wait=False)": "executor",
    "anyio task group + to_thread": "anyio",
    "anyio task group + to_thread, abandon_on_cancel": "abandon",
    "anyio_toolbatch": "toolbatch",
}

PROGRAM = """
import asyncio, concurrent.futures, sys, threading, time
import anyio, anyio.to_thread

way, left, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
done = threading.Semaphore(0)
waiting = threading.Event()
stopped_at = back_at = kept = None

def tool(n):
    if n == 7:
        waiting.set()
        time.sleep(left)
    else:
        done.release()
    return n

def all_but_one_done():
    waiting.wait(10)
    for _ in range(7):
        done.acquire(timeout=10)
    time.sleep(0.1)  # their answers are on the loop, too

async def stop(function):
    global stopped_at
    # Not through the loop's own pool, which the tools may fill.
    ready = anyio.Event()
    token = anyio.lowlevel.current_token()
    def watch():
        all_but_one_done()
        anyio.from_thread.run_sync(ready.set, token=token)
    threading.Thread(target=watch).start()
    await ready.wait()
    stopped_at = time.monotonic()
    function()

def back(results):
    global back_at, kept
    back_at = time.monotonic()
    kept = len(results)

async def gather(submit):
    results = []
    async def turn():
        results.extend(await asyncio.gather(*(submit(n) for n in range(8))))
    task = asyncio.ensure_future(turn())
    await stop(task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass
    back(results)

async def main():
    if way == "gather":
        await gather(lambda n: asyncio.to_thread(tool, n))
    elif way == "executor":
        loop = asyncio.get_running_loop()
        pool = concurrent.futures.ThreadPoolExecutor(8)
        await gather(lambda n: loop.run_in_executor(pool, tool, n))
        pool.shutdown(wait=False, cancel_futures=True)
    elif way in ("anyio", "abandon"):
        results = {}
        async def call(n):
            results[n] = await anyio.to_thread.run_sync(
                tool, n, abandon_on_cancel=way == "abandon")
        async with anyio.create_task_group() as outside:
            async with anyio.create_task_group() as group:
                for n in range(8):
                    group.start_soon(call, n)
                outside.start_soon(stop, group.cancel_scope.cancel)
            back(results)
    else:
        from anyio_toolbatch import ToolCall, open_batch
        calls = [ToolCall(str(n), "tool", {"n": n}) for n in range(8)]
        async with anyio.create_task_group() as outside:
            async with open_batch(calls, [tool]) as batch:
                outside.start_soon(stop, batch.interrupt)
            back([r for r in batch.results if r.status == "completed"])

anyio.run(main)
returned_at = time.monotonic()
with open(out, "w") as file:
    print(stopped_at, back_at, returned_at, kept, file=file)
"""


def measure(quick: bool, report: Report) -> None:
    rows = []
    rounds = 3 if quick else 9
    runs: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            runs[name].append(_run(way))
    for name, taken in runs.items():
        back, returned, gone, _ = zip(*taken, strict=True)
        kept = sorted({run[3] for run in taken})
        rows.append(
            [
                name,
                *(seconds(percentile(times, 0.5)) for times in (back, returned, gone)),
                " or ".join(f"{count} of 7" for count in kept),
            ]
        )
    report.table(
        f"asyncio: a stop while 1 of 8 blocking calls has {LEFT:.0f} s left (p50 of {rounds})",
        ("way", "awaiting code back", "run() returned", "process gone", "results kept"),
        rows,
    )


def _run(way: str) -> tuple[float, float, float, int]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        subprocess.run(
            [sys.executable, "-c", PROGRAM, way, str(LEFT), str(out)],
            check=True,
            timeout=PATIENCE,
        )
        gone_at = time.monotonic()
        stopped, back, returned, kept = out.read_text().split()
    start = float(stopped)
    return float(back) - start, float(returned) - start, gone_at - start, int(kept)
