"""Whose format a message is in: found out from it, so that nobody has to say."""

from __future__ import annotations

from typing import Any

__all__ = ("TITLES", "detect_format")

TITLES = {
    "anthropic": "a message in Anthropic's format",
    "gemini": "a content in Gemini's format",
    "mcp": "a message of the Model Context Protocol",
    "openai_chat": "a message in OpenAI's chat format",
    "openai_responses": "a response in OpenAI's Responses format",
}
"""What a format's messages are called in an error."""

_EXPECTED = (
    "expected an assistant message (OpenAI chat: tool_calls; OpenAI Responses: output; "
    "Anthropic: content with tool_use; Gemini: parts; MCP: a tools/call request), the "
    "whole response, or its bare list of calls"
)


def detect_format(message: object) -> str | None:
    """
    Return the format's name, by what only that format has.

    Returns:
        A format's name; None where nothing tells, such as for a message of
        text alone. Such a message has no calls in any format.

    Raises:
        ValueError: It is something else; the error says what it looks like.
    """
    if isinstance(message, list):
        return _detect_in_list(message)
    if not isinstance(message, dict):
        raise _refusal(_json_name(message))
    if message.get("choices") is not None or message.get("tool_calls"):
        return "openai_chat"
    if "jsonrpc" in message or message.get("method") == "tools/call":
        return "mcp"
    if message.get("content") is None:
        if isinstance(message.get("output"), list):
            return "openai_responses"
        if isinstance(message.get("candidates") or message.get("parts"), list):
            return "gemini"
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
        if isinstance(item, dict) and "role" in item and not _is_output_message(item):
            found = "a list of messages; pass the last one alone"
            raise _refusal(found)
    for item in items:
        name = _format_of_item(item)
        if name is not None:
            return name
    if any(map(_is_output_message, items)):
        return "openai_responses"
    found = f"a list without a call, beginning with {_shown(items[0])}"
    raise _refusal(found)


def _is_output_message(item: object) -> bool:
    """Tell whether it is what OpenAI Responses has for a text of the model."""
    if not isinstance(item, dict) or item.get("type") != "message":
        return False
    # Anthropic's message is of that type, too: its parts tell them apart.
    parts = item.get("content")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") in ("output_text", "refusal")
        for part in parts
    )


def _format_of_item(item: object) -> str | None:
    if not isinstance(item, dict):
        return None
    if "jsonrpc" in item or item.get("method") == "tools/call":
        return "mcp"
    if item.keys() & {"functionCall", "function_call"}:
        return "gemini"
    if isinstance(kind := item.get("type"), str) and (
        kind in {"reasoning", "function_call"} or kind.endswith("_call")
    ):
        return "openai_responses"
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
