"""
MCP's rule for a log of messages: one response for each request, by its id.

The order is free. A request that was cancelled by a notification gets none, and
what comes for it all the same is not to be looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from ._mcp_wire import is_call, key_of, response_to, text_result
from ._plain import as_object
from ._repair import LOST, as_history

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
    waiting: dict[Hashable, deque[int]] = {}  # the places of requests, by their ids
    dropped: set[int] = set()
    for place, found in enumerate(fields):
        if found.get("method") == "notifications/cancelled":
            params = as_object(found.get("params"), "params") or {}
            waiting.pop(key_of(params.get("requestId")), None)
        elif "method" in found and "id" in found:
            waiting.setdefault(key_of(found["id"]), deque()).append(place)
        elif "id" in found and ("result" in found or "error" in found):
            # Of requests that share an id, the first is answered first.
            asked = waiting.get(key_of(found["id"]))
            if asked:
                asked.popleft()
            else:
                dropped.add(place)
    lost = sorted(place for places in waiting.values() for place in places)
    return [item for place, item in enumerate(history) if place not in dropped] + [
        response_to(fields[place], "", text_result(LOST, is_error=True))
        for place in lost
        if is_call(fields[place])
    ]
