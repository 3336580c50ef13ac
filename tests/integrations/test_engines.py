"""What every engine keeps: a call that runs there is a call like any other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    LateResult,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    run_batch,
)
from anyio_toolbatch.testing import PromiseObserver

if not any(importlib.util.find_spec(module) for module in ("ray", "distributed")):
    pytest.skip("no engine is installed", allow_module_level=True)
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="named pipes"),
    # Older Rays leave log files and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
engine_tools: Any = importlib.import_module("engine_tools")
process_tools: Any = importlib.import_module("process_tools")

PLACES = 2


async def test_values_and_errors_are_those_of_a_thread(
    engine: Any, promises: PromiseObserver
) -> None:
    """P1, P9: in call order, and what a call gives does not depend on where it ran."""
    ways: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (process_tools.add, {"a": 1, "b": 2}),
        (process_tools.Adder(1), {"b": 2}),
        (process_tools.counts, {"to": 3}),
        (process_tools.counts, {"to": 0}),
        (process_tools.output, {}),
        (process_tools.raises, {"error": ValueError("plain")}),
        (process_tools.raises, {"error": SystemExit(3)}),
        (process_tools.raises, {"error": GeneratorExit()}),
        (process_tools.raises, {"error": ExceptionGroup("group", [KeyError(1)])}),
        (process_tools.gives, {"what": os.urandom(1) * 3_000_000}),
        (lambda a: a + 1, {"a": 1}),
    ]

    def shape(result: ToolResult) -> Any:
        error = (type(result.error), str(result.error))
        return (result.status, result.value, error, result.is_error, result.partial)

    async with ToolRunner(observers=[promises]) as runner:
        there = await runner.run([engine.call(f, **a) for f, a in ways])
        here = await runner.run([ToolCall("id", "t", a, tool=Tool(f)) for f, a in ways])
    assert [shape(r) for r in there] == [shape(r) for r in here]
    assert [r.effects for r in there] == [r.effects for r in here]
    assert there[5].error is not None
    assert "process_tools.py" in there[5].error.__notes__[0]  # its traceback


async def test_argument_that_cannot_be_pickled_is_named(engine: Any) -> None:
    """That call's failure, never started; its sibling knows nothing of it."""
    bad, good = await run_batch(
        [
            engine.call(process_tools.gives, what=threading.Lock()),
            engine.call(process_tools.pid),
        ]
    )
    assert (bad.status, bad.started, bad.effects) == (Status.FAILED, False, "none")
    assert "the argument 'what' of type lock can't be pickled" in str(bad.error)
    assert good.unwrap() != os.getpid()


async def test_function_that_cannot_be_pickled_is_named(engine: Any) -> None:
    lock = threading.Lock()
    (result,) = await run_batch([engine.call(lambda: lock)])
    assert (result.status, result.started) == (Status.FAILED, False)
    assert "the function of 'tool'" in str(result.error) or "<lambda>" in str(result.error)


@pytest.mark.parametrize(
    ("func", "named"),
    [
        (process_tools.gives_a_lock, "a value of type list can't be pickled"),
        (process_tools.raises_oddly, "the tool raised what can't be pickled: OddError: odd"),
    ],
)
async def test_what_cannot_come_back_is_named(engine: Any, func: Any, named: str) -> None:
    """The call has run, so its effects are unknown."""
    (result,) = await run_batch([engine.call(func)])
    assert (result.status, result.started, result.effects) == (Status.FAILED, True, "unknown")
    assert named in str(result.error)


async def test_value_that_cannot_be_read_here_is_named(engine: Any) -> None:
    """Reading it fails in a thread of the engine's; the call ends all the same."""
    (result,) = await run_batch(
        [engine.call(lambda home: process_tools.Homebound(home), home=os.getpid())]
    )
    assert "process_tools.Homebound can't be unpickled: LookupError" in str(result.error)


def test_functions_of_the_main_module_travel_themselves(engine: Any, tmp_path: Path) -> None:
    """Decorated or not: the worker has another main module."""
    program = tmp_path / "program.py"
    program.write_text(
        engine.connect
        + "import anyio\n"
        + "from anyio_toolbatch import ToolCall, run_batch, tool, Tool\n"
        + "@tool(runs_in=carrier)\n"
        + "def decorated(a): return a + 1\n"
        + "def plain(a):\n    yield a\n    yield a + 1\n"
        + "tools = [decorated, Tool(plain, runs_in=carrier)]\n"
        + "calls = [ToolCall(n, n, {'a': 1}) for n in ('decorated', 'plain')]\n"
        + "print([r.text for r in anyio.run(run_batch, calls, tools)])\n"
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "['2', '2']\n", ended.stderr


async def test_context_variables_do_not_cross(engine: Any) -> None:
    """The tool sees their defaults, and no call around it."""
    process_tools.session.set("here")
    calls = [engine.call(process_tools.looks_around), engine.call(lambda: current_call())]
    looked, asked = await run_batch(calls)
    assert looked.unwrap()[0] == "unset"
    assert isinstance(asked.error, RuntimeError)


# -- what is cut -------------------------------------------------------------------


async def test_call_that_is_cut_before_it_is_sent_never_runs(
    engine: Any, tmp_path: Path, eventually: Any
) -> None:
    """P4, P6: it counts as started when all of it has been pickled, and not before."""
    engine_tools.is_being_pickled.clear()
    engine_tools.may_be_pickled.clear()
    mark = tmp_path / "mark"
    async with ToolRunner() as runner:
        calls = [
            engine.call(engine_tools.marks, mark=mark, what=engine_tools.SlowToPickle()),
            engine.call(engine_tools.marks, mark=mark),  # stands behind it
        ]
        async with runner.open_batch(calls) as batch:
            await eventually(engine_tools.is_being_pickled.is_set)
            batch.interrupt()
        engine_tools.may_be_pickled.set()
        assert [(r.started, r.effects) for r in batch.results] == [(False, "none")] * 2
        await runner.run([engine.call(process_tools.pid) for _ in range(PLACES)])
        assert await runner.wait_detached(30)
    assert not mark.exists()


async def test_queued_call_is_withdrawn(engine: Any, held: Any, tmp_path: Path) -> None:
    """P4: it was sent, and so may have run; but it has not, and never will."""
    mark = tmp_path / "mark"
    holders = [held() for _ in range(PLACES)]
    late: list[LateResult] = []
    async with ToolRunner(on_late=late.append) as runner:
        async with runner.open_batch() as batch:
            for each in holders:
                batch.submit(engine.call(engine_tools.holds, folder=each.folder))
                await each.begun()
            queued = batch.submit(engine.call(engine_tools.marks, mark=mark))
            with anyio.move_on_after(0.5):  # sent, and at the engine
                await queued.wait()
            assert queued.cancel()
            result = await queued.wait()
            assert (result.status, result.started) == (Status.INTERRUPTED, True)
            with anyio.fail_after(30):
                while runner.statistics().detached:
                    await anyio.sleep(0.005)
            for each in holders:
                each.let_go()
        # Whatever was in the queue would have come before these.
        await runner.run([engine.call(process_tools.pid) for _ in range(PLACES)])
    assert [r.value for r in batch.results] == ["let go"] * PLACES + [None]
    assert not mark.exists()
    assert late == []


async def test_call_timeout_harms_no_sibling(engine: Any, held: Any) -> None:
    slow, other = held(), held()
    async with ToolRunner() as runner:
        tool = engine.tool(engine_tools.holds, timeout=0.2)
        async with runner.open_batch() as batch:
            sibling = batch.submit(engine.call(engine_tools.holds, folder=other.folder))
            await other.begun()
            cut = batch.submit(ToolCall("id", "t", {"folder": slow.folder}, tool=tool))
            assert (await cut.wait()).status is Status.TIMED_OUT
            assert sibling.result is None
            other.let_go()
            if slow.has_begun and engine.name == "dask":
                slow.let_go()
        assert sibling.result is not None
        assert sibling.result.unwrap() == "let go"
        assert await runner.wait_detached(30)


async def test_caller_cancellation_goes_on(engine: Any, held: Any) -> None:
    """P8: what was settled can still be read."""
    holder = held()
    async with ToolRunner() as runner:
        with anyio.CancelScope() as scope:
            async with runner.open_batch(
                [engine.call(engine_tools.holds, folder=holder.folder)]
            ) as batch:
                await holder.begun()
                scope.cancel()
                await batch.wait()
        assert scope.cancelled_caught
        assert batch.results[0].reason.kind == "caller_cancelled"
        if engine.name == "dask":
            holder.let_go()
        assert await runner.wait_detached(30)


# -- what breaks -------------------------------------------------------------------


async def test_worker_that_dies_is_that_calls_failure(engine: Any, tmp_path: Path) -> None:
    """And the call is not run again, whatever the engine does for others."""
    mark = tmp_path / "mark"
    calls = [
        engine.call(engine_tools.dies, mark=mark),
        engine.call(process_tools.add, a=1),
    ]
    died, other = await run_batch(calls)
    assert (died.status, died.started, died.effects) == (Status.FAILED, True, "unknown")
    assert type(died.error).__name__ in {"WorkerCrashedError", "ProcessDiedError"}
    assert other.unwrap() == 2
    (after,) = await run_batch([engine.call(process_tools.pid)])
    assert after.unwrap() != int(mark.read_text())  # which has one line only
