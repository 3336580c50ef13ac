"""
Runs a great many random turns and watches what grows.

    python -X dev -W error tests/soak/soak.py --loops asyncio,trio --turns 100000

Several loops run at once, each in a thread of its own. The turns of a loop are run by
two runners that all loops share, a few at a time. Between rounds everything is let come to
its end, and counted. Exit status 1, and the reason on stderr, if a promise was broken or
something has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from anyio_toolbatch import ToolRunner
from anyio_toolbatch._runtime import processes, threads

sys.path.append(str(Path(__file__).parent))

from census import Census, LoopCensus
from storm import TOOLS, Storm, approve

LIVENESS = 120.0  # seconds where milliseconds are meant
AT_ONCE = 4
"""Turns that one loop runs at a time, on each runner."""


def current_asyncio_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # trio
        return None


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "trio": ("trio", {}),
}
if sys.platform != "win32":
    LOOPS["uvloop"] = ("asyncio", {"use_uvloop": True})
if sys.version_info >= (3, 12):
    LOOPS["eager"] = ("asyncio", {"loop_factory": eager_loop})


class Soak:
    """The rounds of all loops; they wait for each other at the end of each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._names: list[str] = options.loops.split(",")
        # The first is to fill pools and caches, and is not compared with.
        self._rounds = options.rounds + 1
        self._per_round = max(options.turns // (len(self._names) * options.rounds), 1)
        self._patience: float = options.patience
        self._until = time.monotonic() + options.seconds
        self._is_over = False
        self._failures: list[str] = []
        self._statuses: Counter[str] = Counter()
        self._turns = 0
        self._late = 0
        limits = {"max_threads": 8, "max_detached": 64, "cleanup_grace": 0.5}
        self._runners = [
            ToolRunner(TOOLS, on_late=self._on_late, **limits),
            ToolRunner(TOOLS, approve=approve, max_concurrency=3, **limits),
        ]
        watch_for_noise(self._failures)
        self._meeting = threading.Barrier(len(self._names), action=self._count)
        # The first and the last; of those in between the figures, which take no room.
        self._first: Census | None = None
        self._last: Census | None = None
        self._figures: list[tuple[float, int, int, int]] = []

    def run(self) -> int:
        started = time.monotonic()
        loops = [threading.Thread(target=self._run_loop, args=(n,)) for n in self._names]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
        self._report(time.monotonic() - started)
        self._runners.clear()
        return 1 if self._failures else 0

    def _run_loop(self, name: str) -> None:
        backend, options = LOOPS[name]
        try:
            anyio.run(self._run_rounds, name, backend=backend, backend_options=options)
        except threading.BrokenBarrierError:
            pass  # another loop has failed, and says so
        except BaseException as exc:
            self._failures.append(f"{name}: {type(exc).__name__}: {exc!s:.2000}")
            self._meeting.abort()

    async def _run_rounds(self, name: str) -> None:
        storm = Storm(self._options.seed + list(LOOPS).index(name), self._options.leak)
        with anyio.CancelScope() as scope:
            census = LoopCensus(scope)
            for _ in range(self._rounds):
                await self._round(storm)
                # Everything that was let go comes to its end in milliseconds.
                for runner in self._runners:
                    assert await runner.wait_detached(LIVENESS), runner.statistics()
                await self._settle(census)
                self._meeting.wait()  # blocks the loop: nothing is left to do
                if self._is_over:  # decided for all loops at once
                    break
        self._turns += storm.turns  # under the GIL, and one loop after the other
        self._statuses += storm.statuses

    async def _round(self, storm: Storm) -> None:
        turns = iter(range(self._per_round))

        async def some(runner: ToolRunner) -> None:
            for _ in turns:
                if time.monotonic() > self._until:
                    break
                await storm.turn(runner)

        async with anyio.create_task_group() as group:
            for runner in self._runners:
                for _ in range(AT_ONCE):
                    group.start_soon(some, runner)

    async def _settle(self, census: LoopCensus) -> None:
        """Wait until nothing is left on the loop."""
        until = time.monotonic() + self._patience
        while left := census.left():
            assert time.monotonic() < until, f"left on the loop: {left}"
            await anyio.sleep(0.01)
        if loop := current_asyncio_loop():
            # Up to a hundred cancelled timers stay, with the contexts of the tools that
            # had them; they are dropped when they are more.
            for _ in range(200):
                loop.call_later(600, print).cancel()
            await anyio.sleep(0)

    def _count(self) -> None:
        """Count, when all loops have come to the end of a round; in one of their threads."""
        until = time.monotonic() + self._patience
        # Idle threads and workers leave by themselves.
        wait_until(lambda: threading.active_count() <= 1 + len(self._names), until)
        for runner in self._runners:
            numbers = runner.statistics()
            assert not numbers.open_batches and not numbers.detached, numbers
        self._last = None
        self._last = Census.take()
        self._first = self._first or self._last
        self._figures.append(self._last.figures)
        self._is_over = time.monotonic() > self._until

    def _on_late(self, late: object) -> None:
        self._late += 1

    def _report(self, took: float) -> None:
        if self._first is not None and self._last is not None:
            self._failures += self._last.growth_since(self._first, self._turns)
            memory, objects, descriptors, threads = zip(*self._figures, strict=True)
            if memory[-1] - memory[0] > self._options.megabytes:
                self._failures.append(f"memory: {memory[0]:.1f} -> {memory[-1]:.1f} MiB")
            ends = (f"{kind} {count}" for kind, count in self._statuses.most_common())
            print(
                f"{self._turns} turns in {took:.0f} s on {', '.join(self._names)}, "
                f"{sum(self._statuses.values())} results, {self._late} late ones"
            )
            print("  memory, MiB:", *(f"{size:.1f}" for size in memory))
            print("  objects:", *objects)
            print("  descriptors:", *descriptors)
            print("  threads:", *threads)
            print("  results:", ", ".join(ends))
        for failure in self._failures:
            print(failure, file=sys.stderr)


class Noise(logging.Handler):
    """Takes what is logged for a failure: nothing of it is meant for a program's log."""

    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio" and record.getMessage().startswith("Executing"):
            return  # how long a step took, with -X dev: on a busy machine anything
        self._failures.append(f"logged: {self.format(record)}")


def watch_for_noise(failures: list[str]) -> None:
    """Enter what a program would say on stderr: logs, errors in threads and finalizers."""
    logging.getLogger().addHandler(Noise(failures))
    sys.unraisablehook = lambda it: failures.append(
        f"unraisable: {it.exc_value!r} in {it.object!r}"
    )
    threading.excepthook = lambda it: failures.append(
        f"in {it.thread.name if it.thread else 'a thread'}: {it.exc_value!r}"
    )


def wait_until(condition: Callable[[], bool], until: float) -> None:
    while not condition():
        if time.monotonic() > until:
            names = [thread.name for thread in threading.enumerate()]
            msg = f"threads are left: {names}"
            raise AssertionError(msg)
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", default=",".join(LOOPS), help="which, joined by commas")
    parser.add_argument("--turns", type=int, default=100_000, help="of all loops together")
    parser.add_argument(
        "--rounds", type=int, default=10, help="after each of which is counted"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="to stop at, done or not"
    )
    parser.add_argument(
        "--patience", type=float, default=LIVENESS, help="seconds for what is to end"
    )
    parser.add_argument("--leak", default="", help="what each turn leaves, to see it found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--megabytes", type=float, default=16.0, help="that memory may grow by"
    )
    options = parser.parse_args()
    # Kept for less long, so that it is soon seen that they leave.
    threads.IDLE_SECONDS = processes.IDLE_SECONDS = 0.2  # type: ignore[misc]
    gc.collect()
    return Soak(options).run()


if __name__ == "__main__":
    sys.exit(main())
