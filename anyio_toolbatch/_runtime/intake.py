"""
Takes a call in: parse, look up, validate, and find out what it needs.

A call that fails one of these is settled at once, as invalid; the others are on
their way to their start. On the loop's thread.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .._core.ledger import Ending
from .._core.record import CallRecord
from .._errors import InvalidArgumentsError, ToolBatchError, UnknownToolError
from .._model.claims import keys_of
from .._model.results import Reason, Status, text_of_error
from .._model.tools import as_tool
from .foreign_values import is_a
from .landing import refused

if TYPE_CHECKING:
    from .engine import BatchEngine

__all__ = ("prepare",)


def prepare(record: CallRecord, submitters: contextvars.Context) -> bool:
    """
    Make a call ready to start; False if it has been settled instead.

    Raises:
        KeyboardInterrupt: A user's check was broken by a Ctrl-C; the call is settled.
    """
    batch: BatchEngine = record.batch
    reason = batch.cutter.reason
    if reason is not None:
        batch.settle(
            record,
            Ending(batch.cutter.status, reason, started=False, at=record.submitted_at),
        )
        return False
    call = record.call
    if call.parse_error is not None:
        return _refuse(record, InvalidArgumentsError(call.parse_error))
    found = batch.tools.get(call.name) if call.tool is None else call.tool
    if found is None:
        return _refuse(record, _unknown(call.name, batch.tools), "unknown_tool")
    try:
        record.tool = as_tool(found)
        validate = record.tool.validate
        if validate is None:
            record.tool.bind(record.arguments)
        else:
            replaced = validate(call)
            if replaced is not None:
                record.arguments = dict(replaced)
        if record.tool.is_scheduled and not _find_claims(record):
            return False
    except KeyboardInterrupt:
        # It goes on, and a call without an end would hold the batch.
        ending = Ending(
            Status.INTERRUPTED,
            Reason("caller_cancelled"),
            started=False,
            at=record.submitted_at,
        )
        batch.settle(record, ending)
        raise
    except BaseException as exc:  # noqa: BLE001 - whatever a user's check may raise
        is_unknown = is_a(exc, UnknownToolError)
        return _refuse(record, exc, "unknown_tool" if is_unknown else "bad_arguments")
    if record.tool.carrier == "loop":
        record.hosted = True
    elif record.tool.carrier != "executor":
        if batch.state.is_full:
            refused(record)
            return False
        record.has_thread = True
    record.context = submitters.copy()
    return True


def _find_claims(record: CallRecord) -> bool:
    """Ask what the call reads and writes; False if that settles it."""
    tool = record.tool
    try:
        reads = keys_of("reads", tool.reads, record.arguments)
        writes = keys_of("writes", tool.writes, record.arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - whatever a user's function may raise
        record.batch.not_run(record, exc)
        return False
    if reads or writes:
        record.claims = (reads, writes)
    return True


def _unknown(name: str, tools: Iterable[str]) -> UnknownToolError:
    known = ", ".join(sorted(tools)) or "none"
    return UnknownToolError(f"there is no tool named {name!r} (known: {known})")


def _refuse(record: CallRecord, error: BaseException, kind: str = "bad_arguments") -> bool:
    record.batch.settle(
        record,
        Ending(
            Status.INVALID,
            Reason(kind, _worded(error)),
            started=False,
            error=error,
            at=record.submitted_at,
        ),
    )
    return False


def _worded(error: BaseException) -> str:
    """Word a refusal: our own errors speak for themselves, others by their type."""
    return str(error) if is_a(error, ToolBatchError) else text_of_error(error)
