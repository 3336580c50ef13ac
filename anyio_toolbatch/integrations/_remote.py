"""
How a call travels to an engine's worker, and what comes back.

Both ways as bytes that are made and read here, not by the engine: what can't be
pickled is then that call's failure and named, whatever the engine would make of
it, and a tool's `SystemExit` does not end the engine's worker.

The call has started when all of it has been pickled (`ExecutorCall`), so `packed` is
called right before it is sent.
"""

from __future__ import annotations

import functools
import io
import pickle
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from .._runtime.process_worker import FunctionName, text_of

__all__ = ("RemoteFuture", "name_of", "outcome_of", "packed", "run")


class RemoteFuture(Future[Any]):
    """
    The end of one call, and what the engine knows it by.

    It counts as running from the start: `cancel` says False, and stops nothing.
    """

    def __init__(self, handle: Any = None) -> None:
        super().__init__()
        self.handle = handle
        self.set_running_or_notify_cancel()

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Give it its end, unless it has one; in any thread."""
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass

    def settle_with(self, outcome: bytes) -> None:
        """Give it what `run` has returned."""
        try:
            value, error = pickle.loads(outcome)
        except BaseException as exc:  # noqa: BLE001 - whatever a __setstate__ may raise
            msg = f"what the tool gave can't be unpickled: {text_of(exc)}"
            value, error = None, TypeError(msg)
        self.settle(value, error)


def name_of(function: Callable[..., Any]) -> str:
    """Return what the engine's dashboard shows: the tool's name."""
    return str(getattr(function, "__name__", "call"))


# -- on the way there --------------------------------------------------------------


def packed(cloudpickle: Any, function: Callable[[], Any]) -> bytes:
    """
    Pickle a call.

    Raises:
        CancelledError: The call was cut before it was sent.
        TypeError: It can't be pickled; the message names what can't.
    """
    stream = io.BytesIO()
    try:
        _pickler_class(cloudpickle)(stream).dump(function)
    except CancelledError:
        raise
    except Exception as exc:
        msg = f"{_culprit(cloudpickle, function)} can't be pickled: {text_of(exc)}"
        raise TypeError(msg) from exc
    return stream.getvalue()


@functools.cache
def _pickler_class(cloudpickle: Any) -> Any:
    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # the engine's own, of no known type
        def reducer_override(self, obj: Any) -> Any:
            # In the place of a function of the program's main file stands its Tool, and
            # the worker has another main file: the function itself has to travel.
            if isinstance(obj, FunctionName) and obj.module == "__main__":
                return _Function, (obj.resolve(),)
            return super().reducer_override(obj)

    return Pickler


class _Function:
    """A function that has travelled itself; like `FunctionName`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def resolve(self) -> Callable[..., Any]:
        return self._function


def _culprit(cloudpickle: Any, function: Callable[[], Any]) -> str:
    """Say what of the call can't be pickled."""
    portable: Any = getattr(function, "__reduce__", tuple)()
    partial = portable[1][0] if len(portable) > 1 else None
    if isinstance(partial, functools.partial):
        for name, value in partial.keywords.items():
            try:
                cloudpickle.dumps(value)
            except Exception:  # noqa: BLE001 - that is the question
                return f"the argument {name!r} of type {type(value).__qualname__}"
    return f"the function of {name_of(function)!r}"


# -- there -------------------------------------------------------------------------


def run(cloudpickle: Any, call: bytes) -> bytes:
    """
    Run a packed call in an engine's worker, and return its outcome.

    Raises:
        KeyboardInterrupt: As the tool does: to some engines it is a cancellation.
    """
    try:
        function = pickle.loads(call)
    except Exception as exc:  # noqa: BLE001 - whatever an import may raise
        error = TypeError(f"it can't be loaded in a worker of the engine: {text_of(exc)}")
        return outcome_of(cloudpickle, None, _noted(error, exc))
    try:
        return outcome_of(cloudpickle, function(), None)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - the call's failure, whatever it is
        return outcome_of(cloudpickle, None, _noted(exc, exc))


def outcome_of(cloudpickle: Any, value: Any, error: BaseException | None) -> bytes:
    """Pickle how a call has ended."""
    try:
        outcome: bytes = cloudpickle.dumps((value, error))
        if error is not None:
            pickle.loads(outcome)  # many can be pickled, and not be read again
    except Exception as exc:  # noqa: BLE001 - whatever their methods may raise
        if error is None:
            msg = f"a value of type {type(value).__qualname__} can't be pickled"
            other: Exception = TypeError(f"{msg}: {text_of(exc)}")
        else:
            other = RuntimeError(f"the tool raised what can't be pickled: {text_of(error)}")
            other.__notes__ = getattr(error, "__notes__", [])
        return outcome_of(cloudpickle, None, other)
    return outcome


def _noted(error: BaseException, origin: BaseException) -> BaseException:
    """Put a traceback into a note, in the place of what it hangs on and can't travel."""
    try:
        error.add_note("".join(traceback.format_exception(origin)).rstrip())
    except Exception:  # noqa: BLE001 - it may have slots, or a __str__ that raises
        pass
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error
