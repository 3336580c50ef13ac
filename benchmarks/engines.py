"""
Calls on Ray and Dask, beside a thread: what they cost, and what an interrupt does.

``python -m benchmarks.engines [--rounds N] [ray|dask ...]``; each engine that is named (or
installed) is started locally, with two places, one after the other. asyncio.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio

from anyio_toolbatch import Tool, ToolCall, ToolRunner

from .pairing import percentile
from .report import Report, seconds

MODULES = {"ray": "ray", "dask": "distributed"}
PLACES = 2
EXIT_ROUNDS = 3
PATIENCE = 30.0  # seconds


def pid() -> int:
    return os.getpid()


def sleeps(mark: str, duration: float) -> None:
    """Says that it has begun, and sleeps."""
    Path(mark + ".new").write_text(str(os.getpid()))
    Path(mark + ".new").rename(mark)
    time.sleep(duration)


def start_ray() -> tuple[Any, Callable[[], None]]:
    import ray  # type: ignore[import-not-found,unused-ignore]

    from anyio_toolbatch.integrations.ray import ray_carrier

    ray.init(
        "local",  # not a cluster that the machine happens to have
        num_cpus=PLACES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    return ray_carrier(), ray.shutdown


def start_dask() -> tuple[Any, Callable[[], None]]:
    from distributed import (  # type: ignore[import-not-found,unused-ignore]
        Client,
        LocalCluster,
    )

    from anyio_toolbatch.integrations.dask import dask_carrier

    cluster = LocalCluster(
        n_workers=PLACES, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )
    client = Client(cluster, set_as_default=False)
    return dask_carrier(client), cluster.close


STARTERS = {"ray": start_ray, "dask": start_dask}


async def costs(carrier: Any, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per call: one after the other, and a hundred at once; in turns."""
    tools = {"thread": Tool(pid), "engine": Tool(pid, runs_in=carrier)}
    taken: dict[str, dict[str, list[float]]] = {"one call": {}, "of 100 at once": {}}
    async with ToolRunner() as runner:
        for at in range(rounds + 1):  # the first one warms up
            for name, tool in tools.items():
                for what, count in (("one call", 1), ("of 100 at once", 100)):
                    calls = [ToolCall(str(n), "pid", tool=tool) for n in range(count)]
                    begun = time.perf_counter()
                    results = await runner.run(calls)
                    if at:
                        each = (time.perf_counter() - begun) / count
                        taken[what].setdefault(name, []).append(each)
                    assert all(r.status == "completed" for r in results), results
    return taken


async def interrupts(
    carrier: Any, rounds: int, durations: dict[str, float]
) -> dict[str, dict[str, list[float]]]:
    """Seconds from a cut to the turn, and to the end of what was cut; in turns."""
    tools = {"thread": Tool(sleeps), "engine": Tool(sleeps, runs_in=carrier)}
    taken: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, begun: float) -> None:
        taken.setdefault(what, {}).setdefault(name, []).append(time.perf_counter() - begun)

    with tempfile.TemporaryDirectory() as folder:

        def call(name: str, mark: str) -> ToolCall:
            arguments = {"mark": mark, "duration": durations[name]}
            return ToolCall(mark, "sleeps", arguments, tool=tools[name])

        for at in range(rounds):
            for name in tools:
                marks = [f"{folder}/{name}-{at}-{n}" for n in range(PLACES)]
                async with ToolRunner() as runner, ToolRunner() as other:
                    async with runner.open_batch([call(name, m) for m in marks]) as batch:
                        while not all(Path(mark).exists() for mark in marks):
                            await anyio.sleep(0.001)
                        if name == "engine":
                            waiting = call(name, f"{marks[0]}-queued")
                            async with other.open_batch([waiting]) as waiting_batch:
                                with anyio.move_on_after(0.05):  # sent, and at the engine
                                    await waiting_batch.wait()
                                begun = time.perf_counter()
                                waiting_batch.interrupt()
                            await other.wait_detached(PATIENCE)
                            note("what was queued is withdrawn", name, begun)
                            assert not Path(waiting.id).exists()
                        begun = time.perf_counter()
                        batch.interrupt()
                    note("the turn is back", name, begun)
                    await runner.wait_detached(PATIENCE)
                    note("what ran is over", name, begun)
                pids = [int(Path(mark).read_text()) for mark in marks]
                if name == "engine" and not any(map(is_running, pids)):
                    note("and its processes are gone", name, begun)
    return taken


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def leave(engine: str, mark: str, ended_at: str, is_cut: bool) -> None:
    """A program that ends with a call detached, or without any."""
    carrier, _ = STARTERS[engine]()

    async def main() -> None:
        async with ToolRunner([Tool(sleeps, runs_in=carrier)]) as runner:
            arguments = {"mark": mark, "duration": 60 if is_cut else 0}
            async with runner.open_batch([ToolCall("c", "sleeps", arguments)]) as batch:
                while not Path(mark).exists():
                    await anyio.sleep(0.001)
                if is_cut:
                    batch.interrupt()

    anyio.run(main)
    Path(ended_at).write_text(str(time.monotonic()))


def exits(engine: str) -> dict[str, list[float]]:
    """Seconds from the end of `anyio.run` until the process is gone."""
    taken: dict[str, list[float]] = {"no call": [], "a detached call": []}
    for _ in range(EXIT_ROUNDS):
        for what, times in taken.items():
            with tempfile.TemporaryDirectory() as folder:
                mark, ended_at = f"{folder}/mark", f"{folder}/ended"
                cut = "cut" if what != "no call" else "uncut"
                subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        __spec__.name,
                        "--leave",
                        mark,
                        ended_at,
                        cut,
                        engine,
                    ],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                times.append(time.monotonic() - float(Path(ended_at).read_text()))
    return taken


def measure(engine: str, rounds: int, report: Report) -> None:
    starts = []
    for _ in range(3):
        begun = time.perf_counter()
        carrier, stop = STARTERS[engine]()
        starts.append(time.perf_counter() - begun)
        if len(starts) < 3:
            stop()
    rows = [["the engine starts (the first time with its import)", "", seconds(starts[0])]]
    rows.append(["the engine starts (again)", "", seconds(percentile(starts[1:], 0.5))])
    found = anyio.run(costs, carrier, rounds)
    # Only Ray's are stopped; the others go on to their end.
    durations = {"thread": 0.5, "engine": 60.0 if engine == "ray" else 0.5}
    found |= anyio.run(interrupts, carrier, max(3, rounds // 5), durations)
    stop()
    for what, by_name in found.items():
        cells = [by_name.get(name, []) for name in ("thread", "engine")]
        rows.append([what, *(seconds(percentile(c, 0.5)) if c else "" for c in cells)])
    for what, times in exits(engine).items():
        rows.append([f"from anyio.run to process gone: {what}", "", seconds(max(times))])
    report.table(
        f"{engine} {version(MODULES[engine])}, {PLACES} places (medians)",
        ("", "a thread", engine),
        rows,
    )


def main() -> int:
    installed = [n for n, module in MODULES.items() if importlib.util.find_spec(module)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--leave", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(MODULES))
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if options.leave:
        mark, ended_at, cut = options.leave
        leave(options.engines[0], mark, ended_at, cut == "cut")
        return 0
    report = Report()
    for engine in options.engines or installed:
        measure(engine, options.rounds, report)
    report.machine()
    return 0


if __name__ == "__main__":
    sys.exit(main())
