"""
What is known of one call while its batch lives, and its two tickets.

A ticket is a call's place in a set of its batch; taking it is ``set.remove``,
which CPython makes atomic, so whoever removes first has it and everybody else
gets a KeyError. (Sets of the batch, not an object a call: the collector looks
at every object, and a large batch is what it looks at most.)

The race of start and cut: a worker takes the *start* ticket just before the
tool's first line, a cut takes it to keep the call from starting. Exactly one
gets it, so no result ever says "not started" of a call that ran.

The race of end and cut: the worker stores value or error in the record and
then takes the *end* ticket; a cut takes it to let the call go. If the worker
has it, the stored value is the call's real result, also when its message to
the loop is still on its way. If the cut has it, whatever the worker brings is
late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._model.calls import ToolCall
    from .._model.results import Reason, Status
    from .._model.tools import Tool

__all__ = ("UNSET", "CallRecord", "Tickets")


class _Unset:
    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()
"""What no tool can have given; None is a value like any other."""


class Tickets:
    """The tickets of one batch that nobody has taken yet; see the file's head."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: set[CallRecord] = set()
        self.ends: set[CallRecord] = set()

    def issue(self, records: list[CallRecord]) -> None:
        """Give each of these calls both of its tickets."""
        self.starts.update(records)
        self.ends.update(records)

    def forget(self) -> None:
        """Withdraw them all: those of calls that were refused are still there."""
        self.starts.clear()
        self.ends.clear()


class CallRecord:
    """One call of one batch. The comment says who writes a field."""

    __slots__ = (
        "__weakref__",
        "answered_at",
        "arguments",
        "asked_at",
        "awaiting",
        "batch",
        "call",
        "cancel_flag",
        "cancel_hooks",
        "claims",
        "context",
        "cpu_clock",
        "cut_reason",
        "cut_status",
        "ended",
        "ended_at",
        "entry",
        "error",
        "halted",
        "has_thread",
        "held_back",
        "hosted",
        "index",
        "inner",
        "is_admitted",
        "items",
        "items_posted",
        "items_told",
        "kept_partial",
        "landing",
        "loop_requests",
        "progress",
        "progress_posted",
        "question",
        "refused",
        "reported",
        "reported_progress",
        "restarted",
        "start_told",
        "started_at",
        "stopper",
        "stopping",
        "submitted_at",
        "timer",
        "told",
        "tool",
        "value",
        "was_cut",
    )

    def __init__(self, batch: Any, call: ToolCall, submitted_at: float) -> None:
        self.batch = batch
        self.call = call
        self.submitted_at = submitted_at
        self.index = -1
        # -- written by the loop, before anything can start
        self.tool: Tool = None  # type: ignore[assignment]  # set unless invalid
        self.arguments: dict[str, Any] = call.arguments
        self.context: Any = None
        self.claims: tuple[Any, Any] | None = None
        """The keys that it reads and that it writes; None for none."""
        # -- written by whoever runs the tool
        self.started_at = 0.0
        self.ended_at = 0.0
        self.cpu_clock: int | None = None  # of its thread
        self.value: Any = None
        self.error: BaseException | None = None
        self.kept_partial: Any = UNSET
        self.items: list[Any] | None = None
        self.items_posted = False
        self.reported_progress: tuple[float, float | None, str | None] | None = None
        self.progress_posted = False
        self.cancel_hooks: list[Any] | None = None
        self.cancel_flag: Any = None
        self.loop_requests: list[Any] | None = None
        self.ended = False  # the tool is through, in time or late
        self.reported = False  # and the loop has been told, or has seen it
        self.landing: Any = None  # what the loop is to do with it
        self.awaiting = False  # a thread's value turned out awaitable
        self.held_back = False  # taken out of line, and not begun: a cut was on its way
        self.refused = False  # it was to start, and did not for that reason
        # -- written by the loop
        self.progress: tuple[float, float | None, str | None] | None = None
        self.start_told = False
        self.items_told = 0
        self.restarted = False
        self.timer: Any = None
        self.stopper: Any = None
        self.hosted = False  # it runs on the loop
        self.has_thread = False  # it needs one of the runner's, or has it
        self.told = False  # it was asked to stop
        self.was_cut = False  # it was asked, or let go of: not its own end counts
        self.halted = False  # any thread: it must not start any more
        self.stopping = False  # any thread: nor may anything that it has opened
        self.is_admitted = False  # it is on its way to its start
        self.entry: Any = None  # in the scheduler, if there is one
        self.question: Any = None  # somebody is asked about it
        self.asked_at: float | None = None  # since when somebody is asked, or was
        self.answered_at: float | None = None
        self.inner: list[Any] | None = None  # the open batches inside it
        self.cut_status: Status | None = None
        self.cut_reason: Reason | None = None

    def partial_output(self) -> Any:
        """
        Return what the tool has published, as a copy, or None.

        Of a generator that are the items which have been told as events: the
        two must agree, and the generator may be giving the next one now.
        """
        if self.kept_partial is not UNSET:
            return self.kept_partial
        return None if self.items is None else self.items[: self.items_told]

    def move_to_loop(self) -> None:
        """The rest of it runs on the loop."""
        self.hosted = True
        self.has_thread = False
        self.cpu_clock = None  # its thread is another's now

    def forget(self) -> None:
        """Let go of what it holds on to; nobody will ask, and no more of it will run."""
        self.value = self.error = None
        self.context = self.entry = self.question = self.stopper = None
        self.loop_requests = self.items = None

    @property
    def is_waiting(self) -> bool:
        """Not started, as far as the tickets tell."""
        return self in self.batch.tickets.starts
