"""
A person is asked before a tool runs: at a terminal, then in a chat window.

Type an answer to each of the three questions at the terminal. The chat window is
played by this program itself.
"""

from __future__ import annotations

import sys

import anyio

from anyio_toolbatch import ToolCall, ToolResult, ToolRunner


async def delete_files(pattern: str) -> str:
    return f"deleted {pattern}"


def show(results: list[ToolResult]) -> None:
    for result in results:
        print(f"  {result.index}: {result.text}")


CALLS = [
    ToolCall(f"c{number}", "delete_files", {"pattern": pattern})
    for number, pattern in enumerate(["*.tmp", "*.log", "*"])
]


# -- at a terminal -----------------------------------------------------------


def ask_at_terminal(call: ToolCall) -> bool | str:
    print(f"delete {call.arguments['pattern']}? y, n, or why not:")
    answer = input().strip()
    if answer in {"y", "n"}:
        return answer == "y"
    return answer or "the user gave no answer"


async def at_a_terminal() -> None:
    async with ToolRunner([delete_files], approve=ask_at_terminal) as runner:
        show(await runner.run(CALLS))


# -- in a chat window --------------------------------------------------------


class Window:
    """Questions that are open, each with an event that its answer sets."""

    def __init__(self) -> None:
        self.answers: dict[str, bool | str] = {}
        self.open: dict[str, anyio.Event] = {}

    async def ask(self, call: ToolCall) -> bool | str:
        self.open[call.id] = answered = anyio.Event()
        try:
            await answered.wait()
            return self.answers[call.id]
        finally:
            del self.open[call.id]  # also when nobody wants an answer any more

    def click(self, call_id: str, answer: bool | str) -> None:
        self.answers[call_id] = answer
        self.open[call_id].set()


async def in_a_window() -> None:
    window = Window()
    async with ToolRunner([delete_files], approve=window.ask, approval_timeout=0.6) as runner:
        print("the clock of the batch stands still while people think")
        async with runner.open_batch(CALLS, timeout=0.1) as batch:
            await anyio.sleep(0.2)
            window.click("c1", "logs are kept for a year")
            window.click("c0", True)  # nobody clicks on c2
        show(batch.results)

        print("the user presses stop")
        async with runner.open_batch(CALLS) as batch:
            await anyio.sleep(0.1)
            print("  open questions:", *window.open)
            batch.interrupt("enough of this")
        await anyio.sleep(0.1)
        print("  open questions:", *window.open or ["none"])
        show(batch.results)


async def main() -> None:
    await at_a_terminal()
    await in_a_window()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
