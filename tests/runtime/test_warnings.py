"""What goes wrong slowly is said in the log: who, since when, and once."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import anyio_toolbatch
from anyio_toolbatch import Tool, ToolCall, ToolRunner, on_cancel, run_batch
from anyio_toolbatch._runtime import blocked_loop, cancellation, long_detached
from anyio_toolbatch._runtime.hub import current_hub
from anyio_toolbatch._runtime.logs import about
from anyio_toolbatch.testing import DeafTool, GatedTool

LIVENESS = 20.0  # seconds where milliseconds are meant
NEGATIVE = 0.05  # seconds in which what must not happen would have happened


def of_kind(caplog: pytest.LogCaptureFixture, kind: str) -> list[Any]:
    found: list[Any] = [r for r in caplog.records if getattr(r, "kind", None) == kind]
    assert all(record.name.startswith("anyio_toolbatch.") for record in found)
    return found


# -- detached for long -------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_detached, "WARN_AFTER", 0.01)


async def cut(runner: ToolRunner, tool: GatedTool | DeafTool, *, count: int = 1) -> str:
    calls = [ToolCall(f"call_{n}", tool.tool.name) for n in range(count)]
    with anyio.fail_after(LIVENESS):
        before = tool.started
        async with runner.open_batch(calls) as batch:
            while tool.started < before + count:
                await anyio.sleep(0.001)
            batch.interrupt()
    return batch.id


async def warned(caplog: pytest.LogCaptureFixture, kind: str, count: int = 1) -> Any:
    """Wait until so many calls have been warned of; return the last warning."""
    with anyio.fail_after(LIVENESS):
        while sum(record.count for record in of_kind(caplog, kind)) < count:
            await anyio.sleep(0.001)
    return of_kind(caplog, kind)[-1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("make", [GatedTool, DeafTool])
async def test_long_detached(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """P10: on a loop where nothing else happens a warning says who runs on, once."""
    tool = make("stuck")
    runner = ToolRunner([tool.tool])
    batch_id = await cut(runner, tool, count=2)
    record = await warned(caplog, "long_detached", 2)
    assert record.levelno == logging.WARNING
    assert f"{record.count} detached calls" in record.getMessage()
    assert "stuck" in record.getMessage()
    assert record.tools == ["stuck"]
    assert record.batch_ids == [batch_id]
    assert record.seconds > 0.0
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", record.since)
    await anyio.sleep(NEGATIVE)
    tool.open() if isinstance(tool, GatedTool) else tool.release()
    assert await runner.wait_detached(LIVENESS)
    warnings = of_kind(caplog, "long_detached")
    assert [i for r in warnings for i in r.call_ids] == ["call_0", "call_1"]


async def test_what_was_let_go_together_is_warned_of_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning for the many calls of a batch, and no more than some of their ids."""
    now = 0.0
    timers: list[Any] = []
    backend = SimpleNamespace(
        clock=lambda: now,
        call_later=lambda delay, function: timers.append((delay, function)) or function,
    )
    watching = long_detached.LongDetached(backend)  # type: ignore[arg-type]

    class Call(SimpleNamespace):
        __hash__ = object.__hash__

    calls = [
        Call(
            call=ToolCall(f"call_{n}", f"tool_{n % 2}"),
            batch=SimpleNamespace(id="batch"),
            reported=n == 7,
        )
        for n in range(100)
    ]
    for call in calls:
        now += 0.001  # told in slices
        watching.watch(call)  # type: ignore[arg-type]
    (first,) = timers
    now += first[0]
    first[1]()
    (record,) = of_kind(caplog, "long_detached")
    assert record.count == 99
    assert record.tools == ["tool_0", "tool_1"]
    assert "tool_0 ×50, tool_1 ×49" in record.getMessage()
    assert len(record.call_ids) == 20
    assert len(timers) == 1


@pytest.mark.usefixtures("at_once")
async def test_each_has_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    """A second call that is let go later has a warning of its own."""
    one, two = GatedTool("one"), GatedTool("two")
    runner = ToolRunner([one.tool, two.tool])
    await cut(runner, one)
    await warned(caplog, "long_detached")
    await cut(runner, two)
    with anyio.fail_after(LIVENESS):
        while len(of_kind(caplog, "long_detached")) < 2:
            await anyio.sleep(0.001)
    assert [r.tools for r in of_kind(caplog, "long_detached")] == [["one"], ["two"]]
    one.open()
    two.open()
    assert await runner.wait_detached(LIVENESS)


@pytest.mark.usefixtures("at_once")
async def test_kept_calls_are_meant_to_run_on(caplog: pytest.LogCaptureFixture) -> None:
    """`on_interrupt="keep"` is no accident."""
    tool = GatedTool(on_interrupt="keep")
    runner = ToolRunner([tool.tool])
    await cut(runner, tool)
    await anyio.sleep(NEGATIVE)
    tool.open()
    assert await runner.wait_detached(LIVENESS)
    assert not of_kind(caplog, "long_detached")


@pytest.mark.usefixtures("at_once")
async def test_what_ends_in_its_grace_was_never_let_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P6: also if it ends while the cut is on its way to tell it."""
    gate = anyio.Event()

    async def quick() -> str:
        await gate.wait()
        return "done"

    async with ToolRunner([quick], interrupt_grace=LIVENESS) as runner:
        async with runner.open_batch([ToolCall("0", "quick")]) as batch:
            await anyio.wait_all_tasks_blocked()
            batch.interrupt()
            gate.set()
        assert batch.results[0].value == "done"
        await anyio.sleep(NEGATIVE)
    assert not of_kind(caplog, "long_detached")


async def test_what_ends_in_time_is_not_warned_of_and_leaves_no_timer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """§4.1: nothing of ours stays on the loop when nothing runs."""
    tool = GatedTool()
    runner = ToolRunner([tool.tool])
    await cut(runner, tool, count=3)
    state = current_hub().states[runner]
    watching = state.account.long_detached
    with anyio.fail_after(LIVENESS):
        while watching._timer is None:
            await anyio.lowlevel.checkpoint()
    tool.open()
    assert await runner.wait_detached(LIVENESS)
    assert watching._timer is None
    assert not watching._since
    assert not of_kind(caplog, "long_detached")


def test_a_loop_ends_while_something_is_watched(anyio_backend: Any) -> None:
    """P7: the timer holds no loop's end, and says nothing of a loop that has ended."""
    name, options = anyio_backend
    tool = GatedTool()

    async def main() -> None:
        await cut(ToolRunner([tool.tool]), tool)

    started = time.monotonic()
    anyio.run(main, backend=name, backend_options=options)
    assert time.monotonic() - started < LIVENESS < long_detached.WARN_AFTER
    tool.open()


# -- the limit is near -------------------------------------------------------


async def test_max_detached_is_near(caplog: pytest.LogCaptureFixture) -> None:
    """P10: said before calls are refused; again only after it was far."""
    tool = GatedTool("stuck")
    runner = ToolRunner([tool.tool], max_detached=4)
    await cut(runner, tool, count=2)
    await runner.run([])
    assert not of_kind(caplog, "max_detached_near")
    await cut(runner, tool)
    record = await warned(caplog, "max_detached_near")
    assert record.levelno == logging.WARNING
    assert "max_detached=4" in record.getMessage()
    assert "stuck ×3" in record.getMessage()
    assert (record.count, record.limit, record.tools) == (3, 4, ["stuck"])
    await cut(runner, tool)
    await runner.run([])
    assert len(of_kind(caplog, "max_detached_near")) == 1
    tool.let_through(4)
    assert await runner.wait_detached(LIVENESS)
    await runner.run([])
    await cut(runner, tool, count=3)
    with anyio.fail_after(LIVENESS):
        while len(of_kind(caplog, "max_detached_near")) < 2:
            await anyio.sleep(0.001)
    tool.open()
    assert await runner.wait_detached(LIVENESS)


# -- a blocked loop ----------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocked_loop, cancellation):
        monkeypatch.setattr(module, "LONG_STEP", 0.01)


async def blocks_first() -> None:
    time.sleep(0.02)


async def blocks_later() -> None:
    await anyio.sleep(0.001)
    time.sleep(0.02)
    await anyio.sleep(0.001)


async def blocks_last() -> None:
    await anyio.sleep(0.001)
    time.sleep(0.02)


async def blocks_and_raises() -> None:
    await anyio.sleep(0.001)
    time.sleep(0.02)
    raise ValueError


async def blocks_in_items() -> Any:
    yield 1
    time.sleep(0.02)
    yield 2


def blocks() -> None:
    time.sleep(0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "func",
    [blocks_first, blocks_later, blocks_last, blocks_and_raises, blocks_in_items, blocks],
)
async def test_tool_that_blocks_the_loop(func: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The tool is named, and the remedy; once, however often it does so."""
    tool = Tool(func, name="bad", runs_in="loop")
    for _ in range(2):
        await run_batch([ToolCall("1", "bad"), ToolCall("2", "bad")], [tool])
    (record,) = of_kind(caplog, "loop_blocked")
    assert record.levelno == logging.WARNING
    assert "'bad'" in record.getMessage()
    assert "runs_in='thread'" in record.getMessage()
    assert record.tools == ["bad"]
    assert record.seconds > 0.01


@pytest.mark.usefixtures("impatient")
async def test_tool_that_blocks_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """In a thread, also in a loop of its own there, a tool may block."""
    tools = [
        Tool(blocks, name="thread"),
        Tool(blocks_later, name="own_loop", runs_in="thread"),
    ]
    await run_batch([ToolCall("1", "thread"), ToolCall("2", "own_loop")], tools)
    assert not of_kind(caplog, "loop_blocked")


async def test_the_step_around_an_eager_task_is_not_blamed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inner batch's calls may begin within the step of the call around it."""
    monkeypatch.setattr(cancellation, "LONG_STEP", 0.01)
    monkeypatch.setattr(blocked_loop, "LONG_STEP", 0.2)

    async def inner() -> None:
        time.sleep(0.3)

    async def outer() -> None:
        await run_batch([ToolCall("1", "inner")], [inner])

    await run_batch([ToolCall("1", "outer")], [outer])
    (record,) = of_kind(caplog, "loop_blocked")
    assert record.tools == ["inner"]


# -- all of them -------------------------------------------------------------


async def test_no_log_has_arguments_and_no_name_breaks_its_line(
    at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    """P6: what a model writes is no log line, and what it was told is nobody else's."""
    gate = threading.Event()
    begun = threading.Semaphore(0)

    def wait(password: str) -> None:
        on_cancel(lambda: 1 / 0)
        begun.release()
        gate.wait(LIVENESS)

    name = "wait\nERROR a line of its own\x1b[31m"
    calls = [ToolCall(str(n), name, {"password": "hunter2"}, tool=wait) for n in range(3)]
    async with ToolRunner([], max_detached=3) as runner:
        async with runner.open_batch(calls) as batch:
            for _ in calls:
                await anyio.to_thread.run_sync(begun.acquire)
            batch.interrupt()
        await warned(caplog, "long_detached")
        await runner.run([])  # and looks how many are detached
        gate.set()
    kinds = {getattr(record, "kind", None) for record in caplog.records}
    assert {"hook_failed", "long_detached"} <= kinds
    messages = [record.getMessage() for record in caplog.records]
    assert not [m for m in messages if "hunter2" in m or not m.isprintable()]


def test_quiet_by_default() -> None:
    """A program that has set up no logging is told nothing on its streams."""
    program = """
import anyio
from anyio_toolbatch import ToolCall, run_batch
def observer(event):
    raise ValueError
anyio.run(lambda: run_batch([ToolCall("1", "f")], {"f": lambda: 1}, observers=[observer]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "")
    assert logging.getLogger("anyio_toolbatch").handlers


SOURCES = sorted(Path(anyio_toolbatch.__file__).parent.rglob("*.py"))
TABLE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "telemetry.md"


def test_the_table_has_every_kind() -> None:
    """What can be filtered by is documented, and what is documented is there."""
    logged = {
        kind
        for source in SOURCES
        for kind in re.findall(r'about\(\s*"(\w+)"', source.read_text("utf-8"))
    }
    documented = set(re.findall(r"^\| `(\w+)` \| \w+ \|", TABLE.read_text("utf-8"), re.M))
    assert logged == documented


def test_no_field_is_an_attribute_of_its_record() -> None:
    """`logging` raises if `extra` overwrites what a record has itself."""
    own = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    fields = {
        keyword.arg
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "about"
        for keyword in node.keywords
    }
    assert {"seconds", "pid", "limit"} <= fields
    assert not own & (fields | set(about("kind")))


def test_loggers_have_their_modules_names() -> None:
    """One logger a module: levels can be set for parts, and for all by the package's."""
    for source in SOURCES:
        text = source.read_text("utf-8")
        for name in re.findall(r"^logger = .*getLogger\((.*?)\)", text, re.M):
            assert name == "__name__", source


async def test_fields_can_be_added_to_any_record(caplog: pytest.LogCaptureFixture) -> None:
    """`extra` must not overwrite a record's own attributes: logging refuses that."""

    def observer(event: object) -> None:
        raise ValueError

    await run_batch([ToolCall("1", "f")], {"f": lambda: 1}, observers=[observer])
    assert of_kind(caplog, "hook_failed")
    assert "Error in" not in caplog.text
