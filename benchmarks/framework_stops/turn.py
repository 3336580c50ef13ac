"""
A turn of eight blocking calls that is stopped when seven are done, in one framework.

Each program beside this one makes a `Turn`, and gives it to `measure`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio_toolbatch import ToolRunner

__all__ = ("CALLS", "Answers", "Turn", "measure")

CALLS = [(f"call_{n}", n) for n in range(8)]
"""What the scripted model asks for: the id and the one argument of each call."""

Answers = list[tuple[str, str]]


class Turn:
    """
    An agent in one framework, with or without this library.

    Args:
        runner: None for the framework alone.
        work: The tool: ``work(n: int) -> str``, blocking.
    """

    def __init__(self, runner: ToolRunner | None, work: Callable[..., str]) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Run the agent; the first answer of the model is `CALLS`."""
        raise NotImplementedError

    def end_early(self) -> None:
        """Ask for the framework's own orderly end, if it has one."""

    async def next_request(self) -> tuple[list[str], Answers]:
        """Go on with what is left; return what the model gets: calls, and answers."""
        raise NotImplementedError


def measure(make: Callable[[ToolRunner | None, Callable[..., str]], Turn]) -> None:
    """Run one turn as the command line says, and write down what happened."""
    who, how, left, out = sys.argv[1:]
    logging.disable(logging.CRITICAL)  # a scripted model gives some of them to talk about
    done = threading.Semaphore(0)
    waiting = threading.Event()
    found: dict[str, Any] = {}

    def work(n: int) -> str:
        """Do a piece of work."""
        if n == 7:
            waiting.set()
            time.sleep(float(left))
        else:
            done.release()
        return f"done {n}"

    def all_but_one_done() -> None:
        waiting.wait(10)
        for _ in range(7):
            done.acquire(timeout=10)
        time.sleep(0.3)  # their answers are with the framework, too

    async def main() -> None:
        runner = None if who == "alone" else ToolRunner()
        turn = make(runner, work)
        task = asyncio.ensure_future(turn.run())
        # In a thread of its own: the loop's pool is the tools'.
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()

        def watch() -> None:
            all_but_one_done()
            found["start"] = time.monotonic()  # here: a tool may block the loop itself
            loop.call_soon_threadsafe(ready.set)

        threading.Thread(target=watch, daemon=True).start()
        await ready.wait()
        if how == "cancel":
            task.cancel()
        else:
            turn.end_early()
            if runner is not None:
                runner.interrupt()
        try:
            await task
        except asyncio.CancelledError:
            pass
        except Exception as exc:
            found["raised"] = type(exc).__name__
        found["back"] = time.monotonic() - found["start"]
        try:
            asked, answers = await turn.next_request()
        except Exception as exc:
            found.update(kept=0, valid=repr(exc)[:60])
        else:
            texts = dict(answers)
            found["kept"] = sum(texts.get(id_) == f"done {n}" for id_, n in CALLS[:7])
            found["valid"] = (
                "yes" if Counter(asked) == Counter(id_ for id_, _ in answers) else "no"
            )
            if not asked:
                found["valid"] += ", the turn is gone"

    asyncio.run(main())
    found["returned"] = time.monotonic() - found["start"]
    Path(out).write_text(json.dumps(found), "utf-8")
