"""P4, P6: the tickets: started or not, finished or cut, decided exactly once."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from anyio_toolbatch import ToolCall
from anyio_toolbatch._core.record import UNSET, CallRecord, Tickets

RACERS = 8
ROUNDS = 400


class Batch:
    def __init__(self) -> None:
        self.tickets = Tickets()


def make_record(batch: Batch | None = None) -> CallRecord:
    return CallRecord(batch, ToolCall("id", "tool", {"a": 1}), 1.0)


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Let threads interrupt each other between almost any two bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_switching")
@pytest.mark.parametrize("ticket", ["starts", "ends"])
def test_exactly_one_racer_gets_the_ticket(ticket: str) -> None:
    """P4, P6: of many threads that take a call's ticket at once, one has it."""
    tickets = Tickets()
    records = [make_record() for _ in range(ROUNDS)]
    tickets.issue(records)
    line_up = threading.Barrier(RACERS)
    won: list[list[int]] = [[] for _ in range(RACERS)]

    def race(racer: int) -> None:
        for number, record in enumerate(records):
            if number % 20 == 0:
                line_up.wait()
            try:
                getattr(tickets, ticket).remove(record)
            except KeyError:
                continue
            won[racer].append(number)

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for numbers in won for number in numbers) == list(range(ROUNDS))


def test_tickets_are_each_calls_own() -> None:
    """Taking one call's ticket leaves the other ticket and other calls alone."""
    one, other = make_record(), make_record()
    tickets = Tickets()
    tickets.issue([one])
    tickets.issue([other])
    tickets.starts.remove(one)
    assert (tickets.starts, tickets.ends) == ({other}, {one, other})


@pytest.mark.parametrize("taken", [False, True])
def test_waiting_is_what_the_start_ticket_tells(taken: bool) -> None:
    """P6: a call waits as long as nobody has taken its start ticket."""
    batch = Batch()
    record = make_record(batch)
    batch.tickets.issue([record])
    if taken:
        batch.tickets.starts.remove(record)
    assert record.is_waiting == (not taken)


def test_partial_output_is_none_at_first() -> None:
    """A tool that has published nothing has no partial output."""
    assert make_record().partial_output() is None


def test_items_are_copied_into_the_partial_output() -> None:
    """P5: the copy does not see what the tool gives later."""
    record = make_record()
    record.items, record.items_told = ["a"], 1
    partial = record.partial_output()
    record.items.append("b")
    assert partial == ["a"]


def test_no_items_yet_is_an_empty_list() -> None:
    """A generator tool that has given nothing shows an empty list, not nothing."""
    record = make_record()
    record.items = []
    assert record.partial_output() == []


@pytest.mark.parametrize("kept", [None, 0, "", "half"])
def test_kept_partial_goes_before_items(kept: object) -> None:
    """What the tool published itself counts, also where it is None or empty."""
    record = make_record()
    record.items = ["item"]
    record.kept_partial = kept
    assert record.partial_output() == kept


def test_unset_shows_its_name() -> None:
    """A developer who meets it in a debugger knows what it is."""
    assert repr(UNSET) == "UNSET"


def test_record_starts_with_the_calls_arguments() -> None:
    """The arguments to run with are the call's until something replaces them."""
    record = make_record()
    assert record.arguments == {"a": 1}
    assert (record.call.id, record.index, record.submitted_at) == ("id", -1, 1.0)


def test_record_tells_of_nothing_that_has_not_happened() -> None:
    """P6: before a call begins no flag is up, no time is noted and nothing is stored."""
    record = make_record()
    given = {"__weakref__", "arguments", "call", "index", "kept_partial", "submitted_at"}
    told = {name: getattr(record, name) for name in CallRecord.__slots__ if name not in given}
    assert not any(told.values()), told


def test_call_that_moves_to_the_loop_is_through_with_its_thread() -> None:
    """P10: a thread's place is not counted for what the loop goes on with."""
    record = make_record()
    record.has_thread = True
    record.move_to_loop()
    assert (record.hosted, record.has_thread) == (True, False)


def test_record_is_slotted_and_leaves_nothing_behind() -> None:
    """P10: no dict per call, and a record that is dropped is freed at once."""
    record = make_record()
    assert not hasattr(record, "__dict__")
    gc.disable()
    try:
        ref = weakref.ref(record)
        del record
        assert ref() is None
    finally:
        gc.enable()
