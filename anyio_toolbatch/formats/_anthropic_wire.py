"""One call and one result as Anthropic writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .._model.calls import ToolCall
from ._plain import encodable, fresh, str_or_empty

__all__ = ("CUT_REASONS", "INVALID_JSON", "call_of", "result_block")

CUT_REASONS = {"max_tokens", "model_context_window_exceeded", "refusal"}
"""Stop reasons after which the last block may be cut off."""

INVALID_JSON = "INVALID_JSON"
"""The provider's own convention for streamed input that turned out to be no JSON."""

# An error without content is refused ("content cannot be empty if `is_error`
# is true"); blanks would say as little.
_SILENT_ERROR = "The tool reported an error without a message."


def call_of(block: Mapping[str, Any]) -> ToolCall:
    return ToolCall(
        str_or_empty(block.get("id")),
        str_or_empty(block.get("name")),
        _unwrapped(fresh(block.get("input"))),
        wire=block,
    )


def _unwrapped(given: object) -> Any:
    if not isinstance(given, Mapping):
        return given
    arguments = cast("Mapping[str, Any]", given)
    text = arguments.get(INVALID_JSON)
    # Beside other keys it is an argument like any other.
    return text if len(arguments) == 1 and isinstance(text, str) else arguments


def result_block(
    id_: str, wire: object, content: str | list[dict[str, Any]], *, is_error: bool
) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": encodable(id_)}
    if isinstance(wire, Mapping):
        toolset = cast("Mapping[str, Any]", wire).get("toolset_name")
        if isinstance(toolset, str):
            block["toolset_name"] = encodable(toolset)
    block["content"] = content
    if is_error:
        is_silent = not (content.strip() if isinstance(content, str) else content)
        block["content"] = _SILENT_ERROR if is_silent else content
        block["is_error"] = True
    return block
