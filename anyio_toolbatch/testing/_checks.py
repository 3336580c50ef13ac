"""What must hold of every batch at the end of a run, and of a loop at rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._core.publication import to_event
from .._core.record import CallRecord
from .._model.results import LateResult, Status, ToolResult
from .._runtime.engine import BatchEngine
from .._runtime.hub import Hub
from ._observer import PromiseObserver

__all__ = (
    "problems_at_rest",
    "problems_of_batch",
    "problems_of_late_results",
    "untruths",
    "worded",
)

REASONS: dict[Status, set[str | None]] = {
    Status.COMPLETED: {None},
    Status.FAILED: {None, "resource_busy", "too_many_detached"},
    Status.TIMED_OUT: {"call_timeout", "batch_timeout", "approval_timeout"},
    Status.INTERRUPTED: {
        "user_interrupt",
        "caller_cancelled",
        "call_cancelled",
        "superseded",
        "sibling_failed",
        "runner_closed",
    },
    Status.DENIED: {"not_approved"},
    Status.INVALID: {"unknown_tool", "bad_arguments"},
}
"""The reasons that go with each status."""


def problems_of_batch(engine: BatchEngine) -> Iterator[str]:
    """Give each promise that a batch which should be over has broken."""
    if not engine.closed:
        yield f"{engine.id} is not over: {engine.ledger.unsettled} calls have no result"
        return
    results = engine.results()
    observer = PromiseObserver()
    reader = engine.publisher.log.open_reader()
    while (entry := reader.next()) is not None:
        observer(to_event(engine.id, engine.ledger, entry))
    try:
        observer.check(engine.id, results)
    except AssertionError as error:
        yield str(error)
    if len(results) != len(engine.records):
        yield f"{engine.id} has {len(results)} results for {len(engine.records)} calls"
    for record, result in zip(engine.records, results, strict=False):
        if result.call is not record.call:
            yield f"result {result.index} of {engine.id} answers another call"
        yield from (f"{worded(record)}: {said}" for said in untruths(result))


def untruths(result: ToolResult) -> Iterator[str]:
    """Give what a result says that can't be so."""
    kind = None if result.reason is None else result.reason.kind
    if kind not in REASONS[result.status]:
        yield f"{result.status.value} does not go with the reason {kind}"
    completed = result.status is Status.COMPLETED
    if completed and (not result.started or result.detached or result.error is not None):
        yield "completed, but not started, or detached, or with an error"
    if not completed and result.value is not None:
        yield f"{result.status.value}, and has a value"
    if not completed and not result.is_error:
        yield f"{result.status.value}, and not marked as an error"
    if result.detached and (not result.started or kind is None):
        yield "detached, but not started, or for no reason"
    if not result.started and result.run_time:
        yield "not started, and has a run time"
    if not completed and not result.text:
        yield "without a text for the model"
    if kind is not None and ("not started" in result.text) == result.started:
        yield f"its text is untrue: {result.text!r}"


def problems_of_late_results(
    given: list[LateResult], engines: Iterable[BatchEngine]
) -> Iterator[str]:
    """Give what was wrong in what `on_late` was given."""
    by_id = {engine.id: engine for engine in engines if engine.closed}
    seen: set[tuple[str, int]] = set()
    for late in given:
        where = f"call {late.index} ({late.call.name}) of {late.batch_id}"
        if (late.batch_id, late.index) in seen:
            yield f"{where} was late twice"
        seen.add((late.batch_id, late.index))
        engine = by_id.get(late.batch_id)
        if engine is not None and not engine.results()[late.index].detached:
            yield f"{where} was late, but never let go of"


def worded(record: CallRecord) -> str:
    """Name a call."""
    return f"call {record.index} ({record.call.name}) of {record.batch.id}"


def problems_at_rest(hub: Hub) -> Iterator[str]:
    """Give what is left on a loop on which all has ended."""
    if not hub.is_idle:
        yield "the loop's mailbox or its deferred work is not empty"
    for state in list(hub.states.values()):
        yield from (f"a runner still has {what}" for what in state.left_over())
    for name, shared in list(hub.shared.items()):
        if not getattr(shared, "is_idle", True):
            yield f"what the loop's runners share is still in use: {name}"
