"""
What a batch tells: to a reader of its own, and to the observers of its runner.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from anyio_toolbatch import (
    BatchInterrupted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    ToolBatch,
    ToolCall,
    ToolRunner,
    report_progress,
)

# -- the tools


def download(url: str) -> str:
    report_progress(1, 2, "half of it")
    return f"{url}: 2 pages"


def translate(text: str) -> object:
    """A generator: each item is an event, the last one is the value."""
    words: list[str] = []
    for word in text.split():
        words.append(word.upper())
        yield " ".join(words)


# -- a reader: what the user sees of this batch


async def show(batch: ToolBatch) -> None:
    async for event in batch.events():
        match event:
            case CallStarted(call=call):
                print(f"{call.name} ...")
            case CallProgress(call=call, progress=progress, total=total, message=message):
                print(f"{call.name} {progress} of {total}: {message}")
            case CallOutput(call=call, output=output):
                print(f"{call.name} > {output}")
            case CallSettled(result=result):
                print(f"{result.call.name} {result.status.value}")
            case BatchInterrupted(reason=reason):
                print(f"interrupted: {reason.message}")


# -- an observer: what is to outlive the program, of all batches


class Journal:
    """Writes each result down as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallSettled):
            entry = {"batch": event.batch_id, "id": event.call.id, "text": event.result.text}
            with self.path.open("a", encoding="utf-8") as file:
                print(json.dumps(entry), file=file)


async def main() -> None:
    journal = Journal(Path("journal.jsonl"))
    async with ToolRunner([download, translate], observers=[journal]) as runner:
        for call in (
            ToolCall("c1", "download", {"url": "/news"}),
            ToolCall("c2", "translate", {"text": "good morning"}),
        ):
            async with runner.open_batch([call]) as batch, anyio.create_task_group() as group:
                group.start_soon(show, batch)

    ids = [json.loads(line)["id"] for line in journal.path.read_text("utf-8").splitlines()]
    print("in the journal:", *ids)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
