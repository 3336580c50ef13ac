"""A program whose detached threads are still at something ends in one of four ways."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import sys
import threading
import time
import zlib
from typing import Any

import anyio

from anyio_toolbatch import ToolCall, ToolRunner

what, end, loop = sys.argv[1:]
started = threading.Semaphore(0)
ends = socket.socketpair()


def sleep() -> None:
    time.sleep(1000)


def write() -> None:
    while True:
        print("still here")


def read_a_socket() -> None:
    ends[0].recv(1)


def read_stdin() -> None:
    sys.stdin.readline()


def hash_much() -> None:
    data = bytes(2**26)
    while True:
        hashlib.sha256(data)  # without the interpreter's lock


def compress_much() -> None:
    data = os.urandom(2**20)
    while True:
        zlib.compress(data)  # without it, too


def match_a_pattern() -> None:
    # With it: some ten milliseconds each time. What never lets go of it holds the
    # program's end, whoever has started it.
    while True:
        re.match(r"(a+)+$", "a" * 18 + "b")


def compute() -> None:
    while True:
        pass


TOOLS: dict[str, Any] = {
    "sleep": sleep,
    "print": write,
    "socket": read_a_socket,
    "stdin": read_stdin,
    "hash": hash_much,
    "compress": compress_much,
    "match": match_a_pattern,
    "compute": compute,
}
COUNT = 4


def tool() -> None:
    started.release()
    TOOLS[what]()


async def main() -> None:
    runner = ToolRunner([tool])
    async with runner.open_batch([ToolCall(str(n), "tool") for n in range(COUNT)]) as batch:
        for _ in range(COUNT):
            started.acquire()  # holding the loop: nothing else is to be done
        batch.interrupt()
    assert [result.detached for result in batch.results] == [True] * COUNT
    print("over", time.monotonic(), file=sys.stderr)
    if end == "an exception":
        raise LookupError("as was asked for")
    if end == "sys.exit":
        sys.exit(3)
    if end == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep(1000)


options: dict[str, Any] = {"use_uvloop": True} if loop == "uvloop" else {}
anyio.run(main, backend="trio" if loop == "trio" else "asyncio", backend_options=options)
