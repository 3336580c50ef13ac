"""What OpenTelemetry, the stall detector and logging cost a batch of no-op calls."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any

from anyio_toolbatch import Event, ToolCall, ToolRunner
from anyio_toolbatch.observe.stalls import StallDetector

from .backends import run_on
from .pairing import Rounds, race
from .report import Report, seconds, times

COUNT = 1000
NONE = "no observer"
KINDS = ("async", "blocking")


async def no_op_async() -> None: ...


def no_op_blocking() -> None: ...


def ignore(_event: Event) -> None: ...


def measure(backend: str, quick: bool, report: Report) -> None:
    tools = {"async": no_op_async, "blocking": no_op_blocking}
    for kind in KINDS:
        rounds = run_on(backend, _race, tools[kind], 3 if quick else 15)
        rows = [
            [
                name,
                seconds(rounds.median(name)),
                times(rounds.ratio(name, NONE)),
                seconds((rounds.median(name) - rounds.median(NONE)) / COUNT),
            ]
            for name in _observers()
        ]
        report.table(
            f"{backend}: {COUNT:,} {kind} no-op calls, observed",
            ("by", "median", "beside none", "more a call"),
            rows,
        )
        # Beside an observer that does nothing: its own cost, not that of being told.
        report.at_most(
            backend,
            f"stall detector, {COUNT:,} {kind} calls, beside an observer",
            1.15,
            rounds.ratio("stall detector", "one that does nothing"),
        )


async def _race(tool: Callable[[], Any], count: int) -> Rounds:
    calls = [ToolCall(f"call_{n}", "no_op") for n in range(COUNT)]

    def contender(observers: list[Any]) -> Callable[[], Awaitable[object]]:
        runner = ToolRunner({"no_op": tool}, observers=observers)
        return functools.partial(runner.run, calls)

    return await race(
        count, {name: contender(observers) for name, observers in _observers().items()}
    )


@functools.cache
def _observers() -> dict[str, list[Any]]:
    observers: dict[str, list[Any]] = {
        NONE: [],
        "one that does nothing": [ignore],
        "stall detector": [StallDetector()],
    }
    if importlib.util.find_spec("opentelemetry") is None:
        return observers
    from opentelemetry.trace import NoOpTracerProvider

    from anyio_toolbatch.observe.otel import TelemetryObserver

    observers["OpenTelemetry, no SDK"] = [
        TelemetryObserver(tracer_provider=NoOpTracerProvider())
    ]
    if importlib.util.find_spec("opentelemetry.sdk") is not None:
        observers |= _with_sdk()
    return observers


def _with_sdk() -> dict[str, list[Any]]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from anyio_toolbatch.observe.otel import TelemetryObserver

    def observer(**options: Any) -> list[Any]:
        # Without a processor: what an exporter costs is the exporter's.
        return [
            TelemetryObserver(
                tracer_provider=TracerProvider(shutdown_on_exit=False, **options),
                meter_provider=MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False),
            )
        ]

    return {
        "OpenTelemetry, not sampled": observer(sampler=ALWAYS_OFF),
        "OpenTelemetry": observer(),
    }
