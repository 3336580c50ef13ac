"""
P1–P10 by a state machine over the public API, on real event loops.

The loop runs in a thread of its own and stands still between two rules: when
nothing is left that could run, or a few steps earlier if the rule says so. Each
rule's operation is done there, on the loop's thread. Time passes by a rule only.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from anyio_toolbatch import (
    CallHandle,
    RunnerClosedError,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime.engine import BatchEngine
from anyio_toolbatch.testing import Plan, Stage, backends
from anyio_toolbatch.testing._run import Run

LIVENESS = 60.0  # seconds where milliseconds are meant
WIDE = os.environ.get("EXPLORE") == "wide"
EXAMPLES = 3000 if WIDE else 100


class Session(Run):
    """A run whose loop stands still until it is told what to do."""

    def __init__(self, backend: str, options: dict[str, Any], asks: str) -> None:
        super().__init__(self._live, Plan(), backend)
        self.runner: ToolRunner = None  # type: ignore[assignment]  # made on the loop
        self.options = options
        self.asks = asks
        self.batches: list[ToolBatch] = []
        self.outcomes: dict[CallRecord, str] = {}
        self.answers: dict[str, bool | str] = {}
        self.questions: dict[str, anyio.Event] = {}
        self.leave: dict[str, anyio.Event] = {}
        """What each block waits for before it is left."""
        self.turns: list[anyio.CancelScope] = []
        self.waits: list[anyio.CancelScope] = []
        self._change: anyio.Event = None  # type: ignore[assignment]  # the same
        self._to_spawn: deque[tuple[Callable[..., Awaitable[object]], Any]] = deque()
        self.timed: set[BatchEngine] = set()
        self.fragile: set[BatchEngine] = set()
        """Those that one failure cuts."""
        self._is_finished = False
        self._numbers = itertools.count()
        self._paused, self._told = threading.Semaphore(0), threading.Semaphore(0)
        self._operation: Callable[[], object] = lambda: None
        self.has_closed = False
        self._error: BaseException | None = None
        self._steps_left: int | None = None
        self._is_ending = False
        self._thread = threading.Thread(target=self._run_loop, daemon=True)

    # -- in the machine's thread -----------------------------------------------

    def start(self) -> None:
        self._thread.start()
        self._wait()

    def do(self, operation: Callable[[], object], steps: int | None = None) -> None:
        """Do it on the loop, then let the loop make its steps, or all there are."""
        self._operation, self._steps_left = operation, steps
        self._told.release()
        self._wait()

    def _wait(self) -> None:
        assert self._paused.acquire(timeout=LIVENESS), "the loop does not come to rest"
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Let everything come to its end, and look at all."""
        self._is_ending = True
        self.do(self.finish)
        self._thread.join(LIVENESS)
        assert not self._thread.is_alive(), "the loop does not end"

    # -- in the loop's thread --------------------------------------------------

    def _run_loop(self) -> None:
        try:
            self.perform()
        except BaseException as error:
            self._error = error
        self._paused.release()

    def before_step(self) -> None:
        super().before_step()
        if self._steps_left is not None and not self._is_ending:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._pause()

    def idle(self) -> None:
        self.expectations.look_at_pause()
        if not self._is_ending and self.runner is not None:
            self._pause()
        elif not self._answer_all():
            super().idle()

    def _pause(self) -> None:
        self._steps_left = None
        self._paused.release()
        self._told.acquire()
        try:
            self._operation()
        except BaseException as error:
            self._error = error
        self.wait_quiet()

    def open_engines(self) -> list[BatchEngine]:
        return [engine for engine in self.engines if not engine.closed]

    def _answer_all(self) -> bool:
        open_ = [question for question in self.questions.values() if not question.is_set()]
        for question in open_:
            question.set()
        return bool(open_)

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Have a task run it."""
        self._to_spawn.append((function, args))
        self._change.set()

    def finish(self) -> None:
        self._is_finished = True
        self._change.set()

    async def _live(self, stage: Stage) -> None:
        tools = [
            stage.gated("blocking"),
            stage.gated_async("waiting"),
            stage.gated("kept", on_interrupt="keep"),
            stage.gated_async("write", writes="key"),
            stage.gated("limited", timeout=1),
            stage.deaf(),
            Tool(self._agent, name="agent"),
        ]
        if self.asks == "on the loop":
            self.options["approve"] = self._ask
        elif self.asks == "in a thread":
            person = stage.gated("person")
            self.options["approve"] = lambda call: (
                person.tool.func() and self.answers.get(call.id, True)
            )
        async with anyio.create_task_group() as tasks:
            self._change = anyio.Event()
            self.runner = stage.runner(tools, **self.options)
            while not self._is_finished:
                await self._change.wait()
                self._change = anyio.Event()
                while self._to_spawn:
                    function, args = self._to_spawn.popleft()
                    tasks.start_soon(function, *args)
            for event in self.leave.values():
                event.set()
        await self.runner.aclose()

    async def _ask(self, call: ToolCall) -> bool | str:
        if call.id not in self.answers and not self._is_ending:
            self.questions[call.id] = anyio.Event()
            await self.questions[call.id].wait()
        return self.answers.get(call.id, True)

    async def _agent(self, names: list[str]) -> int:
        """A tool that runs a batch."""
        given = [ToolCall(f"{self.next_id()}", name) for name in names]
        async with self.runner.open_batch(given) as batch:
            self.batches.append(batch)
        return len(batch.results)

    def next_id(self) -> str:
        return f"c{next(self._numbers)}"

    def on_tool(self, what: str, record: CallRecord) -> None:
        super().on_tool(what, record)
        self.outcomes[record] = what

    # -- what users do -----------------------------------------------------------

    async def block(
        self, given: list[ToolCall] | None, timeout: float | None, fail_fast: bool
    ) -> None:
        """A turn: opens a batch, and leaves its block when it is told to."""
        try:
            with anyio.CancelScope() as scope:
                self.turns.append(scope)
                block = self.runner.open_batch(given, timeout=timeout, fail_fast=fail_fast)
                async with block as batch:
                    self.batches.append(batch)
                    if timeout is not None:
                        self.timed.add(batch._engine)
                    if fail_fast:
                        self.fragile.add(batch._engine)
                    leave = self.leave[batch.id] = anyio.Event()
                    if self._is_finished:
                        leave.set()
                    await leave.wait()
                assert [result.call for result in batch.results] == batch.calls
        except RunnerClosedError:
            assert self.has_closed

    async def wait(self, waits: Callable[[], Awaitable[object]]) -> None:
        with anyio.CancelScope() as scope:
            self.waits.append(scope)
            await waits()

    async def read(self, batch: ToolBatch) -> None:
        with anyio.CancelScope() as scope:
            self.waits.append(scope)
            assert [event async for event in batch.events()]


ids = st.integers(0, 1_000)
soon = st.sampled_from([None, None, None, 0, 1, 2, 5])
"""How many steps are made before the next rule."""
names = st.sampled_from(
    ["blocking", "waiting", "kept", "write", "limited", "deaf", "agent", "unknown"]
)


class PublicMachine(RuleBasedStateMachine):
    """Whatever users, people, tools and time do, in any order."""

    backend = ""

    @initialize(
        threads=st.integers(1, 3),
        slots=st.sampled_from([None, None, 1, 2]),
        grace=st.sampled_from([0.0, 0.0, 1.0]),
        detached=st.sampled_from([1, 64]),
        asks=st.sampled_from(["not", "not", "on the loop", "in a thread"]),
    )
    def begin(
        self, threads: int, slots: int | None, grace: float, detached: int, asks: str
    ) -> None:
        options: dict[str, Any] = {
            "max_threads": threads,
            "max_concurrency": slots,
            "interrupt_grace": grace,
            "max_detached": detached,
            "cleanup_grace": 2.0,
        }
        self.touched: set[BatchEngine] = set()
        self.all_touched = False
        self.session = Session(self.backend, options, asks)
        self.session.start()

    def teardown(self) -> None:
        if hasattr(self, "session"):
            session = self.session
            session.end()
            assert session.problems == []
            for engine in session.engines:
                for record in engine.records:
                    self.check_undisturbed(record)

    # -- the truth --------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "session"):
            assert self.session.problems == []

    @invariant()
    def every_call_is_counted_once(self) -> None:
        if hasattr(self, "session"):
            session = self.session
            numbers = session.runner.statistics()
            open_ = session.open_engines()
            assert numbers.open_batches == len(open_)
            assert numbers.waiting + numbers.running == sum(e.ledger.unsettled for e in open_)
            assert len(numbers.waiting_calls) == numbers.waiting
            assert repr(session.runner)

    def check_undisturbed(self, record: CallRecord) -> None:
        """Whom nobody has cut, or anyone around it, has its own answer."""
        session = self.session
        result = record.batch.results()[record.index]
        kind = None if result.reason is None else result.reason.kind
        around: CallRecord | None = record
        while around is not None:
            batch = around.batch
            if batch in self.touched or self.all_touched:
                return
            if kind == "call_timeout" and around.tool.timeout is not None:
                return
            if kind == "batch_timeout" and batch in session.timed:
                return
            if kind == "sibling_failed" and batch in session.fragile:
                return
            around = batch.outer
        answer = session.answers.get(record.call.id, True)
        if record.call.name == "unknown":
            expected = Status.INVALID
        elif kind in {"too_many_detached", "resource_busy"}:
            expected = Status.FAILED  # others, which were cut, are in the way
        elif answer is not True and session.asks != "not":
            expected = Status.DENIED
        elif session.outcomes.get(record) == "raise":
            expected = Status.FAILED
        else:
            expected = Status.COMPLETED
        assert result.status is expected, (result, answer)

    # -- choosing -----------------------------------------------------------------

    def one(self, things: list[Any], number: int) -> Any:
        return things[-1 - number % len(things)]

    def open_batches(self) -> list[ToolBatch]:
        return [batch for batch in self.session.batches if not batch._engine.closed]

    def touch(self, batch: ToolBatch) -> None:
        self.touched.add(batch._engine)

    def calls(self, given: list[str]) -> list[ToolCall]:
        return [
            ToolCall(
                self.session.next_id(),
                name,
                {"names": ["blocking", "waiting"]} if name == "agent" else {},
            )
            for name in given
        ]

    # -- rules --------------------------------------------------------------------

    @rule(
        given=st.none() | st.lists(names, max_size=4),
        timeout=st.sampled_from([None, None, 3.0]),
        fail_fast=st.sampled_from([False, False, True]),
        steps=soon,
    )
    def open_batch(
        self,
        given: list[str] | None,
        timeout: float | None,
        fail_fast: bool,
        steps: int | None,
    ) -> None:
        session = self.session
        calls = None if given is None else self.calls(given)
        session.do(lambda: session.spawn(session.block, calls, timeout, fail_fast), steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, name=names, steps=soon)
    def submit(self, number: int, name: str, steps: int | None) -> None:
        batch = self.one(self.open_batches(), number)
        if not batch._engine.sealed:
            (call,) = self.calls([name])
            self.session.do(lambda: batch.submit(call), steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, steps=soon)
    def seal(self, number: int, steps: int | None) -> None:
        self.session.do(self.one(self.open_batches(), number).seal, steps)

    @precondition(lambda self: self.session.leave)
    @rule(number=ids, steps=soon)
    def leave_block(self, number: int, steps: int | None) -> None:
        self.session.do(self.one(list(self.session.leave.values()), number).set, steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, grace=st.sampled_from([None, 0.0, 1.0]), steps=soon)
    def interrupt(self, number: int, grace: float | None, steps: int | None) -> None:
        batch = self.one(self.open_batches(), number)
        engine = batch._engine
        self.touch(batch)

        def interrupt() -> None:
            was_asked = engine.stopping or engine.closed
            assert batch.interrupt("enough", grace=grace) is not was_asked
            assert batch.interrupt("enough", grace=grace) is False
            expectations = self.session.expectations
            expectations.no_more_starts("interrupt", [engine])
            if not grace:  # then it is the batch's own, which is looked at
                expectations.settles_at_once("interrupt", [engine])

        self.session.do(interrupt, steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, steps=soon)
    def supersede(self, number: int, steps: int | None) -> None:
        batch = self.one(self.open_batches(), number)
        self.touch(batch)
        engine = batch._engine

        def supersede() -> None:
            was_cut = engine.halted or engine.closed
            assert batch.supersede("newer") is not was_cut
            self.session.expectations.superseded([engine])

        self.session.do(supersede, steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, which=ids, by_id=st.booleans(), steps=soon)
    def cancel_call(self, number: int, which: int, by_id: bool, steps: int | None) -> None:
        batch = self.one(self.open_batches(), number)
        if batch.calls:
            self.touch(batch)
            record = self.one(batch._engine.records, which)
            handle = CallHandle(batch, record)

            def cancel() -> None:
                count = batch.cancel(record.call.id) if by_id else int(handle.cancel())
                assert count in {0, 1}
                assert handle.explain()

            self.session.do(cancel, steps)

    @precondition(lambda self: self.session.turns)
    @rule(number=ids, steps=soon)
    def cancel_caller(self, number: int, steps: int | None) -> None:
        # Whose it is shows only later; what is inside of it is touched, too.
        self.all_touched = True
        self.session.do(self.one(self.session.turns, number).cancel, steps)

    @rule(steps=soon)
    def interrupt_runner(self, steps: int | None) -> None:
        session = self.session
        self.touched.update(session.engines)

        def interrupt() -> None:
            session.wait_quiet()  # finds batches that are new
            self.touched.update(session.engines)
            open_ = session.open_engines()
            to_ask = [engine for engine in open_ if not engine.stopping]
            assert session.runner.interrupt("all") == len(to_ask)
            session.expectations.no_more_starts("interrupt of the runner", open_)
            session.expectations.settles_at_once("interrupt of the runner", open_)

        session.do(interrupt, steps)

    @rule(number=ids, fails=st.integers(0, 4), steps=soon)
    def tool_ends(self, number: int, fails: int, steps: int | None) -> None:
        gates = [gate for gate in self.session._stage.gates if gate.waiting]
        if gates:
            gate = self.one(gates, number)
            is_tool = gate.tool.name != "person"
            end = gate.fail_one if fails == 4 and is_tool else gate.let_through
            self.session.do(end, steps)

    @precondition(lambda self: self.session.questions)
    @rule(number=ids, answer=st.sampled_from([True, True, False, "not now"]), steps=soon)
    def answer(self, number: int, answer: bool | str, steps: int | None) -> None:
        session = self.session
        asked = self.one(list(session.questions), number)
        session.answers.setdefault(asked, answer)
        session.do(session.questions[asked].set, steps)

    @rule(number=ids, answer=st.sampled_from([False, "not at all"]))
    def make_up_ones_mind(self, number: int, answer: bool | str) -> None:
        """Somebody knows the answer before the question; for plain approvers."""
        session = self.session
        if session.asks == "in a thread":
            waiting = [
                r for e in session.open_engines() for r in e.records if r.question is not None
            ]
            if waiting:
                session.answers.setdefault(self.one(waiting, number).call.id, answer)

    @rule(steps=soon)
    def time_passes(self, steps: int | None) -> None:
        session = self.session

        def jump() -> None:
            assert session.loop is not None
            if session.loop.next_deadline() < float("inf"):
                session.loop.jump()

        session.do(jump, steps)

    @precondition(lambda self: self.open_batches())
    @rule(number=ids, which=ids, kind=st.sampled_from(["wait", "call", "read"]), steps=soon)
    def wait(self, number: int, which: int, kind: str, steps: int | None) -> None:
        session = self.session
        batch = self.one(self.open_batches(), number)

        if kind == "read":
            session.do(lambda: session.spawn(session.read, batch), steps)
        elif kind == "call" and batch.calls:
            handle = CallHandle(batch, self.one(batch._engine.records, which))
            session.do(lambda: session.spawn(session.wait, handle.wait), steps)
        else:
            session.do(lambda: session.spawn(session.wait, batch.wait), steps)

    @precondition(lambda self: self.session.waits)
    @rule(number=ids, steps=soon)
    def stop_waiting(self, number: int, steps: int | None) -> None:
        """It stops that wait only: no batch is touched."""
        self.session.do(self.one(self.session.waits, number).cancel, steps)

    @rule(often=st.integers(0, 9), steps=soon)
    def close(self, often: int, steps: int | None) -> None:
        session = self.session
        if often == 9:
            self.all_touched = True
            session.has_closed = True
            session.do(lambda: session.spawn(session.runner.aclose), steps)


@pytest.mark.parametrize("backend", backends())
def test_whatever_happens_all_promises_are_kept(backend: str) -> None:
    """P1–P10, in any order of what users, tools, people and time do."""
    machine = type("Machine", (PublicMachine,), {"backend": backend})
    case = machine.TestCase
    case.settings = settings(
        max_examples=EXAMPLES, stateful_step_count=30, deadline=None, derandomize=not WIDE
    )
    case().runTest()
