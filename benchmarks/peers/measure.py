"""All measures, one after the other, printed and written down."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..report import Report
from . import cost, leaving, page, stall, stop
from .crew import Crew
from .tables import machine_words, plain, tables

__all__ = ("MEASURES", "measure")

MEASURES = {
    "stop": stop.measure,
    "leaving": leaving.measure,
    "stall": stall.measure,
    "cost": cost.measure,
}


def measure(
    wanted: Collection[str],
    quick: bool,
    report: Report,
    pythons: Mapping[str, str],
    folder: Path | None,
) -> None:
    """
    Measure all peers that can be had.

    Args:
        wanted: Names out of `MEASURES`.
        quick: Few rounds.
        report: Where to print.
        pythons: Peer → the Python to run it with, where it is not this one.
        folder: Where to write what the documentation shows, if anywhere. What is not
            measured now stays there as it was.
    """
    crew = Crew(pythons)
    loads: dict[str, tuple[float, float]] = {}
    found: dict[str, Any] = {}
    for name in MEASURES:
        if name in wanted:
            before = os.getloadavg()[0]
            found[name] = MEASURES[name](crew, quick)
            loads[name] = (before, os.getloadavg()[0])
    machine = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": crew.versions,
        "loads": loads,
    }
    figures = {"machine": machine, "missing": crew.missing, **found}
    for table in tables(figures).values():
        report.table(table.title, table.head, [list(map(plain, row)) for row in table.rows])
        if table.note:
            print(f"  {plain(table.note)}")
    print(f"\n{machine_words(machine)}")
    if folder is None:
        return
    before_now = page.read(folder)
    machine["loads"] = {**before_now.get("machine", {}).get("loads", {}), **loads}
    figures = {**before_now, **figures}
    page.write(figures, folder)
    if "cost" in found and importlib.util.find_spec("matplotlib") is not None:
        from . import plot

        plot.draw(figures, folder / "cost.svg")
