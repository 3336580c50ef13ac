"""An observer that checks what it is told against what the library promises."""

from __future__ import annotations

from collections.abc import Iterable

from .._model.events import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    LateResultDropped,
)
from .._model.results import ToolResult

__all__ = ("PromiseObserver",)


class PromiseObserver:
    """
    Checks every batch it observes; hand it to a runner as an observer.

    Promises checked as the events come in: a batch starts once and first; a
    call starts at most once and settles exactly once; nothing of a call
    comes after its end, nothing of a batch after its end, but late results; a
    result that says "not started" belongs to a call that was not started.

    `check` raises what was found, as an observer's own errors are contained.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.broken: list[str] = []
        self._batches: dict[str, _Seen] = {}

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        self.events.append(event)
        seen = self._batches.get(event.batch_id)
        if isinstance(event, BatchStarted):
            if seen is not None:
                self.broken.append(f"batch {event.batch_id} started twice")
            self._batches[event.batch_id] = _Seen()
        elif isinstance(event, LateResultDropped):
            pass  # may come after the end, and from a batch observed elsewhere
        elif seen is None:
            self.broken.append(f"{event!r} came before its batch started")
        else:
            self.broken.extend(seen.take(event))

    def check(self, batch_id: str | None = None, results: Iterable[ToolResult] = ()) -> None:
        """
        Raise AssertionError if a promise was broken.

        Observers hear of an interrupted batch a little after its awaiting code
        runs; wait for `runner.aclose()`, or for the batch's ``events()`` to
        end, before you check it by its id.

        Args:
            batch_id: Also check that this batch has settled.
            results: And that these are its results, in call order, each told
                to observers exactly once.
        """
        problems = list(self.broken)
        if batch_id is not None:
            seen = self._batches.get(batch_id)
            if seen is None or not seen.is_over:
                problems.append(f"batch {batch_id} has not settled")
            else:
                given = list(results)
                if [r.index for r in given] != list(range(len(given))):
                    problems.append(f"results of {batch_id} are not in call order")
                if given and len(given) != len(seen.settled):
                    problems.append(
                        f"{len(given)} results for the {len(seen.settled)} calls of {batch_id}"
                    )
                problems.extend(
                    f"result {r.index} of {batch_id} was not told to observers"
                    for r in given
                    if seen.settled.get(r.index) != r
                )
        if problems:
            raise AssertionError("; ".join(problems))


class _Seen:
    """What has been seen of one batch."""

    def __init__(self) -> None:
        self.started: set[int] = set()
        self.settled: dict[int, ToolResult] = {}
        self.was_interrupted = False
        self.is_over = False

    def take(self, event: Event) -> list[str]:
        if self.is_over:
            return [f"{event!r} came after the end of its batch"]
        match event:
            case BatchSettled():
                self.is_over = True
                missing = self.started - self.settled.keys()
                return [f"call {index} never settled" for index in sorted(missing)]
            case BatchInterrupted():
                twice = self.was_interrupted
                self.was_interrupted = True
                return ["the batch was interrupted twice"] if twice else []
            case CallStarted(index=index):
                again = index in self.started or index in self.settled
                self.started.add(index)
                return [f"call {index} started after its start or end"] if again else []
            case CallSettled(result=result):
                return self._take_end(result)
            case CallProgress(index=index) | CallOutput(index=index):
                if index in self.settled:
                    return [f"{event!r} came after the end of its call"]
                if index not in self.started:
                    return [f"{event!r} came before the start of its call"]
            case _:
                pass
        return []

    def _take_end(self, result: ToolResult) -> list[str]:
        index = result.index
        problems = []
        if index in self.settled:
            problems.append(f"call {index} settled twice")
        if result.started != (index in self.started):
            problems.append(f"call {index} says started={result.started}, which is untrue")
        self.settled[index] = result
        return problems
