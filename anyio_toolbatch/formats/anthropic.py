"""
The Anthropic Messages format.

Only ``tool_use`` blocks ask this client for something. What the provider runs
itself (``server_tool_use``, ``mcp_tool_use``, their results) gets no answer
from here: a result without a call is refused just as a call without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._model.calls import ToolCall
from .._model.results import ToolResult
from ._anthropic_repair import repair
from ._anthropic_stream import CallStream
from ._anthropic_wire import CUT_REASONS, call_of, result_block
from ._plain import (
    as_array,
    as_object,
    is_one_of,
    object_of,
    refuse_history,
    refuse_strangers,
)
from ._stream import cut_off
from ._wording import ContentFunction, Spill, Wording

__all__ = ("CallStream", "parse_calls", "render_results", "repair")

_EXPECTED = "an Anthropic assistant message or its list of content blocks"


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls for this client, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    an `input` that is no object, such as a str of JSON, makes the call invalid,
    with the reason in `parse_error`. So does the wrapper ``{"INVALID_JSON":
    "…"}``: the text in it counts as the arguments, and is judged as any other
    JSON text. A call at the end of a response that was cut off (``stop_reason:
    max_tokens``) is invalid too: nobody can say whether its input is whole.

    Args:
        message: The assistant message, which is also the whole response, or
            the bare list of content blocks. Dicts, or SDK objects with
            `model_dump()` or `to_dict()`, at any level.

    Returns:
        One call per ``tool_use`` block; `wire` holds the block, the very dict
        where it was one. A message without calls gives an empty list.

    Raises:
        TypeError: `message` or a block in it is neither JSON data nor an SDK
            object.
        ValueError: It is no assistant message: a history, another provider's
            message, an object without content.

    .. versionadded:: 0.1
    """
    calls: list[ToolCall] = []
    blocks, is_cut = _blocks(message)
    block: Mapping[str, Any] | None = None
    for item in blocks:
        block = as_object(item, "a content block")
        if block is not None and block.get("type") == "tool_use":
            calls.append(call_of(block))
    if is_cut and calls and calls[-1].wire is block:
        calls[-1] = cut_off(calls[-1])
    return calls


def render_results(
    results: Iterable[ToolResult],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    max_chars_total: int | None = None,
    spill: Spill | None = None,
) -> dict[str, Any]:
    """
    Return the one user message to append; never raises for a result.

    The message is the caller's to extend: text of the user belongs behind the
    results, in the same message.

    Args:
        results: The results of one batch, in call order.
        content, max_chars_per_result, max_chars_total, spill: Own words and a
            budget, alike in all formats: see the page on formats.

    Returns:
        A ``user`` message with one ``tool_result`` block per result, in the
        same order, ids as given; ``is_error`` is there where the result is an
        error, and `toolset_name` where the call had one. Lone surrogates,
        which UTF-8 cannot carry, are replaced by U+FFFD. Of no results, a
        message with empty content: append it only when something is in it.

    Raises:
        TypeError: There is something else than results among them, an option is
            of the wrong type, or a function in one returned something else than
            it should.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    wording = Wording(content, max_chars_per_result, max_chars_total, spill)
    blocks = [
        result_block(
            worded.result.call.id,
            worded.result.call.wire,
            worded.content,
            is_error=worded.result.is_error,
        )
        for worded in wording.word(results, lambda result: result.text)
    ]
    return {"role": "user", "content": blocks}


def _blocks(message: object) -> tuple[Sequence[Any], bool]:
    """Return the content blocks, and whether the last may have been cut off."""
    bare = as_array(message)
    if bare is not None:
        refuse_history(bare, _EXPECTED)
        refuse_strangers(bare, "anthropic", _EXPECTED)
        return bare, False
    found = object_of(message, "message", _EXPECTED)
    role = found.get("role")
    if role not in (None, "assistant"):
        msg = f"expected {_EXPECTED}, not a message with the role {role!r}"
        raise ValueError(msg)
    if found.get("tool_calls") is not None:
        # Its content may be a plain text, and its calls would be lost.
        msg = f"expected {_EXPECTED}, not an OpenAI message with tool_calls"
        raise ValueError(msg)
    content = found.get("content")
    if isinstance(content, str):
        return (), False
    blocks = as_array(content)
    if blocks is None:
        given = type(content).__name__ if "content" in found else "missing"
        msg = f"expected {_EXPECTED}, but content is {given}, not a list or a str"
        raise ValueError(msg)
    return blocks, is_one_of(found.get("stop_reason"), CUT_REASONS)
