"""`examples/agent.py`, used as a person would: typed to, interrupted, asked."""

from __future__ import annotations

import importlib.util
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parent.parent / "examples" / "agent.py"
LIVENESS = 30.0  # seconds, where one is meant

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process")


class Terminal:
    """The agent's process, and who sits in front of it."""

    def __init__(self, backend: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-P", "-W", "error", AGENT, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            bufsize=1,
            env=environment(),
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def wait_for(self, text: str) -> None:
        """Read until a line that has this in it."""
        try:
            while text not in (line := self._lines.get(timeout=LIVENESS)):
                self.seen.append(line)
            self.seen.append(line)
        except queue.Empty:
            pytest.fail(f"{text!r} did not come; there was {self.seen}")

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)


def environment() -> dict[str, str]:
    here = str(AGENT.parent)
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]
    path = os.pathsep.join([here, *(str(Path(folder).resolve()) for folder in folders)])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(params=["asyncio", "trio"])
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    terminal = Terminal(request.param)
    terminal.wait_for("you:")
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    for stream in (terminal.process.stdin, terminal.process.stdout):
        assert stream is not None
        stream.close()


def test_ctrl_c_stops_the_turn_and_then_the_program(terminal: Terminal) -> None:
    """P2, P3, P6, P7: the turn ends at once, a finished call is kept, the process leaves."""
    terminal.type("search Bern")
    terminal.wait_for("> search")  # which blocks for a minute
    terminal.press_ctrl_c()
    terminal.wait_for("search: Tool call interrupted by the user (the user pressed Ctrl-C)")
    terminal.type("hello")  # the history is valid: the next request is accepted
    terminal.wait_for("model: You said: hello")
    terminal.press_ctrl_c()
    assert terminal.process.wait(LIVENESS) == 0


def test_ctrl_c_with_nothing_to_stop_ends_the_program(terminal: Terminal) -> None:
    """P7: from the moment on in which it is ready."""
    terminal.press_ctrl_c()
    assert terminal.process.wait(LIVENESS) == 0


def test_no_and_yes(terminal: Terminal) -> None:
    """P6: what is not allowed never starts, and says why; what is allowed does."""
    terminal.type("note buy milk")
    terminal.wait_for("? write_note {'text': 'buy milk'}")
    terminal.type("not today")
    terminal.wait_for("write_note: Tool call not started: denied (not today)")
    terminal.wait_for("model: Done.")
    terminal.type("note buy bread")
    terminal.wait_for("? write_note")
    terminal.type("yes")
    terminal.wait_for("write_note: written (1)")


def test_new_words_while_it_works(terminal: Terminal) -> None:
    """P3, P4: they wait for what runs, as long as the user likes; then it is their turn."""
    terminal.type("search Bern")
    terminal.wait_for("> search")
    terminal.type("hello")
    terminal.type("again")
    terminal.press_ctrl_c()
    terminal.wait_for("weather: ")
    terminal.wait_for("search: Tool call")
    terminal.wait_for("model: You said: again")


def test_interrupt_while_asked(terminal: Terminal) -> None:
    """P4, P6: Ctrl-C at the question starts nothing, and the next turn is served."""
    terminal.type("note buy milk")
    terminal.wait_for("? write_note")
    terminal.press_ctrl_c()
    terminal.wait_for("write_note: Tool call not started: interrupted by the user")
    terminal.type("note buy bread")
    terminal.wait_for("? write_note {'text': 'buy bread'}")
    terminal.type("yes")
    terminal.wait_for("write_note: written (1)")  # the first was not


def test_model_that_fails_in_the_middle_of_a_call(terminal: Terminal) -> None:
    """P1, P6: half a call is answered and not run, so that the next request is accepted."""
    terminal.type("break")
    terminal.wait_for("! the model's server has hung up")
    assert not any("> search" in line for line in terminal.seen)
    terminal.type("hello")
    terminal.wait_for("model: You said: hello")


def test_end_of_the_input_ends_the_program(terminal: Terminal) -> None:
    """P7: without a user there is nothing to wait for."""
    assert terminal.process.stdin is not None
    terminal.process.stdin.close()
    assert terminal.process.wait(LIVENESS) == 0
