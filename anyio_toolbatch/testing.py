"""
For testing an agent or a framework against this library, without sleeping.

* `GatedTool`: a blocking tool that runs until the test lets it through.
* `DeafTool`: an async tool that swallows every cancellation until released.
* `ScriptedTool`: an async tool that does what a list of steps says.
* `PromiseObserver`: an observer that checks each batch's events against what
  the library promises.

Virtual clocks (trio's `MockClock`, looptime) do not see worker threads and
jump over them: test blocking tools in real time, with gates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from ._model.events import (
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
from ._model.results import ToolResult
from ._model.tools import Tool
from ._runtime.backend import Waiter
from ._runtime.context import keep_partial, report_progress
from ._runtime.hub import Hub, current_hub

__all__ = (
    "DeafTool",
    "GatedTool",
    "PromiseObserver",
    "ScriptedTool",
    "Step",
    "clean_up_for",
    "fail",
    "give",
    "partial",
    "progress",
    "shielded_for",
    "sleep",
)

LIVENESS_SECONDS = 30.0
"""When a gate that nobody opens fails the test instead of hanging it."""


class GatedTool:
    """
    A blocking tool that runs until the test lets it through.

    Its calls take any arguments. `tool` is what to hand to a runner.

    Args:
        name: The tool's name.
        value: What a call returns; a callable is called with the arguments.
        error: What a call raises instead, if not None.
        **options: Those of `Tool`.

    Threads:
        `open` and the counts may be used from any thread.
    """

    def __init__(
        self,
        name: str = "gated",
        *,
        value: Any = "done",
        error: BaseException | None = None,
        **options: Any,
    ) -> None:
        self._value = value
        self._error = error
        self._changed = threading.Condition()
        self._watchers: list[tuple[Hub, Waiter]] = []
        self._is_open = False
        self._passes = 0
        self.started = 0
        """How many calls have run their first line."""
        self.ended = 0
        """How many have run their last, in time or late."""
        self.tool = Tool(self._run, name=name, **options)

    def _run(self, **arguments: Any) -> Any:
        with self._changed:
            self.started += 1
            self._tell()
            passed = self._changed.wait_for(self._may_pass, LIVENESS_SECONDS)
            if passed and not self._is_open:
                self._passes -= 1
        try:
            if not passed:
                msg = f"nobody opened the gate of {self.tool.name!r}"
                raise TimeoutError(msg)
            if self._error is not None:
                raise self._error
            return self._value(**arguments) if callable(self._value) else self._value
        finally:
            with self._changed:
                self.ended += 1
                self._tell()

    def _may_pass(self) -> bool:
        return self._is_open or self._passes > 0

    def open(self) -> None:
        """Let every call through, also those to come."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def let_through(self, count: int = 1) -> None:
        """Let so many calls through."""
        with self._changed:
            self._passes += count
            self._changed.notify_all()

    async def wait_started(self, count: int = 1) -> None:
        """Wait until so many calls have run their first line."""
        await self._wait(lambda: self.started >= count, f"{count} to start")

    async def wait_ended(self, count: int = 1) -> None:
        """Wait until so many calls have run their last line."""
        await self._wait(lambda: self.ended >= count, f"{count} to end")

    async def _wait(self, condition: Callable[[], bool], what: str) -> None:
        hub = current_hub()
        with anyio.move_on_after(LIVENESS_SECONDS):
            while True:
                waiter = hub.backend.waiter()
                with self._changed:
                    if condition():
                        break
                    self._watchers.append((hub, waiter))
                await waiter.wait()
            await anyio.lowlevel.checkpoint()
            return
        msg = f"waited in vain for calls of {self.tool.name!r}: {what}"
        raise TimeoutError(msg)

    def _tell(self) -> None:
        """Wake whoever waits for a change, in threads and on loops; with the lock held."""
        self._changed.notify_all()
        watchers, self._watchers = self._watchers, []
        for hub, waiter in watchers:
            hub.post(_wake, waiter)


def _wake(waiter: Waiter) -> None:
    waiter.set()


class DeafTool:
    """
    An async tool that swallows every cancellation until it is released.

    `tool` is what to hand to a runner; `release` belongs to the loop's thread.
    """

    def __init__(self, name: str = "deaf", *, value: Any = "done", **options: Any) -> None:
        self._value = value
        self._released: list[anyio.Event] = []
        self._is_released = False
        self.started = 0
        self.ended = 0
        self.cancellations = 0
        """How often a cancellation was swallowed."""
        self.tool = Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> Any:
        self.started += 1
        event = anyio.Event()
        self._released.append(event)
        while not self._is_released:
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class():
                self.cancellations += 1
        self.ended += 1
        return self._value

    def release(self) -> None:
        """Let all its calls come to their end."""
        self._is_released = True
        for event in self._released:
            event.set()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a `ScriptedTool`; made by the functions below."""

    kind: str
    subject: Any = None
    total: float | None = None


def sleep(seconds: float) -> Step:
    """Sleep, cancellably."""
    return Step("sleep", seconds)


def shielded_for(seconds: float) -> Step:
    """Sleep inside a shield of the tool's own."""
    return Step("shielded", seconds)


def clean_up_for(seconds: float) -> Step:
    """When the tool ends, however, await for so long in its ``finally``."""
    return Step("cleanup", seconds)


def progress(value: float, total: float | None = None) -> Step:
    """Report progress."""
    return Step("progress", value, total)


def partial(value: Any) -> Step:
    """Publish a partial result."""
    return Step("partial", value)


def fail(error: BaseException) -> Step:
    """Raise."""
    return Step("fail", error)


def give(value: Any) -> Step:
    """Return."""
    return Step("give", value)


class ScriptedTool:
    """
    An async tool that does what its steps say, one after the other.

    Args:
        *steps: Made by `sleep`, `progress`, `partial`, `fail`, `give` … of
            this module. Without a `give` the tool returns None.
        name: The tool's name.
        **options: Those of `Tool`.
    """

    def __init__(self, *steps: Step, name: str = "scripted", **options: Any) -> None:
        self._steps = steps
        self.started = 0
        self.ended = 0
        self.cleaned_up = 0
        """How often a `clean_up_for` was awaited to its end."""
        self.tool = Tool(self._run, name=name, **options)

    async def _run(self, **_arguments: Any) -> Any:
        self.started += 1
        cleanups: list[float] = []
        try:
            for step in self._steps:
                match step.kind:
                    case "sleep":
                        await anyio.sleep(step.subject)
                    case "shielded":
                        with anyio.CancelScope(shield=True):
                            await anyio.sleep(step.subject)
                    case "cleanup":
                        cleanups.append(step.subject)
                    case "progress":
                        report_progress(step.subject, step.total)
                    case "partial":
                        keep_partial(step.subject)
                    case "fail":
                        raise step.subject
                    case _:
                        return step.subject
        finally:
            for seconds in cleanups:
                await anyio.sleep(seconds)
                self.cleaned_up += 1
            self.ended += 1
        return None


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
