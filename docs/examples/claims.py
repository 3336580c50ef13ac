"""
An agent that edits files.

Each tool says what a call of it reads and writes; the runner sees to the rest.
The agent's turns are written down here, in place of a model's answers.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import anyio

from anyio_toolbatch import CallSettled, CallStarted, ToolCall, ToolRunner, tool

FOLDER = tempfile.TemporaryDirectory()
ROOT = Path(FOLDER.name)


# -- what a call uses --------------------------------------------------------


def file(path: str, **_: object) -> Path:
    return ROOT / path


def folder(**_: object) -> Path:
    return ROOT


# -- the tools ---------------------------------------------------------------


@tool(writes=file)
async def edit(path: str, old: str, new: str) -> str:
    target = anyio.Path(ROOT, path)
    text = await target.read_text("utf-8")
    if old not in text:
        msg = f"{path} has no {old!r}"
        raise ValueError(msg)
    await anyio.sleep(0.1)  # an editor that takes its time
    await target.write_text(text.replace(old, new), "utf-8")
    return f"{path}: {old} -> {new}"


@tool(reads=folder)
def review() -> str:
    return "; ".join(f"{p.name} says {p.read_text('utf-8')}" for p in sorted(ROOT.iterdir()))


@tool(exclusive=True)
async def run_tests() -> str:
    return f"tested with {(ROOT / 'app.txt').read_text('utf-8')}"


formatter_ends = threading.Event()


@tool(writes=file)
def reformat(path: str) -> str:
    formatter_ends.wait()  # a program that hangs; nothing here can stop it
    (ROOT / path).write_text("formatted", "utf-8")
    return f"{path}: formatted"


# -- the agent ---------------------------------------------------------------


async def turn(runner: ToolRunner, *calls: tuple[str, dict[str, str]]) -> None:
    at_once: list[int] = []
    async with runner.open_batch(
        [ToolCall(f"c{index}", *call) for index, call in enumerate(calls)]
    ) as batch:
        async for event in batch.events():
            if isinstance(event, CallSettled):
                break
            if isinstance(event, CallStarted):
                at_once.append(event.index)
    print("  started at once:", *sorted(at_once))
    for result in batch.results:
        print(f"  {result.index} {result.call.name}: {result.text}")


async def main() -> None:
    for name in ("app.txt", "notes.txt"):
        (ROOT / name).write_text("one", "utf-8")
    tools = [edit, review, run_tests, reformat]
    async with ToolRunner(tools, cleanup_grace=0.1) as runner:
        print("claims")
        await turn(
            runner,
            ("edit", {"path": "app.txt", "old": "one", "new": "two"}),
            ("edit", {"path": "app.txt", "old": "two", "new": "three"}),
            ("edit", {"path": "notes.txt", "old": "one", "new": "ONE"}),
            ("review", {}),
        )
        print("a barrier")
        await turn(
            runner,
            ("edit", {"path": "app.txt", "old": "three", "new": "four"}),
            ("run_tests", {}),
            ("edit", {"path": "app.txt", "old": "four", "new": "five"}),
        )
        print("a detached writer")
        async with runner.open_batch(
            [ToolCall("c0", "reformat", {"path": "app.txt"})]
        ) as batch:
            async for event in batch.events():
                if isinstance(event, CallStarted):
                    batch.interrupt("the user pressed stop")
        print(f"  0 reformat: {batch.results[0].text}")
        await turn(
            runner,
            ("edit", {"path": "app.txt", "old": "five", "new": "six"}),
            ("edit", {"path": "notes.txt", "old": "ONE", "new": "TWO"}),
        )
        formatter_ends.set()
        await runner.wait_detached()
        await turn(runner, ("edit", {"path": "app.txt", "old": "formatted", "new": "six"}))


if __name__ == "__main__":
    with FOLDER:
        anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
