"""Nobody waits for ever: circles of waits are found when they close, and only then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anyio_toolbatch._core.claims import expand
from anyio_toolbatch._core.scheduler import Entry, Limits, Needs, Scheduler
from anyio_toolbatch._core.states import CallState
from anyio_toolbatch._core.stuck import find_stuck


class Family:
    """A running call that holds a key, and the calls of a batch inside it."""

    def __init__(self, house: House, key: str, slot: bool, inside: Family | None) -> None:
        self.house = house
        self.key = key
        self.inside = inside
        self.outer = house.add(("outer", key), key, slot, self.ancestors)

    @property
    def ancestors(self) -> tuple[Entry, ...]:
        inside = self.inside
        return () if inside is None else (inside.outer, *inside.ancestors)

    def add(self, *keys: str, slot: bool = False, **options: Any) -> Entry:
        """Add an inner call that writes some keys."""
        ancestors = (self.outer, *self.ancestors)
        return self.house.add(("inner", self.key), " ".join(keys), slot, ancestors, **options)


class House:
    """A scheduler whose calls start when they can."""

    def __init__(self, slots: int | None = None) -> None:
        self.scheduler = Scheduler()
        self.limits = Limits(slots, 8, 1.0)
        self.count = 0

    def family(self, key: str, *, slot: bool = False, inside: Family | None = None) -> Family:
        return Family(self, key, slot, inside)

    def add(
        self,
        batch: Any,
        keys: str,
        slot: bool,
        ancestors: tuple[Entry, ...],
        *,
        ask: bool = False,
    ) -> Entry:
        self.count += 1
        needs = Needs(expand([], [(key,) for key in keys.split()]), slot=slot)
        call = self.count
        entry = self.scheduler.add(
            batch, self.limits, call, needs, 0.0, ask=ask, ancestors=ancestors
        )
        while self.scheduler.grant() is not None:
            pass
        return entry

    def let_go(self, entry: Entry) -> None:
        self.scheduler.let_go(entry.call, 0.0)


def test_call_that_waits_for_a_call_that_runs_is_not_stuck() -> None:
    """What runs and waits for nobody comes to its end."""
    house = House()
    one, other = house.family("a"), house.family("b")
    waiting = one.add("b")
    assert waiting.state is CallState.IN_LINE
    assert find_stuck([waiting]) == {}
    other.add("c")
    assert find_stuck([waiting]) == {}


def test_two_families_that_wait_for_each_other() -> None:
    """The call in its way is named."""
    house = House()
    one, other = house.family("a"), house.family("b")
    first, last = one.add("b"), other.add("a")
    assert find_stuck([last]) == {last: one.outer}
    assert find_stuck([first]) == {first: other.outer}


def test_circle_of_many_families() -> None:
    """However long the way round is."""
    house = House()
    families = [house.family(key) for key in "abcde"]
    for family, after in itertools.pairwise(families):
        waiting = family.add(after.key)
        assert find_stuck([waiting]) == {}
    last = families[-1].add("a")
    assert find_stuck([last]) == {last: families[0].outer}


def test_circle_through_deeper_batches() -> None:
    """A call waits for the calls of its inner batches at any depth."""
    house = House()
    one, other = house.family("a"), house.family("b")
    middle = house.family("c", inside=one)
    house.family("d", inside=middle).add("b")
    last = house.family("e", inside=other).add("a")
    assert find_stuck([last]) == {last: one.outer}


def test_circle_between_batches_of_one_call() -> None:
    """Families may be inside the same call."""
    house = House()
    top = house.family("top")
    one, other = house.family("a", inside=top), house.family("b", inside=top)
    one.add("b")
    last = other.add("a top")
    assert find_stuck([last]) == {last: one.outer}


def test_the_one_in_the_circle_is_named() -> None:
    """Not another that is in the way too, and will end."""
    house = House()
    one, other, third = (house.family(key) for key in "abc")
    one.add("b")
    last = other.add("c", "a")
    assert find_stuck([last]) == {last: one.outer}
    assert third.outer.state is CallState.RUNNING


def test_who_waits_for_a_circle_is_stuck_too() -> None:
    """It need not be part of it."""
    house = House()
    one, other, third = (house.family(key) for key in "abc")
    one.add("b")
    other.add("a")
    beside = third.add("a")
    assert find_stuck([beside]) == {beside: one.outer}


def test_several_calls_of_a_batch() -> None:
    """Only those that can not start are named, in the order in which they were given."""
    house = House()
    one, other = house.family("a"), house.family("b")
    third = house.family("c")
    one.add("b")
    stuck, waiting, too = other.add("a"), other.add("c"), other.add("a")
    assert list(find_stuck([stuck, waiting, too])) == [stuck, too]
    assert third.outer.state is CallState.RUNNING
    assert find_stuck([]) == {}


def test_calls_that_are_passed_over_count_as_over() -> None:
    """Those that are refused now, and those that will be looked at later."""
    house = House()
    one, other = house.family("a"), house.family("b")
    first, last = one.add("b"), other.add("a")
    assert find_stuck([last], {first}) == {}
    assert find_stuck([last], {last}) == {}


def test_call_that_is_asked_for_counts_as_ending() -> None:
    """A person's answer has a time limit of its own; when it comes, the call joins the line."""
    house = House()
    one, other = house.family("a"), house.family("b")
    asked = one.add("b", ask=True)
    behind = one.add("b", ask=True)
    house.scheduler.approve(behind.call, 0.0)
    last = other.add("a")
    assert find_stuck([last]) == {}
    house.scheduler.approve(asked.call, 0.0)
    assert find_stuck([asked]) == {asked: other.outer}


def test_detached_call_counts_as_ending() -> None:
    """Whoever waits for one is refused in time."""
    house = House()
    one, other = house.family("a"), house.family("b")
    house.let_go(one.outer)
    first, last = one.add("b"), other.add("a")
    assert find_stuck([last]) == {}
    assert find_stuck([first]) == {}


def test_calls_of_a_halted_batch_count_as_ending() -> None:
    """They will be released one by one."""
    house = House()
    one, other = house.family("a"), house.family("b")
    one.add("b")
    last = other.add("a")
    house.scheduler.halt(("inner", "a"))
    assert find_stuck([last]) == {}


def test_every_claim_is_needed_and_any_place_will_do() -> None:
    """Of two places one is held by a call that ends."""
    house = House(slots=2)
    one = house.family("a", slot=True)
    other = house.family("b")
    plain = house.add("plain", "", True, ())
    one.add("b")
    last = other.add("c", slot=True)
    assert last.state is CallState.IN_LINE
    assert find_stuck([last]) == {}
    plain_family = house.add("more", "", False, (plain,))
    house.scheduler.add(
        "in plain", house.limits, "p", Needs(expand([], [("b",)])), 0.0, ancestors=(plain,)
    )
    assert house.scheduler.grant() is None
    assert plain_family.state is CallState.RUNNING
    assert find_stuck([last]) == {last: one.outer}


def test_place_on_loan_falls_back_to_its_lender() -> None:
    """To strangers it is there when the lender has ended; to the family it is there before."""
    house = House(slots=1)
    one, other = house.family("a", slot=True), house.family("b")
    borrower = one.add("x", slot=True)
    assert borrower.state is CallState.RUNNING
    stranger = other.add("y", slot=True)
    sibling = one.add("z", slot=True)
    assert find_stuck([stranger]) == find_stuck([sibling]) == {}
    last = one.add("b")
    assert find_stuck([last]) == {last: other.outer}
    assert find_stuck([sibling]) == {}


def test_own_place_of_the_family_is_enough() -> None:
    """A call to which an ancestor has a place to lend does not wait for places."""
    house = House(slots=1)
    one, other = house.family("a", slot=True), house.family("b")
    other.add("q", slot=True)
    waiting = one.add("b", slot=True)
    assert find_stuck([waiting]) == {waiting: other.outer}
    house.scheduler.release(other.outer.call, 0.0)
    assert find_stuck([waiting]) == {}


def test_circle_through_two_schedulers() -> None:
    """A tool may use another runner, which another tool uses too."""
    house, annex = House(), House()
    one = house.family("a")
    other = Family(annex, "b", False, None)
    annex.add("in one", "b", False, (one.outer,))
    last = house.add("in other", "a", False, (other.outer,))
    assert find_stuck([last]) == {last: one.outer}


class Call:
    """As much of an entry as `find_stuck` looks at, of a family that is just made up."""

    def __init__(self, state: CallState) -> None:
        self.state = state
        self.inner: list[Call] = []
        self.entries: dict[int, Call] = {}
        self.holders: list[Call] = []
        self.pools: list[list[Call]] = []
        self.line = self.scheduler = self.table = self
        self.is_halted = False
        self.ancestors: tuple[Call, ...] = ()

    def holders_in_the_way(self, _: Call) -> Iterator[tuple[str, Call]]:
        return (("key", holder) for holder in self.holders)

    def lacks(self, pool: list[Call]) -> bool:
        return bool(pool)

    def may_leave(self, pool: list[Call]) -> Iterator[Call]:
        return iter(pool)

    def can_end(self, ended: set[Call]) -> bool:
        match self.state:
            case CallState.RUNNING:
                return all(
                    call in ended for line in self.inner for call in line.entries.values()
                )
            case CallState.IN_LINE if not self.is_halted:
                return {*self.holders} <= ended and all(
                    not pool or ended & {*pool} for pool in self.pools
                )
            case _:
                return True


def test_one_that_is_sure_to_leave_its_place_is_enough() -> None:
    """P10: a large batch elsewhere is not gone through."""
    waiting: Any = Call(CallState.IN_LINE)
    holders: Any = iter([Call(CallState.RUNNING) for _ in range(100)])
    waiting.pools = [holders]
    assert find_stuck([waiting]) == {}
    assert len([*holders]) == 99


@st.composite
def some_calls(draw: st.DrawFn) -> list[Call]:
    states = st.sampled_from(
        [
            CallState.RUNNING,
            CallState.RUNNING,
            CallState.IN_LINE,
            CallState.IN_LINE,
            *CallState,
        ]
    )
    calls = [Call(state) for state in draw(st.lists(states, min_size=1, max_size=10))]
    some = st.lists(st.sampled_from(calls), max_size=3)
    for call in calls:
        if call.state is CallState.RUNNING:
            # The call itself stands for its inner batch too.
            call.entries = dict(enumerate(draw(some)))
            call.inner = [call] if call.entries else []
        call.holders = draw(some)
        call.pools = draw(st.lists(some, max_size=2))
        call.is_halted = draw(st.integers(0, 5)) == 5
    return calls


@given(some_calls())
@settings(max_examples=500, deadline=None, derandomize=True)
def test_stuck_is_what_no_order_of_endings_frees(calls: list[Call]) -> None:
    """The least fixed point, told by going through all calls until nothing changes."""
    ended: set[Call] = set()
    while more := {call for call in calls if call not in ended and call.can_end(ended)}:
        ended |= more
    joined: list[Any] = [call for call in calls if call.state is CallState.IN_LINE]
    found: dict[Any, Any] = find_stuck(joined)
    assert {*found} == {*joined} - ended
    assert not ended & {*found.values()}
    for call, culprit in found.items():
        assert culprit in [*call.holders, *(call for pool in call.pools for call in pool)]
