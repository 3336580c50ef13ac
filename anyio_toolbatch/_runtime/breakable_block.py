"""
The block of a batch, for a thread that a signal handler may break out of anywhere.

A thread that waits for another one's loop can be broken at any line: while the
batch is on its way there, inside the block, while it leaves, or before the first
line of leaving. Wherever it is, the batch is cut at once, no tool is waited for,
and what has broken it goes on:

* A `KeyboardInterrupt` is an interrupt. Where the batch can be had in a moment the
  block is entered all the same, and the break raised in it: results have a name.
* All else cuts as a cancellation does, without a grace.
* If the loop does not answer, blocked by a tool, the batch is *given up*: nothing
  starts from then on, and the loop settles it when it comes to it.

Story of the opening: who wants something of it writes that down, then looks for
the engine; the loop stores the engine, then looks at what is written down. One of
the two sees the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from .._errors import RunnerClosedError
from .._model.results import Reason, Status
from .batch import BatchContext, ToolBatch
from .engine import BatchEngine
from .loop_thread import Errand, LoopThread

__all__ = ("Block", "Opening")

SETTLE_SECONDS = 0.5
"""
How long whoever was broken out waits for the loop to settle what was cut, which
takes it milliseconds; unless a tool blocks it.
"""

B = TypeVar("B")


class Opening:
    """A batch on its way to the loop, for those who can't reach it there yet."""

    def __init__(self, context: BatchContext) -> None:
        self.context = context
        context.on_open = self._opened
        self.engine: BatchEngine | None = None
        self._requests: list[tuple[str | None, float | None]] = []
        self._given_up_for: Reason | None = None
        self._is_entered = False
        self.broken_by: KeyboardInterrupt | None = None
        """What has come while the batch was on its way, and is to be raised later."""

    async def enter(self) -> ToolBatch:
        """Open it; on the loop."""
        batch = await self.context.__aenter__()
        # Either this look sees that nobody waits any more, or who gave up sees this.
        self._is_entered = True
        self._detach()
        return batch

    def _opened(self, engine: BatchEngine) -> None:
        # Either this look sees a request, or who makes one sees the engine.
        self.engine = engine
        for request in list(self._requests):
            engine.interrupt(*request)
        if self._given_up_for is not None:
            engine.cutter.cut_batch(Status.INTERRUPTED, self._given_up_for, grace=0.0)

    def _detach(self) -> None:
        if self.engine is not None and self._given_up_for is not None:
            self.engine.detach(self._given_up_for)

    def interrupt(self, message: str | None, grace: float | None) -> bool:
        """Have it interrupted before its first call; any thread, and signal handlers."""
        if self.engine is not None:
            return self.engine.interrupt(message, grace)
        request = (message, grace)
        self._requests.append(request)
        if self.engine is not None:  # it may have been too early to see the request
            self.engine.interrupt(message, grace)
        return self._requests[0] is request

    def raise_break(self) -> None:
        """Raise what has broken the opening; once."""
        broken, self.broken_by = self.broken_by, None
        if broken is not None:
            raise broken

    def halt(self) -> None:
        """Have nothing start any more; any thread."""
        if self.engine is not None:
            self.engine.halted = self.engine.stopping = True

    def give_up(self, loop: LoopThread, error: BaseException | None = None) -> None:
        """
        Nobody is going to leave its block; never blocks.

        Args:
            loop: Where it is, or is going to be.
            error: What has broken the block, if it is known.
        """
        if not loop.is_ours:
            return  # a post would wake the parent's loop
        if self._given_up_for is None:
            is_break = isinstance(error, KeyboardInterrupt)
            self._given_up_for = Reason("user_interrupt" if is_break else "caller_cancelled")
        self.halt()
        if self._is_entered and loop.hub is not None:
            loop.hub.post_urgent(Opening._detach, self)


class Block(Generic[B]):
    """
    The block of a batch.

    Args:
        opening: Of this batch.
        grace: What the first Ctrl-C gives to running calls.
        start: Gives the loop that it is to run on.
        entered: Has the opening in it from before the loop knows of the batch
            until its block is left.
        face: Makes what the block gives of the batch, its loop, and what raises
            a break that came while it was being opened.
    """

    __slots__ = ("_entered", "_face", "_grace", "_is_left", "_loop", "_opening", "_start")

    def __init__(
        self,
        opening: Opening,
        grace: float,
        *,
        start: Callable[[], LoopThread],
        entered: dict[Opening, None],
        face: Callable[[ToolBatch, LoopThread, Callable[[], None]], B],
    ) -> None:
        self._opening = opening
        self._grace = grace
        self._start = start
        self._entered = entered
        self._face = face
        self._loop: LoopThread | None = None
        self._is_left = False

    def __enter__(self) -> B:
        if self._loop is not None:
            msg = "this batch has been opened already; call open_batch() again"
            raise RuntimeError(msg)
        opening = self._opening
        self._loop = loop = self._start()
        errand = Errand(loop, opening.enter)
        try:
            self._entered[opening] = None
            try:
                loop.post(errand)
                errand.wait()
            except KeyboardInterrupt as broken:
                # Calls may be running: there must be a batch to read them from. It is
                # raised as soon as the block does anything with it.
                opening.interrupt(None, None)
                if not errand.wait(SETTLE_SECONDS):
                    raise
                opening.broken_by = broken
            return self._face(errand.result(), loop, opening.raise_break)
        except BaseException as broken:
            self._is_left = True
            opening.give_up(loop, broken)
            self._entered.pop(opening, None)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = self._loop
        assert loop is not None, "left before it was entered"
        self._is_left = True
        if not loop.is_ours:
            return  # a forked process leaves the block; the batch is the parent's
        try:
            if isinstance(exc, KeyboardInterrupt):
                self._settle_after_break(loop, None)
            elif exc is None and self._opening.broken_by is not None:
                self._settle_after_break(loop, None)
                self._opening.raise_break()
            elif exc is not None:
                self._opening.halt()  # now: a tool may block the loop
                errand = loop.send(lambda: self._leave(exc))
                if errand.wait(SETTLE_SECONDS):
                    errand.result()
            else:
                self._wait(loop)
        except RunnerClosedError:
            if exc is None and not self._is_settled():
                raise
        except BaseException as broken:
            # Whatever has broken the leaving: nobody comes back for the batch.
            self._opening.give_up(loop, broken)
            raise
        finally:
            self._entered.pop(self._opening, None)

    async def _leave(self, exc: BaseException | None) -> None:
        await self._opening.context.__aexit__(
            None if exc is None else type(exc), exc, None if exc is None else exc.__traceback__
        )

    def _wait(self, loop: LoopThread) -> None:
        """Wait until all is settled; whatever breaks the wait cuts the batch."""
        errand = None
        try:
            errand = loop.send(lambda: self._leave(None))
            errand.wait()
        except KeyboardInterrupt:
            self._settle_after_break(loop, errand)
            raise
        except BaseException:
            if errand is not None:
                errand.cancel()  # which is to this batch what it is to every other
                errand.wait(SETTLE_SECONDS)
            raise
        errand.result()

    def _settle_after_break(self, loop: LoopThread, errand: Errand[None] | None) -> None:
        """Interrupt; wait a moment, but for no tool; a second Ctrl-C ends the grace."""
        engine = self._opening.engine
        assert engine is not None, "it was entered"
        for grace in (None, 0.0):
            try:
                engine.interrupt(None, grace)
                if errand is None:
                    errand = loop.send(lambda: self._leave(None))
                errand.wait((self._grace if grace is None else grace) + SETTLE_SECONDS)
                return
            except KeyboardInterrupt:
                continue

    def _is_settled(self) -> bool:
        engine = self._opening.engine
        return engine is None or engine.closed

    def __del__(self) -> None:
        # A Ctrl-C may come at the first step into `__exit__`, before any line of it.
        loop = self._loop
        if loop is not None and not self._is_left and not sys.is_finalizing():
            self._opening.give_up(loop)
            self._entered.pop(self._opening, None)
