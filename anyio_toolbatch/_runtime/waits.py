"""
Who waits for which calls of a batch.

Everybody parks on one waiter of their own, never on a task group: that is why
an interrupt finds nobody held up. On the loop's thread.
"""

from __future__ import annotations

import anyio.lowlevel

from .._core.ledger import Ledger
from .._core.record import CallRecord
from .backend import Backend, Waiter

__all__ = ("Waits",)


class _Wait:
    """Somebody waits until the first `limit` calls are settled."""

    __slots__ = ("limit", "remaining", "waiter")

    def __init__(self, limit: int, remaining: int, waiter: Waiter) -> None:
        self.limit = limit
        self.remaining = remaining
        self.waiter = waiter


class Waits:
    """The waits of one batch."""

    __slots__ = ("_backend", "_for_many", "_for_one", "_ledger")

    def __init__(self, backend: Backend, ledger: Ledger) -> None:
        self._backend = backend
        self._ledger = ledger
        self._for_many: list[_Wait] = []
        self._for_one: dict[CallRecord, list[Waiter]] = {}

    def settled(self, record: CallRecord) -> None:
        """Wake whoever waited for this call, or for it as the last of many."""
        if self._for_one:
            for waiter in self._for_one.pop(record, ()):
                waiter.set()
        for wait in self._for_many:
            if record.index < wait.limit:
                wait.remaining -= 1
                if not wait.remaining:
                    wait.waiter.set()

    def settled_many(self) -> None:
        """The same after many calls have been settled at once."""
        for record in [r for r in self._for_one if self._ledger.is_settled(r.index)]:
            for waiter in self._for_one.pop(record):
                waiter.set()
        for wait in self._for_many:
            wait.remaining = self._ledger.count_unsettled(wait.limit)
            if not wait.remaining:
                wait.waiter.set()

    async def for_first(self, limit: int) -> None:
        """Park until the first `limit` calls are settled."""
        remaining = self._ledger.count_unsettled(limit)
        if not remaining:
            await anyio.lowlevel.checkpoint()
            return
        wait = _Wait(limit, remaining, self._backend.waiter())
        self._for_many.append(wait)
        try:
            await wait.waiter.wait()
        finally:
            self._for_many.remove(wait)

    async def for_call(self, record: CallRecord) -> None:
        """Park until this call is settled."""
        if self._ledger.is_settled(record.index):
            await anyio.lowlevel.checkpoint()
            return
        waiter = self._backend.waiter()
        waiters = self._for_one.setdefault(record, [])
        waiters.append(waiter)
        try:
            await waiter.wait()
        finally:
            waiters.remove(waiter)
