"""Says in words what a call is waiting for; for people who look at a runner."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .._core.claims import Mode
from .._core.record import CallRecord
from .._core.scheduler import BatchLine, Wait
from .._model.statistics import WaitingCall

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("explain", "waiting_call")

NAMED_AT_MOST = 3
"""Calls that are named one by one, before the rest is counted."""


def explain(record: CallRecord) -> str:
    """Return a sentence on where a call is; from any thread, a best effort."""
    batch: BatchEngine = record.batch
    ending = batch.ledger.endings[record.index]
    name = _name(record, batch)
    if ending is not None:
        still = ", and its work may still go on" if ending.detached else ""
        return f"{name} is settled: {ending.status.value}{still}"
    if not record.is_waiting:
        return f"{name} is running"
    return f"{name} {_in_words(_wait_of(record), batch)}"


def waiting_call(record: CallRecord) -> WaitingCall:
    """Return a waiting call with what it waits for."""
    batch: BatchEngine = record.batch
    wait = _wait_of(record)
    words = _in_words(wait, batch)
    return WaitingCall(record.call, batch.id, record.index, wait.kind, words)


def _in_words(wait: Wait, batch: BatchEngine) -> str:
    """Return what a call waits for, as the rest of a sentence."""
    calls = _names(wait.calls, batch)
    match wait.kind:
        case "approval":
            return "waits for approval"
        case "order":
            return f"waits behind {calls}, which waits for approval: {_both_use(wait.what)}"
        case "claim" if isinstance(wait.what, BatchLine):
            return f"waits for {calls}: one of the two is exclusive"
        case "claim":
            resource = _resource(wait.what)
            if not _has_started(wait.calls):
                return f"waits for {resource}, which {calls} is first in line for"
            if _is_below(wait):
                return f"waits for {resource}, in which {calls} has something"
            return f"waits for {resource}, which {calls} has"
        case "place":
            limit = len(wait.calls)
            return f"waits for a place: {wait.what}={limit}, all taken by {calls}"
        case "thread":
            return f"waits for a thread: max_threads={wait.what}"
        case "executor":
            return "waits for its executor to begin it"
        case "paths":
            return "waits for paths to be resolved, its own or an earlier call's"
        case _:
            return "is about to start"


def _wait_of(record: CallRecord) -> Wait:
    scheduling = record.batch.state.scheduling
    if scheduling is None:
        line = "thread" if record.has_thread else "turn"
        return Wait(_if_admitted(record, line), _thread_limit(record), [])
    for _ in range(3):
        try:
            wait = scheduling.core.wait_of(record)
        except (KeyError, RuntimeError):  # from another thread: it has changed meanwhile
            continue
        if wait is None and scheduling.waits_for_paths(record):
            return Wait("paths", None, [])
        return wait or Wait(_if_admitted(record, "turn"), None, [])
    return Wait("turn", None, [])


def _if_admitted(record: CallRecord, line: str) -> str:
    """Return what a call waits for that may start, as far as we are concerned."""
    tool = record.tool  # none as long as it is being taken in
    is_elsewhere = tool is not None and tool.carrier == "executor" and record.is_admitted
    return "executor" if is_elsewhere else line


def _thread_limit(record: CallRecord) -> int:
    return int(record.batch.state.limits.threads.limit)


def _is_below(wait: Wait) -> bool:
    """Tell whether a claim is not on the resource itself, but on what lies in it."""
    entry = wait.calls[0].entry  # none any more, if it has ended while another thread looks
    return entry is not None and entry.modes.get(wait.what) in {
        Mode.INTENT_READ,
        Mode.INTENT_WRITE,
    }


def _has_started(calls: list[Any]) -> bool:
    return any(not call.is_waiting for call in calls)


def _both_use(node: Any) -> str:
    if isinstance(node, BatchLine):
        return "one of the two is exclusive"
    return f"both use {_resource(node)}"


def _resource(node: Any) -> str:
    if isinstance(node, tuple):  # a path's parts, see `paths`
        return f"the path {os.fspath(PurePath(*node[1]))!r}"
    return f"{node!r}"


def _names(calls: list[Any], batch: BatchEngine) -> str:
    names = [_name(call, batch) for call in calls[:NAMED_AT_MOST]]
    if len(calls) > NAMED_AT_MOST:
        names.append(f"{len(calls) - NAMED_AT_MOST} more")
    return ", ".join(names) or "another call"


def _name(record: CallRecord, batch: BatchEngine) -> str:
    of_batch = "" if record.batch is batch else f" of {record.batch.id}"
    ending = record.batch.ledger.endings[record.index]
    detached = " (detached)" if ending is not None and ending.detached else ""
    return f"call {record.index} ({record.call.name}){of_batch}{detached}"
