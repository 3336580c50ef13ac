"""
A peer's own process: ``python -m benchmarks.peers.host NAME``.

Reads orders from its standard input, a JSON object in each line, and carries them out on
one event loop; writes an answer for each to its standard output. An order says the
measure, its options, and whether it is the last one: then the loop ends, and the time of
that is the answer to a question that needs no asking.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any

import anyio

from . import cost, leaving, stall, stop
from .roster import ROSTER, Entry

PROBES: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "stop": stop.probe,
    "leaving": leaving.probe,
    "stall": stall.probe,
    "cost": cost.probe,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What a framework prints is not for whoever reads the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    entry = ROSTER[sys.argv[1]]
    anyio.run(_serve, entry, answers, backend=entry.loop)
    print(json.dumps({"returned": time.monotonic()}), file=answers)


async def _serve(entry: Entry, answers: IO[str]) -> None:
    # Reading blocks the loop: nothing else is to happen on it meanwhile.
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        try:
            answer = await PROBES[order["measure"]](entry, **order["options"])
        except Exception as exc:
            answer = {"error": repr(exc)}
        print(json.dumps(answer), file=answers)
        if order["last"]:
            return


if __name__ == "__main__":
    main()
