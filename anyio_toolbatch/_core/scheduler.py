"""
Which call may start next.

Facts come in (`add`, `approve`, `release`, `let_go`), decisions come out:
`grant` names the next call to start, its claims and places taken; and
`take_refusals` names those that wait in vain.

The rules:

* Nothing is held while waiting. A call takes its claims and its places in one
  step, when it starts; a place in line is no hold.
* Conflicting calls of a batch start in call order, also while an earlier one
  is still being asked for. Such a batch has a private table of claims: a call
  joins the common line only when it is approved and no earlier call of its
  batch that it conflicts with is still in the private one. So a line that
  waits for a person holds up its own batch only.
* A freed place goes to the first call of a batch, in call order, that may use
  it; batches take turns, so that a small one is not stuck behind a large one.
* ``exclusive`` is a write claim on the batch itself, which every other call of
  the batch reads. Only batches that have such a call pay for that.
* A call lends its places to the calls of a batch that was opened inside it,
  one at a time; they fall back to it. So an inner batch can always go on, at
  any depth, even where its ancestors hold every place there is.

A call and a batch are anything hashable to this file.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from .claims import ClaimTable, Mode, Modes, conflict
from .states import TRANSITIONS, CallState, Fact
from .stuck import is_stuck

__all__ = ("Entry", "Limits", "Needs", "Pool", "Refusal", "Scheduler", "Wait")


class Needs(NamedTuple):
    """What a call needs to start."""

    modes: Modes = {}  # noqa: RUF012 - never changed in place
    exclusive: bool = False
    thread: bool = False
    slot: bool = True
    tool: Hashable = None
    """Whose running calls are capped."""
    tool_limit: int | None = None


class Wait(NamedTuple):
    """What a waiting call waits for."""

    kind: str
    """``"approval"``, ``"order"``, ``"claim"``, ``"place"`` or ``"turn"``."""
    what: Any
    """The claimed node, or the pool's name."""
    calls: list[Any]
    """Those who are in the way."""


class Refusal(NamedTuple):
    """A call that must not wait any longer."""

    call: Any
    holder: Any
    """Who holds what it waits for."""
    since: float | None
    """When the holder was let go; None if they would wait for each other."""


class Pool:
    """Places of one kind: how many there are, and who has one."""

    __slots__ = ("free", "holders", "limit", "limits", "name", "users")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.free = limit
        self.holders: dict[Entry, None] = {}
        # -- of a tool's places, which several runners may share
        self.users = 0
        """How many calls want one or have one."""
        self.limits: dict[Limits, None] = {}
        """Whose calls they are."""


Pools = tuple[Pool, ...]


class Limits:
    """
    The limits of one runner.

    Args:
        slots: How many calls may run at once; None for no limit.
        threads: How many blocking calls may run at once.
        patience: Seconds that a call waits for a detached holder of its claims.
    """

    def __init__(self, slots: int | None, threads: int, patience: float) -> None:
        self.slots = None if slots is None else Pool("max_concurrency", slots)
        self.threads = Pool("max_threads", threads)
        self.patience = patience
        self._turns: deque[BatchLine] = deque()
        self._ready: dict[Pools, int] = {}
        self._inner = 0

    def enlist(self, line: BatchLine, pools: Pools) -> None:
        """A call of this batch waits for nothing but places."""
        self._ready[pools] = self._ready.get(pools, 0) + 1
        if not line.has_turn:
            line.has_turn = True
            self._turns.append(line)
            self._inner += bool(line.ancestors)

    def strike(self, pools: Pools, count: int = 1) -> None:
        """Such calls do not wait any more."""
        self._ready[pools] -= count
        if not self._ready[pools]:
            del self._ready[pools]

    def next(self, table: ClaimTable) -> Entry | None:
        """Return the next call that may start; None if none may."""
        open_ = {p for p in self._ready if all(pool.free for pool in p)}
        if self._ready and not open_ and not self._inner:
            return None  # (without anybody ready the turns are tidied up)
        turns = self._turns
        skipped: list[BatchLine] = []  # they keep their turn
        entry = None
        while turns and entry is None:
            line = turns.popleft()
            entry = line.next(open_, table)
            if not any(line.ready.values()):
                line.has_turn = False
                self._inner -= bool(line.ancestors)
            elif entry is None:
                skipped.append(line)
            else:
                turns.append(line)
        turns.extendleft(reversed(skipped))
        return entry


class Entry:
    """One call: where it is, what it needs, what it has."""

    __slots__ = (
        "call",
        "held",
        "index",
        "inner",
        "is_free",
        "is_ready",
        "joined_at",
        "lent",
        "let_go_at",
        "line",
        "looked_at",
        "modes",
        "needs",
        "number",
        "pools",
        "private",
        "state",
    )

    def __init__(self, call: Any, line: BatchLine, needs: Needs, pools: Pools) -> None:
        self.call = call
        self.line = line
        self.needs = needs
        self.pools = pools
        self.index = line.count
        self.modes = needs.modes
        self.state = CallState.PREPARING
        self.private = False
        """It stands in its batch's private table."""
        # -- written by the table
        self.number = 0
        self.looked_at = 0
        self.is_free = True
        # -- places
        self.is_ready = False
        self.held: dict[Pool, Entry | None] = {}
        """By pool: who lent the place; None if it is the pool's own."""
        self.lent: dict[Pool, Entry] = {}
        self.joined_at = 0.0
        self.let_go_at = 0.0
        self.inner: dict[BatchLine, None] = {}
        """The batches that were opened inside it, at any depth."""

    def move(self, fact: Fact) -> None:
        self.state = TRANSITIONS[self.state][fact]

    def take_places(self) -> None:
        for pool in self.pools:
            lender = self.lender(pool)
            if lender is None:
                pool.free -= 1
            else:
                lender.lent[pool] = self
            self.held[pool] = lender
            pool.holders[self] = None

    def can_take_places(self) -> bool:
        return all(pool.free or self.lender(pool) is not None for pool in self.pools)

    def lender(self, pool: Pool) -> Entry | None:
        for ancestor in self.line.ancestors:
            if pool in ancestor.held and pool not in ancestor.lent:
                return ancestor
        return None

    def give_back(self, pool: Pool) -> None:
        """Give a place back to whom it came from, or leave it to who has it on loan."""
        if pool not in self.held:
            return
        lender = self.held.pop(pool)
        del pool.holders[self]
        borrower = self.lent.pop(pool, None)
        if borrower is not None:
            borrower.held[pool] = lender
            if lender is not None:
                lender.lent[pool] = borrower
        elif lender is not None:
            del lender.lent[pool]
        else:
            pool.free += 1


class BatchLine:
    """The calls of one batch that are not over."""

    __slots__ = (
        "all_ancestors",
        "ancestors",
        "batch",
        "claim_line",
        "count",
        "entries",
        "has_barrier",
        "has_turn",
        "held_back",
        "is_halted",
        "limits",
        "private",
        "ready",
        "scheduler",
    )

    def __init__(
        self, batch: Hashable, limits: Limits, ancestors: tuple[Entry, ...], owner: Scheduler
    ) -> None:
        self.batch = batch
        self.limits = limits
        self.scheduler = owner
        self.all_ancestors = ancestors
        # Of another runner neither claims nor places are of any use here.
        self.ancestors = tuple(a for a in ancestors if a.line.scheduler is owner)
        self.claim_line: Hashable = self if ancestors else None
        """The line that its calls wait in; None for the common one."""
        self.count = 0
        self.entries: dict[Hashable, Entry] = {}
        """In call order."""
        self.ready: dict[Pools, list[tuple[int, Entry]]] = {}
        """Those that wait for places only: heaps, in call order."""
        self.private: ClaimTable | None = None
        self.has_barrier = False
        self.has_turn = False
        self.is_halted = False
        self.held_back = 0
        """How many are asked for, or stand behind one that is."""

    def enlist(self, entry: Entry) -> None:
        """A call waits for nothing but its places."""
        entry.is_ready = True
        pools = entry.pools
        heap = self.ready.get(pools)
        if heap is None:
            heap = self.ready[pools] = []
        heapq.heappush(heap, (entry.index, entry))
        self.limits.enlist(self, pools)

    def strike(self, entry: Entry) -> None:
        """It does not wait any more; the heaps forget it when they come to it."""
        entry.is_ready = False
        if not self.is_halted:
            self.limits.strike(entry.pools)

    def halt(self) -> None:
        """Nothing of this batch starts any more."""
        if self.is_halted:
            return
        for pools, heap in self.ready.items():
            count = sum(entry.is_ready for _, entry in heap)
            if count:
                self.limits.strike(pools, count)
        self.is_halted = True
        self.ready.clear()

    def next(self, open_: set[Pools], table: ClaimTable) -> Entry | None:
        """Return its first call that may start now, out of the heaps."""
        while True:
            best: list[tuple[int, Entry]] | None = None
            for pools, heap in self.ready.items():
                while heap and not heap[0][1].is_ready:
                    heapq.heappop(heap)
                if not heap or (best is not None and best[0] < heap[0]):
                    continue
                if pools in open_ or (self.ancestors and heap[0][1].can_take_places()):
                    best = heap
            if best is None:
                return None
            entry = heapq.heappop(best)[1]
            self.strike(entry)
            if not entry.modes or table.is_free(entry):
                return entry
            # A call that does not wait in its line got ahead of it.
            table.look_again(entry)


class Scheduler:
    """
    Decides for the batches of one runner, or of several that share their claims.

    Calls of the batches of one runner must all be given the same `Limits`.
    """

    def __init__(self) -> None:
        self.table = ClaimTable()
        self._entries: dict[Hashable, Entry] = {}
        self._lines: dict[Hashable, BatchLine] = {}
        self._tools: dict[Hashable, Pool] = {}
        self._hungry: dict[Limits, None] = {}
        """Those for whom something has changed since none of their calls could start."""
        self._detached: dict[Entry, None] = {}
        self._busy: list[tuple[float, int, Entry, Entry]] = []
        """Heap: when who will have waited too long for whom."""
        self._busy_number = 0
        self._unchecked: list[Entry] = []

    # -- facts ---------------------------------------------------------------

    def add(
        self,
        batch: Hashable,
        limits: Limits,
        call: Hashable,
        needs: Needs,
        now: float,
        *,
        ask: bool = False,
        ancestors: tuple[Entry, ...] = (),
    ) -> Entry:
        """
        Take in a call, after all calls of its batch that were added before.

        Args:
            batch: Whose call it is.
            limits: Of the batch's runner.
            call: The call; must be new.
            needs: What it needs to start.
            now: The time in seconds, on the clock of `take_refusals`.
            ask: It may not start before it is approved.
            ancestors: The calls that the batch was opened inside of, the
                innermost first.
        """
        line = self._lines.get(batch)
        if line is None:
            line = self._lines[batch] = BatchLine(batch, limits, ancestors, self)
            for ancestor in ancestors:
                ancestor.inner[line] = None
        entry = Entry(call, line, needs, self._pools(needs, limits))
        line.count += 1
        if needs.exclusive and not line.has_barrier:
            self._raise_barrier(line)
        self._entries[call] = line.entries[call] = entry
        if line.has_barrier:
            mode = Mode.WRITE if needs.exclusive else Mode.READ
            entry.modes = {**entry.modes, line: int(mode)}
        if ask:
            entry.move(Fact.ASK)
            line.held_back += 1
            if entry.modes:
                if line.private is None:
                    line.private = ClaimTable()
                entry.private = True
                line.private.join(entry)
                line.private.freed.clear()
        else:
            self._line_up(entry, now)
        return entry

    def approve(self, call: Hashable, now: float) -> None:
        """A call that was asked for may start."""
        entry = self._entries[call]
        entry.move(Fact.APPROVE)
        if not entry.private:
            entry.line.held_back -= 1
            self._line_up(entry, now)
        elif entry.is_free:
            self._leave_private(entry, now)

    def release(self, call: Hashable, now: float) -> bool:
        """A call has ended, or will never start; False if it was over already."""
        entry = self._entries.pop(call, None)
        if entry is None:
            return False
        state, line = entry.state, entry.line
        entry.move(Fact.END)
        del line.entries[call]
        match state:
            case CallState.ASKED | CallState.BEHIND:
                line.held_back -= 1
                if entry.private and not line.is_halted:
                    self._out_of_private(entry, now)
            case CallState.IN_LINE:
                if entry.is_ready:
                    line.strike(entry)
                    self._hungry[line.limits] = None  # to be tidied up
                if entry.modes:
                    self.table.leave(entry)
                    self._take_freed()
            case _:  # RUNNING or DETACHED; nothing else can end
                self._give_back(entry)
                self._detached.pop(entry, None)
                if entry.modes:
                    self.table.release(entry)
                    self._take_freed()
        self._drop_user(entry)
        if not line.entries:
            del self._lines[line.batch]
            for ancestor in line.all_ancestors:
                ancestor.inner.pop(line, None)
        return True

    def let_go(self, call: Hashable, now: float) -> None:
        """A running call was let go of; it keeps nothing but what it may still write."""
        entry = self._entries.get(call)
        if entry is None or entry.state is not CallState.RUNNING:
            return
        if entry.modes:
            self.table.keep_writes(entry)
            self._take_freed()
        if not entry.modes:
            self.release(call, now)
            return
        self._give_back(entry)
        entry.move(Fact.LET_GO)
        entry.let_go_at = now
        self._detached[entry] = None
        for waiting in self.table.waiting_for(entry):
            self._await_end(waiting, entry, now)

    def leave_thread(self, call: Hashable) -> None:
        """A running call does not need its thread any more."""
        entry = self._entries.get(call)
        if entry is not None:
            pool = entry.line.limits.threads
            entry.give_back(pool)
            self._freed_place(entry, pool)

    def halt(self, batch: Hashable) -> None:
        """Nothing of this batch starts any more; its calls are released one by one."""
        line = self._lines.get(batch)
        if line is not None:
            line.halt()
            self._hungry[line.limits] = None  # to be tidied up

    # -- decisions -----------------------------------------------------------

    def grant(self) -> Any | None:
        """Return the next call to start now, its claims and places taken; or None."""
        while self._hungry:
            limits = next(iter(self._hungry))
            entry = limits.next(self.table)
            if entry is not None:
                entry.move(Fact.GRANT)
                entry.take_places()
                if entry.modes:
                    self.table.hold(entry)
                return entry.call
            del self._hungry[limits]
        return None

    def take_refusals(self, now: float) -> list[Refusal]:
        """Return those that must not wait any longer; to be asked after `grant`."""
        refused: dict[Hashable, Refusal] = {}
        while self._busy and self._busy[0][0] <= now:
            _, _, entry, holder = heapq.heappop(self._busy)
            if _still_waits(entry, holder):
                refused[entry.call] = Refusal(entry.call, holder.call, holder.let_go_at)
        unchecked, self._unchecked = self._unchecked, []
        for entry in unchecked:
            if entry.state is CallState.IN_LINE and is_stuck(entry):
                culprit = next(iter(entry.line.scheduler.in_the_way(entry)), None)
                holder = None if culprit is None else culprit.call
                refused.setdefault(entry.call, Refusal(entry.call, holder, None))
        return list(refused.values())

    def next_refusal(self) -> float | None:
        """Return when `take_refusals` is to be asked again, if nothing happens before."""
        while self._busy and not _still_waits(*self._busy[0][2:]):
            heapq.heappop(self._busy)
        return self._busy[0][0] if self._busy else None

    # -- looking -------------------------------------------------------------

    def held_back(self, batch: Hashable) -> int:
        """Return how many calls of a batch are asked for, or stand behind one that is."""
        line = self._lines.get(batch)
        return 0 if line is None else line.held_back

    def entry(self, call: Hashable) -> Entry | None:
        """Return a call's entry, unless it is over."""
        return self._entries.get(call)

    def __len__(self) -> int:
        """Return how many calls are not over."""
        return len(self._entries)

    def wait_of(self, call: Hashable) -> Wait | None:
        """Return what a call waits for; None if it does not wait."""
        entry = self._entries.get(call)
        if entry is None:
            return None
        line = entry.line
        match entry.state:
            case CallState.ASKED:
                return Wait("approval", None, [])
            case CallState.BEHIND:
                assert line.private is not None, "it stands there"
                ahead = line.private.first_ahead(entry)
                return Wait("order", *_named(ahead))
            case CallState.IN_LINE:
                held = next(iter(self.table.holders_in_the_way(entry)), None)
                if held is not None:
                    return Wait("claim", *_named(held))
                ahead = self.table.first_ahead(entry)
                if ahead is not None:
                    return Wait("claim", *_named(ahead))
                for pool in entry.pools:
                    if not pool.free:
                        return Wait("place", pool.name, [e.call for e in pool.holders])
                return Wait("turn", None, [])
            case _:
                return None

    def in_the_way(self, entry: Entry) -> Iterable[Entry]:
        """Give who must end before a waiting call can start, as far as they hold."""
        for _, holder in self.table.holders_in_the_way(entry):
            yield holder
        for pool in entry.pools:
            if not pool.free:
                yield from pool.holders

    # -- inside --------------------------------------------------------------

    def _pools(self, needs: Needs, limits: Limits) -> Pools:
        pools: list[Pool] = []
        if needs.slot and limits.slots is not None:
            pools.append(limits.slots)
        if needs.thread:
            pools.append(limits.threads)
        if needs.tool_limit is not None:
            pool = self._tools.get(needs.tool)
            if pool is None:
                pool = self._tools[needs.tool] = Pool("Tool.max_concurrency", needs.tool_limit)
            pool.users += 1
            pool.limits[limits] = None
            pools.append(pool)
        return tuple(pools)

    def _raise_barrier(self, line: BatchLine) -> None:
        """Give the batch a node, which all its calls until now read."""
        line.has_barrier = True
        for entry in sorted(line.entries.values(), key=lambda entry: entry.number):
            mode = int(Mode.READ)
            match entry.state:
                case CallState.DETACHED:
                    pass
                case CallState.ASKED | CallState.BEHIND if not entry.modes:
                    if line.private is None:
                        line.private = ClaimTable()
                    entry.modes = {line: mode}
                    entry.private = True
                    line.private.join(entry)
                    line.private.freed.clear()
                case CallState.ASKED | CallState.BEHIND:
                    assert line.private is not None, "it stands there"
                    line.private.widen(entry, line, mode)
                case _:
                    self.table.widen(entry, line, mode)

    def _line_up(self, entry: Entry, now: float) -> None:
        entry.move(Fact.LINE_UP)
        entry.joined_at = now
        if entry.line.all_ancestors:
            self._unchecked.append(entry)
        if not entry.modes:
            self._is_free_now(entry)
            return
        if not self.table.join(entry):
            for holder in self._detached:
                if holder not in entry.line.ancestors and any(
                    key in entry.modes and conflict(mode, entry.modes[key])
                    for key, mode in holder.modes.items()
                ):
                    self._await_end(entry, holder, now)
        self._take_freed()

    def _leave_private(self, entry: Entry, now: float) -> None:
        """Join the common line, and so may those that stood behind only this one."""
        entry.line.held_back -= 1
        entry.private = False
        private = entry.line.private
        assert private is not None, "it stood there"
        private.leave(entry)
        freed, private.freed = private.freed, []
        self._line_up(entry, now)
        self._move_up(freed, now)

    def _out_of_private(self, entry: Entry, now: float) -> None:
        private = entry.line.private
        assert private is not None, "it stood there"
        private.leave(entry)
        freed, private.freed = private.freed, []
        self._move_up(freed, now)

    def _move_up(self, freed: list[Entry], now: float) -> None:
        for entry in sorted(freed, key=lambda entry: entry.number):
            if entry.state is CallState.BEHIND:
                self._leave_private(entry, now)

    def _take_freed(self) -> None:
        freed, self.table.freed = self.table.freed, []
        for entry in freed:
            self._is_free_now(entry)

    def _is_free_now(self, entry: Entry) -> None:
        if not entry.line.is_halted:
            entry.line.enlist(entry)
            self._hungry[entry.line.limits] = None

    def _give_back(self, entry: Entry) -> None:
        for pool in entry.pools:
            entry.give_back(pool)
            self._freed_place(entry, pool)

    def _freed_place(self, entry: Entry, pool: Pool) -> None:
        self._hungry[entry.line.limits] = None
        self._hungry.update(pool.limits)

    def _drop_user(self, entry: Entry) -> None:
        if entry.needs.tool_limit is not None:
            pool = self._tools[entry.needs.tool]
            pool.users -= 1
            if not pool.users:
                del self._tools[entry.needs.tool]

    def _await_end(self, entry: Entry, holder: Entry, now: float) -> None:
        self._busy_number += 1
        due = now + entry.line.limits.patience
        heapq.heappush(self._busy, (due, self._busy_number, entry, holder))


def _still_waits(entry: Entry, holder: Entry) -> bool:
    return entry.state is CallState.IN_LINE and holder.state is CallState.DETACHED


def _named(found: tuple[Hashable, Entry] | None) -> tuple[Any, list[Any]]:
    if found is None:
        return None, []
    key, entry = found
    return key, [entry.call]
