"""
The same stop of one MCP call, by the SDK alone and through this library.

By the SDK: the scope around `call_tool` is cancelled, and left. By this library: the
batch is interrupted, and left. The server is

* healthy, on streams, with an async tool;
* on streams that take nothing any more, as a server that has stopped reading;
* in this process (`Client(server)`), with a blocking tool that has `LEFT` seconds to go.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio

from anyio_toolbatch import ToolCall, ToolRunner

from .backends import run_on
from .report import Report, seconds

LEFT = 2.0  # seconds

HEALTHY, WEDGED, BLOCKING = "healthy streams", "wedged streams", "blocking, in process"


def measure(backend: str, quick: bool, report: Report) -> None:
    if importlib.util.find_spec("mcp") is None:
        print(f"\n{backend}: the MCP SDK is not installed")
        return
    rows = []
    for server in (HEALTHY, WEDGED, BLOCKING):
        # What takes seconds needs no second look.
        alone = run_on(backend, _stop, server, _by_the_sdk)
        ours = statistics.median(
            run_on(backend, _stop, server, _by_this_library) for _ in range(3 if quick else 9)
        )
        rows.append([server, seconds(alone), seconds(ours)])
        report.at_most(backend, f"MCP, {server}: stop to turn back", 0.05, ours, seconds)
    head = ("from the stop of an MCP call to the turn", "SDK alone", "anyio_toolbatch")
    report.table(f"{backend}: stopping an MCP call", head, rows)


async def _stop(server: str, way: Any) -> float:
    begun = anyio.Event()
    if server == BLOCKING:
        gate = threading.Event()
        async with _in_process(begun, gate) as session:
            back_after = float(await way(session, begun, lambda: None))
            gate.set()  # or leaving the session would wait for the tool
            return back_after
    async with _on_streams(begun) as (session, wire):
        wedge = wire.wedge if server == WEDGED else lambda: None
        back_after = float(await way(session, begun, wedge))
        wire.free()
        return back_after


async def _by_the_sdk(session: Any, begun: anyio.Event, wedge: Any) -> float:
    stopped_at = math.nan
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(session.call_tool, "tool", {})
            await begun.wait()
            wedge()
            stopped_at = time.perf_counter()
            scope.cancel()
    return time.perf_counter() - stopped_at


async def _by_this_library(session: Any, begun: anyio.Event, wedge: Any) -> float:
    from anyio_toolbatch.integrations.mcp import mcp_tools

    async with ToolRunner(await mcp_tools(session), close_timeout=0.0) as runner:
        async with runner.open_batch([ToolCall("id", "tool")]) as batch:
            await begun.wait()
            wedge()
            stopped_at = time.perf_counter()
            batch.interrupt()
        return time.perf_counter() - stopped_at


@asynccontextmanager
async def _in_process(begun: anyio.Event, gate: threading.Event) -> AsyncIterator[Any]:
    import anyio.from_thread
    from mcp import Client
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("blocking", log_level="ERROR")

    @server.tool()
    def tool() -> str:
        anyio.from_thread.run_sync(begun.set)
        gate.wait(LEFT)
        return "done"

    async with Client(server) as client:
        yield client


@asynccontextmanager
async def _on_streams(begun: anyio.Event) -> AsyncIterator[tuple[Any, _Wire]]:
    from mcp import ClientSession, types
    from mcp.server import Server
    from mcp.shared.memory import create_client_server_memory_streams

    async def list_tools(*_: Any) -> Any:
        listed = types.Tool(name="tool", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[listed])

    async def call_tool(*_: Any) -> Any:
        begun.set()
        await anyio.sleep_forever()

    server = Server("waiting", on_list_tools=list_tools, on_call_tool=call_tool)
    async with (
        create_client_server_memory_streams() as ((read, write), (server_read, server_write)),
        anyio.create_task_group() as group,
    ):
        options = server.create_initialization_options()
        group.start_soon(server.run, server_read, server_write, options)
        wire = _Wire(write)
        async with ClientSession(read, wire) as session:
            await session.initialize()
            yield session, wire
        group.cancel_scope.cancel()


class _Wire:
    """A stream to the server that can be wedged."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._free = anyio.Event()
        self.free()

    def wedge(self) -> None:
        self._free = anyio.Event()

    def free(self) -> None:
        self._free.set()

    async def send(self, item: Any) -> None:
        await self._free.wait()
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
