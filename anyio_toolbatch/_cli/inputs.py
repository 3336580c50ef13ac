"""
The turn: from a file to its calls, and from results to what is appended.

What is no assistant message must be refused here in words. To take it for a
message without calls would be worse than any error: the agent would stop
without a word.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import ToolCall, ToolResult
from ..formats import anthropic, openai_chat
from .errors import UnusableInputError

__all__ = ("FORMATS", "Turn", "detect_format", "read_turn")


@dataclass(frozen=True, slots=True)
class Format:
    """One provider's way, as the command line needs it."""

    parse_calls: Callable[[object], list[ToolCall]]
    to_append: Callable[[Sequence[ToolResult]], list[dict[str, Any]]]
    """Always a list: standard output has one shape, whatever the provider."""


def _anthropic_messages(results: Sequence[ToolResult]) -> list[dict[str, Any]]:
    # A message without content would be refused.
    return [anthropic.render_results(results)] if results else []


FORMATS = {
    "anthropic": Format(anthropic.parse_calls, _anthropic_messages),
    "openai_chat": Format(openai_chat.parse_calls, openai_chat.render_results),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """The calls of one assistant message."""

    calls: list[ToolCall]
    format: Format

    def messages(self, results: Sequence[ToolResult]) -> list[dict[str, Any]]:
        """Return what is to be appended to the next request."""
        return self.format.to_append(results)


def read_turn(path: str, format_name: str | None = None) -> Turn:
    """
    Read an assistant message and find its calls.

    Args:
        path: A JSON file; ``-`` is standard input.
        format_name: A key of `FORMATS`; None: found out from the message.

    Raises:
        UnusableInputError: It cannot be read, is no JSON, or no assistant
            message.
    """
    source = "standard input" if path == "-" else path
    message = _parse_json(source, _read(path, source))
    evident = None
    try:
        evident = detect_format(message)
    except ValueError as exc:
        if format_name is None:
            msg = f"{source}: {exc}"
            raise UnusableInputError(msg) from None
    if format_name is not None and evident not in (None, format_name):
        msg = (
            f"{source}: this is {_TITLES[evident or '']}, not {_TITLES[format_name]} "
            "as --format says"
        )
        raise UnusableInputError(msg)
    # Without any mark of either there are no calls, and the answer is the same.
    found = FORMATS[format_name or evident or "openai_chat"]
    try:
        return Turn(found.parse_calls(message), found)
    except (TypeError, ValueError) as exc:
        msg = f"{source}: {exc}"
        raise UnusableInputError(msg) from None


_TITLES = {
    "openai_chat": "a message in OpenAI's chat format",
    "anthropic": "a message in Anthropic's format",
}


def _read(path: str, source: str) -> bytes:
    try:
        if path != "-":
            return Path(path).read_bytes()
        if sys.stdin is None:
            msg = "standard input is closed; expected the assistant message there"
            raise UnusableInputError(msg)
        return sys.stdin.buffer.read()
    except FileNotFoundError:
        msg = f"{source} does not exist; expected a JSON file with an assistant message"
    except IsADirectoryError:
        msg = f"{source} is a directory; expected a JSON file with an assistant message"
    except (OSError, ValueError) as exc:
        msg = f"{source} cannot be read: {getattr(exc, 'strerror', None) or exc}"
    raise UnusableInputError(msg)


def _parse_json(source: str, content: bytes) -> object:
    try:
        # -sig: some editors and shells begin a file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        column = exc.start - (content.rfind(b"\n", 0, exc.start) + 1) + 1
        msg = (
            f"{source}, line {line}, byte {column}: 0x{content[exc.start]:02x} is not "
            "UTF-8; expected a JSON file in UTF-8"
        )
        raise UnusableInputError(msg) from None
    if not text or text.isspace():
        msg = f"{source} is empty; expected an assistant message as JSON"
        raise UnusableInputError(msg)
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        msg = f"{source}, line {exc.lineno}, column {exc.colno}: not valid JSON: {exc.msg}"
    except RecursionError:
        msg = f"{source}: nested too deeply to be an assistant message"
    except ValueError as exc:  # such as a number of more digits than Python reads
        msg = f"{source}: not usable JSON: {exc}"
    raise UnusableInputError(msg)


_EXPECTED = (
    "expected an assistant message (OpenAI chat: tool_calls; Anthropic: content with "
    "tool_use), the whole response, or its bare list of calls"
)


def detect_format(message: object) -> str | None:
    """
    Return the format's name, by what only that format has.

    Returns:
        A key of `FORMATS`; None where nothing tells, such as for a message
        of text alone. Such a message has no calls in either format.

    Raises:
        ValueError: It is something else; the error says what it looks like.
    """
    if isinstance(message, list):
        return _detect_in_list(message)
    if not isinstance(message, dict):
        raise _refusal(_json_name(message))
    if message.get("choices") is not None or message.get("tool_calls"):
        return "openai_chat"
    for key, meaning in _STRANGERS.items():
        if message.get(key) and message.get("content") is None:
            raise _refusal(meaning)
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        found = f"a message whose content is {_json_name(content)}"
        raise _refusal(found)
    if message.get("type") == "message" or "stop_reason" in message:
        return "anthropic"
    if isinstance(content, list) and _has_anthropic_block(content):
        return "anthropic"
    if not message.keys() & {"role", "content", "tool_calls", "function_call"}:
        keys = ", ".join(repr(key[:40]) for key in list(message)[:5])
        found = f"an object with the keys {keys}" if keys else "an empty object"
        hint = "; put a single call into a list" if _format_of_item(message) else ""
        raise _refusal(found + hint)
    return "openai_chat" if "function_call" in message else None


def _refusal(found: str) -> ValueError:
    return ValueError(f"{_EXPECTED}, found {found}")


def _detect_in_list(items: list[Any]) -> str | None:
    if not items:
        return None
    for item in items:
        if isinstance(item, dict) and "role" in item:
            found = "a list of messages; pass the last one alone"
            raise _refusal(found)
    for item in items:
        name = _format_of_item(item)
        if name is not None:
            return name
    found = f"a list without a call, beginning with {_shown(items[0])}"
    raise _refusal(found)


def _format_of_item(item: object) -> str | None:
    if not isinstance(item, dict):
        return None
    if item.keys() & {"function", "custom"} or item.get("type") in {"function", "custom"}:
        return "openai_chat"
    if _has_anthropic_block([item]) or item.get("type") == "text":
        return "anthropic"
    return None


def _has_anthropic_block(items: list[Any]) -> bool:
    return any(
        isinstance(item, dict)
        and isinstance(kind := item.get("type"), str)
        and (kind.endswith(("tool_use", "tool_result", "thinking")))
        for item in items
    )


# What people have at hand and may pass by mistake, by the key that gives it away.
_STRANGERS = {
    "messages": "a whole conversation; pass its last assistant message alone",
    "error": "an error that the provider answered with",
    "output": "what looks like OpenAI's Responses format, which is not supported",
    "candidates": "what looks like Gemini's format, which is not supported",
    "delta": "a piece of a stream; put the pieces together into a message first",
}


def _json_name(value: object) -> str:
    return _JSON_NAMES.get(type(value), "null")


_JSON_NAMES: dict[type, str] = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
}


def _shown(item: object) -> str:
    if isinstance(item, dict) and isinstance(item.get("type"), str):
        return f"an object of type {item['type']!r}"
    return _json_name(item)
