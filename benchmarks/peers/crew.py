"""Starts the peers' processes, and asks them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from .roster import ROSTER

__all__ = ("Crew", "Host", "PeerError")

PATIENCE = 60.0
"""Seconds that a process is waited for at its end, then it is killed."""
ASK_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class PeerError(Exception):
    """A peer's process has met an error, or has ended."""


class Host:
    """One peer's process; ended, if need be by force, at the end of the block."""

    def __init__(self, name: str, python: str) -> None:
        self._name = name
        self._process: Any = subprocess.Popen(
            [python, "-m", f"{__package__}.host", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, measure: str, *, last: bool = False, **options: Any) -> dict[str, Any]:
        """
        Have one order carried out.

        Raises:
            PeerError: It could not be.
        """
        order = {"measure": measure, "options": options, "last": last}
        with suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._read()

    def leave(self) -> dict[str, float]:
        """After the last order: wait until the process is gone; say when what happened."""
        found = self._read()
        self._process.wait(PATIENCE)
        return {**found, "gone": time.monotonic()}

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            msg = f"{self._name}: {answer['error']}"
            raise PeerError(msg)
        return answer


class Crew:
    """
    The peers that can be had here.

    Args:
        pythons: Peer → the Python to run it with, where it is not this one.
    """

    def __init__(self, pythons: Mapping[str, str]) -> None:
        self._pythons = pythons
        self.versions: dict[str, str] = {}
        """Distribution → version, of all that are measured."""
        self.missing: dict[str, str] = {}
        """Peer → why it is not measured."""
        common = ("anyio", "trio")
        own = {e.distribution for e in ROSTER.values() if e.distribution is not None}
        here = _versions(sys.executable, *common, *own)
        self.versions |= {name: here[name] for name in common if name in here}
        for name, entry in ROSTER.items():
            wanted = entry.distribution or entry.loop
            if wanted == "asyncio":
                continue
            found = here if name not in pythons else _versions(pythons[name], wanted)
            if wanted in found:
                self.versions[wanted] = found[wanted]
            else:
                self.missing[name] = f"{wanted} is not installed"

    def names(self, measure: str) -> list[str]:
        """Return who takes part, in the roster's order."""
        return [
            name
            for name, entry in ROSTER.items()
            if name not in self.missing and measure not in entry.left_out
        ]

    def host(self, name: str) -> Host:
        return Host(name, self._pythons.get(name, sys.executable))


def _versions(python: str, *names: str) -> dict[str, str]:
    asked = [python, "-c", ASK_VERSIONS, *names]
    found: dict[str, str] = json.loads(subprocess.check_output(asked, text=True))
    return found
