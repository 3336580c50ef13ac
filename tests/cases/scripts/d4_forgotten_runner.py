"""A runner with a stuck thread lives in a module, in a cycle, until the interpreter's end."""

from __future__ import annotations

import sys
import threading

import anyio

from anyio_toolbatch import ToolCall, ToolRunner

started = threading.Event()


class Agent:
    def __init__(self) -> None:
        self.runner = ToolRunner({"stuck": self.stuck})

    def stuck(self) -> None:
        started.set()
        threading.Event().wait()

    async def turn(self) -> None:
        async with self.runner.open_batch([ToolCall("1", "stuck")]) as batch:
            started.wait()
            batch.interrupt()


agent = Agent()
anyio.run(agent.turn, backend=sys.argv[1])
print("main is over")
