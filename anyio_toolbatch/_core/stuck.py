"""
Which calls of an inner batch would wait for ever: families that wait for each other.

Only a call that *joins* a line can close such a circle. Whoever starts later
has no inner batch yet, so nothing that it takes can hold anybody up for ever;
and a call that was looked at when it joined is looked at no more.

A running call ends when all the calls of its inner batches end. A waiting one
starts when *each* holder of its claims ends, and for each kind of place that it
lacks *any* of those who would leave theirs to it. What waits for a person, is
detached or will be cut counts as ending: the first has a time limit of its own,
and nobody waits for the second longer than a given time. What these rules do not
make end, never does (the least fixed point).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .states import CallState

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from .scheduler import Entry

__all__ = ("find_stuck",)


def find_stuck(
    joined: Collection[Entry], passed_over: Container[Entry] = ()
) -> dict[Entry, Entry]:
    """
    Return which calls of an inner batch can never start, each with one in its way.

    Args:
        joined: Calls of one batch.
        passed_over: Calls that are to be taken as if they were over.
    """
    groups: dict[Entry, list[list[Entry]]] = {}
    awaited: dict[Entry, list[tuple[Entry, int]]] = defaultdict(list)
    to_visit = list(joined)
    for entry in to_visit:  # which grows
        if entry in groups:
            continue
        groups[entry] = [] if entry in passed_over else _needed(entry)
        for number, group in enumerate(groups[entry]):
            to_visit += group
            for other in group:
                awaited[other].append((entry, number))
    unmet = {entry: set(range(len(needed))) for entry, needed in groups.items()}
    ending = [entry for entry, needed in groups.items() if not needed]
    for entry in ending:  # which grows
        for other, number in awaited[entry]:
            if number in unmet[other]:
                unmet[other].remove(number)
                if not unmet[other]:
                    ending.append(other)
    stuck = [entry for entry in joined if unmet[entry]]
    return {entry: groups[entry][next(iter(unmet[entry]))][0] for entry in stuck}


def _needed(entry: Entry) -> list[list[Entry]]:
    """
    Return groups of calls: one of each group has to end before this one can.

    Without those groups where somebody needs nobody: most often all of them, and
    so a large batch elsewhere need not be gone through.
    """
    match entry.state:
        case CallState.RUNNING:
            inner = (call for line in entry.inner for call in line.entries.values())
            return [[call] for call in inner if not _needs_nobody(call)]
        case CallState.IN_LINE if not entry.line.is_halted:
            holders = entry.line.scheduler.table.holders_in_the_way(entry)
            groups = [[holder] for _, holder in holders if not _needs_nobody(holder)]
            for pool in entry.pools:
                if entry.lacks(pool):
                    group: list[Entry] = []
                    for holder in entry.may_leave(pool):
                        if _needs_nobody(holder):
                            break
                        group.append(holder)
                    else:
                        groups.append(group)
            return groups
        case _:
            return []


def _needs_nobody(entry: Entry) -> bool:
    return entry.state is CallState.RUNNING and not entry.inner
