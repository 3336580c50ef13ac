"""
The executor of hermes-agent: threads, an interrupt that is polled for.

It runs only tools that it knows to be harmless at the same time, so ours takes the name of
one of these. It is synchronous; here, as in an application, it has a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..peer import Answers, Peer

# Its settings and sessions: not those of whoever measures.
os.environ["HERMES_HOME"] = tempfile.mkdtemp(prefix="hermes-")

from agent.tool_executor import execute_tool_calls_concurrent
from run_agent import AIAgent
from tools.registry import registry

NAME = "web_search"


class HermesAgent(Peer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loop = asyncio.get_running_loop()
        tool: Any = self.tool
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}

        def work(arguments: dict[str, Any], **_: Any) -> Any:
            return tool(arguments["n"])

        registry.register(
            name=NAME,
            toolset="measured",
            schema={"name": NAME, "description": "Work.", "parameters": parameters},
            handler=work,
            is_async=self.kind == "async",
            override=True,
        )
        self.agent: Any = AIAgent(
            base_url="http://127.0.0.1:9/v1",  # nobody is asked
            api_key="none",
            provider="custom",
            model="scripted",
            quiet_mode=True,
            skip_context_files=True,
            skip_memory=True,
            enabled_toolsets=["measured"],
        )
        self.message = SimpleNamespace(
            content="",
            tool_calls=[
                SimpleNamespace(
                    id=str(n),
                    type="function",
                    function=SimpleNamespace(name=NAME, arguments=json.dumps({"n": n})),
                )
                for n in range(self.count)
            ],
        )
        self.last: list[dict[str, Any]] = []

    async def turn(self) -> None:
        done = self.loop.create_future()

        def execute() -> None:
            self.last = []
            self.agent.clear_interrupt()
            execute_tool_calls_concurrent(self.agent, self.message, self.last, "task")
            self.loop.call_soon_threadsafe(done.set_result, None)

        threading.Thread(target=execute, daemon=True).start()
        await done

    def stop(self) -> None:
        self.agent.interrupt("stop")

    async def results(self) -> Answers:
        return [(int(m["tool_call_id"]), str(m["content"])) for m in self.last]

    def hand_over(self, function: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(function)
