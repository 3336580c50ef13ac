"""
MCP's rule for a log of messages: one response for each request, by its id.

The order is free. A request that was cancelled by a notification gets none, and
what comes for it all the same is not to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._mcp_wire import is_call, key_of, response_to, text_result
from ._plain import as_object
from ._repair import LOST, Entry, as_history, plan

__all__ = ("repair",)


def repair(messages: Sequence[Any]) -> list[Any]:
    """
    Return the messages with exactly one response for each request of a tool; idempotent.

    A request for ``tools/call`` without a response gets one at the end, marked
    as an error, that says what is known of it: nothing; unless it was
    cancelled. Responses to nothing, second ones, and late ones to a cancelled
    request are left out. Other requests are never answered from here.

    Args:
        messages: The JSON-RPC messages of one session. Dicts or SDK objects.
            It is not changed.

    Returns:
        A new list; what was in order is the very object that was given.

    Raises:
        TypeError: It is no list of messages.

    .. versionadded:: 0.1
    """
    history, fields = as_history(messages, "JSON-RPC messages")
    requests: list[Entry] = []
    places: list[int] = []
    responses: list[Entry] = []
    response_places: list[int] = []
    cancelled: list[tuple[Any, int]] = []
    for place, found in enumerate(fields):
        if found.get("method") == "notifications/cancelled":
            params = as_object(found.get("params"), "params") or {}
            cancelled.append((key_of(params.get("requestId")), place))
        elif "method" in found and "id" in found:
            # A turn for each request: nothing is answered before it was asked.
            requests.append(Entry(len(requests), key_of(found["id"])))
            places.append(place)
        elif "id" in found and ("result" in found or "error" in found):
            responses.append(Entry(len(requests) - 1, key_of(found["id"])))
            response_places.append(place)
    kept: set[int] = set()
    lost: list[dict[str, Any]] = []
    for rows in plan(requests, responses).values():
        for request, response in rows:
            found = fields[places[request]]
            label, asked_at = requests[request].label, places[request]
            # A response that came before the cancellation was in time.
            cut_at = next(
                (at for key, at in cancelled if key == label and at > asked_at), None
            )
            answered_at = None if response is None else response_places[response]
            if answered_at is not None and (cut_at is None or answered_at < cut_at):
                kept.add(answered_at)
            elif cut_at is None and is_call(found):
                lost.append(response_to(found, "", text_result(LOST, is_error=True)))
    dropped = set(response_places) - kept
    return [item for place, item in enumerate(history) if place not in dropped] + lost
