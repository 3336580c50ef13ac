"""Claims: which calls run beside each other, and what a detached writer keeps."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    ResourceBusyError,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    open_batch,
    run_batch,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
BUSY = ("failed", "resource_busy", False, False)


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


class Held:
    """Async tools each of whose calls ends when the test lets it; calls go by their ids."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._begun: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._may_end: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    def tool(self, name: str, **options: Any) -> Tool:
        return Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> str:
        call_id = current_call().call.id
        self.started.append(call_id)
        self._begun[call_id].set()
        await self._may_end[call_id].wait()
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
def letting_go(*tools: GatedTool | DeafTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tools: a deaf one would hold the loop's end."""
    try:
        yield
    finally:
        for tool in tools:
            if isinstance(tool, GatedTool):
                tool.open()
            else:
                tool.release()


async def meet(one: Tool, other: Tool) -> bool:
    """Tell whether a second call waits for the first: of two tools of one `Held`."""
    held: Held = one.func.__self__  # type: ignore[attr-defined]
    asked = [ToolCall("first", one.name), ToolCall("second", other.name)]
    asked.append(ToolCall("free", "free"))
    tools = {one.name: one, other.name: other, "free": held.tool("free", writes=Path("/f"))}
    async with ToolRunner(tools) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(asked) as batch:
                # Paths are resolved in order, so the second's are by then.
                await held.wait_started("first", "free")
                found = "second" not in held.started
                held.end("first", "second", "free")
    assert shape(batch.results) == [DONE] * 3
    return found


# -- what a key is -------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "conflicts"),
    [
        ("dir/file", "dir/file", True),
        ("dir/file", "dir/other", False),
        ("dir", "dir/file", True),
        ("dir/file", "dir", True),
        ("dir", "dir-2/file", False),
        ("dir/../dir/file", "dir/file", True),
        ("dir/./file", "dir//file", True),
        ("dir/sub/../file", "dir/file", True),
        ("link/file", "dir/file", True),
        ("link", "dir/file", True),
        ("file-link", "dir/file", True),
        ("file-link", "dir/other", False),
        ("dangling", "nowhere", True),
        ("new/not/yet/there", "new", True),
        (".", "dir/file", True),
    ],
)
async def test_paths_meet_where_they_lead_to_the_same_place(
    first: str, second: str, conflicts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3.2: normalised, links followed; a path conflicts with what is above and below it."""
    (tmp_path / "dir" / "sub").mkdir(parents=True)
    (tmp_path / "dir" / "file").write_text("")
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "file-link").symlink_to(Path("dir") / "file")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    held = Held()
    # One relative, the other absolute.
    one = held.tool("one", writes=Path(first))
    other = held.tool("other", writes=PathLike(f"{tmp_path}/{second}"))
    assert await meet(one, other) is conflicts


class PathLike:
    """A path that is no `Path`, and is left as it was written."""

    def __init__(self, path: str | bytes) -> None:
        self._path = path

    def __fspath__(self) -> Any:
        return self._path


@pytest.mark.parametrize(
    ("one", "other", "conflicts"),
    [
        ({"writes": "/srv/a"}, {"writes": "/srv/a"}, True),
        ({"writes": "/srv"}, {"writes": "/srv/a"}, False),
        ({"writes": "/srv/a"}, {"writes": "/srv/./a"}, False),
        ({"writes": "/srv/a"}, {"writes": Path("/srv/a")}, False),
        ({"writes": Path("/srv/a")}, {"writes": PathLike(b"/srv/a")}, True),
        ({"reads": "a"}, {"reads": "a"}, False),
        ({"reads": "a"}, {"writes": "a"}, True),
        ({"writes": "a"}, {"reads": "a"}, True),
        ({"reads": Path("/srv")}, {"reads": Path("/srv/a")}, False),
        ({"reads": Path("/srv")}, {"writes": Path("/srv/a")}, True),
        ({"writes": Path("/srv/a")}, {"reads": Path("/srv")}, True),
        ({"writes": ["a", "b"]}, {"writes": ["c", "b"]}, True),
        ({"writes": ["a", "b"]}, {"reads": ["c", "d"], "writes": "e"}, False),
        ({"reads": "a", "writes": "a"}, {"reads": "a"}, True),
        ({"writes": ()}, {"writes": "a"}, False),
        ({"writes": ""}, {"writes": ""}, True),
        ({"writes": lambda: iter(["a"])}, {"writes": lambda: "a"}, True),
        ({"writes": {"a", "b"}}, {"writes": "b"}, True),
    ],
    ids=repr,
)
async def test_which_claims_conflict(one: Any, other: Any, conflicts: bool) -> None:
    """§3.2: a str is compared as it is and is no path; reads go together, writes alone."""
    held = Held()
    assert await meet(held.tool("one", **one), held.tool("other", **other)) is conflicts


@pytest.mark.skipif(sys.platform == "win32", reason="names are bytes on POSIX only")
async def test_names_that_are_no_text_can_be_claimed(tmp_path: Path) -> None:
    """§3.2: a path is what the system calls a path, whatever its bytes."""
    held = Held()
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    one = held.tool("one", writes=PathLike(path))
    other = held.tool("other", writes=PathLike(os.fsdecode(path)))
    assert await meet(one, other)


def broken() -> str:
    raise LookupError("no such record")


@pytest.mark.parametrize("option", ["reads", "writes"])
@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (broken, LookupError),
        (lambda: None, TypeError),
        (lambda: 3, TypeError),
        (lambda: ["a", 3], TypeError),
        (lambda: b"bytes", TypeError),
        (lambda _missing: "a", TypeError),
        (lambda: PathLike("a\0b/c"), ValueError),
        (lambda: PathLike("a/b\0c"), ValueError),
        (lambda: PathLike(3), TypeError),  # type: ignore[arg-type]
    ],
    ids=[
        "raises",
        "None",
        "int",
        "int among keys",
        "bytes",
        "signature",
        "NUL",
        "NUL in its name",
        "no path",
    ],
)
async def test_keys_that_cannot_be_found_out_fail_their_call(
    option: str, keys: Any, error: type[BaseException], promises: PromiseObserver
) -> None:
    """§3.2: failed, never started, with the cause; its siblings are unharmed."""
    held = Held()
    options: dict[str, Any] = {option: keys}
    tools = [held.tool("bad", **options), held.tool("good", writes=Path("/a"))]
    held.end("0", "1", "2")
    asked = [ToolCall("0", "good"), ToolCall("1", "bad"), ToolCall("2", "good")]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            async with runner.open_batch(asked, fail_fast=True) as batch:
                pass
    assert shape(batch.results) == [DONE, ("failed", None, False, False), DONE]
    bad = batch.results[1]
    assert isinstance(bad.error, error)
    assert error.__name__ in bad.text
    assert "not started" in bad.text
    assert held.started == ["0", "2"]
    promises.check(batch.id, batch.results)


async def test_a_key_function_is_called_as_the_tool_will_be(promises: PromiseObserver) -> None:
    """§3.2: with what `validate` has made of the arguments, and once a call."""
    seen: list[Any] = []

    def keys(**arguments: Any) -> str:
        seen.append(arguments)
        return "a"

    async def tool(**arguments: Any) -> Any:
        return arguments

    made = Tool(tool, writes=keys, validate=lambda _: {"made": 1})
    results = await run_batch([ToolCall("0", "tool", {"x": 2})], [made], observers=[promises])
    assert (seen, results[0].value) == ([{"made": 1}], {"made": 1})


class OddStr(str):
    """A key that compares and hashes in a way of its own: not at all."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise LookupError("hash")

    def __eq__(self, other: object) -> bool:
        raise LookupError("eq")


@pytest.mark.parametrize("option", ["reads", "writes"])
@pytest.mark.parametrize("how", ["given", "one", "among others"])
async def test_a_key_of_a_subclass_of_str_is_the_text_that_it_holds(
    option: str, how: str
) -> None:
    """§3.2: compared as a plain str, and nothing of its own is called."""
    keys: Any = {
        "given": OddStr("k"),
        "one": lambda: OddStr("k"),
        "among others": lambda: ["a", OddStr("k"), Path("/p")],
    }[how]
    options: dict[str, Any] = {option: keys}
    held = Held()
    assert await meet(held.tool("one", **options), held.tool("other", writes="k"))


@pytest.mark.parametrize("where", ["key function", "validate"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"0": ["a", "b"]},
        {"0": ["a"], "1": ["b"]},
        {"0": ["a", "b"], "a": ["c"]},
    ],
    ids=["by one", "by two", "by one of those"],
)
async def test_calls_that_are_submitted_while_others_are_looked_at(
    where: str, together: bool, more: dict[str, list[str]], promises: PromiseObserver
) -> None:
    """§4.7: by a key function or a `validate`: conflicting calls start in call order."""
    held = Held()
    batches: list[ToolBatch] = []

    def look(call_id: str) -> None:
        for other in more.get(call_id, []):
            batches[0].submit(ToolCall(other, "write", {"name": other}))

    def keys(name: str) -> str:
        if where == "key function":
            look(name)
        return "k"

    def validate(call: ToolCall) -> None:
        if where == "validate":
            look(call.id)

    tool = held.tool("write", writes=keys, validate=validate)
    asked = [ToolCall(str(n), "write", {"name": str(n)}) for n in range(3)]
    held.end("0", "1", "2", "a", "b", "c")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as runner:
            async with runner.open_batch() as batch:
                batches.append(batch)
                if together:
                    batch._engine.submit(asked)
                else:
                    for call in asked:
                        batch.submit(call)
    order = [call.id for call in batch.calls]
    assert set(order) == {"0", "1", "2"}.union(*more.values())
    assert held.started == order
    assert shape(batch.results) == [DONE] * len(order)
    promises.check(batch.id, batch.results)


class DeadPath:
    """A path on a disk that gives no answer until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self._answers = threading.Event()

    def __fspath__(self) -> str:
        self.asked += 1
        assert self._answers.wait(LIVENESS)
        return "/dead"

    def let_go(self) -> None:
        self._answers.set()


async def until(condition: Callable[[], bool]) -> None:
    """Pass the loop on until something has happened that nobody tells of."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


async def test_dead_disks_hold_up_nobody_else(promises: PromiseObserver) -> None:
    """§3.2, P2: each turn that met one was interrupted; later turns of all runners are served."""
    dead = DeadPath()
    tools = [
        Tool(lambda: "ran", name="dead", writes=dead),
        Tool(lambda: "ran", name="alive", writes=Path("/alive")),
        Tool(lambda: "ran", name="plain"),
    ]
    refused = ("failed", "too_many_detached", False, False)
    try:
        async with (
            ToolRunner(tools, max_detached=6, observers=[promises]) as runner,
            ToolRunner(tools, observers=[promises]) as other,
        ):
            for n in range(1, 7):  # there are four threads for this on one loop
                with anyio.fail_after(LIVENESS / 2):
                    assert shape(await runner.run([ToolCall("a", "alive")])) == [DONE]
                    assert shape(await other.run([ToolCall("a", "alive")])) == [DONE]
                    async with runner.open_batch([ToolCall(f"dead {n}", "dead")]) as batch:
                        await until(lambda asked=n: dead.asked == asked)  # type: ignore[misc]
                        batch.interrupt()
                assert shape(batch.results) == [
                    ("interrupted", "user_interrupt", False, False)
                ]
                left = [f"dead {i}" for i in range(1, n + 1)]
                await until(
                    lambda left=left: (  # type: ignore[misc]
                        [d.call.id for d in runner.statistics().detached] == left
                    )
                )
            # Now there are too many of them, and the next is not begun with.
            with anyio.fail_after(LIVENESS / 2):
                asked = [ToolCall("d", "dead"), ToolCall("a", "alive"), ToolCall("p", "plain")]
                assert shape(await runner.run(asked)) == [refused] * 3
                assert dead.asked == 6
                assert shape(await other.run([ToolCall("a", "alive")])) == [DONE]
                assert other.statistics().detached == ()
            dead.let_go()
            await until(lambda: runner.statistics().detached == ())
            with anyio.fail_after(LIVENESS / 2):
                assert shape(await runner.run(asked)) == [DONE] * 3
    finally:
        dead.let_go()


async def test_who_waits_for_detached_work_hears_of_the_end_of_a_dead_disk() -> None:
    """§4.5: what is counted as detached is waited for, and no longer than it lasts."""
    dead = DeadPath()
    try:
        async with ToolRunner([Tool(lambda: "ran", name="dead", writes=dead)]) as runner:
            async with runner.open_batch([ToolCall("d", "dead")]) as batch:
                await until(lambda: dead.asked == 1)
                batch.interrupt()
            await until(lambda: len(runner.statistics().detached) == 1)
            with anyio.fail_after(LIVENESS / 8):
                async with anyio.create_task_group() as group:
                    group.start_soon(runner.wait_detached)
                    await anyio.wait_all_tasks_blocked()
                    dead.let_go()
    finally:
        dead.let_go()


# -- across batches ------------------------------------------------------------


@pytest.mark.parametrize("key", [str, Path])
@pytest.mark.parametrize("of", ["one runner", "run_batch"])
async def test_claims_hold_between_batches_in_submit_order(
    of: str, key: Any, promises: PromiseObserver
) -> None:
    """§4.8: one table for all batches of a runner; one for all of the module's functions."""
    held = Held()
    tool = held.tool("write", writes=key("/a"))
    runner = ToolRunner([tool], observers=[promises])
    found: list[ToolResult] = []

    async def turn(call_id: str) -> None:
        asked = [ToolCall(call_id, "write")]
        if of == "run_batch":
            found.extend(await run_batch(asked, [tool]))
        else:
            found.extend(await runner.run(asked))

    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            for n in range(4):
                group.start_soon(turn, str(n))
                await anyio.wait_all_tasks_blocked()
            for n in range(4):
                await held.wait_started(str(n))
                assert held.started == [str(i) for i in range(n + 1)]
                held.end(str(n))
    assert shape(found) == [DONE] * 4


async def test_two_runners_do_not_share_claims(promises: PromiseObserver) -> None:
    """§4.8: claims are a runner's own; another runner knows nothing of them."""
    held = Held()
    tool = held.tool("write", writes="a")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as one, ToolRunner([tool]) as two:
            async with one.open_batch([ToolCall("1", "write")]):
                async with two.open_batch([ToolCall("2", "write")]):
                    await held.wait_started("1", "2")
                    held.end("1", "2")


async def test_a_tools_cap_holds_across_batches(promises: PromiseObserver) -> None:
    """§3.2: `max_concurrency` of a tool counts its running calls, whosoever they are."""
    held = Held()
    tool = held.tool("capped", max_concurrency=2)
    async with ToolRunner([tool, held.tool("free")], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as one, runner.open_batch() as other:
                one.submit(ToolCall("0", "capped"))
                other.submit(ToolCall("1", "capped"))
                one.submit(ToolCall("2", "capped"))
                other.submit(ToolCall("3", "capped"))
                other.submit(ToolCall("f", "free"))
                await held.wait_started("0", "1", "f")
                assert sorted(held.started) == ["0", "1", "f"]
                kinds = [w.kind for w in runner.statistics().waiting_calls]
                assert kinds == ["place", "place"]
                held.end("1")
                await held.wait_started("2")
                assert "3" not in held.started
                held.end("0", "2", "3", "f")
    assert shape(one.results + other.results) == [DONE] * 5


@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_a_call_without_a_slot_does_not_count(
    carrier: str, promises: PromiseObserver
) -> None:
    """§3.2: `needs_slot=False` neither waits for a slot nor takes one."""
    gate = GatedTool("gated", needs_slot=False)
    held = Held()
    free = gate.tool if carrier == "thread" else held.tool("gated", needs_slot=False)
    with letting_go(gate):
        async with ToolRunner(
            [free, held.tool("slotted")], max_concurrency=1, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    batch.submit(ToolCall("s1", "slotted"))
                    for n in range(3):
                        batch.submit(ToolCall(f"free {n}", "gated"))
                    batch.submit(ToolCall("s2", "slotted"))
                    await held.wait_started("s1")
                    if carrier == "thread":
                        await gate.wait_started(3)
                    else:
                        await held.wait_started("free 0", "free 1", "free 2")
                    assert "s2" not in held.started
                    held.end("s1")
                    await held.wait_started("s2")  # though three others run
                    held.end("s2", "free 0", "free 1", "free 2")
                    gate.open()
    assert shape(batch.results) == [DONE] * 5


# -- barriers ------------------------------------------------------------------


async def test_a_barrier_counts_for_calls_that_come_later(promises: PromiseObserver) -> None:
    """§4.7: what is submitted while it runs, or waits, runs after it; in call order."""
    held = Held()
    tools = [held.tool("plain"), held.tool("alone", exclusive=True)]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch, runner.open_batch() as other:
                batch.submit(ToolCall("p1", "plain"))
                await held.wait_started("p1")  # it ran before there was a barrier
                batch.submit(ToolCall("e1", "alone"))
                batch.submit(ToolCall("p2", "plain"))
                batch.submit(ToolCall("e2", "alone"))
                await anyio.wait_all_tasks_blocked()
                assert held.started == ["p1"]
                held.end("p1")
                await held.wait_started("e1")
                batch.submit(ToolCall("p3", "plain"))
                other.submit(ToolCall("o", "plain"))  # a barrier is within its batch
                await held.wait_started("o")
                assert held.started == ["p1", "e1", "o"]
                held.end("e1", "o")
                await held.wait_started("p2")
                assert held.started[3:] == ["p2"]
                held.end("p2")
                await held.wait_started("e2")
                assert held.started[4:] == ["e2"]
                held.end("e2")
                await held.wait_started("p3")
                held.end("p3")
    assert shape(batch.results) == [DONE] * 5
    promises.check(batch.id, batch.results)


# -- detached writers ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["thread", "deaf"])
@pytest.mark.parametrize("later", ["reads", "writes"])
async def test_a_detached_writer_keeps_what_it_writes(
    kind: str, later: str, promises: PromiseObserver
) -> None:
    """§4.8: refused as busy, naming the holder; works again once the work has ended."""
    gate, deaf = GatedTool("slow", writes="a"), DeafTool("slow", writes="a")
    options: dict[str, Any] = {later: "a"}
    quick = Tool(lambda: "ran", name="quick", **options)
    slow = gate.tool if kind == "thread" else deaf.tool
    with letting_go(gate, deaf):
        async with ToolRunner(
            [slow, quick], cleanup_grace=0.05, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch([ToolCall("holder", "slow")]) as batch:
                    if kind == "thread":
                        await gate.wait_started()
                    else:
                        await anyio.wait_all_tasks_blocked()
                    batch.interrupt()
                assert shape(batch.results) == [CUT]
                texts = set()
                for _ in range(2):
                    (refused,) = await runner.run([ToolCall("q", "quick")])
                    assert shape([refused]) == [BUSY]
                    assert isinstance(refused.error, ResourceBusyError)
                    assert "'holder'" in refused.text and "slow" in refused.text
                    texts.add(refused.text)
                assert len(texts) == 1  # equal outcomes give equal bytes
                gate.open()
                deaf.release()
                assert await runner.wait_detached(LIVENESS)
                assert shape(await runner.run([ToolCall("q", "quick")])) == [DONE]


async def test_a_detached_reader_keeps_nothing(promises: PromiseObserver) -> None:
    """§4.8: only write claims stay; what it read is free at once."""
    gate = GatedTool("slow", reads=["a", "b"], writes="b")
    quick = Tool(lambda: "ran", name="quick", writes="a")
    with letting_go(gate):
        async with ToolRunner([gate.tool, quick], observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch([ToolCall("holder", "slow")]) as batch:
                    await gate.wait_started()
                    batch.interrupt()
                assert shape(await runner.run([ToolCall("q", "quick")])) == [DONE]
                assert gate.ended == 0
                gate.open()
                assert await runner.wait_detached(LIVENESS)


async def test_who_waits_for_a_detached_writer_gets_in_when_it_ends_in_time(
    promises: PromiseObserver,
) -> None:
    """§4.8: it waits at most the grace, not at least."""
    gate = GatedTool("slow", writes="a")
    quick = Tool(lambda: "ran", name="quick", writes="a")
    with letting_go(gate):
        async with ToolRunner(
            [gate.tool, quick], cleanup_grace=LIVENESS, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS / 2):
                async with (
                    runner.open_batch([ToolCall("holder", "slow")]) as first,
                    runner.open_batch() as second,
                ):
                    await gate.wait_started()
                    handle = second.submit(ToolCall("q", "quick"))
                    first.interrupt()
                    await first.wait()
                    assert "(detached)" in handle.explain()
                    gate.open()
                assert shape(second.results) == [DONE]


async def test_the_module_functions_share_detached_writers_too(
    promises: PromiseObserver,
) -> None:
    """§4.8: a later `run_batch` meets what an earlier one has let go."""
    gate = GatedTool("slow", writes="a")
    quick = Tool(lambda: "ran", name="quick", writes="a")
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with open_batch([ToolCall("holder", "slow")], [gate.tool]) as batch:
            await gate.wait_started()
            batch.interrupt()
        results = await run_batch(
            [ToolCall("q", "quick")], [quick], cleanup_grace=0.05, observers=[promises]
        )
        assert shape(results) == [BUSY]
        gate.open()
        await gate.wait_ended()


async def test_a_timed_out_exclusive_call_blocks_the_rest_of_its_batch(
    promises: PromiseObserver,
) -> None:
    """§4.8: it counts as a detached writer for its batch; other batches go on."""
    gate = GatedTool("alone", exclusive=True, timeout=0.05)
    quick = Tool(lambda: "ran", name="quick")
    asked = [ToolCall("0", "alone"), ToolCall("1", "quick")]
    with letting_go(gate):
        async with ToolRunner(
            [gate.tool, quick], cleanup_grace=0.05, observers=[promises]
        ) as runner:
            with anyio.fail_after(LIVENESS):
                results = await runner.run(asked)
                assert shape(results) == [("timed_out", "call_timeout", True, True), BUSY]
                assert shape(await runner.run([ToolCall("2", "quick")])) == [DONE]
                gate.open()
                assert await runner.wait_detached(LIVENESS)
