"""
How much slower everything gets beside detached calls that compute without end.

Pure Python loops in threads that nobody can end take turns with the event loop at the
interpreter's lock: each may keep it for 5 ms (`sys.getswitchinterval`).
"""

from __future__ import annotations

import threading
import time

import anyio

from anyio_toolbatch import Tool, ToolCall, ToolRunner

from .backends import run_on
from .pairing import Rounds
from .report import Report, seconds, times

LOOPS = (0, 1, 4)
ASYNC, BLOCKING, TURN = "1,000 async calls", "100 blocking calls", "interrupt of 100 calls"


def no_op() -> None: ...


async def no_op_async() -> None: ...


async def forever() -> None:
    await anyio.sleep_forever()


def measure(backend: str, quick: bool, report: Report) -> None:
    rounds = run_on(backend, _compare, 5 if quick else 25)
    rows = [
        [
            what,
            *(f"{seconds(rounds.median((what, n)))}{_times(rounds, what, n)}" for n in LOOPS),
        ]
        for what in (ASYNC, BLOCKING, TURN)
    ]
    head = ("", *(f"beside {n} loops" for n in LOOPS))
    report.table(f"{backend}: beside detached busy loops", head, rows)


def _times(rounds: Rounds, what: str, n: int) -> str:
    return f" ({times(rounds.ratio((what, n), (what, 0)))})" if n else ""


async def _compare(count: int) -> Rounds:
    runner = ToolRunner([Tool(no_op), Tool(no_op_async), Tool(forever)], max_threads=8)
    rounds = Rounds(count, LOOPS)
    for number in rounds:
        stop = threading.Event()
        await _leave_behind(number, stop)
        rounds.add((ASYNC, number), await _run(runner, "no_op_async", 1000))
        rounds.add((BLOCKING, number), await _run(runner, "no_op", 100))
        rounds.add((TURN, number), await _interrupt(runner))
        stop.set()
    return rounds


async def _leave_behind(number: int, stop: threading.Event) -> None:
    begun = threading.Semaphore(0)

    def spin() -> None:
        begun.release()
        while not stop.is_set():
            pass

    async with ToolRunner([spin]).open_batch(
        [ToolCall(str(n), "spin") for n in range(number)]
    ) as batch:
        for _ in range(number):
            while not begun.acquire(blocking=False):
                await anyio.sleep(0.001)
        batch.interrupt()


async def _run(runner: ToolRunner, name: str, count: int) -> float:
    calls = [ToolCall(str(n), name) for n in range(count)]
    start = time.perf_counter()
    await runner.run(calls)
    return time.perf_counter() - start


async def _interrupt(runner: ToolRunner) -> float:
    calls = [ToolCall(str(n), "forever") for n in range(100)]
    async with runner.open_batch(calls) as batch:
        await anyio.sleep(0.01)
        start = time.perf_counter()
        batch.interrupt()
    return time.perf_counter() - start
