"""
Frees a batch that nobody can ask about any more.

A batch and its calls know each other, and what a tool has raised knows the frames
that it came through. Only the collector would free all that, some time; until then
arguments and values would stay, however large (measured: half a gigabyte where no
batch had more than ten megabytes at a time). So it is taken apart when

* it is *forsaken*: its `ToolBatch`, with the handles and readers that keep it, is gone.
  `run` keeps one until it has given the results. Where observers were shown it, it is
  kept for them as long as there is something to see; and
* it is *over*: every call is settled, and what was let go of has ended; and
* all of it has been told: nothing about it is put off, and no observer is behind. It
  may be a hook or an observer that lets go of it, and others are told after that one.

What comes after that all the same (a thread that a tool has left behind, say) finds its
call's record, and an ending in the ledger: the fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("disband_if_over", "forsake")


def forsake(batch: BatchEngine) -> None:
    """
    Nobody can ask about the batch any more.

    Threads:
        Any: the last reference may be dropped anywhere.
    """
    batch.is_forsaken = True
    if get_ident() == batch.hub.thread_id and not batch.publisher.is_calling_out:
        disband_if_over(batch)
    else:
        batch.hub.post(disband_if_over, batch)


def disband_if_over(batch: BatchEngine) -> None:
    """Take a forsaken batch apart, if nothing can happen in it; on its loop's thread."""
    if not batch.is_closed_for_good or batch.hub.keeps_batches:
        return  # it is looked at again when it is over
    if batch.hub.has_chores:
        batch.hub.run_in_slices(_disband_later(batch))
    elif batch.publisher.has_told_all:
        _disband(batch)


def _disband_later(batch: BatchEngine) -> Iterator[None]:
    # Behind all that was put off: some of it may be about this batch.
    if batch.publisher.has_told_all:
        _disband(batch)
    yield


def _disband(batch: BatchEngine) -> None:
    batch.publisher.watched = None  # by which it may be forsaken, just now
    if not batch.is_forsaken:
        return  # somebody may ask; it comes here again when nobody can
    for record in batch.records:
        record.forget()
    batch.records.clear()
    batch.publisher.forget()
    batch.ledger.forget()
    batch.tickets.forget()
    batch.cutter.forget()
    batch.count_late = _nothing  # its runner's, which has observers


def _nothing() -> None: ...
