"""
The command as a process of its own, with real signals; no test sleeps.

A test waits for a line of the command's before it does the next thing. All
bounds are those of liveness: seconds, where being wrong would take minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

SOON = 20.0
"""Seconds in which anything here must have happened, on a busy machine too."""


class Command:
    """A running command; its standard error is read line by line as it comes."""

    def __init__(
        self,
        args: list[str],
        cwd: Path,
        *,
        prefix: list[str] | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        # -P: the folder it runs in is not searched by Python itself.
        self.process = subprocess.Popen(
            [*(prefix or ()), sys.executable, "-P", "-m", "anyio_toolbatch", *args],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "cwd": cwd,
                "env": environment(**(env or {})),
                **options,
            },
        )
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,))
        self._reader.start()

    def _read(self, stream: IO[bytes] | None) -> None:
        for line in stream or ():
            self._queue.put(line.decode().rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, *words: str) -> str:
        """Wait until there is, or has been, a line of standard error with all the words."""
        seen = 0
        while True:
            for line in self.lines[seen:]:
                if all(word in line for word in words):
                    return line
            seen = len(self.lines)
            new = self._queue.get(timeout=SOON)
            if new is None:
                self._queue.put(None)
                pytest.fail(f"no line with {words}; there was: {self.lines}")
            self.lines.append(new)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = SOON) -> tuple[int, str, str]:
        """Wait for its end: exit status, standard output, standard error."""
        out: list[bytes] = []
        stdout = self.process.stdout
        # A full pipe would keep it from ending.
        drain = threading.Thread(target=lambda: stdout and out.append(stdout.read()))
        drain.start()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            drain.join()
            pytest.fail(f"the command did not end; it said: {self.lines}")
        drain.join()
        self.close()
        while (line := self._queue.get(timeout=SOON)) is not None:
            self.lines.append(line)
        return self.process.returncode, b"".join(out).decode(), "\n".join(self.lines)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def environment(**more: str) -> dict[str, str]:
    """The tests' own environment, made fit for another folder and for all machines."""
    env = {**os.environ, **more, "PYTHONIOENCODING": "utf-8"}
    env.pop("NO_COLOR", None)
    folders = [*more.get("PYTHONPATH", "").split(os.pathsep)]
    folders += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Given relative to the folder that the tests run in.
    env["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in folders if p)
    return env


class Desk:
    """A folder with a turn and its tools, and the command to run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    @staticmethod
    def openai(*calls: tuple[str, dict[str, Any] | str]) -> dict[str, Any]:
        """An assistant message of OpenAI's; arguments as a dict, or as raw text."""
        items = []
        for place, (name, arguments) in enumerate(calls):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            function = {"name": name, "arguments": text}
            items.append({"id": f"call_{place}", "type": "function", "function": function})
        return {"role": "assistant", "content": None, "tool_calls": items}

    @staticmethod
    def anthropic(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": "I will look."}]
        for place, (name, arguments) in enumerate(calls):
            block = {"type": "tool_use", "id": f"toolu_{place}", "name": name}
            content.append({**block, "input": arguments})
        return {"role": "assistant", "content": content}

    def turn(self, message: object) -> Path:
        return self.write("turn.json", json.dumps(message))

    def start(self, message: object, tools: str, *args: str, **options: Any) -> Command:
        self.turn(message)
        self.write("tools.py", tools)
        return self.start_raw("run", "turn.json", "--tools", "tools.py", *args, **options)

    def start_raw(self, *args: str, **options: Any) -> Command:
        command = Command(list(args), self.folder, **options)
        self.commands.append(command)
        return command

    def run(
        self, message: object, tools: str, *args: str, **options: Any
    ) -> tuple[int, str, str]:
        return self.start(message, tools, *args, **options).end()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for command in made.commands:
        command.close()


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: quick, for all that ends before a loop starts."""
    from anyio_toolbatch._cli import main as real

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def call(*args: str) -> tuple[int, str, str]:
        before = set(sys.modules)
        try:
            code = real([str(arg) for arg in args])
        finally:
            for name in set(sys.modules) - before:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if file.startswith(str(tmp_path)):
                    del sys.modules[name]
        out, err = capfd.readouterr()
        return code, out, err

    return call


def _backends() -> list[Any]:
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
            ),
        )
        for name in ("asyncio", "uvloop", "trio")
    ]


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
