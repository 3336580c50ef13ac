"""§3.4: events are frozen values that say which batch and which call they are of."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    LateResult,
    LateResultDropped,
    Reason,
    Status,
    ToolCall,
    ToolResult,
)

CALL = ToolCall("id", "name")
RESULT = ToolResult(CALL, 4, Status.COMPLETED, value="v")
LATE = LateResult("batch", CALL, 4, "late", None, 1.0)

EVENTS: list[tuple[Event, list[str]]] = [
    (BatchStarted("batch"), ["batch_id"]),
    (CallStarted("batch", CALL, 4), ["batch_id", "call", "index"]),
    (
        CallProgress("batch", CALL, 4, 0.5, 1.0, "half"),
        ["batch_id", "call", "index", "progress", "total", "message"],
    ),
    (CallOutput("batch", CALL, 4, "item"), ["batch_id", "call", "index", "output"]),
    (CallSettled("batch", RESULT), ["batch_id", "result"]),
    (BatchInterrupted("batch", Reason("user_interrupt")), ["batch_id", "reason"]),
    (BatchSettled("batch"), ["batch_id"]),
    (LateResultDropped("batch", LATE), ["batch_id", "late"]),
]

each_event = pytest.mark.parametrize(
    ("event", "names"), EVENTS, ids=lambda item: type(item).__name__
)


@each_event
def test_fields_are_the_documented_ones(event: Event, names: list[str]) -> None:
    """Every event begins with its batch's id; the order of fields is fixed."""
    assert [field.name for field in dataclasses.fields(event)] == names
    assert event.batch_id == "batch"


@each_event
def test_events_are_frozen_and_slotted(event: Event, names: list[str]) -> None:
    """An observer cannot change what the next one sees."""
    assert not hasattr(event, "__dict__")
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, None)


@each_event
def test_every_event_is_an_event(event: Event, names: list[str]) -> None:
    """One base class, so that a host may annotate and match on it."""
    assert isinstance(event, Event)
    assert type(event).__doc__ is not None


@each_event
def test_events_are_copied_and_pickled(event: Event, names: list[str]) -> None:
    """A host may send events to another process."""
    for again in (copy.copy(event), pickle.loads(pickle.dumps(event))):
        assert type(again) is type(event)
        assert [repr(getattr(again, n)) for n in names] == [
            repr(getattr(event, n)) for n in names
        ]


def test_events_are_equal_by_kind_and_fields() -> None:
    """Two kinds with the same fields are different news."""
    assert CallStarted("b", CALL, 1) == CallStarted("b", CALL, 1)
    assert CallStarted("b", CALL, 1) != CallStarted("b", CALL, 2)
    assert BatchStarted("b") != BatchSettled("b")


def test_settled_event_leads_to_its_call() -> None:
    """`call` and `index` stand on every event of a call, this one included."""
    event = CallSettled("batch", RESULT)
    assert event.call is CALL
    assert event.index == 4


def test_events_are_matched_by_field() -> None:
    """The natural way to read events works: ``match`` with keywords."""
    match EVENTS[2][0]:
        case CallProgress(index=index, progress=progress):
            assert (index, progress) == (4, 0.5)
        case _:
            pytest.fail("not matched")
