"""The figures as tables, in words and units for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..report import seconds, times
from . import cost, leaving, stall, stop
from .roster import OURS, ROSTER

__all__ = ("Table", "machine_words", "tables")

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return it as Markdown, under its title."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return f"{self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Return measure → table; `cost` has one for each kind of tool."""
    missing: Mapping[str, str] = figures["missing"]
    return {
        "stop": Table(
            f"A stop while one of {stop.COUNT} blocking calls has {stop.LEFT:.0f} s left and "
            f"{stop.COUNT - 1} are done:",
            (
                "",
                "turn is back after",
                f"kept, of {stop.COUNT - 1}",
                "every call answered, in order",
                "late result turns up",
                "late write lands",
            ),
            _rows("stop", figures["stop"], missing, _stop_cells, 5),
        ),
        "leaving": Table(
            f"The program ends after such a stop, with {leaving.LEFT:.0f} s left:",
            ("", "turn is back after", "event loop closed", "process gone"),
            _rows("leaving", figures["leaving"], missing, _leaving_cells, 3),
        ),
        "stall": Table(
            f"{stall.COUNT:,} running async calls are stopped:",
            ("", "longest gap between two loop passes", "turn is back after"),
            [
                ["nothing is stopped", seconds(figures["stall"][stall.ALONE]["longest"]), "–"],
                *_rows("stall", figures["stall"], missing, _stall_cells, 2),
            ],
        ),
        **{
            f"cost-{kind}": Table(
                f"Time per call, {kind} no-op calls, and its ratio to ours (more than 1: slower):",
                ("", *(_batch(count) for count in cost.ROUNDS)),
                _cost_rows(kind, figures["cost"][kind], missing),
            )
            for kind in cost.KINDS
        },
    }


def machine_words(machine: Mapping[str, Any]) -> str:
    """Return what all was measured on, as a sentence."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{machine['python']}, {machine['system']}, {machine['cores']} cores, load average "
        f"{machine['load']:.1f} at the start and {machine['load_after']:.1f} at the end; "
        f"{packages}."
    )


def _rows(
    measure: str, found: Mapping[str, Any], missing: Mapping[str, str], cells: Any, width: int
) -> list[list[str]]:
    rows = []
    for name, entry in ROSTER.items():
        why = missing.get(name) or entry.left_out.get(measure)
        if why is None:
            rows.append([entry.title, *cells(found[name])])
        else:
            rows.append([entry.title, f"– ({why})", *["–"] * (width - 1)])
    return rows


def _stop_cells(found: Mapping[str, Any]) -> list[str]:
    late = ["it waited"] * 2
    if not found["waited"]:
        late = [_yes(found[what]) for what in ("returns", "writes")]
    return [seconds(found["back"]), str(found["kept"]), _yes(found["answered"]), *late]


def _leaving_cells(found: Mapping[str, Any]) -> list[str]:
    return [seconds(found[what]) for what in ("back", "returned", "gone")]


def _stall_cells(found: Mapping[str, Any]) -> list[str]:
    return [seconds(found[what]) for what in ("longest", "back")]


def _cost_rows(
    kind: str, found: Mapping[str, Any], missing: Mapping[str, str]
) -> list[list[str]]:
    rows = []
    for name, entry in ROSTER.items():
        why = missing.get(name) or entry.left_out.get("cost")
        if kind not in entry.kinds:
            continue
        if why is not None:
            rows.append([entry.title, f"– ({why})", *["–"] * (len(cost.ROUNDS) - 1)])
            continue
        cells = []
        for count in cost.ROUNDS:
            figure = found[str(count)].get(name)
            if figure is None:
                cells.append(NOT_RUN)
            elif name in OURS:
                cells.append(seconds(figure["seconds"]))
            else:
                cells.append(f"{seconds(figure['seconds'])}, {times(figure['ratio'])}")
        rows.append([entry.title, *cells])
    return rows


def _batch(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
