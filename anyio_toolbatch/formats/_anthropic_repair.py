"""
Anthropic's rule for histories: all results in the one user message behind, first.

Messages of one role in a row are one turn to the provider, and so they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._anthropic_wire import call_of, result_block
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

    What the provider runs itself is left alone. While such a tool is still
    unresolved, the results get a message of their own, since text beside them
    would be refused.

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
        self._turns: list[int] = []  # of each message
        was_model = False
        for found in self._fields:
            is_model = found.get("role") == "assistant"
            turn += is_model and not was_model
            was_model = is_model
            self._turns.append(turn)
            for block, kind, fields in _blocks_of(found):
                if is_model and kind == "tool_use":
                    self._calls.append(Entry(turn, encodable(call_of(fields).id)))
                    self._blocks.append(fields)
                elif not is_model and kind == "tool_result":
                    id_ = encodable(str_or_empty(fields.get("tool_use_id")))
                    results.append(Entry(turn, id_))
                    self._given.append(block)
        self._plans = plan(self._calls, results)
        self._repaired: list[Any] = []
        self._pending: list[Any] = []
        self._unresolved: set[Any] = set()

    def messages(self) -> list[Any]:
        last = len(self._history) - 1
        for place, (message, found) in enumerate(
            zip(self._history, self._fields, strict=True)
        ):
            if found.get("role") == "assistant":
                self._repaired.append(message)
                self._watch_server_tools(found)
                turn = self._turns[place]
                if place == last or self._fields[place + 1].get("role") != "assistant":
                    self._pending = [self._block(row) for row in self._plans.get(turn, ())]
            elif found.get("role") == "user":
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

    def _watch_server_tools(self, message: dict[str, Any]) -> None:
        for _, kind, fields in _blocks_of(message):
            if kind in {"server_tool_use", "mcp_tool_use"}:
                self._unresolved.add(fields.get("id"))
            elif kind.endswith("_tool_result"):
                self._unresolved.discard(fields.get("tool_use_id"))

    def _user(self, message: Any, found: dict[str, Any]) -> None:
        """Add a user message, with the results that are due and with no others."""
        due, self._pending = self._pending, []
        blocks = _blocks_of(found)
        has = [block for block, kind, _ in blocks if kind == "tool_result"]
        others = [block for block, kind, _ in blocks if kind != "tool_result"]
        is_alone = not (due and self._unresolved and others)
        if len(has) == len(due) and is_alone:
            leading = [block for block, _, _ in blocks[: len(due)]]
            if all(a is b for a, b in zip(leading, due, strict=True)):
                self._repaired.append(message)
                return
        if not is_alone:
            self._repaired.append({"role": "user", "content": due})
            self._repaired.append({**found, "content": others} if has else message)
        elif due or others:
            self._repaired.append({**found, "content": [*due, *others]})

    def _flush(self) -> None:
        if self._pending:
            self._repaired.append({"role": "user", "content": self._pending})
            self._pending = []


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
