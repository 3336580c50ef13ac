"""One request and one result as MCP writes them, in JSON-RPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from .._model.calls import ToolCall
from ._plain import as_object, encodable, fresh, never_arguments, str_or_empty

__all__ = ("call_of", "id_of", "is_call", "key_of", "response_to", "text_result")


def is_call(message: Mapping[str, Any]) -> bool:
    """Tell whether a message, or its bare params, asks for a tool, and for an answer."""
    if "method" in message:
        # Without an id it is a notification; an SDK's own request has no envelope yet.
        is_request = "id" in message or "jsonrpc" not in message
        return is_request and bool(message["method"] == "tools/call")
    return "name" in message and "jsonrpc" not in message


def id_of(given: object) -> str:
    """Return the id of a request as a str; ``""`` where it has none."""
    return str(given) if _is_number(given) else str_or_empty(given)


def key_of(given: object) -> tuple[type, Any]:
    """Return an id as what pairs: 1 and "1" are two ids, 1 and 1.0 are one."""
    if isinstance(given, str):
        return (str, encodable(given))
    return (float, given) if _is_number(given) else (type(None), None)


def _is_number(given: object) -> TypeGuard[int | float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def call_of(message: Mapping[str, Any]) -> ToolCall:
    """Return the call that a request, or its bare params, asks for."""
    given = message.get("params") if "method" in message else message
    params = as_object(given, "params")
    id_ = id_of(message.get("id")) if "method" in message else ""
    if params is None:
        return ToolCall(id_, "", never_arguments(given), wire=message)
    arguments = fresh(params.get("arguments"))
    if isinstance(arguments, str):
        arguments = never_arguments(arguments)  # JSON within JSON is no object
    return ToolCall(id_, str_or_empty(params.get("name")), arguments, wire=message)


def text_result(text: str, *, is_error: bool) -> dict[str, Any]:
    """Return a tool result that says this."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def response_to(request: object, id_: str, result: dict[str, Any]) -> dict[str, Any]:
    """
    Return the response with a request's own id; with `id_` if that is no request.

    What is no id is answered with null, which is JSON-RPC's word for that.
    """
    given: object = id_
    if isinstance(request, Mapping) and "method" in request:
        given = request.get("id", id_)
    echoed = encodable(given) if isinstance(given, str) else given
    is_id = isinstance(given, str) or _is_number(given)
    return {"jsonrpc": "2.0", "id": echoed if is_id else None, "result": result}
