"""The explorer finds real faults: the library is broken on purpose, in one place each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import anyio_toolbatch.testing._run as run_module
from anyio_toolbatch import ToolCall
from anyio_toolbatch._core.ledger import Ending, Ledger
from anyio_toolbatch._core.record import CallRecord
from anyio_toolbatch._runtime import landing
from anyio_toolbatch._runtime.cutting import Cutter
from anyio_toolbatch._runtime.engine import BatchEngine
from anyio_toolbatch._runtime.hub import Hub
from anyio_toolbatch._runtime.state import LoopState
from anyio_toolbatch._runtime.threads import Lane
from anyio_toolbatch._runtime.waits import Waits
from anyio_toolbatch.testing import ExplorationError, Stage, backends, explore, replay

Break = Callable[[pytest.MonkeyPatch], None]


async def turn(stage: Stage) -> None:
    """Calls that run, on the loop and in threads, and calls that wait."""
    blocking, waiting = stage.gated(timeout=30), stage.gated_async()
    calls = [ToolCall(str(i), name) for i, name in enumerate(["gated", "gated_async"] * 2)]
    # Not closed at its end, which would mend what is broken on the way.
    runner = stage.runner([blocking, waiting], max_threads=1, max_concurrency=2)
    await runner.run(calls)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Who starts a call does not look whether its batch was cut."""
    patch.setattr(BatchEngine, "must_not_start", lambda *_: False)


def late_results_land(patch: pytest.MonkeyPatch) -> None:
    """A call that has its ending gets another when its tool comes to its end."""

    def settle(self: Ledger, index: int, ending: Ending) -> bool:
        self.unsettled -= self.endings[index] is None
        self.endings[index] = ending
        return True

    patch.setattr(Ledger, "settle", settle)
    patch.setattr(landing, "late", landing.take_end)


def interrupt_lets_the_queue_go_on(patch: pytest.MonkeyPatch) -> None:
    """An interrupt cuts what runs only; what waits is started in the places that are free."""
    cut = Cutter.cut

    def cut_running(self: Cutter, records: list[CallRecord], *args: Any, **kw: Any) -> None:
        cut(self, [record for record in records if not record.is_waiting], *args, **kw)

    patch.setattr(Cutter, "cut", cut_running)
    patch.setattr(LoopState, "forget", lambda *_: None)
    patch.setattr(BatchEngine, "must_not_start", lambda *_: False)


def lost_wake_up(patch: pytest.MonkeyPatch) -> None:
    """Who waits is not woken when calls are settled together."""
    patch.setattr(Waits, "settled_many", lambda _: None)


def interrupt_is_not_posted(patch: pytest.MonkeyPatch) -> None:
    """The loop hears of an interrupt only when something else is posted."""

    def post_urgent(self: Hub, function: Any, argument: Any) -> bool:
        self._urgent.append((function, argument))
        return True

    patch.setattr(Hub, "post_urgent", post_urgent)


def finished_work_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """A cut does not look whether a worker has finished already."""
    take_end = landing.take_end

    def take(record: CallRecord) -> None:
        batch: BatchEngine = record.batch
        cutter = batch.cutter
        if record.cut_reason is None and cutter.reason is not None:
            record.cut_status, record.cut_reason = cutter.status, cutter.reason
            batch.settle(record, cutter.ending(record, batch.hub.clock(), detached=True))
        else:
            take_end(record)

    patch.setattr(landing, "take_end", take)


def untrue_placeholder(patch: pytest.MonkeyPatch) -> None:
    """Every call that is cut says that it was never started."""
    settle = BatchEngine.settle

    def settle_one(self: BatchEngine, record: CallRecord, ending: Ending) -> bool:
        if ending.reason is not None:
            ending.started = ending.detached = False
        return settle(self, record, ending)

    def settle_many(self: BatchEngine, records: list[CallRecord], ending: Ending) -> None:
        for record in records:
            settle_one(self, record, ending)

    patch.setattr(BatchEngine, "settle", settle_one)
    patch.setattr(BatchEngine, "settle_many", settle_many)


def joined_on_the_way_out(patch: pytest.MonkeyPatch) -> None:
    """An interrupt waits for the running calls' own ends."""
    patch.setattr(Cutter, "_let_go", lambda *_: None)


def places_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A thread that was let go keeps its place."""
    patch.setattr(Lane, "abandon", lambda *_: None)
    patch.setattr(LoopState, "let_go", lambda *_: None)


def detached_calls_stay(patch: pytest.MonkeyPatch) -> None:
    """A detached call that has ended is not struck out."""
    patch.setattr(LoopState, "ended_late", lambda *_: None)


def timers_stay(patch: pytest.MonkeyPatch) -> None:
    """The time limit of a call outlives it."""
    patch.setattr(BatchEngine, "_stop_timeout", lambda *_: None)


def cancellation_is_eaten(patch: pytest.MonkeyPatch) -> None:
    """Cancelling the awaiting code does not let go of the batch."""
    patch.setattr(BatchEngine, "detach", lambda *_: None)


def is_shown(plan: str, backend: str) -> bool:
    try:
        replay(turn, plan, backend=backend)
    except ExplorationError:
        return True
    return False


BREAKS: list[tuple[Break, str]] = [
    (no_fence, "started after the interrupt"),
    (late_results_land, "settled twice|after the end of its batch"),
    (interrupt_lets_the_queue_go_on, "started after the interrupt"),
    (lost_wake_up, "stuck|not closed"),
    (interrupt_is_not_posted, "has not settled"),
    (finished_work_is_dropped, "had returned before the"),
    (untrue_placeholder, "untrue"),
    (joined_on_the_way_out, "has not settled .* at once"),
    (places_are_not_given_back, "a runner still has"),
    (detached_calls_stay, "still has detached calls"),
    (timers_stay, "timer is still set"),
    (cancellation_is_eaten, "is not over|has not settled"),
]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(("breaks", "problem"), BREAKS, ids=[b.__name__ for b, _ in BREAKS])
def test_fault_is_found_and_its_plan_replays_it(
    breaks: Break, problem: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is told with a plan that shows it again, and shows nothing once it is mended."""
    if backend == "trio" and breaks is timers_stay:
        pytest.skip("trio does not tell its timers from other tasks")
    monkeypatch.setattr(run_module, "PATIENCE", 0.05)  # there are no threads but ours
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(ExplorationError, match=problem) as caught:
            explore(turn, backend=backend)
        plans = re.findall(r"replay\(…, '(.*)', backend='(.*)'\)", str(caught.value))
        assert {named for _, named in plans} == {backend}
        # Not each of them, always: what a thread that is just being started posts may
        # come a pass later on a busy machine.
        shown = [plan for plan, _ in plans if is_shown(plan, backend)]
        assert shown
    for plan in shown:
        replay(turn, plan, backend=backend)
