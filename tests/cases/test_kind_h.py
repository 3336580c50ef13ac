"""
Kind H: cancel scopes and the anyio layer.

H5 is in `virtual/`, as it is about time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    RunnerClosedError,
    ToolCall,
    ToolResult,
    ToolRunner,
    on_cancel,
)
from anyio_toolbatch.testing import DeafTool, GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


COMPLETED = ("completed", None, True, False)
FAILED = ("failed", None, True, False)


async def until(condition: Callable[[], object]) -> None:
    """Pass the loop on until something that a worker does has happened."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.001)


class Client:
    """As many clients are made: a task group that `open` enters and `close` leaves."""

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def open(self) -> None:
        await self._group.__aenter__()
        self._group.start_soon(anyio.sleep_forever)

    async def close(self) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)


@contextlib.contextmanager
def deaf_tool() -> Iterator[DeafTool]:
    """Let the tool go also if the test fails: its coroutine would hold the loop's end."""
    tool = DeafTool()
    try:
        yield tool
    finally:
        tool.release()


async def some_passes() -> None:
    """Let a cancellation arrive that should not be there."""
    for _ in range(20):
        await anyio.sleep(0)


async def test_h1_client_closed_in_another_call_harms_these_calls_alone(
    promises: PromiseObserver,
) -> None:
    """H1, P8: each call is a task of its own, and the scope error stays inside it."""
    kept: list[Client] = []
    ended: list[str] = []

    async def open_client() -> str:
        client = Client()
        await client.open()
        kept.append(client)
        return "left open"

    async def close_client() -> str:
        try:
            await kept.pop().close()
        finally:
            ended.append("close_client")
        return "closed"

    go = anyio.Event()

    async def sibling() -> str:
        await go.wait()
        await some_passes()
        return "real"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [open_client, close_client, sibling], observers=[promises]
        ) as runner:
            async with runner.open_batch() as first:
                untouched = first.submit(ToolCall("s", "sibling"))
                opened = await first.submit(ToolCall("o", "open_client")).wait()
                assert untouched.result is None
                go.set()
            assert shape(first.results) == [COMPLETED, FAILED]
            assert isinstance(opened.error, RuntimeError)
            second = await runner.run(calls("close_client", "sibling"))
            assert second[1].value == "real"
            # On trio the client has ended with the task that opened it: closing is no error.
            assert second[0].value == "closed" or isinstance(second[0].error, RuntimeError)
            assert ended == ["close_client"]
            assert [r.value for r in await runner.run(calls("sibling"))] == ["real"]
            await some_passes()  # the caller is not cancelled either


async def test_h1_client_of_a_long_lived_task_serves_every_call() -> None:
    """H1, P8: the way it is meant to be: calls use what another task owns."""
    answers: list[str] = []

    async with anyio.create_task_group() as owner:

        async def use_client(text: str) -> None:
            async def answer() -> None:
                answers.append(text)

            owner.start_soon(answer)

        async with ToolRunner([use_client]) as runner:
            for text in ("a", "b"):
                results = await runner.run([ToolCall(text, "use_client", {"text": text})])
                assert shape(results) == [COMPLETED]
            await until(lambda: answers == ["a", "b"])
        assert not owner.cancel_scope.cancel_called


async def test_h2_clients_closed_in_the_wrong_order_harm_that_call_alone(
    promises: PromiseObserver,
) -> None:
    """H2, P8: first in, first out cancels its own task, not its siblings, nor the host."""
    go = anyio.Event()

    async def closes_in_the_wrong_order() -> str:
        first, second = Client(), Client()
        await first.open()
        await second.open()
        await first.close()
        await second.close()
        return "got away with it"

    async def sibling() -> str:
        await go.wait()
        await some_passes()
        return "real"

    with anyio.fail_after(LIVENESS):
        async with ToolRunner(
            [closes_in_the_wrong_order, sibling], observers=[promises]
        ) as runner:
            async with runner.open_batch() as batch:
                untouched = batch.submit(ToolCall("s", "sibling"))
                await batch.submit(ToolCall("w", "closes_in_the_wrong_order")).wait()
                await some_passes()
                assert untouched.result is None
                # A call that is submitted now needs a host that still works.
                batch.submit(ToolCall("t", "sibling"))
                go.set()
            assert shape(batch.results) == [COMPLETED, FAILED, COMPLETED]
            assert [r.value for r in await runner.run(calls("sibling"))] == ["real"]
            await some_passes()


async def test_h3_bounded_close_from_a_helper_task_spares_the_request() -> None:
    """H3, P7, P8: the runner may be closed by any task, and cancels nobody else's."""
    done: list[str] = []
    with deaf_tool() as deaf, anyio.fail_after(LIVENESS):
        runner = ToolRunner([deaf.tool], close_timeout=0.001)
        with anyio.CancelScope() as request:
            async with runner.open_batch(calls("deaf")) as batch:
                await until(lambda: deaf.started)

                async def close() -> None:
                    with anyio.fail_after(LIVENESS):
                        await runner.aclose()
                    done.append("closed")

                async with anyio.create_task_group() as helpers:
                    helpers.start_soon(close)
                await some_passes()
                done.append("request went on")
        assert done == ["closed", "request went on"]
        assert not request.cancel_called
        assert shape(batch.results) == [("interrupted", "runner_closed", True, True)]
        with pytest.raises(RunnerClosedError):
            await runner.run(calls("deaf"))
        deaf.release()
        assert await runner.wait_detached(LIVENESS)


async def test_h3_closing_in_a_cancelled_scope_still_closes() -> None:
    """H3, P7: the cancellation ends the wait, not the closing, and is passed on."""
    with deaf_tool() as deaf, anyio.fail_after(LIVENESS):
        runner = ToolRunner([deaf.tool], close_timeout=600)
        async with runner.open_batch(calls("deaf")) as batch:
            await until(lambda: deaf.started)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await runner.aclose()
            assert scope.cancelled_caught
        assert shape(batch.results) == [("interrupted", "runner_closed", True, True)]
        with pytest.raises(RunnerClosedError):
            await runner.run(calls("deaf"))
        deaf.release()
        assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("cap", [1, 3])
async def test_h7_running_async_calls_never_exceed_the_cap(
    cap: int, promises: PromiseObserver
) -> None:
    """H7, P10: not even when a place is freed, awaited and asked for in one step."""
    running = peak = 0
    doors: list[anyio.Event] = []

    async def counted() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        door = anyio.Event()
        doors.append(door)
        await door.wait()
        running -= 1

    rounds = 12
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([counted], max_concurrency=cap, observers=[promises]) as runner:
            async with runner.open_batch() as one, runner.open_batch() as two:
                for n in range(2 * cap):
                    one.submit(ToolCall(f"w{n}", "counted"))
                await until(lambda: len(doors) == cap)
                for n in range(rounds):
                    # The holder goes, a waiter is due, and a third comes without waiting.
                    before = two.submit(ToolCall(f"b{n}", "counted")) if n % 2 else None
                    doors[n].set()
                    after = two.submit(ToolCall(f"a{n}", "counted"))
                    if n % 3 == 0:  # one that goes away again at once
                        (before or after).cancel()
                    await until(lambda: len(doors) == cap + n + 1)
                    assert running == cap
                one.interrupt()
                two.interrupt()
            results = one.results + two.results
            assert sum(r.started for r in results) == cap + rounds
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().running == 0
    assert peak == cap


@pytest.mark.parametrize("limit", ["max_threads", "max_concurrency"])
@pytest.mark.parametrize("cap", [1, 3])
async def test_h7_running_blocking_calls_never_exceed_the_cap(limit: str, cap: int) -> None:
    """H7, P10: the same for worker threads, counted by the tool itself."""
    lock = threading.Lock()
    doors = threading.Semaphore(0)
    running = peak = started = 0

    def counted() -> None:
        nonlocal running, peak, started
        with lock:
            running += 1
            started += 1
            peak = max(peak, running)
        assert doors.acquire(timeout=LIVENESS)
        with lock:
            running -= 1

    rounds = 12
    options: dict[str, int] = {limit: cap}
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([counted], **options) as runner:  # type: ignore[arg-type]
            async with runner.open_batch() as one, runner.open_batch() as two:
                for n in range(2 * cap):
                    one.submit(ToolCall(f"w{n}", "counted"))
                await until(lambda: started == cap)
                for n in range(rounds):
                    doors.release()
                    two.submit(ToolCall(f"a{n}", "counted"))
                    await until(lambda: started == cap + n + 1)
                for _ in range(2 * cap):
                    doors.release()
            results = one.results + two.results
            assert shape(results) == [COMPLETED] * (2 * cap + rounds)
    assert peak == cap


async def test_h8_keyboard_interrupt_does_not_wait_for_a_threaded_cleanup(
    promises: PromiseObserver,
) -> None:
    """H8, P2: it comes out at once, also if a sibling's clean-up is stuck in a thread."""
    stuck = threading.Event()
    in_cleanup = threading.Event()
    ready = anyio.Event()

    async def presses_ctrl_c() -> None:
        await ready.wait()
        raise KeyboardInterrupt

    async def sibling() -> None:
        ready.set()
        try:
            await anyio.sleep(600)
        finally:
            await anyio.to_thread.run_sync(clean_up)

    def clean_up() -> None:
        in_cleanup.set()
        stuck.wait(LIVENESS)

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([presses_ctrl_c, sibling], observers=[promises]) as runner:
            with pytest.raises(KeyboardInterrupt):
                async with runner.open_batch(calls("presses_ctrl_c", "sibling")) as batch:
                    pass
            assert [r.status.value for r in batch.results] == ["interrupted"] * 2
            assert shape(batch.results)[1] == ("interrupted", "user_interrupt", True, True)
            await until(in_cleanup.is_set)
            stuck.set()
            assert await runner.wait_detached(LIVENESS)


async def test_h8_telling_a_cut_call_needs_no_new_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H8, P2: `on_cancel` of a blocking call is run also if no thread can be started."""
    gate = GatedTool("gated")
    hooks: list[str] = []
    go = anyio.Event()

    def blocking() -> None:
        with on_cancel(lambda: hooks.append("told")):
            gate.tool.func()

    async def presses_ctrl_c() -> None:
        await go.wait()
        raise KeyboardInterrupt

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    # More callbacks than the process can have idle threads for.
    many = 33
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([blocking, presses_ctrl_c], max_threads=many) as runner:
            with pytest.raises(KeyboardInterrupt):
                async with runner.open_batch() as batch:
                    for n in range(many):
                        batch.submit(ToolCall(f"b{n}", "blocking"))
                    batch.submit(ToolCall("k", "presses_ctrl_c"))
                    await gate.wait_started(many)
                    monkeypatch.setattr(threading.Thread, "start", refuse)
                    go.set()
            assert [r.reason.kind for r in batch.results if r.reason] == (
                ["user_interrupt"] * (many + 1)
            )
            await until(lambda: len(hooks) == many)
            gate.open()
            assert await runner.wait_detached(LIVENESS)
            monkeypatch.undo()


H8_SCRIPT = textwrap.dedent(
    """
    import sys, anyio, anyio.to_thread
    from anyio_toolbatch import ToolCall, open_batch

    async def presses_ctrl_c():
        await ready.wait()
        raise KeyboardInterrupt

    async def sibling():
        ready.set()
        try:
            await anyio.sleep(600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(print, "cleaned up")

    async def main():
        global ready
        ready = anyio.Event()
        calls = [ToolCall("a", "presses_ctrl_c"), ToolCall("b", "sibling")]
        try:
            async with open_batch(calls, [presses_ctrl_c, sibling]) as batch:
                pass
        finally:
            print(*(r.status for r in batch.results))

    try:
        anyio.run(main, backend=sys.argv[1])
    except KeyboardInterrupt:
        print("came out")
    """
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_h8_process_ends_after_a_keyboard_interrupt_in_a_tool(backend: str) -> None:
    """H8, P7: results first, then the KeyboardInterrupt, once; the process leaves."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", H8_SCRIPT, backend],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "interrupted interrupted"
    # Whether the clean-up still gets a thread is the ending loop's affair.
    assert lines[1:] in (["came out"], ["cleaned up", "came out"])
    assert (done.stderr, done.returncode) == ("", 0)
