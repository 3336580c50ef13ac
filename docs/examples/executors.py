"""
A library that belongs to one thread, and a query that is stopped there.
"""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any, Literal

import anyio

from anyio_toolbatch import CallStarted, ExecutorCarrier, ToolCall, ToolRunner, tool

shop = SimpleNamespace()


def connect() -> None:
    shop.connection = sqlite3.connect(":memory:")  # of use in this thread only


def stop(query: Future[Any]) -> Literal["stopped"]:
    while wait([query], timeout=0.01).not_done:
        shop.connection.interrupt()  # again: it may not have come to its statement yet
    return "stopped"


database = ThreadPoolExecutor(1, initializer=connect)


@tool(runs_in=ExecutorCarrier(database, stop))
def query(sql: str) -> list[tuple[Any, ...]]:
    return shop.connection.execute(sql).fetchall()


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
)


async def main() -> None:
    statements = ["SELECT 6 * 7", ENDLESS, "SELECT 'never asked'"]
    calls = [ToolCall(f"c{n}", "query", {"sql": sql}) for n, sql in enumerate(statements)]
    async with ToolRunner([query]) as runner:
        async with runner.open_batch(calls) as batch:
            async for event in batch.events():
                if isinstance(event, CallStarted) and event.call.id == "c1":
                    batch.interrupt()
        for result in batch.results:
            print(result.call.id, result.text)
        print("all over:", await runner.wait_detached(5))
    database.submit(shop.connection.close)
    database.shutdown()


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
