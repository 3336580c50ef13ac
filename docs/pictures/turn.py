"""
Runs two turns, and makes of them what the pages about seeing a batch show.

    python docs/pictures/turn.py FOLDER

Writes FOLDER/live-view.svg, the live view just before and just after an interrupt, and
FOLDER/timeline.json, which `perfetto.py` opens. The tools only sleep; all else is real.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path

import anyio
from rich.console import Console

from anyio_toolbatch import Tool, ToolCall, ToolRunner, report_progress, tool
from anyio_toolbatch.observe.live import LiveView
from anyio_toolbatch.observe.trace import TraceRecorder

WIDTH = 92


async def fetch_weather(city: str) -> str:
    await anyio.sleep(0.4)
    return "18 °C"


@tool(reads=lambda path: path)
def read_file(path: str) -> str:
    time.sleep(0.5)
    return "…"


@tool(writes=lambda path: path)
def edit(path: str) -> None:
    time.sleep(0.7)


def build_index(folder: str) -> None:
    for done in range(25):
        report_progress(done, 25, "files")
        time.sleep(0.1)


async def research(topic: str) -> None:
    await runner.run([call("fetch_weather", city=topic), call("read_file", path="notes.md")])


async def deploy() -> None:
    await anyio.sleep(0.2)


async def approve(request: ToolCall) -> bool:
    if request.name == "deploy":
        await anyio.sleep(0.35 if request.id == "quick" else 30)
    return True


def call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(f"call_{name}", name, arguments)


recorder = TraceRecorder()
view = LiveView(console=Console(file=io.StringIO(), force_terminal=True, width=WIDTH))
runner = ToolRunner(
    [fetch_weather, read_file, edit, Tool(build_index), research, deploy],
    observers=[recorder, view],
    approve=approve,
)


async def main(folder: Path) -> None:
    out = Console(file=io.StringIO(), record=True, width=WIDTH, height=24, force_terminal=True)
    async with view:
        await runner.run(
            [
                call("fetch_weather", city="Oslo"),
                call("read_file", path="app.py"),
                call("edit", path="app.py"),
                ToolCall("quick", "deploy"),
                call("research", topic="Lima"),
            ]
        )
        async with runner.open_batch(
            [
                call("fetch_weather", city="Oslo"),
                call("build_index", folder="src"),
                call("edit", path="app.py"),
                call("edit", path="app.py"),
                call("read_file", path="app.py"),
                call("research", topic="Lima"),
                call("deploy"),
            ]
        ) as batch:
            await anyio.sleep(0.45)
            out.print(view)
            await anyio.sleep(0.5)
            threading.Thread(target=batch.interrupt).start()
        await anyio.sleep(0.15)
        out.print("\n[dim]… and after an interrupt, with the turn back:[/dim]\n")
        out.print(view)
        await runner.run([call("fetch_weather", city="Rome"), call("edit", path="app.py")])
        await runner.wait_detached()
    recorder.save(folder / "timeline.json")
    svg = out.export_svg(title="anyio-toolbatch", unique_id="live-view")
    # The pages are built and read without network.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    (folder / "live-view.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
