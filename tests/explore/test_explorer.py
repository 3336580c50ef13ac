"""The explorer does what it says, and says what is wrong with a scenario."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from typing import Any

import anyio
import anyio.to_thread
import pytest

import anyio_toolbatch.testing._run as run_module
from anyio_toolbatch import Status, ToolCall, ToolResult, ToolRunner
from anyio_toolbatch.testing import (
    ExplorationError,
    Injection,
    Plan,
    PromiseObserver,
    ScriptedTool,
    Stage,
    backends,
    explore,
    give,
    replay,
    sleep,
)

LONG = 1e6  # seconds that no test waits for

pytestmark = pytest.mark.parametrize("backend", backends())


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


# -- what is done ---------------------------------------------------------------


async def two_kinds(stage: Stage) -> None:
    blocking, waiting = stage.gated(), stage.gated_async()
    async with stage.runner([blocking, waiting]) as runner:
        await runner.run(calls("gated", "gated_async"))


def test_every_step_is_explored(backend: str) -> None:
    """One run for each step and each injection that finds something to do."""
    whole = explore(two_kinds, backend=backend)
    only = explore(two_kinds, backend=backend, injections=["cancel"])
    assert only.runs == 1 + only.steps
    assert whole.steps == only.steps > 3
    assert whole.runs > 5 * whole.steps
    assert (whole.backend, whole.seed) == (backend, 0)


def test_the_same_seed_does_the_same(backend: str) -> None:
    """Loop and threads take turns, so that chance has no part in it."""
    found = {explore(two_kinds, backend=backend, seed=7, injections=[]) for _ in range(5)}
    assert len(found) == 1


def test_pairs_are_drawn_by_the_seed(backend: str) -> None:
    """`pairs` adds so many runs."""
    alone = explore(two_kinds, backend=backend, injections=["interrupt"])
    pairs = explore(two_kinds, backend=backend, injections=["interrupt"], pairs=30)
    assert alone.runs < pairs.runs <= alone.runs + 30


EXPECTED: dict[Injection, set[tuple[Status, str | None]]] = {
    Injection.INTERRUPT: {(Status.INTERRUPTED, "user_interrupt")},
    Injection.GRACE: {(Status.INTERRUPTED, "user_interrupt")},
    Injection.SUPERSEDE: {(Status.INTERRUPTED, "superseded")},
    Injection.CANCEL: {(Status.INTERRUPTED, "caller_cancelled")},
    Injection.TASK_CANCEL: {(Status.INTERRUPTED, "caller_cancelled")},
    Injection.CALL_CANCEL: {(Status.INTERRUPTED, "call_cancelled")},
    Injection.CALL_TIMEOUT: {(Status.TIMED_OUT, "call_timeout")},
    Injection.BATCH_TIMEOUT: {(Status.TIMED_OUT, "batch_timeout")},
    Injection.CLOSE: {(Status.INTERRUPTED, "runner_closed")},
    Injection.SUBMIT: set(),
    Injection.FINISH: set(),
    Injection.FAILURE: {(Status.FAILED, None)},
}


@pytest.mark.parametrize("injection", list(Injection))
def test_injection_does_what_it_is_called(injection: Injection, backend: str) -> None:
    """Each leaves its own mark on results, and no other."""
    endings: Counter[tuple[Status, str | None]] = Counter()
    indices: set[int] = set()

    def note(results: list[ToolResult]) -> None:
        for result in results:
            endings[result.status, None if result.reason is None else result.reason.kind] += 1
            indices.add(result.index)

    async def scenario(stage: Stage) -> None:
        blocking, waiting = stage.gated(), stage.gated_async()
        async with stage.runner([blocking, waiting], max_threads=1) as runner:
            async with runner.open_batch() as batch:
                try:
                    for call in calls("gated", "gated_async", "gated"):
                        batch.submit(call)
                        await anyio.sleep(1)
                    await batch.wait()
                finally:
                    ended.append(batch)

    ended: list[Any] = []
    explore(scenario, backend=backend, injections=[injection])
    for batch in ended:
        note(batch.results)
    if injection is Injection.TASK_CANCEL and backend == "trio":
        assert set(endings) == {(Status.COMPLETED, None)}
        return
    assert set(endings) == {(Status.COMPLETED, None)} | EXPECTED[injection]
    assert (3 in indices) == (injection is Injection.SUBMIT)


def test_time_takes_no_time(backend: str) -> None:
    """A long sleep is over as soon as nothing else can happen."""
    slow = ScriptedTool(sleep(LONG), give("woken"))

    async def scenario(stage: Stage) -> None:
        async with stage.runner([slow.tool]) as runner:
            (result,) = await runner.run(calls("scripted"))
            assert result.value == "woken"

    explore(scenario, backend=backend, injections=[])


def test_own_runners_are_explored_too(backend: str) -> None:
    """A framework makes its own `ToolRunner`, with the stage's observer or without."""
    observer: list[PromiseObserver] = []

    async def scenario(stage: Stage) -> None:
        blocking = stage.gated()
        observer.append(stage.observer)
        async with ToolRunner([blocking.tool], observers=[stage.observer]) as runner:
            await runner.run(calls("gated"))
        await ToolRunner([blocking.tool]).run(calls("gated"))

    explored = explore(scenario, backend=backend)
    assert explored.runs > explored.steps
    assert all(each.events for each in observer[:1])


def test_thread_that_can_not_be_seen_is_waited_for_once(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that blocks in something of its own costs determinism, not the run."""
    import anyio_toolbatch.testing._quiet as quiet_module

    monkeypatch.setattr(quiet_module, "PATIENCE", 0.01)

    async def scenario(stage: Stage) -> None:
        go_on = threading.Event()
        waiting = stage.gated_async(value=go_on.set)
        async with stage.runner([waiting, go_on.wait]) as runner:
            await runner.run(calls("wait", "gated_async"))
        go_on.set()

    replay(scenario, "seed=0", backend=backend)


def test_threads_of_others_are_given_time(backend: str) -> None:
    """A framework may use threads of its own, as long as it does not wait for time, too."""

    async def scenario(stage: Stage) -> None:
        waiting = stage.gated_async()
        assert await anyio.to_thread.run_sync(lambda: time.sleep(0.01) or 5) == 5
        async with stage.runner([waiting]) as runner:
            await runner.run(calls("gated_async"))

    replay(scenario, "seed=0", backend=backend)


def test_nothing_of_it_stays(backend: str) -> None:
    """Other programs of the process run as before: in real time, in any order."""

    def settings() -> list[Any]:
        found: list[Any] = [random.getstate()]
        if backend == "trio":
            import trio

            core: Any = trio._core._run
            # Hypothesis may have set it for the whole process.
            found += [core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()]
        return found

    before = settings()
    explore(two_kinds, backend=backend, seed=3, injections=["interrupt"])
    assert settings() == before

    async def main() -> float:
        begun = anyio.current_time()
        await anyio.sleep(0.01)
        return anyio.current_time() - begun

    assert anyio.run(main, backend="trio" if backend == "trio" else "asyncio") >= 0.01


# -- what is said -----------------------------------------------------------------


def test_what_a_scenario_raises_is_a_fault(backend: str) -> None:
    """Also in the first run: then nothing is injected."""
    ran = []

    async def scenario(stage: Stage) -> None:
        ran.append(1)
        raise LookupError("on purpose")

    with pytest.raises(
        ExplorationError, match=r"LookupError: on purpose \(test_explorer.py:\d+\)"
    ):
        explore(scenario, backend=backend)
    assert ran == [1]


def test_what_holds_in_some_runs_only_is_told_with_the_others(backend: str) -> None:
    """A scenario may assert what has to hold in every run."""

    async def scenario(stage: Stage) -> None:
        waiting = stage.gated_async()
        async with stage.runner([waiting]) as runner:
            (result,) = await runner.run(calls("gated_async"))
        assert result.status is Status.COMPLETED, "it was stopped"

    with pytest.raises(ExplorationError) as caught:
        explore(scenario, backend=backend, injections=["interrupt"])
    said = str(caught.value)
    assert said.startswith(f"scenario on {backend}:\n  replay(…, 'seed=0 interrupt@")
    assert "the scenario raised AssertionError: it was stopped" in said


@pytest.mark.parametrize("shield", [False, True])
def test_scenario_that_can_not_end_is_told(shield: bool, backend: str) -> None:
    """It does not hang, also if the scenario keeps cancellation out."""

    async def scenario(stage: Stage) -> None:
        with anyio.CancelScope(shield=shield):
            await anyio.Event().wait()

    with pytest.raises(ExplorationError, match="stuck: nothing is left that could happen"):
        explore(scenario, backend=backend)


def test_scenario_that_goes_round_in_circles_is_told(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it run for ever."""
    monkeypatch.setattr(run_module, "MAX_STEPS", 200)

    async def scenario(stage: Stage) -> None:
        while True:
            await anyio.sleep(0)

    with pytest.raises(ExplorationError, match="no end after 200 steps"):
        explore(scenario, backend=backend)


def test_batch_that_is_left_open_is_told(backend: str) -> None:
    """Whoever opens one has to leave its block; also if it forgets the runner, too."""

    async def scenario(stage: Stage) -> None:
        waiting = stage.gated_async()
        await stage.runner([waiting]).open_batch().__aenter__()

    with pytest.raises(ExplorationError, match="is not over: 0 calls have no result"):
        explore(scenario, backend=backend)


def test_task_that_is_left_behind_is_told(backend: str) -> None:
    """A scenario has to end what it has begun."""
    if backend == "trio":
        pytest.skip("trio has no tasks without a parent, but system tasks")

    async def scenario(stage: Stage) -> None:
        tasks.append(asyncio.ensure_future(asyncio.Event().wait()))

    tasks: list[Any] = []
    with pytest.raises(ExplorationError, match=r"the task .* is still there"):
        explore(scenario, backend=backend)


def test_swallowed_cancellation_is_told(backend: str) -> None:
    """P8, of the scenario itself: what cancels its task must get through."""
    if backend == "trio":
        pytest.skip("trio can't cancel a task by itself")

    async def scenario(stage: Stage) -> None:
        try:
            await two_kinds(stage)
        except asyncio.CancelledError:
            pass

    with pytest.raises(ExplorationError, match="the cancellation of the task was swallowed"):
        explore(scenario, backend=backend, injections=["task_cancel"])


def test_no_more_faults_are_told_than_help(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cause makes many runs fail: the first few are told."""

    async def scenario(stage: Stage) -> None:
        async with stage.runner() as runner:
            await runner.run([])
            for _ in range(20):
                await anyio.sleep(0)
            if not runner._closed:
                return
        raise LookupError

    with pytest.raises(ExplorationError) as caught:
        explore(scenario, backend=backend, injections=["close"])
    assert str(caught.value).count("replay(") == 5


# -- plans and misuse ---------------------------------------------------------------


def test_plan_is_read_as_it_is_written(backend: str) -> None:
    """What is told can be typed in again."""
    plan = Plan(3, ((Injection.INTERRUPT, 12), (Injection.FINISH, 12)))
    assert str(plan) == "seed=3 interrupt@12 finish@12"
    assert Plan.parse(str(plan)) == plan
    assert Plan.parse("") == Plan()
    replay(two_kinds, plan, backend=backend)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("interrupts@3", "'interrupts' is no injection; there are: interrupt, grace"),
        ("interrupt", "a plan has words such as 'seed=0' and 'interrupt@12', not 'interrupt'"),
        ("seed=x", "not 'seed=x'"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, problem: str, backend: str) -> None:
    """With what was wrong, and what there is."""
    with pytest.raises(ValueError, match=problem):
        replay(two_kinds, text, backend=backend)


def test_misuse_is_refused_at_once(backend: str) -> None:
    """Before anything runs."""
    ran = []

    async def scenario(stage: Stage) -> None:
        ran.append(stage)

    with pytest.raises(ValueError, match="backend must be one of asyncio"):
        explore(scenario, backend=f"{backend}s")
    with pytest.raises(ValueError, match="'stop' is not a valid Injection"):
        explore(scenario, backend=backend, injections=["stop"])

    async def inside() -> None:
        explore(scenario, backend=backend)

    with pytest.raises(RuntimeError, match="lready running"):
        anyio.run(inside)
    assert ran == []
