"""The tools of MCP servers: in this process, over streams, and over stdio."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallProgress,
    CallStarted,
    Event,
    LateResult,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
    run_batch,
)
from anyio_toolbatch.testing import PromiseObserver

pytest.importorskip("mcp", reason="needs the extra mcp")

from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client, types
from mcp.server import Server
from mcp.shared.memory import create_client_server_memory_streams

from anyio_toolbatch.integrations.mcp import MCPOutput, mcp_tools

LIVENESS = 30.0  # seconds where milliseconds are meant; a server program has to start
SERVER = Path(__file__).with_name("mcp_server.py")
KINDS = ["direct", "memory", "stdio"]
CUT = ("interrupted", "user_interrupt", True, True)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="the test server blocks on named pipes"
)


# -- servers -------------------------------------------------------------------


def server_module() -> Any:
    """Return the server program as a module; the tests do not lie in a package."""
    spec = importlib.util.spec_from_file_location("mcp_server", SERVER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def connected(kind: str) -> AsyncIterator[Any]:
    """Give a session with the tests' server; both of the SDK's kinds of session come."""
    if kind == "direct":
        async with Client(server_module().build()) as client:
            yield client
    elif kind == "memory":
        async with Client(server_module().build(), mode="legacy") as client:
            yield client.session
    else:
        program = StdioServerParameters(command=sys.executable, args=[str(SERVER), "asyncio"])
        with Path(os.devnull).open("w") as nowhere:
            async with (
                stdio_client(program, errlog=nowhere) as (read, write),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield session


class Wire:
    """A client's way to its server: takes down what is sent, and can be wedged."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._free = anyio.Event()
        self._free.set()
        self._news = anyio.Event()
        self.sent: list[Any] = []

    def wedge(self) -> None:
        self._free = anyio.Event()

    def free(self) -> None:
        self._free.set()

    async def sent_one(self, method: str) -> Any:
        """Wait until a message of this method has been written, and return the first."""
        while True:
            for message in self.sent:
                if getattr(message, "method", None) == method:
                    return message
            self._news = anyio.Event()
            await self._news.wait()

    async def send(self, item: Any) -> None:
        await self._free.wait()
        self.sent.append(item.message)
        self._news.set()
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._free.set()  # whoever is still writing finds it closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def wait_for_ever(name: str, arguments: dict[str, Any]) -> Any:
    await anyio.sleep_forever()


@asynccontextmanager
async def wired(
    answer: Answer = wait_for_ever,
    *,
    pages: list[list[types.Tool]] | None = None,
    circle: bool = False,
    read_timeout_seconds: float | None = None,
) -> AsyncIterator[tuple[ClientSession, Wire, Callable[[], None]]]:
    """Give a session, the wire to its server, and what makes the server go away."""
    pages = pages or [[named("tool")]]

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        cursor = params.cursor if params is not None else None
        page = int(cursor or 0)
        following = (page + 1) % len(pages) if circle or page + 1 < len(pages) else None
        return types.ListToolsResult(
            tools=pages[page], next_cursor=None if following is None else str(following)
        )

    async def call_tool(ctx: Any, params: Any) -> types.CallToolResult:
        return await answer(params.name, params.arguments)

    server = Server("wired", on_list_tools=list_tools, on_call_tool=call_tool)
    gone = anyio.Event()

    async def serve(streams: Any) -> None:
        async with anyio.create_task_group() as inner:

            async def watch() -> None:
                await gone.wait()
                inner.cancel_scope.cancel()

            inner.start_soon(watch)
            await server.run(*streams, server.create_initialization_options())
            inner.cancel_scope.cancel()
        await streams[1].aclose()

    async with (
        create_client_server_memory_streams() as ((read, write), streams),
        anyio.create_task_group() as group,
    ):
        group.start_soon(serve, streams)
        wire = Wire(write)
        async with ClientSession(
            read, wire, read_timeout_seconds=read_timeout_seconds
        ) as session:
            await session.initialize()
            yield session, wire, gone.set
        group.cancel_scope.cancel()


def named(name: str, **hints: Any) -> types.Tool:
    return types.Tool(
        name=name,
        input_schema={"type": "object"},
        annotations=types.ToolAnnotations(**hints) if hints else None,
    )


def text(words: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=words)], **more)


class Pipe:
    """A named pipe that both sides can open without waiting for each other."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self.fd = os.open(path, os.O_RDWR)

    def write(self) -> None:
        os.write(self.fd, b"!")

    async def read(self) -> bytes:
        return await anyio.to_thread.run_sync(os.read, self.fd, 1, abandon_on_cancel=True)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    os.close(made.fd)


def calls(*items: str | tuple[str, dict[str, Any]]) -> list[ToolCall]:
    pairs = [(item, {}) if isinstance(item, str) else item for item in items]
    return [ToolCall(f"id-{i}", name, arguments) for i, (name, arguments) in enumerate(pairs)]


def shape(results: Any) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


async def begun(batch: ToolBatch, count: int = 1) -> list[CallProgress]:
    """Wait until so many calls of the batch have reported progress from the server."""
    seen: list[CallProgress] = []
    async for event in batch.events():
        if isinstance(event, CallProgress):
            seen.append(event)
            if len(seen) == count:
                return seen
    raise AssertionError("the batch ended first")


# -- what the tools are --------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_tools_are_those_that_the_server_lists(kind: str) -> None:
    """Names with a prefix, the server's words as metadata, read-only tools shared."""
    with anyio.fail_after(LIVENESS):
        async with connected(kind) as session:
            tools = {tool.name: tool for tool in await mcp_tools(session, prefix="db_")}
    assert list(tools) == ["db_add", "db_drop", "db_picture", "db_block", "db_wait"]
    assert {name: tool.exclusive for name, tool in tools.items()} == {
        "db_add": False,
        "db_drop": True,
        "db_picture": True,
        "db_block": True,
        "db_wait": True,
    }
    described = tools["db_add"].metadata
    assert isinstance(described, types.Tool)
    assert (described.name, described.description) == ("add", "Adds.")
    assert set(described.input_schema["properties"]) == {"a", "b"}
    assert tools["db_drop"].metadata.annotations.destructive_hint is True


async def test_all_pages_are_listed() -> None:
    """A long listing comes in pages; an earlier page's tools are not lost."""
    pages = [[named("a"), named("b")], [], [named("c")]]
    async with wired(pages=pages) as (session, _, _):
        assert [tool.name for tool in await mcp_tools(session)] == ["a", "b", "c"]


async def test_listing_in_a_circle_ends() -> None:
    """P10: a server that pages for ever is an error, and no endless loop."""
    with anyio.fail_after(LIVENESS):
        async with wired(pages=[[named("a")], [named("b")]], circle=True) as (session, _, _):
            with pytest.raises(RuntimeError, match="circle"):
                await mcp_tools(session)


HINTED = [[named("read", read_only_hint=True), named("write"), named("odd", title="Odd")]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(False, None, None), (True, None, None), (True, None, None)]),
        ({"exclusive": False}, [(False, None, None)] * 3),
        ({"exclusive": True}, [(True, None, None)] * 3),
        (
            {"claim": "db"},
            [(False, ("db",), None), (False, None, ("db",)), (False, None, ("db",))],
        ),
        (
            {"overrides": {"write": {"writes": "a table"}, "odd": {"exclusive": False}}},
            [(False, None, None), (False, None, ("a table",)), (False, None, None)],
        ),
    ],
)
async def test_hints_are_defaults(options: Any, expected: Any) -> None:
    """The read-only hint shares, its absence does not, and whoever knows better says so."""
    async with wired(pages=HINTED) as (session, _, _):
        tools = await mcp_tools(session, **options)
    assert [(tool.exclusive, tool.reads, tool.writes) for tool in tools] == expected


async def test_single_tools_have_options_of_their_own() -> None:
    """Overrides go by the server's name, and leave the order's defaults alone."""
    own: Any = {"write": {"name": "save", "timeout": 5, "on_interrupt": "keep"}}
    async with wired(pages=HINTED) as (session, _, _):
        tools = await mcp_tools(session, prefix="db_", timeout=9, overrides=own)
    assert [tool.name for tool in tools] == ["db_read", "save", "db_odd"]
    assert [tool.timeout for tool in tools] == [9, 5, 9]
    assert (tools[1].on_interrupt, tools[1].exclusive) == ("keep", True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overrides": {"raed": {}}}, ValueError, "'raed'"),
        ({"overrides": {"read": {"runs_in": "thread"}}}, TypeError, "runs_in"),
        ({"exclusive": True, "claim": "db"}, ValueError, "one of them"),
        ({"exclusive": 1}, TypeError, "exclusive"),
        ({"prefix": 1}, TypeError, "prefix"),
        ({"timeout": "soon"}, TypeError, "timeout"),
        ({"overrides": {"read": None}}, TypeError, "overrides for 'read' must be a mapping"),
        ({"overrides": ["read"]}, TypeError, "overrides must be a mapping"),
        ({"claim": 5}, TypeError, "claim must be a str"),
    ],
)
async def test_misuse_raises_at_once(options: Any, error: Any, words: str) -> None:
    """A misspelt name or option is found when the tools are made."""
    async with wired(pages=HINTED) as (session, _, _):
        with pytest.raises(error, match=words):
            await mcp_tools(session, **options)


async def test_anything_but_a_session_is_refused() -> None:
    """What is no session of the SDK would fail in its own words much later."""
    with pytest.raises(TypeError, match="ClientSession"):
        await mcp_tools(object())  # type: ignore[arg-type]


# -- answers -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_come_back_in_call_order(kind: str, promises: PromiseObserver) -> None:
    """P1: values, errors that the tool reports, and answers of several blocks."""
    batch = calls(
        ("add", {"a": 1, "b": 2}),
        ("drop", {"table": "t"}),
        ("add", {"a": "one"}),
        "picture",
        ("add", {"a": 3, "b": 4}),
    )
    with anyio.fail_after(LIVENESS):
        async with (
            connected(kind) as session,
            ToolRunner(await mcp_tools(session), observers=[promises]) as runner,
        ):
            results = await runner.run(batch)
    assert [r.status for r in results] == [Status.COMPLETED] * 5
    assert [r.is_error for r in results] == [False, True, True, False, False]
    assert [results[i].text for i in (0, 3, 4)] == [
        "3",
        "Look:\n[image/png image, 3 bytes]",
        "7",
    ]
    assert "no table t" in results[1].text
    assert isinstance(results[0].value, MCPOutput)
    assert results[0].value.structured_content == {"result": 3}
    assert isinstance(results[3].value.raw, types.CallToolResult)
    assert results[3].value.content[1].data == "QUJD"


async def test_answer_without_words_shows_its_structure() -> None:
    """P6: structured content alone is shown as JSON, an empty answer as nothing."""

    async def answer(name: str, arguments: Any) -> Any:
        content = {"é": [1]} if arguments else None
        return types.CallToolResult(content=[], structured_content=content)

    async with wired(answer) as (session, _, _):
        results = await run_batch(calls(("tool", {"x": 1}), "tool"), await mcp_tools(session))
    assert [r.text for r in results] == ['{"é": [1]}', ""]


def test_every_kind_of_block_has_a_text() -> None:
    """P6: what is no text is named, so that the model knows that it is there."""
    blocks: list[Any] = [
        types.TextContent(type="text", text="words"),
        types.AudioContent(type="audio", data="QUI=", mime_type="audio/wav"),
        types.ResourceLink(type="resource_link", name="log", uri="file:///log"),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="a:b", text="inside")
        ),
        types.EmbeddedResource(
            type="resource", resource=types.BlobResourceContents(uri="a:c", blob="QQ==")
        ),
    ]
    output = MCPOutput(types.CallToolResult(content=blocks, structured_content={"a": 1}))
    assert str(output).splitlines() == [
        "words",
        "[audio/wav audio, 2 bytes]",
        "[resource log: file:///log]",
        "inside",
        "[resource a:c, 1 bytes]",
    ]
    assert output == MCPOutput(
        types.CallToolResult(content=blocks, structured_content={"a": 1})
    )
    assert output != MCPOutput(types.CallToolResult(content=[])) and output != "words"
    assert "words" in repr(output)


async def test_any_name_will_do_for_an_argument() -> None:
    """P1: argument names are the server's: no identifiers, or Python's own words."""
    given = {"self": 1, "a-b": 2, "name": 3, "arguments": 4, "class": 5, "": 6}
    seen = []

    async def answer(name: str, arguments: Any) -> Any:
        seen.append(arguments)
        return text("ok")

    async with wired(answer) as (session, _, _):
        (result,) = await run_batch(calls(("tool", given)), await mcp_tools(session))
    assert (result.text, seen) == ("ok", [given])


async def test_tool_can_be_called_without_a_batch() -> None:
    """A `Tool` is still a function: nobody listens to its progress then."""

    async def answer(name: str, arguments: Any) -> Any:
        return text("ok")

    async with wired(answer) as (session, wire, _):
        (tool,) = await mcp_tools(session)
        assert str((await tool(x=1)).value) == "ok"
        assert "progressToken" not in (wire.sent[-1].params.get("_meta") or {})


# -- failures ------------------------------------------------------------------


async def test_protocol_error_is_the_call_s_failure() -> None:
    """P8: an error of the protocol harms no sibling, and keeps its code and data."""

    async def answer(name: str, arguments: Any) -> Any:
        if arguments:
            raise MCPError(code=types.INVALID_PARAMS, message="no such tool", data=["x"])
        return text("ok")

    async with wired(answer) as (session, _, _):
        tools = await mcp_tools(session, exclusive=False)
        failed, fine = await run_batch(calls(("tool", {"x": 1}), "tool"), tools)
    assert (failed.status, failed.text) == (Status.FAILED, "MCPError: no such tool")
    assert isinstance(failed.error, MCPError)
    assert (failed.error.code, failed.error.data) == (types.INVALID_PARAMS, ["x"])
    assert fine.text == "ok"


async def test_session_s_own_timeout_is_a_timeout_error() -> None:
    """The SDK's code -32001 is Python's TimeoutError, and the server has been told."""
    with anyio.fail_after(LIVENESS):
        async with wired(read_timeout_seconds=0.05) as (session, wire, _):
            (result,) = await run_batch(calls("tool"), await mcp_tools(session))
            await wire.sent_one("notifications/cancelled")
    assert (result.status, type(result.error)) == (Status.FAILED, TimeoutError)
    assert isinstance(result.error.__cause__, MCPError)  # type: ignore[union-attr]
    assert "no answer in time" in result.text


async def test_server_that_goes_away_is_a_connection_error() -> None:
    """P1: a call that was under way and one that comes later both get their result."""
    with anyio.fail_after(LIVENESS):
        async with wired() as (session, wire, go_away):
            tools = await mcp_tools(session)
            async with ToolRunner(tools) as runner:
                async with runner.open_batch(calls("tool")) as batch:
                    await wire.sent_one("tools/call")
                    go_away()
                later = await runner.run(calls("tool"))
    for result in (*batch.results, *later):
        assert (result.status, type(result.error)) == (Status.FAILED, ConnectionError)
        assert "connection to the MCP server was lost" in result.text


async def test_closed_client_says_so() -> None:
    """P6: tools that are used outside their session's block, or made outside it."""
    client = Client(server_module().build())
    with pytest.raises(RuntimeError, match="Client is not open"):
        await mcp_tools(client)
    async with client:
        tools = await mcp_tools(client)
    (result,) = await run_batch(calls(tools[0].name), tools)
    assert (result.status, type(result.error)) == (Status.FAILED, ConnectionError)
    assert "is closed" in result.text


@pytest.mark.parametrize("error", [anyio.ClosedResourceError, anyio.BrokenResourceError])
async def test_broken_stream_is_a_connection_error(error: Any) -> None:
    """A transport that lets its stream's own error through is translated too."""

    class Broken(ClientSession):
        async def call_tool(self, *args: Any, **options: Any) -> Any:
            raise error

    async with create_client_server_memory_streams() as (streams, _):
        session = Broken(*streams)

        async def list_tools(**options: Any) -> Any:
            return types.ListToolsResult(tools=[named("tool")])

        session.list_tools = list_tools  # type: ignore[method-assign]
        (result,) = await run_batch(calls("tool"), await mcp_tools(session))
    assert type(result.error) is ConnectionError


async def test_code_of_a_server_s_own_is_not_translated() -> None:
    """P6: the SDK's code for a lost connection may mean something else to a server."""

    async def answer(name: str, arguments: Any) -> Any:
        raise MCPError(code=types.CONNECTION_CLOSED, message="Rate limited")

    async with wired(answer) as (session, _, _):
        (result,) = await run_batch(calls("tool"), await mcp_tools(session))
    assert result.text == "MCPError: Rate limited"


async def test_other_loop_is_told_so(anyio_backend: Any) -> None:
    """A session lives on one loop; a runner on another one gets a clear failure."""
    name, options = anyio_backend
    async with wired() as (session, _, _):
        tools = await mcp_tools(session)

        async def elsewhere() -> Any:
            return await run_batch(calls("tool"), tools)

        with anyio.fail_after(LIVENESS):
            (result,) = await anyio.to_thread.run_sync(
                lambda: anyio.run(elsewhere, backend=name, backend_options=options)
            )
    assert type(result.error) is RuntimeError
    assert "another event loop" in result.text


# -- progress ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_progress_of_the_server_is_an_event(kind: str, pipe: Pipe) -> None:
    """A server's progress is a `CallProgress` of the call that it belongs to."""
    batch_calls = calls(("add", {"a": 1, "b": 2}), ("block", {"gate": pipe.path}))
    with anyio.fail_after(LIVENESS):
        async with connected(kind) as session:
            tools = await mcp_tools(session, exclusive=False)
            async with ToolRunner(tools) as runner:
                async with runner.open_batch(batch_calls) as batch:
                    (event,) = await begun(batch)
                    pipe.write()
    assert (event.index, event.progress, event.total) == (1, 1, 2)
    assert event.message == "blocking"
    assert batch.results[1].text == "went on"


async def test_progress_does_not_go_back() -> None:
    """P9: the SDK hands progress out in any order; what was overtaken is dropped."""
    seen: list[Event] = []

    class Shuffled(ClientSession):
        async def call_tool(self, *args: Any, progress_callback: Any, **options: Any) -> Any:
            for step in (1.0, 3.0, 2.0, 3.0):
                await progress_callback(step, 4.0, f"step {step}")
                await anyio.lowlevel.checkpoint()
            return text("ok")

    async with create_client_server_memory_streams() as (streams, _):
        session = Shuffled(*streams)

        async def list_tools(**options: Any) -> Any:
            return types.ListToolsResult(tools=[named("tool")])

        session.list_tools = list_tools  # type: ignore[method-assign]
        tools = await mcp_tools(session)
        await run_batch(calls("tool"), tools, observers=[seen.append])
    steps = [event.progress for event in seen if isinstance(event, CallProgress)]
    assert steps == [1.0, 3.0, 3.0]


async def test_late_progress_lands_nowhere() -> None:
    """P5: what a server says after the interrupt does not reach the batch."""
    seen: list[Event] = []
    report: list[Any] = []
    told = anyio.Event()

    class Talking(ClientSession):
        async def call_tool(self, *args: Any, progress_callback: Any, **options: Any) -> Any:
            report.append(progress_callback)
            told.set()
            await anyio.sleep_forever()

    async with create_client_server_memory_streams() as (streams, _):
        session = Talking(*streams)

        async def list_tools(**options: Any) -> Any:
            return types.ListToolsResult(tools=[named("tool")])

        session.list_tools = list_tools  # type: ignore[method-assign]
        with anyio.fail_after(LIVENESS):
            async with ToolRunner(await mcp_tools(session), observers=[seen.append]) as runner:
                async with runner.open_batch(calls("tool")) as batch:
                    await told.wait()
                    batch.interrupt()
                await report[0](1.0, None, None)
                await anyio.wait_all_tasks_blocked()
    assert not any(isinstance(event, CallProgress) for event in seen)


# -- interrupts ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_interrupt_reaches_the_server(
    kind: str, pipe: Pipe, promises: PromiseObserver
) -> None:
    """P2: the turn is back at once, and the server's own code is cancelled behind it."""
    with anyio.fail_after(LIVENESS):
        async with (
            connected(kind) as session,
            ToolRunner(await mcp_tools(session), observers=[promises]) as runner,
        ):
            async with runner.open_batch(
                calls(("add", {"a": 1, "b": 2}), ("wait", {"told": pipe.path}))
            ) as batch:
                await begun(batch)
                batch.interrupt("enough")
            assert shape(batch.results) == [("completed", None, True, False), CUT]
            assert await pipe.read() == b"!"
            assert await runner.wait_detached(LIVENESS)
            # The session has not suffered.
            (after,) = await runner.run(calls(("add", {"a": 2, "b": 2})))
            assert after.text == "4"


@pytest.mark.parametrize("kind", KINDS)
async def test_blocking_server_tool_does_not_hold_the_turn(
    kind: str, pipe: Pipe, promises: PromiseObserver
) -> None:
    """P2, P6: a request is over for the client; in this process the call goes on truly."""
    late: list[LateResult] = []
    with anyio.fail_after(LIVENESS):
        async with connected(kind) as session:
            tools = await mcp_tools(session, exclusive=False)
            async with ToolRunner(tools, observers=[promises], on_late=late.append) as runner:
                async with runner.open_batch(calls(("block", {"gate": pipe.path}))) as batch:
                    await begun(batch)
                    batch.interrupt()
                assert shape(batch.results) == [CUT]
                if kind == "direct":
                    # The server's thread is the request: it is seen, and waited for in
                    # bounds only.
                    assert not await runner.wait_detached(0.01)
                    assert len(runner.statistics().detached) == 1
                else:
                    assert await runner.wait_detached(LIVENESS)
                (after,) = await runner.run(calls(("add", {"a": 2, "b": 2})))
                assert after.text == "4"
                pipe.write()
                assert await runner.wait_detached(LIVENESS)
    # The tool's own answer, with its mark: a `ToolOutput`.
    went_on = ["went on"] if kind == "direct" else []
    assert [str(result.value.value) for result in late] == went_on


@pytest.mark.parametrize("kind", KINDS)
async def test_timeout_of_the_tool_holds_for_every_server(kind: str, pipe: Pipe) -> None:
    """P2: also for a blocking tool in this process, where the SDK's own is not kept."""
    with anyio.fail_after(LIVENESS):
        async with connected(kind) as session:
            tools = await mcp_tools(session, overrides={"block": {"timeout": 0.05}})
            async with ToolRunner(tools) as runner:
                (result,) = await runner.run(calls(("block", {"gate": pipe.path})))
                assert shape([result]) == [("timed_out", "call_timeout", True, True)]
                pipe.write()
                assert await runner.wait_detached(LIVENESS)


async def test_server_is_told_which_request_is_off() -> None:
    """The protocol's notification names the request, once, and nothing comes behind."""
    with anyio.fail_after(LIVENESS):
        async with (
            wired() as (session, wire, _),
            ToolRunner(await mcp_tools(session)) as runner,
        ):
            async with runner.open_batch(calls("tool")) as batch:
                request = await wire.sent_one("tools/call")
                batch.interrupt()
            notification = await wire.sent_one("notifications/cancelled")
            assert notification.params["requestId"] == request.id
            assert await runner.wait_detached(LIVENESS)
            assert wire.sent[-1] is notification


WEDGED = {
    "interrupt": CUT,
    "timeout": ("timed_out", "call_timeout", True, True),
    "cancel": ("interrupted", "caller_cancelled", True, True),
    "close": ("interrupted", "runner_closed", True, True),
}


@pytest.mark.parametrize("way", WEDGED)
async def test_wedged_transport_does_not_hold_the_turn(way: str) -> None:
    """P2, P8: nothing can be written, and the turn is back all the same."""
    with anyio.fail_after(LIVENESS):
        async with wired() as (session, wire, _):
            tools = await mcp_tools(session, timeout=0.05 if way == "timeout" else None)
            runner = ToolRunner(tools, close_timeout=0.0)
            with anyio.CancelScope() as scope:
                async with runner.open_batch(calls("tool")) as batch:
                    await wire.sent_one("tools/call")
                    wire.wedge()
                    if way == "interrupt":
                        batch.interrupt()
                    elif way == "cancel":
                        scope.cancel()
                    elif way == "close":
                        await runner.aclose()
            # The SDK is still trying to write.
            assert len(runner.statistics().detached) == 1
            assert wire.sent[-1].method == "tools/call"
            assert shape(batch.results) == [WEDGED[way]]
            wire.free()
            await wire.sent_one("notifications/cancelled")
            assert await runner.wait_detached(LIVENESS)


async def test_stopped_server_program_does_not_hold_the_turn() -> None:
    """P2: a server that has stopped reading, and a pipe that is full."""
    with anyio.fail_after(LIVENESS):
        async with connected("stdio") as session:
            runner = ToolRunner(await mcp_tools(session))
            server = int(session.instructions)
            os.kill(server, signal.SIGSTOP)
            os.waitpid(server, os.WUNTRACED)  # until it has really stopped
            try:
                async with runner.open_batch(
                    calls(("drop", {"table": "t" * 1_000_000}))
                ) as batch:
                    async for event in batch.events():
                        if isinstance(event, CallStarted):
                            break
                    await anyio.wait_all_tasks_blocked()
                    batch.interrupt()
                assert shape(batch.results) == [CUT]
                await anyio.wait_all_tasks_blocked()
                assert len(runner.statistics().detached) == 1
            finally:
                os.kill(server, signal.SIGCONT)
            assert await runner.wait_detached(LIVENESS)
            (after,) = await runner.run(calls(("add", {"a": 2, "b": 2})))
            assert after.text == "4"


async def test_request_that_could_not_be_written_is_let_go_too() -> None:
    """P2: the transport was wedged before; a detached call ends with the session."""
    with anyio.fail_after(LIVENESS):
        async with wired() as (session, wire, _):
            runner = ToolRunner(await mcp_tools(session, exclusive=False))
            wire.wedge()
            async with runner.open_batch(calls("tool", "tool")) as batch:
                started = 0
                async for event in batch.events():
                    started += isinstance(event, CallStarted)
                    if started == 2:
                        batch.interrupt()
                        break
            assert shape(batch.results) == [CUT, CUT]
            assert not await runner.wait_detached(0.0)
        assert await runner.wait_detached(LIVENESS)


async def test_nothing_is_left_of_many_interrupted_turns(promises: PromiseObserver) -> None:
    """P10: neither side keeps anything of 50 turns that were cut."""
    begun_calls: list[anyio.Event] = [anyio.Event()]
    ended: list[int] = []

    async def answer(name: str, arguments: Any) -> Any:
        begun_calls[-1].set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(1)

    with anyio.fail_after(LIVENESS):
        async with (
            wired(answer) as (session, _, _),
            ToolRunner(await mcp_tools(session), observers=[promises]) as runner,
        ):
            for _ in range(50):
                begun_calls.append(anyio.Event())
                async with runner.open_batch(calls("tool", "tool", "tool")) as batch:
                    await begun_calls[-1].wait()
                    batch.interrupt()
                assert [r.status for r in batch.results] == [Status.INTERRUPTED] * 3
            assert await runner.wait_detached(LIVENESS)
            await anyio.wait_all_tasks_blocked()
            assert runner.statistics().detached == ()
            assert len(ended) == 50  # exclusive: the others never started


async def test_kept_call_gives_its_answer_later() -> None:
    """An answer that is worth waiting for can be kept, and arrives at `on_late`."""
    answers = anyio.Event()
    arrived: list[LateResult] = []

    async def answer(name: str, arguments: Any) -> Any:
        await answers.wait()
        return text("at last")

    with anyio.fail_after(LIVENESS):
        async with wired(answer) as (session, wire, _):
            tools = await mcp_tools(session, overrides={"tool": {"on_interrupt": "keep"}})
            async with ToolRunner(tools, on_late=arrived.append) as runner:
                async with runner.open_batch(calls("tool")) as batch:
                    await wire.sent_one("tools/call")
                    batch.interrupt()
                assert "goes on in the background" in batch.results[0].text
                answers.set()
                assert await runner.wait_detached(LIVENESS)
    assert [str(late.value.value) for late in arrived] == ["at last"]


# -- order ---------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"claim": "the server"}])
async def test_read_only_calls_run_together_and_others_alone(options: Any) -> None:
    """Two readers meet in the server, a writer meets nobody."""
    inside: set[int] = set()
    crowds: list[tuple[str, int]] = []
    both = anyio.Event()

    async def answer(name: str, arguments: Any) -> Any:
        inside.add(arguments["n"])
        if name == "read":
            if len(inside) == 2:
                both.set()
            await both.wait()
        await anyio.wait_all_tasks_blocked()
        crowds.append((name, len(inside)))
        inside.discard(arguments["n"])
        return text("ok")

    batch = calls(
        *[(name, {"n": n}) for n, name in enumerate(["read", "read", "write", "write"])]
    )
    with anyio.fail_after(LIVENESS):
        async with wired(answer, pages=HINTED) as (session, _, _):
            results = await run_batch(batch, await mcp_tools(session, **options))
    assert [r.text for r in results] == ["ok"] * 4
    assert [crowd for crowd in crowds if crowd[0] == "write"] == [("write", 1)] * 2


async def test_claim_does_not_hold_up_other_tools() -> None:
    """With a claim only the calls of this server take turns."""
    local = anyio.Event()

    async def answer(name: str, arguments: Any) -> Any:
        await local.wait()
        return text("ok")

    async def other() -> None:
        local.set()

    with anyio.fail_after(LIVENESS):
        async with wired(answer) as (session, _, _):
            tools = [*await mcp_tools(session, claim="the server"), Tool(other)]
            results = await run_batch(calls("tool", "other"), tools)
    assert [r.status for r in results] == [Status.COMPLETED] * 2


# -- leaving -------------------------------------------------------------------

LEAVING = """
import sys, anyio
from mcp import ClientSession, StdioServerParameters, stdio_client
from anyio_toolbatch import CallProgress, ToolCall, run_batch, open_batch
from anyio_toolbatch.integrations.mcp import mcp_tools

async def main():
    program = StdioServerParameters(command=sys.executable, args=[sys.argv[1], "asyncio"])
    async with stdio_client(program) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = await mcp_tools(session)
        call = ToolCall("id", "block", {"gate": sys.argv[2]})
        async with open_batch([call], tools) as batch:
            async for event in batch.events():
                if isinstance(event, CallProgress):
                    batch.interrupt()
        print(batch.results[0].status.value)

anyio.run(main, backend=sys.argv[3])
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_process_leaves_while_the_server_blocks(backend: str, pipe: Pipe) -> None:
    """P7: a server that never answers holds neither the turn nor the end."""
    ended = subprocess.run(
        [sys.executable, "-c", LEAVING, str(SERVER), pipe.path, backend],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("interrupted\n", "", 0)
