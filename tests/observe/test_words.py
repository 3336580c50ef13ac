"""What a view says of a call: true, short, and nothing in it active."""

from __future__ import annotations

from typing import Any

import pytest

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch.observe._words import describe, one_line

CALL = ToolCall("id", "tool")


def result(status: Status, **fields: Any) -> ToolResult:
    return ToolResult(CALL, 0, status, **fields)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (result(Status.COMPLETED, value=1, run_time=0.5), "completed in 0.50 s"),
        (
            result(Status.COMPLETED, value="no\nsuch", is_error=True),
            r"completed in 0.00 s, and reports an error: no\nsuch",
        ),
        (result(Status.FAILED, error=KeyError("x")), "failed after 0.00 s: KeyError: 'x'"),
        (
            result(Status.FAILED, reason=Reason("too_many_detached", "64 still run")),
            "failed, never started: 64 still run",
        ),
        (
            result(Status.INVALID, reason=Reason("unknown_tool", "there is no tool")),
            "invalid, never started: there is no tool",
        ),
        (
            result(
                Status.TIMED_OUT, reason=Reason("batch_timeout"), detached=True, run_time=2
            ),
            "timed out after 2.00 s, detached",
        ),
        (
            result(Status.INTERRUPTED, reason=Reason("user_interrupt"), started=False),
            "interrupted, never started",
        ),
    ],
)
def test_each_ending_is_told_truthfully(given: ToolResult, words: str) -> None:
    """P6 on the screen: what was never started and what was let go are told apart."""
    assert describe(given) == words


def test_long_and_active_text_becomes_one_short_line() -> None:
    """No text of a model's can break a line, move the cursor, or fill the screen."""
    assert one_line("a\r\n\x1b[31m\u202e", 80) == r"a\r\n\x1b[31m\u202e"
    assert one_line("ä" * 100, 10) == "ä" * 9 + "…"
