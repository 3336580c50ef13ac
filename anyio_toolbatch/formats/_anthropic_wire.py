"""One call and one result as Anthropic writes them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, cast

from .._model.calls import ToolCall, broken_call
from ._plain import encodable, fresh, is_one_of, str_or_empty

__all__ = (
    "CUT_REASONS",
    "INVALID_JSON",
    "OPEN_REASONS",
    "call_of",
    "fit_to_end",
    "resolved_by",
    "result_block",
    "without_unresolved",
)

CUT_REASONS = {"max_tokens", "model_context_window_exceeded", "refusal"}
"""Stop reasons after which the last block may be cut off."""

OPEN_REASONS = {"pause_turn", "tool_use"}
"""Stop reasons after which the provider goes on with its own tools."""

INVALID_JSON = "INVALID_JSON"
"""The provider's own convention for streamed input that turned out to be no JSON."""

# An error without content is refused ("content cannot be empty if `is_error`
# is true"); blanks would say as little.
_SILENT_ERROR = "The tool reported an error without a message."


def call_of(block: Mapping[str, Any]) -> ToolCall:
    id_, name = str_or_empty(block.get("id")), str_or_empty(block.get("name"))
    given = block.get("input")
    if isinstance(given, str):  # JSON within JSON is no object
        return broken_call(id_, name, given, "input must be an object, not a str", wire=block)
    return ToolCall(id_, name, _unwrapped(fresh(given)), wire=block)


def _unwrapped(given: object) -> Any:
    if not isinstance(given, Mapping):
        return given
    arguments = cast("Mapping[str, Any]", given)
    text = arguments.get(INVALID_JSON)
    # Beside other keys it is an argument like any other.
    return text if len(arguments) == 1 and isinstance(text, str) else arguments


def resolved_by(blocks: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the ids of the provider's own tools whose results are among the blocks."""
    kinds = ((str_or_empty(block.get("type")), block.get("tool_use_id")) for block in blocks)
    return {
        id_ for kind, id_ in kinds if kind.endswith("_tool_result") and isinstance(id_, str)
    }


def without_unresolved(
    blocks: Sequence[dict[str, Any]], resolved: Container[str]
) -> list[dict[str, Any]]:
    """
    Return the blocks but for the provider's own tools that have no result.

    The provider would refuse them in a message that it is not to go on with. A
    call for this client that comes from one is the model's own then.
    """
    kept: list[dict[str, Any]] = []
    left_out: set[str] = set()
    for block in blocks:
        id_ = str_or_empty(block.get("id"))
        if is_one_of(block.get("type"), _SERVER_TOOLS) and id_ not in resolved:
            left_out.add(id_)
        else:
            kept.append(block)
    return [
        {key: value for key, value in block.items() if key != "caller"}
        if _caller_of(block) in left_out
        else block
        for block in kept
    ]


def _caller_of(block: Mapping[str, Any]) -> str | None:
    caller = block.get("caller") if block.get("type") == "tool_use" else None
    id_ = caller.get("tool_id") if isinstance(caller, Mapping) else None
    return id_ if isinstance(id_, str) else None


def fit_to_end(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks as far as a message may end there: not with a thought."""
    end = len(blocks)
    while end and is_one_of(blocks[end - 1].get("type"), _THOUGHTS):
        end -= 1
    return blocks[:end]


def _is_blank(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and not str_or_empty(block.get("text")).strip()


_SERVER_TOOLS = {"server_tool_use", "mcp_tool_use"}
_THOUGHTS = {"thinking", "redacted_thinking"}


def result_block(
    id_: str, wire: object, content: str | list[dict[str, Any]], *, is_error: bool
) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": encodable(id_)}
    if isinstance(wire, Mapping):
        toolset = cast("Mapping[str, Any]", wire).get("toolset_name")
        if isinstance(toolset, str):
            block["toolset_name"] = encodable(toolset)
    if not isinstance(content, str):
        content = [one for one in content if not _is_blank(one)]  # refused
    block["content"] = content
    if is_error:
        is_silent = not (content.strip() if isinstance(content, str) else content)
        block["content"] = _SILENT_ERROR if is_silent else content
        block["is_error"] = True
    return block
