"""
Daemon threads that take the next job themselves.

Purpose: blocking calls must be cheap to start (no task and no hand-over each)
and free to be abandoned (nothing ever joins these threads, and the
interpreter does not wait for them).

Two things live here. The *pool* is the process's stock of idle threads; it
knows nothing of loops or batches. A *lane* is the line of calls that one
runner has on one loop for a thread, with its limit; a thread that serves a
lane pulls call after call from it and goes back to the pool when none is
left. Batches take turns in a lane.

Starting is a chain: whoever adds a job brings in one thread, and each thread
that has taken a job brings in the next while jobs wait. 64 cold threads
started in a row by the loop would stall it for 34 to 58 ms, a chain for 4.

Story of an idle thread (who wakes whom):

1. A thread with nothing to do appends itself to the pool's idle list and then
   waits on its own lock, `wake`, which it holds.
2. Whoever needs a thread pops one from the list, sets its `lane` and releases
   `wake`. Popping is atomic: each waiting thread is given one lane.
3. When the wait times out, the thread removes itself from the list and ends.
   If it is no longer there, 2 is under way, and it waits for the release.

A thread joins the idle list *before* it posts its last result, so that the
call which the result sets off finds it there instead of starting a new one.

`at_work` are the threads that may still do or say something. Story: whoever
needs a thread sets its `lane`, then enters it; a thread that is through leaves,
then looks at its `lane`, and enters itself again if it has one. So a thread that
was given work while it was still posting is in there in every order.

Story of a thread that is abandoned: the loop takes the call's end ticket and
then gives the thread's place in the lane to somebody else (`Lane.abandon`).
The thread notices at its end that the ticket is gone: it no longer belongs to
the lane, touches no count of it, and goes to the pool.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from .backend import after_fork
from .leaving import leave_streams_to_main_thread

__all__ = (
    "IDLE_SECONDS",
    "Abandonable",
    "JobRunner",
    "Lane",
    "Worker",
    "at_work",
    "idle_threads",
    "take",
)

logger = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""How long an idle thread is kept. Arbitrary: longer than a pause between turns."""


Job = Any
"""Whatever the lane's `JobRunner` knows how to run."""


class Abandonable:
    """
    A job that its owner may withdraw while a thread is at it.

    Two tickets, each a list of one item, since ``list.pop`` is atomic: the
    worker takes the *start* ticket before it does anything and the *end* ticket
    after it; who withdraws takes the same two. Without the start ticket nothing
    is ever done; a worker that finds the end ticket gone has been abandoned.
    """

    __slots__ = ("_end", "_start")

    def __init__(self) -> None:
        self._start = [None]
        self._end = [None]

    def begin(self) -> bool:
        """In the worker: may it be done?"""
        return take(self._start)

    def end(self) -> bool:
        """In the worker: was it done for somebody?"""
        return take(self._end)

    def withdraw_from(self, lane: Lane) -> bool:
        """Not in the worker: let it be; True if a thread of the lane is left to itself."""
        if take(self._start) or not take(self._end):
            return False
        lane.abandon()
        return True


def take(ticket: list[None]) -> bool:
    """Take a ticket; False if it is gone. Any thread."""
    try:
        ticket.pop()
    except IndexError:
        return False
    return True


class JobRunner(Protocol):
    """What a lane does with its jobs."""

    def run(self, job: Job, /) -> bool:
        """Do the work; must not raise. False if the thread was abandoned meanwhile."""
        ...

    def report(self, job: Job, /) -> None:
        """Tell whoever waits for it; called when the thread is free again."""
        ...

    def thread_failed(self, job: Job, error: BaseException, /) -> None:
        """No thread could be started for this job; called from any thread."""
        ...


class Worker:
    """One thread of the pool."""

    __slots__ = ("lane", "wake")

    def __init__(self, lane: Lane) -> None:
        self.lane: Lane | None = lane
        self.wake = threading.Lock()
        self.wake.acquire()

    def run(self) -> None:
        # A daemon thread parked in input() makes the interpreter abort at its
        # end, when the standard streams are finalised under it. Keeping them
        # referenced from this frame keeps them alive (measured: 0 of 600).
        streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
        while True:
            lane, self.lane = self.lane, None
            assert lane is not None
            lane.serve(self)
            del lane
            at_work.discard(self)
            if self.lane is not None:
                at_work.add(self)
            if not self.wake.acquire(timeout=IDLE_SECONDS):
                try:
                    _idle.remove(self)
                except ValueError:
                    self.wake.acquire()
                else:
                    break
        del streams


_idle: deque[Worker] = deque()
at_work: set[Worker] = set()
"""The threads of the process that have something to do; see the file's head."""


def idle_threads() -> int:
    """Return how many threads of the process wait for work."""
    return len(_idle)


def _forget_threads() -> None:
    # No thread but the forking one survives in the child.
    _idle.clear()
    at_work.clear()


after_fork(_forget_threads)


_THREAD_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    # There a thread inherits the context of whoever starts it, and would keep
    # the variables of one call for the whole of its life.
    _THREAD_OPTIONS["context"] = contextvars.Context()


def _bring_thread(lane: Lane) -> None:
    """
    Have a thread serve the lane.

    Raises:
        RuntimeError: The system refuses another thread.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = Worker(lane)
        at_work.add(worker)
        leave_streams_to_main_thread()
        try:
            threading.Thread(
                target=worker.run,
                name="anyio_toolbatch worker",
                daemon=True,
                **_THREAD_OPTIONS,
            ).start()
        except BaseException:
            at_work.discard(worker)
            raise
    else:
        worker.lane = lane
        at_work.add(worker)
        worker.wake.release()


class Lane:
    """
    The jobs of one runner on one loop that wait for a thread.

    Args:
        limit: How many threads may serve it at once, abandoned ones not counted.
        runner: What to do with a job.

    Threads:
        Every method may be called from any thread. The lock is held for a few
        bytecodes only and never while foreign code runs; signal handlers must
        keep out (they post to the loop instead).
    """

    def __init__(self, limit: int, runner: JobRunner) -> None:
        self.limit = limit
        self._runner = runner
        self.attached = 0
        self._lock = threading.Lock()
        # Both hold a batch only while it has jobs here.
        self._lines: dict[Hashable, deque[Job]] = {}
        self._turns: deque[Hashable] = deque()

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and no thread serves it but those that were left to themselves."""
        return not self.attached and not self._lines

    def put(self, batch: Hashable, jobs: Sequence[Job]) -> None:
        """Add jobs, at least one, to the end of their batch's line."""
        with self._lock:
            line = self._lines.get(batch)
            if line is None:
                self._lines[batch] = deque(jobs)
                self._turns.append(batch)
            else:
                line.extend(jobs)
            if self.attached >= self.limit:
                return
            self.attached += 1
        self._bring()

    def forget(self, batch: Hashable) -> None:
        """Drop the jobs of a batch that still wait; those under way go on."""
        with self._lock:
            if self._lines.pop(batch, None) is not None:
                self._turns.remove(batch)

    def take_back(self) -> dict[Any, list[Job]]:
        """Take out all jobs that still wait, by batch; those under way go on."""
        with self._lock:
            waiting = {batch: list(line) for batch, line in self._lines.items()}
            self._lines.clear()
            self._turns.clear()
        return waiting

    def abandon(self, count: int = 1) -> None:
        """Give away the places of threads whose calls were let go."""
        with self._lock:
            self.attached -= count
        self._grow()

    def serve(self, worker: Worker) -> None:
        """Run jobs until there are none left for this thread; on a worker."""
        runner = self._runner
        job = self._take()
        if job is None:
            _idle.append(worker)
        while job is not None:
            self._grow()
            try:
                is_ours = runner.run(job)
            except BaseException:
                logger.exception("error in a worker")
                is_ours = True
            following = self._take() if is_ours else None
            if following is None:
                _idle.append(worker)
            runner.report(job)
            job = following

    def _take(self) -> Job | None:
        """Return the next job; without one the thread's place is given up."""
        with self._lock:
            if not self._turns:
                self.attached -= 1
                return None
            return self._next()

    def _next(self) -> Job:
        """Take the next job out of the batch whose turn it is; with the lock held."""
        turns = self._turns
        line = self._lines[turns[0]]
        job = line.popleft()
        if line:
            turns.rotate(-1)
        else:
            del self._lines[turns.popleft()]
        return job

    def _grow(self) -> None:
        """Bring in one more thread if a job waits and the limit allows it."""
        if not self._turns or self.attached >= self.limit:
            return  # a look without the lock; the one below counts
        with self._lock:
            if not self._turns or self.attached >= self.limit:
                return
            self.attached += 1
        self._bring()

    def _bring(self) -> None:
        """Bring in the thread whose place has been taken."""
        try:
            _bring_thread(self)
        except Exception as exc:  # noqa: BLE001 - whatever a thread start may raise
            self._thread_refused(exc)

    def _thread_refused(self, error: Exception) -> None:
        """
        Fail the job that the thread was for.

        The others are left to the threads that serve already; if there are
        none, nobody would ever come for them, and all fail.
        """
        failed = []
        with self._lock:
            self.attached -= 1
            while self._turns:
                failed.append(self._next())
                if self.attached:
                    break
        for job in failed:
            self._runner.thread_failed(job, error)
