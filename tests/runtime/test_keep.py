"""`on_interrupt="keep"`: the turn is over, the work is not, whatever carries it."""

from __future__ import annotations

import contextvars
import importlib
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    CallDetached,
    CallOutput,
    CallProgress,
    LateResult,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    report_progress,
    run_command,
)
from anyio_toolbatch._runtime.hub import current_hub
from anyio_toolbatch.testing import PromiseObserver

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
process_tools: Any = importlib.import_module("process_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant
GOES_ON = "the tool call goes on in the background. It may have side effects"
CALL = ToolCall("id", "book")


class Work:
    """
    Work that a test lets end, and that notices what it is told meanwhile.

    What carries it is said by a function below; to add a carrier, add one. It
    makes the tool's function, and the tool's further options. The function says
    "in time" as its partial output, reports progress 1, waits, reports progress
    2, says "too late", and answers as it is told: with "booked" or an error.
    """

    def __init__(self, carrier: Carrier, folder: Path, **options: Any) -> None:
        self.told: list[str] = []
        """How it was asked to stop; a process is killed, and says nothing."""
        self.inside, self._outside = socket.socketpair()
        self.pool = ThreadPoolExecutor(1)  # for the carriers that want one
        self.pipe = folder / "pipe"
        self._pipe = -1
        if carrier in {process, process_generator, command}:
            self.inside.close()
            os.mkfifo(self.pipe)
            # For reading too: so that opening it waits for nobody.
            self._pipe = os.open(self.pipe, os.O_RDWR)
        func, more = carrier(self)
        self.tool = Tool(func, name="book", **({"on_interrupt": "keep"} | more | options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._outside.close()  # whoever still waits gets to its end
        self.pool.shutdown(wait=False)
        if self._pipe >= 0:
            os.close(self._pipe)

    def finish(self, said: str = "go") -> None:
        """Let it end; any other word makes it an error."""
        if self._pipe >= 0:
            os.write(self._pipe, f"{said}\n".encode())
        else:
            self._outside.send(said[:1].encode())

    # -- what the functions are made of ------------------------------------

    def began(self) -> None:
        on_cancel(lambda: self.told.append("hook"))
        report_progress(1)

    def block(self) -> bytes:
        """Wait in a thread; whoever is told to stop does."""
        inside = self.inside
        with inside, on_cancel(lambda: inside.shutdown(socket.SHUT_RDWR)):
            said = inside.recv(1)
        if current_call().cancelled.is_set():
            self.told.append("flag")
        from_thread.check_cancelled()
        return said

    async def park(self) -> bytes:
        """Wait on a loop, whichever that is."""
        with self.inside as inside:
            try:
                await anyio.wait_readable(inside)
            except BaseException:
                self.told.append("cancelled")
                raise
            return inside.recv(1)

    def ended(self, said: bytes, *, speaks: bool = True) -> str:
        report_progress(2)
        if speaks:
            keep_partial("too late")
        if said != b"g":
            raise ValueError("no seat left")
        return "booked"


# -- the carriers --------------------------------------------------------------


def loop(work: Work) -> Any:
    async def book() -> str:
        keep_partial("in time")
        work.began()
        return work.ended(await work.park())

    return book, {}


def async_in_thread(work: Work) -> Any:
    return loop(work)[0], {"runs_in": "thread"}


def loop_generator(work: Work) -> Any:
    async def book() -> AsyncIterator[str]:
        yield "in time"
        work.began()
        said = await work.park()
        yield "too late"
        yield work.ended(said, speaks=False)

    return book, {}


def async_generator_in_thread(work: Work) -> Any:
    return loop_generator(work)[0], {"runs_in": "thread"}


def thread(work: Work) -> Any:
    def book() -> str:
        keep_partial("in time")
        work.began()
        return work.ended(work.block())

    return book, {}


def executor(work: Work) -> Any:
    return thread(work)[0], {"runs_in": work.pool}


def executor_generator(work: Work) -> Any:
    return thread_generator(work)[0], {"runs_in": work.pool}


def thread_generator(work: Work) -> Any:
    def book() -> Iterator[str]:
        yield "in time"
        work.began()
        said = work.block()
        yield "too late"
        yield work.ended(said, speaks=False)

    return book, {}


def awaitable(work: Work) -> Any:
    """A plain function whose value is awaitable: it is on the loop when it is cut."""

    def book() -> Any:
        return loop(work)[0]()

    return book, {}


def awaitable_later(work: Work) -> Any:
    """The same: it is still in its thread, and its second half is to come."""

    async def answer(said: bytes) -> str:
        await anyio.lowlevel.checkpoint()
        return work.ended(said)

    def book() -> Any:
        keep_partial("in time")
        work.began()
        return answer(work.block())

    return book, {}


def visit(work: Work) -> Any:
    """A blocking tool that has something done on the loop when it is cut."""
    func = loop(work)[0]
    return lambda: from_thread.run(func), {}


def process(work: Work) -> Any:
    return process_tools.books, {"runs_in": "process", "validate": lambda _: _pipe_of(work)}


def process_generator(work: Work) -> Any:
    func = process_tools.books_in_steps
    return func, {"runs_in": "process", "validate": lambda _: _pipe_of(work)}


def _pipe_of(work: Work) -> dict[str, Path]:
    return {"pipe": work.pipe}


def command(work: Work) -> Any:
    async def book() -> str:
        work.began()
        script = 'read said < "$0"; echo "$said"'
        try:
            result = await run_command(["sh", "-c", script, str(work.pipe)], kill_grace=0.1)
        except anyio.get_cancelled_exc_class():
            work.told.append("cancelled")
            raise
        return work.ended(result.stdout[:1].encode())

    return book, {}


Carrier = Callable[[Work], Any]
CARRIERS: list[Carrier] = [
    loop,
    loop_generator,
    thread,
    thread_generator,
    executor,
    executor_generator,
    async_in_thread,
    async_generator_in_thread,
    awaitable,
    awaitable_later,
    visit,
]
if sys.platform != "win32":  # pipes with names, and a shell
    CARRIERS += [process, process_generator, command]

every_carrier = pytest.mark.parametrize(
    "carrier", CARRIERS, ids=lambda carrier: carrier.__name__
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that visits the loop looks often whether it is still wanted."""
    monkeypatch.setattr(from_thread, "LOOK_SECONDS", 0.001)


# -- what the tests look at ------------------------------------------------------


class Late:
    """A late hook."""

    def __init__(self) -> None:
        self.results: list[LateResult] = []
        self.threads: set[int] = set()
        self._landed = anyio.Event()

    def __call__(self, late: LateResult) -> None:
        self.results.append(late)
        self.threads.add(threading.get_ident())
        self._landed.set()

    async def landed(self) -> LateResult:
        """Wait for it, and see that it is the only one."""
        with anyio.fail_after(LIVENESS):
            await self._landed.wait()
        (late,) = self.results
        return late


async def begun(batch: ToolBatch) -> None:
    with anyio.fail_after(LIVENESS):
        async for event in batch.events():
            if isinstance(event, CallProgress):
                break


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


# -- it goes on --------------------------------------------------------------------


@every_carrier
async def test_kept_call_goes_on_and_its_end_is_told_late(
    carrier: Carrier, tmp_path: Path, promises: PromiseObserver
) -> None:
    """P5, P6: nobody tells it to stop, the placeholder says so, its end goes to `on_late`."""
    late = Late()
    with Work(carrier, tmp_path) as work:
        async with ToolRunner([work.tool], observers=[promises], on_late=late) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                batch.interrupt("new plan")
            (result,) = batch.results
            assert result.text.startswith(
                f"The turn was interrupted by the user (new plan); {GOES_ON}"
            )
            assert (result.status, result.started) == (Status.INTERRUPTED, True)
            assert (result.detached, result.effects) == (True, "unknown")
            if carrier is not command:  # which is not asked for output before its end
                assert result.partial in ("in time", ["in time"])
            before = (result.text, result.partial)
            assert [d.call for d in runner.statistics().detached] == [CALL]
            assert not await runner.wait_detached(0.05)
            assert (work.told, late.results) == ([], [])

            work.finish()
            told = await late.landed()
            assert told == LateResult(batch.id, CALL, 0, "booked", None, told.late_by)
            assert told.late_by > 0
            assert late.threads == {threading.get_ident()}
            assert await runner.wait_detached(LIVENESS)
            statistics = runner.statistics()
            assert (statistics.detached, statistics.late_results) == ((), 1)
        events = [event async for event in batch.events()]
    assert work.told == []
    assert (batch.results[0].text, batch.results[0].partial) == before
    # What it says after the cut is heard by nobody.
    assert [e.progress for e in events if isinstance(e, CallProgress)] == [1]
    assert [e.output for e in events if isinstance(e, CallOutput)] in ([], ["in time"])
    promises.check(batch.id, batch.results)


@every_carrier
async def test_error_of_a_kept_call_is_told_late(carrier: Carrier, tmp_path: Path) -> None:
    """P5: a kept call that fails says so, to the same hook."""
    late = Late()
    with Work(carrier, tmp_path) as work:
        async with ToolRunner([work.tool], on_late=late) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                assert runner.interrupt() == 1
            work.finish("full")
            told = await late.landed()
            assert await runner.wait_detached(LIVENESS)
    assert (told.batch_id, told.call, told.value) == (batch.id, CALL, None)
    assert isinstance(told.error, ValueError) and str(told.error) == "no seat left"
    assert work.told == []


TURN_ENDS = {
    "caller_cancelled": "was cancelled",
    "batch_timeout": "timed out",
    "sibling_failed": "was cancelled because another call of the batch failed "
    "(call 1 (fail) failed with OSError: no line)",
    "runner_closed": "was cancelled because the tool runner was closed",
}


@every_carrier
@pytest.mark.parametrize("how", TURN_ENDS)
async def test_whatever_ends_the_turn_does_not_end_the_call(
    carrier: Carrier, how: str, tmp_path: Path, promises: PromiseObserver
) -> None:
    """P6, P8: it is kept from each cut that is not aimed at it, and the text names the cut."""

    def fail() -> None:
        raise OSError("no line")

    late = Late()
    options: dict[str, Any] = {"observers": [promises], "on_late": late}
    with Work(carrier, tmp_path) as work:
        async with ToolRunner([work.tool, fail], close_timeout=0.01, **options) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch(timeout=10 * LIVENESS, fail_fast=True) as batch:
                    batch.submit(CALL)
                    await begun(batch)
                    match how:
                        case "caller_cancelled":
                            scope.cancel()
                            await anyio.sleep(LIVENESS)
                        case "batch_timeout":
                            # As its timer does: a short one might be over too soon.
                            batch._engine.time_is_up()
                        case "sibling_failed":
                            batch.submit(ToolCall("other", "fail"))
                        case _:
                            await runner.aclose()
            assert scope.cancelled_caught == (how == "caller_cancelled")
            result = batch.results[0]
            assert result.reason is not None and result.reason.kind == how
            assert result.text.startswith(f"The turn {TURN_ENDS[how]}; {GOES_ON}")
            assert result.detached and result.effects == "unknown"
            # Leaving the runner waits a moment for it, and does not tell it to stop.
        assert (work.told, late.results) == ([], [])
        # Also a closed runner has its hook.
        work.finish()
        assert (await late.landed()).value == "booked"
        await until(lambda: not runner.statistics().detached)
    assert work.told == []
    promises.check(batch.id, batch.results)


async def test_closing_waits_for_a_kept_call_that_ends(tmp_path: Path) -> None:
    """P7: what ends within `close_timeout` is told before the runner is closed."""
    late = Late()
    with Work(thread, tmp_path) as work:
        async with ToolRunner([work.tool], on_late=late, close_timeout=LIVENESS) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                batch.interrupt()
            work.finish()
        assert [late.value for late in late.results] == ["booked"]


@every_carrier
async def test_a_kept_call_may_answer_within_the_grace(
    carrier: Carrier, tmp_path: Path
) -> None:
    """P3: an end within the grace is the call's own result; nobody was told to hurry."""
    late = Late()
    with Work(carrier, tmp_path) as work:
        async with ToolRunner([work.tool], on_late=late) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                batch.interrupt(grace=LIVENESS)
                await anyio.wait_all_tasks_blocked()
                assert batch.snapshot() == [None]
                work.finish()
            (result,) = batch.results
            assert await runner.wait_detached(LIVENESS)
    assert (result.status, result.value) == (Status.COMPLETED, "booked")
    assert (result.detached, result.effects) == (False, "done")
    assert (work.told, late.results) == ([], [])


@every_carrier
async def test_a_kept_call_that_outlasts_the_grace(carrier: Carrier, tmp_path: Path) -> None:
    """P2, P6: when the grace is over it is let go, and goes on."""
    late = Late()
    with Work(carrier, tmp_path) as work:
        async with ToolRunner([work.tool], on_late=late, interrupt_grace=0.01) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                batch.interrupt()
            assert GOES_ON in batch.results[0].text
            assert work.told == []
            work.finish()
            assert (await late.landed()).value == "booked"


async def test_a_call_that_waits_is_not_kept(tmp_path: Path) -> None:
    """P4, P6: there is nothing yet that could go on."""
    late = Late()
    with Work(thread, tmp_path) as work:
        async with ToolRunner([work.tool], on_late=late, max_threads=1) as runner:
            async with runner.open_batch([CALL, ToolCall("other", "book")]) as batch:
                await begun(batch)
                batch.interrupt()
            first, second = batch.results
            assert (first.started, second.started) == (True, False)
            assert (second.detached, second.effects) == (False, "none")
            assert GOES_ON not in second.text
            work.finish()
            assert (await late.landed()).index == 0


@pytest.mark.parametrize(
    "carrier", [c for c in CARRIERS if c in {thread, process}], ids=lambda c: c.__name__
)
async def test_a_kept_call_has_its_place_among_the_detached(
    carrier: Carrier, tmp_path: Path
) -> None:
    """P10: it holds a thread, and is counted for as long as it does."""
    late = Late()
    tools = {"other": lambda: "ran"}
    with Work(carrier, tmp_path) as work:
        call = ToolCall("id", "book", tool=work.tool)
        async with ToolRunner(tools, on_late=late, max_detached=1) as runner:
            async with runner.open_batch([call]) as batch:
                await begun(batch)
                batch.interrupt()
            (refused,) = await runner.run([ToolCall("0", "other")])
            assert refused.reason is not None and refused.reason.kind == "too_many_detached"
            work.finish()
            await late.landed()
            assert await runner.wait_detached(LIVENESS)
            (result,) = await runner.run([ToolCall("0", "other")])
            assert result.value == "ran"


async def test_a_kept_call_may_still_use_its_loop(tmp_path: Path) -> None:
    """P5: the way to the loop is closed to what was told to stop, and only to that."""
    here = threading.get_ident()
    after: list[BaseException] = []

    async def confirm(said: str) -> tuple[str, int]:
        await anyio.lowlevel.checkpoint()
        return said, threading.get_ident()

    def left_behind(context: contextvars.Context, ended: threading.Event) -> None:
        ended.wait(LIVENESS)
        for use in (from_thread.run_sync, from_thread.run):
            try:
                context.run(use, confirm, "too late")
            except BaseException as exc:
                after.append(exc)

    def book() -> Any:
        work.began()
        work.block()
        from_thread.check_cancelled()
        args = (contextvars.copy_context(), ended)
        threads.append(threading.Thread(target=left_behind, args=args))
        threads[0].start()
        return from_thread.run(confirm, "booked"), from_thread.run_sync(threading.get_ident)

    late = Late()
    threads: list[threading.Thread] = []
    ended = threading.Event()
    with Work(thread, tmp_path) as work:
        async with ToolRunner(on_late=late) as runner:
            tool = Tool(book, on_interrupt="keep")
            async with runner.open_batch([ToolCall("id", "book", tool=tool)]) as batch:
                await begun(batch)
                batch.interrupt()
            work.finish()
            assert (await late.landed()).value == (("booked", here), here)
            # Its end closes the way, also to threads that it has left behind.
            ended.set()
            await until(lambda: len(after) == 2)
            threads[0].join()
    assert [type(exc) for exc in after] == [CallDetached, CallDetached]


@pytest.mark.parametrize("when", ["in its thread", "leaving", "between", "on the loop"])
async def test_a_kept_call_leaves_its_thread_for_the_loop(when: str) -> None:
    """P5, P10: wherever the cut meets it, its second half runs, and its thread is free."""
    in_thread, is_leaving, in_between = (threading.Event() for _ in range(3))
    may_leave, may_go_on = threading.Event(), threading.Event()
    on_loop, may_end = anyio.Event(), anyio.Event()
    loop_thread = threading.get_ident()

    class Ends(set[Any]):
        """The end tickets; one that is given back shows when a call is in between."""

        def remove(self, record: Any) -> None:
            super().remove(record)
            if when == "leaving" and threading.get_ident() != loop_thread:
                is_leaving.set()
                assert may_go_on.wait(LIVENESS)

        def add(self, record: Any) -> None:
            in_between.set()
            assert may_go_on.wait(LIVENESS)
            super().add(record)

    async def answer() -> str:
        on_loop.set()
        await may_end.wait()
        return "booked"

    def book() -> Any:
        in_thread.set()
        assert may_leave.wait(LIVENESS)
        return answer()

    late = Late()
    tools = [Tool(book, on_interrupt="keep"), Tool(lambda: "next", name="next")]
    async with ToolRunner(tools, on_late=late, max_threads=1, max_detached=1) as runner:
        async with runner.open_batch() as batch:
            batch._engine.tickets.ends = Ends()
            batch.submit(CALL)
            match when:
                case "in its thread":
                    await until(in_thread.is_set)
                case "leaving":
                    may_leave.set()
                    await until(is_leaving.is_set)
                case "between":
                    may_leave.set()
                    await until(in_between.is_set)
                case _:
                    may_leave.set()
                    may_go_on.set()
                    await on_loop.wait()
            batch.interrupt()
        assert GOES_ON in batch.results[0].text
        may_leave.set()
        may_go_on.set()
        with anyio.fail_after(LIVENESS):
            await on_loop.wait()
            (result,) = await runner.run([ToolCall("next", "next")])
        assert result.value == "next"
        assert [d.call for d in runner.statistics().detached] == [CALL]
        may_end.set()
        assert (await late.landed()).value == "booked"
        assert await runner.wait_detached(LIVENESS)
        state = current_hub().states[runner]
        await until(lambda: state.lane.is_idle)  # and its place was given up once
        assert state.left_over() == []


# -- it is stopped -----------------------------------------------------------------


@every_carrier
@pytest.mark.parametrize("how", ["handle", "id", "timeout", "closed", "later"])
async def test_what_is_aimed_at_a_kept_call_stops_it(
    carrier: Carrier, how: str, tmp_path: Path, promises: PromiseObserver
) -> None:
    """P6: a cancel and its own time limit end it; the text does not say that it goes on."""
    late = Late()
    options = {"timeout": 0.05} if how == "timeout" else {}
    with Work(carrier, tmp_path, **options) as work:
        async with ToolRunner([work.tool], observers=[promises], on_late=late) as runner:
            async with runner.open_batch() as batch:
                handle = batch.submit(CALL)
                match how:
                    case "handle":
                        await begun(batch)
                        assert handle.cancel("changed my mind")
                    case "id":
                        await begun(batch)
                        assert batch.cancel("id") == 1
                    case "closed":
                        # First the cut that it is kept from, then the other, in one breath.
                        await begun(batch)
                        assert batch.interrupt()
                        assert handle.cancel()
                    case "later":
                        await begun(batch)
                        assert batch.interrupt()
                    case _:
                        pass
            if how == "later":
                assert handle.result is not None and GOES_ON in handle.result.text
                assert handle.cancel()
                assert not handle.cancel()
            assert await runner.wait_detached(LIVENESS)
            assert not handle.cancel()
    (result,) = batch.results
    kind = "call_timeout" if how == "timeout" else "call_cancelled"
    if how in {"closed", "later"}:  # was told that it would go on, a moment before
        kind = "user_interrupt"
    else:
        assert GOES_ON not in result.text
    assert result.reason is not None and result.reason.kind == kind
    assert (result.started, result.effects) == (True, "unknown")
    assert late.results == []
    assert work.told or carrier in {process, process_generator}
    promises.check(batch.id, batch.results)


@every_carrier
async def test_the_time_limit_of_a_kept_call_still_holds(
    carrier: Carrier, tmp_path: Path
) -> None:
    """§4.10, P6: it runs on while the call does; whoever waits for its end is told."""
    late = Late()
    with Work(carrier, tmp_path, timeout=10 * LIVENESS) as work:
        async with ToolRunner([work.tool], on_late=late) as runner:
            async with runner.open_batch([CALL]) as batch:
                await begun(batch)
                batch.interrupt()
            (record,) = batch._engine.records
            assert record.timer is not None
            record.timer.cancel()
            # As the timer does; that it goes off is tested with a virtual clock.
            batch._engine.call_time_is_up(record)
            told = await late.landed()
            assert await runner.wait_detached(LIVENESS)
    assert GOES_ON in batch.results[0].text
    assert isinstance(told.error, TimeoutError)
    assert work.told or carrier in {process, process_generator}


async def test_start_that_is_told_after_the_cut_still_sets_the_limit(tmp_path: Path) -> None:
    """§4.10: a thread's news that a kept call has started may come behind its placeholder."""
    in_thread = threading.Event()

    def book() -> None:
        in_thread.set()
        current_call().cancelled.wait(LIVENESS)
        from_thread.check_cancelled()

    late = Late()
    tool = Tool(book, on_interrupt="keep", timeout=0.05)
    async with ToolRunner(on_late=late) as runner:
        async with runner.open_batch([ToolCall("id", "book", tool=tool)]) as batch:
            assert in_thread.wait(LIVENESS)  # the loop hears nothing meanwhile
            batch.interrupt()
        assert GOES_ON in batch.results[0].text
        assert isinstance((await late.landed()).error, TimeoutError)
