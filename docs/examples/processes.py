"""
Work that can be killed, and what the model is told of it.
"""

from __future__ import annotations

import sys

import anyio

from anyio_toolbatch import (
    CallProgress,
    ToolCall,
    ToolRunner,
    keep_partial,
    report_progress,
    tool,
)


@tool(runs_in="process")
def factorise(number: int) -> list[int]:
    """Computes only: no thread could be stopped in this loop."""
    factors: list[int] = []
    divisor = 2
    while number > 1:
        if number % divisor == 0:
            number //= divisor
            factors.append(divisor)
            keep_partial(list(factors))
            report_progress(len(factors))
        else:
            divisor += 1
    return factors


async def main() -> None:
    async with ToolRunner([factorise]) as runner:
        (done,) = await runner.run([ToolCall("c0", "factorise", {"number": 2001})])
        print(done.text)

        endless = ToolCall("c1", "factorise", {"number": 3 * (2**127 - 1)})
        async with runner.open_batch([endless]) as batch:
            async for event in batch.events():
                if isinstance(event, CallProgress):
                    batch.interrupt()
        (result,) = batch.results
        print(result.text)
        print(f"detached: {result.detached}, effects: {result.effects}")


# Needed: a worker process imports this file to find the tool.
if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
