"""
How a call ended, as data and as a text for the model.

The wording follows promise P6: it never says "did not run" of a call that may
have run, never invites to try a started call again, and holds no clock times,
so that equal outcomes give equal bytes.
"""

# Arguments are checked at run time, too: not everybody runs a type checker.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Any, Literal, cast

from .._errors import ToolCallError
from .calls import ToolCall
from .frozen import Frozen

__all__ = (
    "LateResult",
    "Reason",
    "Status",
    "ToolResult",
    "goes_on",
    "make_result",
    "text_of_error",
    "text_of_value",
)


class Status(enum.StrEnum):
    """How a call ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    DENIED = "denied"
    INVALID = "invalid"


class Reason(Frozen):
    """
    Why a call ended otherwise than by its own doing.

    Args:
        kind: One of the fixed names in the table of `ToolResult`.
        message: What the one who asked for it said, or None.
    """

    __slots__ = ("kind", "message")

    kind: str
    message: str | None

    def __init__(self, kind: str, message: str | None = None) -> None:
        if not isinstance(kind, str) or not isinstance(message, str | None):
            msg = "Reason takes a kind and a message, both str (the message may be None)"
            raise TypeError(msg)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "message", message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reason):
            return NotImplemented
        return (self.kind, self.message) == (other.kind, other.message)

    def __hash__(self) -> int:
        return hash((self.kind, self.message))


class _ResultFields:
    """The storage alone: assignable, so that filling it takes the quick path."""

    __slots__ = (
        "_fate",
        "approval_time",
        "call",
        "detached",
        "error",
        "index",
        "is_error",
        "partial",
        "reason",
        "run_time",
        "started",
        "status",
        "value",
        "wait_time",
    )


class ToolResult(Frozen, _ResultFields):
    """
    The one result of a call; two are equal when all but their times are.

    ============  ==========================================================
    status        ``reason.kind``
    ============  ==========================================================
    completed     –
    failed        – (the tool raised: `error`), ``resource_busy``,
                  ``too_many_detached`` (never started, `error` set)
    timed_out     ``call_timeout``, ``batch_timeout``, ``approval_timeout``
    interrupted   ``user_interrupt``, ``caller_cancelled``,
                  ``call_cancelled``, ``superseded``, ``sibling_failed``,
                  ``runner_closed``
    denied        ``not_approved``
    invalid       ``unknown_tool``, ``bad_arguments``
    ============  ==========================================================
    """

    __slots__ = ()

    call: ToolCall
    index: int
    """The call's place in its batch, from 0."""
    status: Status
    value: Any
    """What the tool returned; None unless the call completed."""
    error: BaseException | None
    """What the tool raised, or why the call could not be run."""
    reason: Reason | None
    started: bool
    """The tool's first line may have run."""
    detached: bool
    """The tool's work may still go on."""
    is_error: bool
    """To be shown to the model as an error."""
    partial: Any
    """What the tool had published when the call ended, or None."""
    wait_time: float
    """Seconds from submission to start, or to the end if it never started."""
    run_time: float
    """Seconds from start to end; 0 if it never started."""
    approval_time: float
    """Seconds of `wait_time` from asking `approve` to its answer, or to the end; else 0."""
    _fate: Literal["", "kept", "stopped"]
    """What has become of the work of a call that was cut."""

    def __init__(
        self,
        call: ToolCall,
        index: int,
        status: Status,
        *,
        value: Any = None,
        error: BaseException | None = None,
        reason: Reason | None = None,
        started: bool | None = None,
        detached: bool = False,
        is_error: bool | None = None,
        partial: Any = None,
        wait_time: float = 0.0,
        run_time: float = 0.0,
        approval_time: float = 0.0,
    ) -> None:
        # For tests and for hosts that answer some calls themselves; a batch
        # makes its own through `make_result`.
        fill = object.__setattr__
        fill(self, "call", call)
        fill(self, "index", index)
        fill(self, "status", Status(status))
        fill(self, "value", value)
        fill(self, "error", error)
        fill(self, "reason", reason)
        if started is None:
            # What never starts: see the table above.
            started = self.status not in {Status.INVALID, Status.DENIED} and not (
                self.status is Status.FAILED and reason is not None
            )
        fill(self, "started", started)
        fill(self, "detached", detached)
        if is_error is None:
            is_error = self.status is not Status.COMPLETED
        fill(self, "is_error", is_error)
        fill(self, "partial", partial)
        fill(self, "wait_time", wait_time)
        fill(self, "run_time", run_time)
        fill(self, "approval_time", approval_time)
        fill(self, "_fate", "")

    @property
    def effects(self) -> Literal["none", "done", "unknown"]:
        """``"none"``: never started; ``"done"``: completed; else ``"unknown"``."""
        if not self.started:
            return "none"
        return "done" if self.status is Status.COMPLETED else "unknown"

    @property
    def text(self) -> str:
        """
        What to show the model.

        Never raises. Equal outcomes give equal text: no times, no addresses,
        sets in a fixed order (as far as JSON can show the value).
        """
        if self.status is Status.COMPLETED:
            return text_of_value(self.value)
        if self.error is not None and self.reason is None and self.started:
            return _with_partial(text_of_error(self.error), self.partial)
        return _with_partial(self._placeholder(), self.partial)

    def _placeholder(self) -> str:
        reason = self.reason
        if not self.started and (reason is None or reason.kind not in _INTERRUPTED_BY):
            return f"Tool call not started: {self._refusal().rstrip('.')}. {_NO_EFFECTS}"
        if reason is None:
            return f"Tool call {self.status.value}."
        done = _INTERRUPTED_BY.get(reason.kind, reason.kind)
        said = f" ({reason.message})" if reason.message else ""
        if not self.started:
            when = "" if reason.kind in _ONLY_BEFORE_START else " before it began"
            return f"Tool call not started: {done}{said}{when}. {_NO_EFFECTS}"
        if self._fate == "kept":
            turn = _TURN_ENDED.get(reason.kind, f"was {done}")
            return (
                f"The turn {turn}{said}; the tool call goes on in the background. "
                "It may have side effects; its outcome is not known yet."
            )
        stopped = " and was stopped" if self._fate == "stopped" else ""
        return f"Tool call {done}{said} before it finished{stopped}. {_UNKNOWN_OUTCOME}"

    def _refusal(self) -> str:
        if self.reason is not None and self.reason.message:
            return self.reason.message
        if self.error is not None:
            return text_of_error(self.error)
        return self.status.value if self.reason is None else self.reason.kind

    def unwrap(self) -> Any:
        """
        Return the value of a completed call.

        Raises:
            ToolCallError: The call did not complete; its `__cause__` is what
                the tool raised, if it raised.
        """
        if self.status is Status.COMPLETED:
            return self.value
        msg = f"call {self.index} ({self.call.name}): {self.text}"
        raise ToolCallError(msg) from self.error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolResult):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in _COMPARED)

    def __hash__(self) -> int:
        return hash((self.call, self.index, self.status))


_COMPARED = [n for n in _ResultFields.__slots__ if not n.endswith("_time")]


class _ResultDraft(_ResultFields):
    """A result that is being filled in; see `frozen`."""

    __slots__ = ()

    def __init__(
        self,
        call: ToolCall,
        index: int,
        status: Status,
        value: Any,
        error: BaseException | None,
        reason: Reason | None,
        started: bool,
        detached: bool,
        is_error: bool,
        partial: Any,
        wait_time: float,
        run_time: float,
        fate: Literal["", "kept", "stopped"] = "",
        approval_time: float = 0.0,
    ) -> None:
        self.call = call
        self.index = index
        self.status = status
        self.value = value
        self.error = error
        self.reason = reason
        self.started = started
        self.detached = detached
        self.is_error = is_error
        self.partial = partial
        self.wait_time = wait_time
        self.run_time = run_time
        self.approval_time = approval_time
        self._fate = fate
        self.__class__ = ToolResult  # type: ignore[assignment]  # frozen from here on


make_result = cast("Callable[..., ToolResult]", _ResultDraft)
"""Make a `ToolResult` from its fields, in the order of the draft's arguments."""


def goes_on(result: ToolResult) -> bool:
    """Tell whether the call was left to go on in the background, as its tool asks."""
    return result._fate == "kept"  # pyright: ignore[reportPrivateUsage]


class LateResult(Frozen):
    """
    How a detached call ended after all; handed to `on_late`.

    Its batch has long been answered: nothing of this belongs into a
    provider's history, except where the provider takes later outputs.
    """

    __slots__ = ("batch_id", "call", "error", "index", "late_by", "value")

    batch_id: str
    call: ToolCall
    index: int
    value: Any
    """What the tool returned, as it is; a `ToolOutput` has its mark."""
    error: BaseException | None
    late_by: float
    """Seconds between the call's placeholder and its end."""

    def __init__(
        self,
        batch_id: str,
        call: ToolCall,
        index: int,
        value: Any,
        error: BaseException | None,
        late_by: float,
    ) -> None:
        fill = object.__setattr__
        fill(self, "batch_id", batch_id)
        fill(self, "call", call)
        fill(self, "index", index)
        fill(self, "value", value)
        fill(self, "error", error)
        fill(self, "late_by", late_by)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LateResult):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.batch_id, self.index))


def text_of_value(value: object) -> str:
    """Render a tool's value: a str as it is, else JSON, else `str`; never raises."""
    # By type, not isinstance: a proxy may claim to be a str.
    if issubclass(type(value), str):
        return _plain(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=_without_order)
    except Exception:  # noqa: BLE001 - any user class may raise anything here
        pass
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        return f"[a value of type {_type_name(value)}]"
    try:
        return _ADDRESS.sub("", _plain(str(value)))
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - as above
        return (
            f"[a value of type {_type_name(value)} that cannot be shown as text: "
            f"{type(exc).__name__}]"
        )


def text_of_error(error: BaseException) -> str:
    """Render an error as ``Type: message``; never raises."""
    try:
        message = _ADDRESS.sub("", _plain(str(error)))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - any user class may raise anything here
        message = "[its message cannot be shown as text]"
    name = _type_name(error)
    return f"{name}: {message}" if message else name


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
"""What Python's own reprs add, and what differs from run to run."""


def _plain(text: Any) -> str:
    """Return a str, or an instance of a subclass of it, as a plain str."""
    return str.__str__(text)


def _without_order(value: object) -> list[Any]:
    """Let JSON show a set, in an order that does not depend on its history."""
    if isinstance(value, set | frozenset):
        return sorted(cast("set[Any]", value), key=text_of_value)
    raise TypeError


def _type_name(value: object) -> str:
    return type(value).__qualname__


_INTERRUPTED_BY = {
    "user_interrupt": "interrupted by the user",
    "caller_cancelled": "cancelled together with the turn",
    "call_cancelled": "cancelled on request",
    "superseded": "superseded by newer instructions",
    "sibling_failed": "cancelled because another call of the batch failed",
    "runner_closed": "cancelled because the tool runner was closed",
    "call_timeout": "timed out (its own time limit)",
    "batch_timeout": "timed out (the time limit of the whole batch)",
    "approval_timeout": "timed out waiting for approval",
    "not_approved": "denied",
}

_TURN_ENDED = {"caller_cancelled": "was cancelled", "batch_timeout": "timed out"}
"""Where the words above are not those for a turn."""

_ONLY_BEFORE_START = frozenset({"approval_timeout", "not_approved"})

_UNKNOWN_OUTCOME = "It may have had side effects; its outcome is unknown."
_NO_EFFECTS = "It had no effects."


def _with_partial(text: str, partial: object) -> str:
    if partial is None:
        return text
    return f"{text}\nPartial output until then:\n{text_of_value(partial)}"
