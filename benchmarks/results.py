"""What a `ToolResult` costs to make, against the ways to make a frozen value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from anyio_toolbatch import Status, ToolCall, ToolResult
from anyio_toolbatch._model.results import make_result

from .pairing import Rounds
from .report import Report, seconds, times

COUNT = 1000

CALL = ToolCall("1", "tool")
FIELDS: tuple[Any, ...] = (
    *(CALL, 0, Status.COMPLETED, "value", None, None),
    *(True, False, False, None, 0.001, 0.002),
)


@dataclass(frozen=True, slots=True)
class _FrozenDataclass:
    call: Any
    index: int
    status: Any
    value: Any
    error: Any
    reason: Any
    started: bool
    detached: bool
    is_error: bool
    partial: Any
    wait_time: float
    run_time: float


@dataclass(slots=True)
class _OpenDataclass:
    call: Any
    index: int
    status: Any
    value: Any
    error: Any
    reason: Any
    started: bool
    detached: bool
    is_error: bool
    partial: Any
    wait_time: float
    run_time: float


class _NamedTuple(NamedTuple):
    call: Any
    index: int
    status: Any
    value: Any
    error: Any
    reason: Any
    started: bool
    detached: bool
    is_error: bool
    partial: Any
    wait_time: float
    run_time: float


OURS = "as a batch makes it (draft, then frozen)"
FROZEN = "frozen dataclass with slots"
MAKERS: dict[str, Callable[[], object]] = {
    OURS: lambda: make_result(*FIELDS),
    "ToolResult(…), for hosts and tests": lambda: ToolResult(
        CALL, 0, Status.COMPLETED, value="value", wait_time=0.001, run_time=0.002
    ),
    FROZEN: lambda: _FrozenDataclass(*FIELDS),
    "dataclass with slots, not frozen": lambda: _OpenDataclass(*FIELDS),
    "named tuple": lambda: _NamedTuple(*FIELDS),
}


def measure(quick: bool, report: Report) -> None:
    rounds = Rounds(30 if quick else 300, MAKERS)
    for name in rounds:
        make = MAKERS[name]
        start = time.perf_counter()
        kept = [make() for _ in range(COUNT)]
        rounds.add(name, time.perf_counter() - start)
        del kept
    rows = [
        [
            name,
            seconds(rounds.median(name) / COUNT),
            seconds(rounds.median(name)),
            times(rounds.ratio(name, FROZEN)),
        ]
        for name in MAKERS
    ]
    head = ("", "one", f"{COUNT:,}", f"÷ {FROZEN}")
    report.table("Making results", head, rows)
