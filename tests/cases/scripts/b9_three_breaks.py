"""An agent that interrupts its batch on Ctrl-C; a blocking tool runs; three Ctrl-C come."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import anyio

from anyio_toolbatch import ToolCall, open_batch

answers: list[bool] = []


def wait_for_answers(count: int) -> None:
    while len(answers) < count:
        time.sleep(0.001)


returned = threading.Event()


def stuck() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    returned.wait()
    for count in (1, 2):
        wait_for_answers(count)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()


async def main() -> None:
    async with open_batch(tools=[stuck]) as batch:

        def interrupt(*_: object) -> None:
            answers.append(batch.interrupt(f"Ctrl-C {len(answers) + 1}"))

        signal.signal(signal.SIGINT, interrupt)
        batch.submit(ToolCall("1", "stuck"))
    before_return = len(answers)
    returned.set()
    while len(answers) < 3:
        await anyio.sleep(0.001)
    report = {
        "breaks before the return": before_return,
        "answers": answers,
        "results": [
            [r.status.value, r.reason.kind, r.reason.message] if r.reason else [r.status.value]
            for r in batch.results
        ],
    }
    print(json.dumps(report))


anyio.run(main, backend=sys.argv[1])
