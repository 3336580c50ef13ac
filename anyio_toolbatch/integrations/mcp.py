"""
The tools of an MCP server, called through a session of the official SDK.

Each call is one `call_tool` request, made in a task of the batch. The SDK answers
a cancellation by sending `notifications/cancelled`, behind a shield, for up to
5 seconds where the transport takes nothing; a server in the same process runs
*inside* the request, and keeps it until its own code ends. Neither is waited for:
a batch lets go of its calls first, and tells them to stop when the turn is back.
So nothing here races the SDK, and nothing here knows more of it than its public
names.

Two things that the SDK leaves to its users are settled here:

* Progress arrives in tasks of the session, which know no current call, and on
  trio in any order. So each request takes its own context along, and what has
  been overtaken is dropped: the protocol lets progress only grow.
* Error codes become the exceptions that Python has for the case. What has none
  stays the SDK's `MCPError`.
"""

# mypy and pyright look at this file without the SDK, as the default checks have none.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypedDict, cast

import anyio
from anyio.lowlevel import current_token

from .. import Tool, ToolCall, ToolOutput, current_call, report_progress
from .._model.claims import KeysOption

try:
    from mcp import Client, ClientSession, MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, PaginatedRequestParams
except ImportError as exc:
    msg = "this module needs the MCP SDK 2: pip install 'anyio-toolbatch[mcp]'"
    raise ImportError(msg) from exc

__all__ = ("MCPOutput", "MCPSession", "MCPToolOptions", "mcp_tools")


class MCPSession(Protocol):
    """
    A `ClientSession` or a `Client` of the SDK; nothing else is taken.

    Spelled out, so that programs can be checked where the SDK is not installed.
    """

    def list_tools(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Ask the server for a page of its tools."""
        ...

    def call_tool(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Send one call and wait for its answer."""
        ...


class MCPToolOptions(TypedDict, total=False):
    """What can be said of one tool of a server; each is an option of `Tool`."""

    name: str
    timeout: float | None
    validate: Callable[[ToolCall], Mapping[str, Any] | None] | None
    exclusive: bool
    reads: KeysOption
    writes: KeysOption
    on_interrupt: Literal["cancel", "keep"]
    max_concurrency: int | None
    needs_slot: bool


async def mcp_tools(
    session: MCPSession,
    *,
    prefix: str = "",
    timeout: float | None = None,
    exclusive: bool | None = None,
    claim: str | None = None,
    overrides: Mapping[str, MCPToolOptions] | None = None,
) -> list[Tool]:
    """
    Return the tools that an MCP server lists, ready for a `ToolRunner`.

    A call completes with an `MCPOutput`, also where the server marks its answer as an
    error (`isError`): then the result's `is_error` is true. It fails with `TimeoutError`
    where the session's own read timeout has passed, with `ConnectionError` where the
    connection is lost or closed, and else with what the SDK raises: an `MCPError` for an
    error of the protocol.

    Args:
        session: A `ClientSession` that is initialized, or an open `Client`. Its tools
            run on the event loop that this is called on; on another one they fail with
            a `RuntimeError`. It must stay open while they are used.
        prefix: Put before each name, as it is: ``"files_"``. Keeps the tools
            of several servers apart.
        timeout: Seconds that one call may run. The batch keeps this time, and the server
            is told when it is over. Unlike the SDK's `read_timeout_seconds` it also
            holds for a server in the same process.
        exclusive: True: each call runs alone in its batch; False: none does. None: a
            tool with the read-only hint is shared, any other is exclusive. A hint is the
            server's word: rely on it as far as you trust the server.
        claim: A name for what the server works on, in place of `exclusive`: tools with the
            read-only hint read it, all others write it. Calls that use other things are
            not held up, and the order holds across the batches of a runner.
        overrides: Options for single tools, by the name that the server gives them. One
            of `exclusive`, `reads` and `writes` takes the place of the defaults for all
            three.

    Returns:
        The tools of all pages, in the server's order. The `metadata` of each is what the
        server says of it: an `mcp.types.Tool`, with `description`, `input_schema` and
        `annotations`.

    Raises:
        TypeError: `session` is no session of the SDK, or an option has the wrong type.
        RuntimeError: `session` is a `Client` that is not open; or the server lists the same
            page for ever.
        ValueError: `overrides` names a tool that the server does not have, or both
            `exclusive` and `claim` are given.
        MCPError: The server can't be asked, or refuses.

    Cancellation:
        The listing is cancelled as any request of the SDK. Of a *call* the turn never
        waits for more than its own grace. The request is cancelled behind it: the SDK
        sends `notifications/cancelled`, and until that is written (or 5 seconds have
        passed) the call counts as detached. What the server does about it is not known.

    .. versionadded:: 0.1
    """
    if not isinstance(session, (Client, ClientSession)):
        msg = f"session must be a ClientSession or a Client, not {type(session).__name__}"
        raise TypeError(msg)
    if not isinstance(prefix, str):
        msg = f"prefix must be a str, not {type(prefix).__name__}"
        raise TypeError(msg)
    if claim is not None and not isinstance(claim, str):
        msg = f"claim must be a str or None, not {type(claim).__name__}"
        raise TypeError(msg)
    if overrides is not None and not isinstance(overrides, Mapping):
        msg = f"overrides must be a mapping of names, not {type(overrides).__name__}"
        raise TypeError(msg)
    if exclusive is not None and claim is not None:
        msg = "exclusive and claim are two ways to say it; give one of them"
        raise ValueError(msg)
    if not _is_open(session):
        msg = "the MCP Client is not open; call mcp_tools() inside `async with client:`"
        raise RuntimeError(msg)
    home = current_token().native_token
    unused = dict(overrides or {})
    tools: list[Tool] = []
    for listed in await _list_all(session):
        options: dict[str, Any] = {"name": prefix + listed.name, "timeout": timeout}
        own = _checked(listed.name, unused.pop(listed.name, {}))
        if not own.keys() & {"exclusive", "reads", "writes"}:
            options |= _order(listed, exclusive, claim)
        options |= own
        request = _Request(session, home, listed.name)
        tools.append(Tool(request, metadata=listed, **options))
    if unused:
        msg = f"overrides: the server has no tool named {', '.join(map(repr, unused))}"
        raise ValueError(msg)
    return tools


class MCPOutput:
    """
    What a tool of a server answered; its `str` is what a model should see.

    The text consists of the text blocks, as they are, and one line in brackets for
    anything else, such as ``[image/png image, 1,024 bytes]``. An answer without any
    block, but with structured content, is shown as JSON.

    Args:
        raw: The SDK's own `CallToolResult`.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def content(self) -> list[Any]:
        """The SDK's content blocks, of text, images, audio or resources, in their order."""
        return cast("list[Any]", self.raw.content)

    @property
    def structured_content(self) -> Any:
        """The JSON value that the server gave besides, or None."""
        return self.raw.structured_content

    def __str__(self) -> str:
        if not self.content and self.structured_content is not None:
            return json.dumps(self.structured_content, ensure_ascii=False)
        return "\n".join(map(_text_of_block, self.content))

    def __repr__(self) -> str:
        return f"MCPOutput({self.raw!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MCPOutput):
            return NotImplemented
        return bool(self.raw == other.raw)

    __hash__ = None  # type: ignore[assignment]  # what it holds can be changed


class _Request:
    """One tool of a server, as the function that a `Tool` calls."""

    __slots__ = ("_home", "_name", "_session")

    def __init__(self, session: MCPSession, home: object, name: str) -> None:
        self._session = session
        self._home = home
        self._name = name

    # Positional only: "self" is a fine name for an argument in another language.
    async def __call__(self, /, **arguments: Any) -> ToolOutput:
        if current_token().native_token is not self._home:
            msg = (
                f"the MCP session of the tool {self._name!r} belongs to another event loop; "
                "call mcp_tools() on the loop that runs the batch"
            )
            raise RuntimeError(msg)
        if not _is_open(self._session):
            msg = f"the MCP Client of the tool {self._name!r} is closed; it must stay open"
            raise ConnectionError(msg)
        try:
            answer = await self._session.call_tool(
                self._name, arguments, progress_callback=_progress_of_this_call()
            )
        except MCPError as exc:
            raise _translated(exc) from exc
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            raise ConnectionError(_LOST) from exc
        return ToolOutput(MCPOutput(answer), is_error=answer.is_error)

    def __repr__(self) -> str:
        return f"<MCP tool {self._name!r}>"


def _is_open(session: MCPSession) -> bool:
    """Whether it can be asked at all; only a `Client` tells."""
    if isinstance(session, Client):
        try:
            cast("Any", session).session  # noqa: B018 - a property that raises
        except RuntimeError:
            return False
    return True


_LOST = "the connection to the MCP server was lost"


def _translated(error: Any) -> Exception:
    """Return Python's own exception for an error of the protocol, or the error itself."""
    if error.code == REQUEST_TIMEOUT:
        return TimeoutError(f"the MCP server gave no answer in time: {error.message}")
    # A server may have a use of its own for this code; the words are the SDK's.
    if error.code == CONNECTION_CLOSED and error.message == "Connection closed":
        return ConnectionError(_LOST)
    return cast("Exception", error)


_Progress = Callable[[float, float | None, str | None], Awaitable[None]]


def _progress_of_this_call() -> _Progress | None:
    """Return what hands a request's progress to the call that makes it; None outside one."""
    try:
        current_call()
    except RuntimeError:
        return None
    context = contextvars.copy_context()
    newest = float("-inf")

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        nonlocal newest
        if progress >= newest:
            newest = progress
            context.run(report_progress, progress, total, message)

    return on_progress


async def _list_all(session: MCPSession) -> list[Any]:
    """Return what the server lists, all pages of it."""
    found: list[Any] = []
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        if isinstance(session, Client):
            page = await session.list_tools(cursor=cursor)
        else:
            # No params for the first page: the session takes a plain listing that has
            # but one page for the whole, and forgets what is gone.
            params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
            page = await session.list_tools(params=params)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
        if cursor in seen:
            msg = f"the MCP server lists its tools in a circle: cursor {cursor!r} came twice"
            raise RuntimeError(msg)
        seen.add(cursor)


def _checked(name: str, options: MCPToolOptions) -> dict[str, Any]:
    """Return a tool's own options; Tool itself checks their values."""
    if not isinstance(options, Mapping):
        msg = f"overrides for {name!r} must be a mapping, not {type(options).__name__}"
        raise TypeError(msg)
    unknown = options.keys() - MCPToolOptions.__annotations__.keys()
    if unknown:
        msg = f"overrides for {name!r}: no such option: {', '.join(sorted(unknown))}"
        raise TypeError(msg)
    return dict(options)


def _order(listed: Any, exclusive: bool | None, claim: str | None) -> dict[str, Any]:
    """Return which calls a tool's calls keep out, by what the server says of it."""
    hints = listed.annotations
    is_shared = hints is not None and hints.read_only_hint is True
    if claim is not None:
        return {"reads" if is_shared else "writes": claim}
    return {"exclusive": not is_shared if exclusive is None else exclusive}


def _text_of_block(block: Any) -> str:
    """Show a content block in a text: itself if it is one, else what it is."""
    kind = block.type
    if kind == "text":
        return str(block.text)
    if kind in {"image", "audio"}:
        return f"[{block.mime_type} {kind}, {_size(block.data)}]"
    if kind == "resource_link":
        return f"[resource {block.name}: {block.uri}]"
    if kind == "resource":
        resource = block.resource
        text = getattr(resource, "text", None)
        if text is not None:
            return str(text)
        return f"[resource {resource.uri}, {_size(resource.blob)}]"
    return f"[{kind}]"


def _size(encoded: str) -> str:
    """Say how many bytes a base64 text stands for."""
    return f"{len(encoded) * 3 // 4 - encoded[-2:].count('='):,} bytes"
