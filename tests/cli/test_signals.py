"""Ctrl-C and termination, with real signals, sent when the command says it is ready."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="signals are sent in another way there"
)

TOOLS = """
import time, anyio

async def quick():
    return "done"

async def slow():
    await anyio.sleep(3600)

def deaf():
    time.sleep(60)

def large():
    return "x" * 1_000_000
"""
# "started" of a coroutine says that all before it have been submitted, too.
DEAF_FIRST = (("quick", {}), ("deaf", {}), ("slow", {}))


def test_ctrl_c_prints_all_results(desk: Any, backend: str) -> None:
    """The first Ctrl-C: finished results kept, one result per call, status 130, at once."""
    command = desk.start(desk.openai(*DEAF_FIRST), TOOLS, "--backend", backend)
    command.wait_for("quick", "completed")
    command.wait_for("deaf", "started")
    sent = time.monotonic()
    command.send(signal.SIGINT)
    code, out, err = command.end()
    assert time.monotonic() - sent < 10, "the deaf tool sleeps for a minute"
    assert code == 130
    contents = [message["content"] for message in json.loads(out)]
    assert contents[0] == "done"
    assert all("interrupted by the user" in content for content in contents[1:])
    assert "Traceback" not in err


def test_a_second_ctrl_c_leaves_at_once_with_nothing_half_written(
    desk: Any, backend: str
) -> None:
    """The second Ctrl-C does not wait for the grace; nothing is printed, and it says so."""
    options = ("--backend", backend, "--grace", "50")
    command = desk.start(desk.openai(*DEAF_FIRST), TOOLS, *options)
    command.wait_for("deaf", "started")
    command.send(signal.SIGINT)
    command.wait_for("Interrupting")
    command.send(signal.SIGINT)
    code, out, err = command.end()
    assert (code, out) == (130, "")
    assert "Left at once; nothing was printed." in err


def test_a_second_ctrl_c_leaves_an_output_file_as_it_was(desk: Any) -> None:
    """What stands in the `--output` file is not touched by a run that gave no answer."""
    old = desk.write("answers.json", "old")
    options = ("--output", "answers.json", "--grace", "50")
    command = desk.start(desk.openai(("deaf", {})), TOOLS, *options)
    command.wait_for("deaf", "started")
    command.send(signal.SIGINT)
    command.wait_for("Interrupting")
    command.send(signal.SIGINT)
    code, _, err = command.end()
    assert code == 130
    assert old.read_text() == "old"
    assert "answers.json is unchanged" in err
    assert {path.name for path in desk.folder.glob("*answers*")} == {"answers.json"}


def test_a_third_ctrl_c_does_not_even_wait_for_the_trace(desk: Any) -> None:
    """P7: who takes the trace may not be there, or be slow; it is not worth a process."""
    os.mkfifo(desk.folder / "trace.json")  # nobody reads it
    options = ("--grace", "50", "--trace", "trace.json")
    command = desk.start(desk.openai(*DEAF_FIRST), TOOLS, *options)
    command.wait_for("deaf", "started")
    for words in ("Interrupting", "Left at once"):
        command.send(signal.SIGINT)
        command.wait_for(words)
    command.send(signal.SIGINT)
    code, out, _ = command.end()
    assert (code, out) == (130, "")


def test_signals_while_the_answer_is_written_let_it_be_completed(desk: Any) -> None:
    """No signal, not even a second one, leaves half of the JSON in a slow pipe."""
    command = desk.start(desk.openai(("large", {})), TOOLS)
    first = command.process.stdout.read(1)  # it is being written, and the pipe is full
    command.send(signal.SIGINT)
    command.send(signal.SIGTERM)  # of another number: two of one could become one
    code, rest, _ = command.end()
    assert len(json.loads(first.decode() + rest)[0]["content"]) == 1_000_000
    assert code == 0, "every call had completed before the first signal"


def test_termination_is_an_interrupt_with_a_status_of_its_own(desk: Any, backend: str) -> None:
    """SIGTERM: all results, too; 143 tells a supervisor that it was heard."""
    command = desk.start(desk.openai(("slow", {})), TOOLS, "--backend", backend)
    command.wait_for("slow", "started")
    command.send(signal.SIGTERM)
    code, out, _ = command.end()
    assert code == 143
    assert len(json.loads(out)) == 1


def test_ctrl_c_is_heard_where_the_shell_had_it_ignored(desk: Any) -> None:
    """A script's background job starts with SIGINT ignored; it is taken all the same."""
    script = 'trap "" INT; exec "$@"'
    desk.turn(desk.openai(("slow", {})))
    desk.write("tools.py", TOOLS)
    command = desk.start_raw(
        "run", "turn.json", "--tools", "tools.py", prefix=["sh", "-c", script, "sh"]
    )
    command.wait_for("slow", "started")
    command.send(signal.SIGINT)
    assert command.end()[0] == 130


def test_ctrl_c_before_any_tool_has_run(desk: Any) -> None:
    """Nothing has run, so nothing is printed: one sentence, status 130."""
    tools = """
import sys, time
print("importing", file=sys.stderr, flush=True)
time.sleep(60)
def never(): ...
"""
    command = desk.start(desk.openai(("never", {})), tools)
    command.wait_for("importing")
    command.send(signal.SIGINT)
    code, out, err = command.end()
    assert (code, out) == (130, "")
    assert "before any tool was run" in err
    assert "Traceback" not in err


def test_ctrl_c_while_the_loop_is_blocked_says_how_to_leave(desk: Any) -> None:
    """A coroutine that blocks the loop holds the first Ctrl-C, never the second."""
    # In naps: a signal that comes just before one long sleep is looked at after it.
    tools = """
import time
async def blocks():
    for _ in range(1200):
        time.sleep(0.05)
"""
    command = desk.start(desk.openai(("blocks", {})), tools)
    command.wait_for("blocks", "started")
    command.send(signal.SIGINT)
    command.wait_for("Ctrl-C once more leaves at once")
    command.send(signal.SIGINT)
    code, out, _ = command.end()
    assert (code, out) == (130, "")


def test_ctrl_c_just_before_the_batch_is_open_is_not_lost(
    desk: Any, main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: a signal that finds no batch yet keeps every tool from starting."""
    from anyio_toolbatch._cli import run

    tools = """
from pathlib import Path
def mark():
    Path("ran").touch()
"""
    desk.turn(desk.openai(("mark", {})))
    desk.write("tools.py", tools)
    monkeypatch.setattr(run, "_title", lambda *_: str(signal.raise_signal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    code, out, _ = main("run", "turn.json", "--tools", "tools.py")
    assert code == 130
    assert "not started" in json.loads(out)[0]["content"]
    assert not (desk.folder / "ran").exists()
    assert signal.getsignal(signal.SIGINT) is before, "a caller keeps its own handlers"
