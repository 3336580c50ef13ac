"""Who is measured, what it needs, and how it is driven."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .peer import Kind

__all__ = ("OURS", "ROSTER", "Entry")


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One peer.

    Attributes:
        title: Its name in the tables, in Markdown.
        where: Its module in `ways`, and the class there.
        how: How it is driven, as a sentence.
        distribution: What has to be installed for it, apart from what the suite needs.
        loop: What it runs on.
        kinds: The tools that it is measured with.
        left_out: Measure → why it is not in it.
    """

    title: str
    where: tuple[str, str]
    how: str
    distribution: str | None = None
    loop: str = "asyncio"
    kinds: tuple[Kind, ...] = ("async", "blocking")
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def beside(self) -> str:
        """Which of ours it is compared with: the one on its own event loop."""
        return "toolbatch" if self.loop == "asyncio" else f"toolbatch-{self.loop}"

    def make(self, *args: Any, **options: Any) -> Any:
        module, name = self.where
        return getattr(importlib.import_module(f".ways.{module}", __package__), name)(
            *args, **options
        )


ROSTER: dict[str, Entry] = {
    "toolbatch": Entry(
        "**anyio-toolbatch**",
        ("toolbatch", "Toolbatch"),
        "One `ToolRunner`; each turn is `runner.run(calls)`, and the stop `runner.interrupt()`.",
    ),
    "toolbatch-trio": Entry(
        "**anyio-toolbatch** on trio",
        ("toolbatch", "Toolbatch"),
        "The same program on trio.",
        loop="trio",
    ),
    "gather": Entry(
        "`asyncio.gather`, `to_thread`",
        ("gather", "Gather"),
        "`await asyncio.gather(...)` over the coroutines, or over `asyncio.to_thread`; the stop "
        "cancels the task that awaits it.",
    ),
    "executor": Entry(
        "`ThreadPoolExecutor`",
        ("executor", "Executor"),
        "`loop.run_in_executor` with a pool of its own and `asyncio.wait`, the futures kept; "
        "the stop cancels the awaiting task and calls "
        "`pool.shutdown(wait=False, cancel_futures=True)`, and whatever future is done by then "
        "is a result.",
        kinds=("blocking",),
        left_out={"stall": "it runs no async tools"},
    ),
    "anyio-waiting": Entry(
        "anyio task group, `to_thread`",
        ("anyio_group", "AnyioGroupWaiting"),
        "A task for each call, which puts what it gets from `anyio.to_thread.run_sync` (or "
        "from the coroutine) into a list; the stop cancels the group's scope.",
        left_out={
            "stall": "as the next one: there is no thread in it",
            "cost": "as the next one: nothing is cancelled",
        },
    ),
    "anyio": Entry(
        "anyio task group, `abandon_on_cancel`",
        ("anyio_group", "AnyioGroup"),
        "The same with `abandon_on_cancel=True`.",
    ),
    "trio": Entry(
        "trio nursery, `abandon_on_cancel`",
        ("trio_nursery", "TrioNursery"),
        "The same with a nursery and `trio.to_thread.run_sync(abandon_on_cancel=True)`.",
        loop="trio",
    ),
    "langgraph": Entry(
        "LangGraph `ToolNode`",
        ("langgraph", "Langgraph"),
        "A graph of one `ToolNode`, compiled with an `InMemorySaver` (without one where the cost "
        "is measured); the stop cancels the task that awaits `ainvoke`, and the results are the "
        "tool messages in the graph's state.",
        "langgraph",
    ),
    "pydantic-ai": Entry(
        "pydantic-ai",
        ("pydantic_ai", "PydanticAI"),
        "An `Agent` with a `FunctionModel` that asks for the calls; the stop cancels the task "
        "that awaits `agent.run`, and the results are what the model is sent when the "
        "conversation goes on with the messages captured so far.",
        "pydantic-ai-slim",
    ),
    "openai-agents": Entry(
        "OpenAI Agents SDK",
        ("openai_agents", "OpenAIAgents"),
        "An `Agent` with a scripted `Model`; the stop cancels the task that awaits `Runner.run`, "
        "and the results are what the model is sent when the conversation goes on with the same "
        "`SQLiteSession` (none where the cost is measured).",
        "openai-agents",
    ),
    "hermes-agent": Entry(
        "hermes-agent's executor",
        ("hermes_agent", "HermesAgent"),
        "`execute_tool_calls_concurrent` with an `AIAgent`, in a thread beside the loop, our tool "
        "registered under the name of a tool that it runs concurrently; the stop is "
        "`agent.interrupt()`, and the results are the messages that it appends.",
        "hermes-agent",
        left_out={"stall": "it runs at most 8 calls at a time, and none on the loop"},
    ),
}

OURS = ("toolbatch", "toolbatch-trio")
