"""The cost of a call as a picture; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .roster import OURS, ROSTER
from .tables import plain

__all__ = ("draw",)

COLOURS = {
    "toolbatch": "#d62728",
    "toolbatch-trio": "#d62728",
    "gather": "#1f77b4",
    "executor": "#17becf",
    "anyio": "#2ca02c",
    "trio": "#2ca02c",
    "langgraph": "#9467bd",
    "pydantic-ai": "#e377c2",
    "openai-agents": "#7f7f7f",
    "hermes-agent": "#8c564b",
}


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw the CPU time per call over the number of calls, for both kinds of tools."""
    # Text stays text, and equal figures give equal files.
    style = {"svg.fonttype": "none", "svg.hashsalt": "comparison", "font.size": 11}
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.5, 10), layout="constrained")
        FigureCanvasSVG(figure)
        panels = zip(figure.subplots(2), figures["cost"].items(), strict=True)
        lines: dict[str, Any] = {}
        for axes, (kind, of_kind) in panels:
            _panel(axes, kind, of_kind)
            handles, labels = axes.get_legend_handles_labels()
            lines |= dict(zip(labels, handles, strict=True))
        figure.legend(
            *(list(lines.values()), list(lines)),
            loc="outside lower center",
            ncols=2,
            fontsize=9,
        )
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    # It ends some lines with blanks.
    text = path.read_text("utf-8").splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in text), "utf-8")


def _panel(axes: Any, kind: str, of_kind: Mapping[str, Any]) -> None:
    for name, colour in COLOURS.items():
        points = [
            (int(count), found[name]["cpu"] * 1e6)
            for count, found in of_kind.items()
            if name in found
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                label=plain(ROSTER[name].title),
                color=colour,
                linestyle="--" if ROSTER[name].loop == "trio" else "-",
                linewidth=2.5 if name in OURS else 1.2,
                marker="o",
                markersize=4,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{kind} no-op calls")
    axes.set_xlabel("calls in a batch")
    axes.set_ylabel("µs of CPU time per call")
    axes.grid(visible=True, which="major", alpha=0.3)
