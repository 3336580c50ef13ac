"""
An agent's turn, interrupted and cancelled at each of its steps.
"""

from __future__ import annotations

import sys
from typing import Any

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.formats import openai_chat
from anyio_toolbatch.testing import ExplorationError, Stage, explore


def model() -> dict[str, Any]:
    """Stands for the provider: a message that asks for three calls."""
    names = ["search", "run_query", "search"]
    return {
        "role": "assistant",
        "tool_calls": [
            {
                "id": f"call-{index}",
                "type": "function",
                "function": {"name": name, "arguments": "{}"},
            }
            for index, name in enumerate(names)
        ],
    }


# -- what is to be tested: two agents, one of them careless


async def careless_turn(runner: ToolRunner, history: list[dict[str, Any]]) -> None:
    message = model()
    history.append(message)
    results = await runner.run(openai_chat.parse_calls(message))
    history.extend(openai_chat.render_results(results))


async def careful_turn(runner: ToolRunner, history: list[dict[str, Any]]) -> None:
    message = model()
    history.append(message)
    batch = None
    try:
        async with runner.open_batch(openai_chat.parse_calls(message)) as batch:
            pass
    finally:
        if batch is not None:  # also when this task is being cancelled
            history.extend(openai_chat.render_results(batch.results))


# -- the test


def unanswered(history: list[dict[str, Any]]) -> set[str]:
    asked = {call["id"] for message in history for call in message.get("tool_calls", ())}
    return asked - {message.get("tool_call_id") for message in history}


async def scenario(stage: Stage, turn: Any) -> None:
    search = stage.gated_async("search", value="found")
    run_query = stage.gated("run_query", value="3 rows")
    history: list[dict[str, Any]] = []
    try:
        async with stage.runner([search, run_query], max_concurrency=2) as runner:
            await turn(runner, history)
    finally:
        # Whatever has happened: the provider takes the history back.
        assert not unanswered(history), "a call has no answer"


async def careless(stage: Stage) -> None:
    await scenario(stage, careless_turn)


async def careful(stage: Stage) -> None:
    await scenario(stage, careful_turn)


def main(backend: str) -> None:
    for each in (careful, careless):
        try:
            explored = explore(each, backend=backend)
        except ExplorationError as error:
            (injected, _step), *_ = error.plans[0].injections
            problem = str(error).splitlines()[2].strip()
            print(f"{each.__name__}, {injected.value}: {problem}")
        else:
            assert explored.runs > explored.steps
            print(f"{each.__name__}: nothing was wrong in any run")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "asyncio")
