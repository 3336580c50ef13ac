"""What a call costs that does nothing, in batches of one to ten thousand."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import Any

from ..pairing import Rounds, timed
from .crew import Crew, Host
from .peer import Kind, Peer
from .roster import OURS, ROSTER, Entry

KINDS: tuple[Kind, ...] = ("async", "blocking")
ROUNDS = {1: 25, 100: 15, 1_000: 9, 10_000: 5}
"""Calls in a batch → rounds."""
REPEAT = {1: 20, 100: 3}
"""Calls in a batch → how often it is run in a round."""
BOUND = 5.0
"""A batch of ten times as many calls that would take longer than this is not run."""

_peers: dict[tuple[str, int], Peer] = {}


async def probe(entry: Entry, kind: Kind, count: int, repeat: int) -> dict[str, Any]:
    peer = _peers.get((kind, count))
    if peer is None:
        _peers.clear()
        peer = _peers[kind, count] = entry.make(
            _no_op if kind == "async" else _blocking_no_op, count, kind, history=False
        )
        await peer.turn()
        answers = await peer.results()
        if [n for n, _ in answers] != list(range(count)) or not all(
            f"done {n}" in text for n, text in answers
        ):
            msg = f"{count} calls, and {len(answers)} answers, or wrong ones"
            raise AssertionError(msg)
    gc.collect()
    return {"seconds": await timed(peer.turn, repeat)}


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
            order: Any = {"kind": kind, "count": count, "repeat": REPEAT.get(count, 1)}
            rounds.add(name, hosts[name].ask("cost", **order)["seconds"])
        found[str(count)] = {
            name: {
                "seconds": rounds.median(name) / count,
                "ratio": rounds.ratio(name, ROSTER[name].beside),
            }
            for name in names
        }
        names = [n for n in names if n in OURS or 10 * rounds.median(n) < BOUND]
    return found
