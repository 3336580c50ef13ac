"""The view in a terminal: what it shows, that it stays calm, and breaks nothing."""

from __future__ import annotations

import gc
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    BatchSettled,
    BatchStarted,
    CallProgress,
    CallSettled,
    CallStarted,
    Reason,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    report_progress,
)
from anyio_toolbatch.observe.live import LiveView
from anyio_toolbatch.testing import GatedTool

rich_console = pytest.importorskip("rich.console")
LIVENESS = 20.0  # seconds where milliseconds are meant


def console(width: int = 80, height: int = 24, **options: Any) -> Any:
    """A terminal that nobody looks at."""
    return rich_console.Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, **options
    )


@pytest.fixture
def drawn() -> Callable[..., list[str]]:
    """Returns the lines that a view would show now."""

    def lines(view: LiveView, width: int = 80, height: int = 24) -> list[str]:
        out = console(width, height, no_color=True)
        return ["".join(s.text for s in line).rstrip() for line in out.render_lines(view)]

    return lines


def settled(index: int, status: Status = Status.COMPLETED, **fields: Any) -> CallSettled:
    call = ToolCall(f"id{index}", f"tool_{index}")
    return CallSettled("batch", ToolResult(call, index, status, **fields))


def started(index: int) -> CallStarted:
    return CallStarted("batch", ToolCall(f"id{index}", f"tool_{index}"), index)


async def test_a_line_for_each_call(drawn: Any) -> None:
    """State, what it waits for, progress, elapsed; and what was let go of, below."""
    deaf = GatedTool(name="deaf", writes="shelf")
    asked = anyio.Event()

    async def crawl() -> None:
        report_progress(3, 12, "pages")
        await anyio.sleep_forever()

    async def approve(call: ToolCall) -> bool:
        if call.name == "deploy":
            asked.set()
            await anyio.sleep_forever()
        return True

    with LiveView(console=console()) as view:
        runner = ToolRunner(
            [
                deaf.tool,
                crawl,
                Tool(crawl, name="edit", writes="shelf"),
                Tool(crawl, name="deploy"),
            ],
            observers=[view],
            approve=approve,
        )
        calls = [
            ToolCall(str(n), name)
            for n, name in enumerate(["deaf", "crawl", "edit", "deploy"])
        ]
        async with runner.open_batch(calls) as batch:
            await deaf.wait_started()
            await asked.wait()
            while "3/12" not in "\n".join(drawn(view)):
                await anyio.sleep(0)
            head, *lines = drawn(view)
            assert head.startswith("batch 1: 4 calls, 2 running, 2 waiting  ")
            assert lines[0].split() == ["0", "deaf", "running", *lines[0].split()[-2:]]
            assert "running  ━━━━────────────  3/12 pages" in lines[1]
            assert "waits for 'shelf', which call 0 (deaf) has" in lines[2]
            assert "waits for approval" in lines[3]
            assert all(line.endswith(" s") for line in lines)
            batch.interrupt()
        while (shown := drawn(view))[0] != "detached, still running: 1":
            await anyio.sleep(0.001)
        assert shown[1].startswith("   deaf  call 0 of batch 1, for ")
        deaf.open()
        assert await runner.wait_detached(LIVENESS)
        assert drawn(view) == []


async def test_nested_batches_say_whose_they_are(drawn: Any) -> None:
    """An inner batch has a head of its own, which names its outer call."""
    gate = GatedTool(name="inner")

    async def agent() -> None:
        await runner.run([ToolCall("i", "inner")])

    with LiveView(console=console()) as view:
        runner = ToolRunner([agent, gate.tool], observers=[view])
        async with runner.open_batch([ToolCall("0", "agent")]):
            await gate.wait_started()
            heads = [line for line in drawn(view) if line.startswith("batch")]
            gate.open()
    assert [head.split(":")[0] for head in heads] == ["batch 1", "batch 2 in call 0"]


@pytest.mark.parametrize("height", [4, 5, 10, 24])
def test_it_is_never_taller_than_the_terminal(drawn: Any, height: int) -> None:
    """Of 1,000 calls, what runs is shown before what waits; the others are counted."""
    with LiveView(console=console()) as view:
        view(BatchStarted("batch"))
        for index in range(1000):
            if index % 10 == 0:
                view(started(index))
            if index % 20 == 0:
                view(settled(index))
        view.note("a note")
        for number in range(height):
            view(BatchStarted(f"other {number}"))
        for index in range(30):
            view(settled(2000 + index, Status.INTERRUPTED, reason=Reason("x"), detached=True))
        lines = drawn(view, height=height)
        assert len(lines) <= max(height, 8)
        assert "80 ended" in lines[0]
        assert "a note" in lines[-1]
        running = [line for line in lines if "running" in line and "tool_" in line]
        assert len(running) or height < 10


def test_many_calls_show_those_that_run_first(drawn: Any) -> None:
    """What needs a look is not buried."""
    with LiveView(console=console()) as view:
        for index in range(100):
            view(settled(index) if index != 90 else started(index))
        lines = drawn(view, height=10)
    assert "100 calls, 1 running, 99 ended" in lines[0]
    assert any("tool_90" in line and "running" in line for line in lines)


@pytest.mark.parametrize("width", [8, 20, 40, 200])
def test_lines_stay_lines_in_any_width(drawn: Any, width: int) -> None:
    """Also after a resize: a call has one line, whatever its names and messages are."""
    call = ToolCall("id", "a\r\n\x1b[31m\u202e\ud800 " + "é" * 100)
    with LiveView(console=console()) as view:
        view(CallStarted("batch", call, 0))
        view(CallProgress("batch", call, 0, float("nan"), float("inf"), "\n" * 500))
        view(settled(1, Status.FAILED, error=ValueError("x\n" * 1000)))
        lines = drawn(view, width=width)
    assert len(lines) <= 3
    assert not any(set(line) & set("\r\n\x1b\u202e") for line in lines)


@pytest.mark.parametrize(
    ("progress", "total"),
    [(10**400, 1), (1, 10**400), (10**400, None), (0.5, 10**400), (10**400, 10**5000)],
    ids=["done", "total", "alone", "float", "both"],
)
def test_any_progress_can_be_drawn(drawn: Any, progress: Any, total: Any) -> None:
    """A tool's numbers may be larger than a float; none of them ends the picture."""
    call = ToolCall("id", "a")
    with LiveView(console=console()) as view:
        view(CallStarted("batch", call, 0))
        view(CallProgress("batch", call, 0, progress, total, "done"))
        (_, line) = drawn(view)
    assert "done" in line


async def test_the_endings_stay_on_the_screen() -> None:
    """How each call ended is written above the picture when its batch is over."""

    async def quick() -> None: ...

    async def failing() -> None:
        msg = "no such page"
        raise ValueError(msg)

    out = console()
    with LiveView(console=out, refresh_per_second=0.1) as view:
        runner = ToolRunner([quick, failing], observers=[view])
        await runner.run([ToolCall("0", "quick"), ToolCall("1", "failing")])
        await runner.run([ToolCall("0", "quick")] * 200 + [ToolCall("1", "failing")])
    shown = out.file.getvalue()
    assert "completed in" in shown
    assert "ValueError: no such page" in shown
    assert "… 200 more; 200 of 201 completed" in shown
    assert shown.count("quick") == shown.count("completed in")


@pytest.mark.parametrize("width", [20, 40])
def test_long_names_leave_room_for_the_endings(drawn: Any, width: int) -> None:
    """In a narrow terminal, too, it is to be seen how a call is going and how it ended."""
    narrow = console(width, no_color=True)
    first, second = ToolCall("0", "name" * 10), ToolCall("1", "name" * 10)
    with LiveView(console=narrow) as view:
        view(CallStarted("batch", first, 0))
        (_, line) = drawn(view, width=width)
        assert width < 40 or ("running" in line and line.endswith(" s"))
        view(CallSettled("batch", ToolResult(first, 0, Status.COMPLETED)))
        view(CallSettled("batch", ToolResult(second, 1, Status.FAILED, error=OSError("no"))))
        view(BatchSettled("batch"))
    shown = "".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", narrow.file.getvalue()).split())
    for beginning in ("comp", "fail", "OSE"):
        assert beginning in shown


async def test_leaving_shows_what_no_event_has_told_yet() -> None:
    """An interrupted batch's results are there before observers hear of them."""
    gate = GatedTool(name="deaf")
    out = console()
    async with LiveView(console=out, refresh_per_second=0.1) as view:
        runner = ToolRunner([gate.tool], observers=[view])
        async with runner.open_batch([ToolCall("0", "deaf")] * 3) as batch:
            await gate.wait_started(3)
            batch.interrupt()
    assert out.file.getvalue().count("interrupted after") == 3
    gate.open()
    assert await runner.wait_detached(LIVENESS)


async def test_plain_lines_where_there_is_no_terminal() -> None:
    """A line when a call starts and ends; more than one batch is told apart."""
    out = io.StringIO()

    async def quick() -> None: ...

    with LiveView(file=out) as view:
        runner = ToolRunner([quick], observers=[view])
        await runner.run([ToolCall("0", "quick")])
        view.note("a note")
        await runner.run([ToolCall("0", "quick"), ToolCall("1", "unknown")])
    lines = out.getvalue().splitlines()
    assert lines[0] == "call 0  quick  started"
    assert lines[1].startswith("call 0  quick  completed in ")
    assert lines[2] == "a note"
    assert sorted(line.split("  ")[1] for line in lines[3:]) == ["call 0", "call 0", "call 1"]
    assert all(line.startswith("batch 2  ") for line in lines[3:])
    assert "invalid, never started: there is no tool named 'unknown'" in out.getvalue()


class Broken(io.StringIO):
    """A stream whose reader has gone."""

    encoding = "ascii"

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_note_is_one_line() -> None:
    """Plain lines are lines, as those of a picture are."""
    stream = io.StringIO()
    with LiveView(file=stream) as view:
        view.note("to be\n\x1b[2Jseen")
    assert stream.getvalue() == "to be\\n\\x1b[2Jseen\n"


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("kind", ["broken", "closed"])
async def test_a_stream_that_is_gone_breaks_nothing(is_terminal: bool, kind: str) -> None:
    """The batch goes on, and no thread dies loudly."""
    stream = Broken()
    if is_terminal:
        stream.isatty = lambda: True  # type: ignore[method-assign]

    async def quick() -> str:
        return "done"

    with LiveView(file=stream, refresh_per_second=60) as view:
        if kind == "closed":
            stream.close()
        runner = ToolRunner([quick], observers=[view])
        for _ in range(3):
            (result,) = await runner.run([ToolCall("0", "quick")])
            await anyio.sleep(0.02)
    assert result.value == "done"


async def test_no_stream_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a windowing program, where standard error is None."""
    monkeypatch.setattr(sys, "stderr", None)
    with LiveView() as view:
        view.note("nobody reads this")
        view(BatchStarted("batch"))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_a_stream_cannot_encode(is_terminal: bool) -> None:
    """An ASCII terminal gets something else, and no exception."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    with LiveView(file=stream, refresh_per_second=60) as view:
        call = ToolCall("id", "é…")
        view(CallStarted("batch", call, 0))
        view(CallProgress("batch", call, 0, 1, 2, "日本"))
        time.sleep(0.05)
        view(CallSettled("batch", ToolResult(call, 0, Status.COMPLETED)))
        view(BatchSettled("batch"))
    assert b"completed in" in raw.getvalue()


def test_outside_its_block_it_keeps_nothing() -> None:
    """An observer that nobody looks at does not grow; and it can be shown again."""
    view = LiveView(console=console())
    for number in range(100):
        view(BatchStarted(f"batch-{number}"))
    assert not view._rows.batches
    for _ in range(2):
        with view:
            view(started(0))
            assert view._rows.batches
    assert not view._rows.batches
    with view, pytest.raises(RuntimeError, match="shown already"):
        view.__enter__()


async def test_a_long_session_does_not_grow() -> None:
    """P10: nothing of a batch that is over is kept."""

    async def quick() -> None: ...

    with LiveView(console=console(), refresh_per_second=60) as view:
        runner = ToolRunner([quick], observers=[view])
        for _ in range(50):
            await runner.run([ToolCall("0", "quick")])
        end = time.monotonic() + LIVENESS
        while view._rows.settled and time.monotonic() < end:
            await anyio.sleep(0.01)
        assert not view._rows.batches and not view._rows.settled and not view._rows.detached


def test_what_goes_with_its_loop_is_not_shown(drawn: Any) -> None:
    """P10: of a batch whose loop was dropped no end is ever told."""

    class Batch:
        def __init__(self, batch_id: str) -> None:
            self.id = batch_id
            self.calls: list[ToolCall] = []

    lost: Any = Batch("lost")
    over: Any = Batch("batch")
    with LiveView(console=console()) as view:
        view.watch_batch(lost)
        view.watch_batch(over)
        view(settled(0, Status.INTERRUPTED, reason=Reason("x"), detached=True))
        view(BatchSettled("batch"))
        assert len(drawn(view)) == 3
        del lost, over
        gc.collect()
        assert drawn(view) == []
        assert not view._rows.batches and not view._rows.detached


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"refresh_per_second": 0}, ValueError),
        ({"refresh_per_second": "x"}, TypeError),
        ({"file": sys.stdout, "console": 1}, TypeError),
    ],
)
def test_misuse_is_refused(options: Any, error: type[Exception]) -> None:
    """At once."""
    with pytest.raises(error):
        LiveView(**options)


# -- in a real terminal ----------------------------------------------------------

PROGRAM = """
import anyio, sys, threading
from anyio_toolbatch import ToolCall, ToolRunner
from anyio_toolbatch.observe.live import LiveView

gate = threading.Event()
def deaf():
    gate.wait(60)

async def main():
    async with LiveView() as view, ToolRunner([deaf], observers=[view]) as runner:
        await runner.run([ToolCall(str(n), "deaf") for n in range(3)])

try:
    anyio.run(main, backend=sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
"""


def in_terminal(tmp_path: Path, program: str, backend: str, **env: str) -> tuple[int, str]:
    """Run a program in a terminal, press Ctrl-C when it shows something, return all of it."""
    (tmp_path / "program.py").write_text(program)
    ours, theirs = pty.openpty()
    shown = b""
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "20", **env}
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in folders if p)
    if "NO_COLOR" not in env:
        environ.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "program.py", backend],
        cwd=tmp_path,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    guard = threading.Timer(60, process.kill)
    guard.start()
    is_struck = False
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        if not is_struck and b"3 running" in shown:
            is_struck = True
            process.send_signal(signal.SIGINT)
    guard.cancel()
    os.close(ours)
    return process.wait(), shown.decode()


def test_ctrl_c_while_the_block_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will leave that block, so nothing is drawn any more."""
    start = threading.Thread.start
    threads = []

    def interrupted(thread: threading.Thread) -> None:
        threads.append(thread)
        start(thread)
        raise KeyboardInterrupt

    out = console()
    view = LiveView(console=out)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.__enter__()
    assert not threads[0].is_alive()
    shown = out.file.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor stayed hidden"
    monkeypatch.undo()
    with view:
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_fork(tmp_path: Path) -> None:
    """A child draws nothing, waits for no lock of its parent's, and prints as it would."""
    program = """
import io, os, sys, threading
from rich.console import Console
from anyio_toolbatch import BatchStarted
from anyio_toolbatch.observe.live import LiveView
class Terminal(io.StringIO):
    def isatty(self):
        return True
sys.stdout = printed = Terminal()
console = Console(file=Terminal(), force_terminal=True)
view = LiveView(console=console)
held, go_on = threading.Event(), threading.Event()
def hold():
    with console._lock, view._rows.lock:
        held.set()
        go_on.wait(20)
with view:
    while sys.stdout is printed:
        pass
    threading.Thread(target=hold).start()
    held.wait(20)
    pid = os.fork()
    if not pid:
        before = console.file.getvalue()
        print("from the child")
        view(BatchStarted("batch"))
        view.note("from the child")
        view.restore()
        view.__exit__(None, None, None)
        told = printed.getvalue() == "from the child\\n"
        os._exit(0 if told and console.file.getvalue() == before else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    go_on.set()
sys.exit(code)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path, backend: str) -> None:
    """The cursor is back, and what came of each call stays on the screen."""
    code, shown = in_terminal(tmp_path, PROGRAM, backend)
    assert code == 0
    assert "\x1b[?25l" in shown, "there was no picture"
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor stayed hidden"
    last = shown[shown.rfind("\x1b[?25l") :]
    assert last.count(", detached") == 3
    assert "interrupted" in shown.splitlines()[-1]


NEVER_LEFT = """
import sys, threading
from anyio_toolbatch.observe.live import LiveView
view = LiveView()
view.__enter__()
while not view._shower._draws:
    pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_block_that_was_never_left(tmp_path: Path) -> None:
    """A Ctrl-C may come just before the block, or one more while it is left."""
    code, shown = in_terminal(tmp_path, NEVER_LEFT, "none")
    assert code == 0
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor stayed hidden"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_stopped_terminal_keeps_no_process(tmp_path: Path) -> None:
    """P7: the cursor is not waited for where nothing can be written (Ctrl-S)."""
    ours, theirs = pty.openpty()
    termios.tcflow(theirs, termios.TCOOFF)
    environ = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_LEFT], env=environ, stdout=theirs, stderr=theirs
    )
    try:
        assert process.wait(LIVENESS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_no_colour_where_none_is_wanted(tmp_path: Path) -> None:
    """NO_COLOR is honoured: no sequence sets a colour."""
    import re

    _, shown = in_terminal(tmp_path, PROGRAM, "asyncio", NO_COLOR="1")
    codes = {
        int(number)
        for found in re.findall(r"\x1b\[([\d;]*)m", shown)
        for number in found.split(";")
        if number
    }
    assert not codes & {*range(30, 50), *range(90, 108)}
