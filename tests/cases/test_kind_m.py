"""Cases M: parallel writes, and order that only the model knows of."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import Status, Tool, ToolCall, ToolResult, ToolRunner, current_call
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Held:
    """Async tools each of whose calls ends when the test lets it; calls go by their ids."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    def tool(self, name: str, **options: Any) -> Tool:
        return Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> str:
        call_id = current_call().call.id
        self.started.append(call_id)
        self._begun[call_id].set()
        await self._may_end[call_id].wait()
        self.ended.append(call_id)
        return call_id

    async def wait_started(self, *ids: str) -> None:
        with anyio.fail_after(LIVENESS):
            for call_id in ids:
                await self._begun[call_id].wait()
            await anyio.wait_all_tasks_blocked()

    def end(self, *ids: str) -> None:
        for call_id in ids:
            self._may_end[call_id].set()


@contextlib.contextmanager
def letting_go(*gates: GatedTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tools."""
    try:
        yield
    finally:
        for gate in gates:
            gate.open()


def edit(call_id: str, path: object) -> ToolCall:
    return ToolCall(call_id, "edit", {"path": str(path)})


# -- M1 ------------------------------------------------------------------------


@pytest.mark.parametrize("key", [str, Path])
async def test_m1_two_edits_of_one_file_follow_each_other(
    key: Any, promises: PromiseObserver
) -> None:
    """M1, §4.7: same key: one after the other, in call order; another key: beside them."""
    held = Held()
    tool = held.tool("edit", writes=lambda path: key(path))
    async with ToolRunner([tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [edit("a1", "/a"), edit("a2", "/a"), edit("b", "/b")]
            ) as batch:
                await held.wait_started("a1", "b")
                assert sorted(held.started) == ["a1", "b"]
                (waiting,) = runner.statistics().waiting_calls
                assert (waiting.call.id, waiting.kind) == ("a2", "claim")
                held.end("b")
                await anyio.wait_all_tasks_blocked()
                assert "a2" not in held.started
                held.end("a1")
                await held.wait_started("a2")
                held.end("a2")
    assert shape(batch.results) == [DONE] * 3
    assert held.ended == ["b", "a1", "a2"]
    promises.check(batch.id, batch.results)


async def test_m1_no_update_is_lost(tmp_path: Path, promises: PromiseObserver) -> None:
    """M1, §4.8: each blocking edit of one file meets the file as the one before left it."""
    file = tmp_path / "file"
    file.write_text("")
    inside = threading.Lock()

    def append(line: str) -> str:
        assert inside.acquire(blocking=False), "two edits at once"
        try:
            before = file.read_text()
            file.write_text(f"{before}{line}\n")
        finally:
            inside.release()
        return f"added {line}"

    tool = Tool(append, writes=lambda line: file)
    lines = [str(n) for n in range(30)]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as runner:
            results = await runner.run([ToolCall(n, "append", {"line": n}) for n in lines])
    assert shape(results) == [DONE] * 30
    assert file.read_text().split() == lines  # in call order, too


# -- M2 ------------------------------------------------------------------------


async def test_m2_a_stop_in_mid_write_lets_nobody_else_in(
    tmp_path: Path, promises: PromiseObserver
) -> None:
    """M2, §4.8, P4: what waits is not started; other batches wait for the writer's true end."""
    gate = GatedTool("edit", writes=lambda path: Path(path))
    file = tmp_path / "file"
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gate.tool], cleanup_grace=LIVENESS, observers=[promises]
        ) as runner:
            async with (
                runner.open_batch([edit("a1", file), edit("a2", file)]) as first,
                runner.open_batch() as second,
                runner.open_batch() as third,
            ):
                await gate.wait_started()
                handles = [
                    batch.submit(edit(call_id, file))
                    for batch, call_id in (
                        (second, "b1"),
                        (second, "b2"),
                        (third, "c1"),
                        (third, "c2"),
                    )
                ]
                first.interrupt()
                assert shape(await first.wait()) == [CUT, NOT_STARTED]
                await anyio.wait_all_tasks_blocked()
                assert gate.started == 1  # the file still has its writer
                for number, handle in enumerate(handles, 2):
                    gate.let_through()
                    await gate.wait_started(number)
                    assert gate.started == number == gate.ended + 1
                    assert handle.result is None
                gate.let_through()
            assert shape(second.results + third.results) == [DONE] * 4
        assert gate.started == gate.ended == 5


# -- M4 ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_m4_approval_says_nothing_about_conflicts(
    kind: str, promises: PromiseObserver
) -> None:
    """M4, §4.7: two edits that are approved at once still run one after the other."""
    held = Held()
    asked: list[str] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        return True

    async def approve_async(call: ToolCall) -> bool:
        return approve(call)

    async with ToolRunner(
        [held.tool("edit", writes=lambda path: path)],
        approve=approve if kind == "sync" else approve_async,
        observers=[promises],
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [edit("1", "a"), edit("2", "a"), edit("3", "b")]
            ) as batch:
                await held.wait_started("1", "3")
                assert asked == ["1", "2", "3"]
                assert sorted(held.started) == ["1", "3"]
                held.end("1", "2", "3")
    assert shape(batch.results) == [DONE] * 3
    assert held.started.index("1") < held.started.index("2")
    promises.check(batch.id, batch.results)


# -- M5 ------------------------------------------------------------------------


async def test_m5_an_exclusive_call_is_a_barrier_in_call_order(
    promises: PromiseObserver,
) -> None:
    """M5, §4.7: earlier calls end first, later ones wait; so a review sees what was written."""
    held = Held()
    tools = [held.tool("read"), held.tool("write", exclusive=True)]
    names = ["read", "read", "write", "read", "read"]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall(str(i), name) for i, name in enumerate(names)]
            ) as batch:
                await held.wait_started("0", "1")
                held.end("0")
                await anyio.wait_all_tasks_blocked()
                assert sorted(held.started) == ["0", "1"]
                held.end("1")
                await held.wait_started("2")
                assert held.started[2:] == ["2"]
                held.end("2")
                await held.wait_started("3", "4")
                held.end("3", "4")
    assert shape(batch.results) == [DONE] * 5
    promises.check(batch.id, batch.results)


async def test_m5_blocking_review_after_a_blocking_write(tmp_path: Path) -> None:
    """M5, §4.7: the same in threads: the folder's review finds the file."""

    def write(path: str) -> str:
        Path(path).write_text("new")
        return "written"

    def review(folder: str) -> list[str]:
        return [path.name for path in Path(folder).iterdir()]

    tools = [Tool(write, exclusive=True), review]
    for _ in range(20):
        results = await ToolRunner(tools).run(
            [
                ToolCall("1", "write", {"path": str(tmp_path / "file")}),
                ToolCall("2", "review", {"folder": str(tmp_path)}),
            ]
        )
        assert [r.value for r in results] == ["written", ["file"]]
        (tmp_path / "file").unlink()


# -- M6 ------------------------------------------------------------------------


@pytest.mark.parametrize("lever", ["exclusive", "keys"])
async def test_m6_reads_go_together_and_a_write_alone(
    lever: str, promises: PromiseObserver
) -> None:
    """M6, §3.2: per tool `exclusive` or per call keys; neither needs a cap of 1 for all."""
    held = Held()
    if lever == "exclusive":
        tools = [held.tool("read"), held.tool("write", exclusive=True)]
    else:
        tools = [
            held.tool("read", reads=lambda record: record),
            held.tool("write", writes=lambda record: record),
        ]
    names = ["read", "read", "write", "read", "read", "read"]
    asked = [ToolCall(str(i), name, {"record": "7"}) for i, name in enumerate(names)]
    asked.append(ToolCall("other", "read", {"record": "8"}))
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(asked) as batch:
                await held.wait_started("0", "1")
                others = [] if lever == "exclusive" else ["other"]
                assert sorted(held.started) == ["0", "1", *others]
                held.end("0", "1")
                await held.wait_started("2")
                assert sorted(held.started) == ["0", "1", "2", *others]
                held.end("2")
                await held.wait_started("3", "4", "5", "other")
                held.end("3", "4", "5", "other")
    assert [r.status for r in batch.results] == [Status.COMPLETED] * 7
    promises.check(batch.id, batch.results)
