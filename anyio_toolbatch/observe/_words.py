"""
What a view says of a call, in few words for a person, each as one plain line.

Names and messages come from a model and from tools. Whatever could move the cursor
or break the line is shown escaped.
"""

from __future__ import annotations

import math

from .._model.calls import ToolCall
from .._model.events import CallProgress
from .._model.results import Status, ToolResult

__all__ = ("NOTE_WIDTH", "describe", "name_of", "one_line", "progress_of", "share_of")

NAME_WIDTH = 32
DETAIL_WIDTH = 160
NOTE_WIDTH = 500


def describe(result: ToolResult) -> str:
    """Return how a call ended."""
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


def progress_of(event: CallProgress) -> str:
    """Return how far a call says that it is."""
    share = _number(event.progress)
    if event.total is not None:
        share += f"/{_number(event.total)}"
    return one_line(f"{share} {event.message or ''}".rstrip(), DETAIL_WIDTH)


def share_of(event: CallProgress) -> float:
    """Return which part of it a call says is done; not a number if it doesn't."""
    try:
        return event.progress / event.total if event.total else math.nan
    except OverflowError:  # an int may be larger than a float
        return math.nan


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return "(too large)"


def name_of(call: ToolCall) -> str:
    """Return what to call a call."""
    return one_line(call.name, NAME_WIDTH) or "(no name)"


def one_line(text: str, width: int) -> str:
    """Return `text` as one line of at most `width` characters, nothing in it active."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: width + 1]
    )
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"
