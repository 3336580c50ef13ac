"""
Calls that start while the model is still speaking.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

from anyio_toolbatch import CallStarted, Event, ToolRunner, tool
from anyio_toolbatch.formats import anthropic


@tool
async def weather(city: str) -> str:
    return f"{city}: 4 °C"


def block(index: int, city: str) -> list[dict[str, Any]]:
    """A tool call as Anthropic streams it: its beginning, its arguments in pieces, its end."""
    call = {"type": "tool_use", "id": f"toolu_{index}", "name": "weather", "input": {}}
    pieces = ['{"city": ', f'"{city}"', "}"]
    return [
        {"type": "content_block_start", "index": index, "content_block": call},
        *(
            {
                "type": "content_block_delta",
                "index": index,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
            for piece in pieces
        ),
        {"type": "content_block_stop", "index": index},
    ]


async def model(last: int) -> AsyncIterator[dict[str, Any]]:
    """Stands for a provider's stream; `last` is where the connection breaks."""
    events = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        *block(0, "Bern"),
        *block(1, "Oslo"),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    for event in events[:last]:
        yield event
        await anyio.wait_all_tasks_blocked()  # the model takes its time


def show(event: Event) -> None:
    if isinstance(event, CallStarted):
        print(f"  {event.call.id} has started")


async def turn(runner: ToolRunner, history: list[Any], last: int = 99) -> None:
    stream = anthropic.CallStream()
    async with runner.open_batch() as batch:
        async for event in model(last):
            for call in stream.feed(event):
                batch.submit(call)
            if event["type"] == "content_block_start":
                print(f"  the model begins {event['content_block']['id']}")
        # What was cut off is not run, and gets its result all the same.
        for call in stream.close():
            batch.submit(call)
    if message := stream.message:  # the stream may break before anything is said
        history.append(message)
    if batch.results:
        history.append(anthropic.render_results(batch.results))


async def main() -> None:
    async with ToolRunner([weather], observers=[show]) as runner:
        history: list[Any] = [{"role": "user", "content": "How is the weather?"}]
        print("A whole message")
        await turn(runner, history)
        print("A message that breaks off within the second call")
        await turn(runner, history, last=9)
    for result in history[-1]["content"]:
        print(result["tool_use_id"], "error:" if "is_error" in result else "done:")
        print(" ", result["content"])


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
