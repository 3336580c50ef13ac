"""Runs a scenario again and again, each time with something injected at another step."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from ._plans import Injection, Plan
from ._run import Run, Scenario

__all__ = ("Exploration", "ExplorationError", "explore", "replay")

MAX_FAULTS = 5
"""Runs with faults after which the rest is left out: they are mostly one and the same."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """What an exploration without a fault has done."""

    backend: str
    steps: int
    """How many steps the scenario takes when nothing is injected."""
    runs: int
    """How often it was run, the first time included."""
    seed: int


class ExplorationError(AssertionError):
    """
    Something was wrong in some runs; the message says what, with plans for `replay`.

    Args:
        message: What was wrong.
        plans: Of the runs.
    """

    def __init__(self, message: str, plans: tuple[Plan, ...] = ()) -> None:
        super().__init__(message)
        self.plans = plans
        """The runs in which something was wrong; the first few, if there are many."""


def explore(
    scenario: Scenario,
    *,
    backend: str = "asyncio",
    seed: int = 0,
    injections: Collection[Injection | str] = tuple(Injection),
    pairs: int = 0,
) -> Exploration:
    """
    Run a scenario with each of the injections at each of its steps.

    First it is run with nothing injected, to count the steps; then, for each step
    and each injection that would find something to do there, once more. After each
    run all that the library promises is checked, of each batch and of the loop.

    Args:
        scenario: An async function that runs a turn, or several; it is given a
            `Stage`, anew for each run. What it raises is a fault, so that it may
            assert what has to hold in every run.
        backend: One of ``"asyncio"``, ``"uvloop"``, ``"eager"`` (asyncio with eager
            tasks, from Python 3.12 on) and ``"trio"``.
        seed: Chooses which of several waiting calls goes on, and the like. With a
            seed other than 0 time may also pass while calls wait at their gates.
        injections: What to inject.
        pairs: How many runs to make besides with two injections, drawn by the seed.

    Returns:
        How much was done.

    Raises:
        ExplorationError: In some runs something was wrong. Each is told with its
            plan, for `replay`.

    Threads:
        One in which no event loop runs. One exploration at a time.
    """
    wanted = [Injection(injection) for injection in injections]
    first = _run(scenario, Plan(seed), backend)
    runs = 1
    faults = [first] if first.problems else []
    if not faults:
        plans = [
            Plan(seed, ((injection, step),))
            for step, possible in enumerate(first.possible, start=1)
            for injection in wanted
            if injection in possible
        ]
        plans += _pairs(first, seed, wanted, pairs)
        for plan in plans:
            run = _run(scenario, plan, backend)
            runs += 1
            if run.problems:
                faults.append(run)
                if len(faults) == MAX_FAULTS:
                    break
    if faults:
        lines = [f"{getattr(scenario, '__name__', scenario)} on {backend}:"]
        for run in faults:
            lines.append(f"  replay(…, {str(run.plan)!r}, backend={backend!r})")
            lines += [f"    {problem}" for problem in dict.fromkeys(run.problems)]
        raise ExplorationError("\n".join(lines), tuple(run.plan for run in faults))
    return Exploration(backend, first.steps, runs, seed)


def replay(scenario: Scenario, plan: Plan | str, *, backend: str = "asyncio") -> None:
    """
    Run a scenario once, by a plan that `explore` has told.

    Args:
        scenario: As for `explore`.
        plan: Such as ``"seed=0 interrupt@12"``.
        backend: As for `explore`.

    Raises:
        ExplorationError: Something was wrong.
        ValueError: It is no plan.
    """
    made = Plan.parse(plan) if isinstance(plan, str) else plan
    run = _run(scenario, made, backend)
    if run.problems:
        raise ExplorationError("\n".join([str(made), *dict.fromkeys(run.problems)]), (made,))


def _run(scenario: Scenario, plan: Plan, backend: str) -> Run:
    run = Run(scenario, plan, backend)
    run.perform()
    return run


def _pairs(first: Run, seed: int, wanted: list[Injection], count: int) -> list[Plan]:
    """Draw plans with two injections: the second a little after the first, as a rule."""
    draw = random.Random(seed)
    plans = []
    for _ in range(count):
        step = draw.randint(1, first.steps)
        possible = [injection for injection in wanted if injection in first.possible[step - 1]]
        if possible:
            later = step + min(int(draw.expovariate(0.2)), first.steps)
            pair = ((draw.choice(possible), step), (draw.choice(wanted), later))
            plans.append(Plan(seed, pair))
    return plans
