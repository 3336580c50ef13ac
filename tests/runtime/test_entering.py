"""§3.4: an observer that wants to is let into each call's own context, at its start."""

from __future__ import annotations

import contextvars
import importlib
import multiprocessing
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    CallContext,
    CallSettled,
    Event,
    Tool,
    ToolCall,
    ToolRunner,
    current_call,
    run_batch,
)
from anyio_toolbatch.testing import GatedTool, PromiseObserver

sys.path.append(str(Path(__file__).resolve().parents[1] / "importable"))
tools: Any = importlib.import_module("process_tools")

LIVENESS = 20.0  # seconds where milliseconds are meant
mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="unset")


class Entering:
    """An observer that leaves a mark in each call's context."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, int]] = []
        self.threads: list[int] = []
        self.settled: list[int] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, CallSettled):
            self.settled.append(event.index)

    def enter_call(self, context: CallContext) -> None:
        # The call can be asked for here as in the tool itself.
        assert current_call().call is context.call
        self.entered.append((context.batch_id, context.index))
        self.threads.append(threading.get_ident())
        mark.set(f"call {context.index}")


async def on_the_loop() -> str:
    before = mark.get()
    await anyio.sleep(0)
    return f"{before}, {mark.get()}"


def in_a_thread() -> str:
    return mark.get()


def awaitable() -> Any:
    return on_the_loop()


def items() -> Iterator[str]:
    yield mark.get()


async def async_items() -> AsyncIterator[str]:
    yield mark.get()


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Any]]:
    spawn = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) as threads, ProcessPoolExecutor(1, spawn) as processes:
        yield {"threads": threads, "processes": processes}


@pytest.mark.parametrize(
    ("func", "runs_in", "value"),
    [
        (on_the_loop, "auto", "call 0, call 0"),
        (on_the_loop, "thread", "call 0, call 0"),
        (in_a_thread, "auto", "call 0"),
        (in_a_thread, "loop", "call 0"),
        (awaitable, "auto", "call 0, call 0"),
        (items, "auto", "call 0"),
        (async_items, "auto", "call 0"),
        (in_a_thread, "threads", "call 0"),
        (tools.add, "process", 1),
        (tools.add, "processes", 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_each_carrier_lets_observers_in_once(
    func: Any, runs_in: str, value: object, pools: dict[str, Any], promises: PromiseObserver
) -> None:
    """What an observer sets in the call's context is there from the tool's first line on."""
    entering = Entering()
    arguments = {"a": 0} if func is tools.add else {}
    tool = Tool(func, name="tool", runs_in=pools.get(runs_in, runs_in))
    runner = ToolRunner([tool], observers=[entering, promises])
    with anyio.fail_after(LIVENESS):
        async with runner.open_batch([ToolCall("1", "tool", arguments)]) as batch:
            pass
    (result,) = batch.results
    assert result.unwrap() == value
    assert entering.entered == [(batch.id, 0)]
    assert entering.settled == [0]
    assert mark.get() == "unset"


async def test_what_does_not_start_is_not_entered() -> None:
    """P4, P6: no call that was not started, for whatever reason, is entered."""
    entering = Entering()
    gated = GatedTool(exclusive=True)
    runner = ToolRunner(
        [gated.tool, in_a_thread],
        observers=[entering],
        approve=lambda call: call.id != "denied",
    )
    calls = [
        ToolCall("0", "gated"),
        ToolCall("waits", "gated"),
        ToolCall("denied", "in_a_thread"),
        ToolCall("unknown", "nobody"),
        ToolCall("broken", "in_a_thread", "{"),
    ]
    with anyio.fail_after(LIVENESS):
        async with runner.open_batch(calls) as batch:
            await gated.wait_started()
            batch.interrupt()
        gated.open()
        assert await runner.wait_detached(LIVENESS)
    assert [index for _, index in entering.entered] == [0]
    assert sorted(entering.settled) == [0, 1, 2, 3, 4]


async def test_a_call_is_entered_where_it_runs() -> None:
    """A blocking call in its worker, an async one on the loop."""
    entering = Entering()
    await run_batch(
        [ToolCall("0", "on_the_loop"), ToolCall("1", "in_a_thread")],
        [on_the_loop, in_a_thread],
        observers=[entering],
    )
    places = dict(zip((i for _, i in entering.entered), entering.threads, strict=True))
    assert places[0] == threading.get_ident() != places[1]


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, StopIteration])
async def test_what_it_raises_is_logged(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """§3.4: the call goes on, and so does the next observer."""

    class Raising:
        def __call__(self, event: Event) -> None: ...

        def enter_call(self, context: CallContext) -> None:
            raise error

    entering = Entering()
    results = await run_batch(
        [ToolCall("0", "on_the_loop"), ToolCall("1", "in_a_thread")],
        [on_the_loop, in_a_thread],
        observers=[Raising(), entering],
    )
    assert [r.value for r in results] == ["call 0, call 0", "call 1"]
    failed = [r for r in caplog.records if "observer" in r.getMessage()]
    assert len(failed) == 2
    assert all(r.exc_info and r.exc_info[0] is error for r in failed)


@pytest.mark.parametrize("func", [on_the_loop, in_a_thread])
async def test_ctrl_c_in_it_ends_the_batch(func: Any) -> None:
    """§4.6: as in any hook, the batch ends and the KeyboardInterrupt comes out once."""

    class Breaking:
        def __call__(self, event: Event) -> None: ...

        def enter_call(self, context: CallContext) -> None:
            raise KeyboardInterrupt

    runner = ToolRunner([func], observers=[Breaking()])
    with pytest.raises(KeyboardInterrupt):
        await runner.run([ToolCall("0", func.__name__)] * 2)
    assert not runner.statistics().open_batches
    assert await runner.wait_detached(LIVENESS)


async def test_bad_methods_are_refused() -> None:
    """Misuse is a TypeError at once."""

    class Async:
        def __call__(self, event: Event) -> None: ...

        async def enter_call(self, context: CallContext) -> None: ...

    class NotCallable:
        enter_call = 1

        def __call__(self, event: Event) -> None: ...

    for observer in (Async(), NotCallable()):
        with pytest.raises(TypeError, match="enter_call"):
            ToolRunner([], observers=[observer])
