"""Command line: ``python -m benchmarks [--quick] [--only NAME] [--backend NAME]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

# Absolute: the worker processes of anyio import this file outside its package.
from benchmarks import (
    async_calls,
    blocking_calls,
    busy_loops,
    carriers,
    claims,
    commands,
    deaf_tool,
    frameworks,
    interrupts,
    mcp_stop,
    observers,
    peers,
    process_exit,
    results,
    scaling,
)
from benchmarks.backends import available
from benchmarks.report import Report, seconds

Benchmark = Callable[[str, bool, Report], None]
"""Takes the event loop's name, whether to be quick, and where to report."""

BENCHMARKS: dict[str, Benchmark] = {
    "interrupt": interrupts.measure,
    "blocking": blocking_calls.measure,
    "async": async_calls.measure,
    "scaling": scaling.measure,
    "claims": claims.measure,
    "exit": process_exit.measure,
    "deaf": deaf_tool.measure,
    "commands": commands.measure,
    "carriers": carriers.measure,
    "busy": busy_loops.measure,
    "mcp": mcp_stop.measure,
    "observers": observers.measure,
}
WITHOUT_LOOP: dict[str, Callable[[bool, Report], None]] = {
    "results": results.measure,
    "peers": peers.measure,
    "frameworks": frameworks.measure,
}


def main() -> int:
    names = [*BENCHMARKS, *WITHOUT_LOOP]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: rough figures")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME")
    parser.add_argument("--backend", action="append", choices=available(), metavar="NAME")
    options = parser.parse_args()
    wanted = options.only or names
    started = time.monotonic()
    report = Report()
    for backend in options.backend or available():
        for name, measure in BENCHMARKS.items():
            if name in wanted:
                measure(backend, options.quick, report)
    for name, measure_alone in WITHOUT_LOOP.items():
        if name in wanted:
            measure_alone(options.quick, report)
    report.summary()
    report.machine()
    print(f"Took {seconds(time.monotonic() - started)}.")
    return 0 if report.all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
