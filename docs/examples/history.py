"""
A history that no provider takes, made valid; and results that fit into a budget.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio

from anyio_toolbatch import ToolCall, ToolResult, run_batch
from anyio_toolbatch.formats import anthropic, openai_chat

# What was stored before the process was killed: two calls, and one result.
STORED: list[Any] = [
    {"role": "user", "content": "Deploy a and b."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{name}",
                "type": "function",
                "function": {"name": "deploy", "arguments": json.dumps({"service": name})},
            }
            for name in "ab"
        ],
    },
    {"role": "tool", "tool_call_id": "call_a", "content": "a is deployed"},
    {"role": "user", "content": "Are you still there?"},
]


def show(messages: list[Any]) -> None:
    for message in messages:
        content = message["content"] or "calls " + ", ".join(
            call["id"] for call in message["tool_calls"]
        )
        print(f"  {message['role']}: {content}")


whole: dict[str, ToolResult] = {}


def keep_whole(result: ToolResult) -> str:
    """Store what is cut; the model is told where it is, and may ask for it."""
    whole[result.call.id] = result
    return f"read_result({result.call.id!r})"


def screenshot_as_image(result: ToolResult) -> Any:
    """Own content for one tool, the format's for all others."""
    if result.call.name != "screenshot" or result.is_error:
        return None
    source = {"type": "base64", "media_type": "image/png", "data": result.value}
    return [{"type": "image", "source": source}]


def read_log(lines: int) -> str:
    return "\n".join(f"line {number}" for number in range(lines))


def screenshot() -> str:
    return "iVBORw0KGgo="


async def main() -> None:
    print("The history, repaired")
    repaired = openai_chat.repair(STORED)
    show(repaired)
    print("Once more changes nothing:", openai_chat.repair(repaired) == repaired)

    results = await run_batch(
        [
            ToolCall("toolu_1", "read_log", {"lines": 3}),
            ToolCall("toolu_2", "read_log", {"lines": 9000}),
            ToolCall("toolu_3", "screenshot"),
        ],
        [read_log, screenshot],
    )
    message = anthropic.render_results(
        results,
        content=screenshot_as_image,
        max_chars_total=150,
        spill=keep_whole,
    )
    print("The results, within 150 characters")
    for block in message["content"]:
        print(block["tool_use_id"], block["content"])
    print("Stored:", list(whole))


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
