"""
The log of an agent, as lines of JSON: what a warning says, and whom it is about.
"""

from __future__ import annotations

import json
import logging
import sys
import threading

import anyio

from anyio_toolbatch import ToolCall, ToolRunner


class JsonLines(logging.Formatter):
    FIELDS = ("kind", "tools", "call_ids", "count", "limit")

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname, "message": record.getMessage()}
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        return json.dumps(line, ensure_ascii=False, indent=2)


handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(JsonLines())
logging.getLogger("anyio_toolbatch").addHandler(handler)

server_is_back = threading.Event()


def ask_server() -> None:
    server_is_back.wait()


async def main() -> None:
    async with ToolRunner([ask_server], max_detached=4) as runner:
        calls = [ToolCall(f"call_{n}", "ask_server") for n in range(3)]
        async with runner.open_batch(calls) as batch:
            async for _ in batch.events():
                if runner.statistics().running == len(calls):
                    break
            batch.interrupt()
        await runner.wait_detached(timeout=0.1)
        server_is_back.set()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
