"""P10, order, nesting: what may start does start, what may not does not, and nobody waits for ever."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from anyio_toolbatch._core.claims import expand
from anyio_toolbatch._core.scheduler import (
    Limits,
    Needs,
    Pool,
    Refusal,
    Scheduler,
    Wait,
)
from anyio_toolbatch._core.states import CallState

PATIENCE = 5.0
LIMITS = ((None, 2), (1, 1), (2, 1), (3, 2))
"""Slots and threads of the runners that the histories are about."""
KEYS = (("a",), ("b",), ("d",), ("d", "e"), ("d", "e", "f"), ("d", "g"))
"""Two plain keys, and a few paths, outermost folder first."""
TOOLS = {"capped at 1": 1, "capped at 2": 2}


@dataclass(eq=False)
class Batch:
    scheduler: Scheduler
    limits: Limits
    parents: tuple[Call, ...]
    calls: list[Call] = field(default_factory=list)
    is_halted: bool = False


@dataclass(eq=False)
class Call:
    batch: Batch
    reads: list[tuple[str, ...]]
    writes: list[tuple[str, ...]]
    exclusive: bool
    entry: Any = None
    state: CallState = CallState.PREPARING
    joined: int = 0
    """As how manyeth it joined a line, and at what time."""
    joined_at: float = 0.0
    let_go_at: float = 0.0
    grants: int = 0
    inner: list[Batch] = field(default_factory=list)

    @property
    def is_held_back(self) -> bool:
        return self.state in {CallState.ASKED, CallState.BEHIND}

    @property
    def waits(self) -> bool:
        return self.state is CallState.IN_LINE

    @property
    def is_running(self) -> bool:
        return self.state is CallState.RUNNING

    @property
    def holds(self) -> bool:
        return self.state in {CallState.RUNNING, CallState.DETACHED}


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def conflict(one: Call, other: Call) -> bool:
    """Compare what two calls claim, claim by claim."""
    if one.batch.scheduler is not other.batch.scheduler:
        return False
    reads = [
        call.reads if call.state is not CallState.DETACHED else [] for call in (one, other)
    ]
    if any(overlap(w, k) for w in one.writes for k in [*reads[1], *other.writes]):
        return True
    if any(overlap(w, k) for w in other.writes for k in reads[0]):
        return True
    if one.batch is not other.batch:
        return False
    detached = CallState.DETACHED
    return (one.exclusive and (other.exclusive or other.state is not detached)) or (
        other.exclusive and one.state is not detached
    )


class World:
    """
    Schedulers, the calls that were given to them, and the rules told by brute force.

    Each fact is followed by `settle`, as in a runtime: grant what can be granted,
    refuse what must be refused, and check everything.
    """

    def __init__(self, schedulers: int = 1) -> None:
        self.schedulers = [Scheduler() for _ in range(schedulers)]
        self.limits = [[Limits(*some, PATIENCE) for some in LIMITS] for _ in self.schedulers]
        self.batches: list[Batch] = []
        self.calls: list[Call] = []
        """Those that are not over."""
        self.joined = 0
        self.now = 0.0

    # -- facts

    def open_batch(self, scheduler: int, limits: int, parent: Call | None = None) -> Batch:
        scheduler %= len(self.schedulers)
        parents = () if parent is None else (parent, *parent.batch.parents)
        batch = Batch(
            self.schedulers[scheduler], self.limits[scheduler][limits % len(LIMITS)], parents
        )
        for call in parents:
            call.inner.append(batch)
        self.batches.append(batch)
        return batch

    def submit(
        self,
        batch: Batch,
        reads: Sequence[tuple[str, ...]] = (),
        writes: Sequence[tuple[str, ...]] = (),
        *,
        exclusive: bool = False,
        thread: bool = False,
        slot: bool = True,
        tool: str | None = None,
        ask: bool = False,
    ) -> Call:
        def nodes(claim: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
            return tuple(claim[:length] for length in range(1, len(claim) + 1))

        call = Call(batch, list(reads), list(writes), exclusive)
        modes = expand(map(nodes, reads), map(nodes, writes))
        needs = Needs(modes, exclusive, thread, slot, tool, TOOLS[tool] if tool else None)
        ancestors = tuple(parent.entry for parent in batch.parents)
        call.entry = batch.scheduler.add(
            batch, batch.limits, call, needs, self.now, ask=ask, ancestors=ancestors
        )
        call.state = CallState.ASKED if ask else CallState.BEHIND
        batch.calls.append(call)
        self.calls.append(call)
        self.settle()
        return call

    def approve(self, call: Call) -> None:
        call.batch.scheduler.approve(call, self.now)
        call.state = CallState.BEHIND
        self.settle()

    def end(self, call: Call) -> None:
        """It has ended, or is cut before its start, denied or refused."""
        self.finish(call)
        self.settle()

    def finish(self, call: Call) -> None:
        assert call.batch.scheduler.release(call, self.now) is (
            call.state is not CallState.OVER
        )
        assert call.batch.scheduler.release(call, self.now) is False
        call.state = CallState.OVER
        call.batch.calls.remove(call)
        self.calls.remove(call)

    def let_go(self, call: Call, *, keep: bool = False) -> None:
        """Let go of a running call; unless it is kept its inner batches are cut too."""
        self.detach(call)
        if not keep:
            for batch in call.inner:
                self.halt(batch)
                for inner in list(batch.calls):
                    if inner.is_running:
                        self.detach(inner)
                    elif inner.state is not CallState.DETACHED:
                        self.finish(inner)
        self.settle()

    def detach(self, call: Call) -> None:
        call.batch.scheduler.let_go(call, self.now)
        call.state = CallState.DETACHED
        call.let_go_at = self.now
        if not call.writes and not call.exclusive:
            call.state = CallState.OVER
            call.batch.calls.remove(call)
            self.calls.remove(call)

    def leave_thread(self, call: Call) -> None:
        call.batch.scheduler.leave_thread(call)
        self.settle()

    def halt(self, batch: Batch) -> None:
        batch.scheduler.halt(batch)
        # A batch that has no calls is not known there.
        batch.is_halted = True

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    # -- decisions

    def settle(self) -> None:
        self.move_up()
        while True:
            while self.grant():
                pass
            refused = [
                (scheduler, refusal)
                for scheduler in self.schedulers
                for refusal in scheduler.take_refusals(self.now)
            ]
            stuck = self.stuck()
            for _, refusal in refused:
                self.check_refusal(refusal, stuck)
            for _, refusal in refused:
                self.finish(refusal.call)
                self.move_up()
            if not refused:
                break
        self.check()

    def grant(self) -> bool:
        granted = False
        for scheduler in self.schedulers:
            call = scheduler.grant()
            if call is not None:
                granted = True
                assert call.waits and not call.batch.is_halted
                assert not self.is_behind(call), "an earlier one of its batch did not start"
                assert not self.must_wait(call)
                call.state = CallState.RUNNING
                call.grants += 1
                assert call.grants == 1
        return granted

    def move_up(self) -> None:
        """Approved calls join the line when no earlier one that is held back is in their way."""
        for batch in self.batches:
            for call in batch.calls:
                if call.state is CallState.BEHIND and not self.is_behind(call, held_back=True):
                    if batch.is_halted:
                        continue  # it would be in others' way
                    call.state = CallState.IN_LINE
                    self.joined += 1
                    call.joined = self.joined
                    call.joined_at = self.now

    # -- the rules

    def is_behind(self, call: Call, *, held_back: bool = False) -> bool:
        for other in call.batch.calls:
            if other is call:
                return False
            if (other.is_held_back or (other.waits and not held_back)) and conflict(
                other, call
            ):
                return True
        raise AssertionError("not in its batch")

    def must_wait(self, call: Call) -> bool:
        return any(True for _ in self.in_the_way(call)) or any(
            other.waits
            and other.joined < call.joined
            and (other.batch is call.batch or not call.batch.parents)
            and conflict(other, call)
            for other in self.calls
        )

    def in_the_way(self, call: Call) -> Iterator[Call]:
        for other in self.calls:
            if other.holds and other not in call.batch.parents and conflict(other, call):
                yield other

    @staticmethod
    def chains(pool: Pool) -> list[list[Call]]:
        """Return for each place that is in use who has it, the last one on loan."""
        chains = []
        for holder in pool.holders:
            if holder.held[pool] is None:
                chain = [holder.call]
                while (holder := holder.lent.get(pool)) is not None:
                    assert holder.held[pool] is chain[-1].entry
                    assert chain[-1] in holder.call.batch.parents
                    chain.append(holder.call)
                chains.append(chain)
        assert sum(map(len, chains)) == len(pool.holders)
        assert all(call.is_running for chain in chains for call in chain)
        assert pool.free == pool.limit - len(chains) >= 0
        return chains

    def has_place(self, call: Call, pool: Pool, ended: Collection[Call] = ()) -> bool:
        """Tell whether there is a place for a call, were some others over."""
        return pool.free > 0 or any(
            all(other in ended or other in call.batch.parents for other in chain)
            for chain in self.chains(pool)
        )

    def stuck(self) -> set[Call]:
        """Return the waiting calls that can not come to their end, whatever happens."""
        ended: set[Call] = set()
        while True:
            more = {
                call for call in self.calls if call not in ended and self.ends(call, ended)
            }
            if not more:
                return {call for call in self.calls if call.waits and call not in ended}
            ended |= more

    def ends(self, call: Call, ended: set[Call]) -> bool:
        if call.is_running:
            inner = [inner for batch in call.inner for inner in batch.calls]
            return all(i in ended or not (i.is_running or i.waits) for i in inner)
        if call.waits and not call.batch.is_halted:
            return all(other in ended for other in self.in_the_way(call)) and all(
                self.has_place(call, pool, ended) for pool in call.entry.pools
            )
        return True

    # -- what must hold

    def check_refusal(self, refusal: Refusal, stuck: set[Call]) -> None:
        call, holder, since = refusal
        assert call.waits and holder not in call.batch.parents
        if since is None:
            assert call in stuck and call.batch.parents
            assert holder.is_running
        else:
            assert holder in self.in_the_way(call)
            assert holder.state is CallState.DETACHED and holder.let_go_at == since
            assert self.now >= max(since, call.joined_at) + PATIENCE

    def check(self) -> None:
        for call in self.calls:
            assert call.entry.state is call.state
            assert call.batch.scheduler.entry(call) is call.entry
        for scheduler in self.schedulers:
            calls = [call for call in self.calls if call.batch.scheduler is scheduler]
            assert len(scheduler) == len(calls)
            due = [
                max(call.joined_at, other.let_go_at) + PATIENCE
                for call in calls
                if call.waits
                for other in self.in_the_way(call)
                if other.state is CallState.DETACHED
            ]
            assert scheduler.next_refusal() == min(due, default=None)
            assert all(at > self.now for at in due)
        for batch in self.batches:
            held_back = sum(call.is_held_back for call in batch.calls)
            assert batch.scheduler.held_back(batch) == held_back
        self.check_claims()
        self.check_places()
        self.check_waits()
        assert not self.stuck()

    def check_claims(self) -> None:
        holders = [call for call in self.calls if call.holds]
        for one, other in itertools.combinations(holders, 2):
            related = one in other.batch.parents or other in one.batch.parents
            assert related or not conflict(one, other)

    def check_places(self) -> None:
        pools = {pool for call in self.calls for pool in call.entry.pools}
        for pool in pools | {limits.threads for some in self.limits for limits in some}:
            chains = self.chains(pool)
            having = {
                call for call in self.calls if call.is_running and pool in call.entry.held
            }
            assert having == {call for chain in chains for call in chain}
            # Told without a look at loans: who has no family with a place inside.
            innermost = having - {parent for call in having for parent in call.batch.parents}
            assert len(innermost) <= pool.limit

    def check_waits(self) -> None:
        """No lost wake-up: who waits after the last grant really has to, and is told why."""
        waiting = False
        for call in self.calls:
            wait = call.batch.scheduler.wait_of(call)
            if call.state is CallState.ASKED:
                assert wait == Wait("approval", None, [])
            elif call.state is CallState.BEHIND:
                assert wait is not None and wait.kind == "order"
                if not call.batch.is_halted:
                    assert wait.calls[0].is_held_back and conflict(wait.calls[0], call)
            elif not call.waits:
                assert wait is None
            elif not call.batch.is_halted:
                waiting = True
                assert wait is not None
                lacking = [p.name for p in call.entry.pools if not self.has_place(call, p)]
                if self.must_wait(call):
                    assert wait.kind == "claim" and conflict(wait.calls[0], call)
                else:
                    assert lacking, "nothing is in its way"
                    assert wait.kind == "place" and wait.what in lacking
                    assert all(other.is_running for other in wait.calls)
                    (pool,) = (p for p in call.entry.pools if p.name == wait.what)
                    assert len(wait.calls) == pool.limit
                    assert not set(wait.calls) & set(call.batch.parents)
        if waiting:
            assert any(
                call.holds or call.is_held_back or call.batch.is_halted for call in self.calls
            )

    def wind_up(self, choose: Callable[[list[Call]], Call]) -> None:
        """Bring everything to its end; nothing may be left of it."""
        while self.calls:
            ready = [
                call
                for call in self.calls
                if (call.is_running and not any(batch.calls for batch in call.inner))
                or call.state is CallState.ASKED
                or (call.waits and call.batch.is_halted)
            ]
            detached = [call for call in self.calls if call.state is CallState.DETACHED]
            behind = [c for c in self.calls if c.is_held_back and c.batch.is_halted]
            assert ready or detached or behind, "all wait for each other"
            call = choose(ready or behind or detached)
            if call.state is CallState.ASKED and not call.batch.is_halted:
                self.approve(call)
            else:
                self.end(call)
        for scheduler, runners in zip(self.schedulers, self.limits):
            check_is_empty(scheduler, runners)


def check_is_empty(scheduler: Scheduler, runners: Sequence[Limits]) -> None:
    assert scheduler.grant() is None
    assert scheduler.next_refusal() is None
    assert scheduler.take_refusals(1e9) == []
    assert len(scheduler) == len(scheduler.table) == 0
    kept = {
        name: value
        for name, value in vars(scheduler).items()
        if name not in {"table", "_busy_number", "_tidy_busy_at"} and value
    }
    assert not kept
    assert not scheduler.table.take_freed()
    for limits in runners:
        assert not limits._turns and not limits._borrowers
        for pool in (limits.slots, limits.threads):
            assert pool is None or (pool.free == pool.limit and not pool.holders)


# -- places ----------------------------------------------------------------------


def claims(reads: str = "", writes: str = "", **needs: Any) -> Needs:
    """Claim plain keys, written as in ``"a b"``."""
    read, written = ([(key,) for key in text.split()] for text in (reads, writes))
    return Needs(expand(read, written), **needs)


BLOCKING = Needs(thread=True)


def make(slots: int | None = None, threads: int = 8) -> tuple[Scheduler, Limits]:
    return Scheduler(), Limits(slots, threads, PATIENCE)


def add(
    scheduler: Scheduler,
    limits: Limits,
    batch: Any,
    calls: Any,
    needs: Needs = Needs(),
    *,
    inside: Any = (),
    **options: Any,
) -> None:
    """Add calls, the innermost of whose ancestors come first in ``inside``."""
    ancestors = tuple(scheduler.entry(call) for call in inside)
    for call in calls:
        scheduler.add(batch, limits, call, needs, 0.0, ancestors=ancestors, **options)


def grant_all(scheduler: Scheduler) -> list[Any]:
    granted = []
    while (call := scheduler.grant()) is not None:
        granted.append(call)
    return granted


def test_nothing_waits_nothing_is_granted() -> None:
    """An empty scheduler gives nothing and knows nothing."""
    scheduler = Scheduler()
    assert scheduler.grant() is None
    assert scheduler.take_refusals(1.0) == []
    assert scheduler.next_refusal() is None
    assert scheduler.entry("p") is scheduler.wait_of("p") is None
    assert scheduler.held_back("a") == len(scheduler) == 0
    assert scheduler.release("p", 0.0) is False
    scheduler.let_go("p", 0.0)
    scheduler.leave_thread("p")
    scheduler.halt("a")


def test_calls_start_in_call_order_where_nothing_is_in_the_way() -> None:
    """Without limits everything starts at once."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "pqr")
    assert grant_all(scheduler) == ["p", "q", "r"]
    assert len(scheduler) == 3


def test_slots_cap_the_running_calls() -> None:
    """P10: no more calls run than there are slots; the next is the next in call order."""
    scheduler, limits = make(slots=2)
    add(scheduler, limits, "a", "pqrs")
    assert grant_all(scheduler) == ["p", "q"]
    assert scheduler.wait_of("r") == Wait("place", "max_concurrency", ["p", "q"])
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_call_that_needs_no_slot_is_not_capped_by_them() -> None:
    """`needs_slot=False` does not count against `max_concurrency`."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "p")
    add(scheduler, limits, "a", "qr", Needs(slot=False))
    add(scheduler, limits, "a", "s")
    assert grant_all(scheduler) == ["p", "q", "r"]


def test_threads_cap_the_blocking_calls() -> None:
    """P10: a blocking call needs a slot and a thread, and takes both or none."""
    scheduler, limits = make(slots=5, threads=1)
    add(scheduler, limits, "a", "pq", BLOCKING)
    assert grant_all(scheduler) == ["p"]
    assert limits.slots is not None
    assert (limits.slots.free, limits.threads.free) == (4, 0)
    assert scheduler.wait_of("q") == Wait("place", "max_threads", ["p"])
    scheduler.release("p", 0.0)
    assert (limits.slots.free, limits.threads.free) == (5, 1)
    assert grant_all(scheduler) == ["q"]


def test_call_that_needs_no_thread_overtakes_one_that_has_none() -> None:
    """Nothing is held while waiting: a call without its thread leaves its slot."""
    scheduler, limits = make(slots=2, threads=1)
    add(scheduler, limits, "a", ["blocking 1", "blocking 2"], BLOCKING)
    add(scheduler, limits, "a", ["async"])
    assert grant_all(scheduler) == ["blocking 1", "async"]


def test_thread_that_is_left_goes_to_the_next() -> None:
    """A call that still runs may be through with its thread."""
    scheduler, limits = make(threads=1)
    add(scheduler, limits, "a", "pq", BLOCKING)
    assert grant_all(scheduler) == ["p"]
    scheduler.leave_thread("p")
    assert grant_all(scheduler) == ["q"]
    scheduler.leave_thread("p")
    scheduler.release("p", 0.0)
    assert limits.threads.free == 0


def test_tool_limit_caps_the_calls_of_a_tool() -> None:
    """`Tool.max_concurrency` holds across batches and leaves other tools alone."""
    scheduler, limits = make()
    capped, other = Needs(tool="t", tool_limit=2), Needs(tool="u", tool_limit=1)
    add(scheduler, limits, "a", "pq", capped)
    add(scheduler, limits, "b", "rs", capped)
    add(scheduler, limits, "b", "x", other)
    add(scheduler, limits, "b", "y", Needs(tool="t"))
    started = grant_all(scheduler)
    assert len(started) == 4 and {"x", "y"} < {*started}
    waiting = next(call for call in "pqrs" if call not in started)
    wait = scheduler.wait_of(waiting)
    assert wait == Wait("place", "Tool.max_concurrency", [c for c in started if c in "pqrs"])


def test_tool_limit_is_shared_by_runners() -> None:
    """Whose call it is does not matter, and the other runner's call is not forgotten."""
    scheduler, limits = make()
    others = Limits(None, 8, PATIENCE)
    capped = Needs(tool="t", tool_limit=1)
    add(scheduler, limits, "a", "p", capped)
    add(scheduler, others, "b", "q", capped)
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_nothing_is_kept_of_a_runner_that_has_no_calls_of_a_tool_any_more() -> None:
    """P10: `run_batch` makes a runner each time, and a capped tool may be busy all the while."""
    scheduler, limits = make()
    capped = Needs(tool="t", tool_limit=1)
    add(scheduler, limits, "a", "pq", capped)
    for number in range(5):
        add(scheduler, Limits(None, 8, PATIENCE), number, [number], capped)
        scheduler.release(number, 0.0)
    (pool,) = scheduler._tools.values()
    assert list(pool.limits) == [limits]


@pytest.mark.parametrize("first", [BLOCKING, Needs()])
def test_place_goes_to_the_first_call_that_may_use_it(first: Needs) -> None:
    """In call order, of whatever kind it is, and however long it had to wait for a claim."""
    scheduler, limits = make(slots=1)
    second = Needs() if first.thread else BLOCKING
    add(scheduler, limits, "other", "x", claims(writes="k", slot=False))
    add(scheduler, limits, "other", "y")
    assert grant_all(scheduler) == ["x", "y"]
    add(scheduler, limits, "a", "p", claims(writes="k", thread=first.thread))
    add(scheduler, limits, "a", "q", second)
    add(scheduler, limits, "a", "r", first)
    scheduler.release("x", 0.0)
    for ended, started in itertools.pairwise("ypqr"):
        scheduler.release(ended, 0.0)
        assert grant_all(scheduler) == [started]


# -- turns -----------------------------------------------------------------------


def test_batch_of_one_is_not_behind_anothers_two_thousand() -> None:
    """Batches take turns, so a small one is served with the next place."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "large", range(2000))
    assert grant_all(scheduler) == [0]
    add(scheduler, limits, "small", ["only"])
    scheduler.release(0, 0.0)
    first = grant_all(scheduler)
    scheduler.release(first[0], 0.0)
    assert "only" in first + grant_all(scheduler)


def test_batches_take_turns() -> None:
    """Each gets a place before any gets a second one."""
    scheduler, limits = make(slots=1)
    for batch in "abc":
        add(scheduler, limits, batch, [f"{batch}{number}" for number in range(3)])
    order = []
    while granted := grant_all(scheduler):
        order += granted
        scheduler.release(granted[0], 0.0)
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_batch_that_can_not_use_a_place_keeps_its_turn() -> None:
    """Who waits for a thread is passed over, and comes first when there is one."""
    scheduler, limits = make(slots=2, threads=1)
    add(scheduler, limits, "a", ["a1", "a2"], BLOCKING)
    add(scheduler, limits, "b", ["b1", "b2", "b3"])
    add(scheduler, limits, "b", ["b4"], BLOCKING)
    assert grant_all(scheduler) == ["a1", "b1"]
    scheduler.release("b1", 0.0)
    assert grant_all(scheduler) == ["b2"]
    scheduler.release("a1", 0.0)
    assert grant_all(scheduler) == ["a2"]


def test_batch_that_comes_anew_comes_last() -> None:
    """A turn from long ago is no credit."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", ["a1"])
    assert grant_all(scheduler) == ["a1"]
    add(scheduler, limits, "b", ["b1", "b2"])
    scheduler.release("a1", 0.0)
    assert grant_all(scheduler) == ["b1"]
    add(scheduler, limits, "a", ["a2"], BLOCKING)
    scheduler.release("b1", 0.0)
    assert grant_all(scheduler) == ["b2"]


def test_batch_does_not_lose_its_turn_by_more_calls() -> None:
    """Neither by calls of the same kind nor of another."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", ["a1"])
    assert grant_all(scheduler) == ["a1"]
    add(scheduler, limits, "b", ["b1"])
    add(scheduler, limits, "c", ["c1"])
    add(scheduler, limits, "b", ["b2"])
    add(scheduler, limits, "b", ["b3"], BLOCKING)
    scheduler.release("a1", 0.0)
    assert grant_all(scheduler) == ["b1"]


def check_turns(lines: list[list[bool]], slots: int, threads: int, ends: list[int]) -> None:
    """
    Run full lines to their end and check every grant.

    While a batch waits and could use the place that is given out, each other
    batch is served once at most before it.

    Args:
        lines: For each batch, which of its calls need a thread.
        slots: As for the runner.
        threads: As for the runner.
        ends: Which of the running calls ends next, over and over.
    """
    scheduler, limits = make(slots, threads)
    for number in range(max(map(len, lines), default=0)):
        for batch, line in enumerate(lines):
            if number < len(line):
                needs = Needs(thread=line[number])
                add(scheduler, limits, batch, [(batch, number)], needs)
    waiting = [dict(enumerate(line)) for line in lines]
    passed = [Counter[int]() for _ in lines]
    running: list[tuple[int, int]] = []
    steps = 0
    while any(waiting) or running:
        free_threads = threads - sum(lines[batch][number] for batch, number in running)
        call = scheduler.grant()
        if call is None:
            scheduler.release(running.pop(ends[steps % len(ends)] % len(running)), 0.0)
            steps += 1
            continue
        served, number = call
        for batch, line in enumerate(waiting):
            if batch != served and line and (free_threads or not all(line.values())):
                passed[batch][served] += 1
                assert passed[batch][served] <= 1, f"{served} went twice before {batch}"
        passed[served].clear()
        del waiting[served][number]
        running.append(call)


some_ends = st.lists(st.integers(0, 5), min_size=1, max_size=8)
some_lines = st.one_of(
    st.integers(0, 8).map(lambda count: [False] * count),
    st.integers(0, 8).map(lambda count: [True] * count),
)


@given(st.lists(some_lines, max_size=4), st.integers(1, 4), st.integers(1, 3), some_ends)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_batches_are_served_in_rounds(
    lines: list[list[bool]], slots: int, threads: int, ends: list[int]
) -> None:
    """A call of a small batch waits for a bounded number of grants of others."""
    check_turns(lines, slots, threads, ends)


# -- claims ----------------------------------------------------------------------


def test_calls_that_conflict_start_one_after_another_in_call_order() -> None:
    """Those that do not conflict overtake."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "pq", claims(writes="k"))
    add(scheduler, limits, "a", "r", claims(reads="k"))
    add(scheduler, limits, "a", "s", claims(reads="other"))
    assert grant_all(scheduler) == ["p", "s"]
    assert scheduler.wait_of("q") == Wait("claim", "k", ["p"])
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_claims_hold_between_batches_and_runners() -> None:
    """Two turns never write one file at once; they go in submit order."""
    scheduler, limits = make()
    others = Limits(None, 8, PATIENCE)
    add(scheduler, limits, "a", "p", claims(writes="k"))
    add(scheduler, others, "b", "q", claims(writes="k"))
    add(scheduler, limits, "a", "r", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]
    assert scheduler.wait_of("r") == Wait("claim", "k", ["q"])
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_call_waits_behind_one_that_waits() -> None:
    """A line keeps its order also where nobody holds what its second needs."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    add(scheduler, limits, "a", "q", claims(writes="k l"))
    add(scheduler, limits, "a", "r", claims(writes="l"))
    assert grant_all(scheduler) == ["p"]
    assert scheduler.wait_of("r") == Wait("claim", "l", ["q"])


def test_claim_is_not_held_by_a_call_that_waits_for_a_place() -> None:
    """Claims and places are taken in one step, and a freed place does not jump the line."""
    scheduler, limits = make(threads=1)
    add(scheduler, limits, "a", "p", BLOCKING)
    add(scheduler, limits, "a", "q", claims(writes="k", thread=True))
    add(scheduler, limits, "a", "r", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    assert scheduler.wait_of("r") == Wait("claim", "k", ["q"])
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_call_whose_turn_comes_is_told_to_wait_for_nothing() -> None:
    """Asked between a fact and the next grant, a call waits for its turn only."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p")
    assert scheduler.wait_of("p") == Wait("turn", None, [])
    assert grant_all(scheduler) == ["p"]
    assert scheduler.wait_of("p") is None


# -- barriers --------------------------------------------------------------------


def test_exclusive_call_is_a_barrier_in_call_order() -> None:
    """Earlier calls of its batch end before it starts, later ones start when it has ended."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "pq")
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    add(scheduler, limits, "a", "r")
    assert grant_all(scheduler) == ["p", "q"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["x"]
    assert scheduler.wait_of("r").calls == ["x"]
    scheduler.release("x", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_barrier_waits_for_calls_that_wait_for_a_place() -> None:
    """Also those are earlier calls of its batch, claims or none."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "p")
    add(scheduler, limits, "a", "q")
    add(scheduler, limits, "a", "r", claims(writes="k"))
    add(scheduler, limits, "a", "x", Needs(exclusive=True, slot=False))
    for expected in "pqrx":
        assert grant_all(scheduler) == [expected]
        scheduler.release(expected, 0.0)


def test_batch_without_a_barrier_pays_nothing_for_it() -> None:
    """Calls that claim nothing are in no table."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p")
    add(scheduler, limits, "a", "q", ask=True)
    assert len(scheduler.table) == 0
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    assert len(scheduler.table) == 1


def test_barrier_is_one_in_its_own_batch_only() -> None:
    """Another batch of the runner goes on."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    add(scheduler, limits, "b", "p")
    assert grant_all(scheduler) == ["x", "p"]


def test_barriers_keep_their_order() -> None:
    """Two exclusive calls run one after the other."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "xy", Needs(exclusive=True))
    assert grant_all(scheduler) == ["x"]
    scheduler.release("x", 0.0)
    assert grant_all(scheduler) == ["y"]


def test_barrier_stands_behind_calls_that_are_asked_for() -> None:
    """Call order holds also while an earlier call awaits approval, claims or none."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", ask=True)
    add(scheduler, limits, "a", "q", claims(writes="k"), ask=True)
    add(scheduler, limits, "a", "x", Needs(exclusive=True), ask=True)
    scheduler.approve("x", 0.0)
    assert grant_all(scheduler) == []
    assert scheduler.wait_of("x").kind == "order"
    scheduler.approve("p", 0.0)
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["x"]


@pytest.mark.parametrize(("waiters", "most"), [(0, 64), (1, 64), (100, 200)])
def test_cut_calls_do_not_pile_up_among_those_that_are_due(waiters: int, most: int) -> None:
    """P10: turns that met a detached writer and were cut are not kept until all is due."""
    scheduler, limits = make()
    add(scheduler, limits, "old", ["writer"], claims(writes="k"))
    assert grant_all(scheduler) == ["writer"]
    scheduler.let_go("writer", 0.0)
    patience = {f"waiter {number}": 1.0 + 37 * number % 101 for number in range(waiters)}
    for waiter, seconds in patience.items():
        runner = Limits(None, 8, seconds)
        add(scheduler, runner, waiter, [waiter], claims(writes="k"))
    longest = passes = 0
    for number in range(1000):
        before = scheduler._busy
        add(scheduler, limits, number, [number], claims(writes="k"))
        passes += scheduler._busy is not before
        longest = max(longest, len(scheduler._busy))
        scheduler.release(number, 0.0)
    assert longest == most
    assert passes <= 2 * 1000 / most, "each has to be paid for by many calls"
    assert scheduler.next_refusal() == min(patience.values(), default=None)
    refused = [refusal.call for refusal in scheduler.take_refusals(200.0)]
    assert refused == sorted(patience, key=patience.__getitem__)


class Turn:
    """A batch's name that can be looked for."""


def test_cut_calls_do_not_pile_up_behind_one_that_waits() -> None:
    """P10: turns that are interrupted leave nothing in the line, however long it stands."""
    scheduler, limits = make()
    add(scheduler, limits, "long", ["holder"], claims(writes="k"))
    assert grant_all(scheduler) == ["holder"]
    add(scheduler, limits, "long", ["waiter"], claims(writes="k"))
    alive: weakref.WeakSet[Turn] = weakref.WeakSet()
    for number in range(500):
        turn = Turn()
        alive.add(turn)
        add(scheduler, limits, turn, [number], claims(writes="k"))
        scheduler.halt(turn)
        scheduler.release(number, 0.0)
    gc.collect()
    assert len(alive) < 50
    scheduler.release("holder", 0.0)
    assert grant_all(scheduler) == ["waiter"]


def test_barrier_waits_for_calls_that_stand_behind_another() -> None:
    """A call that is approved, and not in line yet, is an earlier one of its batch too."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"), ask=True)
    add(scheduler, limits, "a", "q", claims(writes="k"))
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    scheduler.approve("p", 0.0)
    for expected in "pqx":
        assert grant_all(scheduler) == [expected]
        scheduler.release(expected, 0.0)


def test_exclusive_call_that_was_let_go_of_blocks_the_rest_of_its_batch() -> None:
    """It counts as a detached writer, and only there."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    assert grant_all(scheduler) == ["x"]
    scheduler.let_go("x", 1.0)
    add(scheduler, limits, "a", "p")
    add(scheduler, limits, "b", "q")
    assert grant_all(scheduler) == ["q"]
    assert scheduler.take_refusals(1.0 + PATIENCE) == [Refusal("p", "x", 1.0)]


def test_barrier_does_not_wait_for_a_call_that_was_let_go_of() -> None:
    """What was let go of is over for its batch, but for what it writes."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("p", 0.0)
    add(scheduler, limits, "a", "x", Needs(exclusive=True))
    assert grant_all(scheduler) == ["x"]


# -- approvals -------------------------------------------------------------------


def test_call_does_not_start_before_it_is_approved() -> None:
    """Waiting for approval holds no slot and no claim."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "p", claims(writes="k"), ask=True)
    add(scheduler, limits, "b", "q", claims(writes="k"))
    assert scheduler.wait_of("p") == Wait("approval", None, [])
    assert scheduler.held_back("a") == 1
    assert grant_all(scheduler) == ["q"]
    scheduler.approve("p", 0.0)
    assert scheduler.held_back("a") == 0
    assert grant_all(scheduler) == []
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["p"]


def test_approved_call_stands_behind_an_earlier_one_that_is_asked_for() -> None:
    """Call order, where they conflict; others of the batch overtake."""
    scheduler, limits = make()
    for call, key in (("p", "k"), ("q", "k"), ("r", "l"), ("s", "k")):
        add(scheduler, limits, "a", call, claims(writes=key), ask=True)
    for call in "sqr":
        scheduler.approve(call, 0.0)
    assert grant_all(scheduler) == ["r"]
    assert scheduler.held_back("a") == 3
    assert scheduler.wait_of("q") == Wait("order", "k", ["p"])
    scheduler.approve("p", 0.0)
    assert scheduler.held_back("a") == 0
    for expected in "pqs":
        assert grant_all(scheduler) == [expected]
        scheduler.release(expected, 0.0)


def test_call_that_nobody_is_asked_for_stands_behind_one_that_somebody_is() -> None:
    """It is approved from the start; call order holds all the same."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"), ask=True)
    add(scheduler, limits, "a", "q", claims(reads="k"))
    add(scheduler, limits, "a", "r", claims(reads="other"))
    add(scheduler, limits, "a", "s")
    assert grant_all(scheduler) == ["r", "s"]
    assert scheduler.wait_of("q") == Wait("order", "k", ["p"])
    assert scheduler.held_back("a") == 2
    scheduler.approve("p", 0.0)
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_call_that_is_denied_lets_those_behind_it_pass() -> None:
    """One that conflicts with another that is asked for stays behind."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"), ask=True)
    add(scheduler, limits, "a", "q", claims(writes="l"), ask=True)
    add(scheduler, limits, "a", "r", claims(reads="k"), ask=True)
    add(scheduler, limits, "a", "s", claims(reads="k l"), ask=True)
    for call in "sr":
        scheduler.approve(call, 0.0)
    assert scheduler.release("p", 0.0) is True
    assert grant_all(scheduler) == ["r"]
    assert scheduler.held_back("a") == 2
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["s"]
    assert scheduler.held_back("a") == 0


def test_long_line_behind_one_approval_moves_up_at_once() -> None:
    """Ten thousand approved calls behind one: no recursion, and all in call order."""
    scheduler, limits = make()
    count = 10_000
    add(scheduler, limits, "a", range(count), claims(writes="k"), ask=True)
    for call in reversed(range(count)):
        scheduler.approve(call, 0.0)
    assert scheduler.held_back("a") == 0
    for call in range(count):
        assert scheduler.grant() == call
        scheduler.release(call, 0.0)


def test_line_that_waits_for_a_person_holds_up_its_own_batch_only() -> None:
    """Other batches go on, whatever its calls claim."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "pq", claims(writes="k"), ask=True)
    scheduler.approve("q", 0.0)
    add(scheduler, limits, "b", "r", claims(writes="k"))
    assert grant_all(scheduler) == ["r"]


def test_unknown_fact_is_refused() -> None:
    """A fact that a state does not know is a fault of ours."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p")
    with pytest.raises(KeyError):
        scheduler.approve("p", 0.0)


# -- cuts ------------------------------------------------------------------------


def test_nothing_of_a_halted_batch_starts() -> None:
    """P4: neither what could have started, nor what comes later."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "pqr")
    assert grant_all(scheduler) == ["p"]
    add(scheduler, limits, "b", "s")
    scheduler.halt("a")
    scheduler.halt("a")
    scheduler.release("p", 0.0)
    add(scheduler, limits, "a", "t")
    assert grant_all(scheduler) == ["s"]
    scheduler.release("s", 0.0)
    for call in "qrt":
        assert grant_all(scheduler) == []
        assert scheduler.release(call, 0.0) is True
        assert scheduler.release(call, 0.0) is False
    check_is_empty(scheduler, [limits])


def test_batch_that_was_halted_before_its_grant_starts_nothing() -> None:
    """P4: also a call that was free to start and had its turn coming."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    add(scheduler, limits, "a", "q", claims(writes="k"), ask=True)
    scheduler.halt("a")
    scheduler.approve("q", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("q", 0.0)
    check_is_empty(scheduler, [limits])


def test_call_behind_one_of_a_halted_batch_goes_on() -> None:
    """What will never start is in nobody's way once it is released."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "pq", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    add(scheduler, limits, "b", "r", claims(writes="k"))
    scheduler.halt("a")
    scheduler.release("q", 0.0)
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_batch_may_come_back_after_it_was_through() -> None:
    """A streaming batch may be empty for a while."""
    scheduler, limits = make()
    for call in "pq":
        add(scheduler, limits, "a", call, Needs(exclusive=True))
        assert grant_all(scheduler) == [call]
        scheduler.release(call, 0.0)
    check_is_empty(scheduler, [limits])


# -- detached calls --------------------------------------------------------------


def test_detached_call_keeps_its_write_claims_and_nothing_else() -> None:
    """P5: two turns never write one file at once; its places serve the next turn."""
    scheduler, limits = make(slots=1, threads=1)
    add(scheduler, limits, "a", "p", claims("r", "w", thread=True))
    assert grant_all(scheduler) == ["p"]
    add(scheduler, limits, "b", "q", claims(writes="r", thread=True))
    add(scheduler, limits, "b", "s", claims(reads="w", slot=False))
    scheduler.let_go("p", 0.0)
    assert grant_all(scheduler) == ["q"]
    assert scheduler.entry("p").state is CallState.DETACHED
    assert scheduler.wait_of("s") == Wait("claim", "w", ["p"])
    scheduler.let_go("p", 1.0)
    assert scheduler.release("p", 1.0) is True
    assert grant_all(scheduler) == ["s"]


@pytest.mark.parametrize("needs", [Needs(), claims(reads="k")])
def test_call_that_writes_nothing_is_over_when_it_is_let_go_of(needs: Needs) -> None:
    """There is nothing left to wait for."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "p", needs)
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("p", 0.0)
    assert scheduler.release("p", 0.0) is False
    check_is_empty(scheduler, [limits])


def test_call_that_does_not_run_can_not_be_let_go_of() -> None:
    """It is released instead."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "a", "pq", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("q", 0.0)
    assert scheduler.wait_of("q") == Wait("claim", "k", ["p"])


def test_call_that_meets_a_detached_writer_is_refused_in_time() -> None:
    """Counted from joining the line or from the detachment, whichever is later."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    add(scheduler, limits, "b", "q", claims(reads="k"))
    assert scheduler.next_refusal() is None
    scheduler.let_go("p", 10.0)
    scheduler.add("c", limits, "r", claims(writes="k"), 12.0)
    assert scheduler.next_refusal() == 10.0 + PATIENCE
    assert scheduler.take_refusals(9.9 + PATIENCE) == []
    assert scheduler.take_refusals(10.0 + PATIENCE) == [Refusal("q", "p", 10.0)]
    scheduler.release("q", 15.0)
    assert scheduler.next_refusal() == 12.0 + PATIENCE
    assert scheduler.take_refusals(12.0 + PATIENCE) == [Refusal("r", "p", 10.0)]


def test_patience_is_that_of_the_waiting_calls_runner() -> None:
    """Runners that share their claims may wait for different times."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("p", 0.0)
    add(scheduler, Limits(None, 8, 1.0), "b", "q", claims(writes="k"))
    assert scheduler.next_refusal() == 1.0


def test_nobody_is_refused_when_the_writer_has_ended() -> None:
    """A call that got what it waited for, or that was cut, is not refused."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("p", 0.0)
    add(scheduler, limits, "b", "qr", claims(writes="k"))
    scheduler.release("r", 1.0)
    scheduler.release("p", 1.0)
    assert grant_all(scheduler) == ["q"]
    assert scheduler.take_refusals(100.0) == []
    add(scheduler, limits, "b", "s", claims(writes="k"))
    assert scheduler.next_refusal() is None


def test_call_that_stands_behind_a_refused_one_goes_on() -> None:
    """It did not meet the writer itself."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "p", claims(writes="k"))
    assert grant_all(scheduler) == ["p"]
    scheduler.let_go("p", 0.0)
    add(scheduler, limits, "b", "q", claims(writes="k l"))
    add(scheduler, limits, "b", "r", claims(writes="l"))
    (refusal,) = scheduler.take_refusals(PATIENCE)
    assert refusal.call == "q"
    scheduler.release("q", PATIENCE)
    assert grant_all(scheduler) == ["r"]


# -- nesting ---------------------------------------------------------------------


@pytest.mark.parametrize("needs", [Needs(), BLOCKING, Needs(tool="t", tool_limit=1)])
def test_inner_batches_go_on_at_cap_1_at_any_depth(needs: Needs) -> None:
    """A call lends its places to the calls that it waits for."""
    scheduler, limits = make(slots=1, threads=1)
    inside: list[int] = []
    for depth in range(5):
        add(scheduler, limits, depth, [depth], needs, inside=inside)
        assert grant_all(scheduler) == [depth]
        inside.insert(0, depth)
    add(scheduler, limits, "other", ["stranger"], needs)
    for depth in reversed(range(5)):
        assert grant_all(scheduler) == []
        scheduler.release(depth, 0.0)
    assert grant_all(scheduler) == ["stranger"]
    scheduler.release("stranger", 0.0)
    check_is_empty(scheduler, [limits])


def test_place_is_lent_to_one_at_a_time() -> None:
    """P10: the calls of an inner batch do not exceed the cap together."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "outer", "o")
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "inner", "pqr", inside="o")
    for expected in "pqr":
        assert grant_all(scheduler) == [expected]
        scheduler.release(expected, 0.0)
    add(scheduler, limits, "other", "s")
    assert grant_all(scheduler) == []
    assert scheduler.wait_of("s") == Wait("place", "max_concurrency", ["o"])


def test_inner_calls_use_free_places_beside_the_loan() -> None:
    """A place on loan counts once."""
    scheduler, limits = make(slots=3)
    add(scheduler, limits, "outer", "o")
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "inner", "pqrs", inside="o")
    assert grant_all(scheduler) == ["p", "q", "r"]
    assert scheduler.wait_of("s") == Wait("place", "max_concurrency", ["p", "q", "r"])


def test_place_stays_with_who_has_it_on_loan() -> None:
    """An outer call that ends first leaves its place to the inner one."""
    scheduler, limits = make(slots=1)
    inside: list[str] = []
    for call in "opq":
        add(scheduler, limits, call, call, inside=inside)
        inside.insert(0, call)
        assert grant_all(scheduler) == [call]
    add(scheduler, limits, "other", "s")
    for call in "opq":
        assert grant_all(scheduler) == []
        scheduler.release(call, 0.0)
    assert grant_all(scheduler) == ["s"]


def test_place_falls_back_past_a_call_that_has_ended() -> None:
    """The loan of the loan goes to the first lender, who can lend it again."""
    scheduler, limits = make(slots=1)
    inside: list[str] = []
    for call in "opq":
        add(scheduler, limits, call, call, inside=inside)
        inside.insert(0, call)
        assert grant_all(scheduler) == [call]
    add(scheduler, limits, "p", "r", inside="o")
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("q", 0.0)
    assert grant_all(scheduler) == ["r"]


def test_places_are_lent_across_runners_that_share_a_tools_cap() -> None:
    """A tool that runs a batch on another runner does not wait for its own place."""
    scheduler, limits = make()
    others = Limits(1, 8, PATIENCE)
    capped = Needs(tool="t", tool_limit=1)
    add(scheduler, limits, "outer", "o", capped)
    assert grant_all(scheduler) == ["o"]
    add(scheduler, others, "inner", "pq", capped, inside="o")
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_inner_batch_takes_turns_with_others_for_free_places() -> None:
    """Only what it has on loan is its own."""
    scheduler, limits = make(slots=2, threads=1)
    add(scheduler, limits, "outer", "o")
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "inner", ["i1", "i2", "i3"], BLOCKING, inside="o")
    assert grant_all(scheduler) == ["i1"]
    add(scheduler, limits, "other", ["s1", "s2"], BLOCKING)
    order = ["i1"]
    for _ in range(4):
        scheduler.release(order[-1], 0.0)
        order += grant_all(scheduler)
    assert order == ["i1", "i2", "s1", "i3", "s2"]


def make_borrower_of_a_slot_without_a_thread() -> tuple[Scheduler, Limits]:
    """Make inner calls that could have a slot on loan; what they lack is a thread."""
    scheduler, limits = make(slots=1, threads=1)
    add(scheduler, limits, "other", "s", Needs(thread=True, slot=False))
    add(scheduler, limits, "outer", "o")
    assert grant_all(scheduler) == ["s", "o"]
    add(scheduler, limits, "inner", "p", BLOCKING, inside="o")
    add(scheduler, limits, "inner", "q", BLOCKING._replace(tool="t", tool_limit=1), inside="o")
    assert grant_all(scheduler) == []
    assert scheduler.wait_of("p") == Wait("place", "max_threads", ["s"])
    return scheduler, limits


def test_call_with_a_place_on_loan_and_a_free_one_starts() -> None:
    """The free one may come later, and another call of its batch may have gone meanwhile."""
    scheduler, _ = make_borrower_of_a_slot_without_a_thread()
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == []
    scheduler.release("s", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_nothing_is_kept_of_an_inner_batch_that_was_cut() -> None:
    """P10: although there was a place to lend to it."""
    scheduler, limits = make_borrower_of_a_slot_without_a_thread()
    scheduler.halt("inner")
    for call in "pqos":
        assert limits._borrowers == {}
        scheduler.release(call, 0.0)
    check_is_empty(scheduler, [limits])


def test_inner_call_ignores_its_ancestors_claims_and_barriers() -> None:
    """A tool that writes a file may run a batch that does."""
    scheduler, limits = make()
    add(scheduler, limits, "outer", "o", claims(writes="k", exclusive=True))
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "inner", "p", claims(writes="k", exclusive=True), inside="o")
    add(scheduler, limits, "inner", "q", claims(reads="k"), inside="o")
    add(scheduler, limits, "outer", "r")
    assert grant_all(scheduler) == ["p"]
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_inner_call_does_not_wait_for_strangers_that_wait() -> None:
    """They may be waiting for its own outer call."""
    scheduler, limits = make()
    add(scheduler, limits, "outer", "o", claims(writes="k"))
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "other", "s", claims(writes="k l"))
    assert grant_all(scheduler) == []
    add(scheduler, limits, "inner", "p", claims(writes="l"), inside="o")
    assert grant_all(scheduler) == ["p"]


def test_call_that_an_inner_one_got_ahead_of_waits_for_it() -> None:
    """It was free and waited for a place only; now it has to wait for its claim."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "outer", "o")
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "other", "st", claims(writes="k"))
    assert scheduler.wait_of("s").kind == "place"
    add(scheduler, limits, "inner", "p", claims(writes="k"), inside="o")
    assert grant_all(scheduler) == ["p"]
    scheduler.release("o", 0.0)
    assert grant_all(scheduler) == []
    assert scheduler.wait_of("s") == Wait("claim", "k", ["p"])
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["s"]
    scheduler.release("s", 0.0)
    assert grant_all(scheduler) == ["t"]


def test_runner_of_its_own_in_a_tool_shares_nothing() -> None:
    """Neither claims nor places of another scheduler are in the way, nor of any use."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "outer", "o", claims(writes="k"))
    assert grant_all(scheduler) == ["o"]
    ancestor = scheduler.entry("o")
    others = Limits(1, 8, PATIENCE)
    inner = Scheduler()
    for call in "pq":
        inner.add("inner", others, call, claims(writes="k"), 0.0, ancestors=(ancestor,))
    assert grant_all(inner) == ["p"]
    inner.release("p", 0.0)
    assert grant_all(inner) == ["q"]
    inner.release("q", 0.0)
    assert not ancestor.inner
    check_is_empty(inner, [others])


# -- circles of waits --------------------------------------------------------------


def test_call_that_would_close_a_circle_is_refused() -> None:
    """Two families that wait for each other's keys: the later call fails at once."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["o", "p"]
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="o")
    assert grant_all(scheduler) == [] and scheduler.take_refusals(0.0) == []
    add(scheduler, limits, "in p", "r", claims(writes="k"), inside="p")
    assert grant_all(scheduler) == []
    assert scheduler.take_refusals(0.0) == [Refusal("r", "o", None)]
    scheduler.release("r", 0.0)
    assert scheduler.take_refusals(0.0) == []
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_of_two_that_close_a_circle_at_once_the_first_stays() -> None:
    """No more is refused than has to be."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["o", "p"]
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="o")
    add(scheduler, limits, "in p", "rs", claims(writes="k"), inside="p")
    assert grant_all(scheduler) == []
    assert scheduler.take_refusals(0.0) == [Refusal("r", "o", None), Refusal("s", "o", None)]


def test_place_on_loan_is_no_way_out_of_a_circle() -> None:
    """A place that falls back to its lender is not there for others."""
    scheduler, limits = make(slots=1)
    add(scheduler, limits, "b", "p", claims(writes="l", slot=False))
    add(scheduler, limits, "a", "o")
    assert grant_all(scheduler) == ["p", "o"]
    add(scheduler, limits, "in o", "q", inside="o")
    assert grant_all(scheduler) == ["q"]
    add(scheduler, limits, "in p", "r", inside="p")
    assert grant_all(scheduler) == [] and scheduler.take_refusals(0.0) == []
    assert scheduler.wait_of("r") == Wait("place", "max_concurrency", ["o"])
    add(scheduler, limits, "in o", "s", claims(writes="l", slot=False), inside="o")
    assert grant_all(scheduler) == []
    assert scheduler.take_refusals(0.0) == [Refusal("s", "p", None)]


def test_refused_call_of_one_batch_is_in_nobodys_way_in_the_next() -> None:
    """A third family waits for a circle that is broken in the same breath."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    add(scheduler, limits, "c", "t")
    assert grant_all(scheduler) == ["o", "p", "t"]
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="o")
    assert scheduler.take_refusals(0.0) == []
    add(scheduler, limits, "in p", "r", claims(writes="k"), inside="p")
    add(scheduler, limits, "in t", "s", claims(writes="k"), inside="t")
    assert scheduler.take_refusals(0.0) == [Refusal("r", "o", None)]


def test_call_that_has_started_is_not_refused() -> None:
    """A call of an inner batch may have an inner batch by the time that it is looked at."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "t")
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["t", "p"]
    add(scheduler, limits, "in t", "o", claims(writes="k"), inside="t")
    assert grant_all(scheduler) == ["o"]
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="ot")
    add(scheduler, limits, "in p", "r", claims(writes="k"), inside="p")
    assert scheduler.take_refusals(0.0) == [Refusal("r", "o", None)]


def test_detached_ancestor_is_no_reason_to_be_refused() -> None:
    """A kept call's inner batch goes on, and ignores what that call still holds."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["o", "p"]
    scheduler.let_go("o", 0.0)
    add(scheduler, limits, "in o", "q", claims(writes="k l"), inside="o")
    assert grant_all(scheduler) == []
    assert scheduler.next_refusal() is None
    scheduler.release("p", 0.0)
    assert grant_all(scheduler) == ["q"]


def test_call_that_is_refused_already_is_refused_once() -> None:
    """It waits for a detached writer, and in a circle."""
    scheduler, limits = make()
    add(scheduler, limits, "c", "d", claims(writes="m"))
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["d", "o", "p"]
    scheduler.let_go("d", 0.0)
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="o")
    add(scheduler, limits, "in p", "r", claims(writes="k m"), inside="p")
    assert scheduler.take_refusals(PATIENCE) == [Refusal("r", "d", 0.0)]


def test_calls_of_a_halted_batch_are_not_looked_at() -> None:
    """They will be settled by the cut."""
    scheduler, limits = make()
    add(scheduler, limits, "a", "o", claims(writes="k"))
    add(scheduler, limits, "b", "p", claims(writes="l"))
    assert grant_all(scheduler) == ["o", "p"]
    add(scheduler, limits, "in o", "q", claims(writes="l"), inside="o")
    add(scheduler, limits, "in p", "r", claims(writes="k"), inside="p")
    scheduler.halt("in p")
    assert scheduler.take_refusals(0.0) == []


# -- cost ------------------------------------------------------------------------


def run_flat(count: int) -> None:
    """Ten calls for each key, of one batch."""
    scheduler, limits = make(slots=8)
    for call in range(count):
        add(scheduler, limits, "a", [call], claims(writes=f"k{call % (count // 10)}"))
    run_out(scheduler)


def run_deep(count: int) -> None:
    """Ten calls for each of many files, five folders deep."""
    scheduler, limits = make(slots=8)
    for call in range(count):
        name = f"{call % (count // 10):08}"
        path = tuple(
            (name[:3], name[:5], name[:6], name[:7], name)[:length] for length in range(6)
        )
        add(scheduler, limits, "a", [call], Needs(expand([], [path])))
    run_out(scheduler)


def run_batches(count: int) -> None:
    """Batches of one, of which half wait for a thread, and a barrier in each tenth."""
    scheduler, limits = make(threads=1)
    for call in range(count):
        needs = Needs(thread=call % 2 == 0, exclusive=call % 10 == 9)
        add(scheduler, limits, call, [call], needs)
    run_out(scheduler)


def run_behind(count: int) -> None:
    """All behind one that is asked for, approved from the last to the first."""
    scheduler, limits = make(slots=8)
    add(scheduler, limits, "a", range(count), claims(writes="k"), ask=True)
    for call in reversed(range(count)):
        scheduler.approve(call, 0.0)
    run_out(scheduler)


def run_inside(count: int) -> None:
    """Two large batches inside two calls that run, each call looked at as it joins."""
    scheduler, limits = make(slots=8)
    add(scheduler, limits, "a", "op")
    assert grant_all(scheduler) == ["o", "p"]
    running = [*"op"]
    for number in range(count // 2):
        for outer in "op":
            key = f"k{number % (count // 10)}"
            needs = claims(writes=key)
            add(scheduler, limits, f"in {outer}", [(outer, number)], needs, inside=outer)
            running += grant_all(scheduler)
            assert scheduler.take_refusals(0.0) == []
    run_out(scheduler, running)


def run_families(count: int) -> None:
    """Many calls that run a small batch each, all of whose calls use one capped tool."""
    scheduler, limits = make()
    outer = range(count // 10)
    add(scheduler, limits, "a", outer)
    running = grant_all(scheduler)
    for number in range(count):
        family = number % len(outer)
        needs = claims(f"k{number}", tool="t", tool_limit=8)
        add(scheduler, limits, ("in", family), [("in", number)], needs, inside=[family])
    run_out(scheduler, running)


def run_out(scheduler: Scheduler, running: Sequence[Any] = ()) -> None:
    queue = [*running, *grant_all(scheduler)]
    for call in queue:  # which grows
        scheduler.release(call, 0.0)
        queue += grant_all(scheduler)
    assert len(scheduler) == 0


@pytest.mark.parametrize(
    "run", [run_flat, run_deep, run_batches, run_behind, run_inside, run_families]
)
def test_cost_of_a_call_does_not_grow_with_their_number(run: Callable[[int], None]) -> None:
    """Ten times the calls make ten times the work, in steps rather than in seconds."""

    def steps(count: int) -> int:
        taken = 0

        def count_step(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal taken
            taken += event == "call"

        before = sys.getprofile()
        sys.setprofile(count_step)
        try:
            run(count)
        finally:
            sys.setprofile(before)
        return taken

    assert steps(2000) < 11 * steps(200)


# -- any history -----------------------------------------------------------------


some_keys = st.lists(st.sampled_from(KEYS), max_size=2)


class SchedulerMachine(RuleBasedStateMachine):
    """Every fact in any order, against rules that are slow and simple."""

    @initialize(limits=st.integers(0, len(LIMITS) - 1), schedulers=st.sampled_from([1, 1, 2]))
    def begin(self, limits: int, schedulers: int) -> None:
        self.world = World(schedulers)
        self.limits = limits

    def draw(self, data: st.DataObject, calls: Sequence[Any]) -> Any:
        # Late ones first: shrinking leads to those that the last steps made.
        return calls[-1 - data.draw(st.integers(0, len(calls) - 1))]

    # Always enabled.
    @rule(data=st.data(), root=st.booleans(), new=st.booleans())
    def submit(self, data: st.DataObject, root: bool, new: bool) -> None:
        world = self.world
        # A kept call may open batches when it was let go of, too.
        started = [call for call in world.calls if call.holds]
        parent = None if root or not started else self.draw(data, started)
        parents = () if parent is None else (parent, *parent.batch.parents)
        open_ = [b for b in world.batches if b.parents == parents and not b.is_halted]
        if new or not open_:
            other = data.draw(st.integers(0, 8))
            limits = other if other < len(LIMITS) else self.limits
            batch = world.open_batch(other, limits, parent)
        else:
            batch = self.draw(data, open_)
        world.submit(
            batch,
            data.draw(some_keys),
            data.draw(some_keys),
            exclusive=data.draw(st.integers(0, 5)) == 5,
            thread=data.draw(st.booleans()),
            slot=data.draw(st.integers(0, 4)) < 4,
            tool=data.draw(st.sampled_from([None, None, *TOOLS])),
            ask=data.draw(st.integers(0, 4)) == 4,
        )

    @precondition(lambda self: self.those(CallState.ASKED))
    @rule(data=st.data())
    def approve(self, data: st.DataObject) -> None:
        self.world.approve(self.draw(data, self.those(CallState.ASKED)))

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.world.end(self.draw(data, self.world.calls))

    @precondition(lambda self: self.those(CallState.RUNNING))
    @rule(data=st.data(), keep=st.booleans())
    def let_go(self, data: st.DataObject, keep: bool) -> None:
        self.world.let_go(self.draw(data, self.those(CallState.RUNNING)), keep=keep)

    @precondition(lambda self: self.those(CallState.RUNNING))
    @rule(data=st.data())
    def leave_thread(self, data: st.DataObject) -> None:
        self.world.leave_thread(self.draw(data, self.those(CallState.RUNNING)))

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def halt(self, data: st.DataObject) -> None:
        self.world.halt(self.draw(data, self.world.calls).batch)
        self.world.settle()

    @rule(seconds=st.sampled_from([1.0, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    def those(self, state: CallState) -> list[Call]:
        return [
            call
            for call in self.world.calls
            if call.state is state and not call.batch.is_halted
        ]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.wind_up(lambda calls: calls[-1])


SchedulerMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, derandomize=True
)
TestSchedulerMachine = SchedulerMachine.TestCase


def grow_trees(seed: int, steps: int) -> None:
    """Open batches inside running calls, several levels deep, and bring all to an end."""
    dice = random.Random(seed)
    chance = lambda probability: dice.random() < probability  # noqa: E731
    world = World(dice.choice([1, 1, 2]))
    own_limits = dice.randrange(len(LIMITS))
    asks, barriers, tools, cuts = (chance(0.4) * x for x in (0.3, 0.15, 0.3, 0.1))
    longest = dice.choice([1, 2, 3])

    def some_keys() -> list[tuple[str, ...]]:
        return [dice.choice(KEYS) for _ in range(dice.randrange(longest))]

    for _ in range(steps):
        running = [call for call in world.calls if call.is_running]
        leaves = [call for call in running if not any(batch.calls for batch in call.inner)]
        if chance(0.55):
            started = [call for call in world.calls if call.holds]
            parent = dice.choice(started) if started and chance(0.7) else None
            parents = () if parent is None else (parent, *parent.batch.parents)
            open_ = [b for b in world.batches if b.parents == parents and not b.is_halted]
            if open_ and chance(0.5):
                batch = dice.choice(open_)
            else:
                batch = world.open_batch(
                    dice.randrange(2), own_limits if chance(0.8) else dice.randrange(4), parent
                )
            world.submit(
                batch,
                some_keys(),
                some_keys(),
                exclusive=chance(barriers),
                thread=chance(0.4),
                slot=chance(0.8),
                tool=dice.choice([*TOOLS]) if chance(tools) else None,
                ask=chance(asks),
            )
        elif running and chance(cuts):
            world.let_go(dice.choice(running), keep=chance(0.3))
        elif running and chance(cuts):
            world.leave_thread(dice.choice(running))
        elif chance(cuts):
            world.wait(dice.choice([1.0, 3.0, 6.0]))
        else:
            ready = [
                c for c in world.calls if c.state in {CallState.ASKED, CallState.DETACHED}
            ]
            if ready + leaves:
                call = dice.choice(ready + leaves)
                is_asked = call.state is CallState.ASKED and not call.batch.is_halted
                (world.approve if is_asked else world.end)(call)
    world.wind_up(dice.choice)


@pytest.mark.parametrize("seed", range(20))
def test_nested_trees_always_settle(seed: int) -> None:
    """No deadlock, no lost wake-up: every call starts or is refused, and nothing is left."""
    for number in range(10):
        grow_trees(seed * 10 + number, 50)
