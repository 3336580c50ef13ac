"""
The spans of a turn: what ran where, what was cut, and what came late.
"""

from __future__ import annotations

import sys
import threading

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from anyio_toolbatch import CallSettled, CallStarted, ToolCall, ToolRunner
from anyio_toolbatch.observe.otel import TelemetryObserver

exporter = InMemorySpanExporter()  # in a program: a BatchSpanProcessor and an OTLP exporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("agent")

arrived = threading.Event()


def search(words: str) -> str:
    with tracer.start_as_current_span("SELECT pages"):  # below the call, in its thread
        return f"3 pages on {words}"


def download() -> str:
    arrived.wait()
    return "a large file"


async def main() -> None:
    calls = [
        ToolCall("call_1", "search", {"words": "tea"}),
        ToolCall("call_2", "download"),
        ToolCall("call_3", "sing"),
    ]
    async with ToolRunner([search, download], observers=[TelemetryObserver()]) as runner:
        with tracer.start_as_current_span("turn"):
            async with runner.open_batch(calls) as batch:
                seen = set()
                async for event in batch.events():
                    if isinstance(event, CallStarted | CallSettled):
                        seen.add((type(event), event.call.name))
                    if seen >= {(CallSettled, "search"), (CallStarted, "download")}:
                        break
                batch.interrupt("enough")
        arrived.set()
        await runner.wait_detached()
    show(exporter.get_finished_spans())


def show(spans: tuple[ReadableSpan, ...]) -> None:
    names = {span.context.span_id: span.name for span in spans if span.context}
    for span in sorted(spans, key=lambda span: span.name):
        parent = names[span.parent.span_id] if span.parent else None
        error = (span.attributes or {}).get("error.type")
        print(f"{span.name}: below {parent}, error.type {error}")
        for event in span.events:
            said = event.attributes or {}
            print(f"  {event.name}: {said['gen_ai.tool.name']}, {said['error.type']}")


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
