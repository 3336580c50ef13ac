"""Misuse of a tool raises at once, in words; what a tool is, is found when it is made."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import decimal
import functools
import inspect
import itertools
import operator
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_overloads

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyio_toolbatch
from anyio_toolbatch import ExecutorCarrier, Tool, ToolCall
from anyio_toolbatch._model.tools import as_tool, check_count, check_seconds, collect_tools


def sync_function(a: int = 1) -> int:
    return a


async def async_function(a: int = 1) -> int:
    return a


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Methods:
    def sync_method(self) -> None: ...

    async def async_method(self) -> None: ...

    async def async_stream(self) -> AsyncIterator[int]:
        yield 1

    @classmethod
    async def async_classmethod(cls) -> None: ...

    @staticmethod
    async def async_staticmethod() -> None: ...


class SyncObject:
    def __call__(self, a: int = 1) -> int:
        return a


class AsyncObject:
    async def __call__(self) -> None: ...


class StreamObject:
    def __call__(self) -> Iterator[int]:
        yield 1


class AsyncStreamObject:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@functools.lru_cache
def cached() -> None: ...


def wrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


KINDS: list[tuple[str, Callable[..., Any], str, str]] = [
    ("function", sync_function, "sync", "sync_function"),
    ("async function", async_function, "async", "async_function"),
    ("generator", generator, "sync_generator", "generator"),
    ("async generator", async_generator, "async_generator", "async_generator"),
    ("lambda", lambda: None, "sync", "<lambda>"),
    ("method", Methods().sync_method, "sync", "sync_method"),
    ("async method", Methods().async_method, "async", "async_method"),
    ("async stream", Methods().async_stream, "async_generator", "async_stream"),
    ("classmethod", Methods.async_classmethod, "async", "async_classmethod"),
    ("staticmethod", Methods.async_staticmethod, "async", "async_staticmethod"),
    ("object", SyncObject(), "sync", "SyncObject"),
    ("async object", AsyncObject(), "async", "AsyncObject"),
    ("stream object", StreamObject(), "sync_generator", "StreamObject"),
    ("async stream object", AsyncStreamObject(), "async_generator", "AsyncStreamObject"),
    ("class", Methods, "sync", "Methods"),
    ("class of async objects", AsyncObject, "sync", "AsyncObject"),
    ("builtin", len, "sync", "len"),
    ("builtin class", dict, "sync", "dict"),
    ("bound builtin", [].append, "sync", "append"),
    ("operator", operator.itemgetter(0), "sync", "itemgetter"),
    ("cached", cached, "sync", "cached"),
    ("wrapper of async", wrapped(async_function), "sync", "async_function"),
    ("partial", functools.partial(sync_function, a=2), "sync", "sync_function"),
    ("async partial", functools.partial(async_function, a=2), "async", "async_function"),
    (
        "partial of partial",
        functools.partial(functools.partial(async_generator)),
        "async_generator",
        "async_generator",
    ),
    ("partial of object", functools.partial(AsyncObject()), "async", "AsyncObject"),
]


@pytest.mark.parametrize(
    ("func", "kind", "name"), [pytest.param(*case[1:], id=case[0]) for case in KINDS]
)
def test_kind_and_name_are_found(func: Callable[..., Any], kind: str, name: str) -> None:
    """What calling it gives decides how it is run; `auto` puts async on the loop."""
    made = Tool(func)
    assert (made.kind, made.name) == (kind, name)
    assert made.carrier == ("loop" if kind.startswith("async") else "thread")
    assert made.func is func


@pytest.mark.parametrize("func", [sync_function, async_function, generator, async_generator])
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_every_kind_runs_where_it_is_told(func: Callable[..., Any], where: Any) -> None:
    """`runs_in` wins over what the function is."""
    made = Tool(func, runs_in=where)
    assert (made.carrier, made.runs_in) == (where, where)


def test_defaults() -> None:
    """A plain `Tool` has the documented options."""
    made = Tool(sync_function)
    options = {
        name: getattr(made, name)
        for name in inspect.signature(Tool).parameters
        if name not in {"func", "name"}
    }
    assert options == {
        "runs_in": "auto",
        "timeout": None,
        "validate": None,
        "exclusive": False,
        "reads": None,
        "writes": None,
        "on_interrupt": "cancel",
        "max_concurrency": None,
        "needs_slot": True,
        "metadata": None,
    }


def test_options_are_kept() -> None:
    """What was given can be read back."""
    metadata = object()
    made = Tool(
        sync_function,
        name="other",
        timeout=5,
        validate=dict,
        on_interrupt="keep",
        metadata=metadata,
    )
    assert (made.name, made.timeout, made.validate) == ("other", 5, dict)
    assert (made.on_interrupt, made.metadata) == ("keep", metadata)


async def async_validate(call: ToolCall) -> None: ...


MISUSE: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("func str", {"func": "search"}, TypeError, "Tool func must be callable, not str"),
    ("func None", {"func": None}, TypeError, "Tool func must be callable, not NoneType"),
    (
        "func Tool",
        {"func": Tool(sync_function)},
        TypeError,
        "Tool() takes a callable, not another Tool; pass its .func",
    ),
    ("name int", {"name": 5}, TypeError, "Tool name must be a str, not int"),
    ("name empty", {"name": ""}, ValueError, "Tool name must not be empty"),
    (
        "timeout str",
        {"timeout": "5"},
        TypeError,
        "timeout must be a number of seconds or None, not str",
    ),
    (
        "timeout bool",
        {"timeout": True},
        TypeError,
        "timeout must be a number of seconds or None, not bool",
    ),
    ("timeout negative", {"timeout": -1}, ValueError, "timeout must be ≥ 0 seconds, not -1"),
    (
        "timeout nan",
        {"timeout": float("nan")},
        ValueError,
        "timeout must be ≥ 0 seconds, not nan",
    ),
    (
        "validate",
        {"validate": {"a": int}},
        TypeError,
        "validate must be callable or None, not dict",
    ),
    (
        "validate async",
        {"validate": async_validate},
        TypeError,
        "validate must be a plain function; it is called, not awaited",
    ),
    (
        "on_interrupt",
        {"on_interrupt": "ignore"},
        ValueError,
        "on_interrupt must be 'cancel' or 'keep', not 'ignore'",
    ),
    (
        "on_interrupt unhashable",
        {"on_interrupt": []},
        ValueError,
        "on_interrupt must be 'cancel' or 'keep', not []",
    ),
    (
        "on_interrupt None",
        {"on_interrupt": None},
        ValueError,
        "on_interrupt must be 'cancel' or 'keep', not None",
    ),
    (
        "runs_in unknown",
        {"runs_in": "fiber"},
        ValueError,
        "runs_in must be 'auto', 'loop', 'thread', 'process', an Executor or an ExecutorCarrier, not 'fiber'",
    ),
    (
        "runs_in None",
        {"runs_in": None},
        TypeError,
        "runs_in must be 'auto', 'loop', 'thread', 'process', an Executor or an ExecutorCarrier, not None",
    ),
    (
        "async in a process",
        {"func": async_function, "runs_in": "process"},
        TypeError,
        "an async function cannot run in 'process'",
    ),
    (
        "async generator in a process",
        {"func": async_generator, "runs_in": "process"},
        TypeError,
        "an async function cannot run in 'process'",
    ),
    ("exclusive", {"exclusive": 1}, TypeError, "exclusive must be a bool, not int"),
    ("needs_slot", {"needs_slot": None}, TypeError, "needs_slot must be a bool, not NoneType"),
    (
        "max_concurrency 0",
        {"max_concurrency": 0},
        ValueError,
        "max_concurrency must be at least 1, not 0",
    ),
    (
        "max_concurrency True",
        {"max_concurrency": True},
        TypeError,
        "max_concurrency must be an int, not bool",
    ),
    *(
        (
            f"{name} {value!r:.20}",
            {name: value},
            TypeError,
            message.format(name),
        )
        for name in ("reads", "writes")
        for value, message in [
            (1, "{} must give keys (str or os.PathLike), not int"),
            (b"key", "{} must give keys (str or os.PathLike), not bytes"),
            (["key", None], "{} must give keys (str or os.PathLike), not NoneType"),
            (async_function, "{} must be a plain function; it is called, not awaited"),
        ]
    ),
]

each_misuse = pytest.mark.parametrize(
    ("options", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in MISUSE]
)


@each_misuse
def test_misuse_of_tool_raises_at_once(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Type, value and what is not there yet: each option says what it expects."""
    with pytest.raises(error) as caught:
        Tool(**({"func": sync_function} | options))
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [pytest.param(*case[1:], id=case[0]) for case in MISUSE if "func" not in case[1]],
)
def test_misuse_of_the_decorator_raises_on_its_own_line(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """``@tool(wrong=…)`` raises before there is a function to decorate."""
    with pytest.raises(error) as caught:
        anyio_toolbatch.tool(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("func", [async_function, async_generator])
def test_async_function_in_an_executor_is_a_type_error(func: Callable[..., Any]) -> None:
    """An executor runs plain functions only."""
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        pytest.raises(TypeError, match="an async function cannot run in <"),
    ):
        Tool(func, runs_in=executor)


def test_executor_as_the_place() -> None:
    """An executor is taken as it is, and in a carrier with its canceller."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        carrier = ExecutorCarrier(executor, lambda future: "abandoned")
        assert Tool(sync_function, runs_in=executor).carrier == "executor"
        assert Tool(sync_function, runs_in=carrier).carrier == "executor"
        assert Tool(sync_function, runs_in=carrier).runs_in is carrier


class AsyncCallable:
    async def __call__(self, future: object) -> str:
        return "stopped"


def test_carrier_of_something_else() -> None:
    """What is no executor, or no plain function, is refused where it is given."""
    with pytest.raises(TypeError, match=r"concurrent\.futures\.Executor, not str"):
        ExecutorCarrier("ray")  # type: ignore[arg-type]
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        with pytest.raises(TypeError, match="canceller must be callable or None, not str"):
            ExecutorCarrier(executor, "stop")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="canceller must be a plain function"):
            ExecutorCarrier(executor, async_function)
        with pytest.raises(TypeError, match="canceller must be a plain function"):
            ExecutorCarrier(executor, AsyncCallable())  # type: ignore[arg-type]


def test_unknown_option_is_a_type_error() -> None:
    """A misspelt option is Python's own TypeError, from the decorator too."""
    with pytest.raises(TypeError, match="time_out"):
        Tool(sync_function, time_out=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="time_out"):
        anyio_toolbatch.tool(time_out=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("timeout", [0, 0.0, 5, 1.5, float("inf"), None])
def test_timeouts_that_are_fine(timeout: float | None) -> None:
    """0 is a limit like any other, infinity is none."""
    assert Tool(sync_function, timeout=timeout).timeout == timeout


# -- the decorator -------------------------------------------------------------


def test_bare_decorator() -> None:
    """``@tool`` makes the name the Tool; calling it calls the function."""
    made = anyio_toolbatch.tool(sync_function)
    assert isinstance(made, Tool)
    assert made(3) == made(a=3) == 3
    assert made.name == "sync_function"


def test_decorator_with_options() -> None:
    """``@tool(…)`` hands all options on."""

    @anyio_toolbatch.tool(name="other", timeout=5, runs_in="loop", on_interrupt="keep")
    def function() -> str:
        return "called"

    assert isinstance(function, Tool)
    assert (function.name, function.timeout) == ("other", 5)
    assert (function.carrier, function.on_interrupt) == ("loop", "keep")
    assert function() == "called"


def test_decorator_without_options() -> None:
    """``@tool()`` is ``@tool``."""
    assert anyio_toolbatch.tool()(sync_function).name == "sync_function"


def test_decorator_takes_the_options_of_tool() -> None:
    """Its typed signature has every option of `Tool`, with the same default."""
    with_options = get_overloads(anyio_toolbatch.tool)[1]
    expected = list(inspect.signature(Tool).parameters.values())[1:]
    found = list(inspect.signature(with_options).parameters.values())
    assert [(p.name, p.kind, p.default) for p in found] == [
        (p.name, p.kind, p.default) for p in expected
    ]


def test_async_tool_gives_its_coroutine() -> None:
    """Calling a decorated async function gives what the function gives."""
    coroutine = anyio_toolbatch.tool(async_function)(4)
    assert inspect.iscoroutine(coroutine)
    assert asyncio.run(coroutine) == 4


# -- collecting ----------------------------------------------------------------


def test_tools_are_collected_by_name() -> None:
    """`Tool`s are taken as they are, callables get the defaults."""
    made = Tool(async_function, name="made")
    tools = collect_tools([made, sync_function])
    assert list(tools) == ["made", "sync_function"]
    assert tools["made"] is made
    assert tools["sync_function"].func is sync_function


def test_tools_may_be_any_iterable() -> None:
    """A generator of tools is as good as a list; nothing is no tools."""
    assert list(collect_tools(f for f in [sync_function, generator])) == [
        "sync_function",
        "generator",
    ]
    assert collect_tools(()) == {}


def test_mapping_gives_the_names() -> None:
    """The key is what the model says, whatever the tool's own name is."""
    made = Tool(async_function)
    tools = collect_tools({"one": made, "two": sync_function})
    assert tools["one"] is made
    assert (tools["two"].name, tools["two"].func) == ("two", sync_function)


@pytest.mark.parametrize(
    ("tools", "error", "message"),
    [
        (
            [sync_function, Tool(generator, name="sync_function")],
            ValueError,
            "two tools are named 'sync_function'; give one another name, or pass a mapping",
        ),
        (["search"], TypeError, "a tool must be a Tool or a callable, not str"),
        ({"a": 5}, TypeError, "a tool must be a Tool or a callable, not int"),
        ({5: sync_function}, TypeError, "tools must map names to tools; 5 is no str"),
        (
            "search",
            TypeError,
            (
                "tools must be an iterable of Tools or callables, or a mapping name → either, "
                "not str"
            ),
        ),
        (
            None,
            TypeError,
            (
                "tools must be an iterable of Tools or callables, or a mapping name → either, "
                "not NoneType"
            ),
        ),
        (
            sync_function,
            TypeError,
            (
                "tools must be an iterable of Tools or callables, or a mapping name → either, "
                "not function (put the one tool into a list)"
            ),
        ),
        (
            Tool(sync_function),
            TypeError,
            (
                "tools must be an iterable of Tools or callables, or a mapping name → either, "
                "not Tool (put the one tool into a list)"
            ),
        ),
    ],
    ids=["twice", "no tool", "no tool in mapping", "key", "str", "None", "function", "Tool"],
)
def test_what_is_no_collection_of_tools(
    tools: Any, error: type[Exception], message: str
) -> None:
    """The usual slips get a sentence that helps."""
    with pytest.raises(error) as caught:
        collect_tools(tools)
    assert str(caught.value) == message


def test_as_tool() -> None:
    """A `Tool` stays the same object; a callable becomes one."""
    made = Tool(sync_function)
    assert as_tool(made) is made
    assert as_tool(sync_function, name="x").name == "x"


# -- checks that runners share -------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, TypeError, "n must be a number of seconds, not NoneType"),
        ("1", TypeError, "n must be a number of seconds, not str"),
        (False, TypeError, "n must be a number of seconds, not bool"),
        (decimal.Decimal(1), TypeError, "n must be a number of seconds, not Decimal"),
        (-0.1, ValueError, "n must be ≥ 0 seconds, not -0.1"),
        (float("nan"), ValueError, "n must be ≥ 0 seconds, not nan"),
        (float("-inf"), ValueError, "n must be ≥ 0 seconds, not -inf"),
    ],
)
def test_seconds_that_must_be_given(value: Any, error: type[Exception], message: str) -> None:
    """Where None is no answer the message does not offer it."""
    with pytest.raises(error) as caught:
        check_seconds("n", value, optional=False)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "optional", "error", "message"),
    [
        (None, False, TypeError, "n must be an int, not NoneType"),
        (1.0, True, TypeError, "n must be an int, not float"),
        (True, True, TypeError, "n must be an int, not bool"),
        ("1", False, TypeError, "n must be an int, not str"),
        (0, True, ValueError, "n must be at least 1, not 0"),
        (-5, False, ValueError, "n must be at least 1, not -5"),
    ],
)
def test_counts(value: Any, optional: bool, error: type[Exception], message: str) -> None:
    """A count is an int, not a bool, and not below its minimum."""
    with pytest.raises(error) as caught:
        check_count("n", value, minimum=1, optional=optional)
    assert str(caught.value) == message


def test_counts_and_seconds_that_are_fine() -> None:
    """The minimum itself is allowed; None only where it may be."""
    check_count("n", 1, minimum=1, optional=False)
    check_count("n", None, minimum=1, optional=True)
    check_seconds("n", 0, optional=False)
    check_seconds("n", None)


# -- binding -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing a required argument: 'a'"),
        ({"a": 1, "z": 2}, "got an unexpected keyword argument 'z'"),
        ({"b": 1}, "missing a required argument: 'a'"),
    ],
    ids=["missing", "unexpected", "missing beside a given one"],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    """The message is Python's own, so that the model can mend its call."""

    def function(a: int, b: int = 2) -> None: ...

    with pytest.raises(TypeError) as caught:
        Tool(function).bind(arguments)
    assert str(caught.value) == message


def test_function_without_a_signature_is_left_to_the_call() -> None:
    """Some C functions tell nothing of their arguments: Python will check them."""
    with pytest.raises(ValueError):
        inspect.signature(max)
    Tool(max).bind({"anything": 1})


def test_bound_keywords_of_a_partial_may_be_overridden() -> None:
    """As Python has it: a partial's keyword is a default."""
    made = Tool(functools.partial(sync_function, a=1))
    made.bind({})
    made.bind({"a": 2})
    with pytest.raises(TypeError):
        made.bind({"z": 2})


NAMES = "abcd"


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """Functions of every shape that Python's grammar allows, up to four named ones."""
    kinds = sorted(
        draw(
            st.lists(
                st.sampled_from(
                    [
                        inspect.Parameter.POSITIONAL_ONLY,
                        inspect.Parameter.POSITIONAL_OR_KEYWORD,
                        inspect.Parameter.KEYWORD_ONLY,
                    ]
                ),
                max_size=4,
            )
        )
    )
    parameters = []
    has_default = False
    for name, kind in zip(NAMES, kinds, strict=False):
        wanted = draw(st.booleans())
        if kind is not inspect.Parameter.KEYWORD_ONLY:
            # After the first default all positional ones need one.
            wanted = has_default = has_default or wanted
        default = 0 if wanted else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, kind, default=default))
    if draw(st.booleans()):
        parameters.append(inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL))
    if draw(st.booleans()):
        parameters.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
    parameters.sort(key=lambda parameter: parameter.kind)
    source = f"def function{inspect.Signature(parameters)}: return None"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    function: Callable[..., Any] = namespace["function"]
    return function


arguments_for = st.dictionaries(
    st.sampled_from([*NAMES, "args", "kwargs", "self", "z"]), st.integers(), max_size=5
)


def outcome_of(check: Callable[[], object]) -> str | None:
    try:
        check()
    except TypeError as exc:
        return str(exc)
    return None


@given(functions(), arguments_for)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_quick_way_of_binding_agrees_with_the_slow_one(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    """P1: a call is invalid exactly if Python could not bind it, in Python's words."""
    expected = outcome_of(lambda: inspect.signature(function).bind(**arguments))
    assert outcome_of(lambda: Tool(function).bind(arguments)) == expected
    if not any(
        p.kind is p.POSITIONAL_ONLY for p in inspect.signature(function).parameters.values()
    ):
        # `inspect` itself has been wrong about positional-only names in **kwargs.
        assert (outcome_of(lambda: function(**arguments)) is None) is (expected is None)


@pytest.mark.parametrize("required", range(3))
@pytest.mark.parametrize("optional", range(3))
def test_quick_way_answers_the_usual_case(required: int, optional: int) -> None:
    """A call that fits ordinary parameters is accepted, whichever it leaves out."""
    names = [f"p{number}" for number in range(required + optional)]
    head = ", ".join([*names[:required], *(f"{name}=0" for name in names[required:])])
    namespace: dict[str, Any] = {}
    exec(f"def function({head}): return None", namespace)
    made = Tool(namespace["function"])
    for given_ in itertools.chain.from_iterable(
        itertools.combinations(names, count) for count in range(len(names) + 1)
    ):
        fits = set(names[:required]) <= set(given_)
        assert (outcome_of(lambda: made.bind(dict.fromkeys(given_, 1))) is None) is fits


@pytest.mark.parametrize("again", [copy.copy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copied_tool_still_binds(again: Callable[[Tool], Tool]) -> None:
    """What is found when a tool is made is found again when it is copied."""
    made = again(Tool(sync_function, timeout=5))
    assert (made.name, made.timeout, made.kind, made.carrier) == (
        "sync_function",
        5,
        "sync",
        "thread",
    )
    made.bind({"a": 1})
    with pytest.raises(TypeError):
        made.bind({"z": 1})


def test_repr_names_the_tool() -> None:
    """Short enough for a log line."""
    assert repr(Tool(sync_function)) == "<Tool 'sync_function' runs_in='auto'>"


class Falsy(dict[str, str]):
    """A key function that happens to be empty."""

    def __call__(self, **arguments: Any) -> str:
        return "key"


@pytest.mark.parametrize("option", ["reads", "writes"])
def test_a_falsy_key_function_counts(option: str) -> None:
    """Claims are not silently ignored."""
    options: dict[str, Any] = {option: Falsy()}
    assert Tool(sync_function, **options).is_scheduled


@pytest.mark.parametrize("option", ["reads", "writes"])
def test_no_keys_are_no_claims(option: str) -> None:
    """A tool that says that it uses nothing need not wait for anybody."""
    options: dict[str, Any] = {option: []}
    assert not Tool(sync_function, **options).is_scheduled
