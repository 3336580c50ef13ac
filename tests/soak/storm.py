"""
Random turns: what a program does in a year, in a minute.

A *turn* is one batch of a few random calls, ended in a random way: by itself, an
interrupt from the loop or from a thread, a cancellation, a timeout. Its results are
checked. What is random comes from one generator, so that a seed says what is run; when
things happen the machine says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import anyio

from anyio_toolbatch import (
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolOutput,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    report_progress,
    run_batch,
)
from anyio_toolbatch.testing import PromiseObserver

MAX_PAUSE = 0.004  # seconds; of the order of what a turn takes
LONG = 60.0  # seconds that no call is let to last
PROCESS_EVERY = 400
"""In so many turns is one with a process: its start costs as much as some hundred turns."""


# -- tools ---------------------------------------------------------------------


async def quick(pause: float = 0.0) -> str:
    return "quick"


async def naps(pause: float) -> str:
    await anyio.sleep(pause)
    return "slept"


async def sleeps(pause: float) -> None:
    await anyio.sleep(LONG)


async def cleans_up(pause: float) -> None:
    try:
        await anyio.sleep(LONG)
    finally:
        await anyio.sleep(pause)


async def is_shielded(pause: float) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(pause)


async def is_deaf(pause: float) -> str:
    until = time.monotonic() + pause
    while time.monotonic() < until:
        try:
            await anyio.sleep(pause)
        except anyio.get_cancelled_exc_class():
            pass
    return "deaf"


async def opens_a_group(pause: float) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, pause)
        group.start_soon(anyio.sleep, pause / 2)


async def fails(pause: float) -> None:
    await anyio.sleep(pause)
    raise ValueError("as it happens")


async def exits(pause: float) -> None:
    sys.exit(3)


async def is_cancelled_within(pause: float) -> None:
    raise asyncio.CancelledError


async def streams(pause: float) -> AsyncIterator[float]:
    for _ in range(3):
        await anyio.sleep(pause / 3)
        yield pause


async def tells(pause: float) -> ToolOutput:
    with on_cancel(lambda: None):
        report_progress(1, 2)
        keep_partial("half")
        await anyio.sleep(pause)
        report_progress(2, 2)
    return ToolOutput("told", is_error=True)


def computes(pause: float) -> str:
    return "computed"


def blocks(pause: float) -> str:
    time.sleep(pause)
    return "blocked"


def listens(pause: float) -> None:
    current_call().cancelled.wait(LONG)


def raises(pause: float) -> None:
    raise RuntimeError("as it happens")


def yields(pause: float) -> Iterator[float]:
    for _ in range(3):
        yield pause


def visits_the_loop(pause: float) -> str:
    from_thread.run(anyio.sleep, pause)
    return str(from_thread.run_sync(lambda: "visited"))


def is_unblocked(pause: float) -> None:
    gate = threading.Event()
    with on_cancel(gate.set):
        keep_partial([1, 2])
        gate.wait(LONG)


def gives_an_awaitable(pause: float) -> Awaitable[str]:
    return naps(pause)


async def runs_a_batch(pause: float) -> list[str]:
    inner = [ToolCall("a", "naps", {"pause": pause}), ToolCall("b", "computes", {"pause": 0})]
    return [result.text for result in await run_batch(inner, [naps, computes])]


def runs_a_batch_from_a_thread(pause: float) -> Any:
    return from_thread.run(runs_a_batch, pause)


async def cuts_its_own_batch(pause: float) -> bool:
    async with ToolRunner([sleeps, listens]) as runner:
        names = ("sleeps", "listens")
        calls = [ToolCall(name, name, {"pause": pause}) for name in names]
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(pause)
            batch.interrupt()
    return batch.interrupted


def key(pause: float) -> str:
    return f"record {int(pause * 10_000) % 3}"


def path(pause: float) -> Path:
    return Path("/soak", str(int(pause * 10_000) % 3))


TOOLS = [
    quick,
    naps,
    sleeps,
    cleans_up,
    is_shielded,
    is_deaf,
    opens_a_group,
    fails,
    exits,
    is_cancelled_within,
    streams,
    tells,
    computes,
    blocks,
    listens,
    raises,
    yields,
    visits_the_loop,
    is_unblocked,
    gives_an_awaitable,
    runs_a_batch,
    runs_a_batch_from_a_thread,
    cuts_its_own_batch,
    Tool(naps, name="reads", reads=key),
    Tool(naps, name="writes", writes=key),
    Tool(blocks, name="writes_blocking", writes=key),
    Tool(blocks, name="writes_a_path", writes=path),
    Tool(quick, name="is_alone", exclusive=True),
    Tool(naps, name="is_limited", max_concurrency=2),
    Tool(naps, name="needs_no_slot", needs_slot=False),
    Tool(naps, name="is_kept", on_interrupt="keep"),
    Tool(blocks, name="is_kept_blocking", on_interrupt="keep"),
    Tool(naps, name="has_its_own_loop", runs_in="thread"),
    Tool(sleeps, name="runs_out_of_time", timeout=MAX_PAUSE / 2),
    Tool(listens, name="runs_out_of_time_blocking", timeout=MAX_PAUSE / 2),
]
NAMES = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in TOOLS]
IN_A_PROCESS = Tool(textwrap.dedent, name="in_a_process", runs_in="process")

NEVER_END = {"sleeps", "cleans_up", "listens", "is_unblocked"}
"""Without somebody to cut them."""


# -- turns ---------------------------------------------------------------------


async def approve(call: ToolCall) -> bool | str:
    """Answer at random, as far as the call's arguments are."""
    pause = float(call.arguments.get("pause", 0.0)) if call.parse_error is None else 0.0
    await anyio.sleep(pause / 4)
    match int(pause * 1_000_000) % 8:
        case 0:
            return False
        case 1:
            return "not today"
        case 2:
            raise ConnectionError("nobody is there")
        case _:
            return True


class BrokenError(Exception):
    """The code around a batch fails."""


class Leaked:
    """What a turn leaves behind, where it is asked to."""

    kept: ClassVar[list[Any]] = []

    @classmethod
    def leave(cls, what: str) -> None:
        match what:
            case "object":
                cls.kept.append(cls())
            case "descriptor":
                cls.kept.append(os.dup(0))
            case "thread":
                threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()
            case "task":
                cls.kept.append(asyncio.ensure_future(asyncio.sleep(LONG)))
            case "log":
                logging.getLogger("storm").warning("as was asked for")
            case _:
                pass


class Storm:
    """
    Runs turns on a runner, one after another or several at once.

    Args:
        seed: Of what is random.
        leak: What each turn is to leave behind; to see that it is noticed.
    """

    def __init__(self, seed: int, leak: str = "") -> None:
        self._random = random.Random(seed)
        self._leak = leak
        self.turns = 0
        self.statuses: Counter[str] = Counter()
        """Status, or reason, → how many results had it."""
        self._ends: list[Callable[[ToolRunner, list[ToolCall]], Awaitable[Any]]] = [
            self._interrupted,
            self._interrupted,
            self._interrupted_from_a_thread,
            self._runner_interrupted,
            self._call_cancelled,
            self._superseded,
            self._timed_out,
            self._caller_cancelled,
            self._block_broken,
            self._submitted_one_by_one,
            self._read,
        ]

    async def turn(self, runner: ToolRunner) -> None:
        """Run one turn to its end; what it has left behind may still be on its way out."""
        self.turns += 1
        Leaked.leave(self._leak)
        calls = self._calls()
        if any(call.name in NEVER_END for call in calls):
            await self._random.choice(self._ends)(runner, calls)
        else:
            await self._random.choice([*self._ends, self._undisturbed, self._fail_fast])(
                runner, calls
            )

    def _calls(self) -> list[ToolCall]:
        calls = []
        for n in range(self._random.choice((0, 1, 1, 2, 3, 4, 6))):
            arguments: Any = {"pause": self._random.random() * MAX_PAUSE}
            name = self._random.choice(NAMES)
            match self._random.randrange(60):
                case 0:
                    name = "unknown"
                case 1:
                    arguments = '{"pause": 0.0'
                case 2:
                    arguments = {"paws": 4}
                case _:
                    pass
            id = "same" if self._random.randrange(20) == 0 else f"call-{n}"
            calls.append(ToolCall(id, name, arguments))
        if self.turns % PROCESS_EVERY == 0:
            calls.append(
                ToolCall("process", "in_a_process", {"text": " was there"}, tool=IN_A_PROCESS)
            )
        return calls

    def _pause(self) -> float:
        return self._random.random() * MAX_PAUSE

    # Each way to end a turn takes the runner and the calls.

    async def _undisturbed(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        self._check(calls, await runner.run(calls))

    async def _fail_fast(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        self._check(calls, await runner.run(calls, fail_fast=True))

    async def _timed_out(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        # Time stands still behind an approval, and then runs on; it always ends.
        self._check(calls, await runner.run(calls, timeout=self._pause()))

    async def _interrupted(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        grace = self._random.choice((None, 0.0, MAX_PAUSE))
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(self._pause())
            batch.interrupt("enough", grace=grace)
            if self._random.randrange(4) == 0:
                batch.interrupt()
        self._check_batch(calls, batch)

    async def _interrupted_from_a_thread(
        self, runner: ToolRunner, calls: list[ToolCall]
    ) -> None:
        async with runner.open_batch(calls) as batch:
            timer = threading.Timer(self._pause(), batch.interrupt)
            timer.daemon = True
            timer.start()
        timer.cancel()
        self._check_batch(calls, batch)

    async def _runner_interrupted(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(self._pause())
            runner.interrupt()
        self._check_batch(calls, batch)

    async def _call_cancelled(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(self._pause())
            for call in calls:
                if call.name in NEVER_END or self._random.randrange(2):
                    batch.cancel(call.id)
        self._check_batch(calls, batch)

    async def _superseded(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(self._pause())
            batch.supersede("newer words")
            await anyio.sleep(self._pause())
            batch.interrupt()
        self._check_batch(calls, batch)

    async def _caller_cancelled(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        batch: ToolBatch | None = None
        with anyio.move_on_after(self._pause()):
            async with runner.open_batch(calls) as batch:
                pass
        if batch is not None:
            self._check_batch(calls, batch)

    async def _block_broken(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        try:
            async with runner.open_batch(calls) as batch:
                await anyio.sleep(self._pause())
                raise BrokenError
        except BrokenError:
            self._check_batch(calls, batch)

    async def _submitted_one_by_one(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        async with runner.open_batch() as batch:
            handles = [batch.submit(call) for call in calls]
            await anyio.sleep(self._pause())
            for handle in handles:
                if handle.call.name in NEVER_END or self._random.randrange(2):
                    handle.cancel()
            for handle in handles:
                await handle.wait()
        self._check_batch(calls, batch)

    async def _read(self, runner: ToolRunner, calls: list[ToolCall]) -> None:
        observer = PromiseObserver()
        stop_after = self._random.randrange(12)
        async with runner.open_batch(calls) as batch:
            with anyio.move_on_after(self._pause()):
                async for event in batch.events():
                    stop_after -= 1
                    if stop_after < 0:
                        break
            batch.interrupt()
        async for event in batch.events():
            observer(event)
        self._check_batch(calls, batch)
        observer.check(batch.id, batch.results)

    # -- what every turn has to give -------------------------------------------

    def _check_batch(self, calls: list[ToolCall], batch: ToolBatch) -> None:
        self._check(calls, batch.results)

    def _check(self, calls: list[ToolCall], results: list[ToolResult]) -> None:
        assert [result.call for result in results] == calls
        assert [result.index for result in results] == list(range(len(calls)))
        for result in results:
            kind = None if result.reason is None else result.reason.kind
            self.statuses[kind or result.status.value] += 1
            assert result.text
            assert result.effects == (
                "none"
                if not result.started
                else "done"
                if result.status is Status.COMPLETED
                else "unknown"
            ), result
            assert result.started or not result.detached
