"""The tools of an MCP server in a batch; needs the extra `mcp`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import anyio
import anyio.from_thread
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

from anyio_toolbatch import CallProgress, ToolCall, ToolRunner
from anyio_toolbatch.integrations.mcp import mcp_tools

# -- a server, as somebody else may have written it --------------------------

server = MCPServer("library", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find(title: str) -> str:
    """Find a book."""
    return f"{title} stands on shelf {len(title)}"


@server.tool()
def reindex(ctx: Context) -> str:
    """Read all the books again; blocks, and cannot be stopped."""
    anyio.from_thread.run(ctx.report_progress, 1, 1000, "reading")
    time.sleep(60)
    return "done"


# -- the agent ---------------------------------------------------------------


async def main() -> None:
    program = StdioServerParameters(
        command=sys.executable, args=[__file__, "serve"], env=dict(os.environ)
    )
    async with (
        stdio_client(program) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = await mcp_tools(session, prefix="library_", timeout=30)
        print("for the model")
        for tool in tools:
            print(f"  {json.dumps(declaration(tool)):.75}…")
        async with ToolRunner(tools) as runner:
            print("a turn")
            finds = [("library_find", {"title": title}) for title in ("Emma", "Ulysses")]
            await turn(runner, *finds, ("library_find", {"tilte": "Dune"}))
            print("one that is stopped")
            await turn(runner, finds[0], ("library_reindex", {}), finds[1])
            print("the next one")
            await turn(runner, finds[1])


def declaration(tool: Any) -> dict[str, Any]:
    """What a model has to know of a tool, here in the words of Anthropic's API."""
    listed = tool.metadata
    return {
        "name": tool.name,
        "description": listed.description or "",
        "input_schema": listed.input_schema,
    }


async def turn(runner: ToolRunner, *calls: tuple[str, dict[str, Any]]) -> None:
    async with runner.open_batch(
        [ToolCall(f"c{index}", *call) for index, call in enumerate(calls)]
    ) as batch:
        async for event in batch.events():
            if isinstance(event, CallProgress):
                print(f"  {event.index} {event.message}: {event.progress} of {event.total}")
                batch.interrupt("the user pressed stop")
    for result in batch.results:
        mark = " (an error)" if result.is_error else ""
        print(f"  {result.index}{mark} {result.text.splitlines()[0]}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server.run()
    else:
        anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
