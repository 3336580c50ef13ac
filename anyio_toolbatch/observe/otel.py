"""
OpenTelemetry spans and a metric for tool calls.

The names are those of the GenAI conventions for tool executions, which are written
out here: they are still in development, and in no package to depend on. Only the
API package is needed; without an SDK all of this does nothing.

Story of a span: it is made in the call's own thread and context just before the
tool's first line, so that it is the current one there; and it is ended on the loop,
when the call is settled. A call may be cut in between: then the loop comes first, and
leaves the result for the thread to end its span with. Either the loop finds the
span, or the thread finds the result; a lock for a few bytecodes makes it exactly one.

A loop may be dropped in the middle of a batch; the open spans of its calls go when
the calls do.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import OrderedDict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar
from weakref import ref

from .._core.record import CallRecord
from .._model.calls import ToolCall
from .._model.events import CallSettled, Event, LateResultDropped
from .._model.results import LateResult, ToolResult
from .._model.tools import check_count, check_flag
from .._runtime.backend import after_fork
from .._runtime.context import CallContext

try:
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, trace
except ModuleNotFoundError as exc:
    msg = "this module needs OpenTelemetry's API: pip install 'anyio-toolbatch[otel]'"
    raise ImportError(msg) from exc

__all__ = ("TelemetryObserver",)

REMEMBERED_CALLS = 1000
"""Detached calls whose spans late results can be linked to; the newest ones."""

Key = tuple[str, int]
"""A batch, and a call's place in it."""
V = TypeVar("V")

_lock = threading.Lock()


def _new_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


after_fork(_new_lock)


class TelemetryObserver:
    """
    Makes a span of each call that starts, and measures how long it ran.

    The span is called ``execute_tool NAME``. Its parent is the span that was current
    where the call was submitted (`run`, `run_batch`, `ToolBatch.submit`); it is itself
    the current one inside the tool, on the loop and in threads, and ends when the
    call is settled. One observer may serve any number of runners, on any loops.

    Args:
        tracer_provider: Where spans go; the global provider by default, also if
            that is set later.
        meter_provider: Where the metric goes; the same.
        capture_content: Also record what may be confidential: arguments, results
            and the errors' messages with their tracebacks.
        max_content_chars: How much of each of these is kept.

    Raises:
        ImportError: On import of the module: OpenTelemetry's API is not installed.
        TypeError, ValueError: `capture_content` is no bool, or `max_content_chars`
            no int of at least 1.

    Threads:
        Any. A span processor that exports when a span ends would block the event
        loop: use a batching one.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        capture_content: bool = False,
        max_content_chars: int = 8192,
    ) -> None:
        check_flag("capture_content", capture_content)
        check_count("max_content_chars", max_content_chars, minimum=1, optional=False)
        self._tracer = trace.get_tracer(_SCOPE, _version(), tracer_provider)
        self._duration = metrics.get_meter(
            _SCOPE, _version(), meter_provider
        ).create_histogram(
            "gen_ai.execute_tool.duration",
            unit="s",
            description="How long tool calls ran, in their turn.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._capture_content = capture_content
        self._max_content_chars = max_content_chars
        self._open: dict[Key, _Open] = {}
        self._settled_first: OrderedDict[Key, ToolResult] = OrderedDict()
        """Results of calls that were cut before their thread has come to make a span."""
        self._detached: OrderedDict[Key, trace.SpanContext] = OrderedDict()

    def enter_call(self, context: CallContext) -> None:
        """Start a call's span and make it the current one; in the call's context."""
        call = context.call
        key = (context.batch_id, context.index)
        started_at = time.time_ns()
        span = self._tracer.start_span(
            f"execute_tool {_encodable(call.name)}",
            attributes={
                **_attributes(key, call),
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.type": "function",
            },
            start_time=started_at,
        )
        # Never detached: the context is the call's own, and goes with it.
        otel_context.attach(trace.set_span_in_context(span))
        entry = _Open(span, started_at, ref(context._record, partial(self._drop, key)))
        with _lock:
            result = self._settled_first.pop(key, None)
            if result is None:
                self._open[key] = entry
        if result is not None:
            self._end(key, entry, result)

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case CallSettled(result=result):
                if not result.started:
                    self._tell_parent(event.batch_id, result)
                    return
                key = (event.batch_id, result.index)
                with _lock:
                    entry = self._open.pop(key, None)
                    if entry is None:
                        # With a limit: of a batch that is settled by the collector
                        # the span is gone, and nobody will ever come.
                        _remember(self._settled_first, key, result)
                if entry is not None:
                    self._end(key, entry, result)
            case LateResultDropped(late=late):
                self._add_late(late)
            case _:
                pass

    def _drop(self, key: Key, _: object) -> None:
        # Without the lock: the collector may run this while it is held.
        self._open.pop(key, None)

    def _end(self, key: Key, entry: _Open, result: ToolResult) -> None:
        span = entry.span
        error_type = _error_type(result)
        if span.is_recording():
            span.set_attribute("anyio_toolbatch.call.wait_time", result.wait_time)
            if result.detached:
                span.set_attribute("anyio_toolbatch.call.detached", True)
            if error_type is not None:
                span.set_attribute("error.type", error_type)
                span.set_status(trace.StatusCode.ERROR, _why(result))
            if self._capture_content:
                self._add_content(span, result)
        if result.detached:
            with _lock:
                _remember(self._detached, key, span.get_span_context())
        # By the call's own clock: of a large batch that was cut, this comes late.
        span.end(entry.started_at + int(result.run_time * 1e9))
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": _encodable(result.call.name),
        }
        if error_type is not None:
            attributes["error.type"] = error_type
        self._duration.record(
            result.run_time, attributes, context=trace.set_span_in_context(span)
        )

    def _add_content(self, span: trace.Span, result: ToolResult) -> None:
        given = result.call.raw_arguments
        arguments = given if isinstance(given, str) else _as_json(given)
        span.set_attribute("gen_ai.tool.call.arguments", self._cut(arguments))
        span.set_attribute("gen_ai.tool.call.result", self._cut(result.text))
        if result.error is not None:
            self._add_error(span, result.error)

    def _add_error(self, span: trace.Span, error: BaseException) -> None:
        """
        Add an error as an event.

        Not by `Span.record_exception`: that cuts nothing, can't be sent where there are
        lone surrogates, and raises what the error's own ``__str__`` does.
        """
        lines = traceback.format_exception(error)
        attributes = {
            "exception.type": _name_of(error),
            "exception.message": self._cut(_message_of(error)),
            "exception.stacktrace": self._cut("".join(lines)),
        }
        span.add_event("exception", attributes)

    def _cut(self, text: str) -> str:
        return _encodable(text[: self._max_content_chars])

    def _tell_parent(self, batch_id: str, result: ToolResult) -> None:
        """Note a call that was never started on the span that its batch belongs to."""
        parent = trace.get_current_span()
        if parent.is_recording():
            attributes = _attributes((batch_id, result.index), result.call)
            attributes["error.type"] = _error_type(result) or "_OTHER"
            parent.add_event("tool call not started", attributes)

    def _add_late(self, late: LateResult) -> None:
        """Show what a call did after its turn, as a span of its own."""
        key = (late.batch_id, late.index)
        with _lock:
            cut = self._detached.pop(key, None)
        now = time.time_ns()
        links = [trace.Link(cut)] if cut is not None else None
        parent = None
        if cut is not None:
            # So that it is sampled as the call's own span was.
            parent = trace.set_span_in_context(trace.NonRecordingSpan(cut))
        span = self._tracer.start_span(
            f"late_result {_encodable(late.call.name)}",
            context=parent,
            links=links,
            attributes=_attributes(key, late.call),
            start_time=now - int(late.late_by * 1e9),
        )
        if late.error is not None and span.is_recording():
            span.set_attribute("error.type", _name_of(late.error))
            span.set_status(trace.StatusCode.ERROR, _name_of(late.error))
            if self._capture_content:
                self._add_error(span, late.error)
        span.end(now)


class _Open:
    """A span that has not been ended, when it was started, and whose it is."""

    __slots__ = ("call", "span", "started_at")

    def __init__(self, span: trace.Span, started_at: int, call: ref[CallRecord]) -> None:
        self.span = span
        self.started_at = started_at
        self.call = call


_SCOPE = "anyio_toolbatch"
_BUCKETS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
"""Seconds; doubled each time, as the conventions have it for their durations."""


def _version() -> str:
    try:
        return version("anyio-toolbatch")
    except PackageNotFoundError:  # from a source tree
        return ""


def _remember(known: OrderedDict[Key, V], key: Key, value: V) -> None:
    """Add to what is known, and forget the oldest if that is too much."""
    known[key] = value
    if len(known) > REMEMBERED_CALLS:
        known.popitem(last=False)


def _attributes(key: Key, call: ToolCall) -> dict[str, str | int]:
    batch_id, index = key
    return {
        "gen_ai.tool.name": _encodable(call.name),
        "gen_ai.tool.call.id": _encodable(call.id),
        "anyio_toolbatch.batch.id": batch_id,
        "anyio_toolbatch.call.index": index,
    }


def _encodable(text: str) -> str:
    """Replace lone surrogates: they would cost an exporter all that it sends together."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _error_type(result: ToolResult) -> str | None:
    """Return one of few words for what went wrong; None if nothing did."""
    if result.reason is not None:
        return result.reason.kind
    if result.error is not None:
        return _name_of(result.error)
    return "tool_error" if result.is_error else None


def _why(result: ToolResult) -> str:
    """Word a span's status, without what a tool or a person may have said."""
    return f"{result.status.value}: {_error_type(result)}"


def _name_of(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the tool's own
        return "(can't be shown)"


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # noqa: BLE001 - a circle, a key, or whatever a repr may raise
        return "(can't be shown as JSON)"
