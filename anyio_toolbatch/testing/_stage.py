"""What a scenario works with: tools that the explorer lets through, and a runner to watch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._model.results import LateResult
from .._runtime.runner import ToolRunner
from ._observer import PromiseObserver
from ._tools import AsyncGatedTool, DeafTool, GatedTool, Witness

__all__ = ("Stage",)


class Stage:
    """
    Given to a scenario, one for each run.

    Tools made here are held at their gates until the explorer lets them through,
    one call at a time, when nothing else is left that could run. Other async
    tools may be used as they are: time does not pass while anything is running,
    and then jumps to the next deadline, so that a `sleep` takes none.
    """

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._runners: list[ToolRunner] = []
        """Kept until the run has been checked: what they have on the loop goes with them."""
        self.gates: list[GatedTool | AsyncGatedTool] = []
        """The gated tools made so far."""
        self.deaf_tools: list[DeafTool] = []
        """The deaf tools made so far."""
        self.observer = PromiseObserver()
        """For a runner's `observers`; what it finds is a fault of the run."""
        self.late: list[LateResult] = []
        """What `on_late` was given."""

    def gated(self, name: str = "gated", **options: Any) -> GatedTool:
        """Make a blocking tool; arguments as for `GatedTool`."""
        gate = GatedTool(name, **options)
        self._add(gate)
        return gate

    def gated_async(self, name: str = "gated_async", **options: Any) -> AsyncGatedTool:
        """Make an async tool; arguments as for `AsyncGatedTool`."""
        gate = AsyncGatedTool(name, **options)
        self._add(gate)
        return gate

    def _add(self, gate: GatedTool | AsyncGatedTool) -> None:
        gate.witness = self._witness
        self.gates.append(gate)

    def deaf(self, name: str = "deaf", **options: Any) -> DeafTool:
        """Make an async tool that ignores cancellation, until all else has happened."""
        tool = DeafTool(name, **options)
        self.deaf_tools.append(tool)
        return tool

    def runner(self, tools: Iterable[Any] = (), **options: Any) -> ToolRunner:
        """
        Make a `ToolRunner` that the stage's observer and late hook are attached to.

        One that is made otherwise is explored as well, but what its observers
        and its late hook are told is not checked.

        Args:
            tools: As for `ToolRunner`; gated and deaf tools may be given as they are.
            **options: Those of `ToolRunner`.
        """
        observers = [self.observer, *options.pop("observers", ())]
        options.setdefault("on_late", self.late.append)
        plain = [
            tool.tool if isinstance(tool, GatedTool | AsyncGatedTool | DeafTool) else tool
            for tool in tools
        ]
        runner = ToolRunner(plain, observers=observers, **options)
        self._runners.append(runner)
        return runner
