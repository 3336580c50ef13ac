"""What is shown while it runs: lines, or a live picture where there is a terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import pytest

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch._cli.progress import summary

TOOLS = """
import time
from anyio_toolbatch import report_progress
async def quick():
    return "done"
def deaf():
    report_progress(3, 10, "pages")
    time.sleep(60)
"""
CALL = ToolCall("id", "tool")


def result(status: Status, **fields: Any) -> ToolResult:
    return ToolResult(CALL, 0, status, **fields)


def test_the_summary_names_what_still_runs() -> None:
    """The last words count what completed, and nothing that has ended is called running."""
    detached = result(Status.INTERRUPTED, reason=Reason("user_interrupt"), detached=True)
    words = summary([detached], 2.0, [])
    assert words.splitlines() == [
        "0 of 1 calls completed, answered in 2.00 s.",
        "tool (call 0): has stopped since, as it was told to.",
    ]


def test_the_summary_of_a_large_batch_stays_short() -> None:
    """A thousand detached calls do not fill the screen; the last words say how many."""
    cut = [
        ToolResult(CALL, i, Status.INTERRUPTED, reason=Reason("user_interrupt"), detached=True)
        for i in range(1000)
    ]
    lines = summary(cut, 2.0, []).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "… and 990 more, of which 0 are still running."


class Terminal:
    """A pseudo-terminal as the command's standard error."""

    def __init__(self) -> None:
        import pty

        self.ours, self.theirs = pty.openpty()
        self.shown = b""
        self._changed = threading.Condition()

    def read(self) -> None:
        while True:
            try:
                chunk = os.read(self.ours, 65536)
            except OSError:  # all its users have gone
                chunk = b""
            with self._changed:
                self.shown += chunk
                self._changed.notify_all()
            if not chunk:
                return

    def wait_for(self, text: str) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: text.encode() in self.shown, timeout=20)
        assert found, self.shown


@pytest.fixture
def in_terminal(desk: Any) -> Any:
    if sys.platform == "win32":
        pytest.skip("there are no pseudo-terminals")
    terminals = []

    def start(*args: str, **env: str) -> tuple[Any, Terminal]:
        terminal = Terminal()
        given = {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", **env}
        turn = desk.openai(("quick", {}), ("deaf", {}))
        command = desk.start(turn, TOOLS, *args, stderr=terminal.theirs, env=given)
        os.close(terminal.theirs)
        reader = threading.Thread(target=terminal.read)
        reader.start()
        terminals.append((command, reader, terminal))
        return command, terminal

    yield start
    for command, reader, terminal in terminals:
        command.close()
        reader.join()
        os.close(terminal.ours)


def test_a_terminal_shows_a_live_picture(in_terminal: Any) -> None:
    """One line per call, kept up to date; after the end all are there, and the cursor."""
    pytest.importorskip("rich")
    command, terminal = in_terminal()
    terminal.wait_for("3/10 pages")
    command.send(signal.SIGINT)
    code, out, _ = command.end()
    terminal.wait_for("still running, detached")
    shown = terminal.shown.decode()
    assert code == 130
    assert [m["tool_call_id"] for m in json.loads(out)] == ["call_0", "call_1"]
    assert "completed in" in shown and "interrupted after" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor stayed hidden"


def test_leaving_at_once_gives_the_cursor_back(in_terminal: Any) -> None:
    """A second Ctrl-C does not leave a terminal without a cursor behind."""
    pytest.importorskip("rich")
    command, terminal = in_terminal("--grace", "50")
    terminal.wait_for("running")
    command.send(signal.SIGINT)
    terminal.wait_for("once more leaves at once")
    command.send(signal.SIGINT)
    code, out, _ = command.end()
    terminal.wait_for("Left at once")
    shown = terminal.shown.decode()
    assert (code, out) == (130, "")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor stayed hidden"


@pytest.mark.parametrize("without", ["rich", "a capable terminal"])
def test_plain_lines_where_no_picture_can_be(
    desk: Any, in_terminal: Any, without: str
) -> None:
    """The extra `cli` is optional, and a dumb terminal gets lines that it can show."""
    env = {"TERM": "dumb"}
    if without == "rich":
        (desk.folder / "without").mkdir()
        desk.write("without/rich.py", "raise ImportError('not installed')")
        env = {"PYTHONPATH": str(desk.folder / "without")}
    command, terminal = in_terminal(**env)
    terminal.wait_for("call 1  deaf  started")
    command.send(signal.SIGINT)
    code, _, _ = command.end()
    terminal.wait_for("still running, detached")
    shown = terminal.shown.decode()
    assert code == 130
    assert "\x1b" not in shown
