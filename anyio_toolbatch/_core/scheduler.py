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
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from .claims import ClaimTable, Mode, Modes, Watched, conflict
from .states import TRANSITIONS, CallState, Fact
from .stuck import find_stuck

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

    __slots__ = ("free", "holders", "limit", "limits", "name")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.free = limit
        self.holders: dict[Entry, None] = {}
        self.limits: dict[Limits, int] = {}
        """
        Of a tool's places, which several runners may share: who has how many
        calls that want one or have one.
        """


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
        self._turns: dict[Pools, OrderedDict[BatchLine, None]] = {}
        """By what they need: the batches whose calls wait for places only, in turn."""
        self._borrowers: dict[BatchLine, None] = {}
        """Those of them to whom somebody may have a place to lend."""
        self._turn = 0

    def enlist(self, line: BatchLine, pools: Pools) -> None:
        """A batch has calls now that wait for nothing but these places."""
        if pools not in self._turns:
            self._turns[pools] = OrderedDict()
        self._turns[pools][line] = None
        if len(line.ready) == 1:
            self._pass_turn(line)
        self.may_borrow(line)

    def may_borrow(self, line: BatchLine) -> None:
        """A place has been given back that may be lent to a batch."""
        if line.ancestors and line.ready:
            self._borrowers[line] = None

    def strike(self, line: BatchLine, pools: Pools) -> None:
        """It has none any more."""
        del self._turns[pools][line]
        if not self._turns[pools]:
            del self._turns[pools]
        if not line.ready:
            self._borrowers.pop(line, None)

    def next(self, table: ClaimTable) -> Entry | None:
        """Return the next call that may start; None if none may."""
        while True:
            # Whoever stands first where there are places.
            lines = [
                next(iter(turns))
                for pools, turns in self._turns.items()
                if all(pool.free for pool in pools)
            ]
            for line in list(self._borrowers):
                if not line.can_borrow():
                    del self._borrowers[line]
                elif line.first() is not None:
                    lines.append(line)
            if not lines:
                return None
            line = min(lines, key=_turn_of)
            entry = line.first()
            assert entry is not None, "there is a place for one"
            line.strike(entry)
            if table.is_free(entry):
                self._pass_turn(line)
                return entry
            table.look_again(entry)

    def _pass_turn(self, line: BatchLine) -> None:
        self._turn += 1
        line.turn = self._turn
        for pools in line.ready:
            self._turns[pools].move_to_end(line)


_NONE: dict[Any, Any] = {}
"""Never written to."""


class Entry:
    """One call: where it is, what it needs, what it has."""

    __slots__ = (
        "call",
        "held",
        "index",
        "inner",
        "is_free",
        "is_ready",
        "lent",
        "let_go_at",
        "line",
        "modes",
        "needs",
        "number",
        "pools",
        "state",
        "watched",
    )

    def __init__(self, call: Any, line: BatchLine, needs: Needs, pools: Pools) -> None:
        self.call = call
        self.line = line
        self.needs = needs
        self.pools = pools
        self.index = line.count
        self.modes: Modes = needs.modes
        self.state = CallState.PREPARING
        # -- written by the table
        self.number = 0
        self.is_free = True
        self.watched: Watched | None = None
        # -- places
        self.is_ready = False
        # Most calls need none of these: `_NONE` stands for what is not made yet.
        self.held: dict[Pool, Entry | None] = _NONE
        """By pool: who lent the place; None if it is the pool's own."""
        self.lent: dict[Pool, Entry] = _NONE
        self.let_go_at = 0.0
        self.inner: dict[BatchLine, None] = _NONE
        """The batches that were opened inside it, at any depth."""

    def move(self, fact: Fact) -> None:
        self.state = TRANSITIONS[self.state][fact]

    def take_places(self) -> None:
        if self.pools:
            self.held = {}
        for pool in self.pools:
            lender = self.lender(pool)
            if lender is None:
                pool.free -= 1
            else:
                lender.lent = {**lender.lent, pool: self}
            self.held[pool] = lender
            pool.holders[self] = None

    def lacks(self, pool: Pool) -> bool:
        """Tell whether there is no such place for it now."""
        return not pool.free and self.lender(pool) is None

    def may_leave(self, pool: Pool) -> Iterator[Entry]:
        """Give those of whom one has to end before it gets such a place."""
        ancestors = self.line.ancestors
        for holder in pool.holders:
            # What is on loan falls back to the lender: to no use, unless that is ours.
            lender = holder.held[pool]
            if holder not in ancestors and (lender is None or lender in ancestors):
                yield holder

    def lender(self, pool: Pool) -> Entry | None:
        return self.line.lender(pool)

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
            for line in lender.inner:
                line.limits.may_borrow(line)
        else:
            pool.free += 1


class Ready:
    """Those of a batch's calls that wait for the same places and for nothing else."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.count = 0
        self.heap: list[tuple[int, Entry]] = []
        """In call order; with some that do not wait any more."""


class BatchLine:
    """The calls of one batch that are not over."""

    __slots__ = (
        "ancestors",
        "batch",
        "claim_line",
        "count",
        "entries",
        "has_barrier",
        "held_back",
        "is_halted",
        "limits",
        "private",
        "ready",
        "scheduler",
        "turn",
    )

    def __init__(
        self, batch: Hashable, limits: Limits, ancestors: tuple[Entry, ...], owner: Scheduler
    ) -> None:
        self.batch = batch
        self.limits = limits
        self.scheduler = owner
        self.ancestors = ancestors
        """Some may be another scheduler's; those have no claims or places to share."""
        self.claim_line: Hashable = object() if ancestors else None
        """The line that its calls wait in, by any name; None for the common one."""
        self.count = 0
        self.entries: dict[Hashable, Entry] = {}
        """In call order."""
        self.ready: dict[Pools, Ready] = {}
        """Those that wait for places only."""
        self.turn = 0
        """When it had its last turn."""
        self.private = ClaimTable()
        """Of those that are asked for, or stand behind one that is."""
        self.has_barrier = False
        self.is_halted = False
        self.held_back = 0
        """How many are asked for, or stand behind one that is."""

    def enlist(self, entry: Entry) -> None:
        """A call waits for nothing but its places."""
        entry.is_ready = True
        ready = self.ready.get(entry.pools)
        if ready is None:
            ready = self.ready[entry.pools] = Ready()
            self.limits.enlist(self, entry.pools)
        ready.count += 1
        heapq.heappush(ready.heap, (entry.index, entry))

    def strike(self, entry: Entry) -> None:
        """It does not wait any more; the heap forgets it when it comes to it."""
        entry.is_ready = False
        if self.is_halted:
            return
        self.ready[entry.pools].count -= 1
        if not self.ready[entry.pools].count:
            self._strike_all(entry.pools)

    def halt(self) -> None:
        """Nothing of this batch starts any more."""
        self.is_halted = True
        for pools in list(self.ready):
            self._strike_all(pools)

    def lender(self, pool: Pool) -> Entry | None:
        """Return the innermost ancestor that has such a place and has not lent it yet."""
        for ancestor in self.ancestors:
            if pool in ancestor.held and pool not in ancestor.lent:
                return ancestor
        return None

    def can_borrow(self) -> bool:
        """Tell whether anybody has a place to lend that its calls wait for."""
        return any(self.lender(pool) is not None for pools in self.ready for pool in pools)

    def first(self) -> Entry | None:
        """Return its first call that may start now."""
        best: tuple[int, Entry] | None = None
        for pools, ready in self.ready.items():
            heap = ready.heap
            while not heap[0][1].is_ready:
                heapq.heappop(heap)
            if best is None or heap[0] < best:
                entry = heap[0][1]
                if not any(map(entry.lacks, pools)):
                    best = heap[0]
        return None if best is None else best[1]

    def _strike_all(self, pools: Pools) -> None:
        del self.ready[pools]
        self.limits.strike(self, pools)


def _turn_of(line: BatchLine) -> int:
    return line.turn


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
        self._tidy_busy_at = _TIDY_FROM
        self._unchecked: list[Entry] = []

    @property
    def is_idle(self) -> bool:
        """No call waits, runs, or holds anything after it was let go."""
        return not (self._entries or self._lines or self._detached or len(self.table))

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
                ancestor.inner = {**ancestor.inner, line: None}
        entry = Entry(call, line, needs, self._pools(needs, limits))
        line.count += 1
        if needs.exclusive and not line.has_barrier:
            self._raise_barrier(line)
        self._entries[call] = line.entries[call] = entry
        if line.has_barrier:
            mode = Mode.WRITE if needs.exclusive else Mode.READ
            entry.modes = {**entry.modes, line: int(mode)}
        if ask or line.private:
            entry.move(Fact.ASK)
            line.held_back += 1
            line.private.join(entry)
            if not ask:  # but it may have to stand behind one that is asked for
                self.approve(call, now)
        else:
            self._line_up(entry, now)
        return entry

    def approve(self, call: Hashable, now: float) -> None:
        """A call that was asked for may start."""
        entry = self._entries[call]
        entry.move(Fact.APPROVE)
        if entry.is_free:
            self._leave_private([entry], now)

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
                line.private.leave(entry)
                self._leave_private(line.private.take_freed(), now)
            case CallState.IN_LINE:
                if entry.is_ready:
                    line.strike(entry)
                self.table.leave(entry)
                self._take_freed()
            case _:  # RUNNING or DETACHED; nothing else can end
                self._give_back(entry, entry.pools)
                self._detached.pop(entry, None)
                self.table.release(entry)
                self._take_freed()
        self._drop_user(entry)
        if not line.entries:
            del self._lines[line.batch]
            for ancestor in line.ancestors:
                ancestor.inner.pop(line, None)
        return True

    def let_go(self, call: Hashable, now: float) -> None:
        """A running call was let go of; it keeps nothing but what it may still write."""
        entry = self._entries.get(call)
        if entry is None or entry.state is not CallState.RUNNING:
            return
        self.table.keep_writes(entry)
        self._take_freed()
        if not entry.modes:
            self.release(call, now)
            return
        self._give_back(entry, entry.pools)
        entry.move(Fact.LET_GO)
        entry.let_go_at = now
        self._detached[entry] = None
        for waiting in self.table.waiting_for(entry):
            self._await_end(waiting, entry, now)

    def leave_thread(self, call: Hashable) -> None:
        """A running call does not need its thread any more."""
        entry = self._entries.get(call)
        if entry is not None:
            self._give_back(entry, (entry.line.limits.threads,))

    def halt(self, batch: Hashable) -> None:
        """Nothing of this batch starts any more; its calls are released one by one."""
        line = self._lines.get(batch)
        if line is not None:
            line.halt()

    # -- decisions -----------------------------------------------------------

    def grant(self) -> Any | None:
        """Return the next call to start now, its claims and places taken; or None."""
        while self._hungry:
            limits = next(iter(self._hungry))
            entry = limits.next(self.table)
            if entry is not None:
                entry.move(Fact.GRANT)
                entry.take_places()
                self.table.hold(entry)
                return entry.call
            del self._hungry[limits]
        return None

    def take_refusals(self, now: float) -> list[Refusal]:
        """Return those that must not wait any longer; to be asked after `grant`."""
        refused: dict[Entry, Refusal] = {}
        while self._busy and self._busy[0][0] <= now:
            _, _, entry, holder = heapq.heappop(self._busy)
            if _still_waits(entry, holder):
                refused[entry] = Refusal(entry.call, holder.call, holder.let_go_at)
        joined: dict[BatchLine, list[Entry]] = {}
        passed_over = set(refused)
        for entry in self._unchecked:
            if entry.state is CallState.IN_LINE and entry not in refused:
                joined.setdefault(entry.line, []).append(entry)
                passed_over.add(entry)
        self._unchecked.clear()
        # As if the batches had joined one after another: of two that would wait
        # for each other the first may stay.
        for entries in joined.values():
            passed_over.difference_update(entries)
            stuck = find_stuck(entries, passed_over)
            passed_over.update(stuck)
            for entry, holder in stuck.items():
                refused[entry] = Refusal(entry.call, holder.call, None)
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
                    if entry.lacks(pool):
                        return Wait(
                            "place", pool.name, [e.call for e in entry.may_leave(pool)]
                        )
                return Wait("turn", None, [])
            case _:
                return None

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
            pool.limits[limits] = pool.limits.get(limits, 0) + 1
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
                case CallState.ASKED | CallState.BEHIND:
                    line.private.widen(entry, line, mode)
                case _:
                    self.table.widen(entry, line, mode)

    def _line_up(self, entry: Entry, now: float) -> None:
        entry.move(Fact.LINE_UP)
        if entry.line.ancestors:
            self._unchecked.append(entry)
        if not self.table.join(entry):
            for holder in self._detached:
                if holder not in entry.line.ancestors and any(
                    key in entry.modes and conflict(mode, entry.modes[key])
                    for key, mode in holder.modes.items()
                ):
                    self._await_end(entry, holder, now)
        self._take_freed()

    def _leave_private(self, free: list[Entry], now: float) -> None:
        """The approved ones of these join the common line, and who stood behind them only."""
        for entry in free:  # which grows
            line = entry.line
            if entry.state is CallState.BEHIND and not line.is_halted:
                line.held_back -= 1
                line.private.leave(entry)
                free += line.private.take_freed()
                self._line_up(entry, now)

    def _take_freed(self) -> None:
        for entry in self.table.take_freed():
            self._is_free_now(entry)

    def _is_free_now(self, entry: Entry) -> None:
        if not entry.line.is_halted:
            entry.line.enlist(entry)
            self._hungry[entry.line.limits] = None

    def _give_back(self, entry: Entry, pools: Pools) -> None:
        for pool in pools:
            entry.give_back(pool)
            self._hungry[entry.line.limits] = None
            self._hungry.update(dict.fromkeys(pool.limits))

    def _drop_user(self, entry: Entry) -> None:
        if entry.needs.tool_limit is not None:
            pool, limits = self._tools[entry.needs.tool], entry.line.limits
            pool.limits[limits] -= 1
            if not pool.limits[limits]:
                del pool.limits[limits]
            if not pool.limits:
                del self._tools[entry.needs.tool]

    def _await_end(self, entry: Entry, holder: Entry, now: float) -> None:
        self._busy_number += 1
        if len(self._busy) >= self._tidy_busy_at:
            # Behind one that is due late, what is over would pile up.
            self._busy = [item for item in self._busy if _still_waits(*item[2:])]
            heapq.heapify(self._busy)
            self._tidy_busy_at = max(_TIDY_FROM, 2 * len(self._busy))
        due = now + entry.line.limits.patience
        heapq.heappush(self._busy, (due, self._busy_number, entry, holder))


_TIDY_FROM = 64  # items; below that it is not worth the pass


def _still_waits(entry: Entry, holder: Entry) -> bool:
    return entry.state is CallState.IN_LINE and holder.state is CallState.DETACHED


def _named(found: tuple[Hashable, Entry] | None) -> tuple[Any, list[Any]]:
    if found is None:
        return None, []
    key, entry = found
    return key, [entry.call]
