"""
Three tools and four calls, as a model may ask for them.
"""

import anyio

from anyio_toolbatch import ToolCall, run_batch


async def weather(city: str) -> str:
    await anyio.sleep(0.1)  # a request to some service
    return f"{city}: 18 °C, light rain"


def count_words(text: str) -> int:
    return len(text.split())


def divide(a: float, b: float) -> float:
    return a / b


CALLS = [
    ToolCall("call_1", "weather", {"city": "Oslo"}),
    ToolCall("call_2", "count_words", '{"text": "to be or not to be"}'),
    ToolCall("call_3", "divide", {"a": 1, "b": 0}),
    ToolCall("call_4", "count_words", {"sentence": "no such argument"}),
]


async def main() -> None:
    results = await run_batch(CALLS, [weather, count_words, divide])
    for result in results:
        print(f"{result.call.id}  {result.status.value}\n    {result.text}")


if __name__ == "__main__":
    anyio.run(main)
