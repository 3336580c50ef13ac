"""P1–P10: whatever happens at whatever step of a turn, all promises are kept."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    ToolBatch,
    ToolCall,
    ToolOutput,
    ToolRunner,
    from_thread,
    keep_partial,
    on_cancel,
    open_batch,
    report_progress,
    run_batch,
    tool,
)
from anyio_toolbatch.testing import (
    ScriptedTool,
    Stage,
    backends,
    clean_up_for,
    explore,
    fail,
    give,
    partial,
    progress,
    shielded_for,
    sleep,
)

Scenario = Callable[[Stage], Awaitable[object]]

SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


def calls(*names: str, **arguments: Any) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name, arguments) for i, name in enumerate(names)]


# -- kinds of tools --------------------------------------------------------


@scenario
async def no_call(stage: Stage) -> None:
    """R8: a batch of none."""
    async with stage.runner() as runner:
        assert await runner.run([]) == []


@scenario
async def one_blocking_call(stage: Stage) -> None:
    """T2: a batch of one is no special case."""
    gated = stage.gated()
    async with stage.runner([gated]) as runner:
        await runner.run(calls("gated"))


@scenario
async def one_async_call(stage: Stage) -> None:
    gated = stage.gated_async()
    async with stage.runner([gated]) as runner:
        await runner.run(calls("gated_async"))


@scenario
async def all_kinds_of_calls(stage: Stage) -> None:
    """P1: also for what can't be run at all."""
    blocking, waiting = stage.gated(), stage.gated_async()
    broken = stage.gated("broken", error=ValueError("on purpose"))

    @tool
    def plain(number: int) -> int:
        return number

    given = [
        *calls("gated", "gated_async", "unknown", "broken"),
        ToolCall("id-4", "plain", {"number": 1}),
        ToolCall("id-5", "plain", "{not JSON"),
        ToolCall("id-0", "gated"),
    ]
    async with stage.runner([blocking, waiting, broken, plain]) as runner:
        results = await runner.run(given)
        assert len(results) == len(given)


@scenario
async def sleepers(stage: Stage) -> None:
    tools = [ScriptedTool(sleep(n), give(n), name=f"sleep{n}") for n in range(3)]
    async with stage.runner([t.tool for t in tools]) as runner:
        await runner.run(calls("sleep0", "sleep1", "sleep2"))


@scenario
async def slow_clean_ups(stage: Stage) -> None:
    """P2: a clean-up holds nobody up."""
    slow = ScriptedTool(clean_up_for(2), sleep(5), name="slow")
    shielded = ScriptedTool(shielded_for(3), sleep(1), name="shielded")
    async with stage.runner([slow.tool, shielded.tool]) as runner:
        await runner.run(calls("slow", "shielded", "slow"))


@scenario
async def deaf_call(stage: Stage) -> None:
    deaf, gated = stage.deaf(), stage.gated()
    async with stage.runner([deaf, gated], cleanup_grace=0.5) as runner:
        await runner.run(calls("deaf", "gated"))


@scenario
async def progress_and_partials(stage: Stage) -> None:
    scripted = ScriptedTool(
        progress(1, 2), sleep(1), partial("half"), sleep(1), progress(2, 2)
    )

    def blocking() -> str:
        for number in range(3):
            report_progress(number)
            keep_partial(number)
        gated.tool.func()
        report_progress(3)
        return "done"

    gated = stage.gated("hold")
    async with stage.runner([scripted.tool, blocking]) as runner:
        async with runner.open_batch(calls("scripted", "blocking")) as batch:
            async for _ in batch.events():
                pass


@scenario
async def generators(stage: Stage) -> None:
    hold = stage.gated("hold")

    def lines() -> Iterator[int]:
        yield 1
        hold.tool.func()
        yield 2

    async def ticks() -> AsyncIterator[int]:
        for number in range(3):
            await anyio.sleep(1)
            yield number

    async with stage.runner([lines, ticks]) as runner:
        await runner.run(calls("lines", "ticks"))


@scenario
async def awaitable_from_a_thread(stage: Stage) -> None:
    """A plain function whose value is awaitable goes on on the loop."""
    hold = stage.gated("hold")

    def begin() -> Any:
        hold.tool.func()
        return finish()

    async def finish() -> str:
        await anyio.sleep(1)
        return "done"

    async with stage.runner([begin]) as runner:
        await runner.run(calls("begin", "begin"))


@scenario
async def visits_from_threads(stage: Stage) -> None:
    hold = stage.gated("hold")

    def visit() -> str:
        from_thread.run_sync(lambda: None)
        hold.tool.func()
        from_thread.run(anyio.sleep, 1)
        return "done"

    async with stage.runner([visit]) as runner:
        await runner.run(calls("visit", "visit"))


@scenario
async def hooks_on_cancel(stage: Stage) -> None:
    """A hook is what ends a blocking call."""

    def blocking() -> str:
        hold = stage.gated("hold")
        with on_cancel(hold.open):
            return str(hold.tool.func())

    async def waiting() -> None:
        on_cancel(lambda: None)
        await anyio.sleep(1)

    async with stage.runner([blocking, waiting]) as runner:
        await runner.run(calls("blocking", "waiting"))


@scenario
async def marked_errors(stage: Stage) -> None:
    """`ToolOutput` never triggers `fail_fast`."""

    async def bad() -> ToolOutput:
        await anyio.sleep(1)
        return ToolOutput("no", is_error=True)

    waiting = stage.gated_async()
    async with stage.runner([bad, waiting]) as runner:
        await runner.run(calls("bad", "gated_async"), fail_fast=True)


# -- limits ------------------------------------------------------------------


@scenario
async def one_thread(stage: Stage) -> None:
    """T1, T3: what waits for a thread never starts after the interrupt."""
    gated = stage.gated()
    async with stage.runner([gated], max_threads=1) as runner:
        await runner.run(calls("gated", "gated", "gated"))


@scenario
async def one_slot(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], max_concurrency=1) as runner:
        await runner.run(calls("gated_async", "gated", "gated_async"))


@scenario
async def one_of_a_tool(stage: Stage) -> None:
    limited = stage.gated_async("limited", max_concurrency=1)
    free = stage.gated("free", needs_slot=False)
    async with stage.runner([limited, free], max_concurrency=2) as runner:
        await runner.run(calls("limited", "limited", "free", "free"))


@scenario
async def too_many_detached(stage: Stage) -> None:
    """P10: at the cap a blocking call is refused, and nothing hangs."""
    gated = stage.gated()
    async with stage.runner([gated], max_threads=1, max_detached=1) as runner:
        async with runner.open_batch(calls("gated")) as batch:
            batch.interrupt("by the scenario")
        await runner.run(calls("gated", "gated"))


# -- time ------------------------------------------------------------------


@scenario
async def timeouts(stage: Stage) -> None:
    quick = ScriptedTool(sleep(5), name="quick", timeout=1)
    slow = ScriptedTool(sleep(5), name="slow")
    blocking = stage.gated("blocking", timeout=2)
    async with stage.runner([quick.tool, slow.tool, blocking]) as runner:
        await runner.run(calls("quick", "slow", "blocking"), timeout=3)


@scenario
async def time_to_answer(stage: Stage) -> None:
    """The grace: some give their own answer within it, some do not."""

    async def answers() -> str:
        try:
            await anyio.sleep(3)
        except anyio.get_cancelled_exc_class():
            return "my own answer"
        return "done"

    waiting, blocking = stage.gated_async(), stage.gated()
    async with stage.runner([answers, waiting, blocking], interrupt_grace=2) as runner:
        await runner.run(calls("answers", "gated_async", "gated"), timeout=1)


# -- one cuts the other ------------------------------------------------------


@scenario
async def fail_fast(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()
    bad = ScriptedTool(sleep(1), fail(ValueError("on purpose")), name="bad")
    async with stage.runner([blocking, waiting, bad.tool], max_threads=1) as runner:
        await runner.run(calls("gated", "bad", "gated_async", "gated"), fail_fast=True)


@scenario
async def own_interrupts(stage: Stage) -> None:
    """The scenario interrupts by itself, twice, the second time at once."""
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting]) as runner:
        async with runner.open_batch(calls("gated", "gated_async")) as batch:
            await anyio.lowlevel.checkpoint()
            batch.interrupt("softly", grace=5)
            await anyio.lowlevel.checkpoint()
            batch.interrupt("now", grace=0)


@scenario
async def cancelled_calls(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], max_threads=1) as runner:
        async with runner.open_batch() as batch:
            first = batch.submit(ToolCall("same", "gated"))
            batch.submit(ToolCall("same", "gated"))
            third = batch.submit(ToolCall("other", "gated_async"))
            await anyio.lowlevel.checkpoint()
            first.cancel("not this one")
            await first.wait()
            batch.cancel("same")
            third.cancel()


@scenario
async def own_supersede(stage: Stage) -> None:
    """Q1: what runs goes on, what waits is not started."""
    gated = stage.gated()
    async with stage.runner([gated], max_threads=1) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await anyio.lowlevel.checkpoint()
            batch.supersede("newer")


@scenario
async def closed_while_open(stage: Stage) -> None:
    """S2: closing ends what is open, for all who wait."""
    gated = stage.gated_async()
    runner = stage.runner([gated], max_concurrency=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run, calls("gated_async", "gated_async"))
        tasks.start_soon(runner.run, calls("gated_async"))
        await anyio.sleep(0)
        await anyio.sleep(0)
        await runner.aclose()


# -- submitting and reading -----------------------------------------------------


@scenario
async def streamed_calls(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], max_threads=1) as runner:
        async with runner.open_batch() as batch:
            for name in ("gated", "gated_async", "gated"):
                batch.submit(ToolCall(name, name))
                await anyio.sleep(1)


@scenario
async def readers(stage: Stage) -> None:
    async def read(batch: ToolBatch) -> None:
        async for _ in batch.events():
            await anyio.lowlevel.checkpoint()

    async def wait(batch: ToolBatch) -> None:
        await batch.wait()

    gated, quick = stage.gated(), ScriptedTool(sleep(1))
    async with stage.runner([gated, quick.tool]) as runner, anyio.create_task_group() as tasks:
        async with runner.open_batch() as batch:
            tasks.start_soon(read, batch)
            handle = batch.submit(ToolCall("1", "gated"))
            batch.submit(ToolCall("2", "scripted"))
            tasks.start_soon(wait, batch)
            await handle.wait()
        tasks.start_soon(read, batch)


@scenario
async def left_by_an_error(stage: Stage) -> None:
    """P8: leaving the block by an exception lets go of what runs."""
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting]) as runner:
        try:
            async with runner.open_batch(calls("gated", "gated_async")):
                await anyio.sleep(1)
                raise LookupError
        except LookupError:
            pass


@scenario
async def without_a_runner(stage: Stage) -> None:
    """Nobody observes, and nothing closes."""
    blocking, waiting = stage.gated(), stage.gated_async()
    tools = [blocking.tool, waiting.tool]
    await run_batch(calls("gated", "gated_async", "gated"), tools, max_threads=1)
    async with open_batch(calls("gated_async"), tools):
        pass


# -- claims and approvals ---------------------------------------------------------


@scenario
async def claims(stage: Stage) -> None:
    """M1, T5: one writer at a time; a detached writer keeps its claim."""
    write = stage.gated("write", writes="file")
    read = stage.gated_async("read", reads="file")
    other = stage.gated_async("other", writes="elsewhere")
    async with stage.runner([write, read, other], cleanup_grace=1) as runner:
        await runner.run(calls("write", "read", "read", "other", "write"), timeout=8)
        await runner.run(calls("write", "read"), timeout=8)


@scenario
async def barriers(stage: Stage) -> None:
    alone = stage.gated_async("alone", exclusive=True)
    blocking = stage.gated()
    async with stage.runner([alone, blocking]) as runner:
        await runner.run(calls("gated", "alone", "gated", "alone"))


@scenario
async def paths(stage: Stage) -> None:
    """Paths are resolved in threads of their own."""
    write = stage.gated("write", writes=lambda path: Path(path))
    look = stage.gated_async("look", reads=[Path("folder")])
    given = [
        ToolCall("1", "write", {"path": "folder/a"}),
        ToolCall("2", "look"),
        ToolCall("3", "write", {"path": "other/b"}),
    ]
    async with stage.runner([write, look], max_concurrency=2) as runner:
        await runner.run(given)


@scenario
async def asked_on_the_loop(stage: Stage) -> None:
    """O1–O7: a question is cancelled with its call, a late yes starts nothing."""

    async def approve(call: ToolCall) -> bool | str:
        await anyio.sleep(1)
        return True if call.id != "id-1" else "better not"

    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], approve=approve) as runner:
        await runner.run(calls("gated", "gated_async", "gated_async"), timeout=5)


@scenario
async def asked_in_a_thread(stage: Stage) -> None:
    ask = stage.gated("ask", value=True)

    def approve(call: ToolCall) -> bool:
        return bool(ask.tool.func())

    blocking, waiting = stage.gated(), stage.gated_async(writes="key")
    async with stage.runner([blocking, waiting], approve=approve, max_threads=1) as runner:
        await runner.run(calls("gated", "gated_async", "gated"))


@scenario
async def nobody_answers(stage: Stage) -> None:
    async def approve(call: ToolCall) -> bool:
        await anyio.sleep(10)
        return True

    waiting = stage.gated_async()
    async with stage.runner([waiting], approve=approve, approval_timeout=2) as runner:
        await runner.run(calls("gated_async", "gated_async"), timeout=20)


# -- batches inside calls -----------------------------------------------------------


def agent(
    runner: Callable[[], ToolRunner], *names: str, name: str = "agent", **options: Any
) -> Any:
    async def run() -> int:
        return len(await runner().run(calls(*names)))

    return tool(run, name=name, **options)


@scenario
async def nested(stage: Stage) -> None:
    """S4, T11: what stops the outer call stops the inner batch."""
    blocking, waiting = stage.gated(), stage.gated_async()
    sub = agent(lambda: runner, "gated", "gated_async")
    async with stage.runner([sub, blocking, waiting], max_threads=1) as runner:
        await runner.run(calls("agent", "gated_async"))


@scenario
async def nested_with_one_slot(stage: Stage) -> None:
    """N1: a parent lends its own place."""
    waiting = stage.gated_async()
    sub = agent(lambda: runner, "gated_async")
    top = agent(lambda: runner, "agent", "gated_async", name="top")
    async with stage.runner([top, sub, waiting], max_concurrency=1) as runner:
        await runner.run(calls("top", "top"), timeout=50)


@scenario
async def nested_in_a_thread(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()

    def sub() -> int:
        return len(from_thread.run(runner.run, calls("gated", "gated_async")))

    async with stage.runner([sub, blocking, waiting], max_threads=1) as runner:
        await runner.run(calls("sub", "sub"))


@scenario
async def nested_claims(stage: Stage) -> None:
    """Inner calls ignore what their ancestors hold."""
    write = stage.gated("write", writes="file")
    sub = agent(lambda: runner, "write", "write", writes="file")
    async with stage.runner([sub, write], cleanup_grace=1) as runner:
        await runner.run(calls("agent", "write"))


@scenario
async def kept(stage: Stage) -> None:
    """A kept call goes on after its turn, and its end is late."""
    blocking = stage.gated("blocking", on_interrupt="keep", timeout=20)
    waiting = stage.gated_async("waiting", on_interrupt="keep")
    other = stage.gated("other")
    async with stage.runner([blocking, waiting, other], max_threads=2) as runner:
        await runner.run(calls("blocking", "waiting", "other"))


@scenario
async def kept_with_a_batch_inside(stage: Stage) -> None:
    blocking = stage.gated()
    sub = agent(lambda: runner, "gated", on_interrupt="keep")
    async with stage.runner([sub, blocking]) as runner:
        await runner.run(calls("agent", "gated"))


# -- several batches --------------------------------------------------------------


@scenario
async def two_at_once(stage: Stage) -> None:
    """T9: the batches of one runner do not disturb each other."""
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], max_threads=1, max_concurrency=2) as runner:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run, calls("gated", "gated_async"))
            tasks.start_soon(runner.run, calls("gated_async", "gated"))


@scenario
async def turn_after_turn(stage: Stage) -> None:
    """T6, T12: what one turn has left behind does nothing to the next."""
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting], max_threads=1) as runner:
        for _ in range(2):
            await runner.run(calls("gated", "gated_async"))


# -- the tests ---------------------------------------------------------------------

WIDE = os.environ.get("EXPLORE") == "wide"
"""Set by the nox session `explore`."""
SEEDS = range(5) if WIDE else range(1)
PAIRS = 500 if WIDE else 0


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("turn", SCENARIOS, ids=lambda turn: turn.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_are_kept_at_every_step(turn: Scenario, backend: str, seed: int) -> None:
    """P1–P10: at each step each of the injections; pairs of them in the wide session."""
    explored = explore(turn, backend=backend, seed=seed, pairs=PAIRS)
    print(explored)
    assert explored.steps > 0
    assert explored.runs > explored.steps
