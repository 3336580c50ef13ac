"""
Shows in a terminal what batches do, while they do it.

Where there is no terminal, or rich is not installed, it writes plain lines.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO
from weakref import WeakSet

from .._model.events import Event
from .._model.tools import check_seconds
from .._runtime.backend import after_fork
from .._runtime.batch import ToolBatch
from .._runtime.context import CallContext
from ._lines import Lines
from ._rows import Rows

if TYPE_CHECKING:
    from rich.console import Console

    from ._picture import Picture

__all__ = ("LiveView",)


class LiveView:
    """
    An observer that shows what is going on: ``with LiveView() as view``.

    A line for each call: its state and how long it has been in it; what it waits for,
    while it waits; its progress, while it runs. Below stands what was let go of and
    still runs. The picture is never taller than the terminal: of many calls it shows
    those that run, then those that wait, and counts the others. How the calls of a
    batch ended stays on the screen when it is over.

    It needs the extra ``cli`` (rich) and a terminal; otherwise it writes a plain line
    when a call starts and when it ends. It honours ``NO_COLOR``. Outside its block
    it shows nothing. One view may serve any number of runners, on any loops;
    a terminal has room for one at a time.

    What goes wrong with the terminal is nobody's business but the view's: it stops
    to show anything.

    Args:
        file: Where to show it; ``sys.stderr`` by default, as it is when the block is
            entered.
        console: A rich `Console` to draw in, instead.
        refresh_per_second: How often it is drawn anew.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.

    Threads:
        Any. It draws in a thread of its own; events cost a note.
    """

    def __init__(
        self,
        *,
        file: TextIO | None = None,
        console: Console | None = None,
        refresh_per_second: float = 8.0,
    ) -> None:
        check_seconds("refresh_per_second", refresh_per_second, optional=False)
        if not 0.1 <= refresh_per_second <= 60.0:
            msg = f"refresh_per_second must be from 0.1 to 60, not {refresh_per_second!r}"
            raise ValueError(msg)
        if file is not None and console is not None:
            msg = "a view is given a file or a console, not both"
            raise TypeError(msg)
        self._file = file
        self._console = console
        self._per_second = refresh_per_second
        self._rows = Rows()
        self._shower: _Shower | None = None

    def __enter__(self) -> Self:
        if self._shower is not None:
            msg = "this view is shown already"
            raise RuntimeError(msg)
        shower = self._choose_shower()
        if shower is not None:
            try:
                shower.start()
            except RuntimeError:  # there are no more threads; the program goes on
                return self
            except BaseException:  # a Ctrl-C: nobody will leave this block
                with suppress(RuntimeError):  # it has not started
                    shower.stop()
                raise
            self._rows.is_read = True
            self._shower = shower
            _shown.add(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shower, self._shower = self._shower, None
        if shower is not None:
            try:
                shower.stop()
            except BaseException:  # one more Ctrl-C
                shower.restore()
                raise
        self._rows = Rows()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def note(self, words: str) -> None:
        """
        Show a line of your own: below the picture, until another one or the end.

        Threads:
            Any, and signal handlers.
        """
        if self._shower is not None:
            self._shower.note(words)

    def restore(self) -> None:
        """
        Give the terminal its cursor back; for who leaves the process at once.

        Leaving the block does it, too.

        Threads:
            Any, and signal handlers.
        """
        if self._shower is not None:
            self._shower.restore()

    def __rich__(self) -> Picture:
        """Return the picture of this moment, for rich to draw."""
        from ._picture import Picture

        return Picture(self._rows)

    def _leave_to_parent(self) -> None:
        """Show nothing: in a forked child, where another thread may have held the lock."""
        shower, self._shower = self._shower, None
        self._rows = Rows()
        if shower is not None:
            shower.leave_to_parent()

    # -- what is told --------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        if self._rows.is_read:
            self._rows.take(event)
            if self._shower is not None:
                self._shower.tell(event)

    def watch_batch(self, batch: ToolBatch) -> None:
        """Take a new batch in; see the events' reference."""
        if self._rows.is_read:
            self._rows.watch(batch)

    def leave_call(self, context: CallContext) -> None:
        """Take in that a call's work is over."""
        if self._rows.is_read:
            self._rows.leave(context)

    # -- how it is shown -------------------------------------------------------

    def _choose_shower(self) -> _Shower | None:
        stream = sys.stderr if self._file is None else self._file
        try:
            from rich.console import Console

            from ._picture import Painter, SafeStream
        except ImportError:
            console = None
        else:
            console = self._console
            if console is None and stream is not None and _is_terminal(stream):
                console = Console(file=SafeStream(stream))  # type: ignore[arg-type]
            if console is not None and console.is_terminal and not console.is_dumb_terminal:
                return Painter(self._rows, console, self._per_second)
        if console is not None:
            stream = console.file
        return None if stream is None else Lines(self._rows, stream)


_shown: WeakSet[LiveView] = WeakSet()


def _leave_all_to_parent() -> None:
    for view in list(_shown):
        view._leave_to_parent()


after_fork(_leave_all_to_parent)


class _Shower(Protocol):
    """Shows what the rows say."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tell(self, event: Event) -> None: ...

    def note(self, words: str) -> None: ...

    def restore(self) -> None: ...

    def leave_to_parent(self) -> None: ...


def _is_terminal(stream: TextIO) -> bool:
    # rich can be told by the environment that anything is one: not for moving pictures.
    try:
        return stream.isatty()
    except (OSError, ValueError):
        return False
