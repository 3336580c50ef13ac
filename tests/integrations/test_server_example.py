"""`examples/server.py`, served for real, with real clients."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
LIVENESS = 30.0  # seconds, where one is meant


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "server:app", "--port", str(port)]
    process = subprocess.Popen([sys.executable, *command, "--log-level", "warning"])
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + LIVENESS
    while True:
        try:
            httpx.post(f"{address}/turns/nobody/stop")
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield address
    process.terminate()
    # P7: calls that were let go, and sleep for a minute, do not hold the server.
    assert process.wait(LIVENESS) in {0, -15}


class Turn:
    """A client that starts a turn and reads its events."""

    def __init__(self, address: str, user: str, text: str) -> None:
        self._url = f"{address}/turns/{user}"
        self._text = text
        self.events: list[tuple[str, Any]] = []
        self.has = threading.Condition()
        self.is_over = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, content=self._text, timeout=LIVENESS) as response:
            kind = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    self._note((kind, json.loads(line[6:])))
        with self.has:
            self.is_over = True
            self.has.notify_all()

    def _note(self, event: tuple[str, Any]) -> None:
        with self.has:
            self.events.append(event)
            self.has.notify_all()

    def wait_for(self, event: tuple[str, Any]) -> None:
        with self.has:
            assert self.has.wait_for(lambda: event in self.events, LIVENESS), self.events

    def wait_over(self) -> None:
        with self.has:
            assert self.has.wait_for(lambda: self.is_over, LIVENESS), self.events
        self.thread.join(LIVENESS)

    def stop(self) -> bool:
        return bool(httpx.post(f"{self._url}/stop", timeout=LIVENESS).json()["stopped"])


def test_each_user_has_a_stop_button(server: str) -> None:
    """P2, P3, P6: one turn is stopped at once, finished results kept; the other goes on."""
    ada, bob = Turn(server, "ada", "search Bern"), Turn(server, "bob", "search Rome")
    for turn, city in ((ada, "Bern"), (bob, "Rome")):
        turn.wait_for(("started", "search"))  # which blocks for a minute
        turn.wait_for(("result", f"{city}: rain"))
    assert ada.stop()
    ada.wait_over()
    assert any("interrupted by the user" in str(data) for _, data in ada.events)
    assert not bob.is_over
    # The history is valid: the next request is accepted.
    again = Turn(server, "ada", "hello")
    again.wait_for(("message", "You said: hello "))
    again.wait_over()
    assert bob.stop()
    bob.wait_over()
    assert not bob.stop()


def test_one_turn_at_a_time_for_each_user(server: str) -> None:
    """A second turn of one user would write into the history of the first."""
    ada = Turn(server, "ada", "search Bern")
    ada.wait_for(("started", "search"))
    response = httpx.post(f"{server}/turns/ada", content="hello", timeout=LIVENESS)
    assert response.status_code == 409
    assert ada.stop()
    ada.wait_over()


def test_model_that_fails_is_one_users_fault(server: str) -> None:
    """P8, P1: the turn of another user goes on, and its own history stays valid."""
    bob = Turn(server, "bob", "search Rome")
    bob.wait_for(("started", "search"))
    ada = Turn(server, "ada", "break")
    ada.wait_over()
    assert ("error", "the model's server has hung up") in ada.events
    again = Turn(server, "ada", "hello")
    again.wait_for(("message", "You said: hello "))
    again.wait_over()
    assert not bob.is_over
    assert bob.stop()
    bob.wait_over()


def test_who_goes_away_stops_the_turn(server: str) -> None:
    """P2, P1: a closed connection ends the turn, and the history stays valid."""
    subprocess.run([sys.executable, "-c", LEAVE, server], check=True, timeout=LIVENESS)
    deadline = time.monotonic() + LIVENESS  # the search would take twice that
    while True:
        again = httpx.post(f"{server}/turns/ada", content="hello", timeout=LIVENESS)
        if again.status_code != 409:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "You said: hello" in again.text


LEAVE = """
import sys, httpx
with httpx.stream("POST", sys.argv[1] + "/turns/ada", content="search Bern") as response:
    for line in response.iter_lines():
        if "search" in line:
            break
"""
