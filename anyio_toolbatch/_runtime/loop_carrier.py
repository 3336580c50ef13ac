"""
Runs a call on the event loop, in a task of the batch's host.

Everything a tool may raise is caught here, inside its own task: on asyncio a
`SystemExit` out of a task ends the run, and a `CancelledError` out of a child
ends its task group, siblings and all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .._core.record import CallRecord
from . import landing
from .backend import unbroken
from .blocked_loop import blocked
from .cancellation import Stopper, outcome_of_close, run_stoppable
from .context import current
from .tool_body import body_of

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("run_on_loop",)


@unbroken
async def run_on_loop(record: CallRecord) -> None:
    """Run one call to its end and tell its batch."""
    batch: BatchEngine = record.batch
    if not record.awaiting and not batch.begin(record):
        return
    current.set(record)
    if batch.publisher.entering and not record.awaiting:
        batch.publisher.enter(record)
    stopper = Stopper(batch.hub.backend, batch.mark_of(record), partial(blocked, record))
    record.stopper = stopper
    batch.teller.begun(stopper)
    if record.told:  # asked to stop while it was still in its thread
        batch.teller.drain(stopper)
    # Not kept in this frame: an error refers to it.
    try:
        landing.ended_on_loop(record, await run_stoppable(stopper, body_of(record)))
    except GeneratorExit as exc:
        landing.ended_on_loop(record, outcome_of_close(exc, batch.hub.backend))
