"""
Blocking calls of many kinds, each made so that it stops when its call is cut.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import queue
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio

from anyio_toolbatch import (
    ToolCall,
    ToolRunner,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
)

# -- what unblocks, and what the blocking call makes of it ---------------------


@contextlib.contextmanager
def unblocked_by(stop: Callable[[], object]) -> Iterator[None]:
    """Have `stop` called when the call is cut; what is raised then is its doing."""
    with on_cancel(stop):
        try:
            yield
        except Exception:
            from_thread.check_cancelled()  # raises, if the call was cut
            raise


def hang_up(sock: socket.socket) -> None:
    """Make whoever reads from the socket, or writes to it, return at once."""
    with contextlib.suppress(OSError):  # closed meanwhile
        # The plain method: the one of a TLS socket would take its state away.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


# -- databases -----------------------------------------------------------------


def query(path: str, sql: str) -> list[Any]:
    # The callback runs in another thread, which sqlite3 must be told.
    connection = sqlite3.connect(path, check_same_thread=False)
    with contextlib.closing(connection), unblocked_by(connection.interrupt):
        # For a cut that comes before the statement has begun.
        connection.set_progress_handler(current_call().cancelled.is_set, 100_000)
        return connection.execute(sql).fetchall()


# -- the network ---------------------------------------------------------------


def receive(host: str, port: int) -> str:
    # Looking up the name can't be stopped.
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as sock, unblocked_by(lambda: hang_up(sock)):
        sock.settimeout(60)
        sock.connect(address)
        received = sock.recv(1000)
        if not received:  # the other side has ended it, or we have
            from_thread.check_cancelled()
        return received.decode()


def fetch(url: str) -> str:
    parts = urlsplit(url)
    plain = parts.scheme == "http"
    kind = http.client.HTTPConnection if plain else http.client.HTTPSConnection
    connection = kind(parts.netloc, timeout=60)
    with contextlib.closing(connection):
        connection.connect()  # so that there is a socket
        with unblocked_by(functools.partial(hang_up, connection.sock)):
            connection.request("GET", urlunsplit(("", "", parts.path or "/", parts.query, "")))
            return connection.getresponse().read().decode()


class Stoppable:
    """A connection of http.client whose socket is shut when the call is cut."""

    def connect(self: Any) -> None:
        super().connect()
        on_cancel(functools.partial(hang_up, self.sock))


class StoppableHTTP(Stoppable, http.client.HTTPConnection):
    pass


class StoppableHTTPS(Stoppable, http.client.HTTPSConnection):
    pass


class StoppableHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """What urllib.request opens runs in the tool's thread, which finds the call."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.context = context or ssl.create_default_context()

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(StoppableHTTP, request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(StoppableHTTPS, request, context=self.context)


def download(url: str) -> str:
    opener = urllib.request.build_opener(StoppableHandler)
    try:
        with opener.open(url, timeout=60) as response:
            return response.read().decode()
    except Exception:
        from_thread.check_cancelled()
        raise


# -- programs ------------------------------------------------------------------


def convert(command: list[str]) -> str:
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        on_cancel(process.kill),
    ):
        output, _ = process.communicate()
    if process.returncode:
        from_thread.check_cancelled()
        raise subprocess.CalledProcessError(process.returncode, command)
    return output


# -- waiting -------------------------------------------------------------------


def wait_for_file(path: str) -> str:
    while not Path(path).exists():
        current_call().cancelled.wait(0.2)  # in place of time.sleep(0.2)
        from_thread.check_cancelled()
    return Path(path).read_text()


inbox: queue.Queue[str] = queue.Queue()


def next_message() -> str:
    while True:
        try:
            return inbox.get(timeout=0.2)
        except queue.Empty:
            from_thread.check_cancelled()


door = threading.Condition()
visitors: list[str] = []


def wait_for_visitor() -> str:
    cancelled = current_call().cancelled

    def look_again() -> None:
        with door:
            door.notify_all()

    with door, on_cancel(look_again):
        door.wait_for(lambda: visitors or cancelled.is_set())
        from_thread.check_cancelled()
        return visitors.pop()


async def question(text: str) -> str:
    """Wait for the answer of a person who has gone for lunch."""
    await anyio.sleep_forever()


def ask(text: str) -> str:
    return from_thread.run(question, text)  # stops by itself, on the loop and here


# -- work ----------------------------------------------------------------------


def checksum(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 16):
            from_thread.check_cancelled()
            digest.update(chunk)
    return digest.hexdigest()


def factorise(number: int) -> list[int]:
    factors: list[int] = []
    divisor = 2
    while number > 1:
        from_thread.check_cancelled()
        if number % divisor == 0:
            number //= divisor
            factors.append(divisor)
            keep_partial(list(factors))
        else:
            divisor += 1
    return factors


# -- all of them, stopped ------------------------------------------------------


async def main() -> None:
    server = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
    port = server.getsockname()[1]
    endless = "with recursive n as (select 1 union all select 1 from n) select max(1) from n"
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    calls = [
        ToolCall("0", "query", {"path": ":memory:", "sql": endless}),
        ToolCall("1", "receive", {"host": "127.0.0.1", "port": port}),
        ToolCall("2", "fetch", {"url": f"http://127.0.0.1:{port}/"}),
        ToolCall("3", "download", {"url": f"http://127.0.0.1:{port}/"}),
        ToolCall("4", "convert", {"command": program}),
        ToolCall("5", "wait_for_file", {"path": "no-such-file"}),
        ToolCall("6", "next_message"),
        ToolCall("7", "wait_for_visitor"),
        ToolCall("8", "ask", {"text": "Which colour?"}),
        ToolCall("9", "checksum", {"path": "/dev/zero"}),
        ToolCall("10", "factorise", {"number": 3 * (2**127 - 1)}),
    ]
    tools = [query, receive, fetch, download, convert, wait_for_file, next_message]
    tools += [wait_for_visitor, ask, checksum, factorise]
    late: list[Any] = []
    async with ToolRunner(tools, on_late=late.append) as runner:
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(0.5)
            batch.interrupt()
        print("let go:", *(r.call.name for r in batch.results if r.detached))
        print("really ended:", await runner.wait_detached(10))
        print("late results:", late)
        print(batch.results[10].text)

        # With a grace they end in time, and nothing has to be let go.
        async with runner.open_batch(calls) as batch:
            await anyio.sleep(0.5)
            batch.interrupt(grace=10)
        print({(r.status.value, r.detached, r.effects) for r in batch.results})
    server.close()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
