"""
The same stop in each agent framework that is installed: alone, and with its integration.

Eight blocking calls, of which seven are done and one has `LEFT` seconds to go. The run is
either cancelled, or ended in the framework's own way (with this library: and interrupted).
Then the conversation goes on: what does the model get? Each turn is a process of its own,
and those to be compared take turns.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .pairing import Rounds, percentile
from .report import Report, seconds

LEFT = 2.0  # seconds; what everything that waits for the last tool must take
PATIENCE = 60.0

FRAMEWORKS = {
    "pydantic_ai": ("pydantic_ai", "pydantic-ai-slim"),
    "langchain": ("langchain", "langchain"),
    "openai_agents": ("agents", "openai-agents"),
    "haystack": ("haystack", "haystack-ai"),
    "google_adk": ("google.adk", "google-adk"),
}
"""Program → the module and the distribution that it needs."""

WAYS = {
    "alone, cancelled": ("alone", "cancel"),
    "anyio_toolbatch, cancelled": ("with", "cancel"),
    "alone, its own end": ("alone", "end"),
    "anyio_toolbatch, interrupted": ("with", "end"),
}


def measure(quick: bool, report: Report) -> None:
    for program, (module, distribution) in FRAMEWORKS.items():
        if _is_installed(module):
            _measure(program, f"{distribution} {version(distribution)}", quick, report)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def _measure(program: str, title: str, quick: bool, report: Report) -> None:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    rounds = Rounds(1 if quick else 5, WAYS)
    for name in rounds:
        found = _run(program, *WAYS[name])
        rounds.add(name, found["back"])
        runs[name].append(found)
    usual = {
        name: {
            key: percentile([run[key] for run in found[1:]], 0.5)
            for key in ("back", "returned", "gone")
        }
        for name, found in runs.items()
    }
    rows = []
    for name, found in runs.items():
        counted = found[1:]
        rows.append(
            [
                name,
                *map(seconds, usual[name].values()),
                " or ".join(sorted({f"{run['kept']} of 7" for run in counted})),
                " or ".join(sorted({run["valid"] for run in counted})),
            ]
        )
    for alone, name in zip(list(WAYS)[::2], list(WAYS)[1::2], strict=True):
        report.at_most(program, f"{name}: back", LEFT / 2, usual[name]["back"], seconds)
        # Leaving takes its time on a busy machine, for both alike.
        bound = usual[alone]["gone"] - LEFT / 2
        report.at_most(program, f"{name}: gone", bound, usual[name]["gone"], seconds)
    report.table(
        f"{title}: a stop while 1 of 8 calls, all others done, blocks for {LEFT:.0f} s "
        f"(p50 of {len(counted)})",
        ("way", "awaiting code back", "run() returned", "process gone", "kept", "next valid"),
        rows,
    )


def _run(program: str, who: str, how: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        subprocess.run(
            [
                sys.executable,
                "-m",
                f"benchmarks.framework_stops.{program}",
                *(who, how, str(LEFT), str(out)),
            ],
            check=True,
            timeout=PATIENCE,
        )
        gone_at = time.monotonic()
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return {**found, "gone": gone_at - found["start"]}
