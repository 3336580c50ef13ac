"""P1, P5, P6: the helpers that we ship find what is broken and do what they say."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

import anyio_toolbatch.testing._tools as helpers
from anyio_toolbatch import (
    BatchInterrupted,
    BatchSettled,
    BatchStarted,
    CallOutput,
    CallProgress,
    CallSettled,
    CallStarted,
    Event,
    LateResult,
    LateResultDropped,
    Reason,
    Status,
    ToolCall,
    ToolResult,
    ToolRunner,
    run_batch,
)
from anyio_toolbatch.testing import (
    AsyncGatedTool,
    DeafTool,
    GatedTool,
    PromiseObserver,
    ScriptedTool,
    clean_up_for,
    fail,
    give,
    partial,
    progress,
    shielded_for,
    sleep,
)

LIVENESS = 20.0  # seconds where milliseconds are meant
LONG = 600.0  # seconds that no test waits for


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


# -- PromiseObserver -----------------------------------------------------------

CALL = ToolCall("id", "tool")
OPEN, END = BatchStarted("b"), BatchSettled("b")
STARTED = CallStarted("b", CALL, 0)
REPORT = CallProgress("b", CALL, 0, 1.0, None, None)
ITEM = CallOutput("b", CALL, 0, "item")
CUT = BatchInterrupted("b", Reason("user_interrupt"))
LATE = LateResultDropped("b", LateResult("b", CALL, 0, "late", None, 1.0))


def done(index: int = 0, value: str = "v") -> ToolResult:
    return ToolResult(CALL, index, Status.COMPLETED, value=value)


def never(index: int = 0) -> ToolResult:
    return ToolResult(CALL, index, Status.INTERRUPTED, started=False)


def settled(result: ToolResult) -> CallSettled:
    return CallSettled("b", result)


def watch(*events: Event) -> PromiseObserver:
    observer = PromiseObserver()
    for event in events:
        observer(event)
    return observer


GOOD: dict[str, list[Event]] = {
    "nothing": [],
    "empty batch": [OPEN, END],
    "one call": [OPEN, STARTED, REPORT, ITEM, settled(done()), END],
    "never started": [OPEN, settled(never()), END],
    "interrupted": [OPEN, STARTED, CUT, settled(ToolResult(CALL, 0, Status.INTERRUPTED)), END],
    "late after the end": [OPEN, STARTED, settled(done()), END, LATE, LATE],
    "late of a batch from elsewhere": [LATE],
    "two batches": [OPEN, BatchStarted("c"), END, BatchSettled("c")],
    "still running": [OPEN, STARTED],
}


@pytest.mark.parametrize("events", GOOD.values(), ids=GOOD.keys())
def test_observer_is_content_with_kept_promises(events: list[Event]) -> None:
    """It does not cry wolf, and keeps what it has seen."""
    observer = watch(*events)
    observer.check()
    assert (observer.events, observer.broken) == (events, [])


BROKEN: dict[str, tuple[list[Event], str]] = {
    "batch starts twice": ([OPEN, OPEN], "batch b started twice"),
    "batch comes back": ([OPEN, END, OPEN], "batch b started twice"),
    "call before the batch": ([STARTED], "came before its batch started"),
    "end before the batch": ([END], "came before its batch started"),
    "batch ends twice": ([OPEN, END, END], "came after the end of its batch"),
    "call starts after the batch": ([OPEN, END, STARTED], "came after the end of its batch"),
    "progress after the batch": ([OPEN, END, REPORT], "came after the end of its batch"),
    "interrupt after the batch": ([OPEN, END, CUT], "came after the end of its batch"),
    "settled after the batch": ([OPEN, END, settled(never())], "after the end of its batch"),
    "interrupted twice": ([OPEN, CUT, CUT], "the batch was interrupted twice"),
    "call starts twice": ([OPEN, STARTED, STARTED], "call 0 started after its start or end"),
    "call starts after its end": (
        [OPEN, settled(never()), STARTED],
        "call 0 started after its start or end",
    ),
    "call settles twice": (
        [OPEN, STARTED, settled(done()), settled(done())],
        "call 0 settled twice",
    ),
    "progress after the call": (
        [OPEN, STARTED, settled(done()), REPORT],
        "came after the end of its call",
    ),
    "output after the call": (
        [OPEN, STARTED, settled(done()), ITEM],
        "came after the end of its call",
    ),
    "never settled": ([OPEN, STARTED, END], "call 0 never settled"),
    "untrue not started": (
        [OPEN, STARTED, settled(never())],
        "call 0 says started=False, which is untrue",
    ),
    "untrue started": ([OPEN, settled(done())], "call 0 says started=True, which is untrue"),
}


@pytest.mark.parametrize(("events", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_observer_finds_each_broken_promise(events: list[Event], problem: str) -> None:
    """One sentence per broken promise, raised by `check` and not while observing."""
    observer = watch(*events)
    assert len(observer.broken) == 1
    assert problem in observer.broken[0]
    with pytest.raises(AssertionError) as caught:
        observer.check()
    assert str(caught.value) == observer.broken[0]


def test_observer_keeps_batches_apart() -> None:
    """Call 0 of one batch is not call 0 of another."""
    other = ToolResult(CALL, 0, Status.COMPLETED, value="v")
    observer = watch(
        OPEN,
        BatchStarted("c"),
        STARTED,
        CallStarted("c", CALL, 0),
        settled(done()),
        CallSettled("c", other),
        END,
        BatchSettled("c"),
    )
    observer.check()


WHOLE = [OPEN, STARTED, CallStarted("b", CALL, 1), settled(done(1)), settled(done(0)), END]


def test_check_of_a_batch_compares_its_results() -> None:
    """P1: the results in hand are those that were told, in call order."""
    watch(*WHOLE).check("b", [done(0), done(1)])
    watch(*WHOLE).check("b")


@pytest.mark.parametrize(
    ("events", "batch", "results", "problem"),
    [
        (WHOLE, "other", [], "batch other has not settled"),
        (WHOLE[:-1], "b", [], "batch b has not settled"),
        (WHOLE, "b", [done(1), done(0)], "results of b are not in call order"),
        (WHOLE, "b", [done(1)], "results of b are not in call order"),
        (WHOLE, "b", [done(0), done(1), done(2)], "result 2 of b was not told to observers"),
        (WHOLE, "b", [done(0), done(1, "x")], "result 1 of b was not told to observers"),
    ],
    ids=["unknown", "unsettled", "order", "first missing", "one too many", "another value"],
)
def test_check_of_a_batch_finds_what_is_wrong(
    events: list[Event], batch: str, results: list[ToolResult], problem: str
) -> None:
    """P1: unsettled batches, and results that differ from what was told."""
    with pytest.raises(AssertionError, match=problem):
        watch(*events).check(batch, results)


def test_check_of_a_batch_finds_a_missing_last_result() -> None:
    """P1: one result per call: each that was told is among those in hand."""
    with pytest.raises(AssertionError):
        watch(*WHOLE).check("b", [done(0)])


def test_check_tells_all_problems_at_once() -> None:
    """Whoever mends something sees the whole list."""
    with pytest.raises(AssertionError) as caught:
        watch(OPEN, CUT, CUT, STARTED, STARTED).check("b")
    assert str(caught.value) == (
        "the batch was interrupted twice; call 0 started after its start or end; "
        "batch b has not settled"
    )


async def test_observer_watches_a_real_batch(promises: PromiseObserver) -> None:
    """Handed to a runner it sees the batch from start to end."""
    async with ToolRunner({"add": lambda a, b: a + b}, observers=[promises]) as runner:
        async with runner.open_batch([ToolCall("id", "add", {"a": 1, "b": 2})]) as batch:
            pass
    promises.check(batch.id, batch.results)
    assert [type(event) for event in promises.events] == [
        BatchStarted,
        CallStarted,
        CallSettled,
        BatchSettled,
    ]


# -- GatedTool -----------------------------------------------------------------


async def test_gated_tool_waits_to_be_let_through() -> None:
    """A call runs until the test lets it through, one at a time."""
    gate = GatedTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool]) as runner:
            async with runner.open_batch(calls("gated", "gated")) as batch:
                await gate.wait_started(2)
                assert (gate.started, gate.ended) == (2, 0)
                gate.let_through()
                await gate.wait_ended(1)
                assert (gate.started, gate.ended) == (2, 1)
                gate.let_through()
            assert [r.value for r in batch.results] == ["done", "done"]
    assert gate.ended == 2


async def test_gate_may_be_opened_beforehand() -> None:
    """`let_through` counts for calls to come; `open` holds for all of them."""
    gate = GatedTool("name", value=5)
    gate.let_through()
    with anyio.fail_after(LIVENESS):
        (first,) = await run_batch(calls("name"), [gate.tool])
        gate.open()
        more = await run_batch(calls("name", "name", "name"), [gate.tool])
    assert [r.value for r in (first, *more)] == [5, 5, 5, 5]
    assert (gate.started, gate.ended) == (4, 4)


async def test_gated_tool_may_compute_or_raise() -> None:
    """A callable value gets the arguments; an error is raised instead."""
    echo = GatedTool("echo", value=lambda **arguments: arguments)
    bad = GatedTool("bad", error=ValueError("on purpose"))
    echo.open()
    bad.open()
    with anyio.fail_after(LIVENESS):
        results = await run_batch(
            [ToolCall("1", "echo", {"a": 1}), ToolCall("2", "bad")], [echo.tool, bad.tool]
        )
    assert results[0].value == {"a": 1}
    assert (results[1].status, results[1].text) == (Status.FAILED, "ValueError: on purpose")
    assert bad.ended == 1


def test_gated_tool_takes_the_options_of_a_tool() -> None:
    """What is given besides is the Tool's."""
    made = GatedTool("g", timeout=5, on_interrupt="keep").tool
    assert (made.name, made.timeout, made.on_interrupt) == ("g", 5, "keep")
    assert made.carrier == "thread"
    with pytest.raises(ValueError, match="on_interrupt"):
        GatedTool(on_interrupt="ignore")


async def test_gate_that_nobody_opens_fails_instead_of_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forgotten gate ends its test with a sentence that names the tool."""
    monkeypatch.setattr(helpers, "LIVENESS_SECONDS", 0.0)
    gate = GatedTool("forgotten")
    (result,) = await run_batch(calls("forgotten"), [gate.tool])
    assert result.text == "TimeoutError: nobody opened the gate of 'forgotten'"
    with pytest.raises(
        TimeoutError, match="waited in vain for calls of 'forgotten': 5 to start"
    ):
        await gate.wait_started(5)
    with pytest.raises(TimeoutError, match="5 to end"):
        await gate.wait_ended(5)


def test_gate_that_was_given_up_still_lets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was not let through leaves the next pass to the next call."""
    monkeypatch.setattr(helpers, "LIVENESS_SECONDS", 0.0)
    gate = GatedTool()
    with pytest.raises(TimeoutError):
        gate.tool.func()
    gate.let_through()
    assert gate.tool.func() == "done"


async def test_gated_tool_fails_one_call() -> None:
    """`fail_one` is for the first that waits; without one, for the next to come."""
    gate = GatedTool()
    error = LookupError("this one")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], max_threads=1) as runner:
            async with runner.open_batch(calls("gated", "gated", "gated")) as batch:
                await gate.wait_started(1)
                assert gate.waiting == 1
                gate.fail_one(error)
                await gate.wait_ended(1)
                await gate.wait_started(2)
                gate.let_through()
                gate.fail_one()
    assert batch.results[0].error is error
    assert batch.results[1].value == "done"
    assert batch.results[2].text == "RuntimeError: on purpose"
    assert gate.waiting == 0


# -- AsyncGatedTool ------------------------------------------------------------


async def test_async_gated_tool_waits_to_be_let_through() -> None:
    """As a `GatedTool`, on the loop."""
    gate = AsyncGatedTool("name", value=lambda **arguments: arguments)
    assert gate.tool.carrier == "loop"
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool]) as runner:
            async with runner.open_batch([ToolCall("1", "name", {"a": 1})]) as batch:
                await gate.wait_started()
                assert (gate.waiting, gate.ended) == (1, 0)
                gate.let_through()
                await gate.wait_ended()
            gate.fail_one()
            (failed,) = await runner.run(calls("name"))
            gate.open()
            (after,) = await runner.run(calls("name"))
    assert batch.results[0].value == {"a": 1}
    assert failed.text == "RuntimeError: on purpose"
    assert after.value == {}


async def test_cancelled_call_leaves_the_gate() -> None:
    """The next pass is for a call that still waits."""
    gate = AsyncGatedTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool]) as runner:
            async with runner.open_batch(calls("gated_async")) as batch:
                await gate.wait_started()
                batch.interrupt()
            assert await runner.wait_detached()
            assert (gate.waiting, gate.ended) == (0, 1)
            gate.let_through()
            (result,) = await runner.run(calls("gated_async"))
    assert batch.results[0].detached
    assert result.value == "done"


# -- DeafTool ------------------------------------------------------------------


async def test_deaf_tool_swallows_cancellations_until_released() -> None:
    """It goes on after it was cancelled, counts that, and ends when it may."""
    deaf = DeafTool()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([deaf.tool]) as runner:
            async with runner.open_batch(calls("deaf")) as batch:
                await anyio.wait_all_tasks_blocked()
                assert (deaf.started, deaf.cancellations) == (1, 0)
                batch.interrupt()
            assert batch.results[0].detached
            await until(lambda: deaf.cancellations == 1)
            assert deaf.ended == 0
            deaf.release()
            assert await runner.wait_detached()
    assert (deaf.ended, deaf.cancellations) == (1, 1)


async def test_released_deaf_tool_gives_its_value() -> None:
    """`release` lets the calls through that run, and all to come."""
    deaf = DeafTool("name", value=7, timeout=LONG)
    assert (deaf.tool.timeout, deaf.tool.carrier) == (LONG, "loop")
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([deaf.tool]) as runner:
            async with runner.open_batch(calls("name", "name")) as batch:
                await anyio.wait_all_tasks_blocked()
                assert (deaf.started, deaf.ended) == (2, 0)
                deaf.release()
            (after,) = await runner.run(calls("name"))
    assert [r.value for r in (*batch.results, after)] == [7, 7, 7]


# -- ScriptedTool --------------------------------------------------------------


async def test_scripted_tool_gives_its_value() -> None:
    """Steps run one after the other up to `give`; what follows is never reached."""
    scripted = ScriptedTool(sleep(0), shielded_for(0), give("given"), fail(ValueError("no")))
    (result,) = await run_batch(calls("scripted"), [scripted.tool])
    assert (result.value, scripted.started, scripted.ended) == ("given", 1, 1)


async def test_scripted_tool_without_give_returns_none() -> None:
    """As a function without a return does."""
    (result,) = await run_batch(calls("scripted"), [ScriptedTool().tool])
    assert (result.status, result.value) == (Status.COMPLETED, None)


async def test_scripted_tool_fails() -> None:
    """`fail` raises the very exception, and the tool has ended."""
    error = ValueError("on purpose")
    scripted = ScriptedTool(fail(error), name="name")
    (result,) = await run_batch(calls("name"), [scripted.tool])
    assert result.error is error
    assert scripted.ended == 1


async def test_scripted_tool_reports_progress() -> None:
    """`progress` is seen by observers."""
    seen: list[tuple[float, float | None]] = []

    def observe(event: Event) -> None:
        if isinstance(event, CallProgress):
            seen.append((event.progress, event.total))

    scripted = ScriptedTool(progress(1), progress(2, total=3))
    await run_batch(calls("scripted"), [scripted.tool], observers=[observe])
    assert seen == [(1, None), (2, 3)]


async def test_scripted_tool_publishes_partials_and_sleeps_cancellably() -> None:
    """`partial` is kept with the placeholder; `sleep` ends with the cancellation."""
    scripted = ScriptedTool(partial("half"), sleep(LONG), partial("never"))
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([scripted.tool]) as runner:
            async with runner.open_batch(calls("scripted")) as batch:
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
            assert batch.results[0].partial == "half"
            assert await runner.wait_detached()
    assert scripted.ended == 1


async def test_scripted_tool_cleans_up() -> None:
    """`clean_up_for` is awaited to its end however the tool ends, also when cut."""
    quick = ScriptedTool(clean_up_for(0), clean_up_for(0), name="quick")
    failing = ScriptedTool(clean_up_for(0), fail(ValueError()), name="failing")
    cut = ScriptedTool(clean_up_for(0), sleep(LONG), name="cut")
    late = ScriptedTool(sleep(LONG), clean_up_for(0), name="late")
    scripted = [quick, failing, cut, late]
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([s.tool for s in scripted]) as runner:
            async with runner.open_batch(calls("quick", "failing", "cut", "late")) as batch:
                await until(lambda: failing.ended == 1)
                await anyio.wait_all_tasks_blocked()
                batch.interrupt()
            assert await runner.wait_detached()
    assert [s.cleaned_up for s in scripted] == [2, 1, 1, 0]
    assert [s.ended for s in scripted] == [1, 1, 1, 1]


async def test_shielded_step_is_not_cut_short() -> None:
    """A shield of the tool's own holds: the step after it sees the cancellation."""
    order: list[str] = []

    class Watched(ScriptedTool):
        async def _run(self, **arguments: Any) -> Any:
            try:
                return await super()._run(**arguments)
            except anyio.get_cancelled_exc_class():
                order.append("cancelled")
                raise

    scripted = Watched(shielded_for(0.01), partial("left the shield"), sleep(LONG))
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([scripted.tool]) as runner:
            async with runner.open_batch(calls("scripted")) as batch:
                await until(lambda: scripted.started == 1)
                batch.interrupt()
            record = batch._engine.records[0]
            assert await runner.wait_detached()
    assert record.kept_partial == "left the shield"
    assert order == ["cancelled"]


async def until(condition: Any) -> None:
    """Let the loop turn until it is so; each turn passes through a worker thread."""
    while not condition():
        await anyio.to_thread.run_sync(lambda: None)
