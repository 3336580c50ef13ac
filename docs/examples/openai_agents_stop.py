"""
An agent of the OpenAI Agents SDK that can be stopped. Its model is a script.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from agents import Agent, Model, Runner, SQLiteSession, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from anyio_toolbatch import ToolRunner
from anyio_toolbatch.integrations.openai_agents import runner_tools


class ScriptedModel(Model):
    async def get_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def stream_response(self, *args: Any, **options: Any) -> Any:
        output: Any = [
            call("search", '{"text": "trio"}', "call_1"),
            call("report", '{"year": 2026}', "call_2"),
        ]
        items = args[1]
        if len(items) > 1:
            print("  the model gets:")
            for item in items:
                if item.get("type") == "function_call_output":
                    print(f"    {item['call_id']}: {item['output']}")
            text = ResponseOutputText(text="I see.", type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(
                    id="m",
                    role="assistant",
                    status="completed",
                    type="message",
                    content=[text],
                )
            ]
        response = Response(
            id="r",
            created_at=0,
            model="script",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(
            type="response.completed", sequence_number=0, response=response
        )


def call(name: str, arguments: str, call_id: str) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        name=name, arguments=arguments, call_id=call_id, type="function_call"
    )


# -- the agent ---------------------------------------------------------------


async def search(text: str) -> str:
    return f"found: {text}"


def report(year: int) -> str:
    time.sleep(60)  # nothing can stop it
    return f"the report of {year}"


runner = ToolRunner()
agent = Agent(
    name="worker",
    model=ScriptedModel(),
    tools=runner_tools(runner, [search, report]),
)


# -- two ways to stop --------------------------------------------------------


async def run(text: str, session: SQLiteSession, stop: Any = None) -> None:
    result = Runner.run_streamed(agent, text, session=session)
    if stop is not None:
        asyncio.get_running_loop().call_later(0.5, stop, result)
    async for _ in result.stream_events():
        pass
    print(f"  {result.final_output}")


async def main() -> None:
    print("interrupted: the agent goes on at once")
    await run(
        "Look it up, and write the report.",
        SQLiteSession("one"),
        lambda _: runner.interrupt("the user pressed stop"),
    )

    print("ended after this turn, and interrupted: the session has it all")

    def stop(result: Any) -> None:
        result.cancel(mode="after_turn")
        runner.interrupt("the user pressed stop")

    session = SQLiteSession("two")
    await run("Look it up, and write the report.", session, stop)
    await run("What have you got?", session)


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(main())
