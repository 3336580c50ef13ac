"""
Tells running calls to stop: the last step of a cut, and the first of a grace.

What telling means depends on where the call runs: an async one gets its one
cancellation (see `cancellation`), a blocking one sees `cancelled`, has its
`on_cancel` callbacks run and its visits to the loop ended. On the loop's thread.
"""

from __future__ import annotations

from .._core.record import CallRecord
from .cancellation import Draining, Stopper
from .context import run_hooks, set_flag
from .executors import ExecutorCall
from .hub import Hub
from .nesting import stop_inner_batches
from .processes import ProcessCall
from .thread_carrier import HOOK_CARRIER, OwnLoop
from .threads import Lane

__all__ = ("Teller",)

HOOK_THREADS = 32
"""Threads that `on_cancel` callbacks may occupy on one loop; arbitrary, ample."""


class Teller:
    """Tells the calls of one batch, and looks after them until they have ended."""

    __slots__ = ("_cleanup_grace", "_draining", "_hub", "_live", "is_released")

    def __init__(self, hub: Hub, cleanup_grace: float) -> None:
        self._hub = hub
        self._cleanup_grace = cleanup_grace
        self._live: set[Stopper] = set()
        """Of all that the batch runs on the loop, the visits of threads too."""
        self.is_released = False
        """The loop is being ended."""
        self._draining: Draining | None = None

    def tell(self, record: CallRecord, grace: float) -> None:
        """
        Ask one running call to stop, and with it what it has opened.

        Args:
            record: The call.
            grace: Seconds that it has to answer, and so do the batches inside it.
        """
        stop_inner_batches(record, grace)
        if record.ended:
            return
        record.told = True
        set_flag(record)
        stopper = record.stopper
        if isinstance(stopper, Stopper):
            try:
                self.drain(stopper)
            except RuntimeError:
                pass  # its loop is gone, and it with it
        elif isinstance(stopper, OwnLoop):
            stopper.tell()
        for request in list(record.loop_requests or ()):
            request.cut()
        if record.cancel_hooks:
            if record.hosted:
                run_hooks(record)
            else:
                self._hook_lane().put(record.batch, [record])

    def stop(self, record: CallRecord) -> None:
        """End what was started for a call that was let go, where that can be done."""
        stopper = record.stopper
        if isinstance(stopper, ProcessCall):
            stopper.kill()
        elif isinstance(stopper, ExecutorCall):
            stopper.stop()

    def drain(self, stopper: Stopper) -> None:
        """Tell an async call to stop, and again after a pause, until it has."""
        if self._draining is None:
            self._draining = Draining(self._hub.backend, self._cleanup_grace)
        self._draining.add(stopper)

    def begun(self, stopper: Stopper) -> None:
        """Something has begun to run on the loop."""
        self._live.add(stopper)
        if self.is_released:
            stopper.release()

    def ended(self, stopper: Stopper) -> None:
        """It has come to its end, told or not."""
        self._live.discard(stopper)
        if self._draining is not None:
            self._draining.ended(stopper)

    def _hook_lane(self) -> Lane:
        # Apart from the runners' lanes: an interrupt must not wait for a
        # thread that only the interrupted call can free.
        lane: Lane | None = self._hub.shared.get("hooks")
        if lane is None:
            lane = self._hub.shared["hooks"] = Lane(HOOK_THREADS, HOOK_CARRIER)
        return lane

    def release(self) -> None:
        """The loop is being ended: nothing of ours may keep that from a tool."""
        self.is_released = True
        for stopper in self._live:
            stopper.release()
