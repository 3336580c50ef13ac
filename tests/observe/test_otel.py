"""Spans and the metric, as the real SDK sees them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from anyio_toolbatch import (
    BatchSettled,
    CallSettled,
    Tool,
    ToolCall,
    ToolOutput,
    ToolRunner,
    current_call,
    on_cancel,
    open_batch,
    run_batch,
)
from anyio_toolbatch.blocking import BlockingToolRunner
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from anyio_toolbatch.observe import otel
from anyio_toolbatch.observe.otel import TelemetryObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


class Telemetry:
    """Providers whose spans and measurements can be looked at, and an observer for them."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.provider.get_tracer("the test")
        self.observer = self.observe()

    def observe(self, **options: Any) -> TelemetryObserver:
        return TelemetryObserver(
            tracer_provider=self.provider, meter_provider=self.meters, **options
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def durations(self) -> list[Any]:
        """The points of the one metric that there may be."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        (metric,) = scope.metrics
        assert metric.name == "gen_ai.execute_tool.duration"
        assert metric.unit == "s"
        return list(metric.data.data_points)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.provider.shutdown()
    telemetry.meters.shutdown()


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_here() -> int:
    return trace.get_current_span().get_span_context().span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def gated_tool(**options: Any) -> GatedTool:
    return GatedTool(**options)


# -- one call ----------------------------------------------------------------


async def test_span_follows_the_conventions(telemetry: Telemetry) -> None:
    """The name, the kind and the attributes of a call that completed."""
    (result,) = await run_batch(
        [ToolCall("call_1", "add", {"a": 1, "b": 2})],
        {"add": lambda a, b: a + b},
        observers=[telemetry.observer],
    )
    assert result.value == 3
    span = telemetry.one("execute_tool add")
    assert span.kind is trace.SpanKind.INTERNAL
    assert span.status.status_code is trace.StatusCode.UNSET
    attributes = attributes_of(span)
    assert attributes.pop("anyio_toolbatch.batch.id").startswith("batch-")
    assert attributes.pop("anyio_toolbatch.call.wait_time") >= 0.0
    assert attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.type": "function",
        "anyio_toolbatch.call.index": 0,
    }
    assert span.start_time is not None and span.end_time is not None
    # Of clocks that differ by rounding.
    assert abs((span.end_time - span.start_time) / 1e9 - result.run_time) < 1e-5
    (point,) = telemetry.durations()
    assert dict(point.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
    }
    assert point.count == 1
    assert abs(point.sum - result.run_time) < 1e-5


async def here() -> int:
    await anyio.lowlevel.checkpoint()
    return span_here()


def here_blocking() -> int:
    return span_here()


def here_awaitable() -> Any:
    return here()


def here_items() -> Iterator[int]:
    yield span_here()


async def here_async_items() -> AsyncIterator[int]:
    yield span_here()


async def in_a_thread_of_the_tools() -> int:
    return await anyio.to_thread.run_sync(span_here)


@pytest.mark.parametrize(
    ("func", "runs_in"),
    [
        (here, "auto"),
        (here, "thread"),
        (here_blocking, "auto"),
        (here_blocking, "loop"),
        (here_awaitable, "auto"),
        (here_items, "auto"),
        (here_async_items, "auto"),
        (in_a_thread_of_the_tools, "auto"),
        (here_blocking, "pool"),
    ],
)
async def test_span_is_current_inside_the_tool(
    telemetry: Telemetry, func: Callable[[], Any], runs_in: str, promises: PromiseObserver
) -> None:
    """What a tool traces hangs below its call; the call below where it was submitted."""
    with ThreadPoolExecutor(1) as pool:
        tool = Tool(func, name="here", runs_in=pool if runs_in == "pool" else runs_in)
        with telemetry.tracer.start_as_current_span("turn") as turn:
            (result,) = await run_batch(
                [ToolCall("1", "here")], [tool], observers=[telemetry.observer, promises]
            )
            assert trace.get_current_span() is turn
    span = telemetry.one("execute_tool here")
    assert result.value == id_of(span)
    assert parent_of(span) == turn.get_span_context().span_id


async def test_parent_is_current_where_the_call_is_submitted(telemetry: Telemetry) -> None:
    """Of a batch that is open for long, each call belongs where it came from."""
    with anyio.fail_after(LIVENESS):
        async with open_batch(tools=[here], observers=[telemetry.observer]) as batch:
            with telemetry.tracer.start_as_current_span("one"):
                batch.submit(ToolCall("1", "here"))
            with telemetry.tracer.start_as_current_span("two"):
                batch.submit(ToolCall("2", "here"))
    parents = {
        attributes_of(span)["gen_ai.tool.call.id"]: parent_of(span)
        for span in telemetry.named("execute_tool here")
    }
    assert parents == {
        "1": id_of(telemetry.one("one")),
        "2": id_of(telemetry.one("two")),
    }


async def test_inner_batch_hangs_below_its_call(telemetry: Telemetry) -> None:
    """§4.9: a tool's own batch, from the loop and from a thread's."""
    runner = ToolRunner(observers=[telemetry.observer])

    async def outer() -> Any:
        (inner,) = await runner.run([ToolCall("inner", "here", tool=here)])
        return inner.value

    for runs_in in ("loop", "thread"):
        tool = Tool(outer, name=runs_in, runs_in=runs_in)
        with anyio.fail_after(LIVENESS):
            (result,) = await runner.run([ToolCall("outer", runs_in, tool=tool)])
        (inner,) = (
            s for s in telemetry.named("execute_tool here") if id_of(s) == result.value
        )
        assert parent_of(inner) == id_of(telemetry.one(f"execute_tool {runs_in}"))


def test_synchronous_agents(telemetry: Telemetry) -> None:
    """The span that is current in the agent's own thread is the parent."""
    with (
        BlockingToolRunner([here_blocking], observers=[telemetry.observer]) as runner,
        telemetry.tracer.start_as_current_span("turn") as turn,
    ):
        (result,) = runner.run([ToolCall("1", "here_blocking")])
    span = telemetry.one("execute_tool here_blocking")
    assert result.value == id_of(span)
    assert parent_of(span) == turn.get_span_context().span_id


# -- what goes wrong ---------------------------------------------------------


class OddError(Exception):
    """Neither a builtin nor of this library."""


def fails() -> None:
    raise ValueError("secret 4711")


def fails_oddly() -> None:
    raise OddError("secret 4711")


def answers_with_an_error() -> ToolOutput:
    return ToolOutput("secret 4711", is_error=True)


@pytest.mark.parametrize(
    ("func", "error_type"),
    [
        (fails, "ValueError"),
        (fails_oddly, f"{OddError.__module__}.OddError"),
        (answers_with_an_error, "tool_error"),
    ],
)
async def test_errors_have_a_type_and_no_text(
    telemetry: Telemetry, func: Callable[[], Any], error_type: str
) -> None:
    """Few words to group by; what the tool said is told only to those who want it."""
    await run_batch([ToolCall("1", "tool")], {"tool": func}, observers=[telemetry.observer])
    span = telemetry.one("execute_tool tool")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert attributes_of(span)["error.type"] == error_type
    (point,) = telemetry.durations()
    assert dict(point.attributes)["error.type"] == error_type
    assert "secret" not in span.to_json()


async def test_detached_call(telemetry: Telemetry, promises: PromiseObserver) -> None:
    """P2, P5: the span ends with the turn; what comes late is a span of its own."""
    gated = gated_tool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [gated.tool], observers=[telemetry.observer, promises]
        ) as runner:
            with telemetry.tracer.start_as_current_span("turn"):
                async with runner.open_batch([ToolCall("1", "gated")]) as batch:
                    await gated.wait_started()
                    batch.interrupt("secret 4711")
            (result,) = batch.results
            while not telemetry.named("execute_tool gated"):
                await anyio.lowlevel.checkpoint()
            assert len(telemetry.spans) == 2
            gated.open()
            assert await runner.wait_detached(LIVENESS)
    span = telemetry.one("execute_tool gated")
    attributes = attributes_of(span)
    assert attributes["error.type"] == "user_interrupt"
    assert attributes["anyio_toolbatch.call.detached"] is True
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.start_time is not None and span.end_time is not None
    assert abs((span.end_time - span.start_time) / 1e9 - result.run_time) < 1e-5
    late = telemetry.one("late_result gated")
    (link,) = late.links
    assert link.context == span.context
    assert late.context is not None and span.context is not None
    assert late.context.trace_id == span.context.trace_id
    assert parent_of(late) == id_of(span)
    assert "error.type" not in attributes_of(late)
    assert attributes_of(late)["gen_ai.tool.call.id"] == "1"
    assert all("secret" not in span.to_json() for span in telemetry.spans)
    # The turn is what was measured; what came after it is not in the metric.
    (point,) = telemetry.durations()
    assert point.count == 1
    assert not telemetry.observer._detached


async def test_late_error(telemetry: Telemetry) -> None:
    """A detached call that fails after all says of what type its error was."""
    gated = gated_tool(error=ValueError("secret 4711"))
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gated.tool], observers=[telemetry.observer]) as runner:
            async with runner.open_batch([ToolCall("1", "gated")]) as batch:
                await gated.wait_started()
                batch.interrupt()
            gated.open()
            assert await runner.wait_detached(LIVENESS)
    late = telemetry.one("late_result gated")
    assert attributes_of(late)["error.type"] == "ValueError"
    assert late.status.status_code is trace.StatusCode.ERROR
    assert "secret" not in late.to_json()


async def test_call_that_is_cut_before_its_thread_comes_to_make_a_span(
    telemetry: Telemetry,
) -> None:
    """The race of a start and a cut: one span, ended, whichever side comes first."""
    entering, settled = threading.Event(), threading.Event()

    class Slow(TelemetryObserver):
        def enter_call(self, context: Any) -> None:
            entering.set()
            assert settled.wait(LIVENESS)
            super().enter_call(context)

    observer = Slow(tracer_provider=telemetry.provider, meter_provider=telemetry.meters)

    def tell(event: object) -> None:
        if isinstance(event, BatchSettled):
            settled.set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([here_blocking], observers=[observer, tell]) as runner:
            async with runner.open_batch([ToolCall("1", "here_blocking")]) as batch:
                await anyio.to_thread.run_sync(entering.wait, LIVENESS)
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
    span = telemetry.one("execute_tool here_blocking")
    assert attributes_of(span)["error.type"] == "user_interrupt"
    assert telemetry.one("late_result here_blocking").links[0].context == span.context
    assert not observer._settled_first
    assert not observer._open


async def test_many_calls_that_are_cut_have_their_own_times(telemetry: Telemetry) -> None:
    """P2: observers hear of a large cut late; the spans end when the calls were let go."""
    deaf = DeafTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([deaf.tool], observers=[telemetry.observer]) as runner:
            async with runner.open_batch([ToolCall("1", "deaf")] * 200) as batch:
                while deaf.started < 200:
                    await anyio.lowlevel.checkpoint()
                batch.interrupt()
            deaf.release()
            assert await runner.wait_detached(LIVENESS)
    results = {result.index: result for result in batch.results}
    spans = telemetry.named("execute_tool deaf")
    assert len(spans) == 200
    for span in spans:
        result = results[attributes_of(span)["anyio_toolbatch.call.index"]]
        assert span.start_time is not None and span.end_time is not None
        assert abs((span.end_time - span.start_time) / 1e9 - result.run_time) < 1e-5


async def test_calls_that_never_started_are_events_of_the_parent(telemetry: Telemetry) -> None:
    """P6: no execution is shown of what was not executed, and nothing is measured."""
    calls = [
        ToolCall("1", "nobody"),
        ToolCall("2", "here", "{"),
        ToolCall("3", "here", {"x": 1}),
    ]
    with telemetry.tracer.start_as_current_span("turn"):
        await run_batch(calls, [here], observers=[telemetry.observer])
    await run_batch(calls, [here], observers=[telemetry.observer])  # without a parent
    (span,) = telemetry.spans
    assert [
        (
            event.name,
            (event.attributes or {})["gen_ai.tool.call.id"],
            (event.attributes or {})["error.type"],
        )
        for event in span.events
    ] == [
        ("tool call not started", "1", "unknown_tool"),
        ("tool call not started", "2", "bad_arguments"),
        ("tool call not started", "3", "bad_arguments"),
    ]
    assert telemetry.durations() == []


# -- content -----------------------------------------------------------------


async def test_content_is_left_out_unless_asked_for(telemetry: Telemetry) -> None:
    """Arguments and results may be anybody's secrets."""
    await run_batch(
        [ToolCall("1", "echo", {"text": "secret 4711"})],
        {"echo": lambda text: text},
        observers=[telemetry.observer],
    )
    (span,) = telemetry.spans
    assert "secret" not in span.to_json()
    assert not any(name.startswith("gen_ai.tool.call.r") for name in attributes_of(span))


async def test_content(telemetry: Telemetry) -> None:
    """Asked for, it is what the model said and what the model is shown, up to a length."""
    observer = telemetry.observe(capture_content=True, max_content_chars=20)
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    calls = [
        ToolCall("text", "echo", '{"text": "as it was"}'),
        ToolCall("mapping", "echo", {"text": "ünïcode"}),
        ToolCall("long", "echo", {"text": "x" * 100}),
        ToolCall("odd", "echo", {"text": "\ud800"}),
        ToolCall("circle", "echo", {"text": loop}),
    ]
    await run_batch(calls, {"echo": lambda text: text}, observers=[observer])
    found = {
        attributes["gen_ai.tool.call.id"]: (
            attributes["gen_ai.tool.call.arguments"],
            attributes["gen_ai.tool.call.result"],
        )
        for attributes in map(attributes_of, telemetry.spans)
    }
    assert found["text"] == ('{"text": "as it was"', "as it was")
    assert found["mapping"] == ('{"text": "ünïcode"}', "ünïcode")
    assert found["long"] == ('{"text": "xxxxxxxxxx', "x" * 20)
    assert found["odd"][1] == "?"
    assert found["circle"][0] == "(can't be shown as JSON"[:20]
    for texts in found.values():
        for text in texts:
            text.encode()


async def test_content_of_an_error(telemetry: Telemetry) -> None:
    """The traceback goes with the content, since it shows the message."""
    observer = telemetry.observe(capture_content=True)
    await run_batch([ToolCall("1", "fails")], [fails], observers=[observer])
    (span,) = telemetry.spans
    (event,) = span.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.message"] == "secret 4711"
    assert attributes_of(span)["gen_ai.tool.call.result"] == "ValueError: secret 4711"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_content_of_errors_that_are_hard_to_record(telemetry: Telemetry) -> None:
    """Each is cut and can be sent; an error that can't be shown costs no span, no measure."""

    def fails(how: str) -> None:
        raise {
            "long": ValueError("x" * 1000),
            "odd": ValueError("\ud800"),
            "unspeakable": UnspeakableError(),
        }[how]

    observer = telemetry.observe(capture_content=True, max_content_chars=100)
    calls = [ToolCall(how, "fails", {"how": how}) for how in ("long", "odd", "unspeakable")]
    await run_batch(calls, [fails], observers=[observer])
    assert len(telemetry.spans) == sum(point.count for point in telemetry.durations()) == 3
    found = {}
    for span in telemetry.spans:
        (event,) = span.events
        attributes = dict(event.attributes or {})
        assert str(attributes["exception.stacktrace"]).startswith("Traceback")
        for text in attributes.values():
            assert len(str(text).encode()) <= 100
        found[attributes_of(span)["gen_ai.tool.call.id"]] = attributes["exception.message"]
    assert found["long"] == "x" * 100
    assert found["odd"] == "?"
    assert found["unspeakable"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_content_chars": 0}, ValueError, "at least 1"),
        ({"max_content_chars": 1.5}, TypeError, "an int, not float"),
        ({"capture_content": "no"}, TypeError, "a bool, not str"),
    ],
)
def test_bad_options(options: Any, error: type[Exception], words: str) -> None:
    """A clear error at once."""
    with pytest.raises(error, match=words):
        TelemetryObserver(**options)


# -- where it is used --------------------------------------------------------


async def test_sampled_out(telemetry: Telemetry) -> None:
    """What is not sampled is measured all the same, and passed on as not sampled."""
    quiet = Telemetry(sampler=ParentBased(ALWAYS_OFF))
    gated = gated_tool()
    async with ToolRunner([here, gated.tool], observers=[quiet.observer]) as runner:
        (result,) = await runner.run([ToolCall("1", "here")])
        async with runner.open_batch([ToolCall("1", "gated")]) as batch:
            await gated.wait_started()
            batch.interrupt()
        gated.open()
        assert await runner.wait_detached(LIVENESS)
    assert result.value != 0  # a span, though one that records nothing
    assert quiet.spans == []
    assert sum(point.count for point in quiet.durations()) == 2


async def test_without_an_sdk_it_does_nothing() -> None:
    """The API alone has spans that are none."""
    observer = TelemetryObserver(
        tracer_provider=trace.NoOpTracerProvider(),
    )
    results = await run_batch(
        [ToolCall("1", "here"), ToolCall("2", "here_blocking")],
        [here, here_blocking],
        observers=[observer],
    )
    assert [result.value for result in results] == [0, 0]


async def test_nothing_is_kept(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: neither of settled calls, nor of more than some that were let go."""
    monkeypatch.setattr(otel, "REMEMBERED_CALLS", 3)
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [here, here_blocking, anyio.sleep_forever], observers=[telemetry.observer]
        ) as runner:
            for _ in range(3):
                await runner.run([ToolCall("1", "here"), ToolCall("2", "here_blocking")])
                # Stopped by us: no late result will ever tell that it is over.
                async with runner.open_batch([ToolCall("3", "sleep_forever")] * 5) as batch:
                    await anyio.wait_all_tasks_blocked()
                    batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
    assert not telemetry.observer._open
    assert not telemetry.observer._settled_first
    assert len(telemetry.observer._detached) == 3


def test_spans_of_a_loop_that_was_dropped_go_with_it(telemetry: Telemetry) -> None:
    """P10: a loop that is abandoned in the middle of a batch leaves no entry."""
    loop = asyncio.new_event_loop()
    gated = gated_tool()
    runner = ToolRunner([gated.tool], observers=[telemetry.observer])
    task = loop.create_task(runner.run([ToolCall("1", "gated")]))
    while not gated.started:
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert len(telemetry.observer._open) == 1
    loop.close()
    gated.open()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del loop, task
    deadline = time.monotonic() + LIVENESS
    while telemetry.observer._open and time.monotonic() < deadline:
        time.sleep(0.01)  # the worker lets go of its call
        gc.collect()
    assert not telemetry.observer._open


async def test_an_exporter_that_fails_harms_no_call(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """P1: what the SDK raises, or a processor, is the log's."""

    class Failing:
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("no start")

        def on_end(self, span: Any) -> None:
            raise RuntimeError("no end")

        def shutdown(self) -> None: ...

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    telemetry.provider.add_span_processor(Failing())  # type: ignore[arg-type]
    results = await run_batch(
        [ToolCall("1", "ok"), ToolCall("2", "ok_async")],
        {"ok": lambda: 1, "ok_async": here},
        observers=[telemetry.observer],
    )
    assert [result.status.value for result in results] == ["completed", "completed"]


async def test_a_call_knows_its_span_when_it_is_cut(telemetry: Telemetry) -> None:
    """An `on_cancel` callback and what runs after the cut still belong to the span."""
    seen: list[int] = []
    started, told = threading.Event(), threading.Event()

    def tool() -> int:
        on_cancel(lambda: seen.append(span_here()))
        on_cancel(told.set)
        started.set()
        assert told.wait(LIVENESS)
        current_call().cancelled.wait(LIVENESS)
        seen.append(span_here())
        return 1

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[telemetry.observer]) as runner:
            async with runner.open_batch([ToolCall("1", "tool")]) as batch:
                await anyio.to_thread.run_sync(started.wait, LIVENESS)
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
    assert set(seen) == {id_of(telemetry.one("execute_tool tool"))}


def test_provider_that_is_set_later() -> None:
    """An observer that is made at import finds the provider of the program."""
    import subprocess

    program = """
import anyio
from anyio_toolbatch import ToolCall, run_batch
from anyio_toolbatch.observe.otel import TelemetryObserver
observer = TelemetryObserver()
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
async def main():
    await run_batch([ToolCall("1", "f")], {"f": lambda: 1}, observers=[observer])
anyio.run(main)
print([span.name for span in exporter.get_finished_spans()])
print(reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].name)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout.split("\n") == [
        "['execute_tool f']",
        "gen_ai.execute_tool.duration",
        "",
    ]


def test_settled_events_only_are_needed() -> None:
    """Events of other kinds are passed over."""
    observer = TelemetryObserver()
    observer(BatchSettled("b"))
    assert not isinstance(BatchSettled("b"), CallSettled)
