"""
A framework that has a loop of its own, and the module that gives it batches.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread

from anyio_toolbatch import (
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    UnknownToolError,
)

# -- the framework: none of this is ours to change


@dataclass
class Request:
    id: str
    tool: str
    arguments: str


@dataclass
class Answer:
    id: str
    content: str
    failed: bool = False


@dataclass
class Context:
    """What the framework hands to its tools, beside the model's arguments."""

    user: str
    memory: dict[str, Any] = field(default_factory=dict)


Step = Callable[["Agent", list[Request]], Awaitable[list[Answer]]]


class Agent:
    """Asks the model, runs the tools, asks again; on asyncio."""

    def __init__(
        self, tools: Mapping[str, Callable[..., Any]], user: str, run_tools: Step
    ) -> None:
        self.tools = tools
        self.context = Context(user)
        self.run_tools = run_tools
        self.history: list[list[Request] | Answer] = []

    async def run(self, messages: list[list[Request]]) -> None:
        for requests in messages:  # in place of a model
            await asyncio.sleep(0)
            self.history.append(requests)
            self.history.extend(await self.run_tools(self, requests))


# -- the integration


class BatchedTools:
    """
    Runs the calls of each of an agent's steps as one batch: ``Agent(…, run_tools=…)``.

    Args:
        runner: Runs them.
        options: By the name of a tool, options of `Tool` for it.
    """

    def __init__(
        self, runner: ToolRunner, options: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._runner = runner
        self._options = options or {}
        self._tools: dict[str, Tool] = {}

    async def __call__(self, agent: Agent, requests: list[Request]) -> list[Answer]:
        require_asyncio()
        calls = [
            ToolCall(
                request.id,
                request.tool,
                request.arguments,  # as the model has written them
                tool=self._tool(agent, request.tool),
                metadata=agent.context,
            )
            for request in requests
        ]
        batch: ToolBatch | None = None
        try:
            async with self._runner.open_batch(calls) as batch:
                pass
        except BaseException:  # the agent is cancelled: its history has to stay whole
            if batch is not None:
                agent.history.extend(map(answer, batch.results))
            raise
        for result in batch.results:
            if result.status == "completed":
                agent.context.memory[result.call.name] = result.value
        return [answer(result) for result in batch.results]

    def _tool(self, agent: Agent, name: str) -> Tool:
        """Return the tool, made once: its own limits go by identity."""
        if name not in agent.tools:
            return unknown(name, agent.tools)
        if name not in self._tools:
            self._tools[name] = make_tool(name, agent.tools[name], self._options.get(name, {}))
        return self._tools[name]


def make_tool(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Tool:
    """Make a tool of a function of the framework's, which takes a `Context` too."""
    signature = inspect.signature(function)

    def with_context(call: ToolCall) -> dict[str, Any]:
        arguments = {**call.arguments, "context": call.metadata}
        signature.bind(**arguments)  # a `TypeError` makes the call invalid
        return arguments

    return Tool(function, name=name, validate=with_context, **options)


def unknown(name: str, known: Iterable[str]) -> Tool:
    """Stand in for a tool that the agent does not have."""

    def refuse(call: ToolCall) -> None:
        msg = f"there is no tool named {name!r} (known: {', '.join(known)})"
        raise UnknownToolError(msg)

    return Tool(refuse, name=name, validate=refuse)


def answer(result: ToolResult) -> Answer:
    """Say it in the framework's words."""
    return Answer(result.call.id, result.text, failed=result.is_error)


def require_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        msg = "this framework runs on asyncio only: start it with asyncio.run"
        raise RuntimeError(msg) from None


# -- a program that uses it


greeted = threading.Event()
reading = threading.Event()
ends = threading.Event()


async def greet(name: str, context: Context) -> str:
    greeted.set()
    return f"{context.user} greets {name}"


def read_book(title: str, context: Context) -> str:
    reading.set()
    ends.wait()
    return f"all of {title}"


REQUESTS = [
    Request("r1", "greet", json.dumps({"name": "Bob"})),
    Request("r2", "read_book", json.dumps({"title": "Ulysses"})),
    Request("r3", "fly", "{}"),
]


async def agent_main() -> None:
    late: list[str] = []
    runner = ToolRunner(on_late=lambda result: late.append(result.value))
    tools = {"greet": greet, "read_book": read_book}

    print("interrupted")
    agent = Agent(tools, "Ada", BatchedTools(runner))
    threading.Thread(target=press_stop, args=[runner]).start()
    await agent.run([REQUESTS])
    for item in agent.history[1:]:
        print(" ", item)
    ends.set()
    await runner.wait_detached()
    print("  in memory:", agent.context.memory)
    print("  late:", late)

    print("cancelled")
    ends.clear()
    reading.clear()
    agent = Agent(tools, "Bob", BatchedTools(runner))
    task = asyncio.create_task(agent.run([REQUESTS]))
    await asyncio.to_thread(reading.wait)
    task.cancel()
    await asyncio.wait([task])
    print("  answers:", *(item.id for item in agent.history[1:]))
    ends.set()
    await runner.aclose()


def press_stop(runner: ToolRunner) -> None:
    """Stand for a user, in a thread of their own."""
    greeted.wait()
    reading.wait()
    runner.interrupt("the user pressed stop")


async def main(backend: str) -> None:
    if backend == "asyncio":
        await agent_main()
    else:  # a program on trio gives the framework a thread, and asyncio in it
        refusal = ""
        try:
            run_tools = BatchedTools(ToolRunner())
            await run_tools(Agent({}, "Ada", run_tools), [])
        except RuntimeError as error:
            refusal = str(error)
        assert refusal.endswith("asyncio.run")
        await anyio.to_thread.run_sync(asyncio.run, agent_main())


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    anyio.run(main, backend, backend=backend)
