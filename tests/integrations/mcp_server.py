"""
The MCP server of the tests: in the tests' own process, or a program on stdio.

What blocks or tells is a named pipe, which works across processes: reading from
an empty one blocks in the kernel, as a real blocking tool would.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import anyio.from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations


def build() -> MCPServer:
    server = MCPServer("tests", instructions=str(os.getpid()), log_level="ERROR")

    @server.tool(description="Adds.", annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
    def drop(table: str) -> str:
        msg = f"no table {table}"
        raise ToolError(msg)

    @server.tool()
    def picture() -> CallToolResult:
        image = ImageContent(type="image", data="QUJD", mime_type="image/png")
        return CallToolResult(content=[TextContent(type="text", text="Look:"), image])

    @server.tool()
    def block(gate: str, ctx: Context) -> str:
        """Says that it has begun, then blocks until somebody writes to the gate."""
        anyio.from_thread.run(ctx.report_progress, 1, 2, "blocking")
        with Path(gate).open("rb", buffering=0) as pipe:
            pipe.read(1)
        return "went on"

    @server.tool()
    async def wait(told: str, ctx: Context) -> str:
        """Says that it has begun, then waits for a cancellation, and tells of it."""
        await ctx.report_progress(1, 2, "waiting")
        try:
            await anyio.sleep_forever()
        finally:
            with Path(told).open("wb", buffering=0) as pipe:
                pipe.write(b"!")
        return "never"

    return server


if __name__ == "__main__":
    anyio.run(build().run_stdio_async, backend=sys.argv[1])
    # A blocked tool's thread must not hold the program; its gate may never open.
    os._exit(0)
