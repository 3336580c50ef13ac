"""P5, P10: every reader sees all, in order; progress is coalesced; the log is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    Reason,
    ToolCall,
)
from anyio_toolbatch._core.ledger import COMPLETED, Ledger
from anyio_toolbatch._core.publication import Entry, EventLog, Kind, Reader, to_event
from anyio_toolbatch._core.record import CallRecord

UNCOMPACTED = 64
"""Dropped entries that are not worth a pass over the log."""


def make_record(index: int = 0) -> CallRecord:
    record = CallRecord(None, ToolCall(f"id-{index}", "tool"), 0.0)
    record.index = index
    return record


def report(log: EventLog, record: CallRecord, progress: float) -> bool:
    record.progress = (progress, None, None)
    return log.add_progress(record)


def read_all(reader: Reader) -> list[Entry]:
    entries = []
    while (entry := reader.next()) is not None:
        entries.append(entry)
    return entries


def test_reader_sees_everything_in_order() -> None:
    """A reader that is opened late sees the batch from its start."""
    log = EventLog()
    record = make_record()
    log.add(Kind.BATCH_STARTED)
    early = log.open_reader()
    log.add(Kind.OUTPUT, record, "item")
    late = log.open_reader()
    log.add(Kind.BATCH_SETTLED)
    expected = [
        (Kind.BATCH_STARTED, None, None),
        (Kind.OUTPUT, record, "item"),
        (Kind.BATCH_SETTLED, None, None),
    ]
    assert read_all(early) == expected
    assert read_all(late) == expected


def test_readers_do_not_disturb_each_other() -> None:
    """What one reader has read is still there for the others."""
    log = EventLog()
    one, other = log.open_reader(), log.open_reader()
    for item in range(3):
        log.add(Kind.OUTPUT, None, item)
    assert len(read_all(one)) == 3
    assert not other.has_read_all
    assert len(read_all(other)) == 3
    assert one.has_read_all and other.has_read_all


def test_reader_goes_on_where_it_was() -> None:
    """An entry that comes after the end was reached is read next, once."""
    log = EventLog()
    reader = log.open_reader()
    assert reader.next() is None
    log.add(Kind.OUTPUT, None, "late riser")
    assert reader.next() == (Kind.OUTPUT, None, "late riser")
    assert reader.next() is None


def test_unread_progress_is_replaced() -> None:
    """A slow reader gets one entry, which shows the newest report."""
    log, record, ledger = EventLog(), make_record(), Ledger()
    reader = log.open_reader()
    assert report(log, record, 1.0) is True
    assert report(log, record, 2.0) is False
    (entry,) = read_all(reader)
    event = to_event("batch", ledger, entry)
    assert isinstance(event, CallProgress) and event.progress == 2.0


def test_progress_that_was_read_is_followed_by_a_new_entry() -> None:
    """A reader that keeps up sees every report."""
    log, record = EventLog(), make_record()
    reader = log.open_reader()
    for progress in range(3):
        assert report(log, record, progress) is True
        assert read_all(reader) == [(Kind.PROGRESS, record, None)]


def test_one_call_does_not_replace_another_calls_progress() -> None:
    """Coalescing is per call."""
    log, one, other = EventLog(), make_record(0), make_record(1)
    reader = log.open_reader()
    assert report(log, one, 1.0) and report(log, other, 1.0)
    assert [subject for _, subject, _ in read_all(reader)] == [one, other]


def test_newest_progress_is_seen_by_the_slow_beside_the_fast() -> None:
    """The entry that a fast reader has read is not lost for a slow one: a newer is."""
    log, record = EventLog(), make_record()
    fast, slow = log.open_reader(), log.open_reader()
    report(log, record, 1.0)
    log.add(Kind.OUTPUT, record, "between")
    read_all(fast)
    report(log, record, 2.0)
    assert [kind for kind, *_ in read_all(slow)] == [Kind.OUTPUT, Kind.PROGRESS]
    assert [kind for kind, *_ in read_all(fast)] == [Kind.PROGRESS]


@pytest.mark.parametrize("dead_readers", [0, 1])
def test_flood_of_reports_leaves_the_log_short(dead_readers: int) -> None:
    """P10: neither a fast reader nor a dead one makes the log grow with the reports."""
    record = make_record()
    log = EventLog([record])
    dead = [log.open_reader() for _ in range(dead_readers)]
    fast = log.open_reader()
    log.add_start(record)
    longest = 0
    for progress in range(2_000):
        report(log, record, progress)
        read_all(fast)
        longest = max(longest, len(log.entries))
    assert longest <= UNCOMPACTED + 4
    for reader in dead:
        assert [kind for kind, *_ in read_all(reader)] == [Kind.CALL_STARTED, Kind.PROGRESS]


@pytest.mark.parametrize("dead_readers", [0, 1])
def test_unread_flood_is_one_entry(dead_readers: int) -> None:
    """P10: where nobody reads, reports cost nothing but the first."""
    record = make_record()
    log = EventLog([record])
    dead = [log.open_reader() for _ in range(dead_readers)]
    told = [report(log, record, progress) for progress in range(1_000)]
    assert (told.count(True), len(log.entries)) == (1, 1)
    assert all(len(read_all(reader)) == 1 for reader in dead)


@pytest.mark.parametrize(("items", "reports"), [(0, UNCOMPACTED + 1), (100, 102)])
def test_log_is_compacted_now_and_then(items: int, reports: int) -> None:
    """P10: a pass over the log is paid for by so many reports that they are half of it."""
    log, record = EventLog(), make_record()
    fast = log.open_reader()
    for item in range(items):
        log.add(Kind.OUTPUT, record, item)
    passes = []
    for progress in range(310):
        before = len(log.entries)
        report(log, record, progress)
        read_all(fast)
        if len(log.entries) < before:
            passes.append(progress)
    assert passes == [*range(reports, 310, reports)]


def test_compaction_keeps_each_readers_place() -> None:
    """Readers at the start, in the middle and at the end go on as if nothing was."""
    log, record = EventLog(), make_record()
    start, middle, end = (log.open_reader() for _ in range(3))
    for item in range(10):
        log.add(Kind.OUTPUT, record, item)
    assert [middle.next() for _ in range(4)][-1] == (Kind.OUTPUT, record, 3)
    read_all(end)
    for progress in range(200):
        report(log, record, progress)
        read_all(end)
    assert len(log.entries) < 100, "the log was not compacted: the test shows nothing"
    log.add(Kind.OUTPUT, record, 10)
    assert [item for kind, _, item in read_all(start) if kind is Kind.OUTPUT] == [*range(11)]
    assert [item for kind, _, item in read_all(middle) if kind is Kind.OUTPUT] == [
        *range(4, 11)
    ]
    assert read_all(end) == [(Kind.OUTPUT, record, 10)]


def test_compaction_keeps_the_place_of_other_calls_progress() -> None:
    """After it, an unread entry of another call is still replaced, not repeated."""
    log, busy, quiet = EventLog(), make_record(0), make_record(1)
    dead, fast = log.open_reader(), log.open_reader()
    report(log, busy, 0.0)
    read_all(fast)
    report(log, quiet, 1.0)
    read_all(fast)
    for progress in range(200):
        report(log, busy, progress)
        read_all(fast)
    assert len(log.entries) < 100, "the log was not compacted: the test shows nothing"
    assert report(log, quiet, 2.0) is True  # the fast one has read the old entry
    assert [subject for _, subject, _ in read_all(fast)] == [quiet]
    assert sorted(subject.index for _, subject, _ in read_all(dead)) == [0, 1]


def test_log_does_not_keep_a_reader_alive() -> None:
    """P10: a reader that was dropped no longer counts as one that has read."""
    log, record = EventLog(), make_record()
    reader = log.open_reader()
    report(log, record, 1.0)
    read_all(reader)
    del reader
    assert report(log, record, 2.0) is False
    assert len(log.entries) == 1


def events_of_each_kind() -> list[tuple[Entry, Event]]:
    record = make_record(2)
    record.progress = (1.0, 4.0, "quarter")
    reason = Reason("user_interrupt")
    return [
        ((Kind.BATCH_STARTED, None, None), BatchStarted("b")),
        ((Kind.CALL_STARTED, record, None), CallStarted("b", record.call, 2)),
        (
            (Kind.PROGRESS, record, None),
            CallProgress("b", record.call, 2, 1.0, 4.0, "quarter"),
        ),
        ((Kind.OUTPUT, record, "item"), CallOutput("b", record.call, 2, "item")),
        ((Kind.INTERRUPTED, reason, None), BatchInterrupted("b", reason)),
        ((Kind.BATCH_SETTLED, None, None), BatchSettled("b")),
    ]


@pytest.mark.parametrize(
    ("entry", "event"), events_of_each_kind(), ids=lambda item: type(item).__name__
)
def test_entry_becomes_its_event(entry: Entry, event: Event) -> None:
    """Each kind of entry tells what it stands for."""
    made = to_event("b", Ledger(), entry)
    assert type(made) is type(event)
    assert made == event


def test_settled_entry_shows_the_ledgers_own_result() -> None:
    """P1: observers are told the result that the batch gives, not another like it."""
    ledger = Ledger()
    record = make_record(ledger.open(1)[0])
    ledger.settle(0, COMPLETED)
    event = to_event("b", ledger, (Kind.CALL_SETTLED, record, None))
    assert isinstance(event, CallSettled)
    assert event.result is ledger.result(record)


def test_every_kind_has_an_event() -> None:
    """A kind that is added later must be given its event."""
    covered = {entry[0] for entry, _ in events_of_each_kind()} | {Kind.CALL_SETTLED}
    assert covered == set(Kind) - {Kind.MANY_SETTLED, Kind.MANY_OUTPUTS}


def test_calls_that_were_cut_together_are_unfolded() -> None:
    """§3.4: a reader sees a start, where it is news, and an end for each of many calls."""
    one, two = make_record(0), make_record(1)
    log = EventLog([one, two])
    log.add_start(one)
    log.add(Kind.MANY_SETTLED, [one, two], {two})
    log.add(Kind.BATCH_SETTLED)
    early, late = log.open_reader(), log.open_reader()
    assert [early.next() for _ in range(3)] == [
        (Kind.CALL_STARTED, one, None),
        (Kind.CALL_SETTLED, one, None),
        (Kind.CALL_STARTED, two, None),
    ]
    assert not early.has_read_all
    rest = [(Kind.CALL_SETTLED, two, None), (Kind.BATCH_SETTLED, None, None)]
    assert [early.next(), early.next(), early.next()] == [*rest, None]
    assert early.has_read_all
    seen = []
    while (entry := late.next()) is not None:
        seen.append(entry)
    assert len(seen) == 5
    assert seen[-2:] == rest


def test_starts_and_ends_are_read_as_entries() -> None:
    """§3.4: which call has started, which has ended, in the order in which it happened."""
    records = [make_record(index) for index in range(3)]
    log = EventLog(records)
    for record in (records[2], records[0]):
        log.add_start(record)
    log.add_end(records[2])
    log.add_start(records[1])
    log.add_end(records[1])
    assert read_all(log.open_reader()) == [
        (Kind.CALL_STARTED, records[2], None),
        (Kind.CALL_STARTED, records[0], None),
        (Kind.CALL_SETTLED, records[2], None),
        (Kind.CALL_STARTED, records[1], None),
        (Kind.CALL_SETTLED, records[1], None),
    ]


def test_items_that_came_together_are_unfolded() -> None:
    """§3.4: each item of a generator is an output, also where many were entered at once."""
    record = make_record()
    record.items = ["a", "b", "c", "d"]
    log = EventLog([record])
    log.add(Kind.MANY_OUTPUTS, record, range(1, 3))
    log.add(Kind.BATCH_SETTLED)
    reader = log.open_reader()
    assert reader.next() == (Kind.OUTPUT, record, "b")
    assert not reader.has_read_all
    assert reader.next() == (Kind.OUTPUT, record, "c")
    assert not reader.has_read_all
    assert read_all(reader) == [(Kind.BATCH_SETTLED, None, None)]
    assert reader.has_read_all


def test_a_reader_in_the_middle_of_many_has_not_read_all() -> None:
    """P5: a late result is told only after all that came before it."""
    record = make_record()
    record.items = ["a", "b"]
    log = EventLog([record])
    log.add(Kind.MANY_OUTPUTS, record, range(2))
    reader = log.open_reader()
    assert reader.next() == (Kind.OUTPUT, record, "a")
    assert not reader.has_read_all
    assert reader.next() == (Kind.OUTPUT, record, "b")
    assert reader.next() is None
    assert reader.has_read_all


@pytest.mark.parametrize("kind", [Kind.MANY_SETTLED, Kind.MANY_OUTPUTS])
def test_what_a_reader_unfolds_is_no_event(kind: Kind) -> None:
    """A fault of ours is not told as something that happened."""
    with pytest.raises(AssertionError, match="a reader unfolds this entry"):
        to_event("b", Ledger(), (kind, None, None))


def test_call_that_is_not_settled_is_not_told_as_settled() -> None:
    """P1: a fault of ours is not told as a result."""
    ledger = Ledger()
    record = make_record(ledger.open(1)[0])
    with pytest.raises(AssertionError, match="logged before it was settled"):
        to_event("b", ledger, (Kind.CALL_SETTLED, record, None))


class Seen:
    """A reader and what it has been told."""

    def __init__(self, log: EventLog) -> None:
        self.reader = log.open_reader()
        self.items: list[int] = []
        self.progress: dict[CallRecord, float] = {}

    def take(self, entry: Entry) -> None:
        kind, subject, item = entry
        if kind is Kind.PROGRESS:
            # Shown as it is now, as `to_event` does.
            shown = subject.progress[0]
            assert shown > self.progress.get(subject, -1.0), "old progress came again"
            self.progress[subject] = shown
        else:
            self.items.append(item)


class EventLogMachine(RuleBasedStateMachine):
    """Any number of readers, at any speed."""

    @initialize(calls=st.integers(1, 3))
    def start(self, calls: int) -> None:
        self.log = EventLog()
        self.records = [make_record(index) for index in range(calls)]
        self.seen: list[Seen] = []
        self.items = 0
        self.reports = 0

    # Always enabled.
    @rule()
    def add(self) -> None:
        self.log.add(Kind.OUTPUT, None, self.items)
        self.items += 1

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.records))
        self.reports += 1
        report(self.log, record, float(self.reports))
        self.check_room()

    @rule()
    def open_reader(self) -> None:
        self.seen.append(Seen(self.log))

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), count=st.integers(1, 6))
    def read(self, data: st.DataObject, count: int) -> None:
        seen = data.draw(st.sampled_from(self.seen))
        for _ in range(count):
            had_read_all = seen.reader.has_read_all
            entry = seen.reader.next()
            assert (entry is None) is had_read_all
            if entry is None:
                break
            seen.take(entry)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), count=st.integers(1, 120))
    def flood(self, data: st.DataObject, count: int) -> None:
        """One reader keeps up with many reports, beside whatever the others do."""
        record = data.draw(st.sampled_from(self.records))
        seen = data.draw(st.sampled_from(self.seen))
        for _ in range(count):
            self.reports += 1
            report(self.log, record, float(self.reports))
            self.check_room()
            self.drain(seen)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A reader stops for good."""
        del self.seen[data.draw(st.integers(0, len(self.seen) - 1))]

    @invariant()
    def nothing_is_seen_out_of_order(self) -> None:
        for seen in self.seen:
            assert seen.items == list(range(len(seen.items)))

    def check_room(self) -> None:
        """Dropped entries are never more than the rest, but for a few."""
        live = self.items + len(self.records)
        assert len(self.log.entries) <= live + max(UNCOMPACTED, live)

    def drain(self, seen: Seen) -> None:
        while (entry := seen.reader.next()) is not None:
            seen.take(entry)

    def teardown(self) -> None:
        """Every reader, a new one too, comes to see all and the newest progress."""
        if not hasattr(self, "log"):
            return
        newest: dict[CallRecord, Any] = {
            record: record.progress[0] for record in self.records if record.progress
        }
        for seen in [*self.seen, Seen(self.log)]:
            self.drain(seen)
            assert seen.items == list(range(self.items))
            assert seen.progress == newest
            assert seen.reader.has_read_all


EventLogMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestEventLogMachine = EventLogMachine.TestCase
