"""
What the user sees on standard error: in words, and as plain lines.

Names and messages come from a model and from tools. Whatever could move the
cursor or break the line is shown escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from .. import (
    CallSettled,
    CallStarted,
    DetachedCall,
    Event,
    Status,
    ToolCall,
    ToolResult,
)
from .._files import write_all
from .output import fileno_of

__all__ = ("Display", "PlainDisplay", "describe", "one_line", "say", "summary")

NAME_WIDTH = 32
DETAIL_WIDTH = 160
NAMED_AT_END = 10
"""Detached calls that the last words name one by one."""


class Display(Protocol):
    """Shows one batch; on the loop's thread, but for what says otherwise."""

    def start(self) -> None:
        """Show that the batch begins."""

    def observe(self, event: Event) -> None:
        """Take an event of the batch: an observer for the runner."""

    def finish(self, results: Sequence[ToolResult]) -> None:
        """Show each call's ending that was not shown yet; nothing moves after this."""

    def interrupting(self, words: str) -> None:
        """Show that the batch is being interrupted; also from a signal handler."""

    def abandon(self) -> None:
        """Leave the terminal usable; also from a signal handler."""


class PlainDisplay:
    """One line when a call starts and one when it ends, in the order it happened."""

    def __init__(self, calls: Sequence[ToolCall], title: str) -> None:
        self._title = title
        self._names = [one_line(call.name, NAME_WIDTH) or "(no name)" for call in calls]
        self._width = max(map(len, self._names), default=0)
        self._told: set[int] = set()

    def start(self) -> None:
        """Say what begins."""
        say(self._title)

    def observe(self, event: Event) -> None:
        """Say that a call started, or how it ended."""
        if isinstance(event, CallStarted):
            self._say(event.index, "started")
        elif isinstance(event, CallSettled):
            self._ended(event.result)

    def finish(self, results: Sequence[ToolResult]) -> None:
        """Say how the other calls ended, in call order."""
        for result in results:
            self._ended(result)

    def interrupting(self, words: str) -> None:
        """Say it."""
        say(words)

    def abandon(self) -> None:
        """Do nothing: lines need no tidying."""

    def _ended(self, result: ToolResult) -> None:
        if result.index not in self._told:
            self._told.add(result.index)
            self._say(result.index, describe(result))

    def _say(self, index: int, what: str) -> None:
        total = str(len(self._names))
        place = f"{index + 1:{len(total)}}/{total}"
        say(f"{place}  {self._names[index]:{self._width}}  {what}")


def describe(result: ToolResult) -> str:
    """Return how a call ended, in a few words for a person."""
    seconds = f"{result.run_time:.2f} s"
    if result.status is Status.COMPLETED:
        error = f", and reports an error: {_detail(result)}" if result.is_error else ""
        return f"completed in {seconds}{error}"
    ended = result.status.value.replace("_", " ")
    if result.status in {Status.TIMED_OUT, Status.INTERRUPTED}:
        detached = ", detached" if result.detached else ""
        return (
            f"{ended} after {seconds}{detached}"
            if result.started
            else f"{ended}, never started"
        )
    if result.started:
        return f"{ended} after {seconds}: {_detail(result)}"
    why = result.reason.message if result.reason is not None else None
    return f"{ended}, never started: {one_line(why or result.text, DETAIL_WIDTH)}"


def _detail(result: ToolResult) -> str:
    return one_line(result.text, DETAIL_WIDTH)


def summary(
    results: Sequence[ToolResult], seconds: float, detached: Sequence[DetachedCall]
) -> str:
    """
    Return the last words: how many completed, and what became of the detached.

    Args:
        results: Those of the batch.
        seconds: From the batch's start to its last result.
        detached: The calls that are running even now.
    """
    completed = sum(result.status is Status.COMPLETED for result in results)
    lines = [f"{completed} of {len(results)} calls completed, answered in {seconds:.2f} s."]
    running = {id(entry.call) for entry in detached}
    let_go = [result for result in results if result.detached]
    for result in let_go[:NAMED_AT_END]:
        name = one_line(result.call.name, NAME_WIDTH)
        state = (
            "still running, detached; it ends with this process"
            if id(result.call) in running
            else "has stopped since, as it was told to"
        )
        lines.append(f"{name} (call {result.index + 1}): {state}.")
    more = len(let_go) - NAMED_AT_END
    if more > 0:
        still = sum(id(result.call) in running for result in let_go[NAMED_AT_END:])
        lines.append(f"… and {more} more, of which {still} are still running.")
    return "\n".join(lines)


def one_line(text: str, width: int) -> str:
    """Return `text` as one line of at most `width` characters, nothing in it active."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: width + 1]
    )
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def say(text: str) -> None:
    """
    Write a line to standard error, past Python's buffers; never raises.

    Threads:
        Any, and signal handlers: a buffered stream would refuse to be entered
        by a handler that has interrupted it.
    """
    stream = sys.stderr
    if stream is None:
        return
    try:
        fd = fileno_of(stream)
        if fd is None:
            stream.write(f"{text}\n")
        else:
            encoding = stream.encoding or "utf-8"
            write_all(fd, f"{text}\n".encode(encoding, "backslashreplace"))
    except (OSError, ValueError):
        pass  # nobody is there to be told
