"""
One turn, from its calls to the answer, and out.

The order at the end is the point:

1. every call is settled;
2. the answer is written, inside the loop: what is still running, and could
   hold the loop's end, has no say in it;
3. calls that were told to stop get a moment to tidy up;
4. the user is told what still runs;
5. the loop ends and the process with it. A coroutine that refuses to end, or
   a thread that somebody joins, would hold that: so from step 2 on a watchdog
   runs, which ends the process whatever happens.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from .. import Event, Status, ToolBatch, ToolResult, ToolRunner
from ..observe.live import LiveView
from ..observe.trace import TraceRecorder
from .errors import UnusableInputError
from .inputs import Turn
from .output import FileTarget, Stdout, Target
from .progress import say, summary
from .signals import Phase, Signals
from .toolbox import Tools

__all__ = ("BACKENDS", "RunOptions", "check_backend", "run_turn")

BACKENDS = ("asyncio", "uvloop", "trio")

TIDY_SECONDS = 0.5
"""For calls that were told to stop; `--grace` is there for those that need more."""
BEAT_SECONDS = 0.2
"""How late a Ctrl-C may come through at worst; see `_stay_awake`."""
LEAVE_SECONDS = 1.0
"""From the answer to the process's end, at most."""

EXIT_NOT_WRITTEN = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a turn is to be run; seconds are as the command's options say."""

    backend: str = "asyncio"
    timeout: float | None = None
    grace: float = 0.0
    max_threads: int = 32
    interrupt_after: float | None = None
    trace: FileTarget | None = None


def check_backend(name: str) -> None:
    """
    Raise where the event loop is not there.

    Raises:
        UnusableInputError: The package that brings it cannot be imported.
    """
    if name == "asyncio":
        return
    try:
        importlib.import_module(name)
    except ImportError as exc:
        msg = (
            f"--backend {name} needs the package {name} ({exc}); "
            f"pip install 'anyio-toolbatch[{name}]'"
        )
        raise UnusableInputError(msg) from None


def run_turn(
    turn: Turn,
    tools: Tools,
    options: RunOptions,
    stdout: Stdout,
    target: Target,
    *,
    owns_process: bool,
) -> int:
    """
    Run the calls, write the answer and return the exit status.

    Args:
        turn: The calls, and how their results are written down.
        tools: As for `ToolRunner`.
        options: Limits and event loop.
        stdout: Held back already; stays so while something is running.
        target: Takes the answer.
        owns_process: End the process if a tool keeps it from ending.
    """
    run = _TurnRun(turn, tools, options, stdout, target, owns_process=owns_process)
    with run.signals:
        try:
            anyio.run(
                run.main,
                backend="trio" if options.backend == "trio" else "asyncio",
                backend_options=({"use_uvloop": True} if options.backend == "uvloop" else {}),
            )
        except BaseException:
            # A tool can cancel the very loop it runs on. It has cost nothing
            # if the answer is out; else it is a fault to be seen whole.
            if run.signals.phase is not Phase.ANSWERED:
                raise
    return run.signals.code


class _TurnRun:
    """The run of one turn."""

    def __init__(
        self,
        turn: Turn,
        tools: Tools,
        options: RunOptions,
        stdout: Stdout,
        target: Target,
        *,
        owns_process: bool,
    ) -> None:
        self._turn = turn
        self._options = options
        self._stdout = stdout
        self._target = target
        self._owns_process = owns_process
        self._view = LiveView()
        self._recorder = TraceRecorder(max_calls=None)
        observers: list[Callable[[Event], object]] = [self._view]
        if options.trace is not None:
            observers.append(self._recorder)
        self._runner = ToolRunner(
            tools,
            max_threads=options.max_threads,
            interrupt_grace=options.grace,
            observers=observers,
        )
        self.signals = Signals(self._interrupt_by_user, self._leaving, stays=owns_process)
        self._results: list[ToolResult] = []
        self._seconds = 0.0
        self._farewell = threading.Lock()

    async def main(self) -> None:
        """Run all of it; after a good end `signals` has the exit status."""
        say(_title(len(self._turn.calls), self._options.backend))
        started = time.monotonic()
        batch: ToolBatch | None = None
        try:
            with self._view:
                async with self._runner.open_batch(timeout=self._options.timeout) as batch:
                    if self.signals.first is not None:
                        batch.interrupt()  # the signal came before there was a batch
                    for call in self._turn.calls:
                        batch.submit(call)
                    batch.seal()
                    await self._interrupt_after(batch)
                    await _stay_awake(batch)
                # Before the view is left, which takes a moment to draw the last of it.
                self._seconds = time.monotonic() - started
        except KeyboardInterrupt:
            # A tool's own, since Ctrl-C goes another way; it counts as that.
            self.signals.first = self.signals.first or signal.SIGINT
        finally:
            # However the block was left, each call has its result.
            if batch is not None:
                self._seconds = self._seconds or time.monotonic() - started
                self._answer(batch)
        await self._runner.wait_detached(TIDY_SECONDS)
        self._say_farewell()

    async def _interrupt_after(self, batch: ToolBatch) -> None:
        seconds = self._options.interrupt_after
        if seconds is not None:
            with anyio.move_on_after(seconds):
                await batch.wait()
            if batch.interrupt():
                self._view.note(
                    f"Interrupting after {seconds:g} s, as --interrupt-after says."
                )

    def _interrupt_by_user(self) -> None:
        """Take the first signal; in its handler."""
        self._runner.interrupt()
        self._view.note("Interrupting; Ctrl-C once more leaves at once, without the results.")

    # -- the answer ----------------------------------------------------------

    def _answer(self, batch: ToolBatch) -> None:
        self._results = results = batch.results
        self.signals.phase = Phase.ANSWERING
        messages = self._turn.messages(results)
        text = _ACTIVE.sub(_escaped, json.dumps(messages, ensure_ascii=False, indent=2)) + "\n"
        code = self._write(text) or self._exit_code(batch)
        if self._owns_process:
            watchdog = threading.Timer(LEAVE_SECONDS, self._leave_anyway, [code])
            watchdog.daemon = True
            # Tools may have used up all threads; then only Ctrl-C is left.
            with contextlib.suppress(RuntimeError):
                watchdog.start()
        self.signals.answered(code)

    def _write(self, text: str) -> int:
        try:
            self._target.write(text)
        except BrokenPipeError:
            pass  # who has read enough of a pipe may go
        except OSError as exc:
            say(f"anyio-toolbatch: {self._target.name} could not be written: {exc.strerror}")
            if self._target is not self._stdout:
                say("The messages go to standard output instead.")
                # The tools' work is done; it must not be lost for this.
                with contextlib.suppress(OSError):
                    self._stdout.write(text)
            return EXIT_NOT_WRITTEN
        return 0

    def _exit_code(self, batch: ToolBatch) -> int:
        reason = batch.reason
        if self.signals.first and reason is not None and reason.kind == "user_interrupt":
            return 128 + self.signals.first
        return int(any(result.status is not Status.COMPLETED for result in self._results))

    # -- the way out -----------------------------------------------------------

    def _say_farewell(self) -> None:
        """Say how it went and what still runs; once, whoever comes first."""
        if self._farewell.acquire(blocking=False):
            detached = self._runner.statistics().detached
            if detached:
                self._stdout.keep_held()
            say(summary(self._results, self._seconds, detached))
            self._save_trace()

    def _leave_anyway(self, code: int) -> None:
        """End the process; in the watchdog's thread."""
        try:
            self._say_farewell()
        finally:
            os._exit(code)

    def _leaving(self) -> None:
        """Say that the user leaves now; in a signal handler."""
        self._view.restore()
        if self.signals.phase is Phase.ANSWERED:
            self._say_farewell()
        else:
            say(f"Left at once; {self._target.untouched}.")
            self._save_trace()

    def _save_trace(self) -> None:
        target = self._options.trace
        if target is not None:
            try:
                target.write(self._recorder.to_json())
            except OSError as exc:
                say(f"anyio-toolbatch: {target.name} could not be written: {exc.strerror}")


_ACTIVE = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys, or what turns the text around it, and JSON leaves as it is."""


def _escaped(char: re.Match[str]) -> str:
    return f"\\u{ord(char[0]):04x}"


async def _stay_awake(batch: ToolBatch) -> None:
    """
    Wait for the batch, and let the event loop turn now and then.

    asyncio without a wake-up descriptor misses a signal that comes between
    its last look and its sleep: the handler runs when the loop next turns.
    """
    while None in batch.snapshot():
        with anyio.move_on_after(BEAT_SECONDS):
            await batch.wait()


def _title(count: int, backend: str) -> str:
    calls = "1 call" if count == 1 else f"{count} calls"
    return f"Running {calls} on {backend}; Ctrl-C interrupts."
