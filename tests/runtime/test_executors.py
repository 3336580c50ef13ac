"""Tools in executors that are somebody else's: those of the standard library, and hostile ones."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallHandle,
    CallOutput,
    ExecutorCarrier,
    LateResult,
    Reason,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    TooManyDetachedError,
    from_thread,
    run_batch,
)
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import executors, state
from anyio_toolbatch.testing import GatedTool, PromiseObserver

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
tools: Any = importlib.import_module("carrier_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant
DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(*results: ToolResult) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what threads and processes do that can't tell this loop."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.002)


async def happens(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


def spin(condition: Callable[[], object]) -> None:
    """The same, with the loop held."""
    deadline = time.monotonic() + LIVENESS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two threads; the test has to let its tools through."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes, for all tests of this file: starting them takes long."""
    with tools.new_executor("processes", 2) as executor:
        yield executor


@pytest.fixture(scope="module")
def both(processes: ProcessPoolExecutor) -> Iterator[dict[str, Executor]]:
    with ThreadPoolExecutor(2) as threads:
        yield {"threads": threads, "processes": processes}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where tools leave traces; whatever becomes of the test, its tools are let through."""
    yield tmp_path
    (tmp_path / "go").touch()


class Manual(Executor):
    """Keeps what it is given; the test does with it what it likes."""

    def __init__(self) -> None:
        self.work: list[tuple[Any, Future[Any]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((fn, future))
        return future

    async def get(self, index: int = 0) -> tuple[Any, Future[Any]]:
        await until(lambda: len(self.work) > index)
        return self.work[index]


class Stuck(Executor):
    """Its `submit` hangs for as long as the gate is closed, the first times."""

    def __init__(self, inner: Executor, times: int = 1) -> None:
        self.inner = inner
        self.times = times
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.stuck = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.stuck += 1
        if self.stuck <= self.times:
            self.entered.release()
            assert self.gate.wait(LIVENESS)
        return self.inner.submit(fn, *args, **kwargs)

    async def wait_entered(self) -> None:
        assert await anyio.to_thread.run_sync(lambda: self.entered.acquire(timeout=LIVENESS))


# -- submitting ------------------------------------------------------------------


async def test_executor_that_refuses_fails_its_calls_alone(promises: PromiseObserver) -> None:
    """P1, P6: it was shut down: its calls were never started, those elsewhere are served."""
    gone = ThreadPoolExecutor(1)
    gone.shutdown()
    refused = Tool(lambda: 1, name="refused", runs_in=gone)
    async with ToolRunner(
        {"refused": refused, "fine": lambda: 1}, observers=[promises]
    ) as runner:
        async with runner.open_batch(calls("refused", "fine", "refused")) as batch:
            pass
        first, fine, second = batch.results
    promises.check(batch.id, batch.results)
    assert shape(first, second) == [("failed", None, False, False)] * 2
    assert isinstance(first.error, RuntimeError)
    assert "not started: RuntimeError: cannot schedule new futures" in first.text
    assert fine.value == 1


async def test_stuck_submit_holds_neither_the_turn_nor_the_next(
    pool: ThreadPoolExecutor, promises: PromiseObserver
) -> None:
    """P2, P4, P10: the thread that is left in it is counted until it is back."""
    stuck = Stuck(pool)
    gate = GatedTool("gated", runs_in=stuck)
    gate.open()
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await stuck.wait_entered()
            assert [w.kind for w in runner.statistics().waiting_calls] == ["executor"] * 2
            batch.interrupt()
        assert shape(*batch.results) == [NOT_STARTED] * 2
        await until(lambda: runner.statistics().detached)
        (detached,) = runner.statistics().detached
        assert (detached.call, detached.batch_id) == (batch.calls[0], batch.id)
        # Through the same `submit`, in which a thread still hangs.
        with anyio.fail_after(LIVENESS):
            (served,) = await runner.run(calls("gated"))
        assert served.value == "done"
        assert not await runner.wait_detached(0)
        stuck.gate.set()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)
    assert gate.started == 1


async def test_thread_in_a_submit_is_waited_for_right_after_the_cut(
    pool: ThreadPoolExecutor,
) -> None:
    """P10: it is entered after the turn is back; who waits for detached work waits for that."""
    stuck = Stuck(pool)
    gate = GatedTool("gated", runs_in=stuck)
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            await stuck.wait_entered()
            batch.interrupt()
        assert not await runner.wait_detached(0.01)
        stuck.gate.set()
        assert await runner.wait_detached(LIVENESS)
    assert gate.started == 0


async def test_stuck_submits_are_capped(
    pool: ThreadPoolExecutor, promises: PromiseObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: at `max_detached` calls are refused, for a thread and for the executor."""
    monkeypatch.setattr(state, "RETURNING_SECONDS", 0.0)  # they do not just come back
    stuck = Stuck(pool, times=2)
    gate = GatedTool("gated", runs_in=stuck)
    gate.open()
    async with ToolRunner(
        {"gated": gate.tool, "blocking": lambda: 1}, max_detached=2, observers=[promises]
    ) as runner:
        for _ in range(2):
            async with runner.open_batch(calls("gated")) as batch:
                await stuck.wait_entered()
                batch.interrupt()
            assert shape(*batch.results) == [NOT_STARTED]
        await until(lambda: len(runner.statistics().detached) == 2)
        refused = await runner.run(calls("gated", "blocking"))
        assert shape(*refused) == [("failed", "too_many_detached", False, False)] * 2
        for result in refused:
            assert isinstance(result.error, TooManyDetachedError)
            assert "gated ×2" in result.text
        stuck.gate.set()
        assert await runner.wait_detached(LIVENESS)
        assert [r.value for r in await runner.run(calls("gated", "blocking"))] == ["done", 1]
    assert gate.started == 1


async def test_cut_that_overtakes_a_refusal_frees_the_thread(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: the thread that was to submit is counted no longer than it is at it."""
    looking, go_on = threading.Event(), threading.Event()

    def refuses(self: state.LoopState) -> bool:
        looking.set()
        assert go_on.wait(LIVENESS)
        return True

    monkeypatch.setattr(state.LoopState, "refuses_submissions", property(refuses))
    async with ToolRunner([Tool(abs_of, name="t", runs_in=pool)]) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await happens(looking)
            batch.interrupt()
        assert shape(*batch.results) == [NOT_STARTED]
        await until(lambda: runner.statistics().detached)
        go_on.set()
        assert await runner.wait_detached(LIVENESS)
        assert not runner.statistics().detached


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (tools.raises_what_can_not_be_read, {}, "TwoPartError: this, that"),
        (tools.raises_what_can_not_be_read, {"in_group": True}, "ExceptionGroup: several"),
        (tools.gives_what_can_not_be_read, {}, "TwoPartError can't be unpickled"),
    ],
)
async def test_what_can_not_be_read_here_is_that_calls_failure_alone(
    processes: ProcessPoolExecutor, function: Any, arguments: dict[str, Any], said: str
) -> None:
    """P8: the pool would take it for its own end, and fail all others now and later."""
    tool = Tool(function, name="t", runs_in=processes)
    fine = Tool(abs_of, name="fine", runs_in=processes)
    asked = [ToolCall("0", "t", arguments), ToolCall("1", "fine", {"value": -1})]
    for _ in range(2):
        failed, done = await run_batch(asked, [tool, fine])
        assert failed.status is Status.FAILED
        assert (failed.started, failed.effects) == (True, "unknown")
        assert said in failed.text
        assert done.value == 1


async def test_queue_that_nobody_empties_keeps_no_batch_alive() -> None:
    """P10: an executor may hold for ever what it was given; that is not the call's batch."""
    manual = Manual()
    waiting = Tool(abs_of, name="t", runs_in=manual)

    class Large:
        pass

    async def make() -> Large:
        return Large()

    async with ToolRunner({"t": waiting, "make": make}) as runner:
        async with runner.open_batch([*remote_calls(), ToolCall("m", "make")]) as batch:
            fn, future = await manual.get()
            while batch.snapshot()[1] is None:
                await anyio.sleep(0.001)
            batch.interrupt()
        large = weakref.ref(batch.results[1].value)
        assert shape(batch.results[0]) == [NOT_STARTED]
        del batch
        await until(lambda: gc.collect() >= 0 and large() is None)
        await until(future.cancelled)
        assert fn() is None
        with pytest.raises(CancelledError):
            pickle.dumps(fn)


async def test_calls_that_executors_have_count_against_no_limit_of_threads(
    pool: ThreadPoolExecutor,
) -> None:
    """P10: what still runs in an executor occupies a thread of its own, not one of ours."""
    gate = GatedTool("gated", runs_in=pool)
    async with ToolRunner(
        {"gated": gate.tool, "blocking": lambda: 1}, max_threads=1, max_detached=1
    ) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await gate.wait_started(2)
            assert runner.statistics().running_threads == 0
            batch.interrupt()
        assert shape(*batch.results) == [CUT] * 2
        assert len(runner.statistics().detached) == 2
        (served,) = await runner.run(calls("blocking"))
        assert served.value == 1
        gate.open()
        assert await runner.wait_detached(LIVENESS)


async def test_calls_reach_an_executor_in_call_order() -> None:
    """§4.7: a pool of one thread serves them in the order of the batch."""
    order: list[int] = []
    with ThreadPoolExecutor(1) as one:
        tool = Tool(lambda n: order.append(n), name="note", runs_in=one)
        asked = [ToolCall(str(n), "note", {"n": n}) for n in range(200)]
        results = await run_batch(asked, [tool])
    assert shape(*results) == [DONE] * 200
    assert order == list(range(200))


async def test_no_thread_for_submitting(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """P1, P6: the system refuses a thread: a failure that was never started."""
    pool.submit(int).result()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("anyio_toolbatch._runtime.threads._bring_thread", refuse)
    (result,) = await run_batch(calls("t"), [Tool(lambda: 1, name="t", runs_in=pool)])
    assert shape(result) == [("failed", None, False, False)]
    assert "can't start new thread" in result.text


# -- executors that drop calls -----------------------------------------------------


async def test_shutdown_drops_what_is_queued(promises: PromiseObserver) -> None:
    """P1, P6: what the executor cancels by itself has failed, and never ran."""
    executor = ThreadPoolExecutor(1)
    gate = GatedTool("gated", runs_in=executor)
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await gate.wait_started()
            await until(lambda: executor._work_queue.qsize() == 1)
            executor.shutdown(wait=False, cancel_futures=True)
            gate.open()
    ran, dropped = batch.results
    promises.check(batch.id, batch.results)
    assert shape(ran, dropped) == [DONE, ("failed", None, False, False)]
    assert isinstance(dropped.error, CancelledError)
    assert gate.started == 1


class RaisesAfterQueueing(Manual):
    """As `ThreadPoolExecutor` does where no further thread can be started."""

    def __init__(self, *, is_quick: bool = False) -> None:
        super().__init__()
        self.is_quick = is_quick
        self.has_raised = threading.Event()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        super().submit(fn)
        if self.is_quick:
            fn()
        self.has_raised.set()
        raise RuntimeError("can't start new thread")


async def test_dropped_call_never_runs_though_it_is_queued(promises: PromiseObserver) -> None:
    """P6: who says "not started" keeps it from starting, before the loop has heard of it."""
    executor = RaisesAfterQueueing()
    ran: list[int] = []
    tool = Tool(lambda: ran.append(1), name="t", runs_in=executor)
    async with ToolRunner([tool], observers=[promises]) as runner:
        async with runner.open_batch(calls("t")) as batch:
            # The loop is held: only the tickets can tell.
            assert executor.has_raised.wait(LIVENESS)
            call, _ = executor.work[0]
            (lines,) = runner._live_states()[0].submissions._lines.values()
            spin(lambda: lines.submit.attached == 0)
            call()
    (result,) = batch.results
    promises.check(batch.id, batch.results)
    assert shape(result) == [("failed", None, False, False)]
    assert ran == []


async def test_call_that_was_dropped_while_it_ran_tells_its_own_end() -> None:
    """P1, P6: it has begun, so the executor's error is not its end."""
    executor = RaisesAfterQueueing(is_quick=True)
    (result,) = await run_batch(calls("t"), [Tool(lambda: "ran", name="t", runs_in=executor)])
    assert (shape(result), result.value) == ([DONE], "ran")


async def test_pool_that_cannot_grow(
    monkeypatch: pytest.MonkeyPatch, promises: PromiseObserver
) -> None:
    """P6: the standard library's pool queues the call, then fails to start a thread for it."""
    ran: list[str] = []
    with ThreadPoolExecutor(2) as executor:
        gate = GatedTool("gated", runs_in=executor)
        tool = Tool(lambda: ran.append("ran"), name="t", runs_in=executor)
        async with ToolRunner([gate.tool, tool], observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("0", "gated"))
                await gate.wait_started()

                def refuse() -> None:
                    raise RuntimeError("can't start new thread")

                monkeypatch.setattr(executor, "_adjust_thread_count", refuse)
                dropped = await batch.submit(ToolCall("1", "t")).wait()
                assert shape(dropped) == [("failed", None, False, False)]
                gate.open()  # the pool's one thread now comes to what is queued
            await anyio.to_thread.run_sync(functools.partial(executor.shutdown, wait=True))
    promises.check(batch.id, batch.results)
    assert ran == []


async def test_cut_of_a_call_that_has_just_been_dropped() -> None:
    """P6, P10: it was not started, whoever says so first; nothing stays in the account."""
    executor = RaisesAfterQueueing()
    async with ToolRunner([Tool(lambda: 1, name="t", runs_in=executor)]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("0", "t"))
            starts = batch._engine.tickets.starts
            spin(lambda: handle._record not in starts)
            # The loop is held: the news waits, and the cut overtakes it.
            batch.interrupt()
            result = await handle.wait()
        assert not result.started
        assert await runner.wait_detached(0.0)
        assert runner.statistics().detached == ()


async def test_broken_process_pool_fails_its_calls_honestly(folder: Path) -> None:
    """P1, P6, E9: one that died may have had effects; what was not sent has none."""
    executor = tools.new_executor("processes")
    both_kinds = [
        Tool(tools.dies, name="dies", runs_in=executor),
        Tool(tools.quick, name="quick", runs_in=executor),
    ]
    asked = [ToolCall("0", "dies", {"folder": folder})]
    asked += [ToolCall(str(n), "quick", {"folder": folder, "name": str(n)}) for n in range(9)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(both_kinds) as runner:
            died, *others = await runner.run(asked)
            (refused,) = await runner.run(asked[1:2])
            assert runner.statistics().detached == ()
    executor.shutdown()
    assert shape(died) == [("failed", None, True, False)]
    assert isinstance(died.error, BrokenExecutor)
    for result, n in zip(others, range(9), strict=True):
        if result.status is Status.COMPLETED:
            continue
        assert isinstance(result.error, BrokenExecutor)
        assert result.started or not (folder / f"started-{n}").exists()
    assert not all(r.started for r in others)  # three at most leave ahead of time
    assert shape(refused) == [("failed", None, False, False)]
    with tools.new_executor("processes") as fresh:
        (fine,) = await run_batch(
            [ToolCall("0", "quick", {"folder": folder})],
            [Tool(tools.quick, name="quick", runs_in=fresh)],
        )
    assert fine.value == "value of 0"


# -- executors that do otherwise than expected ---------------------------------------


@pytest.mark.parametrize("kind", ["function", "generator"])
@pytest.mark.parametrize("given", [7, [1, 2], ValueError("kept from before")])
async def test_executor_that_never_calls(
    kind: str, given: Any, promises: PromiseObserver
) -> None:
    """P1: it has an answer of its own, such as one from a cache."""

    class Cache(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            if isinstance(given, Exception):
                future.set_exception(given)
            else:
                future.set_result(given)
            return future

    def generator() -> Iterator[int]:
        yield 1

    func: Any = generator if kind == "generator" else lambda: 1
    tool = Tool(func, name="t", runs_in=Cache())
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("t")) as batch:
                pass
    (result,) = batch.results
    promises.check(batch.id, batch.results)
    if isinstance(given, Exception):
        assert (result.status, result.error) == (Status.FAILED, given)
        assert not result.started
    else:
        assert result.status is Status.COMPLETED
        assert result.value == (2 if kind == "generator" and given != 7 else given)


@pytest.mark.parametrize("made", [None, 7, object()])
async def test_executor_that_gives_no_future(made: Any) -> None:
    """P1: its fault is that call's failure."""

    class Odd(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return made

    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch(calls("t"), [Tool(lambda: 1, name="t", runs_in=Odd())])
    assert shape(result) == [("failed", None, False, False)]
    assert isinstance(result.error, AttributeError)


@pytest.mark.parametrize("at_once", [False, True])
async def test_executor_that_calls_twice(at_once: bool, promises: PromiseObserver) -> None:
    """P1, P6 (case): the tool runs once, and there is one result."""
    manual = Manual()
    gate = GatedTool("gated", runs_in=manual)
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            call, future = await manual.get()
            first = threading.Thread(target=call)
            first.start()
            await gate.wait_started()
            if at_once:
                assert call() is None
            gate.open()
            await batch.wait()
            first.join(LIVENESS)
            assert call() is None
            future.set_result(None)
    promises.check(batch.id, batch.results)
    assert (gate.started, batch.results[0].value) == (1, "done")


def where() -> int:
    return threading.get_ident()


@pytest.mark.parametrize("called", ["copy", "original"])
async def test_executor_that_pickles_and_calls_here(called: str) -> None:
    """P1: pickled is sent: from then on its future tells, whatever is called where."""

    class Pickles(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            copy = pickle.loads(pickle.dumps(fn))
            future: Future[Any] = Future()
            target = copy if called == "copy" else fn
            threading.Thread(target=lambda: future.set_result(target())).start()
            return future

    (result,) = await run_batch(
        [ToolCall("0", "quick", {"value": 5})], [Tool(abs_of, name="quick", runs_in=Pickles())]
    )
    assert (shape(result), result.value) == ([DONE], 5)


def abs_of(value: int) -> int:
    return abs(value)


async def test_executor_that_runs_in_submit(promises: PromiseObserver) -> None:
    """P2, P10: the call occupies our thread, and is one detached call, not two."""

    class Here(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    late: list[LateResult] = []
    gate = GatedTool("gated", runs_in=Here())
    async with ToolRunner([gate.tool], observers=[promises], on_late=late.append) as runner:
        gate.let_through()
        (result,) = await runner.run(calls("gated"))
        assert (shape(result), result.value) == ([DONE], "done")
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await gate.wait_started(2)
            batch.interrupt()
        assert shape(*batch.results) == [CUT, NOT_STARTED]
        await until(lambda: len(runner._live_states()[0].account.threads) == 1)
        assert [d.call for d in runner.statistics().detached] == batch.calls[:1]
        gate.open()
        with anyio.fail_after(LIVENESS):
            (following,) = await runner.run(calls("gated"))
        assert following.value == "done"
        assert await runner.wait_detached(LIVENESS)
        assert runner.statistics().detached == ()
        await until(lambda: late)
    promises.check(batch.id, batch.results)
    assert [(item.value, item.index) for item in late] == [("done", 0)]
    assert gate.started == 3


FORKS = """
import os, sys, threading
from concurrent.futures import Executor, Future
import anyio
from anyio_toolbatch import Tool, ToolCall, run_batch

class Forks(Executor):
    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        pipe, end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                fn()
                os.write(end, b"it ran")
            except RuntimeError as error:
                os.write(end, str(error).encode())
            os._exit(0)
        os.close(end)
        said = os.read(pipe, 1000).decode()
        os.waitpid(child, 0)
        future.set_exception(RuntimeError(said))
        return future

async def main():
    (result,) = await run_batch([ToolCall("0", "t")], [Tool(print, name="t", runs_in=Forks())])
    print(result.started, result.text)

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_executor_that_forks_without_pickling_is_refused() -> None:
    """P6: from a forked child nobody could tell us that it has begun; so it does not."""
    folder = Path(executors.__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("False Tool call not started: RuntimeError: an executor")
    assert "must pickle" in ended.stdout


@pytest.mark.parametrize("how", ["sent", "called"])
async def test_fence_of_a_call_that_was_cut_in_its_executors_queue(how: str) -> None:
    """P4, P6: it was said not to have started, so it neither leaves nor runs any more."""
    manual, ran = Manual(), [1]
    tool = Tool(ran.pop, name="pop", runs_in=manual)
    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("0", "pop")]) as batch:
            call, _ = await manual.get()
            batch.interrupt()
        assert shape(*batch.results) == [NOT_STARTED]
        if how == "sent":
            with pytest.raises(CancelledError, match="before it was sent"):
                pickle.dumps(call)
        else:
            assert call() is None
        assert ran == [1]
        assert await runner.wait_detached(0)


class Submitting(Executor):
    """Sends what it is given; is slow to say that the first could not be sent."""

    def __init__(self) -> None:
        self.refused = threading.Event()
        self.go_on = threading.Event()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            sent = pickle.loads(pickle.dumps(fn))
        except CancelledError:
            self.refused.set()
            assert self.go_on.wait(LIVENESS)
            raise
        future.set_result(sent())
        return future


async def test_call_that_is_sent_after_all_is_not_failed_by_its_first_submission() -> None:
    """P1, §4.9: the call around it was to be cut, and ended by itself before that."""
    executor = Submitting()
    handles: list[CallHandle] = []
    blocks: list[Any] = []
    opened: list[ToolBatch] = []

    class Starts(set[CallRecord]):
        def remove(self, record: CallRecord) -> None:
            super().remove(record)
            handles[0].cancel()  # between the ticket and the look at the cut

    async def outer() -> None:
        await anyio.lowlevel.checkpoint()  # for its own handle
        block = runner.open_batch()
        inner = await block.__aenter__()
        inner._engine.tickets.starts = Starts()
        inner.submit(*remote_calls())
        blocks.append(block)
        opened.append(inner)
        assert executor.refused.wait(LIVENESS)

    tool = Tool(abs_of, name="t", runs_in=executor)
    async with ToolRunner([tool, outer]) as runner:
        try:
            async with runner.open_batch() as batch:
                handles.append(batch.submit(ToolCall("0", "outer")))
            (record,) = opened[0]._engine.records
            await until(lambda: record.is_waiting)
            executor.go_on.set()
            (result,) = await opened[0].wait()
            await blocks[0].__aexit__(None, None, None)
        finally:
            executor.go_on.set()
    assert shape(result) == [DONE]


class Lying(Future[Any]):
    def cancel(self) -> bool:
        return True


async def test_future_that_lies_about_its_cancellation(folder: Path) -> None:
    """P6: `cancel()` said True and stopped nothing: detached, counted, and told when late."""
    lying = Lying()

    class Engine(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            pickle.dumps(fn)
            return lying

    late: list[LateResult] = []
    tool = Tool(tools.gated, name="gated", runs_in=Engine())
    async with ToolRunner([tool], on_late=late.append) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("0", "gated", {"folder": folder}))
            await until(lambda: handle.explain().endswith("is running"))
            batch.interrupt()
        (result,) = batch.results
        assert shape(result) == [CUT]
        assert "stopped" not in result.text
        await anyio.sleep(0.01)
        assert len(runner.statistics().detached) == 1
        lying.set_result("after all")
        assert await runner.wait_detached(LIVENESS)
        await until(lambda: late)
    assert late[0].value == "after all"


# -- cancellers ------------------------------------------------------------------------


class Remote(Executor):
    """Has sent what it is given, and ends it when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        pickle.dumps(fn)
        future: Future[Any] = Future()
        self.futures.append(future)
        return future

    async def has(self, count: int) -> None:
        await until(lambda: len(self.futures) >= count)


class Canceller:
    """Notes who asks, and answers as the test says."""

    def __init__(self, answer: Any = "stopped", *, waits: bool = False) -> None:
        self.answer = answer
        self.gate = threading.Event()
        if not waits:
            self.gate.set()
        self.asked: list[Future[Any]] = []
        self.threads: list[int] = []
        self.answered = 0

    def __call__(self, future: Future[Any]) -> Any:
        self.threads.append(threading.get_ident())
        self.asked.append(future)
        assert self.gate.wait(LIVENESS)
        self.answered += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def remote_tool(remote: Executor, canceller: Any, **options: Any) -> Tool:
    return Tool(abs_of, name="t", runs_in=ExecutorCarrier(remote, canceller), **options)


def remote_calls(count: int = 1) -> list[ToolCall]:
    return [ToolCall(str(n), "t", {"value": n}) for n in range(count)]


@pytest.mark.parametrize(
    ("answer", "is_over"),
    [
        ("stopped", True),
        ("requested", False),
        ("abandoned", False),
        ("nonsense", False),
        (None, False),
        (ValueError("no such job"), False),
        (SystemExit(3), False),
    ],
)
async def test_cancellers_answer_says_whether_it_still_counts(
    answer: Any, is_over: bool, promises: PromiseObserver, caplog: pytest.LogCaptureFixture
) -> None:
    """P6, P10: only "stopped" is believed; all else leaves it detached until its future ends."""
    remote, canceller = Remote(), Canceller(answer)
    late: list[LateResult] = []
    here = threading.get_ident()
    with caplog.at_level(logging.CRITICAL, "anyio_toolbatch"):
        async with ToolRunner(
            [remote_tool(remote, canceller)], observers=[promises], on_late=late.append
        ) as runner:
            async with runner.open_batch(remote_calls(2)) as batch:
                await remote.has(2)
                batch.interrupt()
            assert shape(*batch.results) == [CUT] * 2
            await until(lambda: canceller.answered == 2)
            assert await runner.wait_detached(LIVENESS if is_over else 0) is is_over
            assert len(runner.statistics().detached) == (0 if is_over else 2)
            remote.futures[0].set_exception(ValueError("ended by that"))
            remote.futures[1].set_result("a value")
            assert await runner.wait_detached(LIVENESS)
            await until(lambda: late)
            await anyio.sleep(0.01)
    promises.check(batch.id, batch.results)
    assert len(canceller.asked) == 2
    assert set(canceller.asked) == set(remote.futures)
    assert here not in canceller.threads
    values = sorted((item.value, str(item.error)) for item in late if item.value)
    assert values == [("a value", "None")]
    errors = [str(item.error) for item in late if item.error is not None]
    assert errors == ([] if is_over else ["ended by that"])
    assert len(late) == len(values) + len(errors)


async def test_blocked_canceller_holds_nobody(promises: PromiseObserver) -> None:
    """P2: neither the turn, nor the next, nor those who wait for what has ended meanwhile."""
    remote, canceller = Remote(), Canceller("abandoned", waits=True)
    late: list[LateResult] = []
    tool = remote_tool(remote, canceller, writes="file")
    try:
        async with ToolRunner([tool], observers=[promises], on_late=late.append) as runner:
            async with runner.open_batch(remote_calls()) as batch:
                await remote.has(1)
                batch.interrupt()
            assert shape(*batch.results) == [CUT]
            await until(lambda: canceller.asked)

            waited: list[bool] = []

            async def wait() -> None:
                waited.append(await runner.wait_detached(LIVENESS))

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.sleep(0.01)  # until it is parked
                remote.futures[0].set_exception(ValueError("over"))
            assert waited == [True]
            assert late == []  # perhaps it is our own doing: the canceller has to say
            # What it wrote is free.
            async with runner.open_batch(remote_calls()) as following:
                await remote.has(2)
                remote.futures[1].set_result("served")
            assert following.results[0].value == "served"
            canceller.gate.set()
            await until(lambda: late)
    finally:
        canceller.gate.set()
    assert [str(item.error) for item in late] == ["over"]
    assert len(canceller.asked) == 1


async def test_canceller_that_hangs_holds_no_news_for_ever() -> None:
    """P10: an error is held for `cleanup_grace`, in case the canceller has caused it."""
    remote, canceller = Remote(), Canceller("stopped", waits=True)
    late: list[LateResult] = []
    try:
        async with ToolRunner(
            [remote_tool(remote, canceller)], on_late=late.append, cleanup_grace=0.05
        ) as runner:
            async with runner.open_batch(remote_calls()) as batch:
                await remote.has(1)
                batch.interrupt()
            await until(lambda: canceller.asked)
            remote.futures[0].set_exception(ValueError("over"))
            await until(lambda: late)
            canceller.gate.set()
            await until(lambda: canceller.answered)
            await runner.run([])
    finally:
        canceller.gate.set()
    assert [str(item.error) for item in late] == ["over"]


@pytest.mark.parametrize("answer", ["stopped", "requested"])
async def test_time_limit_of_a_kept_call_is_told_once(answer: str) -> None:
    """P5, P6: who was told that it goes on is told why it does not; as by a thread."""
    remote, canceller = Remote(), Canceller(answer)
    late: list[LateResult] = []
    tool = remote_tool(remote, canceller, on_interrupt="keep", timeout=0.1)
    async with ToolRunner([tool], on_late=late.append) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(*remote_calls())
            await remote.has(1)
            batch.interrupt()
        await until(lambda: canceller.answered)
        assert not handle.cancel()  # it has been told by its own limit
        if answer == "stopped":
            await until(lambda: late)
        remote.futures[0].set_exception(ChildProcessError("killed"))
        assert await runner.wait_detached(LIVENESS)
        await until(lambda: late)
    assert [type(item.error) for item in late] == [
        TimeoutError if answer == "stopped" else ChildProcessError
    ]


async def test_cancelled_error_of_the_tools_own_is_told() -> None:
    """P5: only a future that was cancelled is our own doing."""
    remote = Remote()
    late: list[LateResult] = []
    tool = remote_tool(remote, Canceller("requested"))
    async with ToolRunner([tool], on_late=late.append) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await remote.has(1)
            batch.interrupt()
        remote.futures[0].set_exception(CancelledError("the tool's own"))
        await until(lambda: late)
    assert [str(item.error) for item in late] == ["the tool's own"]


async def test_error_that_our_own_stop_has_caused_is_nobodys_news() -> None:
    """§3.2: also where it comes before the canceller has said that it stopped the work."""
    remote = Remote()
    late: list[LateResult] = []
    answered = threading.Event()

    def kill(future: Future[Any]) -> Any:
        future.set_exception(ChildProcessError("killed"))
        answered.set()
        return "stopped"

    async with ToolRunner([remote_tool(remote, kill)], on_late=late.append) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await remote.has(1)
            batch.interrupt()
        await happens(answered)
        assert await runner.wait_detached(LIVENESS)
        await anyio.sleep(0.01)
        assert runner.statistics().late_results == 0
    assert late == []


@pytest.mark.parametrize("end", ["error", "cancelled", "value"])
async def test_end_that_comes_behind_the_cancellers_answer_frees_the_batch(end: str) -> None:
    """P10: whatever it is, told or not: the last of a batch that nobody has any more."""
    remote, canceller = Remote(), Canceller("stopped")
    async with ToolRunner([remote_tool(remote, canceller)]) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await remote.has(1)
            batch.interrupt()
        engine = batch._engine
        del batch
        assert await runner.wait_detached(LIVENESS)
        assert engine.records  # it has not ended, only said that it will
        (future,) = remote.futures
        match end:
            case "error":
                future.set_exception(ValueError("ended by that"))
            case "cancelled":
                future.cancel()
            case _:
                future.set_result("a value")
        await until(lambda: not engine.records)


async def test_end_that_comes_with_the_cancellers_answer_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P5, P6: a thread that is just bringing the value does not find it taken away."""
    remote, canceller = Remote(), Canceller("stopped", waits=True)
    late: list[LateResult] = []
    bringing, go_on = threading.Event(), threading.Event()
    real_end = executors.end

    def end(*args: Any) -> bool:
        bringing.set()
        assert go_on.wait(LIVENESS)
        return real_end(*args)

    monkeypatch.setattr(executors, "end", end)
    try:
        async with ToolRunner([remote_tool(remote, canceller)], on_late=late.append) as runner:
            async with runner.open_batch(remote_calls()) as batch:
                await remote.has(1)
                batch.interrupt()
            await until(lambda: canceller.asked)
            thread = threading.Thread(target=remote.futures[0].set_result, args=["a value"])
            thread.start()
            await happens(bringing)
            canceller.gate.set()
            assert await runner.wait_detached(LIVENESS)  # its answer has been handled
            go_on.set()
            thread.join(LIVENESS)
            await until(lambda: late)
    finally:
        go_on.set()
    assert [item.value for item in late] == ["a value"]


async def test_canceller_is_not_asked_about_what_never_began(pool: ThreadPoolExecutor) -> None:
    """P4, P6: what waits in the executor is withdrawn there, by its own future."""
    canceller = Canceller("requested")
    carrier = ExecutorCarrier(pool, canceller)
    gate = GatedTool("gated", runs_in=carrier)
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls("gated", "gated", "gated")) as batch:
            await gate.wait_started(2)
            await until(lambda: pool._work_queue.qsize() == 1)
            batch.interrupt()
        assert shape(*batch.results) == [CUT, CUT, NOT_STARTED]
        await until(lambda: canceller.answered == 2)
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        (after,) = await runner.run(calls("gated"))
        assert after.value == "done"
    assert len(canceller.asked) == 2
    assert gate.started == 3


async def test_canceller_is_asked_though_the_cut_came_while_submitting() -> None:
    """P10: the call was sent, and submit hung; its future is stopped when it is there."""
    entered, gate = threading.Event(), threading.Event()

    class Slow(Remote):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            pickle.dumps(fn)
            entered.set()
            assert gate.wait(LIVENESS)
            return super().submit(int)

    remote, canceller = Slow(), Canceller("stopped")
    async with ToolRunner([remote_tool(remote, canceller)]) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await happens(entered)
            batch.interrupt()
        assert shape(*batch.results) == [CUT]
        await until(lambda: len(runner._live_states()[0].account.threads) == 1)
        assert len(runner.statistics().detached) == 1
        gate.set()
        # Though its future never ends.
        assert await runner.wait_detached(LIVENESS)
    assert canceller.asked == remote.futures


async def test_kept_call_is_not_stopped_unless_it_is_meant_itself() -> None:
    """§3.2: an interrupt leaves it alone, `cancel` of that call does not."""
    remote, canceller = Remote(), Canceller("stopped")
    late: list[LateResult] = []
    tool = remote_tool(remote, canceller, on_interrupt="keep")
    async with ToolRunner([tool], on_late=late.append) as runner:
        async with runner.open_batch(remote_calls()) as batch:
            await remote.has(1)
            batch.interrupt()
        assert "goes on in the background" in batch.results[0].text
        remote.futures[0].set_result("kept")
        assert await runner.wait_detached(LIVENESS)
        await until(lambda: late)
        assert (late[0].value, canceller.asked) == ("kept", [])
        async with runner.open_batch(remote_calls()) as batch:
            await remote.has(2)
            batch.cancel("0")
        assert batch.results[0].reason == Reason("call_cancelled")
        assert await runner.wait_detached(LIVENESS)
    assert canceller.asked == remote.futures[1:]


# -- cuts ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["handle", "call", "batch"])
@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_cancel_and_limits(
    how: str, where: str, both: dict[str, Executor], folder: Path, promises: PromiseObserver
) -> None:
    """P2: each takes the way of the interrupt, with its own reason."""
    limit = 0.05  # seconds; the gate makes sure that no call ends before
    tool = Tool(
        tools.gated,
        name="gated",
        runs_in=both[where],
        timeout=limit if how == "call" else None,
    )
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(timeout=limit if how == "batch" else None) as batch:
                handle = batch.submit(ToolCall("0", "gated", {"folder": folder}))
                if how == "handle":
                    await until((folder / "started-0").exists)
                    assert handle.cancel("enough")
        (result,) = batch.results
        assert result.reason == {
            "handle": Reason("call_cancelled", "enough"),
            "call": Reason("call_timeout"),
            "batch": Reason("batch_timeout"),
        }.get(how)
        if how != "batch":  # which may have come before the start
            assert (result.started, result.detached) == (True, True)
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


async def test_superseded_batch_starts_nothing_more_and_lets_the_rest_end(
    pool: ThreadPoolExecutor,
) -> None:
    """§3.1: what waits in the executor is withdrawn, what runs gives its answer."""
    gate = GatedTool("gated", runs_in=pool)
    async with ToolRunner([gate.tool]) as runner:
        async with runner.open_batch(calls(*["gated"] * 4)) as batch:
            await gate.wait_started(2)
            assert batch.supersede()
            await until(lambda: batch.snapshot()[3] is not None)
            gate.open()
        superseded = ("interrupted", "superseded", False, False)
        assert shape(*batch.results) == [DONE, DONE, superseded, superseded]
    assert gate.started == 2


@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_cancelled_caller(where: str, both: dict[str, Executor], folder: Path) -> None:
    """P8: the cancellation goes on at once; what runs is let go."""
    tool = Tool(tools.gated, name="gated", runs_in=both[where])
    async with ToolRunner([tool]) as runner:
        with anyio.CancelScope() as scope:
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("0", "gated", {"folder": folder}))
                await until((folder / "started-0").exists)
                scope.cancel()
        assert scope.cancelled_caught
        assert shape(*batch.results) == [("interrupted", "caller_cancelled", True, True)]
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_grace(where: str, both: dict[str, Executor], folder: Path) -> None:
    """P3: what ends within the grace has given its own answer."""
    tool = Tool(tools.gated, name="gated", runs_in=both[where])
    async with ToolRunner([tool]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("0", "gated", {"folder": folder}))
            await until((folder / "started-0").exists)
            batch.interrupt(grace=LIVENESS)
            (folder / "go").touch()
        assert (shape(*batch.results), batch.results[0].value) == ([DONE], "value of 0")
        assert runner.statistics().detached == ()


# -- what tools do -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_exit_and_break_out_of_a_tool(where: str, both: dict[str, Executor]) -> None:
    """§4.6: SystemExit is that call's failure, KeyboardInterrupt ends the batch, once."""
    executor = both[where]
    exits = Tool(tools.exits, name="exits", runs_in=executor)
    breaks = Tool(tools.interrupted, name="breaks", runs_in=executor)
    async with ToolRunner([exits, breaks]) as runner:
        (result,) = await runner.run(calls("exits"))
        assert (result.status, type(result.error)) == (Status.FAILED, SystemExit)
        with pytest.raises(KeyboardInterrupt):
            async with runner.open_batch(calls("breaks")) as batch:
                pass
        (result,) = batch.results
        assert isinstance(result.error, KeyboardInterrupt)
        (after,) = await runner.run(calls("exits"))
        assert after.status is Status.FAILED


@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_generators(where: str, both: dict[str, Executor], folder: Path) -> None:
    """§3.2: each item is an output, the last one the value, wherever it ran."""
    events: list[Any] = []
    tool = Tool(tools.streams, name="streams", runs_in=both[where])
    breaks = Tool(tools.streams_and_breaks, name="breaks", runs_in=both[where])
    (folder / "go").touch()
    async with ToolRunner([tool, breaks], observers=[events.append]) as runner:
        asked = [ToolCall(n, n, {"folder": folder}) for n in ("streams", "breaks")]
        result, broken = await runner.run(asked)
    assert (shape(result), result.value) == ([DONE], "second")
    items = [e.output for e in events if isinstance(e, CallOutput) and e.index == 0]
    assert items == ["first", "second"]
    assert (broken.status, str(broken.error)) == (Status.FAILED, "no more")


async def test_awaitable_of_a_function_is_awaited_on_the_loop(
    pool: ThreadPoolExecutor,
) -> None:
    """§3.2: the rest of the call runs on the loop, and is cancelled there."""
    here = threading.get_ident()

    async def rest(seconds: float) -> tuple[int, int]:
        await anyio.sleep(seconds)
        return first.pop(), threading.get_ident()

    first: list[int] = []

    def gives(seconds: float) -> Any:
        first.append(threading.get_ident())
        return rest(seconds)

    tool = Tool(gives, name="gives", runs_in=pool)
    async with ToolRunner([tool]) as runner:
        (result,) = await runner.run([ToolCall("0", "gives", {"seconds": 0})])
        began, went_on = result.unwrap()
        assert (began == here, went_on == here) == (False, True)
        async with runner.open_batch([ToolCall("0", "gives", {"seconds": LIVENESS})]) as batch:
            await until(lambda: first)
            batch.interrupt()
        assert shape(*batch.results) == [CUT]
        assert await runner.wait_detached(LIVENESS)


async def test_batch_inside_a_tool(pool: ThreadPoolExecutor) -> None:
    """§4.9: it is cut together with the call that it was opened in."""
    begun: anyio.Event = anyio.Event()
    inner: list[ToolResult] = []

    async def sleeps() -> None:
        begun.set()
        await anyio.sleep(LIVENESS)

    async def opens() -> None:
        async with ToolRunner([sleeps]) as own, own.open_batch(calls("sleeps")) as batch:
            try:
                await batch.wait()
            finally:
                inner.extend(r for r in batch.snapshot() if r)

    def outer() -> None:
        from_thread.run(opens)

    async with ToolRunner([Tool(outer, runs_in=pool)]) as runner:
        async with runner.open_batch(calls("outer")) as batch:
            await begun.wait()
            batch.interrupt("both")
        assert shape(*batch.results) == [CUT]
        assert await runner.wait_detached(LIVENESS)
    assert [r.reason for r in inner] == [Reason("user_interrupt", "both")]


# -- together with the rest of the library -------------------------------------------------


async def test_stages_before_the_start(pool: ThreadPoolExecutor) -> None:
    """§4.7: validation, approval, claims and limits hold for executors as for threads."""
    asked: list[str] = []
    running, most = 0, 0
    lock = threading.Lock()

    def tool(name: str) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return name

    def check(call: ToolCall) -> dict[str, Any]:
        if call.id == "invalid":
            raise ValueError("not this one")
        return {"name": call.id.upper()}

    async def approve(call: ToolCall) -> bool | str:
        asked.append(call.id)
        return "no" if call.id == "denied" else True

    made = Tool(tool, runs_in=pool, validate=check, max_concurrency=1, writes="file")
    async with ToolRunner([made], approve=approve, max_concurrency=1) as runner:
        with anyio.fail_after(LIVENESS):
            results = await runner.run(
                [ToolCall(i, "tool") for i in ("a", "invalid", "denied", "b")]
            )
    assert [r.status.value for r in results] == ["completed", "invalid", "denied", "completed"]
    assert [r.value for r in results] == ["A", None, None, "B"]
    assert sorted(asked) == ["a", "b", "denied"]
    assert most == 1


async def test_detached_writer_keeps_its_claim(pool: ThreadPoolExecutor) -> None:
    """§4.8: a later call is refused as busy, until the work has really ended."""
    gate = GatedTool("gated", runs_in=pool, writes="file")
    reader = Tool(lambda: "read", name="reader", reads="file")
    async with ToolRunner([gate.tool, reader], cleanup_grace=0.0) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            await gate.wait_started()
            batch.interrupt()
        (busy,) = await runner.run(calls("reader"))
        assert busy.reason is not None and busy.reason.kind == "resource_busy"
        gate.open()
        assert await runner.wait_detached(LIVENESS)
        (free,) = await runner.run(calls("reader"))
        assert free.value == "read"


async def test_what_is_told_of_a_call_that_waits_in_its_executor() -> None:
    """P10: `explain` and the statistics say where it is."""
    manual = Manual()
    tool = Tool(lambda: 1, name="t", runs_in=manual)
    async with ToolRunner([tool]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(ToolCall("0", "t"))
            call, future = await manual.get()
            assert handle.explain() == "call 0 (t) waits for its executor to begin it"
            (waiting,) = runner.statistics().waiting_calls
            assert (waiting.kind, waiting.index) == ("executor", 0)
            call()
            future.set_result(None)
    assert batch.results[0].value == 1


async def test_one_carrier_for_two_runners(pool: ThreadPoolExecutor) -> None:
    """§3.1: nothing of one is the other's; each asks about its own calls."""
    canceller = Canceller("requested")
    gate = GatedTool("gated", runs_in=ExecutorCarrier(pool, canceller))
    async with ToolRunner([gate.tool]) as one, ToolRunner([gate.tool]) as other:
        async with one.open_batch(calls("gated")) as cut, other.open_batch() as goes_on:
            goes_on.submit(*calls("gated"))
            await gate.wait_started(2)
            cut.interrupt()
            await cut.wait()
            await until(lambda: canceller.answered)
            assert other.statistics().detached == ()
            assert len(one.statistics().detached) == 1
            gate.open()
        assert shape(*cut.results, *goes_on.results) == [CUT, DONE]
        assert await one.wait_detached(LIVENESS)
    assert len(canceller.asked) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_runner_and_its_executor_on_two_loops(
    backend: str, pool: ThreadPoolExecutor
) -> None:
    """P9: each loop hears of its own calls."""
    runner = ToolRunner([Tool(lambda n: n, name="t", runs_in=pool)])
    found: dict[int, list[Any]] = {}

    async def main(which: int) -> None:
        got: list[Any] = []
        for n in range(20):
            asked = [ToolCall(str(i), "t", {"n": (which, n, i)}) for i in range(5)]
            got += [r.unwrap() for r in await runner.run(asked)]
        found[which] = got

    threads = [
        threading.Thread(target=functools.partial(anyio.run, main, n, backend=backend))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIVENESS)
    for which in range(2):
        assert found[which] == [(which, n, i) for n in range(20) for i in range(5)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["threads", "processes", "canceller"])
def test_loop_that_is_gone_before_the_work(
    where: str,
    backend: str,
    both: dict[str, Executor],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P7, P10: the end is silent, and nothing stays in the account."""
    runs_in: Any = both.get(where)
    canceller = Canceller("stopped", waits=True)
    if where == "canceller":
        runs_in = ExecutorCarrier(both["threads"], canceller)
    runner = ToolRunner([Tool(tools.gated, name="gated", runs_in=runs_in)])

    async def main() -> None:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("0", "gated", {"folder": folder}))
            await until((folder / "started-0").exists)
            batch.interrupt()
        if where == "canceller":
            await until(lambda: canceller.asked)
        assert len(runner.statistics().detached) == 1

    async def is_empty() -> None:
        await until(lambda: not runner.statistics().detached)

    anyio.run(main, backend=backend)
    canceller.gate.set()
    if where != "canceller":
        (folder / "go").touch()
    anyio.run(is_empty, backend=backend)
    (folder / "go").touch()
    assert caplog.records == []


async def test_nothing_is_kept_of_executors_and_calls_that_are_gone() -> None:
    """P10: neither by the runner that has used them, nor by the other side."""

    class Thing: ...

    with ThreadPoolExecutor(1) as kept:
        async with ToolRunner() as runner:
            for _ in range(5):
                with ThreadPoolExecutor(1) as executor:
                    thing = Thing()
                    watch = [weakref.ref(thing), weakref.ref(executor)]
                    for place in (executor, kept):
                        tool = Tool(lambda what: None, name="t", runs_in=place)
                        await runner.run([ToolCall("0", "t", {"what": thing}, tool=tool)])
                del tool, place, thing, executor
                await until(lambda: gc.collect() + 1 and not any(ref() for ref in watch))
            (state,) = runner._live_states()
            assert len(state.submissions._lines) == 1


# -- by chance -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["threads", "processes"])
async def test_random_interrupts(
    where: str, both: dict[str, Executor], tmp_path: Path, promises: PromiseObserver
) -> None:
    """P1, P4, P6, P10: one truthful result per call, and an empty account, wherever it falls."""
    rounds, count = (40, 6) if where == "threads" else (35, 4)  # times eight: loops and kinds
    asked_about: list[Future[Any]] = []

    def canceller(future: Future[Any]) -> Any:
        asked_about.append(future)
        return random.choice(["requested", "abandoned"])

    carrier = ExecutorCarrier(both[where], canceller)
    late: list[LateResult] = []
    told: list[ToolResult] = []
    tool = Tool(tools.quick, name="quick", runs_in=carrier)
    async with ToolRunner([tool], observers=[promises], on_late=late.append) as runner:
        for n in range(rounds):
            names = [f"{n}-{i}" for i in range(count)]
            async with runner.open_batch() as batch:
                for name in names:
                    batch.submit(ToolCall(name, "quick", {"folder": tmp_path, "name": name}))
                match random.randrange(3):
                    case 0:
                        await anyio.sleep(random.random() * 0.002)
                    case 1:
                        for _ in range(random.randrange(20)):
                            await anyio.sleep(0)
                batch.interrupt()
            assert [r.call.id for r in batch.results] == names
            told += batch.results
        assert await runner.wait_detached(LIVENESS)
        assert runner.statistics().detached == ()
        await until(lambda: len(late) == sum(r.detached for r in told))
    promises.check(batch.id, batch.results)
    ran = {path.name.removeprefix("started-") for path in tmp_path.glob("started-*")}
    assert ran == {r.call.id for r in told if r.started}
    assert len(asked_about) <= sum(r.detached for r in told)
    for result in told:
        assert result.started or result.effects == "none"
