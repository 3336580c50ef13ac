"""What a process has, counted; what must not grow with the number of batches run."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import anyio

SMALL = 100
"""As many of a kind may come and go without a leak: pools, caches, cancelled timers."""


@dataclass(frozen=True)
class Census:
    """What there was at one moment at which nothing ran."""

    objects: Counter[str]
    """Type → how many the collector knows of."""
    items: int
    """How many items all lists, dicts, sets and deques have together."""
    resident: int
    """Bytes of memory; 0 where the system does not say."""
    descriptors: int
    """0 where the system does not say."""
    threads: int

    @property
    def figures(self) -> tuple[float, int, int, int]:
        """MiB of memory, and how many objects, descriptors and threads."""
        objects = sum(self.objects.values())
        return self.resident / 2**20, objects, self.descriptors, self.threads

    @classmethod
    def take(cls) -> Census:
        """Count; the whole process, so that nothing else should be going on."""
        gc.collect()
        gc.collect()  # what finalizers have freed
        everything = gc.get_objects()
        containers = (list, dict, set, deque)
        return cls(
            objects=Counter(
                f"{type(o).__module__}.{type(o).__qualname__}" for o in everything
            ),
            items=sum(len(o) for o in everything if type(o) in containers)
            - len(everything),  # itself
            resident=_resident(),
            descriptors=_count("/proc/self/fd"),
            threads=threading.active_count(),
        )

    def growth_since(self, before: Census, turns: int) -> list[str]:
        """
        Say what has grown as a leak would.

        Args:
            before: An earlier census.
            turns: How many turns were run in between: one object in ten turns is a leak.
        """
        allowed = max(SMALL, turns // 10)
        found = [
            f"{name}: {before.objects[name]} -> {count}"
            for name, count in self.objects.items()
            if count - before.objects[name] > allowed
        ]
        # Each of the few kinds of objects that come and go has a few items.
        if self.items - before.items > 20 * allowed:
            found.append(f"items in containers: {before.items} -> {self.items}")
        if self.descriptors > before.descriptors:
            found.append(f"descriptors: {before.descriptors} -> {self.descriptors}")
        if self.threads > before.threads:
            found.append(f"threads: {before.threads} -> {self.threads}")
        return found


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder)) - 1  # the listing has one open
    except OSError:
        return 0


class LoopCensus:
    """
    What the running loop had to do at first, beside the current task.

    Args:
        scope: One that the current task keeps open for as long as this is used: what
            happens inside it must leave nothing on it.
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope: Any = scope
        self._is_trio = "trio" in type(scope).__module__
        self._tasks = self._all_tasks()

    def left(self) -> list[str]:
        """Say what there is to do now, or held on to, that was not there at first."""
        tasks = self._all_tasks() - self._tasks
        found = [f"task {task!r}" for task in tasks]
        if self._is_trio:
            import trio

            found += [
                f"a nursery: {n!r}" for n in trio.lowlevel.current_task().child_nurseries
            ]
            status = self._scope._CancelScope__original._cancel_status
            found += [f"a scope in the outer one: {child!r}" for child in status.children]
            found += [f"a task in the outer scope: {task!r}" for task in tasks & status._tasks]
            posted = trio.lowlevel.current_statistics().run_sync_soon_queue_size
            found += [f"{posted} posted functions"] * bool(posted)
        else:
            loop = asyncio.get_running_loop()
            # uvloop's timers have no list; what they hold shows in a census.
            timers = getattr(loop, "_scheduled", ())
            found += [f"timer {timer!r}" for timer in timers if not timer.cancelled()]
            scopes = self._scope._child_scopes
            found += [f"a scope in the outer one: {scope!r}" for scope in scopes]
            found += [f"a task in the outer scope: {t!r}" for t in tasks & self._scope._tasks]
        return found

    def _all_tasks(self) -> set[Any]:
        if not self._is_trio:
            return set(asyncio.all_tasks())
        import trio

        root = trio.lowlevel.current_root_task()
        assert root is not None
        found, waiting = {root}, [root]
        while waiting:
            for nursery in waiting.pop().child_nurseries:
                found |= nursery.child_tasks
                waiting += nursery.child_tasks
        return found
