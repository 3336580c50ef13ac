"""A tool: the callable that serves a call, and how it is to be run."""

# Arguments are checked at run time, too: not everybody runs a type checker.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast, overload

from .calls import ToolCall
from .carriers import ExecutorCarrier
from .claims import Key, Keys, KeysOption, checked_keys
from .frozen import Frozen

__all__ = ("Tool", "ToolOutput", "as_tool", "collect_tools", "kind_of", "tool")

RunsIn = (
    Literal["auto", "loop", "thread", "process"]
    | concurrent.futures.Executor
    | ExecutorCarrier
)
Validate = Callable[[ToolCall], Mapping[str, Any] | None]
Kind = Literal["sync", "async", "sync_generator", "async_generator"]


class ToolOutput:
    """
    A tool's answer with a mark: what a tool may return in place of a bare value.

    Args:
        value: The answer.
        is_error: The answer reports an error. The call still *completed*: it
            is shown to the model as an error, and never cuts its siblings.
    """

    __slots__ = ("is_error", "value")

    def __init__(self, value: Any, is_error: bool = False) -> None:
        self.value = value
        # Here, in the tool: what has no truth, such as an array, is its failure.
        self.is_error = bool(is_error)

    def __repr__(self) -> str:
        return f"ToolOutput({self.value!r}, is_error={self.is_error!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolOutput):
            return NotImplemented
        return (self.value, self.is_error) == (other.value, other.is_error)

    __hash__ = None  # type: ignore[assignment]  # the value may be unhashable


class Tool(Frozen):
    """
    A callable and how it is to be run; called as ``func(**arguments)``.

    Args:
        func: A function, sync or async; a generator function, sync or async,
            streams its items; a callable object or a `functools.partial`.
        name: What the model calls it; `func`'s own name by default.
        runs_in: ``"auto"``: async functions on the event loop, all else in a
            worker thread. ``"loop"``: on the loop, also when it blocks there.
            ``"thread"``: in a worker thread; an async function gets an event
            loop of its own there, so that even one that is deaf to
            cancellation can be let go. ``"process"``: a plain function that
            can be pickled, in a process of its own, which is killed when the
            call is cut; context variables do not cross. A
            `concurrent.futures.Executor`, or an `ExecutorCarrier` with one: a
            plain function, in that executor, where one that has begun can
            be let go, and stopped only by the carrier's `canceller`.
        timeout: Seconds that one call may run; measured from its start.
        validate: Called on the loop with the `ToolCall` before anything
            starts; must be quick. What it returns, if not None, replaces the
            keyword arguments; if it raises, the call is *invalid*
            (`UnknownToolError`: for there is no such tool).
            Without it the arguments are bound to `func`'s signature.
        on_interrupt: ``"cancel"``, or ``"keep"``: the call is not told to
            stop; its placeholder says that it goes on, and its end goes to
            the runner's `on_late`. Its `timeout` still holds.
        exclusive: Runs alone in its batch, in call order: earlier calls end
            first, later ones wait.
        reads, writes: What a call uses: a key, an iterable of keys, or a
            function that is called as the tool will be and gives either. Calls
            that read the same run together, one that writes excludes them, in
            call order, across all batches of the runner. A `str` is compared
            as it is; an `os.PathLike` is a path, and what lies below it. If
            the function raises, or gives no key, the call *failed*, never
            started. It is called on the loop, before approval; must be quick.
            What a call that was let go of may still write stays claimed.
        max_concurrency: How many calls of this tool may run at once, on one
            runner and loop (or on one loop, without a runner).
        needs_slot: False: does not count against the runner's
            `max_concurrency` (a blocking one still needs a thread).
        metadata: The caller's own; never read by the library.

    Raises:
        TypeError, ValueError: An option has the wrong type or value.
    """

    __slots__ = (
        "_binder",
        "carrier",
        "exclusive",
        "func",
        "is_scheduled",
        "kind",
        "max_concurrency",
        "metadata",
        "name",
        "needs_slot",
        "on_interrupt",
        "reads",
        "runs_in",
        "timeout",
        "validate",
        "writes",
    )

    func: Callable[..., Any]
    name: str
    runs_in: RunsIn
    timeout: float | None
    validate: Validate | None
    exclusive: bool
    reads: tuple[Key, ...] | Callable[..., Keys] | None
    writes: tuple[Key, ...] | Callable[..., Keys] | None
    on_interrupt: Literal["cancel", "keep"]
    max_concurrency: int | None
    needs_slot: bool
    metadata: Any
    kind: Kind
    """What calling `func` gives; found once, when the tool is made."""
    is_scheduled: bool
    """Its calls may have to wait for others, whatever the runner's limits."""
    carrier: Literal["loop", "thread", "process", "executor"]
    """Where its calls run, `runs_in` resolved."""
    _binder: _Binder

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        runs_in: RunsIn = "auto",
        timeout: float | None = None,
        validate: Validate | None = None,
        exclusive: bool = False,
        reads: KeysOption = None,
        writes: KeysOption = None,
        on_interrupt: Literal["cancel", "keep"] = "cancel",
        max_concurrency: int | None = None,
        needs_slot: bool = True,
        metadata: Any = None,
    ) -> None:
        if isinstance(func, Tool):
            msg = "Tool() takes a callable, not another Tool; pass its .func"
            raise TypeError(msg)
        if not callable(func):
            msg = f"Tool func must be callable, not {type(func).__name__}"
            raise TypeError(msg)
        if name is None:
            name = _name_of(func)
        elif not isinstance(name, str):
            msg = f"Tool name must be a str, not {type(name).__name__}"
            raise TypeError(msg)
        if not name:
            msg = "Tool name must not be empty"
            raise ValueError(msg)
        if validate is not None and not callable(validate):
            msg = f"validate must be callable or None, not {type(validate).__name__}"
            raise TypeError(msg)
        if validate is not None and inspect.iscoroutinefunction(validate):
            msg = "validate must be a plain function; it is called, not awaited"
            raise TypeError(msg)
        if not isinstance(on_interrupt, str) or on_interrupt not in {"cancel", "keep"}:
            msg = f"on_interrupt must be 'cancel' or 'keep', not {on_interrupt!r}"
            raise ValueError(msg)
        check_seconds("timeout", timeout)
        kind = kind_of(func)
        check_flag("exclusive", exclusive)
        check_flag("needs_slot", needs_slot)
        check_count("max_concurrency", max_concurrency, minimum=1, optional=True)
        reads, writes = checked_keys("reads", reads), checked_keys("writes", writes)
        fill = object.__setattr__
        fill(self, "func", func)
        fill(self, "name", name)
        fill(self, "runs_in", runs_in)
        fill(self, "timeout", timeout)
        fill(self, "validate", validate)
        fill(self, "exclusive", exclusive)
        fill(self, "reads", reads)
        fill(self, "writes", writes)
        fill(self, "on_interrupt", on_interrupt)
        fill(self, "max_concurrency", max_concurrency)
        fill(self, "needs_slot", needs_slot)
        fill(self, "metadata", metadata)
        fill(self, "kind", kind)
        fill(
            self,
            "is_scheduled",
            exclusive or _names(reads) or _names(writes) or max_concurrency is not None,
        )
        fill(self, "carrier", _carrier_for(runs_in, kind))
        fill(self, "_binder", _Binder(func))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `func` itself, so that a decorated function stays usable."""
        return self.func(*args, **kwargs)

    def bind(self, arguments: dict[str, Any]) -> None:
        """
        Check that the arguments fit `func`'s signature.

        Raises:
            TypeError: They do not; the message is Python's own.
        """
        self._binder.check(arguments)

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} runs_in={self.runs_in!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_binder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "_binder", _Binder(self.func))


@overload
def tool(func: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    runs_in: RunsIn = "auto",
    timeout: float | None = None,
    validate: Validate | None = None,
    exclusive: bool = False,
    reads: KeysOption = None,
    writes: KeysOption = None,
    on_interrupt: Literal["cancel", "keep"] = "cancel",
    max_concurrency: int | None = None,
    needs_slot: bool = True,
    metadata: Any = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """
    Make a `Tool` from a function: ``@tool`` or ``@tool(timeout=5)``.

    The options are those of `Tool`; the decorated name is the `Tool`, and
    calling it calls the function.
    """
    if func is not None:
        return Tool(func, **options)
    # A wrong option must raise on its own line, not only where it decorates.
    Tool(_nothing, **options)
    return functools.partial(Tool, **options)


def _nothing() -> None: ...


def collect_tools(tools: object) -> dict[str, Tool]:
    """
    Return the tools by name.

    Args:
        tools: `Tool` objects or plain callables, or a mapping name → either.

    Raises:
        TypeError: An item is neither, or `tools` is no collection.
        ValueError: Two tools have the same name.
    """
    if isinstance(tools, Mapping):
        found: dict[str, Tool] = {}
        for name, item in cast("Mapping[object, object]", tools).items():
            if not isinstance(name, str):
                msg = f"tools must map names to tools; {name!r} is no str"
                raise TypeError(msg)
            found[name] = as_tool(item, name=name)
        return found
    if isinstance(tools, str | bytes) or not isinstance(tools, Iterable):
        hint = " (put the one tool into a list)" if callable(tools) else ""
        msg = (
            "tools must be an iterable of Tools or callables, or a mapping name → "
            f"either, not {type(tools).__name__}{hint}"
        )
        raise TypeError(msg)
    found = {}
    for item in cast("Iterable[object]", tools):
        made = as_tool(item)
        if made.name in found:
            msg = (
                f"two tools are named {made.name!r}; give one another name, or pass a mapping"
            )
            raise ValueError(msg)
        found[made.name] = made
    return found


def as_tool(item: object, *, name: str | None = None) -> Tool:
    """Return `item` as a `Tool`; a plain callable gets the default options."""
    if isinstance(item, Tool):
        return item
    if not callable(item):
        msg = f"a tool must be a Tool or a callable, not {type(item).__name__}"
        raise TypeError(msg)
    return Tool(item, name=name)


def check_seconds(name: str, value: object, *, optional: bool = True) -> None:
    """Raise unless `value` is a number of seconds ≥ 0 (or None)."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        expected = "a number of seconds" + (" or None" if optional else "")
        msg = f"{name} must be {expected}, not {type(value).__name__}"
        raise TypeError(msg)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.nan
    if math.isnan(seconds) or seconds < 0:
        msg = f"{name} must be ≥ 0 seconds, not {value!r:.40}"
        raise ValueError(msg)


def check_count(name: str, value: object, *, minimum: int, optional: bool) -> None:
    """Raise unless `value` is an int ≥ `minimum` (or None)."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an int, not {type(value).__name__}"
        raise TypeError(msg)
    if value < minimum:
        msg = f"{name} must be at least {minimum}, not {value}"
        raise ValueError(msg)


def _names(keys: object) -> bool:
    """Tell whether there is anything in `reads` or `writes`; a callable may be falsy."""
    return keys is not None and keys != ()


def check_flag(name: str, value: object) -> None:
    """Raise unless `value` is a bool."""
    if not isinstance(value, bool):
        msg = f"{name} must be a bool, not {type(value).__name__}"
        raise TypeError(msg)


def _name_of(func: Callable[..., Any]) -> str:
    while isinstance(func, functools.partial):
        func = func.func
    return getattr(func, "__name__", None) or type(func).__name__


def kind_of(func: Callable[..., Any]) -> Kind:
    """Return what calling it gives."""
    target: Any = func
    while isinstance(target, functools.partial):
        target = target.func
    if not (
        inspect.isroutine(target)
        or inspect.isclass(target)
        or inspect.iscoroutinefunction(target)  # marked as one, as AsyncMock is
    ):
        target = target.__call__
    if inspect.iscoroutinefunction(target):
        return "async"
    if inspect.isasyncgenfunction(target):
        return "async_generator"
    if inspect.isgeneratorfunction(target):
        return "sync_generator"
    return "sync"


def _carrier_for(
    runs_in: object, kind: Kind
) -> Literal["loop", "thread", "process", "executor"]:
    is_async = kind in {"async", "async_generator"}
    if runs_in == "auto":
        return "loop" if is_async else "thread"
    if runs_in == "loop":
        return "loop"
    if runs_in == "thread":
        return "thread"
    is_executor = isinstance(runs_in, concurrent.futures.Executor | ExecutorCarrier)
    if runs_in == "process" or is_executor:
        if is_async:
            msg = f"an async function cannot run in {runs_in!r}"
            raise TypeError(msg)
        return "executor" if is_executor else "process"
    msg = (
        "runs_in must be 'auto', 'loop', 'thread', 'process', an Executor or an "
        f"ExecutorCarrier, not {runs_in!r}"
    )
    raise (ValueError if isinstance(runs_in, str) else TypeError)(msg)


_SIGNATURE_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may name what is imported for type checkers only.
    _SIGNATURE_OPTIONS["annotation_format"] = annotationlib.Format.FORWARDREF


class _Binder:
    """
    Checks keyword arguments against a signature.

    `inspect.Signature.bind` costs 2–5 µs; set comparison answers the usual
    case in a tenth of that, and the slow way is left to word the error.
    """

    __slots__ = ("_allowed", "_required", "_signature")

    def __init__(self, func: Callable[..., Any]) -> None:
        self._signature: inspect.Signature | None
        self._required: frozenset[str] = frozenset()
        # None: any name is allowed (**kwargs), or only the slow way can tell.
        self._allowed: frozenset[str] | None = None
        try:
            self._signature = inspect.signature(func, **_SIGNATURE_OPTIONS)
        except (TypeError, ValueError):
            # Some C functions have none: Python itself will check, at the call.
            self._signature = None
            return
        parameters = self._signature.parameters.values()
        named = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
        self._required = frozenset(p.name for p in named if p.default is p.empty)
        if all(p in named or p.kind is p.VAR_POSITIONAL for p in parameters):
            self._allowed = frozenset(p.name for p in named)

    def check(self, arguments: dict[str, Any]) -> None:
        allowed = self._allowed
        if allowed is not None and self._required <= arguments.keys() <= allowed:
            return
        if self._signature is not None:
            self._signature.bind(**arguments)
