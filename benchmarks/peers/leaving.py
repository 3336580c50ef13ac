"""The end of the process when a blocking call that was stopped is still at work."""

from __future__ import annotations

import time
from typing import Any

from ..pairing import Rounds
from .crew import Crew
from .roster import Entry
from .stop import Scene

LEFT = 5.0


async def probe(entry: Entry, left: float) -> dict[str, Any]:
    # It writes nothing: some ways to a loop that has ended wait for ever.
    scene = Scene(entry, writes=False)
    await scene.play(left)
    return {"stopped": scene.stopped, "back": time.monotonic()}


def measure(crew: Crew, quick: bool) -> dict[str, Any]:
    names = crew.names("leaving")
    rounds = Rounds(1 if quick else 3, names)
    for name in rounds:
        with crew.host(name) as host:
            found = host.ask("leaving", last=True, left=LEFT)
            found |= host.leave()
        for what in ("back", "returned", "gone"):
            rounds.add((name, what), found[what] - found["stopped"])
    return {
        name: {what: rounds.median((name, what)) for what in ("back", "returned", "gone")}
        for name in names
    }
