"""Tools that do what a test says, when it says it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from .._core.record import CallRecord
from .._model.tools import Tool
from .._runtime.backend import Waiter
from .._runtime.context import current, keep_partial, report_progress
from .._runtime.hub import Hub, current_hub

__all__ = (
    "AsyncGatedTool",
    "DeafTool",
    "GatedTool",
    "ScriptedTool",
    "Step",
    "Witness",
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


Witness = Callable[[str, Any], object]
"""Is told ``"start"`` in a tool's first line, ``"return"`` or ``"raise"`` in its last; and of
which call."""


class _Turn:
    """One call that waits at a gate; or has been let through, perhaps to fail."""

    __slots__ = ("error", "record", "tell")

    def __init__(self, tell: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.record = current.get(None)
        self.tell = tell
        """Wakes whoever waits for it."""


class _Gate:
    """
    Lets calls through, first come, first served.

    Threads:
        Any: the lock is held for a few bytecodes only.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.line: deque[_Turn] = deque()
        self._is_open = False
        self._passes: deque[BaseException | None] = deque()
        """For calls to come: an error to raise, or None."""

    def arrive(self, turn: _Turn) -> None:
        with self.lock:
            if self._passes:
                turn.error = self._passes.popleft()
                turn.tell()
            elif self._is_open:
                turn.tell()
            else:
                self.line.append(turn)

    def leave(self, turn: _Turn) -> bool:
        """Give up waiting; False if the call has been let through meanwhile."""
        with self.lock:
            try:
                self.line.remove(turn)
            except ValueError:
                return False
            return True

    def sort(self, key: Callable[[CallRecord | None], Any]) -> None:
        """Put those that wait into another order."""
        with self.lock:
            self.line = deque(sorted(self.line, key=lambda turn: key(turn.record)))

    def open(self) -> None:
        with self.lock:
            self._is_open = True
            while self.line:
                self.line.popleft().tell()

    def let_through(self, error: BaseException | None) -> None:
        with self.lock:
            if self.line:
                turn = self.line.popleft()
                turn.error = error
                turn.tell()
            else:
                self._passes.append(error)


class _AnyGatedTool:
    """What the two kinds of gated tools have in common."""

    def __init__(
        self,
        run: Callable[..., Any],
        name: str,
        value: Any,
        error: BaseException | None,
        options: Any,
    ) -> None:
        self._value = value
        self._error = error
        self.gate = _Gate()
        self._watchers: list[tuple[Hub, Waiter]] = []
        self.witness: Witness | None = None
        self.started = 0
        """How many calls have run their first line."""
        self.ended = 0
        """How many have run their last, in time or late."""
        self.tool = Tool(run, name=name, **options)

    @property
    def waiting(self) -> int:
        """How many calls wait at the gate."""
        return len(self.gate.line)

    def open(self) -> None:
        """Let every call through, also those to come."""
        self.gate.open()

    def let_through(self, count: int = 1) -> None:
        """Let so many calls through, in the order of their coming."""
        for _ in range(count):
            self.gate.let_through(None)

    def fail_one(self, error: BaseException | None = None) -> None:
        """Let one call through that then raises; `RuntimeError` by default."""
        self.gate.let_through(RuntimeError("on purpose") if error is None else error)

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
                with self.gate.lock:
                    if condition():
                        break
                    self._watchers.append((hub, waiter))
                await waiter.wait()
            await anyio.lowlevel.checkpoint()
            return
        msg = f"waited in vain for calls of {self.tool.name!r}: {what}"
        raise TimeoutError(msg)

    def _starts(self) -> None:
        with self.gate.lock:
            self.started += 1
            self._tell("start")

    def _ends(self, returns: bool) -> None:
        with self.gate.lock:
            self.ended += 1
            self._tell("return" if returns else "raise")

    def _tell(self, what: str) -> None:
        """Wake whoever waits for a change; with the lock held."""
        record = current.get(None)
        # Called inside another tool it is not that tool which begins or ends here.
        if self.witness is not None and record is not None and record.tool is self.tool:
            self.witness(what, record)
        watchers, self._watchers = self._watchers, []
        for hub, waiter in watchers:
            hub.post(_wake, waiter)

    def _outcome(self, turn: _Turn, arguments: dict[str, Any]) -> Any:
        error = self._error if turn.error is None else turn.error
        if error is not None:
            raise error
        return self._value(**arguments) if callable(self._value) else self._value


def _wake(waiter: Waiter) -> None:
    waiter.set()


class GatedTool(_AnyGatedTool):
    """
    A blocking tool that runs until the test lets it through.

    Its calls take any arguments. `tool` is what to hand to a runner.

    Args:
        name: The tool's name.
        value: What a call returns; a callable is called with the arguments.
        error: What a call raises instead, if not None.
        **options: Those of `Tool`.

    Threads:
        All but the ``wait_…`` methods may be used from any thread.
    """

    def __init__(
        self,
        name: str = "gated",
        *,
        value: Any = "done",
        error: BaseException | None = None,
        **options: Any,
    ) -> None:
        super().__init__(self._run, name, value, error, options)

    def _run(self, **arguments: Any) -> Any:
        self._starts()
        passed = threading.Lock()
        passed.acquire()
        turn = _Turn(passed.release)
        self.gate.arrive(turn)
        returned = False
        try:
            if not passed.acquire(timeout=LIVENESS_SECONDS) and self.gate.leave(turn):
                msg = f"nobody opened the gate of {self.tool.name!r}"
                raise TimeoutError(msg)
            value = self._outcome(turn, arguments)
            returned = True
            return value
        finally:
            self._ends(returned)


class AsyncGatedTool(_AnyGatedTool):
    """
    An async tool that waits, cancellably, until the test lets it through.

    Its calls take any arguments. `tool` is what to hand to a runner. A call that
    is cancelled leaves the gate, and counts as ended.

    Args:
        name: The tool's name.
        value: What a call returns; a callable is called with the arguments.
        error: What a call raises instead, if not None.
        **options: Those of `Tool`.

    Threads:
        All but the ``wait_…`` methods may be used from any thread.
    """

    def __init__(
        self,
        name: str = "gated_async",
        *,
        value: Any = "done",
        error: BaseException | None = None,
        **options: Any,
    ) -> None:
        super().__init__(self._run, name, value, error, options)

    async def _run(self, **arguments: Any) -> Any:
        self._starts()
        hub = current_hub()
        waiter = hub.backend.waiter()
        turn = _Turn(lambda: hub.post(_wake, waiter))
        self.gate.arrive(turn)
        returned = False
        try:
            await waiter.wait()
            value = self._outcome(turn, arguments)
            returned = True
            return value
        finally:
            self.gate.leave(turn)
            self._ends(returned)


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
