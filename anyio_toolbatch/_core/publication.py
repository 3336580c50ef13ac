"""
What a batch publishes: one log, read by any number of readers.

The log is kept compact: an entry is a tuple, or for a call's start and end but
a number, and made into an event only when somebody reads it, since most
batches have no reader. A reader is a position
in the log, so each sees everything from the batch's start, and one that is
slow or dead costs nothing but the log that is kept anyway.

Progress is coalesced: a call has one progress entry, which shows the newest
report when it is read; a further entry is made, and the old one dropped, only
after some reader has read it. The log is compacted when half of it has been
dropped, so that it does not grow with the number of reports.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

from .._model.events import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
)
from .ledger import Ledger
from .record import CallRecord

__all__ = ("Entry", "EventLog", "Kind", "Reader", "to_event")


class Kind(enum.Enum):
    """What a log entry tells; the second item of the entry is its subject."""

    BATCH_STARTED = enum.auto()
    CALL_STARTED = enum.auto()
    PROGRESS = enum.auto()
    OUTPUT = enum.auto()
    MANY_OUTPUTS = enum.auto()
    """Items that a generator has given since the last time: one entry, unfolded too."""
    CALL_SETTLED = enum.auto()
    MANY_SETTLED = enum.auto()
    """Calls that were cut together: one entry, however many; a reader unfolds it."""
    INTERRUPTED = enum.auto()
    BATCH_SETTLED = enum.auto()


Entry = tuple[Kind, Any, Any]
"""
Kind; its subject: a record, some, a reason or None; and what belongs to it: an
output item, the range of some, the calls whose start is to be told, or None.
"""


def to_event(batch_id: str, ledger: Ledger, entry: Entry) -> Event:
    """Make the event that an entry stands for."""
    kind, subject, item = entry
    match kind:
        case Kind.CALL_SETTLED:
            result = ledger.result(subject)
            assert result is not None, "logged before it was settled"
            return CallSettled(batch_id, result)
        case Kind.CALL_STARTED:
            return CallStarted(batch_id, subject.call, subject.index)
        case Kind.OUTPUT:
            return CallOutput(batch_id, subject.call, subject.index, item)
        case Kind.PROGRESS:
            return CallProgress(batch_id, subject.call, subject.index, *subject.progress)
        case Kind.INTERRUPTED:
            return BatchInterrupted(batch_id, subject)
        case Kind.BATCH_STARTED:
            return BatchStarted(batch_id)
        case Kind.BATCH_SETTLED:
            return BatchSettled(batch_id)
        case Kind.MANY_SETTLED | Kind.MANY_OUTPUTS:
            msg = "a reader unfolds this entry"
            raise AssertionError(msg)


class Reader:
    """A position in the log."""

    __slots__ = ("__weakref__", "_log", "_unfolded", "position")

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._unfolded: Iterator[Entry] | None = None
        self.position = 0

    def next(self) -> Entry | None:
        """Return the next entry; None if there is none yet."""
        entries = self._log.entries
        while True:
            if self._unfolded is not None:
                entry = next(self._unfolded, None)
                if entry is not None:
                    return entry
                self._unfolded = None
            if self.position >= len(entries):
                return None
            entered = entries[self.position]
            self.position += 1
            if isinstance(entered, int):
                return self._log.entry_of(entered)
            if entered is not None:
                kind, subject, item = entered
                if kind is Kind.MANY_SETTLED:
                    self._unfolded = _ends(subject, item)
                elif kind is Kind.MANY_OUTPUTS:
                    self._unfolded = _outputs(subject, item)
                else:
                    return entered

    @property
    def has_read_all(self) -> bool:
        return self._unfolded is None and self.position >= len(self._log.entries)


def _outputs(record: CallRecord, indices: range) -> Iterator[Entry]:
    """Give an entry for each of these items of a generator."""
    items = record.items or ()
    for index in indices:
        yield (Kind.OUTPUT, record, items[index])


def _ends(records: list[CallRecord], starts_to_tell: set[CallRecord]) -> Iterator[Entry]:
    """Give the entries of calls that were settled together, in call order."""
    for record in records:
        if record in starts_to_tell:
            yield (Kind.CALL_STARTED, record, None)
        yield (Kind.CALL_SETTLED, record, None)


class EventLog:
    """The entries of one batch, oldest first; None where one was dropped."""

    __slots__ = ("_dropped", "_progress_at", "_readers", "_records", "entries")

    def __init__(self, records: Sequence[CallRecord] = ()) -> None:
        self._records = records
        """The batch's own list of its calls, which grows with it."""
        self.entries: list[Entry | int | None] = []
        # Weak: an iterator that was left alone must not be kept by the log.
        # Made when first needed: most batches have no reader.
        self._readers: WeakSet[Reader] | None = None
        self._progress_at: dict[CallRecord, int] = {}
        self._dropped = 0

    def add(self, kind: Kind, subject: Any = None, item: Any = None) -> None:
        self.entries.append((kind, subject, item))

    def add_start(self, record: CallRecord) -> None:
        self.entries.append(2 * record.index)

    def add_end(self, record: CallRecord) -> None:
        self.entries.append(2 * record.index + 1)

    def entry_of(self, number: int) -> Entry:
        """Return what `add_start` or `add_end` has entered."""
        index, is_end = divmod(number, 2)
        kind = Kind.CALL_SETTLED if is_end else Kind.CALL_STARTED
        return (kind, self._records[index], None)

    def add_progress(self, record: CallRecord) -> bool:
        """Enter that the call has a newer report; False if an unread entry shows it."""
        at = self._progress_at.get(record)
        if at is not None:
            if all(reader.position <= at for reader in self._readers or ()):
                return False
            self.entries[at] = None
            self._dropped += 1
        self._progress_at[record] = len(self.entries)
        self.entries.append((Kind.PROGRESS, record, None))
        if self._dropped > _COMPACT_FROM and self._dropped * 2 > len(self.entries):
            self._compact()
        return True

    def forget(self) -> None:
        """Drop all entries: nobody will read them."""
        self.entries.clear()
        self._progress_at.clear()

    def open_reader(self) -> Reader:
        reader = Reader(self)
        if self._readers is None:
            self._readers = WeakSet()
        self._readers.add(reader)
        return reader

    def _compact(self) -> None:
        kept_before = [0]
        for entry in self.entries:
            kept_before.append(kept_before[-1] + (entry is not None))
        for reader in self._readers or ():
            reader.position = kept_before[reader.position]
        for record, at in self._progress_at.items():
            self._progress_at[record] = kept_before[at]
        self.entries[:] = [entry for entry in self.entries if entry is not None]
        self._dropped = 0


_COMPACT_FROM = 64  # entries; below that it is not worth the pass
