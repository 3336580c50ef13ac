"""
Draws the states of a call out of the table that moves calls from state to state.

Two directives without options: `state-diagram` gives an inline SVG, `state-table`
the same as a table. States, arrows and their labels come from the table, so that
picture and program agree; only where a state stands is written down here. A state
or a fact that this file has nothing to say about fails the build.

The picture takes the colour of the text around it, so that it can be read in light
and in dark mode, and shrinks to the width of a phone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from anyio_toolbatch._core import states
from anyio_toolbatch._core.states import TRANSITIONS, CallState, Fact

if TYPE_CHECKING:
    from sphinx.application import Sphinx

POSITIONS = {
    CallState.PREPARING: (365, 32),
    CallState.ASKED: (210, 112),
    CallState.BEHIND: (250, 202),
    CallState.IN_LINE: (365, 282),
    CallState.RUNNING: (365, 372),
    CallState.DETACHED: (365, 462),
    CallState.OVER: (60, 372),
}
"""The middle of each state, in the units of the picture."""

LABELS = {
    (CallState.ASKED, CallState.OVER): 0.45,
    (CallState.BEHIND, CallState.OVER): 0.4,
}
"""How far along its arrow a label stands, where not in its middle."""

MEANINGS = {
    CallState.OVER: "Ended, refused, denied or cut; the scheduler knows nothing of it any more.",
}
"""Of the states that say nothing about themselves."""

FACTS = {
    Fact.ASK: "The runner has an `approve` hook.",
    Fact.APPROVE: "The answer was yes.",
    Fact.LINE_UP: "Nobody is asked any more, neither about it nor about what it has to follow.",
    Fact.GRANT: "Its claims and places are free, and are taken in one step.",
    Fact.LET_GO: "It was cut while it ran, and keeps what it may still write.",
    Fact.END: "It has ended, or was cut before its start, denied or refused.",
}

WIDTH, HEIGHT = 430, 494
BOX_WIDTH, BOX_HEIGHT = 96, 34

SVG = """\
<figure style="margin: 1.5em 0">
<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="state-diagram-title"
 style="display: block; width: {width}px; max-width: 100%; height: auto; margin: 0 auto"
 font-family="inherit" font-size="14" text-anchor="middle" fill="currentColor">
<title id="state-diagram-title">The states of a call; the table below says the same</title>
<defs><marker id="state-diagram-arrow" viewBox="0 0 8 8" refX="8" refY="4"
 markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z"
 fill="currentColor"/></marker></defs>
{parts}
</svg>
</figure>
"""
LINE = (
    '<path d="M{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}" stroke="currentColor"'
    ' stroke-width="1.2"{dashes} marker-end="url(#state-diagram-arrow)"/>'
)
# The outline in the colour of the page keeps the arrow out of its label.
LABEL = (
    '<text x="{x:.1f}" y="{y:.1f}" font-size="12" font-style="italic"'
    ' style="paint-order: stroke; stroke: var(--color-background-primary, Canvas);'
    ' stroke-width: 7px">{text}</text>'
)
BOX = (
    '<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"'
    ' fill="none" stroke="currentColor" stroke-width="{stroke}"/>'
    '<text x="{text_x}" y="{text_y}">{text}</text>'
)


def check() -> None:
    """
    Raises:
        ExtensionError: The table has more than this file knows to show.
    """
    targets = {target for ways in TRANSITIONS.values() for target in ways.values()}
    for state in targets | TRANSITIONS.keys():
        if state not in POSITIONS:
            msg = f"state_diagram.py has no position for the state {state.value!r}"
            raise ExtensionError(msg)
    for state, ways in TRANSITIONS.items():
        for fact, target in ways.items():
            if fact not in FACTS:
                msg = f"state_diagram.py has no words for the fact {fact.value!r}"
                raise ExtensionError(msg)
            if target is state or state in TRANSITIONS.get(target, {}).values():
                msg = f"state_diagram.py can't draw the way from {state.value!r} and back"
                raise ExtensionError(msg)


def draw() -> str:
    """Return the picture as HTML."""
    check()
    lines, labels, boxes = [], [], []
    for state, ways in TRANSITIONS.items():
        for fact, target in ways.items():
            (x1, y1), (x2, y2) = border(state, target), border(target, state)
            dashes = ' stroke-dasharray="4 3"' if target is CallState.OVER else ""
            lines.append(LINE.format(x1=x1, y1=y1, x2=x2, y2=y2, dashes=dashes))
            way = LABELS.get((state, target), 0.5)
            x, y = x1 + way * (x2 - x1), y1 + way * (y2 - y1) + 4
            labels.append(LABEL.format(x=x, y=y, text=escape(fact.value)))
        x, y = POSITIONS[state]
        boxes.append(
            BOX.format(
                x=x - BOX_WIDTH / 2,
                y=y - BOX_HEIGHT / 2,
                width=BOX_WIDTH,
                height=BOX_HEIGHT,
                radius=BOX_HEIGHT / 2 if not ways else 5,
                stroke=2 if state is CallState.RUNNING else 1.2,
                text_x=x,
                text_y=y + 5,
                text=escape(state.value),
            )
        )
    return SVG.format(width=WIDTH, height=HEIGHT, parts="\n".join(lines + labels + boxes))


def border(state: CallState, towards: CallState) -> tuple[float, float]:
    """Return where the line between the middles of two states leaves the first one's box."""
    (x, y), (to_x, to_y) = POSITIONS[state], POSITIONS[towards]
    dx, dy = to_x - x, to_y - y
    part = min(
        BOX_WIDTH / 2 / abs(dx) if dx else 1.0,
        BOX_HEIGHT / 2 / abs(dy) if dy else 1.0,
    )
    return x + part * dx, y + part * dy


def meaning_of(state: CallState) -> str:
    """Return what the table's own file says about a state."""
    docs = ModuleAnalyzer.for_module(states.__name__).find_attr_docs()
    said = " ".join(docs.get(("CallState", state.name), [])).strip()
    if not said and state not in MEANINGS:
        msg = f"nobody says what the state {state.value!r} means"
        raise ExtensionError(msg)
    return said or MEANINGS[state]


class StateDiagram(SphinxDirective):
    """The picture."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(states.__file__)
        self.env.note_dependency(__file__)
        return [nodes.raw("", draw(), format="html")]


class StateTable(SphinxDirective):
    """The same as a table: each state, what it means, and what can happen in it."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(states.__file__)
        self.env.note_dependency(__file__)
        check()
        head = self.row("state", "what happens", "next state")
        body = nodes.tbody()
        for state, ways in TRANSITIONS.items():
            about = self.cell(f"**{state.value}**: {meaning_of(state)}")
            about["morerows"] = max(len(ways) - 1, 0)
            for fact, target in ways.items() or [(None, None)]:
                row = nodes.row()
                if about.parent is None:
                    row += about
                row += self.cell(
                    "nothing" if fact is None else f"*{fact.value}*: {FACTS[fact]}"
                )
                row += self.cell("–" if target is None else target.value)
                body += row
        group = nodes.tgroup("", cols=3)
        group += [nodes.colspec(colwidth=width) for width in (4, 4, 2)]
        group += [nodes.thead("", head), body]
        return [nodes.table("", group)]

    def row(self, *texts: str) -> nodes.row:
        return nodes.row("", *map(self.cell, texts))

    def cell(self, text: str) -> nodes.entry:
        """Return a cell; the text's markup is that of the docstrings."""
        paragraph = nodes.paragraph()
        for part in split(text):
            paragraph += part
        return nodes.entry("", paragraph)


def split(text: str) -> list[nodes.Node]:
    """Parse the little markup that is used here: ``**bold**``, ``*italic*``, code."""
    kinds: list[tuple[str, Any]] = [
        ("**", nodes.strong),
        ("*", nodes.emphasis),
        ("`", nodes.literal),
    ]
    for mark, kind in kinds:
        before, found, rest = text.partition(mark)
        inside, closed, after = rest.partition(mark)
        if found and closed:
            return [*split(before), kind("", inside), *split(after)]
    return [nodes.Text(text)] if text else []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("state-diagram", StateDiagram)
    app.add_directive("state-table", StateTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
