"""§3.1, §3.2: closing from elsewhere; which awaitables are awaited."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import Status, Tool, ToolCall, ToolRunner, run_batch
from anyio_toolbatch._runtime import runner as runner_module

LIVENESS = 20.0


async def test_close_from_a_thread_during_an_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """§3.1: a batch that is being opened while its runner is closed is cut, too."""
    outer_call = runner_module._outer_call

    def close_now() -> Any:
        # The check for a closed runner is behind us, the batch not yet listed.
        thread = threading.Thread(target=anyio.run, args=(runner.aclose,))
        thread.start()
        thread.join(LIVENESS)
        assert not thread.is_alive()
        return outer_call()

    runner = ToolRunner({"tool": anyio.sleep_forever})
    monkeypatch.setattr(runner_module, "_outer_call", close_now)
    with anyio.fail_after(LIVENESS):
        results = await runner.run([ToolCall("0", "tool")])
    reason = results[0].reason
    assert (results[0].status, results[0].started) == (Status.INTERRUPTED, False)
    assert reason is not None
    assert reason.kind == "runner_closed"


@pytest.mark.parametrize(
    ("kind", "carrier"),
    [
        ("async function", "loop"),
        ("async function", "thread"),
        ("generator", "loop"),
        ("generator", "thread"),
    ],
)
async def test_only_what_plain_functions_return_is_awaited(kind: str, carrier: Any) -> None:
    """P9, §3.2: a coroutine object that any other tool gives is its value."""

    async def never_run() -> None: ...

    async def function() -> Any:
        return never_run()

    def generator() -> Iterator[Any]:
        yield never_run()

    func = function if kind == "async function" else generator
    results = await run_batch(
        [ToolCall("0", "tool")], [Tool(func, name="tool", runs_in=carrier)]
    )
    value = results[0].value
    assert inspect.iscoroutine(value)
    value.close()
