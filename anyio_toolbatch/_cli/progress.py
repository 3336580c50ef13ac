"""What the user is told on standard error, beside what the live view shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import DetachedCall, Status, ToolResult
from ..observe._lines import write_line
from ..observe._words import name_of

__all__ = ("say", "summary")

NAMED_AT_END = 10
"""Detached calls that the last words name one by one."""


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
        name = name_of(result.call)
        state = (
            "still running, detached; it ends with this process"
            if id(result.call) in running
            else "has stopped since, as it was told to"
        )
        lines.append(f"{name} (call {result.index}): {state}.")
    more = len(let_go) - NAMED_AT_END
    if more > 0:
        still = sum(id(result.call) in running for result in let_go[NAMED_AT_END:])
        lines.append(f"… and {more} more, of which {still} are still running.")
    return "\n".join(lines)


def say(text: str) -> None:
    """
    Write a line to standard error, past Python's buffers; never raises.

    Threads:
        Any, and signal handlers.
    """
    write_line(sys.stderr, text)
