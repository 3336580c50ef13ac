"""
Runs a call on a worker thread.

The way of a blocking call: `run` takes the start ticket, calls the tool in the
call's own context, stores how it ended in the record, takes the end ticket;
`report` then posts the one thing that the loop has to do with it (`record.landing`).
Executors take the same steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from .._core.record import CallRecord
from .._errors import CallDetached
from . import landing
from .busy_threads import cpu_clock_here
from .cancellation import Draining, Outcome, Stopper, run_stoppable
from .context import current, run_hooks
from .foreign_values import close_awaitable, is_awaitable
from .hub import current_hub
from .process_worker import ITEM, PARTIAL
from .processes import ProcessCall
from .tool_body import body_of

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = (
    "HOOK_CARRIER",
    "THREAD_CARRIER",
    "OwnLoop",
    "begin",
    "end",
    "enter",
    "hold_back",
    "report",
)


class _ThreadCarrier:
    """What a runner's lane does with a call."""

    def run(self, record: CallRecord) -> bool:
        batch: BatchEngine = record.batch
        # The fence. A call that is halted keeps its start ticket: the cut
        # that is on its way takes it, and knows that the tool never ran.
        if batch.refuses(record):
            return True
        state = batch.state
        if record.has_thread and state.is_full:
            record.landing = landing.refused
            return True
        # Not looked for in the record later: a call that has been cut before it began
        # holds up nobody, and its batch may have been taken apart (`disbanding`).
        process: ProcessCall | None = None
        if record.tool.carrier == "process":
            process = self._prepare_process(batch, record)
            if process is None:
                return True
        if not begin(batch, record):
            if process is not None:
                process.give_back()
            was_let_go = record.landing is landing.late_quietly
            return not was_let_go
        record.cpu_clock = cpu_clock_here()
        enter(batch, record)
        try:
            value = record.context.run(_call, record)
        except BaseException as exc:  # noqa: BLE001 - a tool's failure, whatever it is
            record.error = exc
        else:
            if value is not None and record.tool.kind == "sync" and is_awaitable(value):
                return self._leave_to_loop(batch, record, value)
            record.value = value
        return end(batch, record)

    def _prepare_process(self, batch: BatchEngine, record: CallRecord) -> ProcessCall | None:
        """Have a process ready for the call; None if there is none, or no need any more."""
        record.stopper = call = ProcessCall()
        # Either the cut sees whom to kill, or this look sees the cut.
        if batch.refuses(record):
            return None
        try:
            call.prepare(record.tool, record.arguments)
        except CallDetached:
            return None  # killed by the cut, which has settled the call
        except BaseException as exc:  # noqa: BLE001 - that call's failure, whatever it is
            record.error = exc
            record.landing = landing.unstartable
            return None
        return call

    def _leave_to_loop(self, batch: BatchEngine, record: CallRecord, value: Any) -> bool:
        """
        The value is awaitable: the rest of the call runs on the loop.

        The thread gives up its end ticket and issues a new one for the rest.
        A cut that comes in between finds no ticket, but `awaiting`, and knows
        that the call has not ended. One that comes before has taken it, and it
        is the loop that knows whether the call is to go on all the same.
        """
        record.awaiting = True
        try:
            batch.tickets.ends.remove(record)
        except KeyError:
            # Not `hosted` yet: the cut is counting the threads that it leaves.
            record.value = value
            record.landing = landing.awaitable
            return False
        record.value = value
        record.move_to_loop()
        batch.tickets.ends.add(record)
        record.landing = landing.awaitable
        return True

    def report(self, record: CallRecord) -> None:
        report(record)

    def thread_failed(self, record: CallRecord, error: BaseException) -> None:
        record.batch.hub.post(landing.thread_failed, (record, error))


THREAD_CARRIER = _ThreadCarrier()


def begin(batch: BatchEngine, record: CallRecord) -> bool:
    """Take a call's start ticket; False if its first line must not run. In any thread."""
    # Before the ticket is taken: who finds it gone may read this.
    record.started_at = batch.hub.clock()
    try:
        batch.tickets.starts.remove(record)
    except KeyError:
        return False
    # Once more: it may have been interrupted since the first look.
    if batch.must_not_start(record):
        _give_up(batch, record, landing.held_back)
        return False
    if batch.publisher.wants_starts or record.tool.timeout is not None:
        batch.hub.post(landing.started, record)
    return True


def enter(batch: BatchEngine, record: CallRecord) -> None:
    """Let observers into the context of a call that has just begun. In any thread."""
    if batch.publisher.entering:
        record.context.run(_enter, batch, record)


def _enter(batch: BatchEngine, record: CallRecord) -> None:
    current.set(record)
    batch.publisher.enter(record)


def hold_back(batch: BatchEngine, record: CallRecord, error: BaseException) -> None:
    """
    A call can't be started, though somebody may still try: that is its failure.

    Nothing, if it has begun already, or was cut. In any thread.
    """
    try:
        batch.tickets.starts.remove(record)
    except KeyError:
        return
    record.error = error
    _give_up(batch, record, landing.unstartable)


def _give_up(batch: BatchEngine, record: CallRecord, land: Any) -> None:
    """
    A call whose start ticket has been taken does not begin.

    The end ticket decides who says so. If the worker has it, the cut finds
    both tickets gone and `held_back`, and knows that the tool never ran.
    If the cut has it, it has let go of a running call, and of this thread.
    """
    record.held_back = record.ended = True
    try:
        batch.tickets.ends.remove(record)
    except KeyError:
        record.landing = landing.late_quietly
    else:
        record.landing = land


def end(batch: BatchEngine, record: CallRecord) -> bool:
    """Take a call's end ticket, its value or error stored; False if it comes too late."""
    record.ended_at = batch.hub.clock()
    record.ended = True
    record.cancel_hooks = None  # what they would unblock is over
    if batch.publisher.leaving:
        batch.publisher.leave(record)
    try:
        batch.tickets.ends.remove(record)
    except KeyError:
        record.landing = landing.late
        return False
    if record.error is not None:
        # At once, not when the loop gets to it: nothing may start meanwhile.
        batch.halt_after(record.error)
    record.landing = landing.ended
    return True


def report(record: CallRecord) -> None:
    """Tell the loop what it has to do with a call."""
    land, record.landing = record.landing, None
    if land is not None:
        batch: BatchEngine = record.batch
        # Then another thread may be at it, or the loop, before the post has returned.
        goes_on = land is landing.awaitable or land is landing.held_back
        if not batch.hub.post(land, record):
            batch.halted = True  # the loop is gone: what waits has no one left
            if goes_on:
                close_awaitable(record.value)
                record.value = None
                goes_on = False
        if record.halted and not goes_on:
            # After the post: whoever finds the account empty knows that
            # all late ends are in the mailbox.
            record.reported = True
            batch.state.account.strike(record)


class _HookCarrier:
    """Runs the `on_cancel` callbacks of blocking calls: they may block, too."""

    def run(self, record: CallRecord) -> bool:
        run_hooks(record)
        return True

    def report(self, record: CallRecord) -> None: ...

    def thread_failed(self, record: CallRecord, error: BaseException) -> None:
        # Better on the loop than not at all: it is what ends a stuck call.
        record.batch.hub.post(run_hooks, record)


HOOK_CARRIER = _HookCarrier()


def _call(record: CallRecord) -> Any:
    """Call the tool; in the call's own context."""
    current.set(record)
    tool = record.tool
    if tool.carrier == "process":
        return _run_in_process(record)
    match tool.kind:
        case "sync":
            return tool.func(**record.arguments)
        case "sync_generator":
            return _stream(record)
        case _:
            return _run_own_loop(record)


def _stream(record: CallRecord) -> Any:
    """Run a generator; each item is an output, the last one the value."""
    batch: BatchEngine = record.batch
    items: list[Any] = []
    record.items = items
    generator = record.tool.func(**record.arguments)
    try:
        for item in generator:
            if record.told:
                raise CallDetached
            items.append(item)
            if not record.items_posted:  # else the loop has not looked yet
                record.items_posted = True
                batch.hub.post(landing.items, record)
    finally:
        generator.close()
    return items[-1] if items else None


def _run_in_process(record: CallRecord) -> Any:
    """Run a call in a worker process, and hand on what it tells on the way."""
    batch: BatchEngine = record.batch
    streams = record.tool.kind == "sync_generator"
    if streams:
        record.items = []

    def tell(kind: bytes, value: Any) -> None:
        if kind == ITEM:
            assert record.items is not None
            record.items.append(value)
            if not record.items_posted:
                record.items_posted = True
                batch.hub.post(landing.items, record)
        elif kind == PARTIAL:
            record.kept_partial = value
        else:
            batch.publisher.report_progress(record, value)

    call: ProcessCall = record.stopper
    return call.run(tell, streams=streams)


class OwnLoop:
    """How the outer loop reaches an async call that runs in a loop of its own."""

    __slots__ = ("_draining", "_hub", "_stopper")

    def __init__(self, stopper: Stopper, cleanup_grace: float) -> None:
        self._hub = current_hub()
        self._stopper = stopper
        self._draining = Draining(self._hub.backend, cleanup_grace)

    def tell(self) -> None:
        """Have the call told to stop, on its own loop; from any thread."""
        self._hub.post(self._draining.add, self._stopper)

    def ended(self) -> None:
        self._draining.ended(self._stopper)


def _run_own_loop(record: CallRecord) -> Any:
    """Run an async tool to its end in an event loop of its own."""
    outcome = anyio.run(_own_loop_main, record, backend=record.batch.hub.backend.name)
    if outcome.stopped:
        raise CallDetached
    if outcome.error is None:
        return outcome.value
    try:
        raise outcome.error
    finally:
        del outcome  # the error refers to this frame


async def _own_loop_main(record: CallRecord) -> Outcome:
    batch: BatchEngine = record.batch
    stopper = Stopper(current_hub().backend, batch.mark_of(record))
    own_loop = OwnLoop(stopper, batch.state.cleanup_grace)
    record.stopper = own_loop
    # Either the outer loop sees the stopper, or this look sees the cut.
    if record.told:
        own_loop.tell()
    try:
        return await run_stoppable(stopper, body_of(record))
    finally:
        own_loop.ended()
