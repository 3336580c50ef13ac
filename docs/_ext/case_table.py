"""
Shows which test plays which case, out of the tests themselves.

One directive without options, `case-table`: a section for each kind of fault, and a row for
each case. It reads tests/cases, so that page and suite agree. A case that has no test
fails the build.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from state_diagram import split

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "cases"))

import bank


class CaseTable(SphinxDirective):
    """A table for each kind: the case, what goes wrong, and the tests."""

    def run(self) -> list[nodes.Node]:
        for source in (bank.SOURCE, bank.__file__, __file__, *bank.files()):
            self.env.note_dependency(str(source))
        try:
            kinds, cases = bank.load()
        except ValueError as exc:
            msg = f"tests/cases is not whole: {exc}"
            raise ExtensionError(msg) from exc
        found: list[nodes.Node] = []
        for kind, of_kind in groupby(cases.values(), key=lambda case: case.id[0]):
            found += [
                nodes.rubric("", f"{kind}: {kinds[kind]}"),
                table([self.row(case) for case in of_kind]),
            ]
        return found

    def row(self, case: bank.Case) -> nodes.row:
        told = [nodes.paragraph("", case.title)]
        if case.beyond:
            told.append(nodes.paragraph("", "", *split(case.beyond)))
        tests = nodes.bullet_list()
        for _, name in case.tests:
            tests += nodes.list_item("", nodes.paragraph("", "", nodes.literal("", name)))
        return nodes.row(
            "",
            nodes.entry("", nodes.paragraph("", case.id)),
            nodes.entry("", *told),
            nodes.entry("", tests),
        )


def table(rows: list[nodes.row]) -> nodes.table:
    group = nodes.tgroup("", cols=3)
    group += [nodes.colspec(colwidth=width) for width in (1, 7, 12)]
    titles = ("case", "what goes wrong elsewhere", "tests")
    head = nodes.row("", *(nodes.entry("", nodes.paragraph("", title)) for title in titles))
    group += [nodes.thead("", head), nodes.tbody("", *rows)]
    return nodes.table("", group)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("case-table", CaseTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
