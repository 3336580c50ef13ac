"""
An agent's shell: it runs commands, and an interrupt really ends them.
"""

from __future__ import annotations

import sys

import anyio

from anyio_toolbatch import (
    CommandResult,
    ToolCall,
    ToolOutput,
    ToolRunner,
    run_command,
    tool,
)


@tool(exclusive=True)
async def shell(line: str) -> CommandResult:
    return await run_command(line, timeout=600, max_output=20_000)


@tool
async def check_style(code: str) -> ToolOutput:
    """Give the command its input, and tell the model of a failure as of an error."""
    checker = "import sys; sys.exit('line 1: tab' if '\\t' in sys.stdin.read() else None)"
    result = await run_command([sys.executable, "-c", checker], input=code)
    return ToolOutput(str(result), is_error=result.returncode != 0)


async def main() -> None:
    async with ToolRunner([shell, check_style]) as runner:
        results = await runner.run(
            [
                ToolCall("1", "shell", {"line": "echo hello; echo no luck >&2; exit 3"}),
                ToolCall("2", "shell", {"line": "no-such-program 2>&-"}),
                ToolCall("3", "check_style", {"code": "if x:\n\tpass"}),
            ]
        )
        for result in results:
            print(f"{result.call.id} {result.status.value}, error: {result.is_error}")
            print(result.text)

        # A server does not end by itself. It is asked to stop, and tidies up.
        serve = "trap 'touch stopped; exit' TERM; echo serving; sleep 600 & wait"
        async with runner.open_batch([ToolCall("4", "shell", {"line": serve})]) as batch:
            await anyio.sleep(0.5)
            batch.interrupt()
        print(batch.results[0].text)
        await runner.wait_detached()
        print("stopped in good order:", await anyio.Path("stopped").exists())


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
