"""
What a history lacks, and what is too much in it: calls and results, paired.

A history that was written down while a process crashed, was cut short or was
edited is refused by every provider, for each turn to come. Nothing is known of
a call whose result is missing, not even whether it was started; that is what
its placeholder says.

Repairing never touches what is in order: a message that stays as it is, is the
very object that was given.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ._plain import as_array, as_object

__all__ = ("LOST", "Entry", "Plan", "as_history", "plan")

LOST = (
    "The result of this tool call was lost. The call may have had side effects; "
    "its outcome is unknown."
)
"""What the placeholder of a lost result says; promise P6."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A call or a result in a history."""

    turn: int
    """The model's turn that it stands in, or that it follows; -1: before them all."""
    label: Hashable
    """The id of the call; None: it has none."""
    name: str | None = None
    """What pairs within a turn where one side has no id; None: nothing does."""


Plan = list[tuple[int, int | None]]
"""The results of one turn: which call, and which of the results; None: it is lost."""


def plan(calls: Sequence[Entry], results: Sequence[Entry]) -> dict[int, Plan]:
    """
    Decide which result answers which call; what is left over answers none.

    The first result of a call is its result. Ids need not be unique: each call
    takes one, in order. A result that follows another turn than its own is
    taken only if its id is that of one call alone, for else nobody can say
    which it answers.

    Returns:
        For each turn with calls, all of them: in the order in which their
        results stand, a lost one behind those of the calls before it.
    """
    pairs: dict[int, int] = {}  # from call to result
    taken: set[int] = set()

    def match(
        call_key: Callable[[Entry], Hashable], result_key: Callable[[Entry], Hashable]
    ) -> None:
        waiting: dict[Hashable, deque[int]] = {}
        for place, call in enumerate(calls):
            key = call_key(call)
            if key is not None and place not in pairs:
                waiting.setdefault(key, deque()).append(place)
        for place, result in enumerate(results):
            key = result_key(result)
            found = waiting.get(key) if key is not None and place not in taken else None
            # Nothing is answered before it was asked.
            if found and calls[found[0]].turn <= result.turn:
                pairs[found.popleft()] = place
                taken.add(place)

    def by_id(entry: Entry) -> Hashable:
        return None if entry.label is None else (entry.turn, entry.label)

    def by_name(entry: Entry) -> Hashable:
        return None if entry.name is None else (entry.turn, entry.name)

    def by_name_alone(entry: Entry) -> Hashable:
        return by_name(entry) if entry.label is None else None

    counts = Counter(call.label for call in calls)

    def by_unique_id(entry: Entry) -> Hashable:
        return entry.label if counts[entry.label] == 1 else None

    def by_both(entry: Entry) -> Hashable:
        known = entry.label is not None and entry.name is not None
        return (entry.turn, entry.label, entry.name) if known else None

    match(by_both, by_both)  # several calls may share an id
    match(by_id, by_id)
    match(by_name_alone, by_name)
    match(by_name, by_name_alone)
    match(by_unique_id, by_unique_id)
    return _by_turn(calls, pairs)


def _by_turn(calls: Sequence[Entry], pairs: dict[int, int]) -> dict[int, Plan]:
    turns: dict[int, Plan] = {call.turn: [] for call in calls}
    for asked, result in sorted(pairs.items(), key=lambda pair: pair[1]):
        turns[calls[asked].turn].append((asked, result))
    for place, call in enumerate(calls):
        if place not in pairs:
            rows = turns[call.turn]
            behind = [n for n, (other, _) in enumerate(rows, 1) if other < place]
            rows.insert(behind[-1] if behind else 0, (place, None))
    return turns


def as_history(messages: object, what: str) -> tuple[list[Any], list[dict[str, Any]]]:
    """
    Return the objects of a history as they are, and the fields of each.

    Raises:
        TypeError: It is no list, or holds something that is no object, neither
            of JSON nor of an SDK.
    """
    items = as_array(messages)
    if items is None:
        msg = f"messages must be a list of {what}, not {type(messages).__name__}"
        raise TypeError(msg)
    fields: list[dict[str, Any]] = []
    for item in items:
        found = as_object(item, "a message")
        if found is None:
            msg = f"messages must be a list of {what}, but it holds {type(item).__name__}"
            raise TypeError(msg)
        fields.append(dict(found))
    return list(items), fields
