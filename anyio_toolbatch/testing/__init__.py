"""
For testing an agent or a framework against this library, without sleeping.

* `GatedTool`, `AsyncGatedTool`: run until the test lets them through.
* `DeafTool`: an async tool that swallows every cancellation until released.
* `ScriptedTool`: an async tool that does what a list of steps says.
* `PromiseObserver`: an observer that checks each batch's events against what
  the library promises.
* `explore`: runs a scenario of yours again and again, interrupted, cancelled or
  disturbed at each of its steps, and checks all promises each time.

Virtual clocks (trio's `MockClock`, looptime) do not see worker threads and
jump over them: test blocking tools in real time, with gates, or with `explore`.
"""

from __future__ import annotations

from ._explorer import Exploration, ExplorationError, explore, replay
from ._observer import PromiseObserver
from ._plans import Injection, Plan
from ._stage import Stage
from ._stepping import backends
from ._tools import (
    AsyncGatedTool,
    DeafTool,
    GatedTool,
    ScriptedTool,
    Step,
    clean_up_for,
    fail,
    give,
    partial,
    progress,
    shielded_for,
    sleep,
)

__all__ = (
    "AsyncGatedTool",
    "DeafTool",
    "Exploration",
    "ExplorationError",
    "GatedTool",
    "Injection",
    "Plan",
    "PromiseObserver",
    "ScriptedTool",
    "Stage",
    "Step",
    "backends",
    "clean_up_for",
    "explore",
    "fail",
    "give",
    "partial",
    "progress",
    "replay",
    "shielded_for",
    "sleep",
)
