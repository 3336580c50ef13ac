"""The figures as tables, in words and units for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..report import seconds, times
from . import cost, leaving, stall, stop
from .peer import Kind
from .roster import OURS, ROSTER

__all__ = ("Table", "machine_words", "plain", "summary", "tables")

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return it as Markdown, with its title above and its note below."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return "\n".join(
            [f"{self.title}\n", table, *([f"{self.note}\n"] if self.note else [])]
        )


def tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Return measure → table, of what was measured; `cost` has one for each kind of tool."""
    found = {name: make(figures) for name, make in _TABLES.items() if name in figures}
    if "cost" in figures:
        found |= {f"cost-{kind}": _cost_table(kind, figures) for kind in cost.KINDS}
    return found


def _stop_table(figures: Mapping[str, Any]) -> Table:
    return Table(
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
        _rows("stop", figures, lambda name: _stop_cells(figures["stop"][name])),
        _left_out("stop"),
    )


def _leaving_table(figures: Mapping[str, Any]) -> Table:
    return Table(
        f"The program ends after such a stop, with {leaving.LEFT:.0f} s left:",
        ("", "turn is back after", "event loop closed", "process gone"),
        _rows("leaving", figures, lambda name: _leaving_cells(figures["leaving"][name])),
        _left_out("leaving"),
    )


def _stall_table(figures: Mapping[str, Any]) -> Table:
    alone = _unbroken(seconds(figures["stall"][stall.ALONE]["longest"]))
    return Table(
        f"{stall.COUNT:,} running async calls are stopped:",
        ("", "longest pass of the loop, CPU time", "turn is back after"),
        [
            ["nothing is stopped", alone, "–"],
            *_rows("stall", figures, lambda name: _stall_cells(figures["stall"][name])),
        ],
        _left_out("stall"),
    )


def _cost_table(kind: Kind, figures: Mapping[str, Any]) -> Table:
    return Table(
        f"CPU time per call, {kind} no-op calls, and its ratio to ours (more than 1: dearer):",
        ("", *(_batch(count) for count in cost.ROUNDS)),
        _rows("cost", figures, partial(_cost_cells, figures["cost"][kind]), kind),
        _left_out("cost", kind),
    )


_TABLES: dict[str, Callable[[Mapping[str, Any]], Table]] = {
    "stop": _stop_table,
    "leaving": _leaving_table,
    "stall": _stall_table,
}


def summary(figures: Mapping[str, Any]) -> Table:
    """Return the ends of a turn and of the program, with what is kept, side by side."""

    def cells(name: str) -> list[str]:
        found = figures["stop"][name]
        kept = f"{found['kept']} of {stop.COUNT - 1}"
        if found["waited"]:
            kept += ", after the wait"
        return [*_leaving_cells(figures["leaving"][name]), kept, _yes(found["answered"])]

    machine = figures["machine"]
    return Table(
        f"A stop while one of {stop.COUNT} blocking calls has {leaving.LEFT:.0f} s left and "
        f"{stop.COUNT - 1} are done\n({machine['python']}, {machine['cores']} busy cores, medians):",
        (
            "",
            "turn is back after",
            "event loop closed",
            "process gone",
            "kept",
            "all answered",
        ),
        _rows("leaving", figures, cells),
    )


def machine_words(machine: Mapping[str, Any]) -> str:
    """Return what all was measured on, as a sentence."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    loads = [load for pair in machine["loads"].values() for load in pair]
    return (
        f"{machine['python']}, {machine['system']}, {machine['cores']} cores with a load "
        f"average of {min(loads):.0f} to {max(loads):.0f}; {packages}."
    )


def _rows(
    measure: str,
    figures: Mapping[str, Any],
    cells: Callable[[str], list[str]],
    kind: Kind | None = None,
) -> list[list[str]]:
    rows = []
    for name, entry in ROSTER.items():
        if measure in entry.left_out or kind not in (None, *entry.kinds):
            continue
        why = figures["missing"].get(name)
        rows.append([entry.title, *(cells(name) if why is None else [f"– ({why})"])])
    width = max(map(len, rows))
    return [[*row, *["–"] * (width - len(row))] for row in rows]


def _left_out(measure: str, kind: Kind | None = None) -> str:
    found = [
        f"{entry.title} ({entry.left_out[measure]})"
        for entry in ROSTER.values()
        if measure in entry.left_out and kind in (None, *entry.kinds)
    ]
    return f"Left out: {'; '.join(found)}." if found else ""


def _stop_cells(found: Mapping[str, Any]) -> list[str]:
    late = ["it waited"] * 2
    if not found["waited"]:
        late = [_yes(found[what]) for what in ("returns", "writes")]
    return [
        _unbroken(seconds(found["back"])),
        str(found["kept"]),
        _yes(found["answered"]),
        *late,
    ]


def _leaving_cells(found: Mapping[str, Any]) -> list[str]:
    return [_unbroken(seconds(found[what])) for what in ("back", "returned", "gone")]


def _stall_cells(found: Mapping[str, Any]) -> list[str]:
    return [_unbroken(seconds(found[what])) for what in ("longest", "back")]


def _cost_cells(found: Mapping[str, Any], name: str) -> list[str]:
    cells = []
    for count in cost.ROUNDS:
        figure = found[str(count)].get(name)
        if figure is None:
            cells.append(NOT_RUN)
        elif name in OURS:
            cells.append(_unbroken(seconds(figure["cpu"])))
        else:
            pair = seconds(figure["cpu"]), times(figure["ratio"])
            cells.append(", ".join(map(_unbroken, pair)))
    return cells


def _unbroken(figure: str) -> str:
    """Keep a number and its unit on one line."""
    return figure.replace(" ", "\N{NO-BREAK SPACE}")


def _batch(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def plain(markdown: str) -> str:
    """Return it without the marks of Markdown."""
    return markdown.replace("*", "").replace("`", "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
