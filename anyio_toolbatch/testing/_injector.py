"""
Does what a plan says, between two steps of the loop.

Most of it goes the way that users have: an interrupt is `ToolRunner.interrupt`. A
timeout is what the loop's timer would call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._runtime.engine import BatchEngine
from .._runtime.hub import Hub
from .._runtime.runner import ToolRunner
from ._expectations import Expectations
from ._plans import Injection
from ._stage import Stage
from ._stepping import LoopControl
from ._tools import AsyncGatedTool, GatedTool

if TYPE_CHECKING:
    import anyio

__all__ = ("Injector",)

GRACE = 1.0
"""Seconds, of the loop's own time."""
CUTS = frozenset(Injection) - {Injection.SUBMIT, Injection.FINISH, Injection.FAILURE}


class Injector:
    """
    Of one run, while its scenario runs.

    Args:
        hub: Of the run's loop.
        loop: The loop.
        scope: Around the scenario.
        stage: The scenario's.
        engines: The run's batches, as they become known.
        expectations: What is injected must have its consequences.
        seed: Chooses whom it hits.
    """

    def __init__(
        self,
        hub: Hub,
        loop: LoopControl,
        scope: anyio.CancelScope,
        stage: Stage,
        engines: dict[BatchEngine, None],
        expectations: Expectations,
        seed: int,
    ) -> None:
        self.has_closed = False
        """A runner may refuse new batches."""
        self.native_cancels = 0
        """How often the scenario's task was cancelled."""
        self._hub = hub
        self._loop = loop
        self._scope = scope
        self._stage = stage
        self._engines = engines
        self._expect = expectations
        self._random = random.Random(seed)

    # -- what there is -----------------------------------------------------

    def _open(self) -> list[BatchEngine]:
        return [engine for engine in self._engines if not engine.closed]

    def _outermost(self) -> list[BatchEngine]:
        return [engine for engine in self._open() if engine.outer is None]

    def _unsealed(self) -> list[BatchEngine]:
        return [engine for engine in self._open() if not engine.sealed]

    def _unsettled(self) -> list[CallRecord]:
        return [
            record
            for engine in self._open()
            for record in list(engine.records)
            if not engine.is_settled(record)
        ]

    def _running(self) -> list[CallRecord]:
        return [record for record in self._unsettled() if not record.is_waiting]

    def _runners(self) -> list[ToolRunner]:
        return list(self._hub.states)  # type: ignore[arg-type]  # that is what they are kept by

    def gates(self) -> list[GatedTool | AsyncGatedTool]:
        """
        Return the gates at which calls wait.

        They wait in call order, whatever order their threads have come in.
        """
        gates = [gate for gate in self._stage.gates if gate.waiting]
        numbers = {engine: number for number, engine in enumerate(self._engines)}

        def place(record: CallRecord | None) -> tuple[int, int]:
            return (
                (-1, -1) if record is None else (numbers.get(record.batch, -1), record.index)
            )

        for gate in gates:
            gate.gate.sort(place)
        return gates

    def possible(self) -> set[Injection]:
        """Return what would find something to do now."""
        subjects: dict[Injection, Callable[[], object]] = {
            Injection.INTERRUPT: self._open,
            Injection.GRACE: self._open,
            Injection.SUPERSEDE: self._outermost,
            Injection.CANCEL: lambda: True,
            Injection.TASK_CANCEL: lambda: self._loop.has_native_cancel,
            Injection.CALL_CANCEL: self._unsettled,
            Injection.CALL_TIMEOUT: self._running,
            Injection.BATCH_TIMEOUT: self._outermost,
            Injection.CLOSE: self._runners,
            Injection.SUBMIT: self._unsealed,
            Injection.FINISH: self.gates,
            Injection.FAILURE: self.gates,
        }
        return {injection for injection, find in subjects.items() if find()}

    # -- doing it ----------------------------------------------------------

    def inject(self, injection: Injection) -> None:
        """Do it, if there is anything to do."""
        if injection in CUTS:
            self._expect.keep_finished(injection.value)
        match injection:
            case Injection.INTERRUPT:
                self._expect.no_more_starts(injection.value, self._open())
                self._expect.settles_at_once(injection.value, self._open())
                for runner in self._runners():
                    runner.interrupt("injected")
            case Injection.GRACE:
                self._expect.no_more_starts("interrupt", self._open())
                for runner in self._runners():
                    runner.interrupt("injected", grace=GRACE)
            case Injection.SUPERSEDE:
                self._expect.superseded(self._outermost())
                for engine in self._outermost():
                    engine.supersede("injected")
            case Injection.CANCEL:
                self._expect.closes_at_once(injection.value, self._outermost())
                self._scope.cancel()
            case Injection.TASK_CANCEL if self._loop.has_native_cancel:
                self._expect.closes_at_once(injection.value, self._outermost())
                self._loop.cancel_main()
                self.native_cancels += 1
            case Injection.CALL_CANCEL if calls := self._unsettled():
                record = self._random.choice(calls)
                record.batch.cancel(record, "injected")
            case Injection.CALL_TIMEOUT if calls := self._running():
                record = self._random.choice(calls)
                record.batch.call_time_is_up(record)
            case Injection.BATCH_TIMEOUT:
                self._expect.no_more_starts(injection.value, self._outermost())
                self._expect.settles_at_once(injection.value, self._outermost())
                for engine in self._outermost():
                    engine.time_is_up()
            case Injection.CLOSE:
                for runner in self._runners():
                    self.has_closed = True
                    self._hub.backend.start_background(runner.aclose)
            case Injection.SUBMIT:
                for engine in self._unsealed():
                    engine.submit([_one_more(engine)])
            case Injection.FINISH if gates := self.gates():
                self._random.choice(gates).let_through()
            case Injection.FAILURE if gates := self.gates():
                self._random.choice(gates).fail_one(RuntimeError("injected"))
            case _:
                pass


def _one_more(engine: BatchEngine) -> ToolCall:
    """Make a call like the batch's first, or to any of its tools."""
    if engine.records:
        like = engine.records[0].call
        return ToolCall("injected", like.name, like.arguments, tool=like.tool)
    return ToolCall("injected", next(iter(engine.tool_names), "none"))
