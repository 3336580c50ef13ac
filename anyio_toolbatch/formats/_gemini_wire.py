"""One call and one response as Gemini writes them, by REST's names or the SDK's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall, broken_call
from ._plain import as_array, as_object, encodable, fresh, never_arguments, str_or_empty
from ._stream import CUT_OFF

__all__ = (
    "CALL",
    "RESPONSE",
    "WHOLE_REASONS",
    "call_of",
    "field",
    "id_of",
    "is_models",
    "response_part",
)

CALL = ("functionCall", "function_call")
RESPONSE = ("functionResponse", "function_response")

WHOLE_REASONS = {
    "FINISH_REASON_UNSPECIFIED",
    "MISSING_THOUGHT_SIGNATURE",
    "STOP",
    "TOO_MANY_TOOL_CALLS",
    "UNEXPECTED_TOOL_CALL",
}
"""Finish reasons that come after a part; any other may come in its middle."""


def field(fields: Mapping[str, Any], *names: str) -> Any:
    """Return what stands under the first of these names that has something."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def is_models(content: Mapping[str, Any]) -> bool:
    """Tell whether a content is the model's; without a role, calls tell."""
    if content.get("role") is not None:
        return bool(content["role"] == "model")
    parts = (as_object(part, "a part") or {} for part in as_array(content.get("parts")) or ())
    return any(field(part, *CALL) is not None for part in parts)


def id_of(body: Mapping[str, Any]) -> str | None:
    """Return the id of a call or response; None: it has none."""
    id_ = body.get("id")
    return encodable(id_) if isinstance(id_, str) and id_ else None


def call_of(part: Mapping[str, Any]) -> ToolCall:
    """Return the call that a part asks for."""
    given = field(part, *CALL)
    body = as_object(given, "a functionCall")
    if body is None:
        return ToolCall("", "", never_arguments(given), wire=part)
    id_, name = str_or_empty(body.get("id")), str_or_empty(body.get("name"))
    arguments = fresh(body.get("args"))
    # A call that is streamed comes in pieces: half arguments here, the rest there.
    if field(body, "willContinue", "will_continue") or field(
        body, "partialArgs", "partial_args"
    ):
        return broken_call(id_, name, arguments, CUT_OFF, wire=part)
    if isinstance(arguments, str):
        arguments = never_arguments(arguments)  # JSON within JSON is no object
    return ToolCall(id_, name, arguments, wire=part)


def response_part(id_: str, name: str, response: dict[str, Any]) -> dict[str, Any]:
    """Return the part that answers a call; without an id where the call has none."""
    body: dict[str, Any] = {"name": encodable(name), "response": response}
    if id_:
        body["id"] = encodable(id_)
    return {"functionResponse": body}
