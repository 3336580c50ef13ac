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
from ..formats import anthropic, gemini, mcp, openai_chat, openai_responses
from .detection import TITLES, detect_format
from .errors import UnusableInputError

__all__ = ("FORMATS", "Turn", "read_turn")


@dataclass(frozen=True, slots=True)
class Format:
    """One provider's way, as the command line needs it."""

    parse_calls: Callable[[object], list[ToolCall]]
    to_append: Callable[[Sequence[ToolResult]], list[dict[str, Any]]]
    """Always a list: standard output has one shape, whatever the provider."""


def _one(render: Callable[[Sequence[ToolResult]], dict[str, Any]]) -> Any:
    """Put the one message of a turn into a list; one without content would be refused."""
    return lambda results: [render(results)] if results else []


FORMATS = {
    "anthropic": Format(anthropic.parse_calls, _one(anthropic.render_results)),
    "gemini": Format(gemini.parse_calls, _one(gemini.render_results)),
    # Whoever reads them has to know which request each one answers.
    "mcp": Format(mcp.parse_calls, mcp.render_responses),
    "openai_chat": Format(openai_chat.parse_calls, openai_chat.render_results),
    "openai_responses": Format(openai_responses.parse_calls, openai_responses.render_results),
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
            f"{source}: this is {TITLES[evident or '']}, not {TITLES[format_name]} "
            "as --format says"
        )
        raise UnusableInputError(msg)
    # Without any mark of one there are no calls, and the answer is the same.
    found = FORMATS[format_name or evident or "openai_chat"]
    try:
        return Turn(found.parse_calls(message), found)
    except (TypeError, ValueError) as exc:
        msg = f"{source}: {exc}"
        raise UnusableInputError(msg) from None


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
