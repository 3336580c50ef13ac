"""
The promises for synchronous agents: `anyio_toolbatch.blocking`.

Tools are held by gates; a Ctrl-C is a real signal to this process.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import inspect
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchNotSettledError,
    BatchSealedError,
    BatchSettled,
    BatchStarted,
    CallHandle,
    CallOutput,
    CallSettled,
    CallStarted,
    LateResult,
    RunnerClosedError,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    blocking,
    current_call,
    from_thread,
)
from anyio_toolbatch._runtime import loop_thread
from anyio_toolbatch._runtime.breakable_block import Opening
from anyio_toolbatch.blocking import (
    BlockingCallHandle,
    BlockingToolBatch,
    BlockingToolRunner,
)
from anyio_toolbatch.testing import PromiseObserver

LIVENESS = 20.0
"""Seconds, where milliseconds are meant."""
SCRIPTS = Path(__file__).parent / "scripts"

needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="sends a signal to its own process"
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


class Gate:
    """A tool that says when it has begun, and goes on when it may."""

    def __init__(self, value: Any = "done") -> None:
        self._value = value
        self._begun = threading.Semaphore(0)
        self._may_go_on = threading.Event()
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        self._begun.release()
        assert self._may_go_on.wait(LIVENESS), "nobody opened the gate"
        return self._value

    def wait_begun(self) -> None:
        assert self._begun.acquire(timeout=LIVENESS), "the tool does not begin"

    def open(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def other_gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Each test gives back the loops that it has started."""
    yield
    until = time.monotonic() + LIVENESS
    while left := [t for t in threading.enumerate() if t.name == "anyio_toolbatch loop"]:
        gc.collect()
        assert time.monotonic() < until, left
        left[0].join(0.05)


Make = Callable[..., BlockingToolRunner]


@pytest.fixture
def make(anyio_backend: Any, promises: PromiseObserver) -> Iterator[Make]:
    """Make runners on each event loop, watched, and closed at the test's end."""
    backend, options = anyio_backend
    made: list[BlockingToolRunner] = []

    def make(tools: Any = (), **more: Any) -> BlockingToolRunner:
        more.setdefault("close_timeout", 0.1)
        runner = BlockingToolRunner(
            tools, observers=[promises], backend=backend, backend_options=options, **more
        )
        made.append(runner)
        return runner

    yield make
    for runner in made:
        runner.close()


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)
LET_GO = ("interrupted", "caller_cancelled", True, True)
DONE = ("completed", None, True, False)


class Thread(threading.Thread):
    """A thread whose value or error is asked for."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self._function, self._arguments = function, args
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._function(*self._arguments)
        except BaseException as exc:
            self._error = exc

    def value(self) -> Any:
        self.join(LIVENESS)
        assert not self.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error
        return self._value


def press_control_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def waiting_in(name: str) -> None:
    """Return when the main thread waits somewhere below a function of this name."""
    main = threading.main_thread().ident
    assert main is not None
    until = time.monotonic() + LIVENESS
    while time.monotonic() < until:
        frame = sys._current_frames().get(main)
        names = set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if {name, "wait"} <= names:
            return
    pytest.fail(f"the main thread does not come to {name}")


# -- running -------------------------------------------------------------------


def test_one_result_per_call_in_call_order(make: Make) -> None:
    """P1, P9: from async, blocking, failing, unknown and broken calls."""

    async def on_loop(n: int) -> int:
        await anyio.sleep(0)
        return n + 1

    def in_thread(n: int) -> int:
        return n * 2

    def fails() -> None:
        raise LookupError("gone")

    runner = make([on_loop, in_thread, fails])
    results = runner.run(
        [
            ToolCall("a", "in_thread", {"n": 4}),
            ToolCall("a", "on_loop", '{"n": 4}'),
            ToolCall("b", "fails"),
            ToolCall("c", "nobody"),
            ToolCall("d", "on_loop", "{"),
        ]
    )
    assert [r.status.value for r in results] == [
        "completed",
        "completed",
        "failed",
        "invalid",
        "invalid",
    ]
    assert [r.value for r in results] == [8, 5, None, None, None]
    assert runner.run([]) == []
    assert runner.statistics().open_batches == 0


def test_options_reach_the_batch(make: Make, gate: Gate) -> None:
    """§3.1: `timeout` and `fail_fast` mean what they mean to a `ToolRunner`."""

    def fails() -> None:
        gate.wait_begun()
        raise LookupError

    runner = make({"gate": gate, "fails": fails})
    (result,) = runner.run(calls("gate"), timeout=0.02)
    assert (result.status.value, result.reason and result.reason.kind) == (
        "timed_out",
        "batch_timeout",
    )
    gate.wait_begun()
    results = runner.run(calls("gate", "fails"), fail_fast=True)
    assert [r.reason and r.reason.kind for r in results] == ["sibling_failed", None]


def test_misuse_raises_at_once(make: Make) -> None:
    """§3.2: in the thread that calls, before anything runs."""
    ran: list[int] = []
    runner = make({"tool": lambda: ran.append(1)})
    with pytest.raises(TypeError, match="ToolCall"):
        runner.run([*calls("tool"), "tool"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="timeout"):
        runner.run(calls("tool"), timeout=-1)
    with pytest.raises(TypeError, match="message"):
        runner.interrupt(3)  # type: ignore[arg-type]
    with runner.open_batch() as batch:
        with pytest.raises(TypeError, match="ToolCall"):
            batch.submit("tool")  # type: ignore[arg-type]
        batch.seal()
        batch.seal()
        with pytest.raises(BatchSealedError):
            batch.submit(calls("tool")[0])
    block = runner.open_batch([])
    with block:
        pass
    with pytest.raises(RuntimeError, match="opened already"), block:
        pass
    assert ran == []


def test_unusable_backends_are_refused() -> None:
    """§3.2: a wrong name at once, a loop that can't be started at its first use."""
    with pytest.raises(ValueError, match="asyncio"):
        BlockingToolRunner(backend="twisted")
    with pytest.raises(TypeError, match="backend_options"):
        BlockingToolRunner(backend_options=3)  # type: ignore[arg-type]
    runner = BlockingToolRunner(backend_options={"loop_factory": lambda: 1 / 0})
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            runner.run([])


def test_tools_see_the_context_of_the_calling_thread(make: Make) -> None:
    """P1, §4.1: calls see the submitter's context; theirs changes nothing there."""
    who = contextvars.ContextVar("who", default="nobody")

    async def on_loop() -> str:
        seen = who.get()
        who.set("tool")
        return seen

    def in_thread() -> str:
        return who.get()

    def approve(call: ToolCall) -> bool:
        return who.get() == "me"

    runner = make([on_loop, in_thread], approve=approve)
    who.set("me")
    assert [r.value for r in runner.run(calls("on_loop", "in_thread"))] == ["me", "me"]
    with runner.open_batch() as batch:
        batch.submit(calls("in_thread")[0])
        assert (
            Thread(
                lambda: (who.set("me"), batch.submit(calls("on_loop")[0]).wait().value)[1]
            ).value()
            == "me"
        )
        denied = Thread(batch.submit, calls("on_loop")[0]).value()
    assert denied.result.status.value == "denied"
    assert who.get() == "me"


def test_threads_use_one_runner_at_once(make: Make) -> None:
    """P10: the limits hold between the batches of all threads; none gets another's results."""
    together = threading.Barrier(4, timeout=LIVENESS)

    def meet(n: int) -> int:
        together.wait()
        return n

    runner = make([meet], max_threads=4)
    agents = [
        Thread(lambda n=n: runner.run([ToolCall(str(n), "meet", {"n": n})] * 1))
        for n in range(4)
    ]
    assert [agent.value()[0].value for agent in agents] == [0, 1, 2, 3]


def test_first_use_by_many_threads_starts_one_loop(make: Make) -> None:
    """P10: who loses the race for the start uses the winner's loop."""
    here = threading.Barrier(8, timeout=LIVENESS)
    runner = make([threading.get_ident])

    async def loop_thread_id() -> int:
        return threading.get_ident()

    call = ToolCall("1", "id", tool=loop_thread_id)
    agents = [Thread(lambda: (here.wait(), runner.run([call]))[1]) for _ in range(8)]
    assert len({agent.value()[0].value for agent in agents}) == 1


# -- interrupts ------------------------------------------------------------------


def test_interrupt_from_another_thread(make: Make, gate: Gate) -> None:
    """P2, P3, P4: back at once; what has ended is kept, what has not begun never does."""
    ended = threading.Event()

    async def quick() -> str:
        return "real"

    def on_end(event: Any) -> None:
        if isinstance(event, CallSettled):
            ended.set()

    runner = make({"gate": gate, "quick": quick}, max_concurrency=2)
    runner._runner._observers = (*runner._runner._observers, on_end)
    agent = Thread(runner.run, calls("gate", "quick", "gate", "gate"))
    gate.wait_begun()
    assert ended.wait(LIVENESS)
    gate.wait_begun()
    assert runner.interrupt("enough") == 1
    results = agent.value()
    assert shape(results) == [CUT, DONE, CUT, NOT_STARTED]
    assert results[0].reason.message == "enough"
    assert runner.interrupt() == 0
    assert gate.calls == 2
    assert len(runner.statistics().detached) == 2
    assert not runner.wait_detached(0.01)
    gate.open()
    assert runner.wait_detached(LIVENESS)
    assert shape(runner.run(calls("gate"))) == [DONE]


def test_late_results_go_to_the_hook_alone(make: Make, gate: Gate) -> None:
    """P5: the detached call's value reaches `on_late`, not its batch, nor the next."""
    late: list[LateResult] = []
    runner = make({"gate": gate}, on_late=late.append)
    with runner.open_batch(calls("gate")) as batch:
        gate.wait_begun()
        assert batch.interrupt("stop")
        assert not batch.interrupt()
    assert batch.interrupted and batch.reason is not None
    gate.open()
    assert runner.wait_detached(LIVENESS)
    assert [r.value for r in late] == ["done"]
    assert shape(batch.results) == [CUT]


def test_an_interrupt_never_lands_in_the_next_turn(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: who is slow to stop one turn stops nothing of a turn that began meanwhile."""
    runner = make({"gate": gate})
    later: list[BlockingToolBatch] = []
    with contextlib.ExitStack() as turns:
        tell = Opening.interrupt

        def tell_and_dawdle(opening: Opening, *request: Any) -> bool:
            told = tell(opening, *request)
            later.append(turns.enter_context(runner.open_batch()))
            return told

        with runner.open_batch([ToolCall("0", "gate")]) as batch:
            monkeypatch.setattr(Opening, "interrupt", tell_and_dawdle)
            assert runner.interrupt("let's move on") == 1
            monkeypatch.undo()
        assert batch.interrupted
        assert [turn.interrupted for turn in later] == [False]


def test_interrupt_reaches_a_batch_that_is_on_its_way(make: Make, gate: Gate) -> None:
    """P4: an interrupt between `run` and the loop's first look is not lost; nothing starts."""
    release = threading.Event()
    blocked = threading.Event()

    async def blocks_the_loop() -> None:
        blocked.set()
        release.wait(LIVENESS)

    runner = make({"gate": gate, "block": blocks_the_loop})
    first = Thread(runner.run, calls("block"))
    assert blocked.wait(LIVENESS)
    second = Thread(runner.run, calls("gate"))
    while len(runner._batches) < 2:
        time.sleep(0.001)
    assert runner.interrupt("too late for you") == 2
    assert runner.interrupt() == 0
    release.set()
    assert shape(second.value()) == [NOT_STARTED]
    assert len(first.value()) == 1
    assert gate.calls == 0


def test_batch_that_is_just_being_opened_counts_once(make: Make, gate: Gate) -> None:
    """§3.1: though it is known already, both to the runner and as one on its way."""
    counts: list[int] = []

    def observer(event: Any) -> None:
        if isinstance(event, BatchStarted):
            counts.extend([runner.interrupt(), runner.interrupt()])

    runner = make({"gate": gate})
    runner._runner._observers = (*runner._runner._observers, observer)
    assert shape(runner.run(calls("gate"))) == [NOT_STARTED]
    assert counts == [1, 0]
    assert not runner._batches


@needs_signals
def test_control_c_ends_run_at_once(make: Make, gate: Gate) -> None:
    """P2, P4, P8: the batch is interrupted, no tool waited for, and the break goes on."""
    runner = make({"gate": gate}, max_concurrency=1)
    breaker = Thread(lambda: (gate.wait_begun(), waiting_in("_wait"), press_control_c()))
    with pytest.raises(KeyboardInterrupt):
        runner.run(calls("gate", "gate"))
    breaker.value()
    assert gate.calls == 1
    statistics = runner.statistics()
    assert (statistics.open_batches, len(statistics.detached)) == (0, 1)
    gate.open()
    assert shape(runner.run(calls("gate"))) == [DONE]


@needs_signals
@pytest.mark.parametrize("where", ["wait", "exit", "body", "events", "handle"])
def test_results_are_readable_after_control_c(make: Make, gate: Gate, where: str) -> None:
    """P3, P8: wherever the break meets the block, each call has its result afterwards."""
    runner = make({"gate": gate, "quick": lambda: "real"}, max_threads=2)
    inside = {"exit": "_wait", "body": "in_the_body", "events": "__next__"}

    def press() -> None:
        gate.wait_begun()
        waiting_in(inside.get(where, "call"))
        press_control_c()

    def in_the_body() -> None:
        for _ in range(400):  # a signal may come just before a sleep
            threading.Event().wait(0.05)

    breaker = None
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch() as batch:
            assert batch.submit(calls("quick")[0]).wait().value == "real"
            handle = batch.submit(calls("gate")[0])
            breaker = Thread(press)
            if where == "wait":
                batch.wait()
            elif where == "body":
                in_the_body()
            elif where == "events":
                for _ in batch.events():
                    pass
            elif where == "handle":
                handle.wait()
    assert breaker is not None
    breaker.value()
    assert shape(batch.results) == [DONE, CUT]
    assert batch.interrupted
    assert handle.result is batch.results[1]


@needs_signals
def test_second_control_c_ends_the_grace(make: Make, gate: Gate) -> None:
    """P2: the first one gives the grace that was asked for, the second one none; both safe."""
    runner = make({"gate": gate}, interrupt_grace=LIVENESS * 10)
    begun = time.monotonic()

    def press_twice() -> None:
        gate.wait_begun()
        waiting_in("_wait")
        press_control_c()
        waiting_in("_settle_after_break")
        press_control_c()

    breaker = Thread(press_twice)
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch(calls("gate")) as batch:
            pass
    breaker.value()
    assert shape(batch.results) == [CUT]
    assert time.monotonic() - begun < LIVENESS


@needs_signals
def test_grace_of_control_c(make: Make, gate: Gate) -> None:
    """§4.3: within the grace a running call gives its own answer, and it counts."""
    begun, stopped = threading.Event(), threading.Event()

    def polite() -> str:
        begun.set()
        assert current_call().cancelled.wait(LIVENESS)
        stopped.set()
        return "just in time"

    def press_and_open() -> None:
        begun.wait(LIVENESS)
        gate.wait_begun()
        waiting_in("_wait")
        press_control_c()
        assert stopped.wait(LIVENESS)
        gate.open()

    runner = make({"polite": polite, "gate": gate})
    breaker = Thread(press_and_open)
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch(calls("polite", "gate"), interrupt_grace=LIVENESS) as batch:
            pass
    breaker.value()
    assert [r.value for r in batch.results] == ["just in time", "done"]
    assert batch.interrupted


class Alarm(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Make a signal handler raise in the main thread, as SIGALRM is used."""

    def handler(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@needs_signals
def test_other_exceptions_of_signal_handlers_cut_as_a_cancellation(
    make: Make, gate: Gate, alarm: Callable[[], None]
) -> None:
    """P8: they go on, the batch is let go without a grace, and results are readable."""
    runner = make({"gate": gate}, interrupt_grace=LIVENESS * 10)
    breaker = Thread(lambda: (gate.wait_begun(), waiting_in("_wait"), alarm()))
    with pytest.raises(Alarm):
        with runner.open_batch(calls("gate")) as batch:
            pass
    breaker.value()
    assert shape(batch.results) == [LET_GO]


@needs_signals
def test_break_while_an_error_leaves_the_block(make: Make) -> None:
    """P4, P10: though the loop is blocked the break goes on; later nothing is left open."""
    release, blocked = threading.Event(), threading.Event()

    async def blocks_the_loop() -> None:
        await anyio.sleep(0)
        blocked.set()
        release.wait(LIVENESS * 5)

    runner = make({"block": blocks_the_loop})
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch() as batch:
            batch.submit(calls("block")[0])
            assert blocked.wait(LIVENESS)
            breaker = Thread(lambda: (waiting_in("__exit__"), press_control_c()))
            raise LookupError
    breaker.value()
    release.set()
    assert runner.run([]) == []
    assert len(batch.results) == 1
    assert runner.statistics().open_batches == 0


@pytest.mark.parametrize("where", ["body", "error", "end"])
def test_break_before_the_leaving_is_asked_for(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """P4, P10: a break at any line of leaving, before the loop knows: nothing is left open."""
    send = loop_thread.LoopThread.send

    def broken(*_: Any) -> Any:
        monkeypatch.setattr(loop_thread.LoopThread, "send", send)
        raise KeyboardInterrupt

    runner = make({"gate": gate})
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch() as batch:
            batch.submit(calls("gate")[0])
            gate.wait_begun()
            monkeypatch.setattr(loop_thread.LoopThread, "send", broken)
            if where == "body":
                raise KeyboardInterrupt
            if where == "error":
                raise LookupError
    assert runner.run([]) == []
    assert [r.status.value for r in batch.results] == ["interrupted"]
    assert runner.statistics().open_batches == 0


@pytest.mark.parametrize("moment", ["after the drain", "before it", "before the post"])
def test_break_in_the_middle_of_a_post(
    make: Make, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """P8: it comes out as what it is, and what was posted then and later is handled."""
    runner = make([threading.get_ident])
    assert runner.run([]) == []
    assert runner._loop is not None and runner._loop.hub is not None
    hub = runner._loop.hub
    backend_post = hub.backend.post
    ran, begun, go_on = threading.Event(), threading.Event(), threading.Event()

    def post_and_be_broken(drain: Callable[[], None]) -> None:
        monkeypatch.undo()
        if moment != "before the post":
            backend_post(drain)
        if moment == "after the drain":
            assert ran.wait(LIVENESS)
        raise KeyboardInterrupt

    if moment == "before it":  # the loop is busy until the break is over
        hub.post(lambda _: (begun.set(), go_on.wait(LIVENESS)), None)
        assert begun.wait(LIVENESS)
    monkeypatch.setattr(hub.backend, "post", post_and_be_broken)
    with pytest.raises(KeyboardInterrupt):
        hub.post(lambda _: ran.set(), None)
    go_on.set()
    assert shape(runner.run(calls("get_ident"))) == [DONE]
    assert ran.wait(LIVENESS)


@needs_signals
def test_signal_handler_that_interrupts(make: Make, gate: Gate) -> None:
    """§3.1: then `run` returns what there is, and nothing is raised."""
    runner = make({"gate": gate})
    counts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: counts.append(runner.interrupt()))
    try:
        breaker = Thread(lambda: (gate.wait_begun(), waiting_in("_wait"), press_control_c()))
        assert shape(runner.run(calls("gate"))) == [CUT]
        breaker.value()
    finally:
        signal.signal(signal.SIGINT, before)
    assert counts == [1]


@needs_signals
def test_control_c_during_the_opening(
    make: Make, gate: Gate, alarm: Callable[[], None]
) -> None:
    """P2, P4: while a tool blocks the loop: the thread is not held, nothing starts later."""
    release = threading.Event()
    blocked = threading.Event()

    async def blocks_the_loop() -> None:
        blocked.set()
        release.wait(LIVENESS)

    runner = make({"gate": gate, "block": blocks_the_loop})
    first = Thread(runner.run, calls("block"))
    assert blocked.wait(LIVENESS)
    breaker = Thread(lambda: (waiting_in("__enter__"), press_control_c()))
    with pytest.raises(KeyboardInterrupt):
        runner.run(calls("gate"))
    breaker.value()
    with pytest.raises(KeyboardInterrupt):  # without calls it would stay open for ever
        breaker = Thread(lambda: (waiting_in("__enter__"), press_control_c()))
        with runner.open_batch():
            pytest.fail("not reached")
    breaker.value()
    with pytest.raises(Alarm):  # no interrupt, and nothing may start all the same
        breaker = Thread(lambda: (waiting_in("__enter__"), alarm()))
        runner.run(calls("gate"))
    breaker.value()
    assert first.is_alive()
    release.set()
    assert shape(first.value()) == [DONE]
    assert runner.run([]) == []  # the loop has been through all that was posted
    assert gate.calls == 0
    assert runner.statistics().open_batches == 0


@needs_signals
@pytest.mark.parametrize("signal_kind", ["alarm", "ctrl-c"])
@pytest.mark.parametrize("where", ["before", "observer", "validate", "end"])
def test_reason_of_a_break_while_the_loop_is_blocked(
    make: Make, gate: Gate, alarm: Callable[[], None], where: str, signal_kind: str
) -> None:
    """P6: only a Ctrl-C is told as the user's interrupt, however far the opening is."""
    reached, release = threading.Event(), threading.Event()
    reasons: list[str] = []

    def block() -> None:
        reached.set()
        assert release.wait(LIVENESS)

    async def blocks_the_loop() -> None:
        await anyio.sleep(0)
        gate()
        block()
        if where == "end":
            await anyio.sleep_forever()

    def validate(call: ToolCall) -> None:
        if where == "validate":
            block()

    def observer(event: Any) -> None:
        if isinstance(event, BatchInterrupted):
            reasons.append(event.reason.kind)
        elif isinstance(event, BatchStarted) and where == "observer":
            block()

    gate.open()
    runner = make([Tool(blocks_the_loop, name="block", validate=validate)])
    runner._runner._observers = (*runner._runner._observers, observer)
    first = None
    if where == "before":
        first = Thread(runner.run, calls("block"))
    press = alarm if signal_kind == "alarm" else press_control_c
    waits_in = "_wait" if where == "end" else "__enter__"
    breaker = Thread(
        lambda: (where == "before" or reached.wait(LIVENESS), waiting_in(waits_in), press())
    )
    if first is not None:
        assert reached.wait(LIVENESS)
    with pytest.raises(Alarm if signal_kind == "alarm" else KeyboardInterrupt):
        runner.run(calls("block"))
    breaker.value()
    release.set()
    if first is not None:
        first.value()
    assert runner.run([]) == []
    assert reasons == ["caller_cancelled" if signal_kind == "alarm" else "user_interrupt"]
    assert gate.calls == (where in {"before", "end"})
    assert runner.statistics().open_batches == 0


def test_error_leaves_the_block_while_the_loop_is_blocked(make: Make, gate: Gate) -> None:
    """P4: what waits for a thread does not start any more, though the loop can't say so."""
    release, blocked = threading.Event(), threading.Event()

    async def blocks_the_loop() -> None:
        await anyio.sleep(0)
        blocked.set()
        release.wait(LIVENESS)

    runner = make({"gate": gate, "block": blocks_the_loop}, max_threads=1)
    with pytest.raises(LookupError):
        with runner.open_batch(calls("gate", "gate", "block")) as batch:
            gate.wait_begun()
            assert blocked.wait(LIVENESS)
            raise LookupError
    assert not runner.wait_detached(0.0)
    gate.open()
    time.sleep(0.05)
    assert gate.calls == 1
    release.set()
    assert runner.run([]) == []
    assert [r.started for r in batch.results] == [True, False, True]
    assert runner.wait_detached(LIVENESS)


@needs_signals
def test_blocked_loop_holds_neither_control_c_nor_closing(make: Make) -> None:
    """P2, P7: an async tool that blocks the loop holds up what it runs on, not its caller."""
    release = threading.Event()
    blocked = threading.Event()

    async def blocks_the_loop() -> None:
        blocked.set()
        release.wait(LIVENESS * 5)

    runner = make({"block": blocks_the_loop}, close_timeout=0.2)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        with runner, runner.open_batch() as batch:
            # In a thread: an eager task blocks the loop while it is submitted.
            Thread(batch.submit, calls("block")[0])
            assert blocked.wait(LIVENESS)
            breaker = Thread(lambda: (waiting_in("_wait"), press_control_c()))
    assert time.monotonic() - begun < LIVENESS
    breaker.value()
    assert batch.snapshot() == [None]
    with pytest.raises(BatchNotSettledError):
        _ = batch.results
    with pytest.raises(RunnerClosedError):
        runner.run([])
    release.set()


def test_blocked_loop_does_not_hold_who_waits_for_detached_calls(make: Make) -> None:
    """P6, P7: the time limit holds, and the answer is what can be seen from outside."""
    release = threading.Event()
    blocked = threading.Event()

    async def blocks_the_loop() -> None:
        blocked.set()
        release.wait(LIVENESS)

    runner = make({"block": blocks_the_loop})
    agent = Thread(runner.run, calls("block"))
    assert blocked.wait(LIVENESS)
    begun = time.monotonic()
    assert runner.wait_detached(0.01)  # it runs, but nobody has let it go
    runner.interrupt()
    assert not runner.wait_detached(0.01)  # the loop is going to
    assert time.monotonic() - begun < LIVENESS / 2
    release.set()
    agent.value()
    assert runner.wait_detached(LIVENESS)


@needs_signals
def test_control_c_just_after_the_start_of_calls(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, P3: the block is entered all the same, and broken at once: results have a name."""
    wait = loop_thread.Errand.wait

    def wait_and_be_broken(errand: Any, seconds: float | None = None) -> bool:
        answered = wait(errand, seconds)
        if seconds is None:
            monkeypatch.undo()
            gate.wait_begun()
            signal.raise_signal(signal.SIGINT)
        return answered

    runner = make({"gate": gate})
    reached = False
    monkeypatch.setattr(loop_thread.Errand, "wait", wait_and_be_broken)
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch(calls("gate")) as batch:
            reached = True
            batch.wait()
            pytest.fail("not reached")
    assert reached
    assert shape(batch.results) == [CUT]
    gate.open()
    gate.calls = 0
    release = threading.Event()

    async def blocks_the_loop() -> None:
        await anyio.sleep(0)  # an eager task would do it while it is submitted
        gate()
        release.wait(LIVENESS * 5)

    monkeypatch.setattr(loop_thread.Errand, "wait", wait_and_be_broken)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run([ToolCall("1", "block", tool=blocks_the_loop)])
    assert time.monotonic() - begun < LIVENESS
    release.set()


@needs_signals
def test_break_at_the_first_step_of_leaving(make: Make, gate: Gate) -> None:
    """P4, P10: a break before any line of `__exit__`: the batch is cut, not forgotten."""
    runner = make({"gate": gate})
    block = runner.open_batch()
    batch = block.__enter__()
    batch.submit(calls("gate")[0])
    gate.wait_begun()
    del block  # as when `__exit__` could not run
    gc.collect()
    with pytest.raises(BatchSealedError):
        for _ in range(1000):  # in the next pass of the loop
            batch.submit(calls("gate")[0])
    assert {r.status.value for r in batch.results} == {"interrupted"}
    assert runner.statistics().open_batches == 0
    assert gate.calls == 1


def test_keyboard_interrupt_of_a_tool_comes_out_once(make: Make) -> None:
    """P8, §4.6: it is raised in the thread that waits; the loop lives on."""

    async def breaks() -> None:
        raise KeyboardInterrupt

    def breaks_too() -> None:
        raise KeyboardInterrupt

    def validate(call: ToolCall) -> None:
        raise KeyboardInterrupt

    async def which_loop() -> int:
        return threading.get_ident()

    refusing = Tool(which_loop, name="refusing", validate=validate)
    runner = make([breaks, breaks_too, which_loop, refusing])
    (before,) = runner.run(calls("which_loop"))
    for name in ("breaks", "breaks_too", "refusing"):
        with pytest.raises(KeyboardInterrupt):
            runner.run(calls(name))
    with pytest.raises(KeyboardInterrupt):
        with runner.open_batch(calls("breaks")) as batch:
            batch.wait()
    assert [r.status.value for r in batch.results] == ["interrupted"]
    (after,) = runner.run(calls("which_loop"))
    assert before.value == after.value
    assert runner.statistics().open_batches == 0


# -- the batch -------------------------------------------------------------------


def test_streaming_submits_and_events(make: Make, gate: Gate) -> None:
    """§3.1: calls come while others run; each reader sees all, in order, to the end."""

    async def stream() -> Any:
        yield 1
        yield 2

    runner = make({"gate": gate, "stream": stream})
    with runner.open_batch() as batch:
        reader = batch.events()
        held = batch.submit(calls("gate")[0])
        streamed = batch.submit(calls("stream")[0])
        assert streamed.wait(LIVENESS).value == 2
        assert streamed.result is not None
        with pytest.raises(TimeoutError):
            held.wait(0.01)
        with pytest.raises(TimeoutError):
            batch.wait(0.01)
        with pytest.raises(BatchNotSettledError):
            _ = batch.results
        assert (held.index, held.result, held.call.name) == (0, None, "gate")
        assert "gate" in held.explain()
        assert [r is None for r in batch.snapshot()] == [True, False]
        gate.open()
        assert [r.value for r in batch.wait()] == ["done", 2]
        batch.seal()
        events = list(reader)
    assert events == list(batch.events())
    assert isinstance(events[-1], BatchSettled)
    assert [e.output for e in events if isinstance(e, CallOutput)] == [1, 2]
    assert sorted(e.index for e in events if isinstance(e, CallStarted)) == [0, 1]
    assert [e.index for e in events if isinstance(e, CallSettled)] == [1, 0]
    assert batch.calls == [*calls("gate"), *calls("stream")]
    assert {e.batch_id for e in events} == {batch.id}
    with pytest.raises(StopIteration):
        next(reader)


def test_cancel_and_supersede(make: Make, gate: Gate, other_gate: Gate) -> None:
    """§3.1: one call is cut, by handle or id; what has not begun is superseded."""
    runner = make({"gate": gate, "other": other_gate}, max_concurrency=2)
    with runner.open_batch() as batch:
        first = batch.submit(ToolCall("a", "gate"))
        batch.submit(ToolCall("b", "other"))
        batch.submit(ToolCall("b", "gate"))
        gate.wait_begun()
        other_gate.wait_begun()
        assert first.cancel("not this")
        assert not first.cancel()
        assert shape([first.wait()]) == [("interrupted", "call_cancelled", True, True)]
        gate.wait_begun()
        assert batch.supersede("news")
        assert not batch.supersede()
        late = batch.submit(ToolCall("c", "gate"))
        assert batch.cancel("b") == 2
        assert batch.cancel("nobody") == 0
    assert late.result is not None
    assert [r.reason and r.reason.kind for r in batch.results] == [
        "call_cancelled",
        "call_cancelled",
        "call_cancelled",
        "superseded",
    ]


@needs_signals
def test_break_loses_no_event(make: Make, gate: Gate) -> None:
    """§3.1: who is broken out of a wait for an event reads on where it was."""
    runner = make({"gate": gate})
    with runner.open_batch(calls("gate")) as batch:
        reader = batch.events()
        seen = [next(reader), next(reader)]
        breaker = Thread(lambda: (waiting_in("__next__"), press_control_c()))
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        breaker.value()
        gate.open()
        seen += reader
    assert seen == list(batch.events())
    assert shape(batch.results) == [DONE]


def test_error_in_the_block_lets_go(make: Make, gate: Gate) -> None:
    """P8: an exception out of the block detaches first and then goes on."""
    runner = make({"gate": gate}, interrupt_grace=LIVENESS * 10)
    with pytest.raises(LookupError):
        with runner.open_batch(calls("gate")) as batch:
            gate.wait_begun()
            raise LookupError("no model")
    assert shape(batch.results) == [LET_GO]
    assert batch.reason is not None and "LookupError" in (batch.reason.message or "")


# -- where it may be called -------------------------------------------------------


async def test_event_loops_are_not_blocked() -> None:
    """§3.5: in async code every method that waits refuses, and names the alternative."""
    runner = BlockingToolRunner([threading.get_ident])
    with pytest.raises(RuntimeError, match="ToolRunner"):
        runner.run([])
    for method in (runner.__enter__, runner.close, runner.wait_detached):
        with pytest.raises(RuntimeError, match="ToolRunner"):
            method()
    assert runner.interrupt() == 0
    done = await anyio.to_thread.run_sync(runner.run, calls("get_ident"))
    assert shape(done) == [DONE]
    with anyio.fail_after(LIVENESS):
        await anyio.to_thread.run_sync(runner.close)


def test_own_loop_is_not_waited_for(make: Make, gate: Gate) -> None:
    """§3.5: tools and hooks on the runner's loop are refused, not deadlocked."""
    errors: dict[str, str] = {}
    runner: BlockingToolRunner
    batch: BlockingToolBatch

    def attempt(name: str, function: Callable[[], Any]) -> None:
        try:
            function()
        except RuntimeError as exc:
            errors[name] = str(exc)

    async def on_loop() -> None:
        attempt("run", lambda: runner.run([]))
        attempt("close", runner.close)
        attempt("submit", lambda: batch.submit(calls("on_loop")[0]))
        attempt("seal", batch.seal)
        attempt("wait", batch.wait)
        attempt("events", batch.events)
        attempt("next", lambda: next(reader))
        attempt("handle", handle.wait)

    async def in_thread() -> None:
        attempt("own loop", lambda: runner.run([]))

    def observer(event: Any) -> None:
        attempt("observer", lambda: runner.run([]))
        attempt("interrupts", lambda: other.interrupt())

    other = make()
    runner = make([on_loop, Tool(in_thread, runs_in="thread"), Tool(gate, name="gate")])
    runner._runner._observers = (observer,)
    with runner.open_batch() as batch:
        handle = batch.submit(calls("gate")[0])
        reader = batch.events()
        next(reader)
        batch.submit(calls("on_loop")[0]).wait(LIVENESS)
        batch.submit(calls("in_thread")[0]).wait(LIVENESS)
        gate.open()
    names = "run close submit seal wait events next handle observer".split()
    assert set(errors) == {*names, "own loop"}
    assert all("ToolRunner" in message for message in errors.values())
    assert all("plain function" in errors[name] for name in names)


def test_plain_tool_runs_an_inner_batch(make: Make) -> None:
    """§4.9: through the same runner, with one place and one thread: they are lent."""
    runner: BlockingToolRunner

    def outer(depth: int) -> Any:
        if not depth:
            return from_thread.run(anyio.sleep, 0) or "bottom"
        (result,) = runner.run([ToolCall("in", "outer", {"depth": depth - 1})])
        return result.unwrap()

    runner = make([outer], max_concurrency=1, max_threads=1)
    (result,) = runner.run([ToolCall("out", "outer", {"depth": 3})])
    assert result.unwrap() == "bottom"


@pytest.mark.parametrize("same", [True, False], ids=["same runner", "another runner"])
def test_inner_batch_is_cut_with_its_call(make: Make, gate: Gate, same: bool) -> None:
    """§4.9: the cut of the outer call reaches the inner batch, on whichever loop."""
    inner_results: list[ToolResult] = []
    ended = threading.Event()

    def outer() -> None:
        inner_results.extend(inner_runner.run(calls("gate", "gate")))
        ended.set()

    runner = make({"outer": outer, "gate": gate}, max_threads=4)
    inner_runner = runner if same else make({"gate": gate})
    agent = Thread(runner.run, calls("outer"))
    gate.wait_begun()
    gate.wait_begun()
    assert runner.interrupt("stop all") >= 1
    assert shape(agent.value()) == [CUT]
    assert ended.wait(LIVENESS)
    assert shape(inner_results) == [CUT, CUT]
    assert {r.reason and r.reason.message for r in inner_results} == {"stop all"}


# -- ending ----------------------------------------------------------------------


def test_close_during_a_run(make: Make, gate: Gate) -> None:
    """P1, P7: who waits gets its results, a reader its last event, newcomers an error."""
    runner = make({"gate": gate}, max_concurrency=1)
    reading = threading.Event()
    read_all: list[Any] = []
    results: list[ToolResult] = []

    def agent() -> list[ToolResult]:
        with runner.open_batch(calls("gate", "gate")) as batch:
            reader = batch.events()
            read_all.append(next(reader))
            reading.set()
            closed.wait(LIVENESS)
            results.extend(batch.wait())
            read_all.extend(reader)
        return batch.results

    closed = threading.Event()
    thread = Thread(agent)
    waiting = Thread(runner.run, calls("gate"))
    assert reading.wait(LIVENESS)
    gate.wait_begun()
    while runner.statistics().waiting < 2:
        time.sleep(0.001)
    runner.close()
    closed.set()
    reasons = [r.reason and r.reason.kind for r in thread.value()]
    assert reasons == ["runner_closed", "runner_closed"]
    assert results == thread.value()
    assert isinstance(read_all[-1], BatchSettled)
    assert [r.reason.kind for r in waiting.value()] == ["runner_closed"]
    for use in (lambda: runner.run([]), runner.__enter__, runner.wait_detached):
        with pytest.raises(RunnerClosedError):
            use()
    runner.close()
    assert runner.interrupt() == 0


def test_what_a_closed_runner_leaves_readable(make: Make) -> None:
    """P1: of a batch all can be read when the loop is gone; it takes no more calls."""
    with make([threading.get_ident]) as runner:
        with runner.open_batch() as batch:
            handle = batch.submit(calls("get_ident")[0])
            reader = batch.events()
            events = [next(reader)]
    assert handle.wait() is batch.wait()[0] is batch.results[0]
    events += reader
    assert isinstance(events[-1], BatchSettled)
    assert list(batch.events()) == events
    for use in (lambda: batch.submit(calls("x")[0]), batch.seal):
        with pytest.raises(RunnerClosedError):
            use()
    assert not batch.interrupt()


def test_events_of_a_batch_that_nobody_can_end(make: Make) -> None:
    """P6: a batch whose loop is stuck shows what it has, and then why there is no more."""
    release, blocked = threading.Event(), threading.Event()

    async def blocks_the_loop() -> None:
        await anyio.sleep(0)
        blocked.set()
        release.wait(LIVENESS)

    runner = make([blocks_the_loop], close_timeout=0.0)
    with pytest.raises(LookupError):
        with runner.open_batch(calls("blocks_the_loop")) as batch:
            assert blocked.wait(LIVENESS)
            runner.close()
            raise LookupError
    release.set()
    assert runner._loop is not None
    assert runner._loop.join(LIVENESS)
    reader = batch.events()
    assert isinstance(next(reader), BatchStarted)
    with contextlib.suppress(RunnerClosedError):
        for _ in reader:
            pass


def test_deaf_coroutine_does_not_hold_closing(make: Make) -> None:
    """P7: what refuses to end is left behind in its daemon thread."""
    release = threading.Event()
    begun = threading.Event()

    async def deaf() -> None:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(BaseException):
                await anyio.sleep(0.02)

    runner = make([deaf], close_timeout=0.05)
    start = time.monotonic()
    with runner:
        with runner.open_batch(calls("deaf")) as batch:
            assert begun.wait(LIVENESS)
            batch.interrupt()
    assert time.monotonic() - start < LIVENESS
    assert shape(batch.results) == [CUT]
    release.set()


def test_forgotten_runner_gives_its_thread_back(make: Make, gate: Gate) -> None:
    """P10: a runner that nobody closed ends with its last reference, without a join."""
    runner = BlockingToolRunner({"gate": gate})
    with runner.open_batch(calls("gate")) as batch:
        gate.wait_begun()
        batch.interrupt()
    loop = runner._loop
    gone = weakref.ref(runner)
    assert loop is not None
    del runner, batch
    gc.collect()
    assert gone() is None
    assert loop.join(LIVENESS)
    assert gate.calls == 1


def test_open_batch_keeps_its_runner(make: Make) -> None:
    """P10: the runner of a ``with`` in one line is not collected under it."""
    with BlockingToolRunner([threading.get_ident]).open_batch() as batch:
        gc.collect()
        assert batch.submit(calls("get_ident")[0]).wait(LIVENESS).started
    gc.collect()
    assert isinstance(list(batch.events())[-1], BatchSettled)
    loop = batch._loop
    del batch
    gc.collect()
    assert loop.join(LIVENESS)


def test_tool_that_ends_the_loop(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """P1: each call of the batch has its result, and the next batch a new loop."""

    async def vandal() -> None:
        import asyncio

        gate.wait_begun()
        for task in asyncio.all_tasks():
            task.cancel()
        await anyio.sleep_forever()

    tools = {"vandal": vandal, "gate": gate, "get_ident": threading.get_ident}
    with BlockingToolRunner(tools) as runner:
        results = runner.run(calls("gate", "vandal"))
        assert shape(results)[0] == ("interrupted", "runner_closed", True, True)
        assert results[1].started and results[1].status.value in {"interrupted", "failed"}
        while not (runner._loop and runner._loop.is_over):
            time.sleep(0.001)
        assert shape(runner.run(calls("get_ident"))) == [DONE]
    assert "has ended" in caplog.text


def test_loops_that_have_ended_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    """P10: nothing grows with the loops that tools end, or that can't be started."""

    async def vandal() -> None:
        import asyncio

        for task in asyncio.all_tasks():
            task.cancel()
        await anyio.sleep_forever()

    ended = []
    # A captured record would have the error, and that its frames.
    caplog.set_level("CRITICAL", "anyio_toolbatch")
    with BlockingToolRunner([vandal]) as runner:
        for _ in range(3):
            with contextlib.suppress(RunnerClosedError):
                runner.run(calls("vandal"))
            assert runner._loop is not None
            assert runner._loop.join(LIVENESS)
            ended.append(weakref.ref(runner._loop))
        assert runner.run([]) == []
        gc.collect()
        assert [loop() for loop in ended] == [None] * 3
    runner = BlockingToolRunner(backend_options={"loop_factory": lambda: 1 / 0})
    before = len(loop_thread._live)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            runner.run([])
    gc.collect()
    assert len(loop_thread._live) <= before


# -- forks -----------------------------------------------------------------------


def in_child(function: Callable[[], object]) -> int:
    """Run it in a forked process; return the exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        except SystemExit as exc:
            status = int(exc.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    until = time.monotonic() + LIVENESS
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_has_a_loop_of_its_own(make: Make, gate: Gate) -> None:
    """P7: the child uses none of what belongs to the parent, and hangs on nothing."""
    runner = make({"gate": gate, "get_ident": threading.get_ident})
    with runner.open_batch() as batch:
        handle = batch.submit(calls("gate")[0])
        gate.wait_begun()

        def child() -> None:
            assert runner.interrupt() == 0
            for use in (batch.interrupt, batch.wait, batch.seal, handle.cancel, handle.wait):
                with pytest.raises(RuntimeError, match="forked"):
                    use()
            assert batch.snapshot() == [None]
            assert runner.statistics().open_batches == 0
            with runner:
                assert shape(runner.run(calls("get_ident"))) == [DONE]

        assert in_child(child) == 0
        gate.open()
    assert shape(batch.results) == [DONE]


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_forgets_a_block(make: Make, gate: Gate) -> None:
    """P7: a block that is collected in the child posts nothing to the parent's loop."""
    runner = make({"gate": gate})
    blocks = [runner.open_batch(calls("gate"))]
    batch = blocks[0].__enter__()
    gate.wait_begun()

    def child() -> None:
        posts: list[Any] = []
        assert runner._loop is not None and runner._loop.hub is not None
        runner._loop.hub.backend.post = posts.append  # type: ignore[method-assign]
        blocks.clear()
        gc.collect()
        assert posts == []

    assert in_child(child) == 0
    gate.open()
    blocks[0].__exit__(None, None, None)
    assert shape(batch.results) == [DONE]


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_leaves_the_blocks_it_was_forked_in(make: Make, gate: Gate) -> None:
    """P7: `sys.exit` in the child, inside both blocks: no wait, and nothing cut up there."""
    runner = make({"gate": gate})

    def child() -> None:
        with loop_thread_is_the_parents(), contextlib.ExitStack() as stack:
            stack.push(block)
            stack.push(runner)
            sys.exit(7)

    @contextlib.contextmanager
    def loop_thread_is_the_parents() -> Iterator[None]:
        assert runner._loop is not None and not runner._loop.is_ours
        yield

    block = runner.open_batch(calls("gate"))
    with block as batch:
        gate.wait_begun()
        assert in_child(child) == 7
        assert batch.snapshot() == [None]
        gate.open()
    assert shape(batch.results) == [DONE]


# -- the end of the program --------------------------------------------------------

HOW = {
    "main returns": (0, "stuck interrupted\nsleeping interrupted\nmain is over\n"),
    "sys.exit": (3, "stuck interrupted\nsleeping interrupted\n"),
    "an error": (0, "main is over\n"),
    "ctrl-c": (0, "stuck interrupted\nsleeping interrupted\nmain is over\n"),
    "deaf coroutine": (0, "stuck interrupted\ndeaf interrupted\nmain is over\n"),
    "blocked loop": (0, "broken\nmain is over\n"),
    "open batch": (0, "main is over\n"),
    "agent in a daemon": (0, "main is over\n"),
    "reader in a daemon": (0, "main is over\n"),
    "never used": (0, "main is over\n"),
}
LOOPS = ["asyncio", "trio", *([] if sys.platform == "win32" else ["uvloop"])]


def run_script(how: str, loop: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", SCRIPTS / "blocking_leaves.py", how, loop],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
    )


@needs_signals
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", HOW)
def test_program_ends_with_an_unclosed_runner(how: str, loop: str) -> None:
    """P7: in silence, whatever its tools are doing, with the status that it meant."""
    done = run_script(how, loop)
    assert (done.returncode, done.stdout, done.stderr) == (*HOW[how], "")


@needs_signals
@pytest.mark.parametrize("loop", LOOPS)
def test_program_ends_while_a_tool_prints(loop: str) -> None:
    """P7: a thread that is inside a print does not make the interpreter abort."""
    done = run_script("chatty", loop)
    assert (done.returncode, done.stderr) == (0, "")
    assert "main is over" in done.stdout


@needs_signals
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="looks for a child process")
@pytest.mark.parametrize("loop", LOOPS)
def test_program_takes_its_commands_along(loop: str) -> None:
    """P7: the loop has a moment at the interpreter's end, in which it kills them."""
    done = run_script("a command", loop)
    assert (done.returncode, done.stderr) == (0, "")
    children, end = done.stdout.splitlines()
    assert end == "main is over"
    until = time.monotonic() + LIVENESS
    for pid in map(int, children.split()):
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < until:
                os.kill(pid, 0)
                time.sleep(0.01)


# -- the face --------------------------------------------------------------------


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(function).parameters
    return {name: (p.kind, p.default) for name, p in found.items() if name != "self"}


def test_options_are_those_of_the_async_runner() -> None:
    """§3.5: the same names, kinds and defaults, and two for the loop."""
    own = parameters(BlockingToolRunner)
    assert [own.pop("backend")[1], own.pop("backend_options")[1]] == ["asyncio", None]
    assert own == parameters(ToolRunner)
    for name in ("run", "open_batch", "interrupt", "wait_detached", "statistics"):
        assert parameters(getattr(BlockingToolRunner, name)) == parameters(
            getattr(ToolRunner, name)
        )


@pytest.mark.parametrize(
    ("sync", "model"), [(BlockingToolBatch, ToolBatch), (BlockingCallHandle, CallHandle)]
)
def test_faces_have_all_that_their_models_have(sync: type, model: type) -> None:
    """§3.5: what a batch and a handle can do, they can do here; `wait` has a limit besides."""

    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(sync) == public(model)
    for name in public(model) - {"wait"}:
        member = getattr(model, name)
        if inspect.isfunction(member):
            assert parameters(getattr(sync, name)) == parameters(member), name


def test_everything_public_is_documented() -> None:
    """§3: whoever asks `help` gets an answer."""
    assert list(blocking.__all__) == sorted(blocking.__all__)
    for name in blocking.__all__:
        cls = getattr(blocking, name)
        for member in [cls, *(m for n, m in vars(cls).items() if not n.startswith("_"))]:
            assert (member.__doc__ or "").strip(), member


def test_repr_tells_what_they_are(make: Make) -> None:
    """P10: visible, in a debugger too."""
    runner = make([threading.get_ident])
    with runner.open_batch(calls("get_ident")) as batch:
        pass
    assert repr(runner).startswith("<BlockingToolRunner tools=1")
    assert repr(batch).startswith("<BlockingToolBatch")


def test_exit_is_bounded_below_a_second() -> None:
    """P7: the constants say so: what nobody closed has a moment, not a turn."""
    assert loop_thread.EXIT_SECONDS < 1.0
    assert loop_thread.LOOK_SECONDS < 1.0


def test_plain_approve_that_asks_for_itself_is_refused(make: Make) -> None:
    """§4.9: it is asked one question at a time, and would wait for its own answer."""
    inner: list[ToolResult] = []

    def approve(call: ToolCall) -> bool:
        if call.name == "outer":
            inner.extend(runner.run([ToolCall("", "inner")]))
        return True

    runner = make({"outer": lambda: 1, "inner": lambda: 2}, approve=approve)
    (result,) = runner.run([ToolCall("", "outer")])
    assert result.value == 1
    (refused,) = inner
    assert (refused.status, refused.started) == (Status.FAILED, False)
    assert isinstance(refused.error, RuntimeError)
    assert "one question at a time" in str(refused.error)


def test_calls_that_are_none_are_refused(make: Make) -> None:
    """§3.1: as by a `ToolRunner`; they are no empty batch."""
    with pytest.raises(
        TypeError, match="calls must be an iterable of ToolCalls, not NoneType"
    ):
        make().run(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("close_timeout", [math.inf, 1e10])
def test_closing_may_take_as_long_as_it_likes(make: Make, close_timeout: float) -> None:
    """P7: longer than the system can count."""
    with make({"add": lambda: 1}, close_timeout=close_timeout) as runner:
        (result,) = runner.run([ToolCall("", "add")])
    assert result.value == 1
