"""
What the page on the comparison includes: ``python -m benchmarks.peers.page FOLDER``.

The command writes the tables of the folder's own figures anew, without measuring.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .roster import ROSTER
from .tables import machine_words, summary, tables

__all__ = ("FIGURES", "fragments", "read", "write")

FIGURES = "figures.json"
README = "readme.md"
"""What the README shows, between its marks; it can't include a file."""


def fragments(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each file → what is in it."""
    found = {f"{name}.md": table.markdown() for name, table in tables(figures).items()}
    if {"stop", "leaving"} <= figures.keys():
        found[README] = summary(figures).markdown()
    found["machine.md"] = f"{machine_words(figures['machine'])}\n"
    found["how.md"] = "".join(
        f"{entry.title}\n: {entry.how}\n\n" for entry in ROSTER.values()
    ).rstrip("\n")
    found["how.md"] += "\n"
    return found


def read(folder: Path) -> dict[str, Any]:
    """Return the figures that were written there, or nothing."""
    try:
        text = Path(folder, FIGURES).read_text("utf-8")
    except FileNotFoundError:
        return {}
    figures: dict[str, Any] = json.loads(text)
    return figures


def write(figures: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {FIGURES: json.dumps(figures, indent=1) + "\n", **fragments(figures)}
    for name, text in files.items():
        Path(folder, name).write_text(text, "utf-8")


def main() -> None:
    (folder,) = map(Path, sys.argv[1:])
    write(read(folder), folder)


if __name__ == "__main__":
    main()
