"""
OpenAI Responses' rule for histories: one final output for each call, anywhere behind it.

A call that the model does not wait for may have one pending output before that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._model.results import Status, ToolResult
from ._openai_responses_wire import (
    OUTPUT_OF,
    call_of,
    is_async,
    is_ours,
    label_of_output,
    output_of,
)
from ._plain import encodable, is_one_of, str_or_empty
from ._repair import LOST, as_history
from ._wording import Worded

__all__ = ("repair",)

_OUTPUTS = frozenset(OUTPUT_OF.values())


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the input items with exactly one final output for each call; idempotent.

    A call without an output gets a placeholder, behind the outputs of its turn,
    that says what is known of it: nothing. Outputs that answer no call, or one
    that has its output already, are left out. The pending output of an
    asynchronous call is enough, and is no obstacle to the final one.

    What the provider runs itself is left alone, and so are outputs behind an
    ``item_reference``, which may stand for their calls, and those without a
    `call_id`.

    Args:
        messages: All input items; where the provider keeps the conversation
            (``previous_response_id``), the calls are not among them and their
            outputs would be left out. Dicts or SDK objects. It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of items.

    .. versionadded:: 0.1
    """
    history, fields = as_history(messages, "Responses input items")
    calls: list[_Call] = []
    outputs: list[_Output] = []
    kept: set[int] = set()  # the places of outputs that stay
    turns: list[int] = []
    has_reference, was_client, turn = False, True, -1
    for place, found in enumerate(fields):
        kind = str_or_empty(found.get("type"))
        is_client = kind in _OUTPUTS or found.get("role") not in (None, "assistant")
        turn += was_client and not is_client
        was_client = is_client
        turns.append(turn)
        has_reference = has_reference or _is_reference(found)
        if kind in OUTPUT_OF:
            label = (OUTPUT_OF[kind], encodable(call_of(found).id))
            calls.append(_Call(turn, label, found, is_async(found), is_ours(found)))
        elif kind in _OUTPUTS:
            id_ = label_of_output(found)
            if id_ is None or has_reference:
                kept.add(place)
            is_pending = found.get("status") == "in_progress"
            outputs.append(_Output(turn, (kind, id_), place, is_pending))
    answered: set[_Call] = set()
    for asked, answers in _groups(calls, outputs):
        for call, own in _pairs(asked, answers).items():
            kept.update(output.place for output in own)
            answered.update([call] if own else [])
    lost: dict[int, list[_Call]] = {}
    for call in calls:
        if call.is_ours and call not in answered:
            lost.setdefault(call.turn, []).append(call)
    repaired: list[Any] = []
    for place, item in enumerate(history):
        if not is_one_of(fields[place].get("type"), _OUTPUTS) or place in kept:
            repaired.append(item)
        is_last = place + 1 == len(history)
        if is_last or turns[place + 1] != turns[place] or _is_message(fields[place + 1]):
            repaired.extend(_placeholder(call.item) for call in lost.pop(turns[place], ()))
    return repaired


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    turn: int
    """The model's turn that it stands in."""
    label: Hashable
    item: dict[str, Any]
    is_async: bool
    is_ours: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Output:
    turn: int
    """The model's turn that it follows."""
    label: Hashable
    place: int
    is_pending: bool


def _groups(
    calls: Sequence[_Call], outputs: Sequence[_Output]
) -> Iterator[tuple[list[_Call], list[_Output]]]:
    """
    Yield the calls that an output may be for, with all such outputs, both in order.

    The id of one call alone tells which it is, wherever the output stands
    behind it; one that several calls have does so within a turn only.
    """
    counts = Counter(call.label for call in calls)

    def group(entry: _Call | _Output) -> Hashable:
        return entry.label if counts[entry.label] == 1 else (entry.turn, entry.label)

    asked: dict[Hashable, list[_Call]] = {}
    for call in calls:
        asked.setdefault(group(call), []).append(call)
    answers: dict[Hashable, list[_Output]] = {}
    for output in outputs:
        answers.setdefault(group(output), []).append(output)
    for key, some in asked.items():
        # Nothing is answered before it was asked.
        yield some, [one for one in answers.get(key, ()) if one.turn >= some[0].turn]


def _pairs(calls: list[_Call], outputs: list[_Output]) -> dict[_Call, list[_Output]]:
    """
    Decide which outputs answer which of the calls that share an id; each answers one.

    Calls that need a final output get theirs first, and a pending one is for a
    call that may be pending: so most of what was said is of use. What is
    decided here must be decided alike when placeholders, which are final, have
    come behind the outputs.
    """
    finals = deque(one for one in outputs if not one.is_pending)
    pendings = deque(one for one in outputs if one.is_pending)
    pairs: dict[_Call, list[_Output]] = {call: [] for call in calls}

    def give(some: Iterable[_Call], source: deque[_Output]) -> None:
        for call in some:
            if source:
                pairs[call].append(source.popleft())

    in_turn = sorted(calls, key=lambda call: not call.is_ours)
    waiting = [call for call in in_turn if call.is_async]
    others = [call for call in in_turn if not call.is_async]
    give(others, finals)
    give(waiting, pendings)
    give((call for call in waiting if not pairs[call]), finals)
    for call in waiting:
        if finals and pairs[call] and pairs[call][0].is_pending:
            pending, final = pairs[call][0], finals.popleft()
            # Behind the final output there is nothing to be pending.
            pairs[call] = [pending, final] if pending.place < final.place else [final]
    # Of a call that is not asynchronous it is an output like any other.
    give((call for call in others if not pairs[call]), pendings)
    return pairs


def _is_reference(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    # Its type may be left out.
    return kind == "item_reference" or (kind is None and set(item) == {"id"})


def _is_message(item: dict[str, Any]) -> bool:
    return item.get("role") not in (None, "assistant")


def _placeholder(item: dict[str, Any]) -> dict[str, Any]:
    result = ToolResult(call_of(item), 0, Status.INTERRUPTED)
    return output_of(Worded(result, LOST, is_own=False))
