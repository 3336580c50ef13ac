"""P1, P3, P5: one ending per call, first in wins, and nothing late lands."""

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

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch._core.ledger import (
    COMPLETED,
    COMPLETED_WITH_ERROR,
    FAILED,
    Ending,
    Ledger,
    result_of,
)
from anyio_toolbatch._core.record import CallRecord

REASON = Reason("user_interrupt", "enough")


def make_record(index: int = 0, *, submitted_at: float = 10.0) -> CallRecord:
    record = CallRecord(None, ToolCall(f"id-{index}", "tool"), submitted_at)
    record.index = index
    return record


def cut_ending(*, started: bool = True, **more: Any) -> Ending:
    return Ending(Status.INTERRUPTED, REASON, started=started, at=15.0, **more)


def test_first_ending_wins() -> None:
    """P1: a second ending is refused and changes nothing."""
    ledger = Ledger()
    record = make_record(ledger.open(1)[0])
    first, second = cut_ending(detached=True), COMPLETED
    assert ledger.settle(0, first) is True
    assert ledger.settle(0, second) is False
    assert ledger.endings == [first]
    assert ledger.unsettled == 0
    result = ledger.result(record)
    assert result is not None and result.status is Status.INTERRUPTED


def test_many_calls_are_settled_alike() -> None:
    """P1, P2: a cut gives its calls one ending in one pass, and leaves the others alone."""
    ledger = Ledger()
    records = [make_record(index) for index in ledger.open(5)]
    ledger.settle(0, COMPLETED)
    shared = cut_ending(detached=True)
    ledger.settle_many([records[1], records[3]], shared)
    assert ledger.endings == [COMPLETED, shared, None, shared, None]
    assert ledger.unsettled == 2


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (9, 2)]
)
def test_those_without_an_ending_among_the_first(limit: int, expected: int) -> None:
    """§3.1: `wait` is about the calls that were submitted so far."""
    ledger = Ledger()
    ledger.open(4)
    ledger.settle(0, COMPLETED)
    ledger.settle(2, COMPLETED)
    assert ledger.count_unsettled(limit) == expected


def test_all_results_are_those_that_were_read_before() -> None:
    """P1: one result per call, in call order, and the same object whoever reads."""
    ledger = Ledger()
    records = [make_record(index) for index in ledger.open(3)]
    for index, ending in enumerate([COMPLETED, cut_ending(detached=True), FAILED]):
        ledger.settle(index, ending)
    read = ledger.result(records[1])
    results = ledger.all_results(records)
    assert [r.index for r in results] == [0, 1, 2]
    assert results[1] is read
    assert ledger.all_results(records) == results
    results.clear()  # a fresh list, each time
    assert len(ledger.all_results(records)) == 3


@pytest.mark.parametrize(
    ("fate", "detached", "words"),
    [
        ({}, True, "before it finished."),
        ({"kept": True}, True, "goes on in the background"),
        ({"stopped": True}, False, "before it finished and was stopped."),
    ],
)
def test_what_has_become_of_the_work(fate: Any, detached: bool, words: str) -> None:
    """P6: let go of, kept or stopped: as data and in the text."""
    result = result_of(make_record(), cut_ending(detached=True, **fate))
    assert result.detached is detached
    assert words in result.text


def test_no_result_before_the_ending() -> None:
    """P1: an unsettled call has no result, and reading does not settle it."""
    ledger = Ledger()
    record = make_record(ledger.open(1)[0])
    assert ledger.result(record) is None
    assert not ledger.is_settled(0)
    assert ledger.settle(0, COMPLETED) is True
    assert ledger.result(record) is not None


def test_there_are_no_results_while_one_is_missing() -> None:
    """P1: a fault of ours is not told as a result."""
    ledger = Ledger()
    records = [make_record(index) for index in ledger.open(2)]
    ledger.settle(0, COMPLETED)
    with pytest.raises(AssertionError, match="not settled"):
        ledger.all_results(records)


def test_places_are_given_in_call_order() -> None:
    """P1: a call's index is its place, whatever ends first."""
    ledger = Ledger()
    assert [list(ledger.open(n)) for n in (1, 0, 2, 1)] == [[0], [], [1, 2], [3]]
    ledger.settle(2, COMPLETED)
    ledger.settle(0, COMPLETED)
    assert [i for i in range(4) if not ledger.is_settled(i)] == [1, 3]
    assert ledger.unsettled == 2


def test_completed_call_gives_its_value_and_times() -> None:
    """P3: what the tool returned is the result, with the times of its record."""
    record = make_record(3)
    record.value, record.started_at, record.ended_at = "answer", 12.0, 12.25
    result = result_of(record, COMPLETED)
    assert (result.call, result.index) == (record.call, 3)
    assert (result.status, result.value, result.error) == (Status.COMPLETED, "answer", None)
    assert (result.started, result.detached, result.is_error) == (True, False, False)
    assert (result.wait_time, result.run_time) == (2.0, 0.25)
    assert result.reason is None


def test_marked_error_stays_completed() -> None:
    """P6: an answer marked as an error completed all the same; its tool has run."""
    record = make_record()
    record.value = "no such file"
    result = result_of(record, COMPLETED_WITH_ERROR)
    assert (result.status, result.value, result.is_error) == (
        Status.COMPLETED,
        "no such file",
        True,
    )
    assert (result.started, result.effects) == (True, "done")


def test_failed_call_gives_its_error() -> None:
    """P6: what the tool raised is the result's error; there is no value."""
    record = make_record()
    record.value, record.error = "left over", ValueError("bad")
    result = result_of(record, FAILED)
    assert (result.status, result.value, result.error) == (Status.FAILED, None, record.error)
    assert (result.started, result.is_error, result.reason) == (True, True, None)


def test_late_value_and_error_do_not_land_in_a_cut_call() -> None:
    """P5: what a detached tool writes into its record is not in the result."""
    record = make_record()
    ending = cut_ending(detached=True)
    record.value, record.error = "late", ValueError("late")
    result = result_of(record, ending)
    assert (result.value, result.error) == (None, None)
    assert (result.reason, result.started, result.detached) == (REASON, True, True)


def test_partial_of_a_cut_call_is_the_copy_made_at_the_cut() -> None:
    """P5: items that come after the cut are not in the partial output."""
    record = make_record()
    record.items, record.items_told = ["in time"], 1
    ending = cut_ending(partial=record.partial_output())
    record.items.append("late")
    record.kept_partial = "late too"
    assert result_of(record, ending).partial == ["in time"]


def test_cut_call_without_partial_gets_none_later() -> None:
    """P5: a partial published after the cut stays out, also where there was none."""
    record = make_record()
    ending = cut_ending()
    record.kept_partial = "late"
    assert result_of(record, ending).partial is None


@pytest.mark.parametrize("ending", [COMPLETED, FAILED], ids=["completed", "failed"])
def test_partial_of_an_ended_call_is_a_copy_of_its_items(ending: Ending) -> None:
    """A result's partial list is its own; the tool's list is not handed out."""
    record = make_record()
    record.items, record.items_told = [1, 2], 2
    partial = result_of(record, ending).partial
    assert partial == [1, 2]
    assert partial is not record.items


def test_result_is_made_once() -> None:
    """P5: what has been read stays as it was read."""
    ledger = Ledger()
    record = make_record(ledger.open(1)[0])
    record.value = "first"
    ledger.settle(0, COMPLETED)
    first = ledger.result(record)
    record.value = "changed"
    assert ledger.result(record) is first
    assert first is not None and first.value == "first"


def test_call_that_never_started_has_waited_and_not_run() -> None:
    """P6: all of its time is waiting, up to the moment of the decision."""
    record = make_record()
    record.started_at, record.ended_at = 99.0, 99.0
    result = result_of(record, cut_ending(started=False))
    assert (result.started, result.wait_time, result.run_time) == (False, 5.0, 0.0)


def test_cut_call_ran_until_the_cut() -> None:
    """The run time ends with the decision, not with the late end."""
    record = make_record()
    record.started_at, record.ended_at = 11.0, 99.0
    result = result_of(record, cut_ending())
    assert (result.wait_time, result.run_time) == (1.0, 4.0)


def test_times_are_never_negative() -> None:
    """A cut just before the worker noted its start gives 0, not less."""
    record = make_record(submitted_at=16.0)
    record.started_at = 15.5
    result = result_of(record, cut_ending())
    assert (result.wait_time, result.run_time) == (0.0, 0.0)


def test_ending_carries_its_own_error() -> None:
    """A call that could not be run shows why, not what its record holds."""
    record = make_record()
    error = LookupError("no such tool")
    ending = Ending(
        Status.INVALID, Reason("unknown_tool"), started=False, error=error, at=10.0
    )
    result = result_of(record, ending)
    assert (result.status, result.error, result.started) == (Status.INVALID, error, False)
    assert result.is_error


def test_refused_call_carries_the_refusal() -> None:
    """A call that failed without its tool's doing shows the ending's own error."""
    record = make_record()
    refusal = RuntimeError("no thread to be had")
    ending = Ending(Status.FAILED, None, started=False, error=refusal, at=12.0)
    record.error = ValueError("not this one")
    result = result_of(record, ending)
    assert (result.status, result.error, result.started) == (Status.FAILED, refusal, False)


def test_kept_call_says_that_it_goes_on() -> None:
    """P6: the placeholder of a kept call tells of the background."""
    text = result_of(make_record(), cut_ending(detached=True, kept=True)).text
    assert "goes on in the background" in text


def test_calls_of_one_cut_may_share_an_ending() -> None:
    """Two calls with one ending have results of their own."""
    ending = cut_ending(detached=True)
    one, other = (result_of(make_record(index), ending) for index in range(2))
    assert (one.index, other.index) == (0, 1)
    assert one.call != other.call


class LedgerMachine(RuleBasedStateMachine):
    """Any order of opening, settling, late writing and reading."""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger()
        self.records: list[CallRecord] = []
        self.first: dict[int, Ending] = {}
        self.read: dict[int, ToolResult] = {}

    @rule()
    def open(self) -> None:
        record = make_record(self.ledger.open(1)[0])
        assert record.index == len(self.records)
        self.records.append(record)

    @precondition(lambda self: self.records)
    @rule(
        data=st.data(),
        ending=st.builds(cut_ending, started=st.booleans())
        | st.sampled_from([COMPLETED, FAILED, COMPLETED_WITH_ERROR]),
    )
    def settle(self, data: st.DataObject, ending: Ending) -> None:
        index = data.draw(st.integers(0, len(self.records) - 1))
        assert self.ledger.settle(index, ending) is (index not in self.first)
        self.first.setdefault(index, ending)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.records))
        record.value = data.draw(st.integers())

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def read_result(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.records))
        result = self.ledger.result(record)
        ending = self.first.get(record.index)
        if ending is None:
            assert result is None
            return
        assert result is not None
        assert self.read.setdefault(record.index, result) is result
        assert (result.status, result.started) == (ending.status, ending.started)
        assert result.index == record.index

    @invariant()
    def each_call_is_in_one_place(self) -> None:
        ledger = self.ledger
        unsettled = [i for i in range(len(self.records)) if i not in self.first]
        places = range(len(ledger.endings))
        assert [i for i in places if not ledger.is_settled(i)] == unsettled
        assert ledger.unsettled == len(unsettled)
        assert all(ledger.is_settled(index) for index in self.first)


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestLedgerMachine = LedgerMachine.TestCase
