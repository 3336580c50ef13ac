"""
P4, P5, P6: a call is cut while a thread stands at any line of our own code.

Finer than steps: a worker is held at the line until the loop has nothing left to do,
so that the loop sees every state that a worker can be in. On the loop's own thread
the cut comes at the line itself, as from a signal handler.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import anyio_toolbatch
from anyio_toolbatch import ToolCall, ToolRunner, from_thread
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import context, nesting, thread_carrier
from anyio_toolbatch._runtime.engine import BatchEngine
from anyio_toolbatch.testing import Injection, Plan, Stage, backends
from anyio_toolbatch.testing._run import Run, Scenario

ROOT = str(Path(anyio_toolbatch.__file__).parent)
HERE = str(Path(ROOT) / "testing")
LIVENESS = 20.0  # seconds where milliseconds are meant
SIGNAL_SAFE = [
    Injection.INTERRUPT,
    Injection.GRACE,
    Injection.SUPERSEDE,
    Injection.CALL_CANCEL,
]


def holds_a_lock(function: str) -> bool:
    """Tell whether the loop may have to wait for who stands in there."""
    return function.startswith("Lane.") or context._lazily.locked() or nesting._lazily.locked()


class LineRun(Run):
    """Counts the lines that our code runs, in all threads, and injects at one of them."""

    def __init__(
        self, scenario: Scenario, backend: str, injection: Injection, at: int
    ) -> None:
        super().__init__(scenario, Plan(0, ((injection, 0),)), backend)
        self.lines = 0
        self.where = ""
        self._injection = injection
        self._at = at
        self._loop_thread = 0
        self._held: threading.Event | None = None
        self._is_due = False
        self._is_injecting = False
        self._begun: frozenset[CallRecord] = frozenset()
        self.was_held = False
        self._returning: list[CallRecord] = []
        resting = self._quiet._resting
        self._quiet._resting = lambda: resting() + (self._held is not None)  # type: ignore[method-assign]

    def perform_watched(self) -> None:
        with self.watching():
            self.perform()

    @contextmanager
    def watching(self) -> Iterator[None]:
        monitoring = sys.monitoring
        tool = monitoring.DEBUGGER_ID
        monitoring.use_tool_id(tool, "every line")
        monitoring.register_callback(tool, monitoring.events.LINE, self._on_line)
        monitoring.restart_events()
        monitoring.set_events(tool, monitoring.events.LINE)
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.LINE, None)
            monitoring.free_tool_id(tool)

    def _on_line(self, code: Any, line: int) -> Any:
        name = code.co_filename
        if not name.startswith(ROOT) or name.startswith(HERE):
            return sys.monitoring.DISABLE
        if self.injector is None or self._is_injecting:
            return None
        self.lines += 1
        if self.lines == self._at:
            self._hit(code, line)
        return None

    def _hit(self, code: Any, line: int) -> None:
        self.where = f"{Path(code.co_filename).name}:{line}"
        if threading.get_ident() == self._loop_thread:
            if self._injection in SIGNAL_SAFE:
                self._inject()
        elif not holds_a_lock(code.co_qualname):
            self.was_held = True
            held = self._held = threading.Event()
            self._is_due = True
            held.wait(LIVENESS)

    def on_tool(self, what: str, record: CallRecord) -> None:
        # It begins when its ticket is taken, and its first line comes some lines later;
        # it has ended when the other one is, some lines after its last.
        if what == "return":
            self._returning.append(record)
        elif record not in self._begun:
            super().on_tool(what, record)

    def _inject(self) -> None:
        assert self.injector is not None
        self._is_injecting = True
        self._look()
        for record in self._returning:
            if record not in record.batch.tickets.ends:
                super().on_tool("return", record)
        self._begun = frozenset(
            r for e in self.engines for r in e.records if r not in e.tickets.starts
        )
        try:
            self.injector.inject(self._injection)
        finally:
            self._is_injecting = False

    def before_step(self) -> None:
        self._loop_thread = threading.get_ident()
        self._is_injecting = True
        super().before_step()
        self._is_injecting = False
        self._inject_if_due()

    def _inject_if_due(self) -> bool:
        due, self._is_due = self._is_due, False
        if due and self.injector is not None:
            self._inject()
        return due

    def idle(self) -> None:
        if self._inject_if_due():
            return
        held, self._held = self._held, None
        if held is not None:
            self.expectations.look_at_pause()
            held.set()
            self.wait_quiet()
            return
        super().idle()


# -- the tests ---------------------------------------------------------------------

WIDE = os.environ.get("EXPLORE") == "wide"
RUNS = 3000 if WIDE else 100


async def turn(stage: Stage) -> None:
    """Calls that run, on the loop and in threads, and calls that wait."""
    blocking, waiting = stage.gated(timeout=30), stage.gated_async()
    calls = [ToolCall(str(i), name) for i, name in enumerate(["gated", "gated_async"] * 2)]
    async with stage.runner([blocking, waiting], max_threads=1, max_concurrency=3) as runner:
        await runner.run(calls)


async def turn_in_threads(stage: Stage) -> None:
    """Without a scheduler: threads take the next call by themselves."""
    blocking = stage.gated()
    runner = ToolRunner([blocking.tool], max_threads=2)  # nobody listens
    await runner.run([ToolCall(str(i), "gated") for i in range(4)])


async def visits(stage: Stage) -> None:
    """Threads that come to the loop, and a batch inside a call."""
    blocking = stage.gated()

    def visit() -> int:
        from_thread.run_sync(len, [])
        return len(from_thread.run(runner.run, [ToolCall("inner", "gated")]))

    async with stage.runner([visit, blocking]) as runner:
        await runner.run([ToolCall("1", "visit"), ToolCall("2", "gated")])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("scenario", [turn, turn_in_threads, visits])
def test_cut_at_any_line_keeps_all_promises(scenario: Scenario, backend: str) -> None:
    """P3–P6 between threads: each state of a worker is seen by a cut; drawn by a seed."""
    first = LineRun(scenario, backend, Injection.INTERRUPT, at=0)
    first.perform_watched()
    assert first.problems == []
    assert first.lines > 500
    draw = random.Random(0)
    held = 0
    for _ in range(RUNS):
        injection, at = draw.choice(list(Injection)), draw.randint(1, first.lines)
        run = LineRun(scenario, backend, injection, at)
        run.perform_watched()
        assert run.problems == [], f"{injection}, line {at}: {run.where}"
        held += run.was_held
    assert held, "no worker was ever held"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")
def test_lost_ticket_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds what the steps can't: a worker that looks, and then starts without a ticket."""

    def begin(batch: BatchEngine, record: CallRecord) -> bool:
        if record not in batch.tickets.starts:
            return False
        record.started_at = batch.hub.clock()  # here it may be held
        batch.tickets.starts.discard(record)
        return True

    monkeypatch.setattr(thread_carrier, "begin", begin)
    lines = LineRun(turn_in_threads, "asyncio", Injection.INTERRUPT, at=0)
    lines.perform_watched()
    for at in range(1, lines.lines, 2):
        run = LineRun(turn_in_threads, "asyncio", Injection.INTERRUPT, at)
        run.perform_watched()
        if run.problems:
            break
    assert any("started after the interrupt" in problem for problem in run.problems)
