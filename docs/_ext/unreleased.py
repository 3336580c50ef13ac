"""
Shows what will be in the next version, out of the changelog's fragments.

One directive without options, `unreleased`: a list for each kind of change, in the order of
pyproject.toml. A fragment of an unknown kind fails the build.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
FRAGMENTS = ROOT / SETTINGS["directory"]


def load() -> dict[str, list[Path]]:
    """
    Return the fragments of each kind of change, by their names.

    Raises:
        ExtensionError: A fragment is of no known kind.
    """
    found: dict[str, list[Path]] = {kind["directory"]: [] for kind in SETTINGS["type"]}
    for path in sorted(FRAGMENTS.glob("*.md"), key=natural):
        kind = path.name.split(".")[1]
        if kind not in found:
            msg = f"{path.name}: {kind!r} is none of {', '.join(found)}"
            raise ExtensionError(msg)
        found[kind].append(path)
    return found


def natural(path: Path) -> list[tuple[int, str]]:
    """Sort 10 behind 9."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


class Unreleased(SphinxDirective):
    """A list for each kind of change that there is."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        shown: list[nodes.Node] = []
        names = {kind["directory"]: kind["name"] for kind in SETTINGS["type"]}
        for kind, paths in load().items():
            if paths:
                items = nodes.bullet_list("", *map(self.item, paths))
                shown += [nodes.rubric("", names[kind]), items]
        return shown or [nodes.paragraph("", "Nothing yet.")]

    def item(self, path: Path) -> nodes.list_item:
        self.env.note_dependency(str(path))
        item = nodes.list_item()
        lines = path.read_text("utf-8").splitlines()
        self.state.nested_parse(StringList(lines, str(path)), 0, item)
        return item


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("unreleased", Unreleased)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
