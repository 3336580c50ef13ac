"""What the explorer injects, and when, in words that can be typed in again."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

__all__ = ("Injection", "Plan")


class Injection(enum.StrEnum):
    """Something that may happen to a turn at any step."""

    INTERRUPT = "interrupt"
    """The user interrupts all open batches."""
    GRACE = "grace"
    """The same, with a second for running calls to give their own answer."""
    SUPERSEDE = "supersede"
    """Nothing more is to start in the batches that were not opened inside a call."""
    CANCEL = "cancel"
    """The cancel scope around the scenario is cancelled."""
    TASK_CANCEL = "task_cancel"
    """The scenario's task is cancelled, by `asyncio.Task.cancel`; not on trio."""
    CALL_CANCEL = "call_cancel"
    """One call is cancelled."""
    CALL_TIMEOUT = "call_timeout"
    """The time of one running call is up, whether it has a limit or not."""
    BATCH_TIMEOUT = "batch_timeout"
    """The time of all batches that were not opened inside a call is up."""
    CLOSE = "close"
    """The runners are closed."""
    SUBMIT = "submit"
    """One more call is submitted to each batch that is not sealed."""
    FINISH = "finish"
    """A call that waits at a gate goes on, and ends by itself."""
    FAILURE = "failure"
    """A call that waits at a gate goes on, and raises."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    One run of a scenario: its seed, and what is injected before which step.

    ``str(plan)`` gives it in one line, and `parse` reads that.
    """

    seed: int = 0
    """Chooses which of several calls goes on, or is hit; on trio also the order of tasks."""
    injections: tuple[tuple[Injection, int], ...] = ()
    """What, and the number of the step, from 1."""

    def __str__(self) -> str:
        """Return the plan in one line."""
        what = [f"{injection.value}@{step}" for injection, step in self.injections]
        return " ".join([f"seed={self.seed}", *what])

    @classmethod
    def parse(cls, text: str) -> Plan:
        """
        Read what ``str`` gave, such as ``"seed=0 interrupt@12 finish@12"``.

        Raises:
            ValueError: It is no plan; says what is wrong.
        """
        seed = 0
        injections = []
        for word in text.split():
            if found := re.fullmatch(r"seed=(\d+)", word):
                seed = int(found[1])
            elif found := re.fullmatch(r"(\w+)@(\d+)", word):
                if found[1] not in set(Injection):
                    msg = f"{found[1]!r} is no injection; there are: {', '.join(Injection)}"
                    raise ValueError(msg)
                injections.append((Injection(found[1]), int(found[2])))
            else:
                msg = f"a plan has words such as 'seed=0' and 'interrupt@12', not {word!r}"
                raise ValueError(msg)
        return cls(seed, tuple(injections))
