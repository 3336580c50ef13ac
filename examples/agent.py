"""
An agent, to be copied: python examples/agent.py [asyncio|trio]

Try "search Bern" and "note buy milk". Calls start while the model still speaks. Type
while it works, and what it has not begun is dropped for what you say. Ctrl-C stops what
runs; with nothing to stop, it ends the program. Before a note is written you are asked.
Whatever happens, each call in the history has its result.

`script` is in the place of a model and its tools; the rest is meant to stay.
"""

import signal
import sys

import anyio
import script

from anyio_toolbatch import CallStarted, Tool, ToolBatch, ToolCall, ToolRunner, open_batch
from anyio_toolbatch.formats import openai_chat

READ_LINE = Tool(sys.stdin.readline, name="readline")
"""In a thread that can be left behind: nothing waits for somebody to press a key."""


class Agent:
    def __init__(self, model, tools):
        self.model = model
        self.history = []
        self.is_busy = False
        self.said = []  # what the user has said meanwhile
        self.batch: ToolBatch | None = None  # the one that is open
        self.question: Question | None = None
        self.asking = anyio.Lock()  # one question at a time
        self.runner = ToolRunner(tools, approve=self.approve, observers=[self.show])

    async def turn(self, text: str) -> None:
        """Work on what the user says, until the model asks for nothing more."""
        self.said.append(text)
        self.is_busy = True
        while self.said:
            self.history += [{"role": "user", "content": text} for text in self.said]
            self.said.clear()
            try:
                while await self.step() and not self.said:
                    pass
            except OSError as error:  # the model's server
                print(f"! {error}")
        self.is_busy = False

    async def step(self) -> bool:
        """One message of the model, with the results of its calls; is there more to do?"""
        stream = openai_chat.CallStream()
        try:
            async with self.runner.open_batch() as self.batch:
                try:
                    async for chunk in self.model(self.history):
                        for call in stream.feed(chunk):
                            self.batch.submit(call)
                        if self.batch.reason:  # stopped while it spoke
                            break
                finally:  # what was cut off is answered, never run
                    for call in stream.close():
                        self.batch.submit(call)
        finally:  # also if the model has failed: the history stays valid
            batch, self.batch = self.batch, None
            self.question = None  # of a call that was cut, its task may not know it yet
            if message := stream.message:  # it may have said nothing
                self.history.append(message)
                self.history += openai_chat.render_results(batch.results)
        print(f"model: {(message and message['content']) or '...'}")
        for result in batch.results:
            print(f"  {result.call.name}: {result.text}")
        return bool(batch.calls) and not batch.interrupted

    async def approve(self, call: ToolCall) -> bool | str:
        if call.name not in script.NEEDS_APPROVAL:
            return True
        async with self.asking:
            print(f"? {call.name} {dict(call.arguments)} (yes, or why not)")
            self.question = question = Question()
            await question.given.wait()
            if self.question is question:
                self.question = None
        return question.text == "yes" or question.text

    def hear(self, text: str) -> bool:
        """What the user has typed; False if nobody was waiting for it."""
        if self.question is not None:
            self.question.give(text)
        elif self.is_busy:
            self.said.append(text)
            if self.batch is not None:
                self.batch.supersede("the user has said something new")
        else:
            return False
        return True

    def show(self, event: object) -> None:
        if isinstance(event, CallStarted):
            print(f"> {event.call.name}")

    def stop(self) -> bool:
        """Ctrl-C; False if there is nothing to stop."""
        return bool(self.runner.interrupt("the user pressed Ctrl-C"))


class Question:
    def __init__(self):
        self.given, self.text = anyio.Event(), ""

    def give(self, text: str) -> None:
        self.text = text
        self.given.set()


async def lines():
    while True:
        async with open_batch([ToolCall("", "readline")], [READ_LINE]) as batch:
            pass
        if not (line := batch.results[0].value):
            return  # the end of the input
        yield line.strip()


async def watch_keyboard(agent: Agent, program: anyio.CancelScope, *, task_status) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if not agent.stop():
                program.cancel()


async def main() -> None:
    async with anyio.create_task_group() as group:
        agent = Agent(script.model, script.TOOLS)
        await group.start(watch_keyboard, agent, group.cancel_scope)
        print("you:")
        async with anyio.create_task_group() as turns:
            async for line in lines():
                if not agent.hear(line):
                    turns.start_soon(agent.turn, line)
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
