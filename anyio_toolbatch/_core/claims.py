"""
Who may hold which resource beside whom: a table of claims.

The structure is that of multi-granularity locks. A claim on a path puts a mode
on the path's own node and an *intention* on the node of each ancestor, so that
a claim on a folder meets the claims on what lies in it without anybody looking
through them. A plain key is a node without ancestors. What is asked of a node
is a set of four rights, kept as one of six modes (`Mode`); two modes conflict
or not by one small table.

A node counts who holds it, by mode, and keeps those who wait for it in *lines*,
again by mode, each in the order in which they joined. Calls wait in one common
line; the calls of a batch that was opened inside a running call have a line of
their own: they wait for whoever holds (but for their own ancestors) and for
each other, never for a stranger that has not started either, since that
stranger may be waiting for their own ancestor.

A waiting call is *free* when no conflicting mode is held at any of its nodes
and nobody ahead of it waits in a conflicting mode. One that is not is *watched*
at the first node that is in its way; when something leaves that node it is
looked at again. Within one line and one mode whoever joined earlier is in
nobody's way that a later one would not be in, so a look at the first watched
call is enough: if it must stay, so must those behind it. This makes the cost of
a call grow with the number of its nodes, not with the number of calls.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from .states import CallState

if TYPE_CHECKING:
    from .scheduler import Entry

__all__ = ("ClaimTable", "Mode", "Modes", "Watched", "conflict", "expand")


class Mode(enum.IntEnum):
    """What a call has or wants of one node."""

    INTENT_READ = 0
    """It reads something below."""
    INTENT_WRITE = 1
    """It writes something below."""
    READ = 2
    READ_INTENT_WRITE = 3
    """It reads this, and writes something below."""
    WRITE = 4


Modes = dict[Hashable, int]
"""The modes of one call by node."""

_IR, _IW, _R, _RIW, _W = (int(mode) for mode in Mode)

CONFLICTS: tuple[tuple[int, ...], ...] = (
    (_W,),
    (_R, _RIW, _W),
    (_IW, _RIW, _W),
    (_IW, _R, _RIW, _W),
    (_IR, _IW, _R, _RIW, _W),
)
"""By mode: the modes that it can not be held beside."""

# -- joining two modes of one call: by the rights that they stand for
_RIGHTS = (
    frozenset("r"),
    frozenset("rw"),
    frozenset("rR"),
    frozenset("rwR"),
    frozenset("rwRW"),
)
_JOINED = tuple(tuple(_RIGHTS.index(one | other) for other in _RIGHTS) for one in _RIGHTS)


def conflict(one: int, other: int) -> bool:
    """Tell whether two calls can not have these modes of a node at once."""
    return other in CONFLICTS[one]


def expand(
    reads: Iterable[tuple[Hashable, ...]], writes: Iterable[tuple[Hashable, ...]]
) -> Modes:
    """
    Return what claims ask of each node.

    Args:
        reads: For each claim its nodes, outermost first; the last is its own.
        writes: The same.
    """
    modes: Modes = {}
    for claims, own, intent in ((reads, _R, _IR), (writes, _W, _IW)):
        for *ancestors, last in claims:
            for node in ancestors:
                have = modes.get(node)
                modes[node] = intent if have is None else _JOINED[have][intent]
            modes[last] = own  # which includes whatever it has of it by now
    return modes


class _Line:
    """Who waits at one node, of one line, by mode."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[OrderedDict[Entry, None] | None] = [None] * len(Mode)
        """In the order of their numbers."""

    def first(self, mode: int) -> Entry | None:
        waiting = self.waiting[mode]
        return next(iter(waiting)) if waiting else None

    @property
    def is_empty(self) -> bool:
        return not any(self.waiting)


class Watched:
    """Those that a node is in the way of, of one line and mode."""

    __slots__ = ("heap", "left")

    def __init__(self) -> None:
        self.heap: list[tuple[int, Entry]] = []
        """By number; some may have left."""
        self.left = 0
        """How many of them."""

    def add(self, entry: Entry) -> None:
        entry.watched = self
        heapq.heappush(self.heap, (entry.number, entry))

    def first(self) -> Entry | None:
        """Return the first that has not left."""
        heap = self.heap
        while heap:
            entry = heap[0][1]
            if entry.watched is self:
                return entry
            heapq.heappop(heap)
            self.left -= 1
        return None

    def pop(self) -> None:
        """Take out the first."""
        _, entry = heapq.heappop(self.heap)
        entry.watched = None

    def leave(self, entry: Entry) -> None:
        """One does not wait any more."""
        entry.watched = None
        self.left += 1
        if self.left > _TIDY_FROM and self.left * 2 > len(self.heap):
            # Behind one that waits for long they would pile up.
            self.heap = [item for item in self.heap if item[1].watched is self]
            heapq.heapify(self.heap)
            self.left = 0


_TIDY_FROM = 16  # calls; below that it is not worth the pass


class _Node:
    """One resource, or a folder of them."""

    __slots__ = ("held", "holders", "lines", "users", "watched")

    def __init__(self) -> None:
        self.held = [0] * len(Mode)
        self.holders: dict[Entry, None] = {}
        self.lines: dict[Hashable, _Line] = {}
        self.watched: dict[tuple[Hashable, int], Watched] = {}
        """Those that this node is in the way of, by line and mode."""
        self.users = 0


class ClaimTable:
    """
    The claims of the calls that run or wait.

    After any call of a method its owner asks `take_freed` who can go on by it.
    """

    def __init__(self) -> None:
        self._freed: list[Entry] = []
        self._nodes: dict[Hashable, _Node] = {}
        self._number = 0

    def __len__(self) -> int:
        """Return how many nodes are in use."""
        return len(self._nodes)

    # -- facts ---------------------------------------------------------------

    def join(self, entry: Entry) -> bool:
        """Put a call at the end of its line; True if it is free, as in `take_freed`."""
        self._number += 1
        entry.number = self._number
        nodes = self._nodes
        for key, mode in entry.modes.items():
            node = nodes.get(key)
            if node is None:
                node = nodes[key] = _Node()
            node.users += 1
            self._wait_at(node, mode, entry)
        return self.look_again(entry)

    def look_again(self, entry: Entry) -> bool:
        """Find out whether a waiting call is free; if not, watch it."""
        nodes = self._nodes
        for key, mode in entry.modes.items():
            node = nodes[key]
            if self._is_in_the_way(key, node, mode, entry):
                entry.is_free = False
                at = (entry.line.claim_line, mode)
                watched = node.watched.get(at)
                if watched is None:
                    watched = node.watched[at] = Watched()
                watched.add(entry)
                return False
        entry.is_free = True
        self._freed.append(entry)
        return True

    def is_free(self, entry: Entry) -> bool:
        """
        Tell whether a waiting call that was free still is.

        One that does not wait in its line may have got ahead of it.
        """
        nodes = self._nodes
        return not any(
            self._is_in_the_way(key, nodes[key], mode, entry)
            for key, mode in entry.modes.items()
        )

    def hold(self, entry: Entry) -> None:
        """A waiting call that is free starts: it holds from now on."""
        for key, mode in entry.modes.items():
            node = self._nodes[key]
            self._wait_no_more(node, mode, entry)
            node.held[mode] += 1
            node.holders[entry] = None

    def leave(self, entry: Entry) -> None:
        """A waiting call does not want to wait any more."""
        if entry.watched is not None:
            entry.watched.leave(entry)
        for key, mode in entry.modes.items():
            node = self._nodes[key]
            self._wait_no_more(node, mode, entry)
            self._left(key, node)

    def release(self, entry: Entry) -> None:
        """A call that held holds no more."""
        for key, mode in entry.modes.items():
            node = self._nodes[key]
            node.held[mode] -= 1
            del node.holders[entry]
            self._left(key, node)

    def keep_writes(self, entry: Entry) -> None:
        """A call that held keeps what it writes only; its modes are changed."""
        before = entry.modes
        entry.modes = {}
        for key, mode in before.items():
            node = self._nodes[key]
            kept = _IW if mode == _RIW else mode
            if kept in {_IW, _W}:
                entry.modes[key] = kept
                node.held[kept] += 1
                node.users += 1
            else:
                del node.holders[entry]
            node.held[mode] -= 1
            self._left(key, node)

    def widen(self, entry: Entry, key: Hashable, mode: int) -> None:
        """
        A call that holds or waits already asks for one more node, without a conflict.

        For calls in the order of their numbers, of a node that nobody else uses.
        """
        node = self._nodes.setdefault(key, _Node())
        node.users += 1
        entry.modes = {**entry.modes, key: mode}
        if entry.state is CallState.RUNNING:
            node.held[mode] += 1
            node.holders[entry] = None
        else:
            self._wait_at(node, mode, entry)

    def take_freed(self) -> list[Entry]:
        """Return the calls that have been found free since it was asked last."""
        freed, self._freed = self._freed, []
        return freed

    # -- looking -------------------------------------------------------------

    def holders_in_the_way(self, entry: Entry) -> Iterator[tuple[Hashable, Entry]]:
        """Give who holds what a waiting call needs, and of which node."""
        for key, mode in entry.modes.items():
            for holder in self._nodes[key].holders:
                if conflict(mode, holder.modes[key]) and holder not in entry.line.ancestors:
                    yield key, holder

    def first_ahead(self, entry: Entry) -> tuple[Hashable, Entry] | None:
        """Return who waits ahead of a waiting call for what it needs, if anybody does."""
        for key, mode in entry.modes.items():
            node = self._nodes[key]
            for line in self._lines_ahead(node, entry):
                for other in CONFLICTS[mode]:
                    first = line.first(other)
                    if first is not None and first.number < entry.number:
                        return key, first
        return None

    def waiting_for(self, holder: Entry) -> list[Entry]:
        """Return the waiting calls that this holder is in the way of."""
        found: dict[Entry, None] = {}
        for key, mode in holder.modes.items():
            for line in self._nodes[key].lines.values():
                for other in CONFLICTS[mode]:
                    found.update(dict.fromkeys(line.waiting[other] or ()))
        return [entry for entry in found if holder not in entry.line.ancestors]

    # -- inside --------------------------------------------------------------

    def _is_in_the_way(self, key: Hashable, node: _Node, mode: int, entry: Entry) -> bool:
        held = node.held
        ancestors = entry.line.ancestors
        for other in CONFLICTS[mode]:
            count = held[other]
            if count and ancestors:
                count -= sum(
                    ancestor in node.holders and ancestor.modes[key] == other
                    for ancestor in ancestors
                )
            if count:
                return True
        for line in self._lines_ahead(node, entry):
            for other in CONFLICTS[mode]:
                first = line.first(other)
                if first is not None and first.number < entry.number:
                    return True
        return False

    @staticmethod
    def _lines_ahead(node: _Node, entry: Entry) -> Iterable[_Line]:
        own = entry.line.claim_line
        if own is None:
            return node.lines.values()
        return (node.lines[own],)

    @staticmethod
    def _wait_at(node: _Node, mode: int, entry: Entry) -> None:
        line = node.lines.get(entry.line.claim_line)
        if line is None:
            line = node.lines[entry.line.claim_line] = _Line()
        waiting = line.waiting[mode]
        if waiting is None:
            waiting = line.waiting[mode] = OrderedDict()
        waiting[entry] = None

    @staticmethod
    def _wait_no_more(node: _Node, mode: int, entry: Entry) -> None:
        key = entry.line.claim_line
        line = node.lines[key]
        waiting = line.waiting[mode]
        assert waiting is not None, "it waits here"
        del waiting[entry]
        if not waiting and line.is_empty:
            del node.lines[key]

    def _left(self, key: Hashable, node: _Node) -> None:
        """Something has left a node: those that it was in the way of are looked at."""
        node.users -= 1
        if not node.users:
            del self._nodes[key]
            return
        for (line, mode), watched in list(node.watched.items()):
            while (entry := watched.first()) is not None:
                if self._is_in_the_way(key, node, mode, entry):
                    break
                watched.pop()
                self.look_again(entry)
            else:
                del node.watched[line, mode]
