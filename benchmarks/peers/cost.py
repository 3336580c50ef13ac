"""What a call costs that does nothing, in batches of one to ten thousand."""

from __future__ import annotations

import gc
import math
from contextlib import ExitStack
from typing import Any

from ..pairing import Rounds, timed
from .crew import Crew, Host
from .peer import Kind, Peer
from .roster import OURS, ROSTER, Entry

KINDS: tuple[Kind, ...] = ("async", "blocking")
ROUNDS = {1: 25, 100: 15, 1_000: 9, 10_000: 5}
"""Calls in a batch → rounds."""
AT_LEAST = 0.03
"""Seconds that a batch is run again and again in each round: one alone says little."""
BOUND = 5.0
"""A batch of ten times as many calls that would take longer than this is not run."""

_ready: dict[tuple[str, int], tuple[Peer, int]] = {}


async def probe(entry: Entry, kind: Kind, count: int, at_least: float) -> dict[str, Any]:
    if (kind, count) not in _ready:
        _ready.clear()
        _ready[kind, count] = await _prepare(entry, kind, count, at_least)
    peer, repeat = _ready[kind, count]
    gc.collect()
    return {"seconds": await timed(peer.turn, repeat)}


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
    """Return kind → count → peer → seconds per call, and as a multiple of ours."""
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
            rounds.add(name, answer["seconds"])
        found[str(count)] = {
            name: {
                "seconds": rounds.median(name) / count,
                "ratio": rounds.ratio(name, ROSTER[name].beside),
            }
            for name in names
        }
        names = [n for n in names if n in OURS or 10 * rounds.median(n) < BOUND]
    return found
