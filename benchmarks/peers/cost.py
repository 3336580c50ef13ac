"""
What a call costs that does nothing, in batches of one to ten thousand.

Counted in the time that the peer's process has used, its threads included: on a machine with
other work the clock on the wall tells mostly of that.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack
from typing import Any

from ..pairing import Rounds, timed
from .crew import Crew, Host
from .peer import Kind, Peer
from .roster import OURS, ROSTER, Entry

KINDS: tuple[Kind, ...] = ("async", "blocking")
ROUNDS = {1: 15, 100: 9, 1_000: 7, 10_000: 3}
"""Calls in a batch → rounds."""
AT_LEAST = 0.03
"""Seconds that a batch is run again and again in each round: one alone says little."""
BOUND = 3.0
"""A batch of ten times as many calls that would cost more seconds than this is not run."""

_ready: dict[tuple[str, int], tuple[Peer, int]] = {}


async def probe(entry: Entry, kind: Kind, count: int, at_least: float) -> dict[str, Any]:
    if (kind, count) not in _ready:
        _ready.clear()
        _ready[kind, count] = await _prepare(entry, kind, count, at_least)
    peer, repeat = _ready[kind, count]
    gc.collect()
    used = time.process_time()
    wall = await timed(peer.turn, repeat)
    return {"wall": wall, "cpu": (time.process_time() - used) / repeat}


async def _prepare(entry: Entry, kind: Kind, count: int, at_least: float) -> tuple[Peer, int]:
    """Make the peer, look whether it does the work, and find how often a round repeats it."""
    tool = _no_op if kind == "async" else _blocking_no_op
    peer: Peer = entry.make(tool, count, kind, history=False)
    await peer.turn()
    answers = await peer.results()
    if [n for n, _ in answers] != list(range(count)) or not all(
        f"done {n}" in text for n, text in answers
    ):
        msg = f"{count} calls, and {len(answers)} answers, or wrong ones"
        raise AssertionError(msg)
    return peer, math.ceil(at_least / await timed(peer.turn))


async def _no_op(n: int) -> str:
    """Work."""
    return f"done {n}"


def _blocking_no_op(n: int) -> str:
    """Work."""
    return f"done {n}"


def measure(crew: Crew, quick: bool) -> dict[str, Any]:
    """Return kind → count → peer → seconds per call, and what they are of ours."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        names = [name for name in crew.names("cost") if kind in ROSTER[name].kinds]
        with ExitStack() as stack:
            hosts = {name: stack.enter_context(crew.host(name)) for name in names}
            found[kind] = _measure(kind, hosts, quick)
    return found


def _measure(kind: Kind, hosts: dict[str, Host], quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = list(hosts)
    for count, times in ROUNDS.items():
        rounds = Rounds(2 if quick else times, names)
        for name in rounds:
            answer = hosts[name].ask("cost", kind=kind, count=count, at_least=AT_LEAST)
            rounds.add(name, answer["cpu"])
            rounds.add((name, "wall"), answer["wall"])
        found[str(count)] = {
            name: {
                "cpu": rounds.median(name) / count,
                "ratio": rounds.ratio(name, ROSTER[name].beside),
                "wall": rounds.median((name, "wall")) / count,
            }
            for name in names
        }
        names = [n for n in names if n in OURS or 10 * rounds.median(n) < BOUND]
    return found
