"""
The batch in a terminal: a line for each call, kept up to date by rich.

rich is the extra `cli`; `display_for` does without it. Its painter is a thread
of its own, so that the picture goes on while a tool blocks the event loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import (
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    Status,
    ToolCall,
    ToolResult,
)
from .._files import write_all
from .output import fileno_of
from .progress import DETAIL_WIDTH, NAME_WIDTH, Display, PlainDisplay, describe, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ("display_for",)

PAINTS_PER_SECOND = 8
LINES_AROUND = 4
"""Lines of the terminal that are not for calls: title, notes, prompt."""
SHOW_CURSOR = b"\x1b[?25h\n"


def display_for(calls: Sequence[ToolCall], title: str) -> Display:
    """Return a live display where there is a terminal and rich, else a plain one."""
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            console = Console(stderr=True)
            if console.is_terminal and not console.is_dumb_terminal:
                return LiveDisplay(calls, title, console)
    return PlainDisplay(calls, title)


@dataclass(slots=True)
class _Row:
    """What is shown of one call; written on the loop, read by the painter."""

    name: str
    started_at: float | None = None
    note: str = ""
    result: ToolResult | None = None


class LiveDisplay:
    """A table of the calls, in call order; of many, those that need a look."""

    def __init__(self, calls: Sequence[ToolCall], title: str, console: Console) -> None:
        from rich.live import Live

        self._rows = [_Row(one_line(call.name, NAME_WIDTH) or "(no name)") for call in calls]
        self._name_width = max((len(row.name) for row in self._rows), default=0)
        self._title = title
        self._console = console
        self._interrupting = ""
        self._finished = False
        self._live = Live(
            console=console,
            get_renderable=self._paint,
            refresh_per_second=PAINTS_PER_SECOND,
        )

    def start(self) -> None:
        """Begin to paint."""
        self._console.print(self._title, markup=False, highlight=False)
        self._live.start()

    def observe(self, event: Event) -> None:
        """Note what is new; the painter will see it."""
        if isinstance(event, CallStarted):
            self._rows[event.index].started_at = time.monotonic()
        elif isinstance(event, CallProgress):
            self._rows[event.index].note = _progress(event)
        elif isinstance(event, CallSettled):
            self._rows[event.index].result = event.result

    def finish(self, results: Sequence[ToolResult]) -> None:
        """Paint the last picture, with every call in it, and stop."""
        for row, result in zip(self._rows, results, strict=True):
            row.result = result
        self._finished = True
        try:
            self._live.stop()
        except OSError:
            pass  # the terminal is gone; the answer may still be wanted

    def interrupting(self, words: str) -> None:
        """Have it painted; a signal handler must not paint itself."""
        self._interrupting = words

    def abandon(self) -> None:
        """Give the cursor back, which is hidden while the picture moves."""
        fd = fileno_of(sys.__stderr__)
        if fd is not None and not self._finished:
            try:
                write_all(fd, SHOW_CURSOR)
            except OSError:
                pass  # the terminal is gone

    def _paint(self) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        shown = self._shown()
        for index in shown:
            self._add(table, index)
        hidden = len(self._rows) - len(shown)
        if hidden:
            done = sum(row.result is not None for row in self._rows)
            table.add_row("", "…", f"{hidden} more; {done} of {len(self._rows)} have ended")
        if self._interrupting and not self._finished:
            table.add_row("", "", self._interrupting)
        return table

    def _shown(self) -> list[int]:
        """Return the calls to show: all, or those that run before those that wait."""
        everything = list(range(len(self._rows)))
        room = max(1, self._console.height - LINES_AROUND)
        if self._finished or len(everything) <= room:
            return everything

        def urgency(index: int) -> int:
            row = self._rows[index]
            return 2 if row.result is not None else 0 if row.started_at is not None else 1

        return sorted(sorted(everything, key=urgency)[:room])

    def _add(self, table: Table, index: int) -> None:
        from rich.text import Text

        row = self._rows[index]
        if row.result is not None:
            state = Text(describe(row.result), style=_style(row.result))
        elif row.started_at is None:
            state = Text("waiting", style="dim")
        else:
            seconds = time.monotonic() - row.started_at
            state = Text(f"running {seconds:.1f} s{row.note}")
        if not self._finished:
            # One line each while the picture moves. Left to it, rich would
            # shorten the names as well.
            taken = self._name_width + len(str(len(self._rows))) + 4
            state.truncate(max(1, self._console.width - taken), overflow="ellipsis")
        table.add_row(str(index + 1), Text(row.name), state)


def _progress(event: CallProgress) -> str:
    share = f"{event.progress:g}" if event.total is None else _share(event)
    said = f" {event.message}" if event.message else ""
    return one_line(f"  {share}{said}", DETAIL_WIDTH)


def _share(event: CallProgress) -> str:
    return f"{event.progress:g}/{event.total:g}"


def _style(result: ToolResult) -> str:
    if result.status is Status.COMPLETED:
        return "yellow" if result.is_error else "green"
    return "red" if result.status is Status.FAILED else "yellow"
