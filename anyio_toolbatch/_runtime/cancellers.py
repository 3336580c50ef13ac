"""
Stops calls that run in somebody else's executor, as far as that can be done.

A canceller may block, so it is called in a thread; what it answers, and the end of the
call that it may bring about, are handled on the loop.

Story of an answer and that end: the thread notes that it asks, then asks. The end, if
it is an error, is held until there is an answer: an error that our own stop has caused
is nobody's news. It comes to the loop after the note was made if it was caused by the
asking, so it is never told too early. A canceller that hangs does not hold it for
longer than `cleanup_grace`. Only the news is held: the work has ended, and counts as ended.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .._core.record import CallRecord
from .._model.carriers import Canceller
from . import landing
from .logs import about
from .threads import Lane

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("CANCELLERS", "CANCELLER_THREADS", "CallStop")

CANCELLER_THREADS = 16
"""
Threads of one executor that may be in its canceller; arbitrary. One that hangs in all
of them is not asked about further calls.
"""

logger = logging.getLogger(__name__)


class CallStop:
    """The stop of one call."""

    __slots__ = (
        "_canceller",
        "_future",
        "_has_told",
        "_is_asking",
        "_is_held",
        "_is_stopped",
        "_lane",
        "_record",
        "_was_asked",
        "was_cancelled",
    )

    def __init__(self, record: CallRecord, canceller: Canceller | None, lane: Lane) -> None:
        self._record = record
        self._canceller = canceller
        self._lane = lane
        self._future: Future[Any] | None = None
        self._is_asking = False
        """Written by the thread that asks, and by the loop when there is an answer."""
        self._is_stopped = False
        """By what the canceller says."""
        self.was_cancelled = False
        """The future was; written by whoever hears of its end."""
        # -- the loop's
        self._was_asked = False
        self._is_held = False
        """The call has ended, and that is not told yet."""
        self._has_told = False

    # -- on the loop -----------------------------------------------------------

    def ask(self, future: Future[Any]) -> None:
        """Have the canceller called; once."""
        if not self._was_asked:
            self._was_asked = True
            self._future = future
            self._lane.put(self._record.batch, [self])

    def land_late(self, record: CallRecord) -> None:
        """The call has ended, after it was let go."""
        batch: BatchEngine = record.batch
        if record.error is None:
            landing.late(record)
        elif self._is_asking:
            self._is_held = True
            batch.state.ended_late(record)
            backend = batch.hub.backend
            backend.call_later(batch.state.cleanup_grace, self._waited_enough)
        elif self._is_stopped or self.was_cancelled:
            record.error = None
            self._land_stopped()
        else:
            landing.late(record)

    def _waited_enough(self) -> None:
        self._is_asking = False
        self._tell_held()

    def _tell_held(self) -> None:
        if self._is_held:
            self._is_held = False
            self.land_late(self._record)

    def land_answer(self) -> None:
        """The canceller has said what it has done."""
        self._is_asking = False
        if self._is_held:
            self._tell_held()
        elif self._is_stopped and not self._record.reported:
            self._land_stopped()

    def _land_stopped(self) -> None:
        record = self._record
        if not self._has_told:
            self._has_told = True
            landing.stopped(record)
        elif record.ended:  # as the canceller has said; now the batch may go, too
            record.batch.ended_late(record)

    # -- in a thread that may block ----------------------------------------------

    def cancel(self) -> None:
        """Call the canceller."""
        future, self._future = self._future, None
        assert future is not None, "asked"
        record = self._record
        self._is_asking = True
        try:
            if future.done():
                return
            ending = record.batch.ledger.endings[record.index]
            if self._canceller is None or ending is None or not ending.started:
                future.cancel()
            else:
                self._is_stopped = _says_stopped(self._canceller(future))
        except BaseException:
            logger.exception(
                "error in the canceller of tool %r",
                record.call.name,
                extra=about("hook_failed", [record]),
            )

    def answer(self) -> None:
        """Tell the loop that the canceller has done what it could."""
        record = self._record
        batch: BatchEngine = record.batch
        if not batch.hub.post(CallStop.land_answer, self) and self._is_stopped:
            record.reported = True
            batch.state.account.strike(record)

    def without_loop(self, future: Future[Any]) -> None:
        """Stop a call whose loop is gone."""
        self._future = future
        self.cancel()
        self.answer()


def _says_stopped(answer: object) -> bool:
    if answer in {"stopped", "requested", "abandoned"}:
        return answer == "stopped"
    msg = f"a canceller must say 'stopped', 'requested' or 'abandoned', not {answer!r}"
    raise TypeError(msg)


class _Cancellers:
    """What the lane of an executor's cancellers does."""

    def run(self, stop: CallStop) -> bool:
        stop.cancel()
        return True

    def report(self, stop: CallStop) -> None:
        stop.answer()

    def thread_failed(self, stop: CallStop, error: BaseException) -> None:
        stop._record.batch.hub.post(_cancel_on_loop, stop)


def _cancel_on_loop(stop: CallStop) -> None:
    # Better here than not at all.
    stop.cancel()
    stop.answer()


CANCELLERS = _Cancellers()
