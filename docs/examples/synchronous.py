"""
An agent without an event loop: turns, a stop button, Ctrl-C, and calls that stream in.

The user is played by threads of this program.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

from anyio_toolbatch import CallSettled, ToolCall, ToolResult, current_call
from anyio_toolbatch.blocking import BlockingToolRunner

# -- the tools ---------------------------------------------------------------

deep_in_thought = threading.Event()


def add(a: int, b: int) -> int:
    return a + b


def think() -> str:
    """Never comes to an end by itself."""
    deep_in_thought.set()
    current_call().cancelled.wait()
    return "42"


# -- the agent ---------------------------------------------------------------


def show(results: list[ToolResult]) -> None:
    for result in results:
        print(f"  {result.call.name}: {result.text}")


CALLS = [ToolCall("c0", "add", {"a": 1, "b": 2}), ToolCall("c1", "think")]


def a_turn(runner: BlockingToolRunner) -> None:
    print("a turn, and a stop button")
    when_deep_in_thought(lambda: runner.interrupt("let's move on"))
    show(runner.run(CALLS))


def a_turn_and_control_c(runner: BlockingToolRunner) -> None:
    print("a turn, and Ctrl-C")
    try:
        with runner.open_batch(CALLS) as batch:
            when_deep_in_thought(_thread.interrupt_main)  # as if somebody pressed it
            batch.wait()
    except KeyboardInterrupt:
        print("  stopped")
    show(batch.results)


def a_stream(runner: BlockingToolRunner) -> None:
    print("calls that come one by one")
    with runner.open_batch() as batch:
        for n in range(3):  # while the model speaks
            batch.submit(ToolCall(f"c{n}", "add", {"a": n, "b": n})).wait()
        batch.seal()
        for event in batch.events():
            if isinstance(event, CallSettled):
                print(f"  {event.index}: {event.result.text}")


# -- the user ----------------------------------------------------------------


def when_deep_in_thought(act: Callable[[], object]) -> None:
    def user() -> None:
        deep_in_thought.wait()
        deep_in_thought.clear()
        act()

    threading.Thread(target=user).start()


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "asyncio"
    # One call after the other, so that there is a result to keep at each stop.
    with BlockingToolRunner([add, think], max_threads=1, backend=backend) as runner:
        a_turn(runner)
        a_turn_and_control_c(runner)
        a_stream(runner)


if __name__ == "__main__":
    main()
