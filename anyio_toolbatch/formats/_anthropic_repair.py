"""
Anthropic's rule for histories: all results in the one user message behind, first.

Messages of one role in a row are one turn to the provider, and so they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._anthropic_wire import call_of, fit_to_end, resolved_by, result_block, without_unresolved
from ._plain import as_array, as_object, encodable, str_or_empty
from ._repair import LOST, Entry, as_history, plan

__all__ = ("repair",)


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the history with exactly one result for each call; idempotent.

    A call without a result gets a placeholder that says what is known of it:
    nothing. All results of a turn stand in the one user message behind it,
    before any text: where they do not, they are moved there. Results that
    answer no call, or one that has its result already, are left out, and so is
    a message that held nothing else.

    What the provider runs itself is left alone, but for one thing: while such a
    tool is unresolved, the provider takes nothing but results. Where the user
    has said something since, nobody will resolve it any more, and its block is
    left out.

    Args:
        messages: The whole history; of a part, results whose calls are not in
            it would be left out. Dicts or SDK objects. It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of messages.

    .. versionadded:: 0.1
    """
    return _Repair(messages).messages()


class _Repair:
    """A history, read once, and what becomes of it."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._history, self._fields = as_history(messages, "Anthropic messages")
        self._calls: list[Entry] = []
        self._blocks: list[dict[str, Any]] = []  # those of the calls
        self._given: list[Any] = []  # the result blocks, as they are
        results: list[Entry] = []
        turn = -1
        self._roles = [_role_of(found) for found in self._fields]
        self._turns: list[int] = []  # of each message
        self._words_at = -1  # where the user has last said something
        self._resolved: set[str] = set()
        was_model = False
        for place, (found, role) in enumerate(zip(self._fields, self._roles, strict=True)):
            is_model = role == "assistant"
            turn += is_model and not was_model
            was_model = is_model
            self._turns.append(turn)
            blocks = _blocks_of(found)
            if is_model:
                self._resolved |= resolved_by(fields for _, _, fields in blocks)
            elif role == "user" and any(kind != "tool_result" for _, kind, _ in blocks):
                self._words_at = place
            for block, kind, fields in blocks:
                if is_model and kind == "tool_use":
                    self._calls.append(Entry(turn, encodable(call_of(fields).id)))
                    self._blocks.append(fields)
                elif role == "user" and kind == "tool_result":
                    id_ = encodable(str_or_empty(fields.get("tool_use_id")))
                    results.append(Entry(turn, id_))
                    self._given.append(block)
        self._plans = plan(self._calls, results)
        self._repaired: list[Any] = []
        self._pending: list[Any] = []

    def messages(self) -> list[Any]:
        for place, (message, found, role) in enumerate(
            zip(self._history, self._fields, self._roles, strict=True)
        ):
            if role == "assistant":
                turn = self._turns[place]
                is_last = self._roles[place + 1 : place + 2] != ["assistant"]
                if place < self._words_at:
                    self._repaired.extend(self._settled(message, found, is_last=is_last))
                else:
                    self._repaired.append(message)
                if is_last:
                    self._pending = [self._block(row) for row in self._plans.get(turn, ())]
            elif role == "user":
                self._user(message, found)
            else:
                self._flush()
                self._repaired.append(message)
        self._flush()
        return self._repaired

    def _block(self, row: tuple[int, int | None]) -> Any:
        call, result = row
        if result is not None:
            return self._given[result]
        fields = self._blocks[call]
        return result_block(str(self._calls[call].label), fields, LOST, is_error=True)

    def _settled(self, message: Any, found: dict[str, Any], *, is_last: bool) -> list[Any]:
        """Return the model's message without what nobody will resolve, if that is any."""
        blocks = _blocks_of(found)
        fit = without_unresolved([fields for _, _, fields in blocks], self._resolved)
        if len(fit) == len(blocks):
            return [message]
        if is_last:
            fit = fit_to_end(fit)
        given = {id(fields): block for block, _, fields in blocks}
        content = [given.get(id(fields), fields) for fields in fit]
        return [{**found, "content": content}] if content else []

    def _user(self, message: Any, found: dict[str, Any]) -> None:
        """Add a user message, with the results that are due and with no others."""
        due, self._pending = self._pending, []
        blocks = _blocks_of(found)
        has = [block for block, kind, _ in blocks if kind == "tool_result"]
        others = [block for block, kind, _ in blocks if kind != "tool_result"]
        if len(has) == len(due):
            leading = [block for block, _, _ in blocks[: len(due)]]
            if all(a is b for a, b in zip(leading, due, strict=True)):
                self._repaired.append(message)
                return
        if due or others:
            self._repaired.append({**found, "role": "user", "content": [*due, *others]})

    def _flush(self) -> None:
        if self._pending:
            self._repaired.append({"role": "user", "content": self._pending})
            self._pending = []


def _role_of(message: dict[str, Any]) -> str:
    """Return whose message it is; where it does not say, its blocks do."""
    role = message.get("role")
    if role is not None:
        return str_or_empty(role)
    kinds = {kind for _, kind, _ in _blocks_of(message)}
    if "tool_result" in kinds:
        return "user"
    return "assistant" if "tool_use" in kinds else ""


def _blocks_of(message: dict[str, Any]) -> list[tuple[Any, str, dict[str, Any]]]:
    """Return the content blocks: each as it is, its type and its fields."""
    content = message.get("content")
    if isinstance(content, str):
        # As a block, it can stand behind results; empty text is refused.
        content = [{"type": "text", "text": content}] if content else []
    found: list[tuple[Any, str, dict[str, Any]]] = []
    for block in as_array(content) or ():
        fields = dict(as_object(block, "a content block") or {})
        found.append((block, str_or_empty(fields.get("type")), fields))
    return found
