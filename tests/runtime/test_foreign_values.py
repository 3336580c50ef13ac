"""P1: what a tool gives or raises is never asked anything that could fail."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    LateResult,
    Status,
    Tool,
    ToolCall,
    ToolOutput,
    ToolRunner,
    current_call,
    keep_partial,
    run_batch,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import GatedTool

LIVENESS = 20.0  # seconds where milliseconds are meant


class Proxy:
    """Stands for another object, outside of its context: as web frameworks have them."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")


class Lazy(type):
    def __getattr__(cls, name: str) -> Any:
        raise ValueError("can't be loaded")


class Loaded(metaclass=Lazy):
    """Its class can't be asked what it has."""


class Sulky(Exception):
    """Answers to nothing."""

    __hash__ = None  # type: ignore[assignment]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("asked for its class")

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("asked for something")

    __eq__ = __bool__ = __len__ = __str__ = __repr__ = __getattr__ = __iter__ = _refuse


class Empty(Exception):
    def __len__(self) -> int:
        return 0


VALUES = [Proxy, Loaded, Sulky]
ERRORS = [Sulky, Empty]
CARRIERS = ["thread", "loop", "own loop", "executor"]


def tool_that(act: Callable[[], Any], carrier: str, executor: Any) -> Tool:
    async def acts() -> Any:
        return act()

    match carrier:
        case "thread":
            return Tool(act, name="tool")
        case "executor":
            return Tool(act, name="tool", runs_in=executor)
        case _:
            return Tool(acts, name="tool", runs_in="loop" if carrier == "loop" else "thread")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("made", VALUES)
async def test_value_is_handed_on_as_it_is(made: Callable[[], Any], carrier: str) -> None:
    value = made()

    def gives() -> Any:
        keep_partial(value)
        return value

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        with anyio.fail_after(LIVENESS):
            (result,) = await run_batch(
                [ToolCall("1", "tool")], [tool_that(gives, carrier, executor)]
            )
    assert result.status is Status.COMPLETED
    assert result.value is value
    assert result.partial is value
    assert type(value).__name__ in result.text
    openai_chat.render_results([result])
    anthropic.render_results([result])


@pytest.mark.parametrize("made", VALUES)
@pytest.mark.parametrize("is_async", [False, True])
async def test_items_are_handed_on_as_they_are(
    made: Callable[[], Any], is_async: bool
) -> None:
    value = made()

    def gives() -> Any:
        yield value

    async def gives_async() -> Any:
        yield value

    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch(
            [ToolCall("1", "tool")], {"tool": gives_async if is_async else gives}
        )
    assert result.status is Status.COMPLETED
    assert result.value is value


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("made", ERRORS)
async def test_error_is_that_calls_failure(
    made: Callable[[], BaseException], carrier: str
) -> None:
    """With `fail_fast` its siblings are cut, as for any other."""
    error = made()
    beside = GatedTool()

    def raises() -> Any:
        raise error

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        tools = {"tool": tool_that(raises, carrier, executor), "gated": beside.tool}
        with anyio.fail_after(LIVENESS):
            async with ToolRunner(tools) as runner:
                calls = [ToolCall("1", "tool"), ToolCall("2", "gated")]
                failed, cut = await runner.run(calls, fail_fast=True)
                beside.open()
    assert failed.status is Status.FAILED
    assert failed.error is error
    assert type(error).__name__ in failed.text
    assert cut.reason is not None
    assert cut.reason.kind == "sibling_failed"


@pytest.mark.parametrize("made", VALUES)
async def test_late_value_is_handed_on_as_it_is(made: Callable[[], Any]) -> None:
    """P5: to the hook, where it is held by nobody else."""
    value = made()
    begun, gate = threading.Event(), threading.Event()
    late: list[LateResult] = []

    def gives() -> Any:
        begun.set()
        gate.wait(LIVENESS)
        return value

    async with ToolRunner([gives], on_late=late.append) as runner:
        async with runner.open_batch([ToolCall("1", "gives")]) as batch:
            assert await anyio.to_thread.run_sync(begun.wait, LIVENESS)
            batch.interrupt()
        gate.set()
        assert await runner.wait_detached(LIVENESS)
    assert [item.value is value for item in late] == [True]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("made", VALUES)
@pytest.mark.parametrize("raised", [False, True])
async def test_answer_that_is_none_is_that_calls_failure(
    made: Callable[[], Any], is_async: bool, raised: bool
) -> None:
    """Also one that an approver raises, where it can be raised."""
    value = made()
    if raised and made is not Sulky:
        pytest.skip("it is no error")

    def answers(call: ToolCall) -> Any:
        if raised:
            raise value
        return value

    async def answers_async(call: ToolCall) -> Any:
        return answers(call)

    approve = answers_async if is_async else answers
    with anyio.fail_after(LIVENESS):
        async with ToolRunner({"tool": lambda: 1}, approve=approve) as runner:
            (result,) = await runner.run([ToolCall("1", "tool")])
    assert (result.status, result.started) == (Status.FAILED, False)
    assert type(value).__name__ in result.text


async def test_what_a_check_raises_is_that_calls_failure() -> None:
    def check(call: ToolCall) -> None:
        raise Sulky

    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch([ToolCall("1", "t", tool=Tool(bool, validate=check))])
    assert result.status is Status.INVALID
    assert "Sulky" in result.text


async def test_subclass_of_an_output_is_an_output() -> None:
    class Marked(ToolOutput):
        pass

    def gives() -> Any:
        assert current_call()
        return Marked("wrong", is_error=True)

    (result,) = await run_batch([ToolCall("1", "gives")], [gives])
    assert (result.value, result.is_error) == ("wrong", True)


async def test_mark_that_is_neither_true_nor_false_is_that_calls_failure() -> None:
    """Such as an array of truths: it is found out where the tool makes its answer."""

    class Truths:
        def __bool__(self) -> bool:
            raise ValueError("the truth of an array is ambiguous")

    def gives() -> Any:
        return ToolOutput("wrong", is_error=Truths())  # type: ignore[arg-type]

    with anyio.fail_after(LIVENESS):
        (result,) = await run_batch([ToolCall("1", "gives")], [gives])
    assert result.status is Status.FAILED
    assert result.text == "ValueError: the truth of an array is ambiguous"
    assert ToolOutput("fine", is_error=0).is_error is False  # type: ignore[arg-type]


async def test_coroutine_that_refuses_to_be_closed_is_let_go_of() -> None:
    """P10: it comes too late, from a call that was cut; its place is free again."""
    begun, gate = threading.Event(), threading.Event()

    class Pause:
        def __await__(self) -> Iterator[None]:
            yield

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(GeneratorExit):
                await Pause()
            if gate.is_set():
                gate.clear()
                continue
            return

    def gives() -> Any:
        made = stubborn()
        made.send(None)
        begun.set()
        gate.wait(LIVENESS)
        return made

    async with ToolRunner([gives]) as runner:
        async with runner.open_batch([ToolCall("1", "gives")]) as batch:
            assert await anyio.to_thread.run_sync(begun.wait, LIVENESS)
            batch.interrupt()
        gate.set()
        assert await runner.wait_detached(LIVENESS)
        assert runner.statistics().detached == ()
