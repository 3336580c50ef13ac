"""
The Model Context Protocol: requests for ``tools/call`` and their results.

For whoever answers them, such as a server or a gateway; and for a log of
messages. Calling the tools of a server is another matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._model.calls import ToolCall
from .._model.results import ToolResult
from ._mcp_repair import repair
from ._mcp_wire import call_of, is_call, response_to, text_result
from ._plain import as_array, object_of, other_object, refuse_strangers
from ._wording import NO_DATA, ContentFunction, Spill, Worded, Wording, as_results, data_of

__all__ = ("parse_calls", "render_responses", "render_results", "repair")

_EXPECTED = "an MCP request for tools/call, its params, or a list of these"


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls among the messages, in order.

    Nothing of a broken call is lost: a missing name becomes ``""``, and
    arguments that are no object make the call invalid, with the reason in
    `parse_error`. The call's id is that of the request, as a str.

    Args:
        message: A JSON-RPC request, or its bare `params`, or a list of these;
            notifications (what has no `id`), responses and other requests in
            it are passed over.
            Dicts, or SDK objects with `model_dump()` or `to_dict()`.

    Returns:
        One call per request for a tool; `wire` holds the request, the very
        dict where it was one.

    Raises:
        TypeError: `message` or an item in it is neither JSON data nor an SDK
            object.
        ValueError: It is nothing of MCP.

    .. versionadded:: 0.1
    """
    bare = as_array(message)
    items: Sequence[Any] = [message] if bare is None else bare
    refuse_strangers(items, "mcp", _EXPECTED)
    calls: list[ToolCall] = []
    for item in items:
        found = object_of(item, "message" if bare is None else "a request", _EXPECTED)
        if is_call(found):
            calls.append(call_of(found))
        elif not found.keys() & {"jsonrpc", "method"}:
            raise other_object(found, _EXPECTED)
    return calls


def render_results(
    results: Iterable[ToolResult],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    max_chars_total: int | None = None,
    spill: Spill | None = None,
) -> list[dict[str, Any]]:
    """
    Return the tool results, as the protocol has them; never raises for a result.

    The content is the result's `text`. A value other than a str is there as
    data, too, in `structuredContent`: an object as it is, anything else as its
    ``result``.

    Args:
        results: The results of one batch, in call order.
        content, max_chars_per_result, max_chars_total, spill: Own words and a
            budget, alike in all formats: see the page on formats.

    Returns:
        One tool result (``CallToolResult``) per result, in the same order;
        `isError` is true unless the call has completed and reports none. Lone
        surrogates are replaced by U+FFFD.

    Raises:
        TypeError: There is something else than results among them, an option is
            of the wrong type, or a function in one returned something else than
            it should.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    wording = Wording(content, max_chars_per_result, max_chars_total, spill)
    return [_tool_result(worded) for worded in wording.word(results, lambda r: r.text)]


def render_responses(
    results: Iterable[ToolResult],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    max_chars_total: int | None = None,
    spill: Spill | None = None,
) -> list[dict[str, Any]]:
    """
    Return the results as JSON-RPC responses, each with the id of its request.

    A request that was cancelled by a notification must get none: leave it out.

    Args:
        results, content, max_chars_per_result, max_chars_total, spill: As in
            `render_results`.

    Returns:
        One response per result, in the same order. The id is that of the
        request in `wire`, a number where it was one, and null where it is no
        id; the call's own where there is no request.

    Raises:
        TypeError: As `render_results`.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    results = as_results(results)
    rendered = render_results(
        results,
        content=content,
        max_chars_per_result=max_chars_per_result,
        max_chars_total=max_chars_total,
        spill=spill,
    )
    return [
        response_to(result.call.wire, result.call.id, answer)
        for result, answer in zip(results, rendered, strict=True)
    ]


def _tool_result(worded: Worded) -> dict[str, Any]:
    content, is_bad = worded.content, worded.is_bad
    if not isinstance(content, str):
        return {"content": content, "isError": is_bad}
    answer = text_result(content, is_error=is_bad)
    data = data_of(worded)
    if data is not NO_DATA:
        answer["structuredContent"] = data if isinstance(data, dict) else {"result": data}
    return answer
