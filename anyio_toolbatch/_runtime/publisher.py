"""
Tells observers and readers what happens in a batch, in the order it happens.

An observer is fed through a reader of the same log that everybody reads: as a
rule up to its end with every entry. When a batch is cut it is *held*, until
the awaiting code has run, and then fed in slices; so it never sees another
order than the log's.

On the loop's thread, but for `report_progress`, `enter` and `leave`.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._core.ledger import Ledger
from .._core.publication import EventLog, Kind, Reader, to_event
from .._core.record import CallRecord
from .._model.events import Event, LateResultDropped
from .._model.results import LateResult
from .backend import Waiter, on_loop
from .context import CallContext
from .hub import Hub
from .logs import about

__all__ = ("Publisher",)

EVENTS_AT_ONCE = 500
"""Events that observers are told in one go; some milliseconds' worth."""

logger = logging.getLogger(__name__)


def methods_of(observers: Sequence[object], name: str) -> tuple[Callable[[Any], object], ...]:
    """Return this method of each observer that has it."""
    return tuple(
        method
        for observer in observers
        if (method := getattr(observer, name, None)) is not None
    )


def _nothing(error: KeyboardInterrupt) -> None: ...


class Publisher:
    """The log of one batch, and those who listen."""

    __slots__ = (
        "_batch_id",
        "_context",
        "_hub",
        "_is_held",
        "_is_over",
        "_is_telling",
        "_ledger",
        "_observed",
        "_observers",
        "_on_break",
        "_on_late",
        "_readers_waiting",
        "entering",
        "is_calling_out",
        "is_heard",
        "leaving",
        "log",
        "wants_starts",
        "watched",
    )

    def __init__(
        self,
        batch_id: str,
        hub: Hub,
        records: Sequence[CallRecord],
        ledger: Ledger,
        observers: Sequence[Callable[[Event], object]],
        on_late: Callable[[LateResult], object] | None,
        on_break: Callable[[KeyboardInterrupt], None],
    ) -> None:
        self.wants_starts = bool(observers)
        """Workers post their starts: somebody listens. Read by any thread."""
        self._batch_id = batch_id
        self._hub = hub
        self._ledger = ledger
        self.log = EventLog(records)
        """For who enters much at once; `tell` afterwards."""
        self._observers = observers
        self._on_late = on_late
        self._on_break = on_break
        self._is_telling = False
        self._context: contextvars.Context | None = None
        if observers or on_late is not None:
            self._context = on_loop(contextvars.copy_context(), hub.backend)
        self._observed: Reader | None = self.log.open_reader() if observers else None
        self._is_held = False
        self._is_over = False
        self._readers_waiting: list[Waiter] = []
        self.is_calling_out = False
        """A hook or an observer runs; others may have to be told the same after it."""
        self.is_heard = self._observed is not None
        """Whether there is any sense in `tell`."""
        self.entering = methods_of(observers, "enter_call")
        """What observers want to do in each call's own context."""
        self.leaving = methods_of(observers, "leave_call")
        """What observers want to do when the work of a call is over, late or not."""
        self.watched: object = None
        """The batch that observers were shown; they are asked to keep it weakly."""

    # -- what happens ------------------------------------------------------

    def add(self, kind: Kind, subject: Any = None, item: Any = None) -> None:
        """Enter what has happened, and tell whoever listens."""
        self.log.add(kind, subject, item)
        if kind is Kind.BATCH_SETTLED:
            self._is_over = True
        if self.is_heard:
            self.tell()

    def add_start(self, record: CallRecord) -> None:
        """Enter that a call has started, and tell whoever listens."""
        self.log.add_start(record)
        if self.is_heard:
            self.tell()

    def add_items(self, record: CallRecord) -> None:
        """Enter the items of a generator that have not been entered yet."""
        told, given = record.items_told, len(record.items or ())
        if given > told:
            record.items_told = given
            self.add(Kind.MANY_OUTPUTS, record, range(told, given))

    def report_progress(
        self, record: CallRecord, report: tuple[float, float | None, str | None]
    ) -> None:
        """Take a tool's report; from any thread."""
        record.reported_progress = report
        if record.progress_posted:
            return  # the loop has not looked yet, and will see this one
        record.progress_posted = True
        if threading.get_ident() == self._hub.thread_id:
            self._add_progress(record)
        else:
            self._hub.post(self._add_progress, record)

    def _add_progress(self, record: CallRecord) -> None:
        record.progress_posted = False
        # The fence: nothing of a call is published after its end. Also not
        # through an entry that somebody has not read yet, which shows what
        # `progress` says: only the loop writes that, and only here.
        if not self._ledger.is_settled(record.index):
            record.progress = record.reported_progress
            if self.log.add_progress(record):
                self.tell()

    def add_late(self, late: LateResult) -> None:
        """Hand out a late result, once the call's own end has been told."""
        if self._on_late is None and not self._observers:
            return
        if self._observed is None or self._observed.has_read_all:
            self._hand_out(late)
        else:
            self._hub.run_in_slices(self._hand_out_later(late))

    def _hand_out_later(self, late: LateResult) -> Iterator[None]:
        self._hand_out(late)
        yield

    def _hand_out(self, late: LateResult) -> None:
        if self._on_late is not None:
            self._call_out(self._on_late, late, "on_late")
        for observer in self._observers:
            self._call_out(observer, LateResultDropped(self._batch_id, late), "observer")

    def enter(self, record: CallRecord) -> None:
        """Let observers into a call's context; in that, wherever it starts."""
        self._visit(self.entering, record)

    def leave(self, record: CallRecord) -> None:
        """Tell observers that the work of a call is over; in any thread."""
        self._visit(self.leaving, record)

    def _visit(self, methods: Sequence[Callable[[Any], object]], record: CallRecord) -> None:
        for method in methods:
            try:
                method(CallContext(record))
            except KeyboardInterrupt as exc:
                self._on_break(exc)
            except BaseException:
                logger.exception(
                    "observer %r failed", method, extra=about("hook_failed", [record])
                )

    def show(self, batch: object) -> None:
        """Hand the batch itself to the observers that want it."""
        for method in methods_of(self._observers, "watch_batch"):
            self.watched = batch
            self._call_out(method, batch, "observer")

    @property
    def has_told_all(self) -> bool:
        """No observer is behind, or is being told right now."""
        reader = self._observed
        return reader is None or (
            reader.has_read_all and not self._is_telling and not self._is_held
        )

    def forget(self) -> None:
        """Let go of the log, and of who listens: nothing more will happen."""
        self.log.forget()
        self._observers = self.entering = self.leaving = ()
        self._on_late = self._context = None
        self._on_break = _nothing

    # -- observers ---------------------------------------------------------

    def hold(self) -> None:
        """Let observers wait until `feed` is run: others come first."""
        self._is_held = self._observed is not None

    def feed(self) -> Iterator[None]:
        """Tell observers what they have not heard yet, an event a step."""
        self._is_held = False
        reader = self._observed
        while reader is not None and not reader.has_read_all:
            self._observe_next(reader)
            yield

    def tell(self) -> None:
        """Let those who listen hear what is new in the log."""
        reader = self._observed
        # What an observer causes is told when it has returned: all of them
        # are to see the same order.
        if reader is not None and not self._is_held and not self._is_telling:
            self._is_telling = True
            try:
                for _ in range(EVENTS_AT_ONCE):
                    if reader.has_read_all:
                        break
                    self._observe_next(reader)
                else:
                    # A flood: the rest in slices, so that the loop can breathe.
                    self._is_held = True
                    self._hub.run_in_slices(self.feed())
            finally:
                self._is_telling = False
        if self._readers_waiting:
            waiting, self._readers_waiting = self._readers_waiting, []
            for waiter in waiting:
                waiter.set()

    def _observe_next(self, reader: Reader) -> None:
        entry = reader.next()
        if entry is not None:
            event = to_event(self._batch_id, self._ledger, entry)
            for observer in self._observers:
                self._call_out(observer, event, "observer")

    def _call_out(self, function: Callable[[Any], object], argument: Any, what: str) -> None:
        """Call a user's function; whatever it raises goes no further."""
        assert self._context is not None, "somebody listens"
        was_calling_out, self.is_calling_out = self.is_calling_out, True
        try:
            # A copy: an observer may cause the next event while it runs.
            self._context.copy().run(function, argument)
        except KeyboardInterrupt as exc:
            self._on_break(exc)
        except BaseException:
            extra = about("hook_failed", batch_ids=[self._batch_id])
            logger.exception("%s %r failed", what, function, extra=extra)
        finally:
            self.is_calling_out = was_calling_out

    # -- readers -----------------------------------------------------------

    def open_reader(self) -> Reader:
        """Start reading from the batch's start."""
        self.wants_starts = self.is_heard = True
        return self.log.open_reader()

    async def next_event(self, reader: Reader) -> Event | None:
        """Return the reader's next event; None after the last."""
        while True:
            entry = reader.next()
            if entry is not None:
                return to_event(self._batch_id, self._ledger, entry)
            if self._is_over:
                return None
            waiter = self._hub.backend.waiter()
            self._readers_waiting.append(waiter)
            try:
                await waiter.wait()
            finally:
                if waiter in self._readers_waiting:
                    self._readers_waiting.remove(waiter)
