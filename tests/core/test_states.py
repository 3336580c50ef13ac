"""The table of a call's states: one way in, one way out, and no fact that it does not know."""

from __future__ import annotations

import pytest

from anyio_toolbatch._core.states import TRANSITIONS, CallState, Fact


def follow(*facts: Fact) -> CallState:
    state = CallState.PREPARING
    for fact in facts:
        state = TRANSITIONS[state][fact]
    return state


def test_call_goes_from_the_line_to_its_end() -> None:
    """The short way: nobody is asked."""
    assert follow(Fact.LINE_UP) is CallState.IN_LINE
    assert follow(Fact.LINE_UP, Fact.GRANT) is CallState.RUNNING
    assert follow(Fact.LINE_UP, Fact.GRANT, Fact.END) is CallState.OVER


def test_call_that_is_asked_for_joins_the_line_by_way_of_its_batch() -> None:
    """Call order holds also while an earlier call awaits approval."""
    assert follow(Fact.ASK) is CallState.ASKED
    assert follow(Fact.ASK, Fact.APPROVE) is CallState.BEHIND
    assert follow(Fact.ASK, Fact.APPROVE, Fact.LINE_UP) is CallState.IN_LINE


def test_call_that_is_let_go_of_goes_on() -> None:
    """A detached call is over when it has really ended."""
    assert follow(Fact.LINE_UP, Fact.GRANT, Fact.LET_GO) is CallState.DETACHED
    assert follow(Fact.LINE_UP, Fact.GRANT, Fact.LET_GO, Fact.END) is CallState.OVER


@pytest.mark.parametrize("state", [*CallState])
def test_call_can_end_wherever_it_waits_or_runs(state: CallState) -> None:
    """P4: a cut finds no call that can not be ended; a call ends once."""
    is_known_to_others = state not in {CallState.PREPARING, CallState.OVER}
    assert (Fact.END in TRANSITIONS[state]) is is_known_to_others
    if is_known_to_others:
        assert TRANSITIONS[state][Fact.END] is CallState.OVER


def test_a_call_starts_from_the_line_only() -> None:
    """Nothing starts without its claims and places, and nothing starts twice."""
    assert [state for state in CallState if Fact.GRANT in TRANSITIONS[state]] == [
        CallState.IN_LINE
    ]
    assert [state for state in CallState if Fact.LET_GO in TRANSITIONS[state]] == [
        CallState.RUNNING
    ]


@pytest.mark.parametrize(
    ("fact", "states"),
    [
        (Fact.ASK, [CallState.PREPARING]),
        (Fact.APPROVE, [CallState.ASKED]),
        (Fact.LINE_UP, [CallState.PREPARING, CallState.BEHIND]),
    ],
)
def test_no_call_passes_by_its_approval(fact: Fact, states: list[CallState]) -> None:
    """P4: who is asked for joins the line by the answer only, and is asked for once."""
    assert [state for state in CallState if fact in TRANSITIONS[state]] == states


def test_there_is_no_way_back() -> None:
    """A call passes through a state once; `OVER` is where all ways end."""
    order = list(CallState)
    for state, ways in TRANSITIONS.items():
        assert all(order.index(after) > order.index(state) for after in ways.values())
        assert ways or state is CallState.OVER
    assert set(TRANSITIONS) == set(CallState)


def test_the_diagram_has_names_to_show() -> None:
    """The documentation draws the table; its labels are words."""
    assert [state.value for state in CallState] == [
        "preparing",
        "asked",
        "behind",
        "in line",
        "running",
        "detached",
        "over",
    ]
    assert [fact.value for fact in Fact] == [
        "ask",
        "approve",
        "line up",
        "grant",
        "let go",
        "end",
    ]
