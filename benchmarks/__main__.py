"""
Command line: ``python -m benchmarks [--quick] [--only NAME] [--backend NAME]``.

With ``--docs FOLDER`` the comparison with its peers is written down for the documentation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
    process_exit,
    results,
    scaling,
)
from benchmarks.backends import available
from benchmarks.peers.measure import MEASURES as OF_PEERS
from benchmarks.peers.measure import measure as measure_peers
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
    "frameworks": frameworks.measure,
}


PEERS = "peers"
"""All of what follows."""
WITH_PEERS = {f"{PEERS}-{name}": name for name in OF_PEERS}


def main() -> int:
    names = [*BENCHMARKS, *WITHOUT_LOOP, PEERS, *WITH_PEERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: rough figures")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME")
    parser.add_argument("--backend", action="append", choices=available(), metavar="NAME")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        type=lambda given: tuple(given.split("=", 1)),
        help="the Python that has this peer's packages",
    )
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="not with --quick")
    options = parser.parse_args()
    if options.quick and options.docs:
        parser.error("--docs is for whole runs: rough figures are not written down")
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
    of_peers = [
        name for asked, name in WITH_PEERS.items() if asked in wanted or PEERS in wanted
    ]
    if of_peers:
        pythons = dict(options.python)
        measure_peers(of_peers, options.quick, report, pythons, options.docs)
    report.summary()
    report.machine()
    print(f"Took {seconds(time.monotonic() - started)}.")
    return 0 if report.all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
