"""P7: with the answer out, the process leaves, whatever tools have left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="signals are sent in another way there"
)

STUBBORN = {
    "a coroutine that refuses to end": """
import anyio
async def tool():
    while True:
        try:
            await anyio.sleep(3600)
        except BaseException:
            pass
""",
    "a coroutine that blocks the loop when it is cancelled": """
import time, anyio
async def tool():
    try:
        await anyio.sleep(3600)
    finally:
        time.sleep(60)
""",
    "a worker thread of anyio's": """
import time, anyio
async def tool():
    await anyio.to_thread.run_sync(time.sleep, 60)
""",
    "a thread that Python joins at its end": """
import threading, time, anyio
async def tool():
    threading.Thread(target=time.sleep, args=[60]).start()
    await anyio.sleep(3600)
""",
    "a blocking call": """
import time
def tool():
    time.sleep(60)
""",
    "a thread that prints for ever": """
import time
def tool():
    while True:
        print("noise", flush=True)
        time.sleep(0.01)
""",
    "a thread that reads standard input": """
import sys
def tool():
    sys.stdin.read()
""",
}


def check_that_it_leaves(desk: Any, tools: str, names: list[str], *options: str) -> None:
    started = time.monotonic()
    turn = desk.openai(*[(name, {}) for name in names])
    command = desk.start(turn, tools, *options, "--grace", "0", stdin=subprocess.PIPE)
    for name in names:
        command.wait_for(name, "started")
    command.send(signal.SIGINT)
    code, out, err = command.end()
    assert time.monotonic() - started < 15, "it would be a minute, or for ever"
    assert code == 130
    assert all("interrupted" in message["content"] for message in json.loads(out))
    assert "Traceback" not in err
    assert f"0 of {len(names)} calls completed" in err


@pytest.mark.parametrize("what", STUBBORN)
def test_the_process_leaves(desk: Any, what: str) -> None:
    """Within about a second of the answer, with its status, and without a traceback."""
    check_that_it_leaves(desk, STUBBORN[what], ["tool"])


def test_the_process_leaves_on_every_backend(desk: Any, backend: str) -> None:
    """All that a tool can do against it, at once."""
    tools = [code.replace("tool", f"tool_{i}") for i, code in enumerate(STUBBORN.values())]
    names = [f"tool_{i}" for i in range(len(tools))]
    check_that_it_leaves(desk, "".join(tools), names, "--backend", backend)


def test_a_tool_that_cancels_everything_loses_no_result(desk: Any) -> None:
    """A tool that cancels the loop's every task cannot take the answer with it."""
    tools = """
import asyncio
async def vandal():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(3600)
def greet():
    return "hello"
"""
    code, out, err = desk.run(desk.openai(("vandal", {}), ("greet", {})), tools)
    assert code == 1
    assert len(json.loads(out)) == 2
    assert "Traceback" not in err


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_interrupted_tool_can_clean_up(desk: Any, backend: str) -> None:
    """An async tool's ordinary ``finally: await …`` completes before the process ends."""
    tools = """
import anyio
from pathlib import Path
async def careful():
    try:
        await anyio.sleep(3600)
    finally:
        await anyio.sleep(0.1)
        Path("closed").touch()
"""
    command = desk.start(desk.openai(("careful", {})), tools, "--backend", backend)
    command.wait_for("started")
    command.send(signal.SIGINT)
    _, _, err = command.end()
    assert (desk.folder / "closed").exists()
    assert "has stopped since" in err
