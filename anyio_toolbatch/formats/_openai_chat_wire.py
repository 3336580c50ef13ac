"""One call and one result as OpenAI Chat writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall
from ._plain import as_object, encodable, fresh, gives_arguments, never_arguments, str_or_empty

__all__ = ("CUT_REASONS", "call_of", "has_arguments", "is_models", "tool_message")

CUT_REASONS = {"length", "content_filter"}
"""Finish reasons after which what is not whole stays so."""


def is_models(message: Mapping[str, Any]) -> bool:
    """Tell whether a message is the model's, which some servers do not say."""
    return message.get("role") in (None, "assistant")


def call_of(item: object) -> ToolCall:
    found = as_object(item, "a tool call")
    if found is None:
        return ToolCall("", "", never_arguments(item), wire=item)
    # Compatible servers leave `type` out: what else is there decides.
    is_custom = found.get("type") == "custom" or (
        found.get("function") is None and found.get("custom") is not None
    )
    key = "custom" if is_custom else "function"
    given = found.get(key)
    body = as_object(given, f"{key!r} of a tool call")
    arguments: Any
    if body is None:
        arguments = never_arguments(given)
    elif is_custom:
        text = body.get("input")
        arguments = {"input": text} if isinstance(text, str) else never_arguments(text)
    else:
        arguments = fresh(body.get("arguments"))
    name = "" if body is None else str_or_empty(body.get("name"))
    return ToolCall(str_or_empty(found.get("id")), name, arguments, wire=found)


def has_arguments(item: object) -> bool:
    """
    Tell whether arguments have come at all, where the message may end in their middle.

    Half JSON speaks for itself. None would pass for a call without any, and
    free text has no end of its own.
    """
    found = as_object(item, "a tool call") or {}
    body = as_object(found.get("function"), "'function' of a tool call") or {}
    return gives_arguments(body.get("arguments"))


def tool_message(id_: str, content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": encodable(id_), "content": content}
