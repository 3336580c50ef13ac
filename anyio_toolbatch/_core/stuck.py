"""
Whether a call of an inner batch would wait for ever: two families that wait for each other.

Only a call that *joins* a line can close such a circle. Whoever starts later
has no inner batch yet, so nothing that it takes can hold anybody up for ever;
and a call that was looked at when it joined is looked at no more.

A running call ends when all the calls of its inner batches end. A waiting one
starts when *each* holder of its claims ends, and for each kind of place that is
not free *any* of those who have one. What waits for a person, or is detached,
counts as ending: the one has a time limit of its own, the other is refused in
time. What these rules do not make end, never does (the least fixed point).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .states import CallState

if TYPE_CHECKING:
    from .scheduler import Entry

__all__ = ("is_stuck",)


def is_stuck(start: Entry) -> bool:
    """Tell whether a waiting call of an inner batch can never start."""
    # Its ancestors can't end before it: they are never said to.
    groups: dict[Entry, list[list[Entry]]] = {a: [[]] for a in start.line.all_ancestors}
    to_visit = [start]
    while to_visit:
        entry = to_visit.pop()
        if entry in groups:
            continue
        groups[entry] = needed = _needed(entry)
        for group in needed:
            to_visit.extend(group)
    ending: set[Entry] = set()
    grows = True
    while grows:
        grows = False
        for entry, needed in groups.items():
            if entry not in ending and all(
                any(other in ending for other in group) for group in needed
            ):
                ending.add(entry)
                grows = True
    return start not in ending


def _needed(entry: Entry) -> list[list[Entry]]:
    """Return groups of calls: one of each group has to end before this one can."""
    match entry.state:
        case CallState.RUNNING:
            return [
                [call]
                for line in entry.inner
                for call in line.entries.values()
                if call.state in {CallState.RUNNING, CallState.IN_LINE}
            ]
        case CallState.IN_LINE:
            table = entry.line.scheduler.table
            groups = [[holder] for _, holder in table.holders_in_the_way(entry)]
            groups += [
                list(pool.holders)
                for pool in entry.pools
                if not pool.free and entry.lender(pool) is None
            ]
            return groups
        case _:
            return []
