"""
One run of a scenario by a plan.

The run is the `World` that the loop asks. It lets the loop go on only when the
worker threads have come to rest, and has them go on only when the loop pauses. So
threads and loop take turns, and a plan does the same each time. What is injected
comes between two steps, as from another thread or a signal handler.
"""

from __future__ import annotations

import logging
import math
import os
import random
import time
import traceback
from collections.abc import Awaitable, Callable

import anyio

from .._core.record import CallRecord
from .._errors import RunnerClosedError
from .._runtime.backend import Waiter
from .._runtime.engine import BatchEngine
from .._runtime.hub import Hub, current_hub
from ._checks import problems_at_rest, problems_of_batch, problems_of_late_results
from ._expectations import Expectations
from ._injector import Injector
from ._plans import Injection, Plan
from ._quiet import PATIENCE, Quiet
from ._stage import Stage
from ._stepping import LoopControl, run_stepped

__all__ = ("Run", "Scenario")

Scenario = Callable[[Stage], Awaitable[object]]

MAX_STEPS = 20_000
"""From here on a scenario is said to go round in circles."""
MAX_JUMPS = 30
"""How often time may jump in a row: a tool that is deaf is cancelled again and again."""
JUMPS_INSTEAD = 0.3
"""How often, of all pauses, time passes though a call could go on; but with seed 0."""


class Run:
    """
    Runs a scenario once; `problems` says what was found.

    Args:
        scenario: The scenario.
        plan: What is to happen.
        backend: One of `backends`.
    """

    def __init__(self, scenario: Scenario, plan: Plan, backend: str) -> None:
        self.plan = plan
        self.steps = 0
        """How many the scenario has made."""
        self.possible: list[set[Injection]] = []
        """By step: what could have been injected; if nothing was."""
        self.problems: list[str] = []
        self.expectations = Expectations(self.problems)
        self.engines: dict[BatchEngine, None] = {}
        """The batches on the loop, in the order of their opening."""
        self.injector: Injector | None = None
        """There as long as the scenario runs."""
        self.loop: LoopControl | None = None
        self._scenario = scenario
        self._backend = backend
        self._random = random.Random(plan.seed)
        self._stage = Stage(self.on_tool)
        self._quiet = Quiet(self._stage, self.engines)
        self._hub: Hub | None = None
        self._scope: anyio.CancelScope | None = None
        self._rest: Waiter | None = None
        self._jumps = 0
        self._is_released = False
        self._times_stuck = 0
        self._waits_until: float | None = None
        self._has_given_up = False
        self._is_over = False

    def perform(self) -> None:
        """Run it to its end, and check it."""
        self._quiet.begin()
        logs = _Logs(self.problems)
        try:
            run_stepped(self._backend, self.plan.seed, self, self._main)
        except BaseException:
            if not self._has_given_up:  # which trio takes for an error of its own
                raise
        finally:
            logs.stop()
            self._release_all()
        self._check()

    async def _main(self, loop: LoopControl) -> None:
        hub = self._hub = current_hub()
        hub.slice_seconds = 0.0
        hub.keeps_batches = True
        self.loop = loop
        stage, engines = self._stage, self.engines
        with anyio.CancelScope() as scope:
            self._scope = scope
            injector = self.injector = Injector(
                hub, loop, scope, stage, engines, self.expectations, self.plan.seed
            )
            try:
                await self._scenario(stage)
                if injector.native_cancels:
                    self.problems.append("the cancellation of the task was swallowed")
            except BaseException as error:  # noqa: BLE001 - raised again, or said
                self._take_error(error, injector)
        self.injector = self._scope = None
        loop.uncancel_main()
        self._rest = hub.backend.waiter()
        await self._rest.wait()

    def _take_error(self, error: BaseException, injector: Injector) -> None:
        """The scenario has raised: it may have been made to, or it is a fault."""
        if self._times_stuck or (injector.has_closed and _is_of_closing(error)):
            return
        if isinstance(error, anyio.get_cancelled_exc_class()) and injector.native_cancels:
            return
        if not isinstance(error, Exception):
            raise error
        self.problems.append(
            f"the scenario raised {type(error).__name__}: {error} ({_where(error)})"
        )

    def _check(self) -> None:
        for engine in self.engines:
            self.problems += problems_of_batch(engine)
        self.problems += problems_of_late_results(self._stage.late, self.engines)
        self.expectations.look_at_end()
        try:
            self._stage.observer.check()
        except AssertionError as error:
            self.problems.append(f"observers were told: {error}")

    # -- the loop asks -----------------------------------------------------

    def before_step(self) -> None:
        """Count, and inject what is planned; see `World`."""
        self._waits_until = None
        if self.injector is None or self._is_over:
            return
        self._look()
        self.steps += 1
        if self.steps == MAX_STEPS:
            self._end_circles()
        if not self.plan.injections:
            self.possible.append(self.injector.possible())
        for injection, step in self.plan.injections:
            if step == self.steps:
                self.injector.inject(injection)
                self.wait_quiet()

    def after_step(self) -> None:
        """
        Let the threads come to rest that the step has set going; see `World`.

        Before the loop goes on: what they post must not come sooner or later by chance.
        """
        if not self._is_over:
            self.wait_quiet()

    def wait_quiet(self) -> None:
        """Wait until the worker threads have come to rest; see `World`."""
        self._look()  # first: what is open tells who waits for the loop
        self._quiet.wait()

    def _look(self) -> None:
        """Find batches that are new."""
        if self._hub is not None:
            for state in self._hub.states.values():
                self.engines.update(state.batches)

    def idle(self) -> None:
        """Have the next thing happen; see `World`."""
        if self._is_over or self.loop is None:
            return
        self.expectations.look_at_pause()
        gates = [gate for gate in self._stage.gates if gate.waiting]
        time_may_pass = self.loop.next_deadline() < math.inf and self._jumps < MAX_JUMPS
        if gates and not (
            time_may_pass and self.plan.seed and self._random.random() < JUMPS_INSTEAD
        ):
            self._jumps = 0
            self._random.choice(gates).let_through()
        elif self._rest is not None:
            self._come_to_rest(self._rest, time_may_pass)
        elif time_may_pass:
            self._jumps += 1
            self.loop.jump()
        elif any(tool.ended < tool.started for tool in self._stage.deaf_tools):
            self._jumps = 0
            self._release_all()
        elif not self._wait_for_strangers():
            self._end_stuck()

    def _wait_for_strangers(self) -> bool:
        """
        Give threads that can't be seen the time to say something; False if they do not.

        A thread of the scenario's own, perhaps; the loop makes passes meanwhile.
        """
        now = time.monotonic()
        if self._waits_until is None:
            self._waits_until = now + PATIENCE
        if now > self._waits_until:
            self._waits_until = None
            return False
        time.sleep(0.001)
        return True

    # -- coming to an end --------------------------------------------------

    def _come_to_rest(self, rest: Waiter, time_may_pass: bool) -> None:
        """The scenario has ended: wait for what it has left behind, then look at all."""
        assert self.loop is not None, "it has asked"
        assert self._hub is not None, "the scenario has run"
        if not self._is_released:
            self._is_released = True
            self._jumps = 0
            self._release_all()
            return
        left = [*problems_at_rest(self._hub), *self.loop.tasks_left()]
        if left and time_may_pass:  # a clean-up, perhaps
            self._jumps += 1
            self.loop.jump()
            return
        if left and self._wait_for_strangers():
            return
        self.problems += left
        if time_may_pass and not left:
            self.problems.append("a timer is still set, and nothing is left that it is for")
        self._is_over = True
        rest.set()

    def _release_all(self) -> None:
        for gate in self._stage.gates:
            gate.open()
        for tool in self._stage.deaf_tools:
            tool.release()

    def _end_circles(self) -> None:
        assert self._scope is not None, "the scenario runs"
        self.problems.append(f"no end after {MAX_STEPS} steps: it goes round in circles")
        self._scope.cancel()
        self._release_all()

    def _end_stuck(self) -> None:
        """Say so, and have it end: gently, then through its shields, then with the loop."""
        assert self.loop is not None, "it has asked"
        self._times_stuck += 1
        if self._times_stuck == 1:
            runners = [] if self._hub is None else list(self._hub.states)
            self.problems.append(
                "stuck: nothing is left that could happen, but the scenario has not ended "
                f"{runners}"
            )
        if self._times_stuck == 1 and self._scope is not None:
            self._scope.cancel()
        elif self._times_stuck <= 2:
            self.loop.break_main()
        else:
            self._has_given_up = True
            raise SystemExit  # leaves a loop at once, as no Exception does

    # -- tools say ---------------------------------------------------------

    def on_tool(self, what: str, record: CallRecord) -> None:
        """A gated tool has begun or ended; in its thread."""
        self.expectations.on_tool(what, record)


def _where(error: BaseException) -> str:
    """Tell the file and line that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


def _is_of_closing(error: BaseException) -> bool:
    """Tell whether there is nothing in an error but that a runner was closed."""
    if isinstance(error, ExceptionGroup):
        return all(_is_of_closing(each) for each in error.exceptions)
    return isinstance(error, RunnerClosedError)


class _Logs(logging.Handler):
    """Takes what is logged as an error for a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems
        self._loggers = [logging.getLogger(n) for n in ("anyio_toolbatch", "asyncio", "trio")]
        for logger in self._loggers:
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = "" if record.exc_info is None else f" ({record.exc_info[1]!r})"
        self._problems.append(f"logged: {record.getMessage()}{error}")

    def stop(self) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
