"""Rounds in which the contenders take turns, and what to make of their times."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ("Rounds", "percentile", "race", "timed")


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


class Rounds:
    """
    Iterating gives the contenders' names, round after round.

    Every second round runs backwards, so that none always follows the same
    other one. The garbage collector stays on, as users have it, but starts
    each turn with nothing to collect. The first round is not counted: it
    starts threads and fills caches.
    """

    def __init__(self, count: int, names: Iterable[Hashable]) -> None:
        self._count = count
        self._names = list(names)
        self._counts = False
        self._samples: dict[Hashable, list[float]] = defaultdict(list)

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._count + 1):
            self._counts = number > 0
            for name in self._names if number % 2 else self._names[::-1]:
                gc.collect()
                yield name

    def add(self, key: Hashable, value: float) -> None:
        """Note what was measured in this round."""
        if self._counts:
            self._samples[key].append(value)

    def values(self, key: Hashable) -> list[float]:
        return self._samples[key]

    def median(self, key: Hashable) -> float:
        return statistics.median(self._samples[key])

    def p99(self, key: Hashable) -> float:
        return percentile(self._samples[key], 0.99)

    def ratio(self, key: Hashable, to: Hashable) -> float:
        """Return the median over the rounds of one figure divided by another."""
        pairs = zip(self._samples[key], self._samples[to], strict=True)
        return statistics.median(one / other for one, other in pairs)


async def timed(function: Callable[[], Awaitable[object]], repeat: int = 1) -> float:
    """Return the seconds that one call takes, as the mean of `repeat` calls."""
    start = time.perf_counter()
    for _ in range(repeat):
        await function()
    return (time.perf_counter() - start) / repeat


async def race(
    count: int,
    contenders: Mapping[str, Callable[[], Awaitable[object]]],
    repeat: int = 1,
) -> Rounds:
    """Time the contenders against each other."""
    rounds = Rounds(count, contenders)
    for name in rounds:
        rounds.add(name, await timed(contenders[name], repeat))
    return rounds
