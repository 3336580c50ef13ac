"""
Shows what differs from carrier to carrier, out of the table that the tests assert.

Two directives without options: `carrier-table` gives a table of words, a row for each
aspect and a column for each carrier; `carrier-words` says what each word means. Both are
read from tests/carriers/expectations.toml, so that page and program agree. A table
that is not whole fails the build.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from state_diagram import split

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SOURCE = Path(__file__).resolve().parents[2] / "tests" / "carriers" / "expectations.toml"


def load() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """
    Return the carriers' titles by name, and the aspects.

    Raises:
        ExtensionError: An aspect has no word for a carrier, or a word no meaning.
    """
    table = tomllib.loads(SOURCE.read_text("utf-8"))
    for aspect in table["aspects"]:
        said = aspect["of"]
        if said.keys() != table["carriers"].keys() or not set(said.values()) <= set(
            aspect["means"]
        ):
            msg = f"expectations.toml is not whole: {aspect['name']!r}"
            raise ExtensionError(msg)
    return table["carriers"], table["aspects"]


class CarrierDirective(SphinxDirective):
    """What both have in common."""

    def load(self) -> tuple[dict[str, str], list[dict[str, Any]]]:
        self.env.note_dependency(str(SOURCE))
        self.env.note_dependency(__file__)
        return load()


class CarrierTable(CarrierDirective):
    """A row for each aspect, a column for each carrier."""

    def run(self) -> list[nodes.Node]:
        carriers, aspects = self.load()
        head = nodes.row("", cell(""), *(cell(title) for title in carriers.values()))
        body = nodes.tbody()
        for aspect in aspects:
            words = (cell(aspect["of"][name]) for name in carriers)
            body += nodes.row("", cell(aspect["title"]), *words)
        group = nodes.tgroup("", cols=len(carriers) + 1)
        group += [nodes.colspec(colwidth=2 if n == 0 else 1) for n in range(len(carriers) + 1)]
        group += [nodes.thead("", head), body]
        return [nodes.table("", group)]


class CarrierWords(CarrierDirective):
    """What each word of the table means, aspect by aspect."""

    def run(self) -> list[nodes.Node]:
        _, aspects = self.load()
        found = nodes.definition_list()
        for aspect in aspects:
            meanings = nodes.bullet_list()
            for word, meaning in aspect["means"].items():
                meanings += nodes.list_item("", marked_up(f"*{word}*: {meaning}"))
            term = nodes.term("", "", *split(aspect["title"]))
            found += nodes.definition_list_item("", term, nodes.definition("", meanings))
        return [found]


def cell(text: str) -> nodes.entry:
    return nodes.entry("", marked_up(text))


def marked_up(text: str) -> nodes.paragraph:
    """Return a paragraph; the text's markup is that of the docstrings."""
    return nodes.paragraph("", "", *split(text))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("carrier-table", CarrierTable)
    app.add_directive("carrier-words", CarrierWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
