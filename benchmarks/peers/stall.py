"""
How long the loop stands still while a thousand running async calls are stopped.

A gap between two passes is counted in the time that the loop's thread itself has used: what
the machine does meanwhile for others says nothing about a peer.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel

from ..pairing import Rounds
from .crew import Crew
from .peer import Peer
from .roster import OURS, Entry

COUNT = 1000
IDLE = 0.05
"""Seconds of quiet before the stop, and to watch where nothing is stopped."""
PATIENCE = 60.0
ALONE = "toolbatch, left alone"
"""Nothing is stopped in this one: what the machine does by itself."""


async def probe(entry: Entry, count: int, stops: bool) -> dict[str, Any]:
    started: list[int] = []
    ended: list[int] = []

    async def tool(n: int) -> str:
        started.append(n)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(n)
        return ""

    peer: Peer = entry.make(tool, count, "async", history=True)
    over = anyio.Event()

    async def turn() -> None:
        await peer.start()
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(turn)
        with anyio.fail_after(PATIENCE):
            while len(started) < count:
                await anyio.sleep(0.005)
            await anyio.sleep(IDLE)
            start = time.perf_counter()
            last = time.thread_time()
            longest = back = 0.0
            if stops:
                peer.stop()
            while not over.is_set() or len(ended) < count:
                await anyio.lowlevel.checkpoint()
                now = time.thread_time()
                longest = max(longest, now - last)
                last = now
                if over.is_set():
                    back = back or time.perf_counter() - start
                elif not stops and time.perf_counter() - start > IDLE:
                    peer.stop()
                    await over.wait()
                    break
    return {"longest": longest, "back": back}


def measure(crew: Crew, quick: bool) -> dict[str, Any]:
    names = crew.names("stall")
    rounds = Rounds(3 if quick else 9, [ALONE, *names])
    with ExitStack() as stack:
        hosts = {name: stack.enter_context(crew.host(name)) for name in names}
        hosts[ALONE] = hosts[OURS[0]]
        for name in rounds:
            found = hosts[name].ask("stall", count=COUNT, stops=name != ALONE)
            for what, value in found.items():
                rounds.add((name, what), value)
    return {
        name: {what: rounds.median((name, what)) for what in ("longest", "back")}
        for name in [ALONE, *names]
    }
