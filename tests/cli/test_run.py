"""The main job: a turn in, the messages to append out, and a truthful exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

signals = pytest.mark.skipif(
    sys.platform == "win32", reason="signals are sent in another way there"
)
EXAMPLES = Path(__file__).parents[2] / "examples"

TOOLS = """
import time, anyio
from anyio_toolbatch import ToolOutput, on_cancel

async def add(a: int, b: int) -> int:
    await anyio.sleep(0)
    return a + b

def greet(name: str) -> str:
    return f"Grüezi, {name}"

def broken():
    raise LookupError("nothing there")

def excuse():
    return ToolOutput("not found", is_error=True)

def deaf():
    time.sleep(60)
"""


def test_answers_an_openai_turn_on_every_backend(desk: Any, backend: str) -> None:
    """Standard output is exactly the messages to append, one per call, in call order."""
    turn = desk.openai(("greet", {"name": "Ada"}), ("add", {"a": 1, "b": 2}))
    code, out, err = desk.run(turn, TOOLS, "--backend", backend)
    assert json.loads(out) == [
        {"role": "tool", "tool_call_id": "call_0", "content": "Grüezi, Ada"},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    assert code == 0
    assert f"on {backend}" in err and "2 of 2 calls completed" in err


def test_answers_an_anthropic_turn(desk: Any) -> None:
    """Anthropic's one user message comes as a list of one: stdout has one shape."""
    turn = desk.anthropic(("add", {"a": 1, "b": 2}), ("broken", {}))
    code, out, _ = desk.run(turn, TOOLS)
    (message,) = json.loads(out)
    assert message["role"] == "user"
    assert [b["tool_use_id"] for b in message["content"]] == ["toolu_0", "toolu_1"]
    assert message["content"][0]["content"] == "3"
    assert message["content"][1]["is_error"] is True
    assert code == 1


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("add", {"a": 1, "b": 1}, 0),
        ("excuse", {}, 0),  # it completed: its answer just reports an error
        ("broken", {}, 1),
        ("add", "{broken", 1),
        ("add", {"a": 1}, 1),
        ("no_such_tool", {}, 1),
    ],
)
def test_exit_status_says_whether_all_completed(
    desk: Any, main: Any, name: str, arguments: Any, code: int
) -> None:
    """0 is promised only where every call completed."""
    desk.turn(desk.openai((name, arguments)))
    desk.write("tools.py", TOOLS)
    status, out, err = main("run", "turn.json", "--tools", "tools.py")
    assert status == code
    assert [m["tool_call_id"] for m in json.loads(out)] == ["call_0"]
    assert name in err


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Nothing to do."},
        {"role": "assistant", "content": [{"type": "text", "text": "Nothing to do."}]},
        {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"},
        {"role": "assistant", "content": None, "tool_calls": []},
        [],
    ],
)
def test_a_turn_without_calls_gives_an_empty_list(
    desk: Any, main: Any, message: object
) -> None:
    """No calls is no error, and nothing is to be appended in either format."""
    desk.turn(message)
    desk.write("tools.py", TOOLS)
    code, out, _ = main("run", "turn.json", "--tools", "tools.py")
    assert (code, json.loads(out)) == (0, [])


def test_reads_the_turn_from_standard_input(desk: Any) -> None:
    """``-`` takes the place of a file, so that the command fits into a pipe."""
    desk.write("tools.py", TOOLS)
    command = desk.start_raw("run", "-", "--tools", "tools.py", stdin=subprocess.PIPE)
    with command.process.stdin as stdin:
        stdin.write(json.dumps(desk.openai(("greet", {"name": "Bo"}))).encode())
    code, out, _ = command.end()
    assert (code, json.loads(out)[0]["content"]) == (0, "Grüezi, Bo")


def test_finds_the_tools_in_a_module_of_the_current_folder(desk: Any) -> None:
    """A module's name works as a path does, also for one that nobody installed."""
    desk.turn(desk.openai(("greet", {"name": "Cy"})))
    desk.write("my_tools.py", TOOLS)
    code, out, _ = desk.start_raw("run", "turn.json", "--tools", "my_tools").end()
    assert (code, json.loads(out)[0]["content"]) == (0, "Grüezi, Cy")


def test_an_interrupt_after_some_time(desk: Any, backend: str) -> None:
    """P2, P6: `--interrupt-after` ends the turn, with placeholders; exit status 1."""
    options = ("--interrupt-after", "0.1", "--backend", backend)
    code, out, err = desk.run(desk.openai(("deaf", {})), TOOLS, *options)
    assert "interrupted" in json.loads(out)[0]["content"]
    assert code == 1
    assert "Interrupting after 0.1 s" in err


def test_an_interrupt_after_the_end_is_none(desk: Any) -> None:
    """A batch that ends sooner neither waits for `--interrupt-after` nor suffers from it."""
    turn = desk.openai(("greet", {"name": "Di"}))
    code, _, err = desk.run(turn, TOOLS, "--interrupt-after", "3600")
    assert code == 0
    assert "Interrupting" not in err


def test_a_timeout_cuts_the_batch(desk: Any) -> None:
    """`--timeout` is the batch's limit; the results say that it was."""
    code, out, err = desk.run(desk.openai(("deaf", {})), TOOLS, "--timeout", "0.2")
    assert "timed out" in json.loads(out)[0]["content"]
    assert code == 1
    assert "call 0  deaf  timed out" in err


PATIENT = """
from anyio_toolbatch import current_call
def patient():
    current_call().cancelled.wait()
    return "half of it"
"""


@signals
def test_a_tool_that_stops_when_told_is_said_to_have_stopped(desk: Any) -> None:
    """What still runs and what has ended are told apart, after a moment to tidy up."""
    command = desk.start(desk.openai(("patient", {})), PATIENT)
    command.wait_for("started")
    command.send(signal.SIGINT)
    code, _, err = command.end()
    assert code == 130
    assert "patient (call 0): has stopped since" in err


@signals
def test_a_grace_lets_tools_give_their_own_answer(desk: Any) -> None:
    """`--grace`: an interrupted tool that answers in time has completed."""
    command = desk.start(desk.openai(("patient", {})), PATIENT, "--grace", "60")
    command.wait_for("started")
    command.send(signal.SIGINT)
    _, out, err = command.end()
    assert json.loads(out)[0]["content"] == "half of it"
    assert "1 of 1 calls completed" in err


def test_max_threads_is_kept(desk: Any, main: Any) -> None:
    """`--max-threads 1`: blocking calls run one after the other."""
    tools = """
import threading
_busy = threading.Lock()
def alone():
    assert _busy.acquire(blocking=False), "two at once"
    try:
        return "alone"
    finally:
        _busy.release()
"""
    desk.turn(desk.openai(*[("alone", {})] * 20))
    desk.write("tools.py", tools)
    code, out, _ = main("run", "turn.json", "--tools", "tools.py", "--max-threads", "1")
    assert (code, {m["content"] for m in json.loads(out)}) == (0, {"alone"})


def test_what_tools_print_goes_to_standard_error(desk: Any) -> None:
    """Whoever parses standard output finds the answer there, and nothing else."""
    tools = """
import os, sys, subprocess
print("at import")
def chatty():
    print("by print")
    os.write(1, b"by write\\n")
    subprocess.run([sys.executable, "-c", "print('by a program')"])
    return "done"
"""
    code, out, err = desk.run(desk.openai(("chatty", {})), tools)
    assert (code, json.loads(out)[0]["content"]) == (0, "done")
    for words in ("at import", "by print", "by write", "by a program"):
        assert words in err


def test_names_and_errors_cannot_move_the_cursor(desk: Any, main: Any) -> None:
    """What a model or a tool says is shown escaped, on one line."""
    desk.turn(desk.openai(("\x1b[2J\nfake line", {})))
    desk.write("tools.py", TOOLS)
    _, _, err = main("run", "turn.json", "--tools", "tools.py")
    assert "\x1b" not in err
    assert "\nfake" not in err
    assert r"\x1b[2J\nfake line" in err


def test_a_keyboard_interrupt_out_of_a_tool_counts_as_ctrl_c(desk: Any, backend: str) -> None:
    """All calls have their results when a tool raises KeyboardInterrupt; status 130."""
    tools = """
def rude():
    raise KeyboardInterrupt
async def rude_async():
    raise KeyboardInterrupt
"""
    turn = desk.openai(("rude", {}), ("rude_async", {}))
    code, out, err = desk.run(turn, tools, "--backend", backend)
    assert (code, len(json.loads(out))) == (130, 2)
    assert "Traceback" not in err


@signals
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_example_turn(desk: Any, backend: str) -> None:
    """The README's turn: finished results are kept, the deaf tool is detached."""
    command = desk.start_raw(
        *("run", str(EXAMPLES / "turn.json"), "--tools", str(EXAMPLES / "tools.py")),
        *("--backend", backend),
    )
    for name in ("fetch_weather", "call 1  search_files", "call 2  query_sales", "run_python"):
        command.wait_for(name, "completed")
    for name in ("call 3  query_sales", "wait_for_fax"):
        command.wait_for(name, "started")
    command.send(signal.SIGINT)
    code, out, err = command.end()
    contents = [message["content"] for message in json.loads(out)]
    assert code == 130
    assert contents[0] == "Oslo: 18 °C, light rain"
    assert "tools.py" in contents[1]
    assert json.loads(contents[2]) == [["Lima", 90], ["Oslo", 300]]
    assert "interrupted" in contents[3]
    assert contents[4].startswith("Python 3.")
    assert "interrupted" in contents[5]
    assert "not started" in contents[6]
    assert "query_sales (call 3): has stopped since" in err
    assert "wait_for_fax (call 5): still running, detached" in err
    assert "Traceback" not in err


def test_the_example_is_found_from_any_folder(desk: Any) -> None:
    """The example's file search looks beside the example, not where one stands."""
    desk.turn(desk.openai(("search_files", {"pattern": "Be deaf"})))
    command = desk.start_raw("run", "turn.json", "--tools", str(EXAMPLES / "tools.py"))
    _, out, _ = command.end()
    assert "tools.py:" in json.loads(out)[0]["content"]


def test_help_is_no_error(main: Any) -> None:
    """``--help`` shows the options and the exit statuses, status 0."""
    code, out, _ = main("run", "--help")
    assert code == 0
    assert "--interrupt-after" in out and "exit status" in out


# -- the timeline ----------------------------------------------------------------


def names_in(file: Path) -> list[str]:
    return [event["name"] for event in json.loads(file.read_bytes())["traceEvents"]]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_timeline_is_written_beside_the_answer(desk: Any, backend: str) -> None:
    """`--trace`: what was detached is in it; standard output has the answer alone."""
    pytest.importorskip(backend)
    turn = desk.openai(("quick", {}), ("deaf", {}))
    tools = "import time\nasync def quick(): pass\ndef deaf(): time.sleep(60)\n"
    options = ("--interrupt-after", "0.2", "--trace", "trace.json", "--backend", backend)
    code, out, err = desk.run(turn, tools, *options)
    assert code == 1
    assert len(json.loads(out)) == 2
    names = names_in(desk.folder / "trace.json")
    assert {"quick", "deaf", "running", "detached", "user_interrupt"} <= set(names)
    assert "could not be written" not in err


@signals
def test_leaving_at_once_writes_the_timeline(desk: Any) -> None:
    """It is wanted most when a turn hangs."""
    turn = desk.openai(("deaf", {}))
    tools = "import time\ndef deaf(): time.sleep(60)\n"
    command = desk.start(turn, tools, "--grace", "50", "--trace", "trace.json")
    command.wait_for("deaf", "started")
    command.send(signal.SIGINT)
    command.wait_for("once more leaves at once")
    command.send(signal.SIGINT)
    code, out, _ = command.end()
    assert (code, out) == (130, "")
    assert "deaf" in names_in(desk.folder / "trace.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trace", "."], "--trace . is a directory"),
        (["--trace", "no/file"], "--trace no/file: there is no folder"),
        (["--trace", "f", "--output", "./f"], "--output and --trace name the same file"),
    ],
)
def test_a_timeline_that_cannot_be_written_is_found_out_first(
    desk: Any, main: Any, options: list[str], words: str
) -> None:
    """Before any tool runs, in one sentence."""
    desk.turn(desk.openai(("mark", {})))
    desk.write("tools.py", "from pathlib import Path\ndef mark(): Path('ran').touch()\n")
    code, out, err = main("run", "turn.json", "--tools", "tools.py", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert not (desk.folder / "ran").exists()
