"""
The formats against the providers' own type packages; nothing is called over a network.

Each module needs one package and is skipped without it: `nox -s formats`
installs them all. What is checked is a shape, not whether a provider takes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import LateResult, Reason, Status, ToolCall, ToolOutput, ToolResult
from anyio_toolbatch._model.results import make_result

FIXTURES = Path(__file__).parents[2] / "fixtures"


def load(provider: str) -> dict[str, Any]:
    """Return the fixtures of a provider, by case."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((FIXTURES / provider).glob("*.json"))
    }


def endings_of(call: ToolCall) -> list[ToolResult]:
    """Return a result of every kind that there is, for one call."""

    def ended(status: Status, **options: Any) -> ToolResult:
        return ToolResult(call, 0, status, **options)

    kept = (True, True, True, None, 0.0, 0.0, "kept")
    cut = Reason("user_interrupt", "stop")
    return [
        ended(Status.COMPLETED, value="text \U0001f600"),
        ended(Status.COMPLETED, value={"rows": [1, None, 2.5]}),
        ended(Status.COMPLETED, value=[1, "two"]),
        ended(Status.COMPLETED, value=None),
        ended(Status.COMPLETED, value=""),
        ended(Status.COMPLETED, value="bad", is_error=True),
        ended(Status.COMPLETED, value="x" * 5_000),
        ended(Status.FAILED, error=ValueError("boom \ud83d")),
        ended(Status.FAILED, error=OSError("held"), reason=Reason("resource_busy", "held")),
        ended(Status.TIMED_OUT, reason=Reason("call_timeout"), partial=["half"]),
        ended(Status.INTERRUPTED, reason=cut),
        ended(Status.INTERRUPTED, reason=cut, started=False),
        make_result(call, 0, Status.INTERRUPTED, None, None, cut, *kept),
        ended(Status.DENIED, reason=Reason("not_approved", "no")),
        ended(Status.INVALID, reason=Reason("bad_arguments", "no JSON"), started=False),
    ]


def late_of(call: ToolCall) -> list[LateResult]:
    """Return the ends that a call which was let go may come to."""
    return [
        LateResult("batch", call, 0, "done", None, 1.0),
        LateResult("batch", call, 0, {"rows": 3}, None, 1.0),
        LateResult("batch", call, 0, ToolOutput("bad", is_error=True), None, 1.0),
        LateResult("batch", call, 0, None, ValueError("boom"), 1.0),
    ]


BUDGETS: list[dict[str, Any]] = [
    {},
    {"max_chars_per_result": 100},
    {"max_chars_total": 1_000, "spill": lambda _: "kept/1"},
]


@pytest.fixture(params=range(len(BUDGETS)))
def budget(request: pytest.FixtureRequest) -> dict[str, Any]:
    return BUDGETS[request.param]


@pytest.fixture
def fixtures() -> Callable[[str], dict[str, Any]]:
    return load


@pytest.fixture
def endings() -> Callable[[ToolCall], list[ToolResult]]:
    return endings_of


@pytest.fixture
def lates() -> Callable[[ToolCall], list[LateResult]]:
    return late_of
