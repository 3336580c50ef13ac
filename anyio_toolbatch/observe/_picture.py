"""
A view in a terminal, drawn by rich: open batches, their calls, and what was let go of.

It is never taller than the terminal. Of many calls those are shown that need a look:
what runs, then what waits, then what has ended; the others are counted. When a batch
is over its calls are written above the picture, where they stay.

A thread of its own draws, some times a second, so that an event costs a note and the
picture goes on while a tool blocks the event loop.
"""

from __future__ import annotations

import atexit
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._files import fileno_of, write_all
from .._model.events import Event
from .._model.results import Status, ToolResult
from .._runtime.batch import ToolBatch
from .._runtime.leaving import leave_streams_to_main_thread
from ._rows import BatchRows, Detached, Row, Rows
from ._words import NOTE_WIDTH, describe, name_of, one_line, progress_of, share_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

__all__ = ("Painter", "Picture", "SafeStream")

LINES_BELOW = 2
"""Lines of the terminal that are left free: the note, and the prompt."""
BAR_WIDTH = 16
SHOWN_AT_END = 50
"""Calls of a batch that stay on the screen when it is over."""
JOIN_SECONDS = 2.0
SHOW_CURSOR = b"\x1b[?25h\n"

RUNNING, WAITING, ENDED = range(3)


class Picture:
    """What is going on now, as a rich renderable."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; no higher than the console."""
        height = options.height or console.size.height
        batches, detached = self._rows.now()
        note = (
            [Text(one_line(self._rows.note, NOTE_WIDTH), no_wrap=True, overflow="ellipsis")]
            if self._rows.note
            else []
        )
        room = max(height - LINES_BELOW - len(note), 3)
        now = time.monotonic()
        let_go = _let_go(detached, max(room // 4, 2), now)
        draw_bar = _ascii_bar if options.ascii_only else _bar
        yield from _of_batches(batches, room - len(let_go), options.max_width, now, draw_bar)
        yield from let_go
        yield from note


def _of_batches(
    batches: list[tuple[BatchRows, dict[int, Row]]],
    room: int,
    columns: int,
    now: float,
    draw_bar: DrawBar,
) -> Iterator[ConsoleRenderable]:
    """Give a head for each batch, and lines for as many calls as there is room for."""
    shown = batches[: max(room // 3, 1)]
    left_out = len(batches) - len(shown)
    room -= len(shown) + bool(left_out)
    wanted: list[tuple[int, int, int]] = []
    heads = []
    for place, (batch, rows) in enumerate(shown):
        tool_batch = batch.get()
        count = max(len(tool_batch.calls) if tool_batch else 0, max(rows, default=-1) + 1)
        batch.known_at += [now] * (count - len(batch.known_at))
        states = [_state(rows.get(index)) for index in range(count)]
        heads.append((tool_batch, _head(batch, states, now)))
        wanted += [(state, place, index) for index, state in enumerate(states)]
    if len(wanted) > room:
        wanted = sorted(wanted)[: max(room, 1)]
    wanted.sort(key=lambda item: item[1:])
    names = {
        (place, index): _name(heads[place][0], shown[place][1], index)
        for _, place, index in wanted
    }
    width = max(map(len, names.values()), default=0)
    for place, (batch, rows) in enumerate(shown):
        tool_batch, head = heads[place]
        yield head
        table = _table(width, columns)
        for _, at, index in wanted:
            if at == place:
                waited = now - batch.known_at[index]
                row = rows.get(index)
                table.add_row(
                    str(index),
                    Text(names[place, index]),
                    *_cells(tool_batch, index, row, waited, now, draw_bar),
                )
        if table.row_count:
            yield table
    if left_out:
        yield Text(f"… and {left_out} more batches")


def _state(row: Row | None) -> int:
    if row is None:
        return WAITING
    return (
        ENDED if row.result is not None else RUNNING if row.started_at is not None else WAITING
    )


def _head(batch: BatchRows, states: list[int], now: float) -> Text:
    counts = Counter(states)
    total = "1 call" if len(states) == 1 else f"{len(states)} calls"
    parts = [
        f"{counts[state]} {word}"
        for state, word in ((RUNNING, "running"), (WAITING, "waiting"), (ENDED, "ended"))
        if counts[state]
    ]
    inside = "" if batch.inside is None else f" in call {batch.inside[1]}"
    cut = "" if batch.cut_by is None else f", cut: {batch.cut_by.replace('_', ' ')}"
    words = f"batch {batch.number}{inside}: {', '.join([total, *parts])}{cut}"
    head = Text(words, style="bold", no_wrap=True, overflow="ellipsis")
    return head.append(f"  {_seconds(now - batch.opened_at)}", style="dim")


def _name(batch: ToolBatch | None, rows: dict[int, Row], index: int) -> str:
    row = rows.get(index)
    if row is not None:
        return name_of(row.call)
    return "" if batch is None else name_of(batch.calls[index])


def _table(name_width: int, columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True, min_width=4)
    # However long the names are, there is room for what they do.
    name_width = min(name_width, max(columns * 2 // 5, 1))
    table.add_column(no_wrap=True, width=name_width)
    # Wrapped where there is no room, so that no other column is made narrower; while the
    # picture moves its texts see to it that they are one line all the same.
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    return table


def _cells(
    batch: ToolBatch | None,
    index: int,
    row: Row | None,
    waited: float,
    now: float,
    draw_bar: DrawBar,
) -> tuple[ConsoleRenderable | str, ...]:
    """Return what stands behind a call's name: its state, and how long."""
    if row is not None and row.result is not None:
        return (_line(describe(row.result), _style(row.result)), "")
    if row is None or row.started_at is None:
        waiting = None
        try:
            waiting = batch and batch.waiting_call(index)
        except IndexError:
            pass
        words = waiting.waits_for if waiting else "waiting"
        style = "magenta" if waiting and waiting.kind == "approval" else "dim"
        return (_line(one_line(words, 300), style), _seconds(waited))
    progress = row.progress
    line = _line("running", "")
    if progress is not None:
        share = share_of(progress)
        if 0.0 <= share <= 1.0:
            line.append("  ").append_text(draw_bar(round(share * BAR_WIDTH)))
        line.append(f"  {progress_of(progress)}")
    return (line, _seconds(now - row.started_at))


DrawBar = Callable[[int], Text]
"""Takes how many of `BAR_WIDTH` parts are done."""


def _bar(done: int) -> Text:
    return Text("━" * done, "green").append("─" * (BAR_WIDTH - done), "dim")


def _ascii_bar(done: int) -> Text:
    return Text("#" * done + "-" * (BAR_WIDTH - done))


def _line(words: str, style: str) -> Text:
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _style(result: ToolResult) -> str:
    if result.status is Status.COMPLETED:
        return "yellow" if result.is_error else "green"
    return "red" if result.status is Status.FAILED else "yellow"


def _let_go(detached: Sequence[Detached], room: int, now: float) -> list[Text]:
    """Return lines for what was let go of and still runs, the oldest first."""
    if not detached:
        return []
    lines = [Text(f"detached, still running: {len(detached)}", style="bold yellow")]
    shown = detached[: max(room - 2, 1)]
    for entry in shown:
        words = f"   {name_of(entry.call)}  call {entry.index} of batch {entry.number}, "
        words += f"for {_seconds(now - entry.since)}"
        lines.append(Text(words, style="yellow", no_wrap=True, overflow="ellipsis"))
    if len(detached) > len(shown):
        lines.append(Text(f"   … and {len(detached) - len(shown)} more", style="yellow"))
    return lines


def ended_batch(batch: BatchRows, columns: int) -> Iterator[ConsoleRenderable]:
    """Give what stays of a batch that is over, on a screen so many columns wide."""
    rows = sorted(batch.rows.items())
    shown = rows
    if len(rows) > SHOWN_AT_END:
        shown = [item for item in rows if not _has_completed(item[1])][:SHOWN_AT_END]
    width = max((len(name_of(row.call)) for _, row in shown), default=0)
    table = _table(width, columns)
    for index, row in shown:
        if row.result is not None:
            words = Text(describe(row.result), style=_style(row.result))
        else:
            words = Text("running" if row.started_at is not None else "waiting")
        table.add_row(str(index), Text(name_of(row.call)), words, "")
    if batch.number > 1:
        yield Text(f"batch {batch.number}", style="bold")
    if shown:
        yield table
    if len(rows) > len(shown):
        more = len(rows) - len(shown)
        completed = sum(_has_completed(row) for _, row in rows)
        yield Text(f"… {more} more; {completed} of {len(rows)} completed")


def _has_completed(row: Row) -> bool:
    return row.result is not None and row.result.status is Status.COMPLETED


class Painter:
    """Draws a picture in a terminal until it is stopped."""

    def __init__(self, rows: Rows, console: Console, per_second: float) -> None:
        self._rows = rows
        self._console = console
        self._pause = 1.0 / per_second
        self._picture = Picture(rows)
        self._done = threading.Event()
        self._draws = False
        self._thread = threading.Thread(
            target=self._paint_all, name="anyio_toolbatch view", daemon=True
        )

    def start(self) -> None:
        leave_streams_to_main_thread()
        self._thread.start()

    def stop(self) -> None:
        """Draw the last of it; then no more, and the terminal is as it was."""
        self._done.set()
        self._thread.join(JOIN_SECONDS)

    def tell(self, event: Event) -> None:
        """Do nothing: the next picture shows it."""

    def leave_to_parent(self) -> None:
        """Forget that there was a picture; in a forked child, where nobody draws."""
        # Else what is printed would go through rich, which has locks of its own.
        sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    def note(self, words: str) -> None:
        """Show a line below all others; also from a signal handler."""
        self._rows.note = words

    def restore(self) -> None:
        """Give the cursor back, which is hidden while the picture moves; at once."""
        fd = fileno_of(self._console.file)
        if fd is not None and self._draws and _takes_more(fd):
            try:
                write_all(fd, SHOW_CURSOR)
            except OSError:
                pass  # the terminal is gone

    def _paint_all(self) -> None:
        live = Live(
            self._picture,
            console=self._console,
            auto_refresh=False,
            transient=True,
            # What is printed goes above the picture, if it goes to the same terminal.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        # For who has got a Ctrl-C where nobody would leave the view's block.
        atexit.register(self.restore)
        try:
            self._draws = True
            live.start()
            try:
                while not self._done.wait(self._pause):
                    self._paint(live)
                    if getattr(self._console.file, "is_gone", False):
                        return
                self._rows.finish()
                self._paint(live)
            finally:
                live.stop()
            self._draws = False
        except (Exception, SystemExit):  # noqa: BLE001 - rich leaves where a pipe is broken
            pass  # the terminal is gone, or has no sense: the program goes on
        finally:
            atexit.unregister(self.restore)
            self._rows.is_read = False

    def _paint(self, live: Live) -> None:
        for batch in self._rows.take_settled():
            for item in ended_batch(batch, self._console.width):
                self._console.print(item)
        live.refresh()


def _takes_more(fd: int) -> bool:
    """Tell whether a write would not have to wait, as for a terminal that is stopped."""
    try:
        return bool(select.select([], [fd], [], 0.0)[1])
    except (OSError, ValueError):  # Windows can tell it of sockets only
        return True


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


class SafeStream:
    """
    A stream that raises nothing.

    What it can't encode it shows as something else. Where it can't write, it is gone:
    rich would put another file in standard output's place, and leave.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_gone = False

    def write(self, text: str) -> int:
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            self.is_gone = True
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.is_gone = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
