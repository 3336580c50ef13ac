"""`runs_in="process"`: any picklable function, in a process that can be killed."""

from __future__ import annotations

import errno
import functools
import importlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallProgress,
    LateResult,
    ProcessDiedError,
    Reason,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    run_batch,
)
from anyio_toolbatch._runtime import (
    process_worker,
    processes,
    sessions,
    thread_carrier,
    threads,
)
from anyio_toolbatch.testing import PromiseObserver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and groups")

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
tools: Any = importlib.import_module("process_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant


def call(
    func: Callable[..., Any], arguments: dict[str, Any] | None = None, **options: Any
) -> ToolCall:
    made = func if isinstance(func, Tool) else Tool(func, runs_in="process", **options)
    return ToolCall("id", "tool", arguments or {}, tool=made)


async def has_begun(batch: ToolBatch) -> None:
    async for event in batch.events():
        if isinstance(event, CallProgress):
            return


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.005)


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that nobody has reaped yet."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(ps.stdout.strip()) and not ps.stdout.startswith("Z")


# -- what comes back ---------------------------------------------------------------


async def test_values_and_errors_are_those_of_a_thread(promises: PromiseObserver) -> None:
    """P9: what a call gives does not depend on where it ran, for any picklable callable."""
    adder = tools.Adder(1)
    ways: list[tuple[Any, dict[str, Any]]] = [
        (tools.add, {"a": 1, "b": 2}),
        (adder.add, {"b": 2}),
        (adder, {"b": 2}),
        (functools.partial(tools.add, b=2), {"a": 1}),
        (tools.counts, {"to": 3}),
        (tools.counts, {"to": 0}),
        (tools.breaks_off, {}),
        (tools.output, {}),
        (tools.raises, {"error": ValueError("plain")}),
        (tools.raises, {"error": SystemExit(3)}),
        (tools.raises, {"error": ExceptionGroup("group", [KeyError(1)])}),
        (tools.gives, {"what": os.urandom(1) * 3_000_000}),
    ]

    def shape(result: ToolResult) -> Any:
        error = (type(result.error), str(result.error))
        return (result.status, result.value, error, result.is_error, result.partial)

    async with ToolRunner(observers=[promises], max_threads=2) as runner:
        there = await runner.run([call(f, a) for f, a in ways])
        here = await runner.run([ToolCall("id", "t", a, tool=Tool(f)) for f, a in ways])
    assert [shape(r) for r in there] == [shape(r) for r in here]
    assert [r.effects for r in there] == [r.effects for r in here]
    assert there[8].error is not None
    assert "process_tools.py" in there[8].error.__notes__[0]  # its traceback


async def test_decorated_function_is_found_by_its_name() -> None:
    """`@tool` hides the function itself from pickle."""
    (result,) = await run_batch([ToolCall("id", "decorated", {"a": 1})], [tools.decorated])
    assert result.unwrap() == 2


async def test_what_cannot_be_pickled_is_that_calls_failure() -> None:
    """P6: function and arguments before the start, value and error after it; types are named."""
    results = await run_batch(
        [
            call(lambda: 1),
            call(tools.gives, {"what": threading.Lock()}),
            call(tools.gives_a_lock),
            call(tools.gives_a_generator),
            call(tools.raises_oddly),
            call(tools.gives, {"what": tools.Homebound(os.getpid())}),
            call(tools.add, {"a": 1}),
        ],
        max_threads=2,
    )
    said = [
        (False, "<lambda> can't be sent to a worker process"),
        (False, "the argument 'what' of type lock can't be sent"),
        (True, "a value of type list can't be pickled"),
        (True, "a value of type generator can't be pickled"),
        (True, "the tool raised what can't be pickled: OddError: odd"),
        (True, "process_tools.Homebound can't be unpickled: LookupError: not at home"),
    ]
    for result, (started, text) in zip(results, said, strict=False):
        assert (result.status, result.started) == (Status.FAILED, started)
        assert text in result.text
    assert results[-1].value == 2


async def test_what_a_tool_finds_in_its_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No context, nothing to read, our folder; what it prints goes to standard error."""
    processes._end_idle(float("inf"))  # a kept worker prints where another test has looked
    tools.session.set("ours")
    results = await run_batch(
        [
            call(tools.moves, {"to": "/"}),
            call(tools.looks_around),
            call(tools.prints),
            call(tools.asks),
            call(tools.asks_for_its_call),
        ],
        max_threads=1,  # so that one worker serves all
    )
    assert results[1].value == ("unset", os.getcwd())
    assert "EOFError" in results[3].text
    assert "can't be used in a worker process" in results[4].text
    monkeypatch.chdir(tmp_path)
    (result,) = await run_batch([call(tools.looks_around)])
    assert result.value == ("unset", os.getcwd())
    printed = capfd.readouterr()
    assert ("printed by a tool" in printed.err, printed.out) == (True, "")


async def test_what_fails_when_it_is_looked_at_ends_no_worker(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """P1: an error that is not to be asked, and a value that exits when it is pickled."""
    async with ToolRunner(max_threads=1) as runner:
        first, second, third = await runner.run(
            [
                call(tools.raises_a_false_error),
                call(tools.gives_what_exits),
                call(tools.add, {"a": 1}),
            ]
        )
    assert first.text == "FalseError: sulky"
    assert second.text.startswith(
        "TypeError: a value of type ExitsWhenPickled can't be pickled"
    )
    assert third.value == 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "ended with exit status 3"),
        ("close", "ended with exit status 1"),
        ("SIGKILL", "was ended by SIGKILL (out of memory?)"),
        ("SIGSEGV", "was ended by SIGSEGV"),
    ],
)
async def test_worker_that_dies_is_one_failure(
    how: str, said: str, promises: PromiseObserver, capfd: pytest.CaptureFixture[str]
) -> None:
    """P1: also where a child of it lives on; the siblings are unharmed, and nobody shouts."""
    async with ToolRunner(observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            died, fine = await runner.run(
                [call(tools.dies, {"how": how}), call(tools.add, {"a": 1})]
            )
    assert isinstance(died.error, ProcessDiedError)
    assert (died.status, died.effects) == (Status.FAILED, "unknown")
    assert said in died.text
    assert fine.value == 2
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not sessions.HAS_PROC, reason="processes are found in another way")
async def test_worker_is_buried_where_the_program_can_open_no_more_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P6, P10: what it has started can't be looked for then; its end and its pipes are as ever."""

    def no_more_files(path: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with ToolRunner() as runner:
        (result,) = await runner.run([call(tools.pid)])
        assert result.value is not None
        await until(lambda: not processes._all)
        with monkeypatch.context() as patch:
            patch.setattr(sessions.os, "listdir", no_more_files)
            (result,) = await runner.run([call(tools.dies, {"how": "SIGKILL"})])
            assert isinstance(result.error, ProcessDiedError)
            assert not processes._all
            await runner.run([call(tools.pid)])
            await until(lambda: not processes._all and not processes._has_janitor)


def test_worker_whose_requests_were_closed_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    P1: its end is its own exit, and never looks as if it had run out of memory.

    Most tools close it while somebody reads from it, who notices nothing; not this one.
    """
    killed: list[bool] = []
    monkeypatch.setattr(process_worker, "_kill_group", lambda: killed.append(True))
    ours, theirs = os.pipe()
    requests = io.FileIO(ours)
    waiting: SimpleQueue[Any] = SimpleQueue()
    os.write(theirs, b"G" + bytes(8))
    os.close(theirs)
    process_worker._read(requests, waiting)
    assert (waiting.get(), waiting.empty(), killed) == ((b"G", b""), True, [True])

    requests.close()
    ours, theirs = os.pipe()
    requests = io.FileIO(ours, closefd=False)
    os.close(ours)
    process_worker._read(requests, waiting)
    assert (waiting.get(), killed) == (None, [True])
    os.close(theirs)


async def test_without_a_process_the_call_was_never_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P1, P6: the system refuses another process."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise BlockingIOError("no more processes")

    processes._end_idle(float("inf"))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    refused, fine = await run_batch(
        [call(tools.add, {"a": 1}), ToolCall("id", "t", tool=Tool(lambda: 1))]
    )
    assert (refused.status, refused.started) == (Status.FAILED, False)
    assert "no more processes" in refused.text
    assert fine.value == 1


# -- cuts ----------------------------------------------------------------------


async def _interrupt(runner: ToolRunner, batch: ToolBatch) -> None:
    batch.interrupt()
    await batch.wait()


async def _cancel(runner: ToolRunner, batch: ToolBatch) -> None:
    batch.cancel("id")
    await batch.wait()


async def _close(runner: ToolRunner, batch: ToolBatch) -> None:
    await runner.aclose()


async def _leave(runner: ToolRunner, batch: ToolBatch) -> None:
    raise LookupError


async def _fail(runner: ToolRunner, batch: ToolBatch) -> None:
    batch.submit(call(tools.raises, {"error": ValueError()}))
    await batch.wait()


Cut = Callable[[ToolRunner, ToolBatch], Awaitable[None]]


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        (_interrupt, "user_interrupt"),
        (_cancel, "call_cancelled"),
        (_close, "runner_closed"),
        (_leave, "caller_cancelled"),
        (_fail, "sibling_failed"),
    ],
)
async def test_cut_ends_the_process_and_its_children(
    cut: Cut, kind: str, promises: PromiseObserver
) -> None:
    """P2, P6: the result says that it was stopped, and within a second it is true."""
    runner = ToolRunner(observers=[promises], max_detached=1)
    opened = runner.open_batch(fail_fast=cut is _fail)
    with anyio.fail_after(LIVENESS):
        batch = await opened.__aenter__()
        batch.submit(call(tools.works))
        await has_begun(batch)
        try:
            await cut(runner, batch)
        except LookupError as error:
            await opened.__aexit__(type(error), error, None)
        else:
            await opened.__aexit__(None, None, None)
    result = batch.results[0]
    assert result.reason is not None and result.reason.kind == kind
    assert (result.started, result.detached, result.effects) == (True, False, "unknown")
    assert "and was stopped. It may have had side effects" in result.text
    if cut is _interrupt:  # what is being killed takes no place
        (following,) = await runner.run([call(tools.add, {"a": 1})])
        assert following.value == 2
    assert await runner.wait_detached(LIVENESS)
    worker, child = result.partial
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    await until(lambda: not is_running(child))
    await runner.aclose()
    promises.check(batch.id, batch.results)


@pytest.mark.parametrize("limit", ["call", "batch"])
async def test_limit_ends_the_process(limit: str) -> None:
    """P2: both limits take the same way; a call's own runs from its start."""
    own = 0.05 if limit == "call" else None
    async with ToolRunner() as runner:
        (result,) = await runner.run(
            [call(tools.works, timeout=own)], timeout=None if own else 1.0
        )
        assert result.reason == Reason(f"{limit}_timeout")
        assert result.status is Status.TIMED_OUT
        assert await runner.wait_detached(LIVENESS)
        # Under load the batch's is over before the call has begun: then nothing is detached.
        await until(lambda: not processes._all)


async def test_cut_before_the_start_has_had_no_effects(tmp_path: Path) -> None:
    """P4, P6: neither a call that waits nor one that is being loaded has begun."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with ToolRunner(max_threads=1) as runner:
        async with runner.open_batch() as batch:
            batch.submit(call(tools.gives, {"what": tools.Blocking(pipe)}))
            batch.submit(call(tools.add, {"a": 1}))
            with anyio.fail_after(LIVENESS):
                assert await anyio.to_thread.run_sync(pipe.read_text) == "loading"
                batch.interrupt()
        assert [(r.started, r.effects) for r in batch.results] == [(False, "none")] * 2
        await until(lambda: not processes._all)


async def test_loaded_behind_its_batch_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P10: a call that is ready just when nobody knows its batch any more gives its worker back."""
    loaded, gate = threading.Event(), threading.Event()
    prepare = processes.ProcessCall.prepare

    def prepare_and_wait(self: processes.ProcessCall, *args: Any) -> None:
        prepare(self, *args)
        loaded.set()
        assert gate.wait(LIVENESS)

    monkeypatch.setattr(processes.ProcessCall, "prepare", prepare_and_wait)
    async with ToolRunner() as runner:
        async with runner.open_batch([call(tools.works)]) as batch:
            assert await anyio.to_thread.run_sync(loaded.wait, LIVENESS)
            batch.interrupt()
        assert not batch.results[0].started
        del batch  # and with it what the library keeps of it
        await anyio.wait_all_tasks_blocked()
        gate.set()
        await until(lambda: not processes._all)


async def test_not_loaded_behind_its_batch_is_no_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P7: a call that can't be loaded, of a batch that nobody knows any more, ends silently."""
    refused, gate = threading.Event(), threading.Event()
    carrier = type(thread_carrier.THREAD_CARRIER)
    report = carrier.report

    def wait_and_report(self: Any, record: Any) -> None:
        refused.set()
        assert gate.wait(LIVENESS)
        report(self, record)

    monkeypatch.setattr(carrier, "report", wait_and_report)
    async with ToolRunner() as runner:
        async with runner.open_batch([call(lambda: None)]) as batch:
            assert await anyio.to_thread.run_sync(refused.wait, LIVENESS)
            batch.interrupt()
        assert not batch.results[0].started
        del batch
        await anyio.wait_all_tasks_blocked()
        gate.set()
        await until(lambda: not threads.at_work)
        await anyio.wait_all_tasks_blocked()
    assert caplog.records == []


class KillsBehind:
    """A lock that has a call killed just after it was first given back."""

    def __init__(self, call: processes.ProcessCall) -> None:
        self._call: processes.ProcessCall | None = call

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.kill()


def test_kill_behind_the_end_leaves_the_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: it is the next call's; nobody waits for a process to be gone that was never killed."""
    kept: list[Any] = []
    monkeypatch.setattr(processes, "_keep", kept.append)
    call = processes.ProcessCall()
    call.prepare(Tool(tools.pid, runs_in="process"), {})
    worker = call._worker
    call._lock = KillsBehind(call)  # type: ignore[assignment]
    assert call.run(lambda kind, value: None, streams=False) > 0
    assert kept == [worker]
    kept[0].kill()
    kept[0].end()


async def test_grace_lets_it_give_its_own_answer(tmp_path: Path) -> None:
    """P3: within the grace nothing is killed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with ToolRunner() as runner, runner.open_batch() as batch:
        batch.submit(call(tools.waits_for, {"pipe": pipe}))
        await has_begun(batch)
        batch.interrupt(grace=LIVENESS)
        await anyio.to_thread.run_sync(pipe.write_text, "answered")
        (result,) = await batch.wait()
    assert (result.status, result.value) == (Status.COMPLETED, "answered")


async def test_kept_call_goes_on(tmp_path: Path) -> None:
    """P5: its end goes to `on_late`, and its process is not touched."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    late: list[LateResult] = []
    async with ToolRunner(on_late=late.append) as runner:
        async with runner.open_batch() as batch:
            batch.submit(call(tools.waits_for, {"pipe": pipe}, on_interrupt="keep"))
            await has_begun(batch)
            batch.interrupt()
        (result,) = batch.results
        assert result.detached and "goes on in the background" in result.text
        await anyio.to_thread.run_sync(pipe.write_text, "late")
        assert await runner.wait_detached(LIVENESS)
        await until(lambda: bool(late))
    assert late[0].value == "late"


async def test_random_cuts_leave_nothing() -> None:
    """P10: no process, no zombie, no descriptor, wherever the cut falls."""
    processes._end_idle(float("inf"))
    await until(lambda: not processes._all)
    async with ToolRunner(max_threads=4) as runner:
        await runner.run([ToolCall("id", "t", tool=Tool(lambda: 1))])
        before = len(os.listdir("/dev/fd"))
        for _ in range(25):
            async with runner.open_batch() as batch:
                batch.submit(call(tools.works))
                batch.submit(call(tools.add, {"a": 1}))
                await anyio.sleep(random.choice([0, 0.01, 0.15]) * random.random())
                batch.interrupt()
            assert not any(result.detached for result in batch.results)
        assert await runner.wait_detached(LIVENESS)
        await until(lambda: not processes._all)  # those that were kept, too
        # What was being started for calls that were cut has been ended, too.
        await until(lambda: len(os.listdir("/dev/fd")) == before)


# -- workers ---------------------------------------------------------------------


async def test_worker_serves_on_unless_it_was_cut_or_something_is_left_in_it() -> None:
    """E8: nothing that goes on can reach the next call."""
    reports: list[object] = []

    def hear(event: object) -> None:
        if isinstance(event, CallProgress):
            reports.append(event.progress)

    async with ToolRunner(observers=[hear]) as runner:

        async def give(func: Any) -> int:
            (result,) = await runner.run([call(func)])
            return int(result.unwrap())

        first = await give(tools.pid)
        assert await give(tools.pid) == first
        assert await give(tools.leaves_a_thread) == first
        reports.clear()
        second = await give(tools.pid)
        assert second != first
        child = await give(tools.leaves_a_child)
        assert await give(tools.pid) != second
        await until(lambda: not is_running(child))
        assert reports == []
        third = await give(tools.pid)
        os.kill(third, signal.SIGKILL)  # while it waits for a call
        assert await give(tools.pid) != third


def test_loops_in_several_threads_share_the_workers() -> None:
    """Runners, loops and threads need not know of each other."""
    found: list[Any] = []

    async def main() -> None:
        async with ToolRunner() as runner:
            for n in range(5):
                found.extend(await runner.run([call(tools.add, {"a": n})]))

    threads = [threading.Thread(target=anyio.run, args=(main,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIVENESS)
    assert sorted(r.value for r in found) == sorted([1, 2, 3, 4, 5] * 3)


# -- programs --------------------------------------------------------------------

PROGRAM = """
import os, re, signal, sys, time
import anyio
from anyio_toolbatch import CallProgress, Tool, ToolCall, ToolRunner, report_progress

def holds_the_interpreter():
    report_progress(1)
    re.match("(a+)+$", "a" * 60 + "b")  # for hours

async def main():
    tool = Tool(holds_the_interpreter, runs_in="process")
    async with ToolRunner([tool]) as runner:
        async with runner.open_batch([ToolCall("id", tool.name)]) as batch:
            async for event in batch.events():
                if isinstance(event, CallProgress):
                    {leave}

if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1])
"""


def run_program(path: Path, *arguments: str, module: bool = False) -> tuple[int, str, str]:
    """Run it to its end, and that of all that has its standard error: its workers."""
    folder = Path(processes.__file__).resolve().parents[2]
    there = ["-m", path.stem] if module else [str(path)]
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *there, *arguments],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        cwd=path.parent,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        ("batch.interrupt()", 0),
        ("raise LookupError('left')", 1),
        ("sys.exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(5)", 5),
    ],
)
def test_program_leaves_no_process(leave: str, status: int, tmp_path: Path) -> None:
    """P7: however it ends, and though the tool never lets go of the interpreter's lock."""
    if not hasattr(__import__("fcntl"), "F_SETSIG") and status in {-9, -15, 5}:
        pytest.skip("only Linux can end a process that way")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(leave=leave))
    began = time.monotonic()
    returned, _, err = run_program(program, "asyncio")
    assert returned == status
    assert "Warning" not in err
    assert time.monotonic() - began < LIVENESS / 2


FORKS = """
import atexit, os, anyio
from anyio_toolbatch import CallProgress, Tool, ToolCall, ToolRunner, report_progress

def waits(pipe):
    report_progress(1)
    return os.fdopen(os.open(pipe, os.O_RDONLY)).read()

async def main():
    async with ToolRunner([Tool(waits, runs_in="process")]) as runner:
        async with runner.open_batch([ToolCall("id", "waits", {"pipe": "pipe"})]) as batch:
            async for event in batch.events():
                if isinstance(event, CallProgress):
                    break
            child = os.fork()
            if child == 0:
                atexit._run_exitfuncs()  # as an exit does; without the loop, which is not its own
                os._exit(0)
            os.waitpid(child, 0)
            with open("pipe", "w") as pipe:
                pipe.write("unharmed")
        print(batch.results[0].text)

if __name__ == "__main__":
    anyio.run(main)
"""


def test_fork_leaves_the_parents_workers_alone(tmp_path: Path) -> None:
    """A forked child that exits kills nothing of its parent's."""
    os.mkfifo(tmp_path / "pipe")
    program = tmp_path / "program.py"
    program.write_text(FORKS)
    _, out, _ = run_program(program)
    assert "unharmed" in out


MAIN = """
import anyio
from anyio_toolbatch import ToolCall, ToolRunner, tool

class Point:
    def __init__(self, x):
        self.x = x

@tool(runs_in="process")
def moved(point):
    return Point(point.x + 1)

async def main():
    async with ToolRunner([moved]) as runner:
        (result,) = await runner.run([ToolCall("id", "moved", {"point": Point(1)})])
    print(result.value.x if result.value else result.text)
"""


@pytest.mark.parametrize("module", [False, True], ids=["script", "-m"])
def test_functions_and_classes_of_the_main_module(module: bool, tmp_path: Path) -> None:
    """They are found in the worker, and their values here, also by `python -m`."""
    program = tmp_path / "program.py"
    program.write_text(f"{MAIN}\nif __name__ == '__main__':\n    anyio.run(main)\n")
    assert run_program(program, module=module) == (0, "2\n", "")


def test_main_module_without_a_guard_is_told_so(tmp_path: Path) -> None:
    """It would run itself in its worker, and in the worker of that one."""
    program = tmp_path / "program.py"
    program.write_text(f"{MAIN}\nanyio.run(main)\n")
    _, out, _ = run_program(program)
    assert re.fullmatch("Tool call not started: .*put what runs the program below .*\n", out)
