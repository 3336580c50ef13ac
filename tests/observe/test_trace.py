"""The timeline: what is in it, and that it can be had whole at any time."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    LateResult,
    LateResultDropped,
    Reason,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    report_progress,
    run_batch,
)
from anyio_toolbatch.observe import trace
from anyio_toolbatch.observe.trace import MARKS, TraceRecorder
from anyio_toolbatch.testing import GatedTool

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
tools: Any = importlib.import_module("process_tools")

GOLDEN = Path(__file__).parent / "golden"
LIVENESS = 20.0  # seconds where milliseconds are meant
Checked = Callable[[TraceRecorder], dict[str, Any]]


def hold_against(name: str, found: object) -> None:
    """Compare with a golden file; with UPDATE_GOLDEN set, write it."""
    file = GOLDEN / f"{name}.json"
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


def context(call: ToolCall, index: int, runs_in: str = "loop") -> Any:
    return SimpleNamespace(batch_id="batch-1", index=index, call=call, runs_in=runs_in)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the recorder's clock go on by so many milliseconds."""
    now = [7_000_000_000]

    def go_on(milliseconds: float) -> None:
        now[0] += int(milliseconds * 1e6)

    monkeypatch.setattr(trace, "_clock", lambda: now[0])
    monkeypatch.setattr(trace, "_process_name", lambda: "agent.py")
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("threading.get_native_id", lambda: 2)
    return go_on


def test_a_turn_that_is_interrupted(clock: Callable[[float], None], checked: Checked) -> None:
    """Each phase has its own slice: approval, waiting, running, detached; cuts are marks."""
    done, edit, waiting, crawl = (
        ToolCall(f"id{n}", name) for n, name in enumerate(["read", "edit", "edit", "crawl"])
    )
    recorder = TraceRecorder()
    recorder(BatchStarted("batch-1"))
    clock(5)
    recorder.enter_call(context(done, 0))
    clock(20)
    recorder.leave_call(context(done, 0))
    result = ToolResult(
        *(done, 0, Status.COMPLETED), wait_time=0.005, run_time=0.02, approval_time=0.004
    )
    recorder(CallSettled("batch-1", result))
    recorder.enter_call(context(edit, 1, "thread"))
    recorder.enter_call(context(crawl, 3))
    clock(10)
    recorder(CallProgress("batch-1", crawl, 3, 1, 4, "not to be kept"))
    recorder(CallOutput("batch-1", crawl, 3, "nor this"))
    clock(10)  # the interrupt; it is told a little later, with the rest
    recorder.leave_call(context(crawl, 3))
    clock(1)
    reason = Reason("user_interrupt", "stop button")
    recorder(BatchInterrupted("batch-1", reason))
    cut = {"reason": reason, "wait_time": 0.025, "run_time": 0.02, "detached": True}
    recorder(CallSettled("batch-1", ToolResult(edit, 1, Status.INTERRUPTED, **cut)))
    never = {"reason": reason, "started": False, "wait_time": 0.045}
    recorder(CallSettled("batch-1", ToolResult(waiting, 2, Status.INTERRUPTED, **never)))
    cut["detached"] = False
    recorder(CallSettled("batch-1", ToolResult(crawl, 3, Status.INTERRUPTED, **cut)))
    recorder(BatchSettled("batch-1"))
    clock(100)
    hold_against("detached_still_runs", checked(recorder)["traceEvents"])
    recorder.leave_call(context(edit, 1, "thread"))
    clock(0.25)
    recorder(LateResultDropped("batch-1", LateResult("batch-1", edit, 1, None, None, 0.1)))
    hold_against("interrupted_turn", checked(recorder)["traceEvents"])


@pytest.mark.parametrize("detached", [False, True])
def test_a_loop_with_a_clock_of_its_own(
    detached: bool, clock: Callable[[float], None], checked: Checked
) -> None:
    """Where a test lets hours pass in a moment, a call lies in its batch all the same."""
    call = ToolCall("id", "sleeps")
    recorder = TraceRecorder()
    recorder(BatchStarted("batch-1"))
    clock(1)
    recorder.enter_call(context(call, 0, "thread"))
    clock(1)
    reason = Reason("batch_timeout") if detached else None
    status = Status.TIMED_OUT if detached else Status.COMPLETED
    hours = {"wait_time": 3600.0, "run_time": 7200.0, "detached": detached}
    if reason is not None:
        recorder(BatchInterrupted("batch-1", reason))
    recorder(CallSettled("batch-1", ToolResult(call, 0, status, reason=reason, **hours)))
    recorder(BatchSettled("batch-1"))
    clock(1)
    recorder.leave_call(context(call, 0, "thread"))
    events = checked(recorder)["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] in "bne"]
    assert (min(times), max(times)) == (0, 3000 if detached else 2000)


def tracks_of(events: list[dict[str, Any]]) -> list[Any]:
    """What is in a trace, without times and without the order of what is concurrent."""
    tracks: dict[str, list[Any]] = {}
    marks = []
    for event in events:
        # What a call waited for is there only if somebody looked in time.
        args = {
            key: value
            for key, value in event.get("args", {}).items()
            if key not in {"thread", "waits for"}
        }
        if "id2" in event:
            tracks.setdefault(event["id2"]["local"], []).append(
                (event["ph"], event["name"], args)
            )
        elif event["ph"] in "Xi":
            marks.append((event["ph"], event["name"], args))
    return sorted([*tracks.values(), *([mark] for mark in marks)], key=json.dumps)


def without_ids(found: Any, ids: list[str]) -> Any:
    """Replace the batches' ids, which differ from run to run, by their order."""
    text = json.dumps(found)
    for number, batch_id in enumerate(ids):
        text = text.replace(batch_id, f"batch {number}")
    return sorted(json.loads(text), key=json.dumps)


async def test_the_same_timeline_on_every_backend(checked: Checked) -> None:
    """P9: every carrier, an inner batch, an approval, an interrupt with late ends."""
    deaf = GatedTool(name="deaf")
    holder = GatedTool(name="holder", writes="shelf")
    recorder = TraceRecorder()
    ids: list[str] = []

    async def agent() -> str:
        await runner.run([ToolCall("inner", "quick")])
        return "done"

    async def quick() -> None:
        report_progress(1, 2)

    async def approve(call: ToolCall) -> bool:
        return call.name != "refused"

    def note(event: Any) -> None:
        if isinstance(event, BatchStarted):
            ids.append(event.batch_id)

    runner = ToolRunner(
        {
            "agent": agent,
            "quick": quick,
            "refused": quick,
            "failing": Tool(lambda: 1 / 0, name="failing"),
            "add": Tool(tools.add, runs_in="process"),
            "deaf": deaf.tool,
            "holder": holder.tool,
            "sleeper": Tool(anyio.sleep_forever, name="sleeper"),
            "behind": Tool(quick, name="behind", reads="shelf"),
        },
        observers=[recorder, note],
        approve=approve,
    )
    turn = [
        ToolCall("0", "agent"),
        ToolCall("1", "refused"),
        ToolCall("2", "failing"),
        ToolCall("3", "add", {"a": 1, "b": 2}),
        ToolCall("4", "unknown"),
    ]
    await runner.run(turn)
    cut = [
        ToolCall(str(n), name)
        for n, name in enumerate(["deaf", "holder", "sleeper", "behind"])
    ]
    async with runner.open_batch(cut) as batch:
        await deaf.wait_started()
        await holder.wait_started()
        while sum(e["name"] == "sleeper" for e in recorder.to_dict()["traceEvents"]) == 0:
            await anyio.sleep(0)
        batch.interrupt("enough")
    while runner.statistics().running or len(runner.statistics().detached) > 2:
        await anyio.sleep(0)
    deaf.open()
    while len(runner.statistics().detached) > 1:
        await anyio.sleep(0)
    await runner.run([ToolCall("0", "quick")])
    found = without_ids(tracks_of(checked(recorder)["traceEvents"]), ids)
    holder.open()
    assert await runner.wait_detached(LIVENESS)
    hold_against("every_backend", found)


async def test_a_call_that_waits_says_what_for(checked: Checked) -> None:
    """Waiting is apart from running, and names what was in the way."""
    recorder = TraceRecorder()
    gate = GatedTool(name="edit", writes="shelf")
    runner = ToolRunner([gate.tool], observers=[recorder])
    async with runner.open_batch([ToolCall("0", "edit"), ToolCall("1", "edit")]):
        await gate.wait_started()
        await anyio.sleep(0)
        gate.open()
    events = checked(recorder)["traceEvents"]
    said = [e["args"] for e in events if e["name"] == "waiting" and "args" in e]
    assert said == [{"waits for": "waits for 'shelf', which call 0 (edit) has"}]


async def test_threads_are_rows(checked: Checked) -> None:
    """A worker's row has its name and the calls it was at work for, now too."""
    recorder = TraceRecorder()
    gate = GatedTool(name="park")
    runner = ToolRunner([gate.tool], observers=[recorder])
    async with runner.open_batch([ToolCall("0", "park")]):
        await gate.wait_started()
        (now,) = [e for e in checked(recorder)["traceEvents"] if e["ph"] == "X"]
        gate.open()
    events = checked(recorder)["traceEvents"]
    (then,) = [e for e in events if e["ph"] == "X"]
    assert now["args"].pop("still running") is True
    assert (now["name"], now["ts"], now["tid"], now["args"]) == (
        *(then["name"], then["ts"], then["tid"], then["args"]),
    )
    assert now["tid"] != threading.get_native_id()
    (name,) = [e for e in events if e["name"] == "thread_name"]
    assert name["tid"] == now["tid"] and "worker" in name["args"]["name"]


def test_many_loops_feed_one_recorder(checked: Checked) -> None:
    """From threads with loops of their own, all at once; one clock for all."""
    recorder = TraceRecorder(max_calls=None)
    runners, batches, calls = 4, 10, 5

    async def quick() -> None: ...

    def blocking() -> None: ...

    async def agent(backend: str) -> None:
        runner = ToolRunner([quick, blocking], observers=[recorder])
        for _ in range(batches):
            await runner.run(
                [ToolCall(str(n), "quick" if n % 2 else "blocking") for n in range(calls)]
            )

    threads = [
        threading.Thread(target=anyio.run, args=(agent, b), kwargs={"backend": b})
        for b in ["asyncio", "trio"] * (runners // 2)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        checked(recorder)  # at any moment
    for thread in threads:
        thread.join()
    events = checked(recorder)["traceEvents"]
    count = runners * batches
    names = [e["name"] for e in events if e["ph"] == "b"]
    assert names.count("batch") == count
    assert names.count("running") == names.count("quick") + names.count("blocking")
    assert names.count("quick") + names.count("blocking") == count * calls
    assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events)
    now = max(e["ts"] for e in events if e["ph"] != "M")
    assert events[-1]["name"] == "trace saved" and events[-1]["ts"] == now


@pytest.mark.parametrize(
    "name", ["", "\ud800", "a\x00\n\x1b[31m", "\x9b31m\u202e\u2028", "é" * 500, '"}]']
)
async def test_any_name_can_be_shown(name: str, checked: Checked, tmp_path: Path) -> None:
    """Names come from a model; none of them can spoil the file."""
    recorder = TraceRecorder(capture_content=True)

    async def echo(text: str) -> str:
        report_progress(float("inf"), float("nan"), text)
        report_progress(10**5000, -(10**400), text)
        return text

    await run_batch(
        [ToolCall(name, name, {"text": name})], {name or "x": echo}, observers=[recorder]
    )
    checked(recorder)
    recorder.save(tmp_path / "trace.json")
    json.loads((tmp_path / "trace.json").read_bytes())


async def test_nothing_confidential_unless_asked_for() -> None:
    """Arguments, results and messages are kept only with `capture_content`."""

    async def tell(key: str) -> str:
        report_progress(1, message="secret message")
        return "secret result"

    async def fail(key: str) -> None:
        raise ValueError("secret error")

    calls = [
        ToolCall("0", "tell", {"key": "secret 1"}),
        ToolCall("1", "fail", {"key": "secret 2"}),
    ]
    plain, full = TraceRecorder(), TraceRecorder(capture_content=True)
    await run_batch(calls, [tell, fail], observers=[plain, full])
    assert "secret" not in json.dumps(plain.to_dict())
    text = json.dumps(full.to_dict())
    for word in ("secret 1", "secret result", "secret message", "secret 2", "secret error"):
        assert word in text


async def test_memory_is_bounded(checked: Checked) -> None:
    """P10: the newest calls are kept, and how many were left out is said."""
    recorder = TraceRecorder(max_calls=10)

    async def quick() -> None:
        for n in range(3):
            report_progress(n)

    def blocking() -> None: ...

    runner = ToolRunner([quick, blocking], observers=[recorder])
    for number in range(20):
        await runner.run([ToolCall(f"{number}a", "quick"), ToolCall(f"{number}b", "blocking")])
    found = checked(recorder)
    ids = {e["args"]["id"] for e in found["traceEvents"] if "id" in e.get("args", {})}
    assert ids == {f"{n}{x}" for n in range(15, 20) for x in "ab"}
    assert sum(e["name"] == "batch" and e["ph"] == "b" for e in found["traceEvents"]) == 5
    assert found["otherData"]["calls left out"] == 30
    assert (len(recorder._batches), len(recorder._calls)) == (5, 10)
    assert not recorder._on_thread


async def test_empty_batches_are_bounded_too() -> None:
    """P10: a batch without calls is not kept for ever."""
    recorder = TraceRecorder(max_calls=10)
    runner = ToolRunner([], observers=[recorder])
    for _ in range(2 * trace.EMPTY_BATCHES):
        await runner.run([])
    assert len(recorder._batches) == trace.EMPTY_BATCHES


async def test_a_chatty_call_is_bounded(checked: Checked) -> None:
    """A generator of a million items does not fill the memory."""
    recorder = TraceRecorder()

    async def items() -> Any:
        for n in range(MARKS + 50):
            yield n

    await run_batch([ToolCall("0", "items")], [items], observers=[recorder])
    events = checked(recorder)["traceEvents"]
    assert sum(e["name"] == "output" for e in events) == MARKS
    (call,) = [e for e in events if e["name"] == "items" and e["ph"] == "b"]
    assert call["args"]["marks left out"] == 50


async def test_nothing_of_the_users_is_kept(checked: Checked) -> None:
    """The recorder holds no batch, no call and no result, of a running batch neither."""
    recorder = TraceRecorder(capture_content=True)
    gate = GatedTool(name="park")
    runner = ToolRunner([gate.tool], observers=[recorder])
    async with runner.open_batch([ToolCall("0", "park")]) as batch:
        await gate.wait_started()
        seen: set[int] = set()
        to_see: list[Any] = [vars(recorder)]
        while to_see:
            item = to_see.pop()
            if id(item) not in seen and not isinstance(item, type | ModuleType):
                seen.add(id(item))
                to_see += gc.get_referents(item)
        gate.open()
    assert not {id(batch), id(batch._engine), id(batch.calls[0]), id(runner)} & seen
    checked(recorder)


# -- saving ------------------------------------------------------------------


def test_save_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the old file as it was, and nothing beside it."""
    file = tmp_path / "trace.json"
    recorder = TraceRecorder()
    recorder.save(file)
    before = file.read_bytes()
    recorder(BatchStarted("batch-1"))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        with pytest.raises(OSError, match="No space"):
            recorder.save(file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["trace.json"]
    recorder.save(str(file))
    assert file.read_bytes() != before


def test_save_follows_a_link_and_names_what_is_wrong(tmp_path: Path) -> None:
    """What a user may give as a path, and gets told."""
    recorder = TraceRecorder()
    (tmp_path / "link").symlink_to(tmp_path / "real.json")
    recorder.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real.json").is_file()
    with pytest.raises(FileNotFoundError):
        recorder.save(tmp_path / "no" / "folder.json")
    with pytest.raises(IsADirectoryError):
        recorder.save(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_save_from_a_signal_handler(tmp_path: Path, checked: Checked) -> None:
    """Whoever hangs asks for the timeline by a signal; also in the middle of a note."""
    recorder = TraceRecorder()
    recorder(BatchStarted("batch-1"))
    old = signal.signal(signal.SIGUSR1, lambda *_: recorder.save(tmp_path / "t.json"))
    try:
        with trace._lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_calls": 0}, ValueError),
        ({"max_calls": "x"}, TypeError),
        ({"capture_content": 1}, TypeError),
    ],
)
def test_misuse_is_refused(options: Any, error: type[Exception]) -> None:
    """At once, and not at the end of a session."""
    with pytest.raises(error):
        TraceRecorder(**options)
