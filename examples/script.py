"""
What `agent.py` has in the place of a model, and tools for it to call.

The "model" streams chunks as a Chat Completions server does, and like one it refuses a
history in which a call has no result, or a result no call.
"""

import json
import time
from collections.abc import AsyncIterator, Iterator

import anyio

NOTES: list[str] = []
NEEDS_APPROVAL = {"write_note"}


async def weather(city: str) -> str:
    await anyio.sleep(0.1)
    return f"{city}: rain"


def search(text: str) -> str:
    """Blocks for a minute, and listens to nobody."""
    time.sleep(60)
    return f"nothing about {text}"


def write_note(text: str) -> str:
    NOTES.append(text)
    return f"written ({len(NOTES)})"


TOOLS = [weather, search, write_note]


async def model(history: list[dict]) -> AsyncIterator[dict]:
    """Stream an answer to the history."""
    check(history)
    last = history[-1]
    if last["role"] == "tool":
        answer = "Done.", []
    elif last["content"].startswith("search "):
        what = last["content"].removeprefix("search ")
        answer = (
            "I look in two places.",
            [("weather", {"city": what}), ("search", {"text": what})],
        )
    elif last["content"].startswith("note "):
        answer = "I write it down.", [("write_note", {"text": last["content"][5:]})]
    else:
        answer = f"You said: {last['content']}", []
    if last["content"] == "break":
        answer = "I", [("search", {"text": "half a call"})]
    for delta in deltas(*answer, turn=len(history)):
        await anyio.sleep(0.01)
        if last["content"] == "break" and "tool_calls" in delta and "id" not in str(delta):
            raise ConnectionResetError("the model's server has hung up")
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    reason = "tool_calls" if answer[1] else "stop"
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def deltas(text: str, calls: list[tuple[str, dict]], turn: int) -> Iterator[dict]:
    for word in text.split(" "):
        yield {"content": f"{word} "}
    for index, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        yield {
            "tool_calls": [
                {"index": index, "id": f"call_{turn}_{index}", "function": function}
            ]
        }
        written = json.dumps(arguments)
        for piece in (written[:5], written[5:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def check(history: list[dict]) -> None:
    """Refuse what a provider refuses."""
    asked: list[str] = []
    for message in history:
        if message["role"] == "tool":
            asked.remove(message["tool_call_id"])
            continue
        if asked:
            raise ValueError(f"400: calls without a result: {asked}")
        asked = [call["id"] for call in message.get("tool_calls", ())]
    if asked:
        raise ValueError(f"400: calls without a result: {asked}")
