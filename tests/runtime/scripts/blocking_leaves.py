"""An agent without an event loop that ends with tools still at work, and nothing closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import anyio

from anyio_toolbatch import CallStarted, Tool, ToolCall, run_command
from anyio_toolbatch.blocking import BlockingToolRunner

how, loop = sys.argv[1:]
begun = threading.Semaphore(0)


def stuck() -> None:
    begun.release()
    threading.Event().wait()


async def sleeping() -> None:
    begun.release()
    await anyio.sleep_forever()


async def deaf() -> None:
    begun.release()
    while True:
        try:
            await anyio.sleep_forever()
        except BaseException:
            pass


async def blocks_the_loop() -> None:
    begun.release()
    time.sleep(60)


def chatty() -> None:
    begun.release()
    while True:
        print("x" * 1000, flush=True)


async def command() -> Any:
    begun.release()
    # Deaf to the request to terminate: only the kill ends it.
    return await run_command(["sh", "-c", "trap '' TERM; sleep 60"], kill_grace=60)


def children_of_this() -> list[str]:
    command = ["pgrep", "-P", str(os.getpid()), "sh"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


tools = [Tool(f) for f in (stuck, sleeping, deaf, blocks_the_loop, chatty, command)]
options: dict[str, Any] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}[loop]
runner = BlockingToolRunner(tools, **options)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(str(i), name) for i, name in enumerate(names)]


def when_begun(count: int, function: Any) -> None:
    def wait() -> None:
        for _ in range(count):
            begun.acquire()
        function()

    threading.Thread(target=wait, daemon=True).start()


def press_control_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def detach_all(*names: str) -> None:
    when_begun(len(names), runner.interrupt)
    for result in runner.run(calls(*names)):
        print(result.call.name, result.status.value)


if how == "main returns":
    detach_all("stuck", "sleeping")
elif how == "sys.exit":
    detach_all("stuck", "sleeping")
    sys.exit(3)
elif how == "an error":
    try:
        with runner.open_batch(calls("stuck", "sleeping")):
            raise LookupError
    except LookupError:
        pass
elif how == "ctrl-c":
    when_begun(3, press_control_c)
    try:
        with runner.open_batch(calls("stuck", "sleeping")) as batch:
            begun.release()
            batch.wait()
    except KeyboardInterrupt:
        for result in batch.results:
            print(result.call.name, result.status.value)
elif how == "deaf coroutine":
    detach_all("stuck", "deaf")
elif how == "blocked loop":
    when_begun(1, press_control_c)
    try:
        runner.run(calls("blocks_the_loop"))
    except KeyboardInterrupt:
        print("broken")
elif how == "chatty":
    when_begun(1, runner.interrupt)
    runner.run(calls("chatty"))
elif how == "open batch":
    block = runner.open_batch(calls("stuck", "sleeping"))
    block.__enter__()
    begun.acquire()
    begun.acquire()
elif how == "agent in a daemon":

    def turns() -> None:
        while True:
            runner.run(calls("stuck", "sleeping"))

    threading.Thread(target=turns, daemon=True).start()
    begun.acquire()
    begun.acquire()
elif how == "reader in a daemon":

    def read() -> None:
        with runner.open_batch(calls("stuck", "sleeping")) as batch:
            for _ in batch.events():
                pass

    threading.Thread(target=read, daemon=True).start()
    begun.acquire()
    begun.acquire()
elif how == "never used":
    pass
elif how == "a command":
    with runner.open_batch(calls("command")) as batch:
        for event in batch.events():
            if isinstance(event, CallStarted):
                break
        while not (children := children_of_this()):
            pass
        batch.interrupt()
    print(*children)
else:
    raise AssertionError(how)
print("main is over")
