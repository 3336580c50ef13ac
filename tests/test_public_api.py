"""§3: the public names and signatures that programs outside are written against."""

from __future__ import annotations

import enum
import importlib.resources
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

import anyio_toolbatch
import anyio_toolbatch.testing
from anyio_toolbatch import (
    BatchOptions,
    CallContext,
    CallHandle,
    DetachedCall,
    LateResult,
    RunnerStatistics,
    Status,
    Tool,
    ToolBatch,
    ToolBatchError,
    ToolCall,
    ToolOutput,
    ToolResult,
    ToolRunner,
    WaitingCall,
    current_call,
    from_thread,
    keep_partial,
    on_cancel,
    open_batch,
    report_progress,
    run_batch,
)

PROMISED = """
    run_batch open_batch ToolRunner ToolBatch CallHandle
    RunnerStatistics DetachedCall
    BatchNotSettledError BatchSealedError RunnerClosedError
    ToolCall Tool tool ToolOutput ToolResult Status Reason LateResult
    ToolBatchError ToolCallError
    current_call CallContext report_progress keep_partial on_cancel
    from_thread CallDetached run_command ExecutorCarrier
    BatchStarted CallStarted CallProgress CallOutput CallSettled
    BatchInterrupted BatchSettled LateResultDropped
""".split()
"""What the design names and this version has."""

BESIDE = """
    BatchOptions CancelFlag CancelHook CommandResult Event
    InvalidArgumentsError ProcessDiedError ResourceBusyError TooManyDetachedError
    UnknownToolError WaitingCall
""".split()
"""What a typed program needs besides, to annotate and to catch."""


# -- names ---------------------------------------------------------------------


@pytest.mark.parametrize("name", PROMISED)
def test_promised_name_is_at_the_front_door(name: str) -> None:
    """§3: everything public is importable from the package itself."""
    assert hasattr(anyio_toolbatch, name)
    assert name in anyio_toolbatch.__all__


def test_all_is_sorted_and_complete() -> None:
    """No public name is forgotten, and none slips in unawares."""
    assert list(anyio_toolbatch.__all__) == sorted(set(anyio_toolbatch.__all__))
    assert set(anyio_toolbatch.__all__) == {*PROMISED, *BESIDE}
    public = {
        name
        for name, value in vars(anyio_toolbatch).items()
        if not name.startswith("_")
        # Submodules become attributes of their package once somebody imports them.
        and (name == "from_thread" or not isinstance(value, types.ModuleType))
        and name != "annotations"
    }
    assert public == set(anyio_toolbatch.__all__)


@pytest.mark.parametrize(
    "module", [from_thread, anyio_toolbatch.testing], ids=["from_thread", "testing"]
)
def test_all_of_public_submodules_is_sorted_and_importable(module: types.ModuleType) -> None:
    """The same for the submodules that users import by name."""
    assert list(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


def test_package_is_typed() -> None:
    """`py.typed` is there, so that type checkers read our annotations."""
    assert importlib.resources.files(anyio_toolbatch).joinpath("py.typed").is_file()


# -- signatures ----------------------------------------------------------------


def shape(function: Any) -> str:
    """Return names, kinds and defaults, without annotations and without self."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters))


SIGNATURES = [
    (run_batch, "(calls, tools=(), **options)"),
    (open_batch, "(calls=None, tools=(), **options)"),
    (
        ToolRunner,
        (
            "(tools=(), *, max_concurrency=None, max_threads=32, max_detached=64, "
            "interrupt_grace=0.0, cleanup_grace=5.0, close_timeout=1.0, approve=None, "
            "approval_timeout=None, observers=(), on_late=None)"
        ),
    ),
    (ToolRunner.run, "(calls, *, timeout=None, interrupt_grace=None, fail_fast=False)"),
    (
        ToolRunner.open_batch,
        "(calls=None, *, timeout=None, interrupt_grace=None, fail_fast=False)",
    ),
    (ToolRunner.interrupt, "(message=None, *, grace=None)"),
    (ToolRunner.wait_detached, "(timeout=None)"),
    (ToolRunner.aclose, "()"),
    (ToolRunner.statistics, "()"),
    (ToolBatch.snapshot, "()"),
    (ToolBatch.submit, "(call)"),
    (ToolBatch.seal, "()"),
    (ToolBatch.interrupt, "(message=None, *, grace=None)"),
    (ToolBatch.supersede, "(message=None)"),
    (ToolBatch.cancel, "(call_id, message=None)"),
    (ToolBatch.wait, "()"),
    (ToolBatch.events, "()"),
    (CallHandle.cancel, "(message=None)"),
    (CallHandle.wait, "()"),
    (
        Tool,
        (
            "(func, *, name=None, runs_in='auto', timeout=None, validate=None, exclusive=False, "
            "reads=None, writes=None, on_interrupt='cancel', max_concurrency=None, "
            "needs_slot=True, metadata=None)"
        ),
    ),
    (anyio_toolbatch.tool, "(func=None, /, **options)"),
    (ToolOutput, "(value, is_error=False)"),
    (ToolResult.unwrap, "()"),
    (LateResult, "(batch_id, call, index, value, error, late_by)"),
    (current_call, "()"),
    (report_progress, "(progress, total=None, message=None)"),
    (keep_partial, "(value)"),
    (on_cancel, "(callback)"),
    (from_thread.check_cancelled, "()"),
]


@pytest.mark.parametrize(
    ("function", "expected"),
    [pytest.param(*case, id=case[0].__qualname__) for case in SIGNATURES],
)
def test_signature_is_the_promised_one(function: Any, expected: str) -> None:
    """§3: parameter names, kinds and defaults are fixed."""
    assert shape(function) == expected


def test_signature_of_tool_call() -> None:
    """§3.2: as promised; the default of `arguments` means none, by whatever object."""
    parameters = inspect.signature(ToolCall).parameters
    assert [(p.name, p.kind.name) for p in parameters.values()] == [
        ("id", "POSITIONAL_OR_KEYWORD"),
        ("name", "POSITIONAL_OR_KEYWORD"),
        ("arguments", "POSITIONAL_OR_KEYWORD"),
        ("tool", "KEYWORD_ONLY"),
        ("metadata", "KEYWORD_ONLY"),
        ("wire", "KEYWORD_ONLY"),
    ]
    assert [p.default for p in parameters.values()][3:] == [None, None, None]
    assert ToolCall("id", "name") == ToolCall("id", "name", {})
    assert ToolCall("id", "name").raw_arguments == {}


def test_signatures_of_from_thread() -> None:
    """§3.3: parameter names are fixed, also where they are hardly used as keywords."""
    assert shape(from_thread.run) == "(async_fn, *args)"
    assert shape(from_thread.run_sync) == "(fn, *args)"


def test_calls_back_take_positional_arguments() -> None:
    """§3.3: the meanings of `anyio.from_thread`: a function and its arguments."""
    for function in (from_thread.run, from_thread.run_sync):
        kinds = [p.kind.name for p in inspect.signature(function).parameters.values()]
        assert kinds[1:] == ["VAR_POSITIONAL"]


def test_what_is_awaited() -> None:
    """§3.1: exactly these are coroutine functions."""
    awaited = [
        function
        for function, _ in SIGNATURES
        if not inspect.isclass(function) and inspect.iscoroutinefunction(function)
    ]
    assert awaited == [
        run_batch,
        ToolRunner.run,
        ToolRunner.wait_detached,
        ToolRunner.aclose,
        ToolBatch.wait,
        CallHandle.wait,
    ]


def test_module_level_options_are_those_of_a_runner_and_a_batch() -> None:
    """§3.1: `run_batch` and `open_batch` take every option of both."""
    of_runner = set(inspect.signature(ToolRunner).parameters) - {"tools"}
    of_run = set(inspect.signature(ToolRunner.run).parameters) - {"self", "calls"}
    of_batch = set(inspect.signature(ToolRunner.open_batch).parameters) - {"self", "calls"}
    assert set(BatchOptions.__annotations__) == of_runner | of_run
    assert of_run == of_batch
    assert BatchOptions.__required_keys__ == frozenset()


async def test_unknown_option_is_a_type_error_before_anything_runs() -> None:
    """§3.2: misuse raises at once, from the coroutine and from the block alike."""
    ran = []
    with pytest.raises(TypeError, match="max_thread"):
        await run_batch(
            [ToolCall("id", "name")],
            {"name": lambda: ran.append(1)},
            max_thread=1,  # type: ignore[call-arg]
        )
    with pytest.raises(TypeError, match="max_thread"):
        open_batch([ToolCall("id", "name")], max_thread=1)  # type: ignore[call-arg]
    assert ran == []


# -- attributes ----------------------------------------------------------------

ATTRIBUTES: list[tuple[type, str]] = [
    (ToolBatch, "id calls results reason interrupted"),
    (CallHandle, "index call result"),
    (CallContext, "call batch_id cancelled runs_in"),
    (ToolCall, "id name arguments raw_arguments parse_error tool metadata wire"),
    (
        ToolResult,
        (
            "call index status value error reason started detached is_error partial wait_time "
            "run_time approval_time effects text"
        ),
    ),
    (LateResult, "batch_id call index value error late_by"),
    (ToolOutput, "value is_error"),
    (
        RunnerStatistics,
        "open_batches waiting running running_threads detached late_results waiting_calls",
    ),
    (WaitingCall, "call batch_id index kind waits_for"),
    (DetachedCall, "call batch_id since"),
]


@pytest.mark.parametrize(
    ("cls", "names"), [pytest.param(*case, id=case[0].__name__) for case in ATTRIBUTES]
)
def test_attributes_are_the_promised_ones(cls: type, names: str) -> None:
    """§3: what can be read of each object, fields and properties; `index` is a bonus."""
    found = {
        name
        for name, value in inspect.getmembers_static(cls)
        if not name.startswith("_")
        and (isinstance(value, property) or inspect.ismemberdescriptor(value))
    }
    assert found - {"index"} == set(names.split()) - {"index"}
    assert "index" in found or "index" not in names.split()


def test_statuses_are_the_promised_ones() -> None:
    """§3.2: the six ways in which a call can end."""
    assert {status.value for status in Status} == {
        "completed",
        "failed",
        "timed_out",
        "interrupted",
        "denied",
        "invalid",
    }
    assert issubclass(Status, str) and issubclass(Status, enum.Enum)


def test_errors_have_one_base() -> None:
    """§3.2: one `except` catches the library's own errors; a detachment it does not."""
    errors = [
        value
        for name in anyio_toolbatch.__all__
        if inspect.isclass(value := getattr(anyio_toolbatch, name))
        and issubclass(value, Exception)
    ]
    assert all(issubclass(error, ToolBatchError) for error in errors)
    assert len(errors) >= 5
    assert issubclass(anyio_toolbatch.CallDetached, BaseException)
    assert not issubclass(anyio_toolbatch.CallDetached, Exception)


# -- docstrings ----------------------------------------------------------------


def own_doc(value: Any) -> str:
    if isinstance(value, property):
        return value.__doc__ or ""
    if inspect.isclass(value):
        doc = value.__dict__.get("__doc__") or ""
        # A dataclass without a docstring gets its signature for one.
        return "" if doc.startswith(f"{value.__name__}(") else doc
    return getattr(value, "__doc__", None) or ""


def public_callables() -> Iterator[Any]:
    for module in (anyio_toolbatch, from_thread, anyio_toolbatch.testing):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                continue
            where = f"{module.__name__.rpartition('.')[2]}.{name}"
            yield pytest.param(value, id=where)
            if not inspect.isclass(value):
                continue
            for member_name, member in vars(value).items():
                if member_name.startswith("_"):
                    continue
                if inspect.isroutine(member) or isinstance(member, property):
                    if inspect.ismemberdescriptor(member):
                        continue
                    yield pytest.param(member, id=f"{where}.{member_name}")


@pytest.mark.parametrize("value", list(public_callables()))
def test_every_public_callable_has_a_docstring(value: Any) -> None:
    """Whoever asks `help` gets an answer."""
    doc = own_doc(value)
    assert doc.strip(), "no docstring of its own"
    summary = inspect.cleandoc(doc).splitlines()[0]
    assert summary[0].isupper() or not summary[0].isalpha()


def test_docstrings_are_found_missing() -> None:
    """The check above sees what has none: a bare dataclass, class and function."""

    class Child(ToolBatchError):
        pass

    assert own_doc(Child) == ""
    assert own_doc(lambda: None) == ""
    assert own_doc(property(lambda self: None)) == ""
