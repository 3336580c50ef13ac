"""
A stop while one of eight blocking calls is at work and the others are done.

How long until the caller has the say again, what is kept, and what comes late. The late
tool ends when the results have been read, and at the latest `LEFT` seconds after the stop;
before it returns it writes, by the peer's own way from a thread to the loop, into a list
that the next turn has before its eyes.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel

from ..pairing import Rounds
from .crew import Crew
from .peer import Peer
from .roster import Entry

COUNT = 8
LATE = 3
"""The call that is at work at the stop; neither the first nor the last, for the order."""
LEFT = 2.0
SETTLING = 0.3
"""Seconds for the answers of the others to be with the peer, too, and for late ones."""
PATIENCE = 60.0


class Scene:
    """
    Eight calls of which one goes on until `release`.

    Args:
        entry: Who runs them.
        writes: Whether that one, before it ends, writes to `landed` on the loop.
    """

    def __init__(self, entry: Entry, *, writes: bool) -> None:
        self._writes = writes
        self.landed: list[str] = []
        self.release = threading.Event()
        self.ended = threading.Event()
        self.stopped = 0.0
        self._late = threading.Event()
        self._done = threading.Semaphore(0)
        self.peer: Peer = entry.make(self._tool, COUNT, "blocking", history=True)

    def _tool(self, n: int) -> str:
        if n != LATE:
            self._done.release()
            return f"done {n}"
        self._late.set()
        self.release.wait(PATIENCE)
        try:
            if self._writes:
                self.peer.hand_over(lambda: self.landed.append("late"))
        finally:
            self.ended.set()
        return f"done {n}"

    async def play(self, left: float) -> float:
        """Run and stop the turn; return the seconds from the stop until it is over."""
        token = anyio.lowlevel.current_token()

        def strike() -> None:
            self.stopped = time.monotonic()
            timer = threading.Timer(left, self.release.set)
            timer.daemon = True  # it must not be what holds the process
            timer.start()
            self.peer.stop()

        def watch() -> None:
            self._late.wait(PATIENCE)
            for _ in range(COUNT - 1):
                self._done.acquire(timeout=PATIENCE)
            time.sleep(SETTLING)
            anyio.from_thread.run_sync(strike, token=token)

        # Not in the loop's own pool, which the tools may fill.
        threading.Thread(target=watch, daemon=True).start()
        await self.peer.start()
        return time.monotonic() - self.stopped


async def probe(entry: Entry, left: float) -> dict[str, Any]:
    scene = Scene(entry, writes=True)
    back = await scene.play(left)
    waited = scene.ended.is_set()
    first = await scene.peer.results()
    scene.release.set()
    while not scene.ended.is_set():
        await anyio.sleep(0.01)
    await anyio.sleep(SETTLING)
    second = await scene.peer.results()
    texts = dict(first)
    return {
        "back": back,
        "kept": sum(f"done {n}" in texts.get(n, "") for n in range(COUNT) if n != LATE),
        "answered": [n for n, _ in first] == list(range(COUNT)),
        "waited": waited,
        "returns": f"done {LATE}" in dict(second).get(LATE, "") and not waited,
        "writes": bool(scene.landed) and not waited,
    }


def measure(crew: Crew, quick: bool) -> dict[str, Any]:
    names = crew.names("stop")
    rounds = Rounds(1 if quick else 5, names)
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in rounds:
        with crew.host(name) as host:
            found = host.ask("stop", left=LEFT)
        rounds.add(name, found["back"])
        seen[name].append(found)
    return {name: {"back": rounds.median(name), **_worst(seen[name])} for name in names}


def _worst(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kept": min(run["kept"] for run in runs),
        "answered": all(run["answered"] for run in runs),
        "waited": any(run["waited"] for run in runs),
        "returns": any(run["returns"] for run in runs),
        "writes": any(run["writes"] for run in runs),
    }
