"""P10: caps hold, lines keep their order, batches take turns, no place stays idle."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from anyio_toolbatch._core.scheduler import Scheduler

BATCHES = ("a", "b", "c", "d")


def grant_all(scheduler: Scheduler[str]) -> list[str]:
    granted = []
    while (call := scheduler.grant()) is not None:
        granted.append(call)
    return granted


def test_nothing_waits_nothing_is_granted() -> None:
    """An empty scheduler gives nothing."""
    assert Scheduler[str](1, 1).grant() is None


def test_slots_cap_the_running_calls() -> None:
    """P10: no more calls run than there are slots."""
    scheduler = Scheduler[str](2, 5)
    for call in "pqr":
        scheduler.add("a", call, needs_thread=False)
    assert grant_all(scheduler) == ["p", "q"]
    scheduler.release("p")
    assert grant_all(scheduler) == ["r"]


def test_threads_cap_the_blocking_calls() -> None:
    """P10: a blocking call needs a slot and a thread, and takes both or none."""
    scheduler = Scheduler[str](5, 1)
    for call in "pq":
        scheduler.add("a", call, needs_thread=True)
    assert grant_all(scheduler) == ["p"]
    assert (scheduler.free_slots, scheduler.free_threads) == (4, 0)
    scheduler.release("p")
    assert (scheduler.free_slots, scheduler.free_threads) == (5, 1)
    assert grant_all(scheduler) == ["q"]


def test_call_that_needs_no_thread_overtakes_one_that_has_none() -> None:
    """Nothing is held while waiting: a call without its thread leaves its slot."""
    scheduler = Scheduler[str](3, 1)
    scheduler.add("a", "blocking 1", needs_thread=True)
    scheduler.add("a", "blocking 2", needs_thread=True)
    scheduler.add("a", "plain", needs_thread=False)
    assert grant_all(scheduler) == ["blocking 1", "plain"]


def test_call_order_holds_where_both_may_start() -> None:
    """Neither kind goes before the other: the earlier call starts first."""
    scheduler = Scheduler[str](4, 4)
    for call, needs_thread in [("s", False), ("r", True), ("q", False), ("p", True)]:
        scheduler.add("a", call, needs_thread=needs_thread)
    assert grant_all(scheduler) == ["s", "r", "q", "p"]


def test_batches_take_turns() -> None:
    """A small batch is not stuck behind a large one."""
    scheduler = Scheduler[str](1, 1)
    for number in range(3):
        scheduler.add("large", f"large {number}", needs_thread=False)
    scheduler.add("small", "small", needs_thread=False)
    order = []
    while (call := scheduler.grant()) is not None:
        order.append(call)
        scheduler.release(call)
    assert order == ["large 0", "small", "large 1", "large 2"]


def test_release_gives_a_place_back_once() -> None:
    """P10: a place given back twice would let too many run."""
    scheduler = Scheduler[str](1, 1)
    scheduler.add("a", "p", needs_thread=True)
    assert scheduler.release("p") is False  # it only waits
    assert scheduler.grant() == "p"
    assert scheduler.release("p") is True
    assert scheduler.release("p") is False
    assert (scheduler.free_slots, scheduler.free_threads) == (1, 1)


def test_forget_drops_what_waits_and_not_what_runs() -> None:
    """P4: after a cut nothing of the batch starts; its running calls keep places."""
    scheduler = Scheduler[str](1, 1)
    for call in "pq":
        scheduler.add("a", call, needs_thread=False)
    scheduler.add("b", "r", needs_thread=False)
    assert scheduler.grant() == "p"
    scheduler.forget("a")
    assert scheduler.free_slots == 0
    assert scheduler.release("p") is True
    assert grant_all(scheduler) == ["r"]


def test_forgetting_what_does_not_wait_is_nothing() -> None:
    """A batch may be cut that has no call in line, and twice."""
    scheduler = Scheduler[str](1, 1)
    scheduler.forget("a")
    scheduler.add("b", "p", needs_thread=False)
    scheduler.forget("a")
    assert grant_all(scheduler) == ["p"]


def test_batch_may_come_back_after_it_was_forgotten() -> None:
    """What joins after a `forget` is served like anything else."""
    scheduler = Scheduler[str](2, 1)
    scheduler.add("a", "dropped", needs_thread=False)
    scheduler.forget("a")
    scheduler.add("a", "new", needs_thread=False)
    assert grant_all(scheduler) == ["new"]


def test_nothing_is_kept_of_batches_that_are_through() -> None:
    """P10: the scheduler does not grow with the number of batches."""
    scheduler = Scheduler[str](1, 1)
    for number in range(50):
        scheduler.add(f"batch {number}", f"call {number}", needs_thread=bool(number % 2))
        if number % 3:
            call = scheduler.grant()
            assert call is not None
            scheduler.release(call)
        else:
            scheduler.forget(f"batch {number}")
    kept = (scheduler._lines, scheduler._turns, scheduler._running)
    assert [len(table) for table in kept] == [0, 0, 0]


def check_turns(lines: list[list[bool]], slots: int, threads: int, ends: list[int]) -> None:
    """
    Run full lines to their end and check every grant.

    While a batch waits and could use the place that is given out, each other
    batch is served once at most before it.

    Args:
        lines: For each batch, which of its calls need a thread.
        slots: As for the scheduler.
        threads: As for the scheduler.
        ends: Which of the running calls ends next, over and over.
    """
    scheduler = Scheduler[tuple[int, int]](slots, threads)
    for number in range(max(map(len, lines), default=0)):
        for batch, line in enumerate(lines):
            if number < len(line):
                scheduler.add(batch, (batch, number), needs_thread=line[number])
    waiting = [dict(enumerate(line)) for line in lines]
    passed = [Counter[int]() for _ in lines]
    running: list[tuple[int, int]] = []
    steps = 0
    while any(waiting) or running:
        free_threads = threads - sum(lines[batch][number] for batch, number in running)
        call = scheduler.grant()
        if call is None:
            scheduler.release(running.pop(ends[steps % len(ends)] % len(running)))
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
plain_lines = st.integers(0, 8).map(lambda count: [False] * count)
blocking_lines = st.integers(0, 8).map(lambda count: [True] * count)
mixed_lines = st.lists(st.booleans(), max_size=8)


@given(st.lists(plain_lines, max_size=4), st.integers(1, 4), some_ends)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_plain_batches_are_served_in_rounds(
    lines: list[list[bool]], slots: int, ends: list[int]
) -> None:
    """A call of a small batch waits for a bounded number of grants of others."""
    check_turns(lines, slots, 1, ends)


class SchedulerMachine(RuleBasedStateMachine):
    """Every fact in any order, against a model that is slow and simple."""

    @initialize(slots=st.integers(1, 4), threads=st.integers(1, 3))
    def start(self, slots: int, threads: int) -> None:
        self.slots, self.threads = slots, threads
        self.scheduler = Scheduler[int](slots, threads)
        self.count = 0
        self.waiting: dict[str, list[int]] = {batch: [] for batch in BATCHES}
        self.batch_of: dict[int, str] = {}
        self.needs_thread: dict[int, bool] = {}
        self.running: list[int] = []
        self.granted: set[int] = set()

    @property
    def free_threads(self) -> int:
        return self.threads - sum(self.needs_thread[call] for call in self.running)

    def next_of(self, batch: str) -> int | None:
        """Return the first call of the batch, in call order, that may use a place."""
        for call in self.waiting[batch]:
            if self.free_threads or not self.needs_thread[call]:
                return call
        return None

    # Always enabled.
    @rule(batch=st.sampled_from(BATCHES), needs_thread=st.booleans())
    def add(self, batch: str, needs_thread: bool) -> None:
        # Downwards, so that what is earlier is not also what is smaller.
        call = self.count = self.count - 1
        self.needs_thread[call] = needs_thread
        self.batch_of[call] = batch
        self.waiting[batch].append(call)
        self.scheduler.add(batch, call, needs_thread=needs_thread)

    @rule()
    def grant(self) -> None:
        may_start = {
            batch: call
            for batch in BATCHES
            if len(self.running) < self.slots and (call := self.next_of(batch)) is not None
        }
        call = self.scheduler.grant()
        if not may_start:
            assert call is None, "granted what may not start"
            return
        assert call is not None, f"a place stays idle, though {may_start} could use it"
        assert call not in self.granted, "granted twice"
        batch = self.batch_of[call]
        assert call in self.waiting[batch], "granted what was forgotten"
        assert call == may_start[batch], "overtaken within its batch"
        self.granted.add(call)
        self.waiting[batch].remove(call)
        self.running.append(call)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.running))
        self.running.remove(call)
        assert self.scheduler.release(call) is True

    @rule(batch=st.sampled_from(BATCHES))
    def forget(self, batch: str) -> None:
        self.scheduler.forget(batch)
        self.waiting[batch].clear()

    @rule(data=st.data())
    def release_what_does_not_run(self, data: st.DataObject) -> None:
        call = data.draw(st.integers(self.count - 1, 0))
        if call not in self.running:
            assert self.scheduler.release(call) is False

    @invariant()
    def caps_hold(self) -> None:
        assert len(self.running) <= self.slots
        assert self.free_threads >= 0

    @invariant()
    def places_add_up(self) -> None:
        assert self.scheduler.free_slots == self.slots - len(self.running)
        assert self.scheduler.free_threads == self.free_threads

    def teardown(self) -> None:
        """Waiting implies that it will run: whoever waits is granted in the end."""
        if not hasattr(self, "scheduler"):
            return
        while True:
            for call in [*self.running]:
                self.running.remove(call)
                assert self.scheduler.release(call) is True
            call = self.scheduler.grant()
            if call is None:
                break
            self.waiting[self.batch_of[call]].remove(call)
            self.running.append(call)
        assert not any(self.waiting.values())


SchedulerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestSchedulerMachine = SchedulerMachine.TestCase


@given(
    st.lists(plain_lines | blocking_lines | mixed_lines, max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
    some_ends,
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_batches_of_all_kinds_are_served_in_rounds(
    lines: list[list[bool]], slots: int, threads: int, ends: list[int]
) -> None:
    """The same where some calls wait for a thread: not being able is no lost turn."""
    check_turns(lines, slots, threads, ends)


def test_batch_that_waits_for_a_thread_keeps_its_turn() -> None:
    """P10: one blocking call is not starved by a plain and a blocking batch."""
    scheduler = Scheduler[str](2, 1)
    scheduler.add("busy", "thread user", needs_thread=True)
    blocking = scheduler.grant()
    scheduler.add("small", "small", needs_thread=True)
    for number in range(20):
        scheduler.add("plain", f"plain {number}", needs_thread=False)
        scheduler.add("blocking", f"blocking {number}", needs_thread=True)
    for _ in range(5):
        plain = scheduler.grant()
        assert plain is not None and plain.startswith("plain")
        assert blocking is not None
        scheduler.release(blocking)
        blocking = scheduler.grant()
        scheduler.release(plain)
        if blocking == "small":
            return
    pytest.fail("the small batch was passed over five times")
