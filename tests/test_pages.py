"""The pages of the documentation are complete: what is public is there to be looked up."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import anyio_toolbatch
from anyio_toolbatch import CallDetached, Event, Status, ToolBatchError, ToolResult

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(
    page.relative_to(DOCS).with_suffix("").as_posix()
    for page in DOCS.glob("*/*.md")
    if page.parent.name in {"tutorial", "how-to", "explanation", "reference", "project"}
)
PUBLIC = [getattr(anyio_toolbatch, name) for name in anyio_toolbatch.__all__]
ERRORS = [
    value
    for value in PUBLIC
    if inspect.isclass(value)
    and issubclass(value, (ToolBatchError, CallDetached))
    and value is not ToolBatchError
]
EVENTS = [
    value
    for value in PUBLIC
    if inspect.isclass(value) and issubclass(value, Event) and value is not Event
]


def rows_of(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's tables by the name in their first cell."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"
    ]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_its_row(error: type[BaseException]) -> None:
    """Of each public error the reference says by what it is raised, when, and what to do."""
    row = rows_of("reference/errors.md")[error.__name__]
    assert len(row) == 3
    assert all(row)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_has_its_row_with_its_fields(event: type[Event]) -> None:
    """Of each event the reference says when it comes, what it carries, and how often."""
    when, carries, how_often = rows_of("reference/events.md")[event.__name__]
    assert when
    assert how_often
    fields = set(event.__dataclass_fields__) - {"batch_id"}
    assert fields <= set(re.findall(r"`(\w+)`", carries))


@pytest.mark.parametrize("page", PAGES)
def test_some_page_leads_to_it(page: str) -> None:
    """Whoever asks a question finds the page that answers it: by the index, or from another page."""
    linked = set()
    for origin in {"index", *PAGES} - {page}:
        text = (DOCS / f"{origin}.md").read_text("utf-8")
        for target in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text):
            base = DOCS if target[0] == "/" else (DOCS / origin).parent
            linked.add((base / target.lstrip("/")).resolve().relative_to(DOCS).as_posix())
    assert page in linked


def test_every_reason_has_its_row() -> None:
    """Each kind of reason that `ToolResult` lists, and no other, is told with its status."""
    told = dict(
        re.findall(
            r"^(\w+) {2,}(.+(?:\n {14}.+)*)", inspect.getdoc(ToolResult) or "", re.MULTILINE
        )
    )
    promised = {
        (kind, status)
        for status, kinds in told.items()
        for kind in re.findall(r"``(\w+)``", kinds)
    }
    rows = rows_of("reference/calls-tools-results.md")
    shown = {
        (name, row[0].strip("`"))
        for name, row in rows.items()
        if len(row) == 3 and row[0].strip("`") in set(Status)
    }
    assert len(promised) == 14
    assert shown == promised
