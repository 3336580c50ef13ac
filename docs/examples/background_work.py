"""
A voice agent whose caller talks on: the booking goes on, and is told when it is done.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from anyio_toolbatch import LateResult, Status, ToolCall, ToolResult, ToolRunner, tool

restaurant_answers = anyio.Semaphore(0)


@tool(on_interrupt="keep", timeout=300)
async def book_table(guests: int) -> str:
    await restaurant_answers.acquire()
    return f"booked: a table for {guests}, reference 77"


@tool
async def read_menu() -> str:
    await anyio.sleep_forever()
    return "a long menu"


@tool
def opening_hours() -> str:
    return "noon to midnight"


def result_of(late: LateResult) -> ToolResult:
    """What came late, as a result: it has a text for the model."""
    status = Status.COMPLETED if late.error is None else Status.FAILED
    return ToolResult(late.call, late.index, status, value=late.value, error=late.error)


class VoiceAgent:
    """For a provider that wants each call answered once, now: the end is a message."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []

    def answer(self, results: list[ToolResult]) -> None:
        for result in results:
            self.say({"role": "tool", "tool_call_id": result.call.id, "content": result.text})

    def on_late(self, late: LateResult) -> None:
        content = f"[{late.call.name} ({late.call.id}) has ended: {result_of(late).text}]"
        self.say({"role": "user", "content": content})

    def say(self, message: dict[str, Any]) -> None:
        self.history.append(message)
        print(*(f"{key}: {value}" for key, value in message.items()), sep="\n  ")


class AsyncCalls:
    """For a provider that takes a later output under the same id: one final output each."""

    AIMED_AT_THE_CALL = frozenset({"call_cancelled", "call_timeout"})

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: set[tuple[str, int]] = set()  # by batch and place; ids may be used twice

    def answer(self, batch_id: str, results: list[ToolResult]) -> None:
        for result in results:
            if self.goes_on(result):
                self.open.add((batch_id, result.index))
                self.say(result, "in_progress")
            else:
                finished = result.status in {Status.COMPLETED, Status.FAILED}
                self.say(result, "completed" if finished else "incomplete")

    def goes_on(self, result: ToolResult) -> bool:
        """Tell whether the call is kept, and was declared to the provider as asynchronous."""
        return (
            result.detached
            and result.call.name == "book_table"
            and result.reason is not None
            and result.reason.kind not in self.AIMED_AT_THE_CALL
        )

    def on_late(self, late: LateResult) -> None:
        key = (late.batch_id, late.index)
        if key in self.open:  # else it has had its final output
            self.open.remove(key)
            self.say(result_of(late), "completed")

    def say(self, result: ToolResult, status: str) -> None:
        item = {"type": "function_call_output", "call_id": result.call.id}
        item |= {"output": result.text, "status": status}
        self.items.append(item)
        print(*(f"{key}: {value}" for key, value in item.items()), sep="\n  ")


CALLS = [ToolCall("call_1", "book_table", {"guests": 4}), ToolCall("call_2", "read_menu")]


async def main() -> None:
    agent, async_calls = VoiceAgent(), AsyncCalls()
    for interface in (agent, async_calls):
        print("--", type(interface).__name__)
        tools = [book_table, read_menu, opening_hours]
        async with ToolRunner(tools, on_late=interface.on_late, close_timeout=10) as runner:
            async with runner.open_batch(CALLS) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt("the caller spoke")
            if interface is agent:
                agent.answer(batch.results)
                agent.answer(await runner.run([ToolCall("call_3", "opening_hours")]))
            else:
                async_calls.answer(batch.id, batch.results)
            restaurant_answers.release()
            await runner.wait_detached()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
