"""P10: claims that conflict are not held together, lines keep their order, nobody is forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from anyio_toolbatch._core.claims import ClaimTable, Mode, Watched, conflict, expand
from anyio_toolbatch._core.scheduler import BatchLine, Entry, Limits, Needs, Scheduler
from anyio_toolbatch._core.states import CallState, Fact

Path = tuple[str, ...]

PATHS: list[Path] = [("a",), ("d",), ("d", "e"), ("d", "e", "f"), ("d", "g"), ("h", "i")]

IR, IW, R, RIW, W = map(int, Mode)


def nodes(path: Path) -> list[Path]:
    return [path[:length] for length in range(1, len(path) + 1)]


def modes_of(reads: Iterable[Path], writes: Iterable[Path]) -> dict[Any, int]:
    return expand([tuple(nodes(path)) for path in reads], [tuple(nodes(p)) for p in writes])


def overlap(one: Path, other: Path) -> bool:
    return one[: len(other)] == other[: len(one)]


class Claimant:
    """A call, and what it claims, for comparing claim by claim."""

    def __init__(self, line: BatchLine, reads: Sequence[Path], writes: Sequence[Path]) -> None:
        self.reads, self.writes = list(reads), list(writes)
        self.entry = Entry(self, line, Needs(modes_of(reads, writes)), ())
        line.count += 1
        self.entry.move(Fact.LINE_UP)
        self.found_free = False

    def conflicts(self, other: Claimant) -> bool:
        return any(
            overlap(path, written)
            for one, two in ((self, other), (other, self))
            for written in one.writes
            for path in [*two.reads, *two.writes]
        )

    def is_inside(self, other: Claimant) -> bool:
        return other.entry in self.entry.line.ancestors

    def __repr__(self) -> str:
        return f"<{self.entry.number}: reads {self.reads}, writes {self.writes}>"


def make_line(*ancestors: Claimant) -> BatchLine:
    owner = ancestors[0].entry.line.scheduler if ancestors else Scheduler()
    entries = tuple(ancestor.entry for ancestor in ancestors)
    return BatchLine(object(), Limits(None, 1, 1.0), entries, owner)


def root(reads: str = "", writes: str = "") -> Claimant:
    """Make a call that claims paths, written as in ``"a d/e"``."""
    return inside((), reads, writes)


def inside(ancestors: Sequence[Claimant], reads: str = "", writes: str = "") -> Claimant:
    claims = [[tuple(path.split("/")) for path in text.split()] for text in (reads, writes)]
    return Claimant(make_line(*ancestors), *claims)


def start(table: ClaimTable, claimant: Claimant) -> None:
    assert table.is_free(claimant.entry)
    claimant.entry.move(Fact.GRANT)
    table.hold(claimant.entry)


def freed(table: ClaimTable) -> list[Claimant]:
    return [entry.call for entry in table.take_freed()]


# -- modes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (IR, IR, False),
        (IR, IW, False),
        (IR, R, False),
        (IR, RIW, False),
        (IR, W, True),
        (IW, IW, False),
        (IW, R, True),
        (IW, RIW, True),
        (IW, W, True),
        (R, R, False),
        (R, RIW, True),
        (R, W, True),
        (RIW, RIW, True),
        (RIW, W, True),
        (W, W, True),
    ],
)
def test_modes_conflict(one: int, other: int, expected: bool) -> None:
    """The table of multi-granularity locks, read in both directions."""
    assert conflict(one, other) is conflict(other, one) is expected


def test_claim_marks_its_ancestors() -> None:
    """A claim meets claims on a folder without anybody looking through the folder."""
    assert modes_of([("d", "e")], []) == {("d",): IR, ("d", "e"): R}
    assert modes_of([], [("d", "e")]) == {("d",): IW, ("d", "e"): W}


@pytest.mark.parametrize(
    ("reads", "writes", "expected"),
    [
        ("d", "d", W),
        ("d", "d/e", RIW),
        ("d/e", "d", W),
        ("d/e d", "", R),
        ("d d/e", "", R),
        ("d/e", "d/g", IW),
        ("", "d/e d", W),
        ("", "d d/e", W),
        ("d d/e", "d/e", RIW),
        ("d/e", "d/e", IW),
    ],
)
def test_claims_of_one_call_are_joined(reads: str, writes: str, expected: int) -> None:
    """A call that claims a node twice has the rights of both."""
    assert root(reads, writes).entry.modes["d",] == expected


some_paths = st.lists(st.sampled_from(PATHS), max_size=3)


@given(some_paths, some_paths, some_paths, some_paths)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_modes_conflict_where_claims_do(
    reads: list[Path], writes: list[Path], other_reads: list[Path], other_writes: list[Path]
) -> None:
    """Two calls conflict if one writes what the other claims, or a folder of it, or in it."""
    line = make_line()
    one, other = Claimant(line, reads, writes), Claimant(line, other_reads, other_writes)
    mine, theirs = one.entry.modes, other.entry.modes
    found = any(conflict(mine[node], theirs[node]) for node in mine.keys() & theirs.keys())
    assert found is one.conflicts(other)


# -- lines ---------------------------------------------------------------------


def test_readers_share_and_a_writer_waits_for_all_of_them() -> None:
    """Reads do not conflict with each other."""
    table = ClaimTable()
    one, two, writer = root("a"), root("a"), root("", "a")
    assert table.join(one.entry) and table.join(two.entry)
    start(table, one)
    start(table, two)
    assert not table.join(writer.entry)
    assert freed(table) == [one, two]
    table.release(one.entry)
    assert freed(table) == []
    table.release(two.entry)
    assert freed(table) == [writer]


def test_reader_does_not_overtake_a_writer_that_waits() -> None:
    """The line keeps its order, so a writer is not starved."""
    table = ClaimTable()
    reader, writer, late = root("a"), root("", "a"), root("a")
    for claimant in (reader, writer, late):
        table.join(claimant.entry)
    start(table, reader)
    assert freed(table) == [reader]
    assert table.first_ahead(late.entry) == (("a",), writer.entry)
    table.release(reader.entry)
    assert freed(table) == [writer]
    start(table, writer)
    assert list(table.holders_in_the_way(late.entry)) == [(("a",), writer.entry)]
    table.release(writer.entry)
    assert freed(table) == [late]


def test_all_readers_behind_a_writer_are_freed_together() -> None:
    """A look at one that can go on is followed by a look at the next."""
    table = ClaimTable()
    writer, readers = root("", "a"), [root("a") for _ in range(5)]
    for claimant in (writer, *readers):
        table.join(claimant.entry)
    start(table, writer)
    freed(table)
    table.release(writer.entry)
    assert freed(table) == readers


def test_call_that_leaves_the_line_lets_others_pass() -> None:
    """A waiting call that is cut is in nobody's way."""
    table = ClaimTable()
    reader, writer, late = root("a"), root("", "a"), root("a")
    for claimant in (reader, writer, late):
        table.join(claimant.entry)
    start(table, reader)
    freed(table)
    writer.entry.move(Fact.END)
    table.leave(writer.entry)
    assert freed(table) == [late]
    assert table.first_ahead(late.entry) is None


def test_call_waits_at_one_node_after_another() -> None:
    """Who is freed at one node and is not at the next is not forgotten."""
    table = ClaimTable()
    one, two, both = root("", "a"), root("", "d/e"), root("d", "a")
    for claimant in (one, two, both):
        table.join(claimant.entry)
    start(table, one)
    start(table, two)
    freed(table)
    table.release(one.entry)
    assert freed(table) == []
    table.release(two.entry)
    assert freed(table) == [both]


def test_nothing_is_held_while_waiting() -> None:
    """A call that waits for one claim keeps nobody from its others but by its place in line."""
    table = ClaimTable()
    holder, waiting = root("", "a"), root("", "a h")
    table.join(holder.entry)
    start(table, holder)
    table.join(waiting.entry)
    late = root("", "h")
    assert not table.join(late.entry)
    assert list(table.holders_in_the_way(late.entry)) == []
    assert table.first_ahead(late.entry) == (("h",), waiting.entry)


def test_call_that_is_over_keeps_nobody_from_being_woken() -> None:
    """A call that was cut is passed over where it was watched."""
    table = ClaimTable()
    holder, gone, late = root("a"), root("", "a"), root("", "a")
    for claimant in (holder, gone, late):
        table.join(claimant.entry)
    start(table, holder)
    freed(table)
    gone.entry.move(Fact.END)
    table.leave(gone.entry)
    table.release(holder.entry)
    assert freed(table) == [late]


UNTIDIED = 16
"""Calls that have left a watch list and are not worth a pass over it."""

some_watching = st.lists(
    st.tuples(st.sampled_from(["add", "add", "leave", "pop"]), st.integers(0, 999)),
    max_size=150,
)


@example([("leave", 0)] * 20, 20)
@given(some_watching, st.integers(0, 60))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_watch_list_gives_the_first_and_forgets_who_left(
    steps: list[tuple[str, int]], before: int
) -> None:
    """P10: in the order of their numbers; at most half of a long list has left."""
    watched = Watched()
    line = make_line()
    present: list[Entry] = []
    steps = [("add", number) for number in reversed(range(before))] + steps
    steps += [("leave", 7 * number) for number in range(before // 2)]
    for count, (step, number) in enumerate(steps):
        if step == "add":
            entry = Claimant(line, [], []).entry
            entry.number = number * 1000 + count
            watched.add(entry)
            present.append(entry)
        elif present and step == "leave":
            heap, left = watched.heap, watched.left + 1
            entry = present.pop(number % len(present))
            watched.leave(entry)
            assert entry.watched is None
            is_tidied = left > UNTIDIED and left * 2 > len(heap)
            assert (watched.heap is not heap) is is_tidied
            assert watched.left == (0 if is_tidied else left)
        elif present:
            entry = min(present, key=lambda entry: entry.number)
            assert watched.first() is entry
            watched.pop()
            assert entry.watched is None
            present.remove(entry)
        assert watched.left == len(watched.heap) - len(present)
    for entry in sorted(present, key=lambda entry: entry.number):
        assert watched.first() is entry
        watched.pop()
    assert watched.first() is None
    assert not watched.heap and watched.left == 0


# -- inner calls ---------------------------------------------------------------


def test_inner_call_ignores_what_its_ancestors_hold() -> None:
    """A tool that runs a batch does not wait for itself, at any depth."""
    table = ClaimTable()
    outer = root("", "d")
    table.join(outer.entry)
    start(table, outer)
    middle = inside([outer], "", "d/e")
    assert table.join(middle.entry)
    start(table, middle)
    innermost = inside([middle, outer], "d")
    assert table.join(innermost.entry)
    assert list(table.holders_in_the_way(innermost.entry)) == []
    assert table.waiting_for(outer.entry) == []


def test_inner_call_waits_for_others_than_its_ancestors() -> None:
    """A stranger's claim counts also where an ancestor holds the same node."""
    table = ClaimTable()
    outer, stranger = root("d"), root("d")
    for claimant in (outer, stranger):
        table.join(claimant.entry)
        start(table, claimant)
    inner = inside([outer], "", "d")
    assert not table.join(inner.entry)
    assert list(table.holders_in_the_way(inner.entry)) == [(("d",), stranger.entry)]
    freed(table)
    table.release(stranger.entry)
    assert freed(table) == [inner]


def test_inner_call_does_not_wait_for_a_stranger_that_waits() -> None:
    """The stranger may be waiting for the inner call's own ancestor."""
    table = ClaimTable()
    outer, stranger = root("", "a"), root("", "a h")
    table.join(outer.entry)
    start(table, outer)
    table.join(stranger.entry)
    inner = inside([outer], "", "h")
    assert table.join(inner.entry)
    assert table.first_ahead(inner.entry) is None


def test_inner_call_waits_for_an_earlier_one_of_its_batch() -> None:
    """Call order holds in an inner batch too."""
    table = ClaimTable()
    outer = root()
    table.join(outer.entry)
    start(table, outer)
    one = inside([outer], "", "a")
    two = Claimant(one.entry.line, [("a",)], [])
    assert table.join(one.entry) and not table.join(two.entry)
    assert table.first_ahead(two.entry) == (("a",), one.entry)


def test_call_of_the_common_line_waits_for_inner_calls_that_joined_before() -> None:
    """Only inner calls are let past strangers."""
    table = ClaimTable()
    outer, holder = root(), root("a")
    for claimant in (outer, holder):
        table.join(claimant.entry)
        start(table, claimant)
    inner, late = inside([outer], "", "a"), root("a")
    table.join(inner.entry)
    assert not table.join(late.entry)
    assert table.first_ahead(late.entry) == (("a",), inner.entry)


def test_free_call_is_free_no_more_after_an_inner_call_got_ahead() -> None:
    """An inner call may start before a call that stands before it in the common line."""
    table = ClaimTable()
    outer, first = root(), root("", "a")
    for claimant in (outer, first):
        table.join(claimant.entry)
    start(table, outer)
    inner = inside([outer], "", "a")
    table.join(inner.entry)
    assert freed(table) == [outer, first, inner]
    start(table, inner)
    assert not table.is_free(first.entry)
    assert not table.look_again(first.entry)
    assert first.entry.is_free is False
    table.release(inner.entry)
    assert freed(table) == [first]
    assert first.entry.is_free is True and table.is_free(first.entry)


# -- detached and widened calls --------------------------------------------------


def test_writes_are_kept_and_reads_are_not() -> None:
    """P5: a detached call keeps its write claims, in a folder that it read too."""
    table = ClaimTable()
    call = root("d a", "d/e h")
    table.join(call.entry)
    start(table, call)
    reader, beside, writer = root("d/e"), root("", "d/g"), root("", "a")
    for claimant in (reader, beside, writer):
        assert not table.join(claimant.entry)
    freed(table)
    table.keep_writes(call.entry)
    assert call.entry.modes == {("d",): IW, ("d", "e"): W, ("h",): W}
    assert sorted(freed(table), key=[beside, writer].index) == [beside, writer]
    assert table.waiting_for(call.entry) == [reader.entry]
    table.release(call.entry)
    assert freed(table) == [reader]


def test_call_that_writes_nothing_keeps_nothing() -> None:
    """Nobody waits for a detached reader."""
    table = ClaimTable()
    call = root("d/e")
    table.join(call.entry)
    start(table, call)
    table.keep_writes(call.entry)
    assert call.entry.modes == {} and len(table) == 0


def test_node_is_added_to_calls_that_run_and_wait() -> None:
    """A barrier makes all earlier calls of its batch read the batch."""
    table = ClaimTable()
    runs, waits = root("", "a"), root("", "a")
    claims = runs.entry.modes
    for claimant in (runs, waits):
        table.join(claimant.entry)
    start(table, runs)
    for claimant in (runs, waits):
        table.widen(claimant.entry, "batch", R)
    assert claims == {("a",): W}, "what the caller gave is not changed"
    barrier = root()
    barrier.entry.modes = {"batch": W}
    assert not table.join(barrier.entry)
    freed(table)
    assert list(table.holders_in_the_way(barrier.entry)) == [("batch", runs.entry)]
    table.release(runs.entry)
    assert freed(table) == [waits]
    assert table.first_ahead(barrier.entry) == ("batch", waits.entry)
    start(table, waits)
    table.release(waits.entry)
    assert freed(table) == [barrier]
    start(table, barrier)
    table.release(barrier.entry)
    assert len(table) == 0


def test_table_is_as_large_as_what_is_in_use() -> None:
    """P10: nothing is kept of a node that nobody holds or waits for."""
    table = ClaimTable()
    one, two = root("d/e/f"), root("", "d/e")
    for claimant in (one, two):
        table.join(claimant.entry)
    assert len(table) == 3
    start(table, one)
    table.release(one.entry)
    assert len(table) == 2
    start(table, two)
    table.release(two.entry)
    assert len(table) == 0


# -- any history -----------------------------------------------------------------


class ClaimMachine(RuleBasedStateMachine):
    """Calls join, start, detach and go in any order; what the table says is told anew each time."""

    @initialize()
    def begin(self) -> None:
        self.table = ClaimTable()
        self.common = make_line()
        self.lines: list[tuple[BatchLine, tuple[Claimant, ...]]] = []
        self.waiting: list[Claimant] = []
        self.running: list[Claimant] = []
        self.detached: list[Claimant] = []

    def holders(self) -> list[Claimant]:
        return self.running + self.detached

    def blockers(self, claimant: Claimant) -> Iterator[Claimant]:
        for holder in self.holders():
            if claimant.conflicts(holder) and not claimant.is_inside(holder):
                yield holder

    def those_ahead(self, claimant: Claimant) -> list[Claimant]:
        line = claimant.entry.line
        return [
            other
            for other in self.waiting[: self.waiting.index(claimant)]
            if (line is self.common or other.entry.line is line) and other.conflicts(claimant)
        ]

    # Always enabled.
    @rule(reads=some_paths, writes=some_paths)
    def join(self, reads: list[Path], writes: list[Path]) -> None:
        self.join_line(self.common, reads, writes)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def open_inner(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.running))
        above = next((a for line, a in self.lines if line is parent.entry.line), ())
        self.lines.append((make_line(parent, *above), (parent, *above)))

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), reads=some_paths, writes=some_paths)
    def join_inner(self, data: st.DataObject, reads: list[Path], writes: list[Path]) -> None:
        line, _ = data.draw(st.sampled_from(self.lines))
        self.join_line(line, reads, writes)

    def join_line(self, line: BatchLine, reads: list[Path], writes: list[Path]) -> None:
        claimant = Claimant(line, reads, writes)
        self.waiting.append(claimant)
        is_free = self.table.join(claimant.entry)
        assert is_free is not (
            any(self.blockers(claimant)) or bool(self.those_ahead(claimant))
        )
        self.take_freed()
        assert is_free is claimant.found_free

    @precondition(lambda self: any(claimant.found_free for claimant in self.waiting))
    @rule(data=st.data())
    def try_to_start(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from([c for c in self.waiting if c.found_free]))
        if not self.table.is_free(claimant.entry):
            assert any(self.blockers(claimant))
            claimant.found_free = self.table.look_again(claimant.entry)
            assert not claimant.found_free
        else:
            start(self.table, claimant)
            self.waiting.remove(claimant)
            self.running.append(claimant)
        self.take_freed()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(claimant)
        claimant.entry.move(Fact.END)
        self.table.leave(claimant.entry)
        self.take_freed()

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.holders()))
        for those in (self.running, self.detached):
            if claimant in those:
                those.remove(claimant)
        claimant.entry.move(Fact.END)
        self.table.release(claimant.entry)
        self.take_freed()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        claimant = data.draw(st.sampled_from(self.running))
        self.running.remove(claimant)
        claimant.reads = []
        self.table.keep_writes(claimant.entry)
        claimant.entry.move(Fact.LET_GO)
        if claimant.writes:
            self.detached.append(claimant)
        else:
            assert not claimant.entry.modes
        self.take_freed()

    def take_freed(self) -> None:
        for claimant in freed(self.table):
            assert claimant in self.waiting
            assert not claimant.found_free, "told twice"
            claimant.found_free = True

    @invariant()
    def nobody_holds_beside_a_conflict(self) -> None:
        holders = self.holders() if hasattr(self, "table") else []
        for number, one in enumerate(holders):
            for other in holders[:number]:
                if one.conflicts(other):
                    assert one.is_inside(other) or other.is_inside(one)

    @invariant()
    def who_may_start_has_been_told_so(self) -> None:
        for claimant in self.waiting if hasattr(self, "table") else ():
            ahead, blockers = self.those_ahead(claimant), [*self.blockers(claimant)]
            is_free = not ahead and not blockers
            if claimant.found_free:
                assert self.table.is_free(claimant.entry) is is_free
            else:
                assert not is_free, "nobody woke it"
            found = {
                holder.call for _, holder in self.table.holders_in_the_way(claimant.entry)
            }
            assert found == {*blockers}
            first = self.table.first_ahead(claimant.entry)
            assert (first is not None) is bool(ahead)
            assert first is None or first[1].call in ahead

    @invariant()
    def holders_know_who_waits_for_them(self) -> None:
        for holder in self.holders() if hasattr(self, "table") else ():
            found = {entry.call for entry in self.table.waiting_for(holder.entry)}
            assert found == {w for w in self.waiting if holder in self.blockers(w)}

    @invariant()
    def no_node_is_kept_longer_than_needed(self) -> None:
        if hasattr(self, "table"):
            used = {
                node
                for claimant in self.waiting + self.holders()
                for node in claimant.entry.modes
            }
            assert len(self.table) == len(used)
            for key, node in self.table._nodes.items():
                lines = {c.entry.line.claim_line for c in self.waiting if key in c.entry.modes}
                assert node.lines.keys() == lines
                for watched in node.watched.values():
                    assert any(e.state is CallState.IN_LINE for _, e in watched.heap)

    def teardown(self) -> None:
        """Everything comes to its end, in the order of the lines."""
        if not hasattr(self, "table"):
            return
        while self.waiting or self.running or self.detached:
            for claimant in self.holders():
                claimant.entry.move(Fact.END)
                self.table.release(claimant.entry)
            self.running.clear()
            self.detached.clear()
            self.take_freed()
            ready = [claimant for claimant in self.waiting if claimant.found_free]
            assert ready or not self.waiting, "all wait and nobody holds"
            for claimant in ready:
                if self.table.is_free(claimant.entry):
                    start(self.table, claimant)
                    self.waiting.remove(claimant)
                    self.running.append(claimant)
                else:
                    claimant.found_free = self.table.look_again(claimant.entry)
            self.take_freed()
        assert len(self.table) == 0


ClaimMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestClaimMachine = ClaimMachine.TestCase
