"""
What must hold because of what was injected.

`_checks` knows what must hold of every batch. This follows one run: what had been
done by the time of a cut, and what happens after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._core.record import CallRecord
from .._model.results import Status
from .._runtime.engine import BatchEngine
from ._checks import worded

__all__ = ("Expectations",)


class Expectations:
    """
    Of one run; `problems` says which were disappointed.

    Everything here is called between two steps, or in a tool's own thread.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self._returned: list[CallRecord] = []
        self._must_complete: dict[CallRecord, str] = {}
        self._must_not_start: dict[BatchEngine, str] = {}
        self._superseded: set[BatchEngine] = set()
        self._due: list[tuple[str, BatchEngine, bool]] = []

    def on_tool(self, what: str, record: CallRecord) -> None:
        """A gated tool has begun or ended; a `Witness`."""
        if what == "return":
            self._returned.append(record)
        elif what == "start":
            for batch in _reached_by_interrupts_of(record.batch):
                if batch in self._must_not_start:
                    when = self._must_not_start[batch]
                    self.problems.append(f"{worded(record)} started after the {when}")
                    break
            if record.batch in self._superseded:
                self.problems.append(f"{worded(record)} started after the supersede")

    # -- what is injected --------------------------------------------------

    def keep_finished(self, when: str) -> None:
        """P3: a cut is to come, and what has returned by now keeps its result."""
        for record in self._returned:
            if not record.batch.is_settled(record):
                self._must_complete.setdefault(record, when)

    def no_more_starts(self, when: str, batches: Iterable[BatchEngine]) -> None:
        """P4: nothing starts in these batches from now on, nor inside their calls."""
        for batch in batches:
            self._must_not_start.setdefault(batch, when)

    def superseded(self, batches: Iterable[BatchEngine]) -> None:
        """Nothing starts in these batches from now on."""
        self._superseded.update(batches)

    def settles_at_once(self, when: str, batches: Iterable[BatchEngine]) -> None:
        """P2: all calls of these batches have their results by the next pause."""
        self._due += [(when, batch, False) for batch in batches if not batch.cutter.grace]

    def closes_at_once(self, when: str, batches: Iterable[BatchEngine]) -> None:
        """P2, P8: these batches are over by the next pause."""
        self._due += [(when, batch, True) for batch in batches]

    # -- looking -----------------------------------------------------------

    def look_at_pause(self) -> None:
        """Nothing is left that could run, unless something else happens."""
        due, self._due = self._due, []
        for when, engine, closes in due:
            left = engine.ledger.unsettled
            if left:
                said = f"the {when} has not settled {engine.id} at once: {left} calls have no result"
                self.problems.append(said)
            elif closes and not engine.closed:
                self.problems.append(f"the {when} has not closed {engine.id} at once")

    def look_at_end(self) -> None:
        """The run is over."""
        for record, when in self._must_complete.items():
            result = record.batch.ledger.result(record)
            if result is None or result.status is not Status.COMPLETED:
                status = "unsettled" if result is None else result.status.value
                self.problems.append(
                    f"{worded(record)} had returned before the {when}, and is {status}"
                )


def _reached_by_interrupts_of(batch: BatchEngine) -> Iterator[BatchEngine]:
    """Give a batch and those around it: an interrupt of theirs reaches it, too."""
    yield batch
    outer = batch.outer
    while outer is not None and outer.tool.on_interrupt != "keep":
        yield outer.batch
        outer = outer.batch.outer
