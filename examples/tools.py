"""
Tools that do real work, for the turn in ``turn.json``; nothing but anyio is needed.

    anyio-toolbatch run examples/turn.json --tools examples/tools.py --interrupt-after 2

Every public function here is a tool. Async ones run on the event loop, the
others each in a worker thread.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream

from anyio_toolbatch import from_thread, on_cancel

_HERE = Path(__file__).parent


async def fetch_weather(city: str) -> str:
    """Ask a small HTTP server, which this very tool starts on the loopback interface."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, _answer)
        port = listener.extra(SocketAttribute.local_port)
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(f"GET /weather/{city} HTTP/1.0\r\n\r\n".encode())
            response = b"".join([chunk async for chunk in client])
        group.cancel_scope.cancel()
    head, _, body = response.decode().partition("\r\n\r\n")
    return body if " 200 " in head.splitlines()[0] else f"the server said: {head}"


async def _answer(stream: SocketStream) -> None:
    async with stream:
        request = (await stream.receive()).decode()
        await anyio.sleep(0.3)  # a busy server
        city = request.split()[1].rpartition("/")[2]
        await stream.send(f"HTTP/1.0 200 OK\r\n\r\n{city}: 18 °C, light rain".encode())


def search_files(pattern: str) -> list[str]:
    """Search the files of this folder line by line; looks whether it is to stop."""
    found = []
    for path in sorted(_HERE.glob("*.*")):
        from_thread.check_cancelled()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.name}:{number}: {line.strip()}")
    return found


def query_sales(sql: str) -> list[tuple[object, ...]]:
    """Query a little SQLite database; however long that takes, it can be stopped."""
    # Threads: `interrupt` is the one method that another thread may call.
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        connection.execute("CREATE TABLE sales (city TEXT, year INT, amount INT)")
        connection.executemany(
            "INSERT INTO sales VALUES (?, ?, ?)",
            [("Oslo", 2023, 120), ("Oslo", 2024, 180), ("Lima", 2024, 90)],
        )
        # A blocking call cannot be stopped from outside. This is how it helps.
        with on_cancel(connection.interrupt):
            return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def run_python(code: str) -> str:
    """Run a program of its own; it is killed when the call is cut."""
    done = await anyio.run_process([sys.executable, "-c", code])
    return done.stdout.decode()


def wait_for_fax(minutes: float) -> str:
    """Be deaf: sleep in a way that nothing can stop, as many libraries do."""
    time.sleep(minutes * 60)
    return "no fax has come"
