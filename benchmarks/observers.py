"""
What observers cost a batch of no-op calls: timeline, live view, OpenTelemetry, stalls.

A further one is a line in `_observers`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any, TextIO

import anyio

from anyio_toolbatch import Event, ToolCall, ToolRunner
from anyio_toolbatch.observe.live import LiveView
from anyio_toolbatch.observe.stalls import StallDetector
from anyio_toolbatch.observe.trace import TraceRecorder

from .backends import run_on
from .pairing import Rounds, timed
from .report import Report, seconds, times

COUNT = 1000
NONE = "no observer"
KINDS = ("async", "blocking")
PAINTED_SECONDS = 0.05
"""For the view's thread to have begun."""


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
    observers = _observers()
    runners = {
        name: ToolRunner({"no_op": tool}, observers=found) for name, found in observers.items()
    }
    rounds = Rounds(count, observers)
    for name in rounds:
        with contextlib.ExitStack() as stack:
            # Shown while the batch runs, and not beside the other contenders.
            for observer in observers[name]:
                if isinstance(observer, LiveView):
                    stack.enter_context(observer)
                    await anyio.sleep(PAINTED_SECONDS)
            rounds.add(name, await timed(functools.partial(runners[name].run, calls)))
    return rounds


@functools.cache
def _observers() -> dict[str, list[Any]]:
    observers: dict[str, list[Any]] = {
        NONE: [],
        "one that does nothing": [ignore],
        "stall detector": [StallDetector()],
        "timeline": [TraceRecorder()],
        "timeline, with content": [TraceRecorder(capture_content=True)],
        "live view, as lines": [LiveView(file=_nowhere())],
    }
    if importlib.util.find_spec("rich") is not None:
        observers["live view"] = [LiveView(console=_terminal())]
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


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


def _terminal() -> Any:
    """A terminal that nobody looks at."""
    from rich.console import Console

    return Console(file=_nowhere(), width=100, height=40, force_terminal=True)


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
