"""
What every carrier does, and what each does in its own way: `expectations.toml`.

One test per aspect, repeated for each carrier on each event loop.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    CallOutput,
    CallProgress,
    ExecutorCarrier,
    LateResult,
    Reason,
    Status,
    Tool,
    ToolCall,
    ToolRunner,
    run_batch,
)
from anyio_toolbatch.testing import PromiseObserver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process ids")

HERE = Path(__file__).resolve().parent
IMPORTABLE = HERE.parent / "importable"
sys.path.append(str(IMPORTABLE))
tools: Any = importlib.import_module("carrier_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant
NEGATIVE = 0.03  # seconds in which what must not happen would have happened
LIMIT = 0.03  # seconds; gates make sure that no call ends before

TABLE = tomllib.loads((HERE / "expectations.toml").read_text("utf-8"))
ASPECTS = {aspect["name"]: aspect for aspect in TABLE["aspects"]}
ON_A_LOOP = {"loop", "own_loop"}
"""These run async functions, here."""


@pytest.fixture(params=TABLE["carriers"])
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Any]]:
    """What each carrier is for `runs_in`."""
    # Forking a process with threads warns, and a warning is a failure here.
    spawn = multiprocessing.get_context("spawn")
    killable = tools.KillableExecutor()
    with (
        ThreadPoolExecutor(4) as threads,
        ProcessPoolExecutor(2, mp_context=spawn) as processes,
    ):
        yield {
            "loop": "loop",
            "thread": "thread",
            "own_loop": "thread",
            "process": "process",
            "thread_pool": threads,
            "process_pool": processes,
            "stoppable": ExecutorCarrier(killable, killable.stop),
        }


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where tools leave traces; whatever becomes of the test, its tools are let through."""
    yield tmp_path
    (tmp_path / "go").touch()


Make = Callable[..., Tool]


@pytest.fixture
def make(carrier: str, places: dict[str, Any]) -> Make:
    """Make a tool for the carrier, of the name of a function, or of a function."""

    def make_tool(func: Any, **options: Any) -> Tool:
        if isinstance(func, str):
            func = getattr(tools, f"{func}_async" if carrier in ON_A_LOOP else func)
        return Tool(func, name="tool", runs_in=places[carrier], **options)

    return make_tool


def call(id: str = "0", **arguments: Any) -> ToolCall:
    return ToolCall(id, "tool", arguments)


def check(carrier: str, name: str, observed: str) -> None:
    """Compare what was seen with what the table says."""
    assert observed == ASPECTS[name]["of"][carrier], ASPECTS[name]["title"]


def expected(carrier: str, name: str) -> str:
    """Only to know how long to wait for what should happen, or should not."""
    return str(ASPECTS[name]["of"][carrier])


async def until(condition: Callable[[], object], seconds: float = LIVENESS) -> bool:
    """Wait for what threads and processes do that can't tell this loop."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.002)
        return True
    assert seconds != LIVENESS, "waited in vain"
    return False


def is_running(pid: int) -> bool:
    """Not gone, and no zombie that nobody has reaped yet."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(ps.stdout.strip()) and not ps.stdout.startswith("Z")


# -- the table itself ------------------------------------------------------------------


def test_the_table_is_whole_and_says_only_what_is_asserted() -> None:
    """Each aspect has a word for each carrier, a meaning for each word, and a test."""
    for name, aspect in ASPECTS.items():
        assert list(aspect["of"]) == list(TABLE["carriers"]), name
        assert set(aspect["of"].values()) == set(aspect["means"]), name
    asserted = re.findall(r'check\(carrier, "(\w+)"', Path(__file__).read_text("utf-8"))
    assert sorted(asserted) == sorted(ASPECTS)


# -- what comes back ---------------------------------------------------------------------


async def test_results_and_errors(make: Make, folder: Path, promises: PromiseObserver) -> None:
    """P1, P9: the same everywhere, in call order; a failure harms no sibling."""
    (folder / "go").touch()
    found = []
    async with ToolRunner(observers=[promises]) as runner, runner.open_batch() as batch:
        for func, arguments in [
            ("quick", {"folder": folder}),
            ("fails_late", {"folder": folder}),
            ("exits", {}),
            ("output", {}),
            ("streams", {"folder": folder}),
        ]:
            batch.submit(ToolCall(func, "tool", arguments, tool=make(func)))
    promises.check(batch.id, batch.results)
    for result in batch.results:
        found.append((result.status.value, result.value, result.is_error, result.effects))
        assert (result.started, result.detached, result.reason) == (True, False, None)
    assert found == [
        ("completed", "value of 0", False, "done"),
        ("failed", None, True, "unknown"),
        ("failed", None, True, "unknown"),
        ("completed", "no such file", True, "done"),
        ("completed", "second", False, "done"),
    ]
    texts = [result.text for result in batch.results]
    assert texts == [
        "value of 0",
        "ValueError: error of 0",
        "SystemExit: 3",
        "no such file",
        "second",
    ]


async def test_functions(carrier: str, make: Make) -> None:
    """P6: one that the other side can't find was never started."""

    def local() -> str:
        return "found"

    async def local_async() -> str:
        return "found"

    func = local_async if carrier in ON_A_LOOP else local
    (result,) = await run_batch([call()], [make(func)])
    if result.started:
        assert result.value == "found"
    else:
        assert (result.status, result.effects) == (Status.FAILED, "none")
    check(carrier, "functions", "any" if result.started else "importable")


async def test_arguments(carrier: str, make: Make) -> None:
    """P6: what can't be sent is that call's failure, before its start."""
    odd, fine = await run_batch(
        [call(what=threading.Lock()), call(what=1)], [make("takes")], max_concurrency=1
    )
    assert fine.value == "taken"
    if odd.started:
        assert odd.value == "taken"
    else:
        assert (odd.status, odd.effects) == (Status.FAILED, "none")
    check(carrier, "arguments", "any" if odd.started else "picklable")


async def test_values(carrier: str, make: Make) -> None:
    """P6: what can't come back was done all the same."""
    (result,) = await run_batch([call()], [make("gives_a_lock")])
    assert result.started
    if result.status is Status.FAILED:
        assert result.effects == "unknown"
        assert "pickle" in result.text
    check(carrier, "values", "any" if result.status is Status.COMPLETED else "picklable")


# -- what a tool finds --------------------------------------------------------------------


async def test_context(carrier: str, make: Make) -> None:
    """§4.5: the submitter's context variables are seen, or their defaults are."""
    tools.session.set("ours")
    (result,) = await run_batch([call()], [make("reads_context")])
    check(carrier, "context", {"ours": "copied", "unset": "defaults"}[result.unwrap()])


async def test_call_itself(carrier: str, make: Make) -> None:
    """§3.3: the tool is found through its context, or says so."""
    (result,) = await run_batch([call("mine")], [make("asks_for_its_call")])
    if result.error is not None:
        assert isinstance(result.error, RuntimeError)
    else:
        assert result.value == "mine"
    check(carrier, "call", "works" if result.error is None else "raises")


async def test_progress_and_partial_output(carrier: str, make: Make) -> None:
    """§3.3: they cross, or raise; they are never lost in silence."""
    events: list[Any] = []
    async with ToolRunner([make("reports")], observers=[events.append]) as runner:
        (result,) = await runner.run([call()])
    progress = [(e.progress, e.total) for e in events if isinstance(e, CallProgress)]
    if result.error is None:
        assert (progress, result.partial) == ([(1, 2)], "half")
    else:
        assert isinstance(result.error, RuntimeError)
        assert (progress, result.partial) == ([], None)
    check(carrier, "reports", "works" if result.error is None else "raises")


async def test_items(carrier: str, make: Make, folder: Path) -> None:
    """§3.2: each is an event, at once or when the generator has ended."""
    items: list[Any] = []

    def observe(event: Any) -> None:
        if isinstance(event, CallOutput):
            items.append(event.output)

    async with ToolRunner([make("streams")], observers=[observe]) as runner:
        async with runner.open_batch([call(folder=folder)]) as batch:
            await until((folder / "started-0").exists)
            is_live = expected(carrier, "items") == "live"
            came = await until(lambda: items, LIVENESS if is_live else NEGATIVE)
            (folder / "go").touch()
    assert items == ["first", "second"]
    assert batch.results[0].value == "second"
    check(carrier, "items", "live" if came else "at the end")


async def test_items_of_a_generator_that_was_cut(
    carrier: str, make: Make, folder: Path
) -> None:
    """P3: those that were told are kept; where they are told at the end there are none."""
    async with ToolRunner([make("streams")]) as runner:
        async with runner.open_batch() as batch:
            batch.submit(call(folder=folder))
            await until((folder / "started-0").exists)
            if expected(carrier, "items") == "live":
                await until(lambda: batch._engine.records[0].items_told)
            batch.interrupt()
        (result,) = batch.results
        assert result.partial == (["first"] if expected(carrier, "items") == "live" else None)
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)


# -- interrupts -----------------------------------------------------------------------------


async def test_interrupt_while_waiting(
    make: Make, folder: Path, promises: PromiseObserver
) -> None:
    """P4, P6: what waits is never started, and has left no trace."""
    tool = make("stubborn", max_concurrency=1)
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(call("0", folder=folder))
                await until((folder / "started-0").exists)
                started = (folder / "started-0").stat().st_mtime_ns
                batch.submit(call("1", folder=folder))
                batch.interrupt("stop")
        running, waiting = batch.results
        assert (running.started, running.effects) == (True, "unknown")
        assert (waiting.started, waiting.detached, waiting.effects) == (False, False, "none")
        assert running.reason == waiting.reason == Reason("user_interrupt", "stop")
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)
    assert (folder / "started-0").stat().st_mtime_ns == started


@pytest.mark.parametrize("passes", [0, 1, 2])
async def test_interrupt_at_the_start(
    carrier: str, make: Make, folder: Path, passes: int, promises: PromiseObserver
) -> None:
    """P1, P4, P6: "not started" is said of none that has left a trace, now or later."""
    tool = make("quick")
    names = [f"{passes}-{n}" for n in range(4)]
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                for name in names:
                    batch.submit(call(name, folder=folder, name=name))
                for _ in range(passes):
                    await anyio.sleep(0)
                batch.interrupt()
        assert [r.call.id for r in batch.results] == names
        assert await runner.wait_detached(LIVENESS)
        assert runner.statistics().detached == ()
        for result in batch.results:
            has_run = (folder / f"started-{result.call.id}").exists()
            if expected(carrier, "work") == "killed":  # perhaps before its first line
                assert result.started or not has_run
            else:
                assert result.started is has_run
    promises.check(batch.id, batch.results)


async def test_interrupt_in_the_middle(
    carrier: str, make: Make, folder: Path, promises: PromiseObserver
) -> None:
    """P2, P5, P6: what becomes of the work, and what is said of it."""
    late: list[LateResult] = []
    async with ToolRunner(
        [make("attentive")], observers=[promises], on_late=late.append
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch([call(folder=folder)]) as batch:
                await until((folder / "started-0").exists)
                threads = runner.statistics().running_threads
                batch.interrupt()
        (result,) = batch.results
        assert (result.status, result.started) == (Status.INTERRUPTED, True)
        assert (result.effects, result.reason) == ("unknown", Reason("user_interrupt"))
        check(carrier, "threads", "counts" if threads else "free")
        check(carrier, "detached", "yes" if result.detached else "no")
        assert result.text == (
            "Tool call interrupted by the user before it finished"
            f"{' and was stopped' if 'stopped' in result.text else ''}. "
            "It may have had side effects; its outcome is unknown."
        )
        check(carrier, "text", "stopped" if "stopped" in result.text else "unknown")

        pid = int((folder / "started-0").read_text())
        signs = {
            "cancelled": (folder / "cancelled").exists,
            "told": (folder / "told").exists,
            "killed": lambda: not is_running(pid),
        }
        seen = "goes on"

        def has_sign() -> bool:
            nonlocal seen
            seen = next((name for name, sign in signs.items() if sign()), seen)
            return seen != "goes on"

        is_hoped_for = expected(carrier, "work") in signs
        await until(has_sign, LIVENESS if is_hoped_for else NEGATIVE)
        check(carrier, "work", seen)

        if seen in {"told", "goes on"}:  # whoever is only told has not ended by that
            assert len(runner.statistics().detached) == 1
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)
        assert runner.statistics().detached == ()
        is_hoped_for = expected(carrier, "late") == "told"
        await until(lambda: late, LIVENESS if is_hoped_for else NEGATIVE)
        for end in late:
            assert (end.value, end.batch_id, end.call) == ("value of 0", batch.id, result.call)
        check(carrier, "late", "told" if late else "none")
    promises.check(batch.id, batch.results)
    assert batch.results == [result]


async def test_interrupt_at_the_end(make: Make, carrier: str, folder: Path) -> None:
    """P3: what has ended is kept, though the loop has not heard of it yet."""
    tool = make("gated")
    async with ToolRunner([tool]) as runner:
        async with runner.open_batch() as batch:
            handle = batch.submit(call(folder=folder))
            await until((folder / "started-0").exists)
            (folder / "go").touch()
            record = handle._record
            if carrier == "loop":
                await until(lambda: record.ended)
            deadline = time.monotonic() + LIVENESS
            while not record.ended:  # the loop is held
                assert time.monotonic() < deadline
            batch.interrupt()
    (result,) = batch.results
    assert (result.status, result.value) == (Status.COMPLETED, "value of 0")
    assert (result.effects, result.detached) == ("done", False)


async def test_timeout(make: Make, folder: Path, promises: PromiseObserver) -> None:
    """P2, P6: the call's own limit runs from its start, and is told as what it is."""
    tool = make("stubborn", timeout=LIMIT)
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch([call(folder=folder)]) as batch:
                pass
        (result,) = batch.results
        assert (result.status, result.reason) == (Status.TIMED_OUT, Reason("call_timeout"))
        assert (result.started, result.effects) == (True, "unknown")
        assert result.text.startswith("Tool call timed out (its own time limit)")
        assert not batch.interrupted
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


async def test_cap(carrier: str, make: Make, folder: Path) -> None:
    """P10: what keeps a thread of ours is capped; what does not is listed."""
    runner = ToolRunner(
        {"tool": make("stubborn"), "blocking": lambda: "served"}, max_detached=1
    )
    async with runner:
        async with runner.open_batch([call(folder=folder)]) as batch:
            await until((folder / "started-0").exists)
            batch.interrupt()
        (following,) = await runner.run([ToolCall("1", "blocking")])
        if following.status is Status.FAILED:
            assert following.reason is not None
            assert following.reason.kind == "too_many_detached"
        else:
            assert following.value == "served"
        (folder / "go").touch()
        assert await runner.wait_detached(LIVENESS)
        (after,) = await runner.run([ToolCall("2", "blocking")])
        assert after.value == "served"
    check(carrier, "cap", "counts" if following.status is Status.FAILED else "free")


# -- the end of the program -------------------------------------------------------------------

PROGRAM = """
import logging, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

sys.path.append(sys.argv[1])
import anyio
import carrier_tools as tools
from anyio_toolbatch import ExecutorCarrier, Tool, ToolCall, ToolRunner

folder, carrier, backend = Path(sys.argv[2]), sys.argv[3], sys.argv[4]

def place():
    match carrier:
        case "thread_pool":
            return ThreadPoolExecutor(1)
        case "process_pool":
            return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        case "stoppable":
            killable = tools.KillableExecutor()
            return ExecutorCarrier(killable, killable.stop)
    return "thread" if carrier == "own_loop" else carrier

async def main():
    # A coroutine that refuses to end would hold the end of its loop.
    func = {"loop": tools.gated_async, "own_loop": tools.stubborn_async}.get(carrier, tools.gated)
    async with ToolRunner([Tool(func, name="tool", runs_in=place())], close_timeout=0.2) as runner:
        async with runner.open_batch([ToolCall("0", "tool", {"folder": folder})]) as batch:
            while not (folder / "started-0").exists():
                await anyio.sleep(0.002)
            batch.interrupt()
    print(batch.results[0].started, flush=True)

if __name__ == "__main__":
    # With -X dev it tells of slow callbacks, which are the machine's.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options = {"use_uvloop": True} if backend == "uvloop" else {}
    anyio.run(main, backend="trio" if backend == "trio" else "asyncio", backend_options=options)
    tools.leave_trace(folder, "left")
"""


def start(folder: Path, carrier: str, backend: str) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    root = Path(importlib.import_module("anyio_toolbatch").__file__ or "").parents[1]
    arguments = [program, IMPORTABLE, folder, carrier, backend]
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,  # so that nothing of a test that fails is left
    )


def test_end_of_the_program(carrier: str, tmp_path: Path) -> None:
    """P7: with a detached call under way: in silence, with status 0, and no process stays."""
    folders = {tmp_path / backend: backend for backend in ("asyncio", "uvloop", "trio")}
    for folder in folders:
        folder.mkdir()
    programs = {f: start(f, carrier, backend) for f, backend in folders.items()}  # at once
    is_waiting = expected(carrier, "exit") == "waits"
    try:
        for folder in folders:
            tools.wait_for(folder / "left")
        if is_waiting:
            time.sleep(10 * NEGATIVE)
        for folder, process in programs.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if is_waiting else LIVENESS)
            has_left = process.returncode is not None
            (folder / "go").touch()
            out, err = process.communicate(timeout=LIVENESS)
            assert (process.returncode, out, err) == (0, "True\n", "")
            assert (folder / "ended-0").exists() is not has_left
            check(carrier, "exit", "leaves" if has_left else "waits")
            pid = int((folder / "started-0").read_text())
            deadline = time.monotonic() + LIVENESS
            while is_running(pid):
                assert time.monotonic() < deadline, "it has left a process"
                time.sleep(0.02)
    finally:
        for process in programs.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
