"""
What keeps a call that was let go from writing into LangGraph's streams.

Such a call goes on with the configuration that it was started with: its callbacks, among
them those that feed `astream_events` and ``stream_mode="messages"`` and ``"tools"``, its
stream writer, and the stream of a graph that it runs itself. So each call gets these with a
gate of its own in front, which shuts when the call is settled.
"""

# mypy and pyright look at this file without LangGraph, as the default checks have none.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime

from .. import CallHandle

__all__ = ("Fence",)

SINKS = {"langgraph.pregel": "stream", "langchain_core.tracers": "send_stream"}
"""
By their packages, the frameworks' own callback handlers that write to a stream, and the
attribute that they have it in. They hand out ways to it that pass by the handler.
"""

BEFORE = "anyio_toolbatch_before"
"""The key in a configuration for what it had."""


@dataclass
class _Before:
    """What a configuration had, for a call that is made again: its old gate is shut."""

    config: dict[str, Any]
    callbacks: Any
    configurable: dict[str, Any]


class Fence:
    """The gate of one call: open until the call is settled. Any thread."""

    def __init__(self) -> None:
        self.handle: CallHandle | None = None
        """The call's; None until it is submitted."""

    @property
    def is_open(self) -> bool:
        return self.handle is None or self.handle.result is None

    def around(self, request: Any) -> Any:
        """Return the request with all that it could write to behind the gate."""
        runtime = request.runtime
        config = runtime.config
        before = config.get(BEFORE)
        if before is None or before.config is not config:
            before = _Before(config, config.get("callbacks"), config["configurable"])
        # In place: `ToolNode` calls the tool with this very dictionary, made for this call.
        config[BEFORE] = before
        config["callbacks"] = self._callbacks(before.callbacks)
        config["configurable"] = {
            key: self._configured(value) for key, value in before.configurable.items()
        }
        runtime = replace(runtime, stream_writer=self._guarded(runtime.stream_writer))
        return request.override(runtime=runtime)

    def _callbacks(self, callbacks: Any) -> Any:
        if isinstance(callbacks, BaseCallbackManager):
            callbacks = callbacks.copy()
            callbacks.handlers = self._handlers(callbacks.handlers)
            callbacks.inheritable_handlers = self._handlers(callbacks.inheritable_handlers)
            return callbacks
        return callbacks and self._handlers(callbacks)

    def _handlers(self, handlers: list[Any]) -> list[Any]:
        return [_FencedHandler(handler, self) for handler in handlers]

    def _configured(self, value: Any) -> Any:
        if isinstance(value, Runtime):  # where `get_stream_writer` looks
            return value.override(stream_writer=self._guarded(value.stream_writer))
        if isinstance(value, StreamProtocol):  # what a graph within the tool writes to
            return StreamProtocol(self._guarded(value.__call__), value.modes)
        return value

    def _guarded(self, write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return write(*args, **kwargs) if self.is_open else None

        return guarded


class _FencedHandler:
    """
    Stands for a callback handler, and does nothing any more once the gate is shut.

    It passes for the handler, as LangChain looks at classes, and compares handlers.
    """

    def __init__(self, handler: Any, fence: Fence) -> None:
        sink = _sink_of(handler)
        if sink is not None:
            behind = _FencedSink(getattr(handler, sink), fence)
            # Not `copy`: tracers answer that with themselves.
            twin = object.__new__(type(handler))
            twin.__dict__.update(handler.__dict__, **{sink: behind})
            handler = twin
        self._handler = handler
        self._fence = fence

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._handler)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handler, name)
        if not name.startswith("on_") or self._fence.is_open:
            return found
        return _ignore_async if inspect.iscoroutinefunction(found) else _ignore

    def __eq__(self, other: object) -> bool:
        if type(other) is _FencedHandler:
            other = other._handler
        return bool(self._handler == other)

    def __hash__(self) -> int:
        return hash(self._handler)


class _FencedSink:
    """Stands for a stream's end, be it a function or an object with `send_nowait`."""

    def __init__(self, sink: Any, fence: Fence) -> None:
        self._sink = sink
        self._fence = fence

    def __call__(self, chunk: Any) -> None:
        if self._fence.is_open:
            self._sink(chunk)

    def send_nowait(self, event: Any) -> None:
        if self._fence.is_open:
            self._sink.send_nowait(event)


def _sink_of(handler: Any) -> str | None:
    for package, attribute in SINKS.items():
        if type(handler).__module__.startswith(package) and hasattr(handler, attribute):
            return attribute
    return None


def _ignore(*_args: Any, **_kwargs: Any) -> None: ...


async def _ignore_async(*_args: Any, **_kwargs: Any) -> None: ...
