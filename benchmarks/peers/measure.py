"""All measures, one after the other, printed and written down."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Report
from . import cost, leaving, page, stall, stop
from .crew import Crew
from .tables import machine_words, plain, tables

__all__ = ("measure",)

MEASURES = {
    "stop": stop.measure,
    "leaving": leaving.measure,
    "stall": stall.measure,
    "cost": cost.measure,
}


def measure(
    quick: bool, report: Report, pythons: Mapping[str, str], folder: Path | None
) -> None:
    """
    Measure all peers that can be had.

    Args:
        quick: Few rounds.
        report: Where to print.
        pythons: Peer → the Python to run it with, where it is not this one.
        folder: Where to write what the documentation shows, if anywhere.
    """
    crew = Crew(pythons)
    machine = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": crew.versions,
        "load": os.getloadavg()[0],
    }
    figures: dict[str, Any] = {"machine": machine, "missing": crew.missing}
    for name, measure_one in MEASURES.items():
        figures[name] = measure_one(crew, quick)
    machine["load_after"] = os.getloadavg()[0]
    for table in tables(figures).values():
        report.table(table.title, table.head, [list(map(plain, row)) for row in table.rows])
        if table.note:
            print(f"  {plain(table.note)}")
    print(f"\n{machine_words(machine)}")
    if folder is not None:
        page.write(figures, folder)
        if importlib.util.find_spec("matplotlib") is not None:
            from . import plot

            plot.draw(figures, folder / "cost.svg")
