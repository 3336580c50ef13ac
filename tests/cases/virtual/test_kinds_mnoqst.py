"""
Cases M, N, O, Q, S and T where a clock decides: hours pass in no time.

Beside them the promises of DESIGN §4.7 to §4.10 that are about seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import Tool, ToolBatch, ToolCall, ToolResult, ToolRunner
from anyio_toolbatch.testing import DeafTool, PromiseObserver, ScriptedTool, give, sleep

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)
BUSY = ("failed", "resource_busy", False, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


def timed_out(kind: str, *, started: bool) -> tuple[str, str, bool, bool]:
    return ("timed_out", kind, started, started)


class Person:
    """An approver that takes its time; how long it takes is in the call's id, as in "a:30"."""

    def __init__(self) -> None:
        self.withdrawn: list[str] = []

    async def approve(self, call: ToolCall) -> bool:
        _, _, seconds = call.id.partition(":")
        try:
            await anyio.sleep(float(seconds or 0))
        except anyio.get_cancelled_exc_class():
            self.withdrawn.append(call.id)
            raise
        return True


@contextlib.contextmanager
def letting_go(deaf: DeafTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tool: it would hold the loop's end."""
    try:
        yield
    finally:
        deaf.release()


class Clock:
    """Measures from when it was made."""

    def __init__(self) -> None:
        self._began = anyio.current_time()

    @property
    def seconds(self) -> float:
        return anyio.current_time() - self._began


# -- M -------------------------------------------------------------------------


async def test_m2_serial_per_key_and_parallel_between_keys(promises: PromiseObserver) -> None:
    """M1, M2, §4.8: 3 batches of 2 edits on one file take turns; other files do not wait."""
    edit = ScriptedTool(sleep(10), give("ok"), name="edit", writes=lambda key: key)
    async with ToolRunner([edit.tool], observers=[promises]) as runner:
        clock = Clock()
        ended: list[float] = []

        async def turn(key: str) -> None:
            asked = [ToolCall(str(n), "edit", {"key": key}) for n in range(2)]
            assert shape(await runner.run(asked)) == [DONE, DONE]
            ended.append(round(clock.seconds))

        async with anyio.create_task_group() as group:
            for key in ("same", "same", "same", "other"):
                group.start_soon(turn, key)
    assert sorted(ended)[0] == 20  # the other file
    assert round(clock.seconds) == 60


# -- N -------------------------------------------------------------------------


async def test_n2_the_deadline_breaks_a_deadlock(promises: PromiseObserver) -> None:
    """N2, P1: cap 2: both wait for what a third would do; the limit ends it, all told."""
    event = anyio.Event()

    async def waits() -> None:
        await event.wait()

    async def frees() -> None:
        event.set()

    clock = Clock()
    async with ToolRunner([waits, frees], max_concurrency=2, observers=[promises]) as runner:
        results = await runner.run(calls("waits", "waits", "frees"), timeout=3600)
        assert 3600 <= clock.seconds < 3700
    assert shape(results) == [
        timed_out("batch_timeout", started=True),
        timed_out("batch_timeout", started=True),
        timed_out("batch_timeout", started=False),
    ]


@pytest.mark.parametrize("lever", ["exclusive", "writes"])
async def test_n8_preflight_comes_before_the_lock(
    lever: str, promises: PromiseObserver
) -> None:
    """N8, §4.7: 5 s of preflight, 3 reads of others behind it: they are done before."""
    options: dict[str, Any] = {lever: True if lever == "exclusive" else "a"}
    write = ScriptedTool(sleep(1), give("ok"), name="write", **options)
    read = ScriptedTool(sleep(1), give("ok"), name="read", reads="a")
    async with ToolRunner(
        [write.tool, read.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        clock = Clock()
        async with runner.open_batch() as batch, runner.open_batch() as others:
            before = batch.submit(ToolCall("read", "read"))
            batch.submit(ToolCall("write:5", "write"))
            behind = batch.submit(ToolCall("read", "read"))
            for _ in range(3):
                others.submit(ToolCall("read", "read"))
            assert shape(await others.wait()) == [DONE] * 3
            await before.wait()
            assert clock.seconds < 2
            await behind.wait()
            assert 7 <= clock.seconds < 8
    assert shape(batch.results) == [DONE] * 3


# -- O -------------------------------------------------------------------------


async def test_o3_a_stop_does_not_wait_for_the_prompts_own_limit(
    promises: PromiseObserver,
) -> None:
    """O3, P2: the approver has 30 s, the stop comes after 1: back after 1."""
    quick = ScriptedTool(give("ran"), name="quick")
    told: list[str] = []

    async def approve(call: ToolCall) -> bool:
        try:
            with anyio.move_on_after(30):
                await anyio.sleep_forever()
        finally:
            told.append(call.id)
        return False

    clock = Clock()
    async with ToolRunner([quick.tool], approve=approve, observers=[promises]) as runner:
        async with runner.open_batch(calls("quick")) as batch:
            await anyio.sleep(1)
            batch.interrupt()
        assert clock.seconds < 2
        assert shape(batch.results) == [NOT_STARTED]
        await anyio.sleep(1)
        assert told == ["id-0"]
    assert quick.started == 0


async def test_o2_a_deaf_prompt_is_not_waited_for(promises: PromiseObserver) -> None:
    """O2, P2: nor one that does not hear, for as long as it likes."""
    quick = ScriptedTool(give("ran"), name="quick")

    async def approve(_: ToolCall) -> bool:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3600)
        return True

    clock = Clock()
    async with ToolRunner([quick.tool], approve=approve, observers=[promises]) as runner:
        async with runner.open_batch(calls("quick")) as batch:
            await anyio.sleep(1)
            batch.interrupt()
        assert clock.seconds < 2
        assert shape(batch.results) == [NOT_STARTED]
        await anyio.sleep(4000)
    assert quick.started == 0


# -- Q -------------------------------------------------------------------------


async def test_q1_steered_in_the_second_of_six(promises: PromiseObserver) -> None:
    """Q1, §3.1: the second takes its ten seconds, the other four none."""
    step = ScriptedTool(sleep(10), give("ok"), name="step")
    clock = Clock()
    async with ToolRunner([step.tool], max_concurrency=1, observers=[promises]) as runner:
        async with runner.open_batch(calls(*["step"] * 6)) as batch:
            await anyio.sleep(15)
            batch.supersede("newer")
        assert 20 <= clock.seconds < 21
    assert shape(batch.results) == [
        DONE,
        DONE,
        *[("interrupted", "superseded", False, False)] * 4,
    ]


# -- T5: seconds for a detached writer -----------------------------------------


async def test_t5_a_later_call_waits_at_most_the_grace(promises: PromiseObserver) -> None:
    """T5, §4.8: from joining the line or from the detachment, whichever is later."""
    deaf = DeafTool("deaf", writes="a")
    quick = ScriptedTool(give("ran"), name="quick", writes="a")
    ended: dict[str, float] = {}

    async def later(name: str) -> None:
        results = await runner.run([ToolCall(name, "quick")])
        assert shape(results) == [BUSY]
        ended[name] = clock.seconds

    with letting_go(deaf):
        async with ToolRunner(
            [deaf.tool, quick.tool], cleanup_grace=10, observers=[promises]
        ) as runner:
            clock = Clock()
            async with anyio.create_task_group() as group:
                async with runner.open_batch(calls("deaf")) as batch:
                    await anyio.sleep(1)
                    group.start_soon(later, "before")  # joins at 1
                    await anyio.sleep(99)
                    batch.interrupt()  # at 100
                await anyio.sleep(4)
                group.start_soon(later, "soon")  # joins at 104
                await anyio.sleep(100)
                group.start_soon(later, "late")  # joins at 204
            assert {name: round(seconds) for name, seconds in ended.items()} == {
                "before": 110,
                "soon": 114,
                "late": 214,
            }
            deaf.release()
            assert await runner.wait_detached()
            assert shape(await runner.run(calls("quick"))) == [DONE]


async def test_t5_it_gets_in_when_the_work_ends_within_the_grace(
    promises: PromiseObserver,
) -> None:
    """T5, §4.8: an ordinary clean-up is over before anybody is refused."""
    tidy = Tool(tidying, writes="a")
    quick = ScriptedTool(give("ran"), name="quick", writes="a")
    async with ToolRunner(
        [tidy, quick.tool], cleanup_grace=10, observers=[promises]
    ) as runner:
        async with runner.open_batch(calls("tidying")) as batch:
            await anyio.sleep(1)
            batch.interrupt()
        clock = Clock()
        assert shape(batch.results) == [CUT]
        assert shape(await runner.run(calls("quick"))) == [DONE]
        assert 3 <= clock.seconds < 4


async def tidying() -> None:
    try:
        await anyio.sleep(600)
    finally:
        await anyio.sleep(3)


async def test_t5_while_one_is_asked_for_its_patience_does_not_run(
    promises: PromiseObserver,
) -> None:
    """T5, §4.7, §4.8: a call joins the line when it is approved, not before."""
    deaf = DeafTool("deaf", writes="a")
    quick = ScriptedTool(give("ran"), name="quick", writes="a")
    with letting_go(deaf):
        async with ToolRunner(
            [deaf.tool, quick.tool],
            cleanup_grace=10,
            approve=Person().approve,
            observers=[promises],
        ) as runner:
            async with runner.open_batch(calls("deaf")) as batch:
                await anyio.sleep(1)
                batch.interrupt()
            clock = Clock()
            results = await runner.run([ToolCall("q:100", "quick")])
            assert shape(results) == [BUSY]
            assert round(clock.seconds) == 110
            deaf.release()


# -- T8: the batch's clock -----------------------------------------------------


@pytest.mark.parametrize("sealed", [True, False])
async def test_t8_only_waiting_for_a_person_is_not_counted(
    sealed: bool, promises: PromiseObserver
) -> None:
    """T8, §4.10: a day of thinking, then the whole limit for the work."""
    slow = ScriptedTool(sleep(9), give("ok"), name="slow")
    asked = [ToolCall("a:86400", "slow"), ToolCall("b:86400", "slow")]
    async with ToolRunner(
        [slow.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        async with runner.open_batch(asked if sealed else None, timeout=10) as batch:
            if not sealed:
                for call in asked:
                    batch.submit(call)
                await batch.wait()
        assert shape(batch.results) == [DONE, DONE]


async def test_t8_what_has_run_before_and_after_adds_up(promises: PromiseObserver) -> None:
    """T8, §4.10: 6 s of work, an hour of thinking, 4 more seconds: the limit of 10 s."""
    slow = ScriptedTool(sleep(6), give("ok"), name="slow")
    async with ToolRunner(
        [slow.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        clock = Clock()
        results = await runner.run(
            [ToolCall("a:0", "slow"), ToolCall("b:3600", "slow")], timeout=10
        )
        assert round(clock.seconds) == 3604
    assert shape(results) == [DONE, timed_out("batch_timeout", started=True)]


async def test_t8_it_runs_while_anything_else_does(promises: PromiseObserver) -> None:
    """T8, §4.10: mended too widely it would never fire."""
    slow = ScriptedTool(sleep(3600), give("ok"), name="slow")
    person = Person()
    async with ToolRunner([slow.tool], approve=person.approve, observers=[promises]) as runner:
        clock = Clock()
        results = await runner.run(
            [ToolCall("a:0", "slow"), ToolCall("b:86400", "slow")], timeout=10
        )
        assert 10 <= clock.seconds < 11
        await anyio.sleep(1)
    assert shape(results) == [
        timed_out("batch_timeout", started=True),
        timed_out("batch_timeout", started=False),
    ]
    assert person.withdrawn == ["b:86400"]


async def test_t8_it_stands_still_for_who_stands_behind_one_that_is_asked_for(
    promises: PromiseObserver,
) -> None:
    """T8, §4.10: approved, but behind an earlier call of its batch: that is waiting, too."""
    edit = ScriptedTool(sleep(1), give("ok"), name="edit", writes="a")
    async with ToolRunner(
        [edit.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        clock = Clock()
        results = await runner.run(
            [ToolCall("a:3600", "edit"), ToolCall("b:0", "edit")], timeout=10
        )
        assert round(clock.seconds) == 3602
    assert shape(results) == [DONE, DONE]


async def test_t8_an_unsealed_batch_with_nothing_in_it_lets_its_clock_run(
    promises: PromiseObserver,
) -> None:
    """T8, §4.10: who waits for the model waits for no person."""
    quick = ScriptedTool(give("ok"), name="quick")
    async with ToolRunner(
        [quick.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        async with runner.open_batch(timeout=10) as batch:
            await batch.submit(ToolCall("a:3600", "quick")).wait()
            await anyio.sleep(9)
            assert not batch.interrupted
            await anyio.sleep(2)
            assert batch.reason is not None and batch.reason.kind == "batch_timeout"


@pytest.mark.parametrize("how", ["cancel", "call_timeout", "ends"])
async def test_t8_it_stands_still_as_soon_as_the_last_other_call_is_over(
    how: str, promises: PromiseObserver
) -> None:
    """T8, §4.10: also when that one was cut, and not only when it has ended by itself."""
    timeout = 5 if how == "call_timeout" else None
    busy = ScriptedTool(sleep(5 if how == "ends" else 3600), name="busy", timeout=timeout)
    quick = ScriptedTool(give("ok"), name="quick")
    async with ToolRunner(
        [busy.tool, quick.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        async with runner.open_batch(timeout=10) as batch:
            batch.submit(ToolCall("busy", "busy"))
            batch.submit(ToolCall("b:3600", "quick"))
            await anyio.sleep(5)
            if how == "cancel":
                assert batch.cancel("busy") == 1
    assert shape(batch.results)[1] == DONE


async def test_t8_an_answer_has_a_limit_of_its_own(promises: PromiseObserver) -> None:
    """T8, §3.4: and it is not the batch's: 30 s, though the batch has 10."""
    quick = ScriptedTool(give("ok"), name="quick")
    person = Person()
    async with ToolRunner(
        [quick.tool], approve=person.approve, approval_timeout=30, observers=[promises]
    ) as runner:
        clock = Clock()
        results = await runner.run(
            [ToolCall("a:3600", "quick"), ToolCall("b:20", "quick")], timeout=10
        )
        assert 30 <= clock.seconds < 31
        await anyio.sleep(1)
    assert shape(results) == [timed_out("approval_timeout", started=False), DONE]
    assert person.withdrawn == ["a:3600"]


async def test_t8_a_calls_own_limit_does_not_run_while_it_is_asked_for(
    promises: PromiseObserver,
) -> None:
    """T8, §4.10: a call's timeout runs while it runs."""
    slow = ScriptedTool(sleep(9), give("ok"), name="slow", timeout=10)
    async with ToolRunner(
        [slow.tool], approve=Person().approve, observers=[promises]
    ) as runner:
        assert shape(await runner.run([ToolCall("a:3600", "slow")])) == [DONE]


async def test_t8_an_outer_batchs_clock_runs_on(promises: PromiseObserver) -> None:
    """T8, §4.10: to the outer batch its call runs, whoever is asked inside; it is cut."""
    quick = ScriptedTool(give("ok"), name="quick")
    inner: list[ToolBatch] = []

    async def outer() -> None:
        async with runner.open_batch([ToolCall("q:3600", "quick")], timeout=1) as batch:
            inner.append(batch)

    person = Person()
    async with ToolRunner(
        [Tool(outer), quick.tool], approve=person.approve, observers=[promises]
    ) as runner:
        clock = Clock()
        async with runner.open_batch(calls("outer"), timeout=10) as batch:
            pass
        assert 10 <= clock.seconds < 11
        await anyio.sleep(1)
    assert shape(batch.results) == [timed_out("batch_timeout", started=True)]
    assert shape(inner[0].results) == [timed_out("batch_timeout", started=False)]
    assert person.withdrawn == ["q:3600"]
    assert quick.started == 0


# -- S4, T10, T11: nested runs -------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["user_interrupt", "call_timeout", "batch_timeout", "call_cancelled"]
)
async def test_t11_every_cut_reaches_all_depths(kind: str, promises: PromiseObserver) -> None:
    """S4, T11, §4.9: five levels down, with the outer's reason, and nobody waits for it."""
    inner: dict[int, ToolBatch] = {}
    leaf = ScriptedTool(sleep(3600), name="leaf")

    async def deeper(depth: int = 1) -> None:
        arguments = {"depth": depth + 1} if depth < 5 else {}
        asked = ToolCall("x", "deeper" if depth < 5 else "leaf", arguments)
        # Deaf: what is inside must not depend on the awaiting code's cancellation.
        with anyio.CancelScope(shield=True):
            async with runner.open_batch() as batch:
                inner[depth] = batch
                batch.submit(asked)

    top = Tool(deeper, name="top", timeout=10 if kind == "call_timeout" else None)
    async with ToolRunner(
        [top, Tool(deeper), leaf.tool], max_concurrency=1, observers=[promises]
    ) as runner:
        clock = Clock()
        async with runner.open_batch(
            calls("top"), timeout=10 if kind == "batch_timeout" else None
        ) as batch:
            await anyio.sleep(10)
            if kind == "user_interrupt":
                batch.interrupt("enough")
            elif kind == "call_cancelled":
                batch.cancel("id-0", "enough")
        assert clock.seconds < 11
        await anyio.sleep(1)
        status = "timed_out" if kind.endswith("timeout") else "interrupted"
        expected = (status, kind, True, True)
        assert shape(batch.results) == [expected]
        assert [shape(inner[depth].results) for depth in range(1, 6)] == [[expected]] * 5
        assert len({b.results[0].reason for b in [batch, *inner.values()]}) == 1
        assert await runner.wait_detached(10)
    assert leaf.ended == 1


async def test_t10_a_deaf_call_opens_no_batch_that_runs(promises: PromiseObserver) -> None:
    """T10, §4.9: an hour after the stop: born interrupted, with the reason of the stop."""
    leaf = ScriptedTool(give("ran"), name="leaf")
    inner: list[ToolBatch] = []

    async def deaf() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3600)
            async with runner.open_batch(calls("leaf")) as batch:
                inner.append(batch)

    async with ToolRunner([Tool(deaf), leaf.tool], observers=[promises]) as runner:
        async with runner.open_batch(calls("deaf")) as batch:
            await anyio.sleep(1)
            batch.interrupt("enough")
        assert await runner.wait_detached(4000)
    assert shape(inner[0].results) == [NOT_STARTED]
    assert inner[0].reason == batch.reason
    assert leaf.started == 0


# -- S2 ------------------------------------------------------------------------


async def test_s2_closing_with_one_running_and_two_queued(promises: PromiseObserver) -> None:
    """S2, P4: all three callers return at once, and nothing starts then or later."""
    slow = ScriptedTool(sleep(3600), name="slow")
    found: list[ToolResult] = []
    runner = ToolRunner([slow.tool], max_concurrency=1, close_timeout=1, observers=[promises])

    async def turn() -> None:
        found.extend(await runner.run(calls("slow")))

    clock = Clock()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(turn)
        await anyio.sleep(10)
        await runner.aclose()
    assert clock.seconds < 12
    assert sorted(shape(found)) == [
        ("interrupted", "runner_closed", False, False),
        ("interrupted", "runner_closed", False, False),
        ("interrupted", "runner_closed", True, True),
    ]
    await anyio.sleep(3600)
    assert slow.started == 1
