"""A tool may run a batch: what its calls borrow, what they ignore, and how they end."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallHandle,
    ResourceBusyError,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)
BUSY = ("failed", "resource_busy", False, False)

CARRIERS = ["loop", "from_thread", "own loop", "runs_in"]


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


def carried(
    carrier: str, func: Callable[[], Awaitable[Any]], backend: str, **options: Any
) -> Tool:
    """Return a tool that runs the async function in one of the ways there are."""
    name = options.pop("name", "outer")
    match carrier:
        case "loop":
            return Tool(func, name=name, **options)
        case "from_thread":
            return Tool(lambda: from_thread.run(func), name=name, **options)
        case "own loop":
            return Tool(lambda: anyio.run(func, backend=backend), name=name, **options)
        case _:
            return Tool(func, name=name, runs_in="thread", **options)


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


async def happens(event: threading.Event) -> None:
    """Wait, on the loop, for what a worker thread does."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


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


# -- places --------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("limit", ["max_concurrency", "max_threads", "tool's cap"])
async def test_no_self_deadlock_at_cap_1_and_depth_5(
    carrier: str, limit: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.9: a call's own slot, thread and same-tool slot are lent, at any depth."""
    depth = {"now": 0}

    async def outer() -> Any:
        depth["now"] += 1
        names = ["outer", "leaf"] if depth["now"] < 5 else ["leaf", "leaf"]
        return [r.unwrap() for r in await runner.run(calls(*names))]

    options: dict[str, Any] = {"max_concurrency": 1} if limit == "tool's cap" else {}
    limits: dict[str, Any] = {} if limit == "tool's cap" else {limit: 1}
    leaf = Tool(lambda: "leaf", name="leaf", **options)
    tool = carried(carrier, outer, anyio_backend_name, **options)
    expected: Any = ["leaf", "leaf"]
    for _ in range(4):
        expected = [expected, "leaf"]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool, leaf], observers=[promises], **limits) as runner:
            results = await runner.run(calls("outer", "leaf"))
            assert [r.unwrap() for r in results] == [expected, "leaf"]
            # Every place has come back.
            depth["now"] = 4
            results = await runner.run(calls("outer", "leaf"))
            assert [r.unwrap() for r in results] == [["leaf", "leaf"], "leaf"]


async def test_a_lent_place_is_one_place(promises: PromiseObserver) -> None:
    """§4.9: inner calls run one at a time on it; the cap holds for those that work."""
    held = Held()

    async def outer() -> str:
        await runner.run([ToolCall(f"leaf {n}", "leaf") for n in range(3)])
        return "outer"

    tools = [Tool(outer), held.tool("leaf")]
    async with ToolRunner(tools, max_concurrency=1, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("outer", "leaf")) as batch:
                for n in range(3):
                    await held.wait_started(f"leaf {n}")
                    assert held.started == [f"leaf {i}" for i in range(n + 1)]
                    held.end(f"leaf {n}")
                await held.wait_started("id-1")
                held.end("id-1")
    assert shape(batch.results) == [DONE, DONE]


async def test_an_outer_call_that_ends_first_leaves_its_place_to_who_has_it(
    promises: PromiseObserver,
) -> None:
    """§4.9: a lent place is free again only when the borrower has ended, too."""
    held = Held()

    async def outer() -> str:
        group.start_soon(runner.run, [ToolCall("leaf", "leaf")])
        await held.wait_started("leaf")
        return "outer"

    tools = [Tool(outer), held.tool("leaf")]
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            async with ToolRunner(
                tools, max_concurrency=1, close_timeout=LIVENESS, observers=[promises]
            ) as runner:
                async with runner.open_batch() as batch:
                    assert (await batch.submit(ToolCall("0", "outer")).wait()).value == "outer"
                    batch.submit(ToolCall("next", "leaf"))
                    await anyio.wait_all_tasks_blocked()
                    assert held.started == ["leaf"]
                    held.end("leaf")
                    await held.wait_started("next")
                    held.end("next")
    assert shape(batch.results) == [DONE, DONE]


@pytest.mark.parametrize("carrier", ["loop", "from_thread"])
@pytest.mark.parametrize("limit", ["max_concurrency", "max_threads"])
async def test_a_family_that_was_let_go_holds_no_place(
    carrier: str, limit: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.5, §4.9: outer and inner are both deaf: the next turn is served at once."""
    leaf = GatedTool("leaf")

    async def outer() -> Any:
        with anyio.CancelScope(shield=True):
            return [r.unwrap() for r in await runner.run(calls("leaf", "leaf"))]

    limits: dict[str, Any] = {limit: 1}
    tools = [
        carried(carrier, outer, anyio_backend_name),
        leaf.tool,
        Tool(lambda: "ran", name="quick"),
    ]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises], **limits) as runner:
            with anyio.fail_after(LIVENESS):
                for turn in range(1, 4):
                    async with runner.open_batch(calls("outer", "outer")) as batch:
                        await leaf.wait_started(turn)
                        batch.interrupt()
                    # One on the loop needs no thread.
                    both_run = (carrier, limit) == ("loop", "max_threads")
                    second = CUT if both_run else NOT_STARTED
                    assert shape(batch.results) == [CUT, second]
                    assert shape(await runner.run(calls("quick", "quick"))) == [DONE, DONE]
                    assert (leaf.started, leaf.ended) == (turn, 0)
                leaf.open()
                assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().running == 0


# -- claims --------------------------------------------------------------------


@pytest.mark.parametrize("of_outer", ["writes", "exclusive", "both", "grandparent"])
async def test_inner_calls_ignore_what_their_own_ancestors_hold(
    of_outer: str, promises: PromiseObserver
) -> None:
    """§4.9: claims and barriers of the family are no obstacle; order among them stays."""
    held = Held()
    options: dict[str, Any] = {
        "writes": {"writes": "a"},
        "exclusive": {"exclusive": True},
        "both": {"writes": "a", "exclusive": True},
        "grandparent": {"writes": "a"},
    }[of_outer]

    async def outer() -> str:
        if of_outer == "grandparent":
            await runner.run(calls("middle"))
        else:
            await middle()
        return "outer"

    async def middle() -> str:
        await runner.run([ToolCall("1", "write"), ToolCall("2", "write")])
        return "middle"

    tools = [Tool(outer, **options), Tool(middle, reads="a"), held.tool("write", writes="a")]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("0", "outer"))
                await anyio.wait_all_tasks_blocked()
                # A stranger that waits for the outer call is not waited for.
                stranger = batch.submit(ToolCall("stranger", "write"))
                await held.wait_started("1")
                assert held.started == ["1"]
                held.end("1")
                await held.wait_started("2")
                assert stranger.result is None
                assert "stranger" not in held.started
                held.end("2")
                await held.wait_started("stranger")
                held.end("stranger")
    assert shape(batch.results) == [DONE, DONE]


async def test_inner_calls_wait_for_what_runs_outside_their_family(
    promises: PromiseObserver,
) -> None:
    """§4.9: a claim of the runner holds for them as for everybody."""
    held = Held()

    async def outer() -> list[str]:
        return [r.unwrap() for r in await runner.run([ToolCall("inner", "write")])]

    tools = [Tool(outer), held.tool("write", writes="a")]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                batch.submit(ToolCall("stranger", "write"))
                await held.wait_started("stranger")
                batch.submit(ToolCall("0", "outer"))
                await anyio.wait_all_tasks_blocked()
                assert held.started == ["stranger"]
                held.end("stranger")
                await held.wait_started("inner")
                held.end("inner")
    assert [r.value for r in batch.results] == ["stranger", ["inner"]]


@pytest.mark.parametrize("of_x", ["claim", "tool's cap"])
@pytest.mark.parametrize("of_y", ["claim", "tool's cap"])
async def test_a_circle_of_waits_is_refused_at_once(
    of_x: str, of_y: str, promises: PromiseObserver
) -> None:
    """§4.9: two families that would wait for each other: one call fails as busy, all end."""
    both = anyio.Event()
    begun: list[str] = []
    found: list[ToolResult] = []

    async def work(needs: str | None = None) -> str:
        if needs is None:
            return "leaf"
        begun.append(needs)
        if len(begun) == 2:
            both.set()
        await both.wait()
        found.extend(await runner.run([ToolCall(f"leaf {needs}", needs)]))
        return "family"

    def options(name: str, kind: str) -> dict[str, Any]:
        return {"writes": name} if kind == "claim" else {"max_concurrency": 1}

    # A family is a call of the one tool, its inner call one of the other.
    tools = [
        Tool(work, name="x", **options("x", of_x)),
        Tool(work, name="y", **options("y", of_y)),
    ]
    asked = [ToolCall("a", "x", {"needs": "y"}), ToolCall("b", "y", {"needs": "x"})]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            results = await runner.run(asked)
    assert shape(results) == [DONE, DONE]
    assert sorted(shape(found), key=str) == [DONE, BUSY]
    (refused,) = [r for r in found if not r.started]
    assert isinstance(refused.error, ResourceBusyError)
    assert "waits for it in turn" in refused.text


async def test_a_circle_of_three_families_is_found_as_well(promises: PromiseObserver) -> None:
    """§4.9: the circle may be as long as it likes; one link is enough to break it."""
    all_begun = anyio.Event()
    begun: list[str] = []
    found: list[ToolResult] = []

    async def family(needs: str) -> str:
        begun.append(needs)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        found.extend(await runner.run([ToolCall(needs, "leaf", {"key": needs})]))
        return needs

    async def leaf(key: str) -> str:
        return key

    follows = {"x": "y", "y": "z", "z": "x"}
    tools = [
        Tool(family, writes=lambda needs: {v: k for k, v in follows.items()}[needs]),
        Tool(leaf, writes=lambda key: key),
    ]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, observers=[promises]) as runner:
            results = await runner.run(
                [ToolCall(key, "family", {"needs": follows[key]}) for key in follows]
            )
    assert shape(results) == [DONE] * 3
    assert sorted(shape(found), key=str) == [DONE, DONE, BUSY]


async def test_a_circle_through_a_lent_place_is_found_as_well(
    promises: PromiseObserver,
) -> None:
    """§4.9: a borrower's end frees no place: it falls back to who waits for the other family."""
    held = Held()
    go_on = anyio.Event()
    found: dict[str, ToolResult] = {}

    async def has_slot() -> None:
        async with runner.open_batch() as batch:
            batch.submit(ToolCall("borrower", "plain"))
            await go_on.wait()
            batch.submit(ToolCall("needs x", "write"))
        found.update({r.call.id: r for r in batch.results})

    async def has_x() -> None:
        (result,) = await runner.run([ToolCall("needs slot", "plain")])
        found["needs slot"] = result

    tools = [
        Tool(has_slot),
        Tool(has_x, needs_slot=False, writes="x"),
        held.tool("plain"),
        held.tool("write", writes="x"),
    ]
    async with ToolRunner(tools, max_concurrency=1, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("has_slot", "has_x"), timeout=2.0) as batch:
                await held.wait_started("borrower")
                go_on.set()
                await anyio.wait_all_tasks_blocked()
                held.end("borrower", "needs x", "needs slot")
    assert shape(batch.results) == [DONE, DONE]
    assert shape([found["borrower"]]) == [DONE]
    outcomes = shape([found["needs x"], found["needs slot"]])
    assert sorted(outcomes, key=str) == [DONE, BUSY]


@pytest.mark.parametrize("seed", range(12))
async def test_a_storm_of_families_comes_to_its_end(
    seed: int, promises: PromiseObserver
) -> None:
    """§4.8, §4.9: claims, caps, barriers, cuts and nesting at random: none waits for ever."""
    rnd = random.Random(seed)
    family: ContextVar[tuple[object, ...]] = ContextVar("family", default=())
    holders: defaultdict[str, list[object]] = defaultdict(list)

    async def work(keys: list[str], depth: int, steps: int) -> str:
        me = object()
        for key in keys:
            assert set(holders[key]) <= set(family.get()), "two families write one resource"
            holders[key].append(me)
        family.set((*family.get(), me))
        try:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            if depth:
                await turn(depth - 1)
        finally:
            for key in keys:
                holders[key].remove(me)
        return "ok"

    def work_in_thread(depth: int, **_: Any) -> str:
        if depth:
            from_thread.run(turn, depth - 1)
        return "ok"

    async def turn(depth: int) -> None:
        async with runner.open_batch(timeout=LIVENESS / 2) as batch:
            for _ in range(rnd.randint(1, 4)):
                arguments = {
                    "keys": rnd.sample("abc", rnd.randint(0, 2)),
                    "depth": depth and rnd.choice([0, depth]),
                    "steps": rnd.randint(0, 4),
                }
                batch.submit(ToolCall("x", rnd.choice(tools).name, arguments))
            match rnd.randint(0, 9):
                case 0:
                    batch.interrupt()
                case 1:
                    batch.supersede()
                case 2:
                    batch.cancel("x")
                case _:
                    pass
        kinds = {r.reason.kind for r in batch.results if r.reason is not None}
        assert "batch_timeout" not in kinds

    def keys_of(keys: list[str], **_: Any) -> list[str]:
        return keys

    tools = [
        Tool(work, name="plain", writes=keys_of),
        Tool(work, name="capped", writes=keys_of, max_concurrency=rnd.choice([1, 2])),
        Tool(work, name="free", writes=keys_of, needs_slot=False),
        Tool(work, name="alone", writes=keys_of, exclusive=True),
        Tool(work_in_thread, name="blocking"),
    ]
    async with ToolRunner(
        tools,
        max_concurrency=rnd.choice([None, 1, 2]),
        max_threads=rnd.choice([1, 2]),
        observers=[promises],
    ) as runner:
        with anyio.fail_after(LIVENESS):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(turn, 2)
            assert await runner.wait_detached()
        numbers = runner.statistics()
        assert (numbers.running, numbers.waiting, numbers.detached) == (0, 0, ())
        # And nothing was left behind: all of it is free for the next.
        asked = [{"keys": ["a", "b", "c"], "depth": 0, "steps": 0}] * 5
        results = await runner.run(
            [ToolCall("y", t.name, a) for t, a in zip(tools, asked, strict=True)]
        )
        assert shape(results) == [DONE] * 5


@pytest.mark.parametrize("limit", ["max_concurrency", "max_threads"])
async def test_a_circle_through_two_runners_is_refused_too(limit: str) -> None:
    """§4.9: each family holds the one place that the other needs, of different runners."""
    both = threading.Barrier(2)
    found: list[ToolResult] = []

    def family_in(other: ToolRunner) -> Callable[[], str]:
        async def run() -> str:
            found.extend(await other.run(calls("leaf")))
            return "family"

        def family() -> str:
            both.wait(LIVENESS)
            return from_thread.run(run)

        return family

    leaf = Tool(lambda: "leaf", name="leaf")
    limits: dict[str, Any] = {limit: 1}
    runners: dict[str, ToolRunner] = {}
    tools = {"a": Tool(lambda: family_in(runners["b"])()), "leaf": leaf}
    runners["a"] = ToolRunner(tools, close_timeout=0.0, **limits)
    tools = {"b": Tool(lambda: family_in(runners["a"])()), "leaf": leaf}
    runners["b"] = ToolRunner(tools, close_timeout=0.0, **limits)
    results: list[ToolResult] = []

    async def turn(name: str) -> None:
        # The limit is there to end the test where nothing else does.
        results.extend(await runners[name].run(calls(name), timeout=2.0))

    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(turn, "a")
            group.start_soon(turn, "b")
    assert shape(results) == [DONE, DONE]
    assert sorted(shape(found), key=str) == [DONE, BUSY]


async def test_a_circle_through_runners_that_had_no_lines_yet_is_refused(
    promises: PromiseObserver,
) -> None:
    """§4.9: a thread of the one, a claim of the other; until then neither had to queue."""
    both = threading.Barrier(2)
    found: list[ToolResult] = []

    def blocking() -> str:
        both.wait(LIVENESS)
        return from_thread.run(turn, other, "write", found)

    async def writing() -> str:
        await anyio.to_thread.run_sync(both.wait, LIVENESS)
        return await turn(one, "plain", found)

    async def turn(runner: ToolRunner, name: str, into: list[ToolResult]) -> str:
        # The limit is there to end the test where nothing else does.
        into.extend(await runner.run(calls(name), timeout=LIVENESS / 4))
        return "family"

    one = ToolRunner(
        [blocking, Tool(lambda: "plain", name="plain")],
        max_threads=1,
        close_timeout=0.0,
        observers=[promises],
    )
    tools = [Tool(writing, writes="k"), Tool(lambda: "w", name="write", writes="k")]
    other = ToolRunner(tools, close_timeout=0.0, observers=[promises])
    results: list[ToolResult] = []
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            group.start_soon(turn, one, "blocking", results)
            group.start_soon(turn, other, "writing", results)
    assert shape(results) == [DONE, DONE]
    assert sorted(shape(found), key=str) == [DONE, BUSY]


@pytest.mark.parametrize("carrier", ["own loop", "runs_in"])
async def test_what_another_loop_runs_is_no_part_of_this_loops_lines(
    carrier: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.9, P7: who is looked at for circles is looked at by its own loop only."""
    leaf = GatedTool("leaf", reads="z")

    async def outer() -> list[Any]:
        return [r.unwrap() for r in await runner.run(calls("leaf", "leaf"))]

    async def middle() -> list[Any]:
        return [r.unwrap() for r in await runner.run(calls(*["write"] * 20))]

    async def other_loop(rounds: int) -> None:
        for _ in range(rounds):
            await runner.run(calls("leaf", "leaf"))

    def rounds() -> str:
        anyio.run(other_loop, 30, backend=anyio_backend_name)
        return "rounds"

    tools = [
        carried(carrier, outer, anyio_backend_name, reads="k"),
        Tool(rounds, reads="k"),
        Tool(middle),
        Tool(lambda: "w", name="write", writes="k"),
        leaf.tool,
    ]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch() as batch:
                    outers = [batch.submit(call) for call in calls("outer", "outer")]
                    await leaf.wait_started(4)
                    middles = [batch.submit(call) for call in calls("middle", "middle")]
                    await anyio.wait_all_tasks_blocked()
                    assert {w.kind for w in runner.statistics().waiting_calls} == {"claim"}
                    for handle in outers:
                        entry = batch._engine.records[handle.index].entry
                        assert entry is not None and not entry.inner
                    leaf.open()
                    for handle in middles:
                        assert (await handle.wait()).value == ["w"] * 20
                # And at full speed, with both loops at it all the time.
                results = await runner.run(calls("rounds", "middle", "rounds", "middle") * 2)
    assert [r.value for r in results] == ["rounds", ["w"] * 20] * 4


# -- ends ----------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("kind", ["user_interrupt", "call_cancelled", "sibling_failed"])
async def test_a_cut_of_the_outer_call_reaches_the_inner_batch(
    carrier: str, kind: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.9: with the outer's reason, message and all (timeouts are case T11)."""
    leaf = GatedTool("leaf")
    over = threading.Event()
    inner: list[ToolBatch] = []

    async def outer() -> None:
        try:
            async with runner.open_batch(calls("leaf")) as batch:
                inner.append(batch)
        finally:
            over.set()

    async def fails() -> None:
        await leaf.wait_started()
        raise ValueError("disk full")

    asked = calls("outer", *(["fails"] if kind == "sibling_failed" else []))
    tools = [carried(carrier, outer, anyio_backend_name), leaf.tool, Tool(fails)]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(asked, fail_fast=True) as batch:
                    await leaf.wait_started()
                    match kind:
                        case "user_interrupt":
                            batch.interrupt("enough")
                        case "call_cancelled":
                            batch.cancel("id-0", "enough")
                        case _:
                            pass
                outer_result = batch.results[0]
                assert shape([outer_result]) == [("interrupted", kind, True, True)]
                await happens(over)
                assert shape(inner[0].results) == [("interrupted", kind, True, True)]
                assert inner[0].results[0].reason == outer_result.reason
                assert leaf.ended == 0
                leaf.open()
                assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_the_inner_interrupt_does_not_reach_the_outer(
    carrier: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.9: it is the tool's own affair: outer call and sibling go on."""
    leaf = GatedTool("leaf")

    async def outer() -> list[Any]:
        async with runner.open_batch(calls("leaf")) as batch:
            await leaf.wait_started()
            assert batch.interrupt("inside") is True
        return shape(batch.results)

    tools = [carried(carrier, outer, anyio_backend_name), leaf.tool]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer")) as batch:
                    pass
                assert shape(batch.results) == [DONE]
                assert batch.results[0].value == [CUT]
                assert batch.reason is None
                leaf.open()
                await leaf.wait_ended()


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_kept_outer_call_keeps_its_inner_batch(
    carrier: str, anyio_backend_name: str
) -> None:
    """§4.9: `on_interrupt="keep"`: the inner batch goes on, and may still start calls."""
    leaf = GatedTool("leaf", value="leaf")
    late: list[Any] = []
    landed = anyio.Event()

    def on_late(result: Any) -> None:
        late.append(result.value)
        landed.set()

    async def outer() -> list[Any]:
        async with runner.open_batch() as batch:
            await batch.submit(ToolCall("1", "leaf")).wait()
            batch.submit(ToolCall("2", "leaf"))
        return [r.unwrap() for r in batch.results]

    tools = [carried(carrier, outer, anyio_backend_name, on_interrupt="keep"), leaf.tool]
    with letting_go(leaf):
        async with ToolRunner(tools, on_late=on_late) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer")) as batch:
                    await leaf.wait_started()
                    batch.interrupt()
                assert shape(batch.results) == [CUT]
                assert "goes on in the background" in batch.results[0].text
                leaf.open()
                await landed.wait()
    assert late == [["leaf", "leaf"]]


async def test_a_call_that_is_cancelled_by_name_is_not_kept(promises: PromiseObserver) -> None:
    """§4.9: what is aimed at the call itself reaches its inner batch all the same."""
    leaf = GatedTool("leaf")
    inner: list[ToolBatch] = []
    over = anyio.Event()

    async def outer() -> None:
        try:
            async with runner.open_batch(calls("leaf")) as batch:
                inner.append(batch)
        finally:
            over.set()

    tools = [Tool(outer, on_interrupt="keep"), leaf.tool]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                async with runner.open_batch(calls("outer")) as batch:
                    await leaf.wait_started()
                    batch.cancel("id-0")
                await over.wait()
                assert shape(inner[0].results) == [
                    ("interrupted", "call_cancelled", True, True)
                ]
                leaf.open()
                assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("carrier", ["loop", "from_thread"])
async def test_the_grace_is_the_inner_batchs_grace_too(
    carrier: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """§4.3, §4.9: within it the inner call gives its own answer, nothing new starts."""
    told = threading.Event()
    begun = anyio.Event()

    def leaf() -> str:
        from_thread.run_sync(begun.set)
        assert current_call().cancelled.wait(LIVENESS)
        told.set()
        return "in time"

    inner: list[ToolBatch] = []
    over = threading.Event()

    async def outer() -> None:
        # Shielded: so that it is the inner batch that is told, not its awaiting code.
        with anyio.CancelScope(shield=True):
            async with runner.open_batch(calls("leaf", "leaf")) as batch:
                inner.append(batch)
        over.set()

    tools = [carried(carrier, outer, anyio_backend_name), Tool(leaf, max_concurrency=1)]
    async with ToolRunner(tools, interrupt_grace=LIVENESS, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS / 2):
            async with runner.open_batch(calls("outer")) as batch:
                await begun.wait()
                batch.interrupt()
            await happens(over)
        assert shape(inner[0].results) == [DONE, NOT_STARTED]
        assert inner[0].results[0].value == "in time"
        assert told.is_set()


@pytest.mark.parametrize("on_interrupt", ["cancel", "keep"])
async def test_a_cancel_and_an_interrupt_in_one_breath_leave_no_inner_batch_open(
    on_interrupt: Any, promises: PromiseObserver
) -> None:
    """P1, §4.9: whichever of the two is handled first, what is inside comes to its end."""
    inner: list[ToolBatch] = []
    over = anyio.Event()

    async def outer() -> None:
        with anyio.CancelScope(shield=True):
            await go_on.wait()
            try:
                with anyio.fail_after(LIVENESS / 4):
                    async with runner.open_batch(calls("leaf", "leaf")) as batch:
                        inner.append(batch)
            finally:
                over.set()

    go_on = anyio.Event()
    tools = [Tool(outer, on_interrupt=on_interrupt), Tool(lambda: "leaf", name="leaf")]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                handle = batch.submit(ToolCall("0", "outer"))
                await anyio.wait_all_tasks_blocked()
                assert handle.cancel("not this one") is True
                assert batch.interrupt("nor the others") is True
            go_on.set()
            await over.wait()
    reason = batch.results[0].reason
    assert reason is not None and reason.kind in {"call_cancelled", "user_interrupt"}
    kinds = {r.reason.kind if r.reason else "ran" for r in inner[0].results}
    assert "caller_cancelled" not in kinds  # nobody had to give it up


@pytest.mark.parametrize("carrier", ["own loop", "runs_in"])
async def test_the_reason_reaches_all_depths_in_a_loop_of_its_own(
    carrier: str, anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """P6, §4.9: also where that loop comes to its end as soon as the outermost is cut."""
    leaf = GatedTool("leaf")
    inner: dict[int, ToolBatch] = {}
    ended = [threading.Event(), threading.Event()]

    async def middle(depth: int = 0) -> None:
        asked = [ToolCall("m", "middle", {"depth": 1})] if depth == 0 else calls("leaf")
        try:
            async with runner.open_batch() as batch:
                inner[depth] = batch
                for call in asked:
                    batch.submit(call)
        finally:
            ended[depth].set()

    tools = [carried(carrier, middle, anyio_backend_name), Tool(middle), leaf.tool]
    with letting_go(leaf):
        async with ToolRunner(tools, observers=[promises]) as runner:
            with anyio.fail_after(LIVENESS):
                for turn in range(
                    1, 21
                ):  # which task of that loop comes first is left to chance
                    async with runner.open_batch(calls("outer")) as batch:
                        await leaf.wait_started(turn)
                        batch.interrupt("enough")
                    for event in ended:
                        await happens(event)
                        event.clear()
                    assert shape(batch.results) == [CUT]
                    assert shape(inner[0].results) == [CUT]
                    assert shape(inner[1].results) == [CUT]
                    assert inner[1].results[0].reason == batch.reason
                leaf.open()
                await leaf.wait_ended(20)


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_batch_that_its_call_has_left_behind_goes_on(
    limit: int | None, promises: PromiseObserver
) -> None:
    """§4.9: the call has completed; what cuts its siblings later is nothing to what it left."""
    held = Held()
    inner: list[ToolBatch] = []
    over = anyio.Event()
    may_submit = anyio.Event()

    async def left_behind() -> None:
        async with runner.open_batch() as batch:
            inner.append(batch)
            batch.submit(ToolCall("1", "leaf"))
            batch.submit(ToolCall("2", "leaf"))
            await may_submit.wait()
            batch.submit(ToolCall("3", "leaf"))
        over.set()

    async def starter() -> str:
        group.start_soon(left_behind)
        await held.wait_started("1")
        return "started"

    tools = [
        Tool(starter, needs_slot=False),
        held.tool("long", needs_slot=False),
        held.tool("leaf"),
    ]
    async with ToolRunner(tools, max_concurrency=limit, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS / 2):
            async with anyio.create_task_group() as group:
                async with runner.open_batch() as batch:
                    long = batch.submit(ToolCall("long", "long"))
                    assert (await batch.submit(ToolCall("0", "starter")).wait()).value
                    assert long.result is None
                    batch.interrupt()
                assert shape(batch.results) == [CUT, DONE]
                may_submit.set()
                for call_id in "123":
                    await held.wait_started(call_id)
                    assert not over.is_set()
                    held.end(call_id)
                await over.wait()
    assert shape(inner[0].results) == [DONE] * 3
    promises.check(inner[0].id, inner[0].results)


@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_a_cancel_that_comes_too_late_leaves_no_inner_call_behind(
    carrier: Any, anyio_backend: Any, promises: PromiseObserver
) -> None:
    """P1, §4.9: the call ends by itself before its cancel is handled: its batch goes on."""
    if carrier == "loop" and "loop_factory" not in anyio_backend[1]:
        pytest.skip("the first step of another task can't come in between")  # not eager
    handles: list[CallHandle] = []
    inner: list[ToolBatch] = []

    async def leaf() -> str:
        return "leaf"

    async def left_behind() -> None:
        async with runner.open_batch() as batch:
            inner.append(batch)
            opened.set()
            await go_on.wait()

    async def outer() -> str:
        group.start_soon(left_behind)
        await opened.wait()
        assert handles[0].cancel() is True
        inner[0].submit(ToolCall("1", "leaf"))
        if carrier == "thread":
            # The loop is held: the cancel is handled when this call is over.
            deadline = time.monotonic() + LIVENESS
            while inner[0]._engine.state.lane.attached:  # until the worker has looked
                assert time.monotonic() < deadline
                time.sleep(0.001)
        return "outer"

    opened, go_on = anyio.Event(), anyio.Event()
    tools = [outer, Tool(leaf, runs_in=carrier)]
    async with ToolRunner(tools, observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS / 4):
            async with anyio.create_task_group() as group:
                async with runner.open_batch() as batch:
                    handles.append(batch.submit(ToolCall("0", "outer")))
                assert shape(batch.results) == [DONE]
                go_on.set()
        assert shape(inner[0].results) == [DONE]


async def test_a_call_that_answers_within_the_grace_leaves_its_batch_behind() -> None:
    """§4.9: who has ended by itself before it was told cuts nothing any more."""
    inner_results: list[ToolResult] = []
    handles: list[CallHandle] = []

    async def inner_tool() -> str:
        await go_on.wait()
        return "ok"

    async def left_behind() -> None:
        started.set()
        inner_results.extend(await inner_runner.run([ToolCall("i", "inner_tool")]))

    async def outer() -> str:
        group.start_soon(left_behind)
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        assert handles[0].cancel()
        # The cancel is handled in the next pass; it is told only after that.
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return "mine"

    started, go_on = anyio.Event(), anyio.Event()
    inner_runner = ToolRunner([inner_tool])
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            async with ToolRunner([outer], interrupt_grace=LIVENESS) as runner:
                async with runner.open_batch() as batch:
                    handles.append(batch.submit(ToolCall("o", "outer")))
                completed = shape(batch.results) == [DONE]
            go_on.set()
    # Where it was told first, it was cut, and so was its batch.
    assert (shape(inner_results) == [DONE]) is completed


async def test_a_question_that_was_not_asked_for_a_cut_that_never_came_is_asked() -> None:
    """P1, §4.9: the call around ends by itself; the approvals of its batch go on."""
    asked: list[str] = []
    answer = threading.Event()
    inner_results: list[ToolResult] = []
    handles: list[CallHandle] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call.id)
        assert answer.wait(LIVENESS)
        return True

    async def leaf() -> str:
        return "ok"

    async def left_behind() -> None:
        inner_results.extend(
            await inner_runner.run([ToolCall("0", "leaf"), ToolCall("1", "leaf")])
        )

    async def outer() -> str:
        group.start_soon(left_behind)
        while not asked:
            await anyio.sleep(0.001)
        assert handles[0].cancel()
        answer.set()
        # The loop is held until whoever asks has come to the second question.
        lane = next(iter(inner_states())).approver.lane
        deadline = time.monotonic() + LIVENESS
        while lane.attached:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return "outer"

    def inner_states() -> list[Any]:
        return inner_runner._live_states()

    inner_runner = ToolRunner([leaf], approve=approve)
    with anyio.fail_after(LIVENESS):
        async with anyio.create_task_group() as group:
            async with ToolRunner([outer]) as runner:
                async with runner.open_batch() as batch:
                    handles.append(batch.submit(ToolCall("o", "outer")))
                assert shape(batch.results) == [DONE]
    assert shape(inner_results) == [DONE] * 2
    assert asked == ["0", "1"]


async def test_an_approver_does_not_keep_its_owner() -> None:
    """P10: a runner whose hook is a method of who owns it goes with its owner."""

    class Agent:
        def __init__(self) -> None:
            self.runner = ToolRunner({"leaf": lambda: "ok"}, approve=self.approve)

        async def approve(self, call: ToolCall) -> bool:
            return True

    agent = Agent()
    assert shape(await agent.runner.run(calls("leaf"))) == [DONE]
    await agent.runner.aclose()
    alive = weakref.ref(agent)
    del agent
    with anyio.fail_after(LIVENESS):
        while alive() is not None:
            await anyio.sleep(0.001)
            gc.collect()
