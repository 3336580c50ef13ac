"""
The calls of a history: which are open, what they had, and how they are closed.

A cancelled graph writes nothing of the step that it was in, and leaves calls open. So the
answers that a cut step had are kept here, and are written when the thread goes on.
"""

# mypy and pyright look at this file without LangGraph, as the default checks have none.
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from ._langgraph_calls import refusal

__all__ = ("KeptAnswers", "close", "current_thread", "last_calls", "open_calls")

MAX_KEPT = 256
"""Steps whose answers wait to be written; the oldest goes. Arbitrary, ample."""

NOT_KNOWN = (
    "The turn was cut before this tool call was answered. "
    "It may have had side effects; its outcome is unknown."
)

SOME_RUN = object()
"""Stands for a run that is over, whichever it was."""


@dataclass
class _Kept:
    answers: dict[int, Any]
    cut_run: Any


class KeptAnswers:
    """
    What the calls of a message had when their step ended, by their positions.

    It is found by the thread of conversation and the message's id, and stays until `close`
    has seen that it is written.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, Any], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(
        self, thread: Any, message: Any, answers: Mapping[int, Any], *, cut_run: Any = None
    ) -> None:
        """
        Keep answers, beside those that are kept of the message.

        Args:
            cut_run: The run that was cut in their step: if another takes the step up again,
                the calls must not run twice.
        """
        if message.id is None:
            return  # they could not be found again
        key = (thread, message.id)
        kept = self._kept.pop(key, None) or _Kept({}, None)
        self._kept[key] = _Kept({**kept.answers, **answers}, cut_run or kept.cut_run)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def of(self, thread: Any, message: Any) -> dict[int, Any]:
        """Return what its calls had."""
        kept = self._kept.get((thread, message.id))
        return kept.answers if kept is not None else {}

    def of_cut(self, thread: Any, message: Any, run: Any = None) -> dict[int, Any]:
        """Return what its calls had, if their step was cut, in another run than this."""
        kept = self._kept.get((thread, message.id))
        if kept is None or kept.cut_run is None or kept.cut_run is run:
            return {}
        return kept.answers

    def drop(self, thread: Any, message: Any) -> None:
        """Forget them: they are written."""
        self._kept.pop((thread, message.id), None)


def current_thread() -> Any:
    """Return the running graph's thread of conversation; None if it has none."""
    try:
        return get_config()["configurable"].get("thread_id")
    except RuntimeError:  # no graph is running
        return None


def last_calls(messages: list[Any]) -> tuple[Any, dict[int, Any]]:
    """Return the model's last message, or None, and its open calls by position."""
    at = max((n for n, m in enumerate(messages) if isinstance(m, AIMessage)), default=None)
    if at is None:
        return None, {}
    return messages[at], dict(open_calls(messages[at], messages[at + 1 :]))


def open_calls(message: Any, after: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Give the calls of a message that the messages right after it do not answer."""
    answers = itertools.takewhile(lambda m: isinstance(m, ToolMessage), after)
    answered = Counter(answer.tool_call_id for answer in answers)
    # The second list has what LangChain could not parse.
    for position, call in enumerate([*message.tool_calls, *message.invalid_tool_calls]):
        if answered[call["id"]]:
            answered[call["id"]] -= 1
        else:
            yield position, call


def close(messages: list[Any], key: str, kept: KeptAnswers) -> Any:
    """
    Close all open calls of a history with what was kept of them, or with `NOT_KNOWN`.

    Returns:
        The update of the state; None if there is nothing to do.
    """
    thread = current_thread()
    closed: list[Any] = []
    waiting: list[Any] = []
    commands: list[Any] = []
    for at, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            closed += waiting
            waiting = []
        closed.append(message)
        if isinstance(message, AIMessage):
            answers = kept.of(thread, message)
            still_open = list(open_calls(message, messages[at + 1 :]))
            if not still_open:
                kept.drop(thread, message)
            for position, call in still_open:
                answer = answers.get(position)
                waiting += _messages_of(answer, key, call) or [refusal(call, NOT_KNOWN)]
                commands += _rest_of(answer, key)
    closed += waiting
    if len(closed) == len(messages):
        return None
    update = {key: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *closed]}
    return [update, *commands] if commands else update


def _messages_of(answer: Any, key: str, call: Any) -> list[Any]:
    """Return the messages that an answer, or None, has for this history."""
    if isinstance(answer, list):
        return [message for part in answer for message in _messages_of(part, key, call)]
    if not isinstance(answer, Command):
        return [] if answer is None else [answer]
    messages = list(_as_dict(answer.update).get(key) or ())
    if answer.graph is None:
        return messages
    # The rest is the other graph's own history.
    return [m for m in messages if getattr(m, "tool_call_id", None) == call["id"]]


def _rest_of(answer: Any, key: str) -> list[Command[Any]]:
    """Return what else an answer does to the state; where it leads to is past."""
    parts = answer if isinstance(answer, list) else [answer]
    commands = [part for part in parts if isinstance(part, Command)]
    rests = [
        replace(
            command,
            update={k: v for k, v in _as_dict(command.update).items() if k != key},
            goto=(),
        )
        for command in commands
        if command.graph is None  # another graph has gone on without it
    ]
    return [rest for rest in rests if rest.update]


def _as_dict(update: Any) -> dict[str, Any]:
    """Return an update of the state, in whatever form, as a dictionary."""
    if update is None:
        return {}
    return dict(update) if isinstance(update, dict | list | tuple) else dict(vars(update))
