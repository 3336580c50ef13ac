"""
The fields that this library's log records carry in `extra`.

`kind` says in one word what a record is about, for filters; the others say whom it
concerns. docs/reference/telemetry.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from .._model.calls import ToolCall

__all__ = ("about", "names_of")

NAMED_CALLS = 20
"""Ids in one record at most; there may be thousands."""


class HasCall(Protocol):
    """A call's record, or what has a thread on behalf of a call."""

    @property
    def call(self) -> ToolCall: ...

    @property
    def batch(self) -> Any: ...


def about(kind: str, calls: Iterable[HasCall] = (), **more: object) -> dict[str, Any]:
    """Return what to log as `extra` of something that concerns these calls."""
    concerned = list(calls)
    return {
        "kind": kind,
        "tools": sorted({item.call.name for item in concerned}),
        "call_ids": [item.call.id for item in concerned[:NAMED_CALLS]],
        "batch_ids": sorted({item.batch.id for item in concerned}),
        "count": len(concerned),
        **more,
    }


def names_of(calls: Iterable[HasCall]) -> str:
    """Name the tools of these calls, and how often each is meant; on one line."""
    counts = Counter(item.call.name for item in calls)
    names = ((name if name.isprintable() else repr(name), n) for name, n in counts.items())
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in names)
