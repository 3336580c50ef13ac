"""P6: each result tells, as data and in its text, what is true, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anyio_toolbatch import (
    LateResult,
    Reason,
    Status,
    ToolCall,
    ToolCallError,
    ToolOutput,
    ToolResult,
)
from anyio_toolbatch._model.results import make_result, text_of_value

CALL = ToolCall("id", "search", {"q": "x"})
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)

KINDS: dict[Status, tuple[str | None, ...]] = {
    Status.COMPLETED: (None,),
    Status.FAILED: (None, "resource_busy", "too_many_detached"),
    Status.TIMED_OUT: ("call_timeout", "batch_timeout", "approval_timeout"),
    Status.INTERRUPTED: (
        "user_interrupt",
        "caller_cancelled",
        "call_cancelled",
        "superseded",
        "sibling_failed",
        "runner_closed",
    ),
    Status.DENIED: ("not_approved",),
    Status.INVALID: ("unknown_tool", "bad_arguments"),
}
"""The table of the design: which reasons go with which status."""

NEVER_STARTED = {
    "resource_busy",
    "too_many_detached",
    "approval_timeout",
    "not_approved",
    "unknown_tool",
    "bad_arguments",
}

ALL_KINDS = [(status, kind) for status, kinds in KINDS.items() for kind in kinds]

SAYS_NOT_STARTED = re.compile(
    r"not started|never (ran|started)|(did|was|has) ?n[o']t (been )?(run|start)|no effects"
    r"|before it began",
    re.IGNORECASE,
)
SAYS_STARTED = re.compile(r"before it finished|side effects|background|outcome", re.IGNORECASE)
INVITES = re.compile(r"try|again|re-?run|repeat", re.IGNORECASE)
CLOCK = re.compile(
    r"\d\d?:\d\d|\d\s*m?s\b|\d\s*sec|\d{4}-\d\d|\d{6,}|\d\.\d{2,}|0x[0-9a-f]{4}"
)


def result(status: Status, **more: Any) -> ToolResult:
    return ToolResult(CALL, 0, status, **more)


def completed(value: Any) -> ToolResult:
    return result(Status.COMPLETED, value=value)


def make(
    status: Status,
    reason: Reason | None,
    *,
    started: bool,
    detached: bool = False,
    value: Any = None,
    error: BaseException | None = None,
    partial: Any = None,
    times: tuple[float, float] = (0.0, 0.0),
    fate: str = "",
) -> ToolResult:
    """Make a result as a batch does, every field in the caller's hand."""
    is_error = status is not Status.COMPLETED
    return make_result(
        *(CALL, 0, status, value, error, reason),
        *(started, detached, is_error, partial, *times, fate),
    )


# -- data --------------------------------------------------------------------


def test_statuses_are_strings() -> None:
    """A status goes into JSON and compares with its name."""
    assert {status: str(status) for status in Status} == {s: s.value for s in KINDS}
    assert Status.TIMED_OUT == "timed_out"
    assert json.dumps(Status.FAILED) == '"failed"'


@pytest.mark.parametrize(
    ("status", "kind"), ALL_KINDS, ids=[f"{status}-{kind}" for status, kind in ALL_KINDS]
)
def test_hand_made_result_takes_its_defaults_from_the_table(
    status: Status, kind: str | None
) -> None:
    """What never starts is not started by default; only a completion is no error."""
    reason = None if kind is None else Reason(kind)
    made = result(status, reason=reason)
    assert made.is_error is (status is not Status.COMPLETED)
    if kind != "approval_timeout":  # a time-out may be of either kind
        assert made.started is (kind not in NEVER_STARTED)
    assert (made.reason, made.detached, made.partial) == (reason, False, None)


def test_status_may_be_given_by_name() -> None:
    """A host that has read a status from JSON hands it over as it is."""
    assert ToolResult(CALL, 0, "failed").status is Status.FAILED  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lost"):
        ToolResult(CALL, 0, "lost")  # type: ignore[arg-type]


def test_given_marks_win_over_the_defaults() -> None:
    """`started` and `is_error` are taken as given."""
    made = result(Status.INTERRUPTED, started=False, is_error=False, detached=True)
    assert (made.started, made.is_error, made.detached) == (False, False, True)
    assert completed("x").is_error is False
    assert result(Status.COMPLETED, is_error=True).is_error is True


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("started", [True, False])
def test_effects(status: Status, started: bool) -> None:
    """P6: none if never started, done if completed, else nobody knows."""
    expected = "done" if status is Status.COMPLETED else "unknown"
    assert result(status, started=started).effects == (expected if started else "none")


def test_equality_ignores_times() -> None:
    """Two runs of the same turn have equal results, however long they took."""
    one = result(Status.FAILED, wait_time=1.0, run_time=2.0)
    other = result(Status.FAILED, wait_time=3.0, run_time=4.0)
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "change",
    [
        {"status": Status.TIMED_OUT},
        {"value": "other"},
        {"error": ValueError("x")},
        {"reason": Reason("superseded")},
        {"reason": Reason("user_interrupt", "said")},
        {"started": False},
        {"detached": True},
        {"is_error": False},
        {"partial": "some"},
        {"index": 1},
        {"call": ToolCall("id", "other")},
    ],
    ids=lambda change: "-".join(change) + str(len(str(change))),
)
def test_every_other_field_tells_results_apart(change: dict[str, Any]) -> None:
    """Equality looks at all that a result says."""
    fields = {
        "call": CALL,
        "index": 0,
        "status": Status.INTERRUPTED,
        "reason": Reason("user_interrupt"),
    }
    assert ToolResult(**fields) == ToolResult(**fields)
    assert ToolResult(**fields) != ToolResult(**(fields | change))


def test_a_kept_result_differs_from_one_that_is_not() -> None:
    """Their texts differ, so they are not equal."""
    reason = Reason("user_interrupt")
    kept, cut = (
        make(Status.INTERRUPTED, reason, started=True, detached=True, fate=fate)
        for fate in ("kept", "")
    )
    assert kept != cut


def test_results_are_not_equal_to_strangers() -> None:
    """Comparing with anything else is allowed and false."""
    assert completed("x") != "x"
    assert Reason("superseded") != "superseded"


def test_reasons_are_values() -> None:
    """Kind and message make a reason; it is hashable."""
    assert Reason("superseded", "x") == Reason("superseded", "x")
    assert len({Reason("superseded"), Reason("superseded"), Reason("superseded", "x")}) == 2
    assert Reason("superseded").message is None
    assert repr(Reason("superseded", "x")) == "Reason(kind='superseded', message='x')"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
@pytest.mark.parametrize("fate", ["", "kept", "stopped"])
def test_copies_are_equal_and_read_alike(again: Any, fate: str) -> None:
    """A result may be stored and read back; what it says stays the same."""
    reason = Reason("user_interrupt", "enough")
    made = make(
        Status.INTERRUPTED, reason, started=True, detached=True, partial=["a"], fate=fate
    )
    copied = again(made)
    assert copied == made
    assert copied.text == made.text


def test_late_result_is_tagged() -> None:
    """P5: a late result says of which batch and call it is, and how late."""
    error = ValueError("x")
    late = LateResult("batch", CALL, 3, None, error, 1.5)
    assert (late.batch_id, late.call, late.index) == ("batch", CALL, 3)
    assert (late.value, late.error, late.late_by) == (None, error, 1.5)


def test_tool_output_is_a_value_with_a_mark() -> None:
    """Two are equal if value and mark are; it may hold what has no hash."""
    assert ToolOutput([1]) == ToolOutput([1], is_error=False)
    assert ToolOutput([1]) != ToolOutput([1], is_error=True)
    assert ToolOutput(1) != 1
    assert repr(ToolOutput("x", True)) == "ToolOutput('x', is_error=True)"
    with pytest.raises(TypeError):
        hash(ToolOutput(1))


# -- unwrap ------------------------------------------------------------------


def test_unwrap_gives_the_value() -> None:
    """The very object that the tool returned, also when it is falsy."""
    value: list[int] = []
    assert completed(value).unwrap() is value
    assert completed(None).unwrap() is None


def test_unwrap_raises_from_the_cause() -> None:
    """The tool's own exception is the cause; the message names the call."""
    error = ValueError("bad")
    with pytest.raises(ToolCallError) as caught:
        ToolResult(CALL, 7, Status.FAILED, error=error).unwrap()
    assert caught.value.__cause__ is error
    assert str(caught.value) == "call 7 (search): ValueError: bad"


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.COMPLETED])
def test_unwrap_of_what_did_not_complete_raises(status: Status) -> None:
    """Only a completed call has a value to give; `__cause__` is None without an error."""
    with pytest.raises(ToolCallError) as caught:
        result(status, value="never this").unwrap()
    assert caught.value.__cause__ is None


# -- text of values and errors -----------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ({"ä": [1, None]}, '{"ä": [1, null]}'),
        ([], "[]"),
        ((1, 2), "[1, 2]"),
        (float("nan"), "NaN"),
        (b"raw", "b'raw'"),
        ({1}, "[1]"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (Status.FAILED, "failed"),
        (ValueError("x"), "x"),
        ("\ud800", "\ud800"),
    ],
    ids=lambda item: ascii(item)[:25],
)
def test_text_of_a_value(value: Any, text: str) -> None:
    """A str as it is, else JSON, else `str`."""
    assert completed(value).text == text


def test_text_of_a_str_subclass_is_its_content() -> None:
    """The content, as a plain str, whatever the class does with it."""

    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    text = completed(Loud("quiet")).text
    assert (text, type(text)) == ("quiet", str)


def test_text_of_an_object_without_a_text_is_its_type() -> None:
    """No address, which would be another at each run."""
    assert completed(object()).text == "[a value of type object]"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (ExceptionGroup("two", [ValueError("x")]), "ExceptionGroup: two (1 sub-exception)"),
    ],
    ids=lambda item: repr(item)[:25],
)
def test_text_of_a_failure(error: BaseException, text: str) -> None:
    """``Type: message``, as a traceback's last line has it."""
    assert result(Status.FAILED, error=error).text == text


def test_partial_output_follows_the_text() -> None:
    """P3: what the tool had published is shown, and named as partial."""
    failed = result(Status.FAILED, error=ValueError("bad"), partial=["a"])
    assert failed.text == 'ValueError: bad\nPartial output until then:\n["a"]'
    cut = result(Status.INTERRUPTED, reason=Reason("user_interrupt"), partial="half")
    assert cut.text.endswith("\nPartial output until then:\nhalf")


@pytest.mark.parametrize("partial", ["", [], 0, False])
def test_empty_partial_output_is_no_missing_one(partial: Any) -> None:
    """Only None means that nothing was published."""
    text = result(Status.FAILED, error=ValueError("bad"), partial=partial).text
    assert "Partial output until then:" in text


# -- text of what did not complete -------------------------------------------

UNKNOWN = "It may have had side effects; its outcome is unknown."


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            make(Status.INTERRUPTED, Reason("user_interrupt"), started=True, detached=True),
            f"Tool call interrupted by the user before it finished. {UNKNOWN}",
        ),
        (
            make(Status.INTERRUPTED, Reason("user_interrupt", "enough"), started=False),
            (
                "Tool call not started: interrupted by the user (enough) before it began. "
                "It had no effects."
            ),
        ),
        (
            make(Status.TIMED_OUT, Reason("call_timeout"), started=True, detached=True),
            f"Tool call timed out (its own time limit) before it finished. {UNKNOWN}",
        ),
        (
            make(
                Status.INTERRUPTED,
                Reason("user_interrupt"),
                started=True,
                detached=True,
                fate="kept",
            ),
            (
                "The turn was interrupted by the user; the tool call goes on in the background. "
                "It may have side effects; its outcome is not known yet."
            ),
        ),
        (
            make(Status.INTERRUPTED, Reason("user_interrupt"), started=True, fate="stopped"),
            "Tool call interrupted by the user before it finished and was stopped. " + UNKNOWN,
        ),
        (
            make(
                Status.INVALID,
                Reason("unknown_tool", "no tool is named 'x'."),
                started=False,
                error=LookupError("x"),
            ),
            "Tool call not started: no tool is named 'x'. It had no effects.",
        ),
        (
            make(
                Status.INVALID, Reason("bad_arguments"), started=False, error=TypeError("a b")
            ),
            "Tool call not started: TypeError: a b. It had no effects.",
        ),
        (
            make(Status.FAILED, Reason("resource_busy"), started=False),
            "Tool call not started: resource_busy. It had no effects.",
        ),
        (result(Status.INTERRUPTED), "Tool call interrupted."),
    ],
    ids=[
        "started",
        "not started",
        "timed out",
        "kept",
        "stopped",
        "reason's message",
        "error's message",
        "kind alone",
        "nothing known",
    ],
)
def test_wording(made: ToolResult, text: str) -> None:
    """P6: the very words that a model is shown."""
    assert made.text == text


@pytest.mark.parametrize(
    "kind",
    sorted({k for s, k in ALL_KINDS if k and s in {"interrupted", "timed_out", "denied"}}),
)
def test_no_kind_is_shown_by_its_bare_name(kind: str) -> None:
    """Each reason is told in words of its own."""
    for started in (True, False):
        text = make(Status.INTERRUPTED, Reason(kind), started=started).text
        assert "_" not in text
        assert f"{kind} before it" not in text
    texts = {make(Status.INTERRUPTED, Reason(k), started=True).text for _, k in ALL_KINDS if k}
    assert len(texts) == len({k for _, k in ALL_KINDS if k}), "two reasons share their words"


messages = st.none() | st.sampled_from(["", "enough", "call 3 (search) failed", "ä\ud800."])
errors = st.sampled_from([None, ValueError("bad"), KeyboardInterrupt(), OSError(2, "gone")])
partials = st.sampled_from([None, "half", "", ["a", 1], b"raw"])
truths = st.fixed_dictionaries(
    {
        "detached": st.booleans(),
        "error": errors,
        "partial": partials,
        "fate": st.sampled_from(["", "kept", "stopped"]),
        "times": st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    }
)


@st.composite
def told_with_reason(draw: st.DrawFn) -> ToolResult:
    """Any result with a reason, where what can't have started says so."""
    status, kind = draw(st.sampled_from([pair for pair in ALL_KINDS if pair[1]]))
    assert kind is not None
    started = draw(st.booleans()) and kind not in NEVER_STARTED
    return make(status, Reason(kind, draw(messages)), started=started, **draw(truths))


@given(told_with_reason())
@PROPERTY
def test_text_of_a_started_call_never_says_that_it_was_not(made: ToolResult) -> None:
    """P6: never "did not run" for a call that ran, never "try again"."""
    if made.started:
        assert not SAYS_NOT_STARTED.search(made.text)
        assert not INVITES.search(made.text)
        assert SAYS_STARTED.search(made.text)


@given(told_with_reason())
@PROPERTY
def test_text_of_a_call_that_never_started_says_so(made: ToolResult) -> None:
    """P6: it had no effects, and the model may know."""
    if not made.started:
        assert made.text.startswith("Tool call not started: ")
        assert "It had no effects." in made.text
        assert not SAYS_STARTED.search(made.text)


@given(told_with_reason())
@PROPERTY
def test_text_says_why(made: ToolResult) -> None:
    """P6: what was said by the one who stopped it is in the text."""
    assert made.reason is not None
    if made.reason.message:
        assert made.reason.message.rstrip(".") in made.text


@given(told_with_reason())
@PROPERTY
def test_text_holds_no_clock_times(made: ToolResult) -> None:
    """Equal outcomes give equal bytes: nothing that was measured is in them."""
    assert not CLOCK.search(made.text)


@given(told_with_reason(), st.floats(0, 1e6), st.floats(0, 1e6))
@PROPERTY
def test_equal_results_have_equal_texts(made: ToolResult, wait: float, run: float) -> None:
    """The same outcome at another speed reads the same."""
    again = copy.copy(made)
    object.__setattr__(again, "wait_time", wait)
    object.__setattr__(again, "run_time", run)
    assert again == made
    assert again.text == made.text


@pytest.mark.parametrize("kind", ["unknown_tool", "bad_arguments", "too_many_detached"])
def test_text_agrees_with_started_in_every_combination(kind: str) -> None:
    """P6: the text follows `started`, whatever reason a host has put beside it."""
    made = make(Status.FAILED, Reason(kind), started=True)
    assert not SAYS_NOT_STARTED.search(made.text)


def test_text_of_a_failed_thread_start_says_not_started() -> None:
    """P6: an error without a reason, of a call that never started, is not the tool's."""
    error = RuntimeError("can't start new thread")
    text = make(Status.FAILED, None, started=False, error=error).text
    assert "not started" in text
    assert "RuntimeError: can't start new thread" in text


# -- hostile values ----------------------------------------------------------


class Mute:
    """Raises wherever it is asked for a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Liar(str):
    """A str whose own methods raise."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class WrongType:
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - on purpose


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Deep:
    def __str__(self) -> str:
        return str(self)


@dataclasses.dataclass
class Plain:
    a: Any


def circular_list() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def circular_dict() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["self"] = found
    return found


def nested_list() -> list[Any]:
    found: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 20):
        found = [found]
    return found


HOSTILE = {
    "mute": Mute(),
    "list of mutes": [Mute()],
    "mute key": {Mute(): 1},
    "lying str": Liar("content"),
    "lying key": {Liar("key"): Liar("value")},
    "str gives int": WrongType(),
    "endless str": Deep(),
    "circular list": circular_list(),
    "circular dict": circular_dict(),
    "nested": nested_list(),
    "huge int": 10**5_000,
    "huge int in list": [10**5_000],
    "lone surrogate": "\ud800",
    "surrogate in JSON": {"\udfff": ["\ud800"]},
    "nan": float("nan"),
    "infinite": [float("inf")],
    "bytes": b"\xff\x00",
    "set": {1, "a", None},
    "dataclass": Plain(1),
    "mute dataclass": Plain(Mute()),
    "class": Mute,
    "exception": MuteError(),
    "iterator": iter([1]),
    "complex": 1j,
    "not implemented": NotImplemented,
}

each_hostile = pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())


@each_hostile
def test_text_never_raises_for_a_value(value: Any) -> None:
    """Whatever a tool returns, the model gets a text, and the same one each time."""
    first, second = completed(value).text, completed(value).text
    assert type(first) is str
    assert first
    assert first == second


@each_hostile
def test_text_never_raises_for_a_partial(value: Any) -> None:
    """The same for what a tool has published."""
    made = result(Status.INTERRUPTED, reason=Reason("user_interrupt"), partial=value)
    assert made.text.startswith("Tool call interrupted by the user")


@each_hostile
def test_text_never_raises_for_an_error(value: Any) -> None:
    """The same for what a tool has raised."""
    text = result(Status.FAILED, error=ValueError(value)).text
    assert text.startswith("ValueError")


def test_what_cannot_be_shown_is_named() -> None:
    """The model reads the type, so that it can tell the tool's author."""
    assert completed(Mute()).text == (
        "[a value of type Mute that cannot be shown as text: RuntimeError]"
    )
    assert result(Status.FAILED, error=MuteError()).text == (
        "MuteError: [its message cannot be shown as text]"
    )


LEAVES = [Mute(), Liar("x"), WrongType(), 10**5_000, "\ud800", float("nan"), b"\xff", {1}, 1j]
# By number: Hypothesis would ask a `sampled_from` of them for its repr.
hostile_leaves = st.integers(0, len(LEAVES) - 1).map(lambda number: LEAVES[number])
hostile_values = st.recursive(
    hostile_leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Plain, inner)
        | st.builds(ToolOutput, inner)
    ),
    max_leaves=6,
)


@given(hostile_values)
@example(circular_list())
@PROPERTY
def test_text_of_value_never_raises(value: Any) -> None:
    """Any mixture of the above gives a plain str."""
    assert type(text_of_value(value)) is str


class Proxy:
    """Says that it is a str, as lazy strings and proxies do."""

    __class__ = property(lambda self: str)  # type: ignore[assignment]

    def __str__(self) -> str:
        return "proxied"


@pytest.mark.parametrize("value", [Proxy(), Mock(spec=str)], ids=["proxy", "mock"])
def test_text_of_what_only_looks_like_a_str_never_raises(value: Any) -> None:
    """A lazy proxy or a mock of a str is shown by its `str`."""
    assert type(text_of_value(value)) is str


class Exits:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


class StrangeMessage(Exception):
    class Text(str):
        __slots__ = ()

        def __format__(self, spec: str) -> str:
            raise RuntimeError("no text")

    def __str__(self) -> str:
        return self.Text("message")


def test_text_survives_a_base_exception_out_of_str() -> None:
    """`text` never raises, so not SystemExit either."""
    try:
        text = completed(Exits()).text
    except SystemExit:
        text = ""
    assert text != ""


class InterruptedWhileShown(Exception):
    """The user's Ctrl-C may arrive while any line of Python runs, also in here."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


def test_the_users_own_interrupt_is_not_swallowed_by_text() -> None:
    """KeyboardInterrupt is no answer of the value's: it goes to whom it is meant for."""
    with pytest.raises(KeyboardInterrupt):
        completed(InterruptedWhileShown()).text
    with pytest.raises(KeyboardInterrupt):
        result(Status.FAILED, error=InterruptedWhileShown()).text


def test_text_survives_a_strange_str_out_of_an_error() -> None:
    """`text` never raises: the message is used as a plain str."""
    assert result(Status.FAILED, error=StrangeMessage()).text == "StrangeMessage: message"


def test_equal_sets_have_equal_texts() -> None:
    """Equal outcomes give equal bytes, also where the value has no order."""
    one, other = {0, 8}, {8, 0}
    assert one == other
    assert completed(one).text == completed(other).text


def test_sets_are_shown_in_the_order_of_their_texts() -> None:
    """Neither hashes, which differ from run to run, nor types that don't compare matter."""
    names = [f"name {number}" for number in range(30)]
    assert completed(set(names)).text == json.dumps(sorted(names))
    assert completed({None, "a", 1}).text == '[1, "a", null]'
    assert completed({"k": frozenset({2, 1})}).text == '{"k": [1, 2]}'


@pytest.mark.parametrize(
    "value", [[object()], lambda: None], ids=["inside a list", "function"]
)
def test_text_holds_no_addresses(value: Any) -> None:
    """An address would be other bytes at each run."""
    assert not CLOCK.search(completed(value).text)


def test_text_of_an_error_holds_no_addresses() -> None:
    """The same for what a tool raises."""
    assert not CLOCK.search(result(Status.FAILED, error=ValueError(object())).text)
