"""
Shared by all formats: provider objects as plain data, texts fit for the wire.

Two kinds of wrong input are kept apart. What a provider can send, however
broken, is JSON: it never raises, it becomes a call that is invalid. What JSON
cannot hold was put there by the caller, and raises at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeGuard, cast

__all__ = (
    "as_array",
    "as_object",
    "encodable",
    "fresh",
    "gives_arguments",
    "is_one_of",
    "never_arguments",
    "object_of",
    "other_object",
    "provider_of",
    "refuse_history",
    "refuse_strangers",
    "str_or_empty",
)


def as_object(value: object, what: str) -> Mapping[str, Any] | None:
    """
    Return the JSON object that `value` is, or that an SDK object stands for.

    Args:
        value: A mapping is returned as it is; of an SDK object, its
            `model_dump()` or `to_dict()`, by the provider's own names.
        what: What `value` is meant to be, for the error.

    Returns:
        The mapping, or None where `value` is other JSON data.

    Raises:
        TypeError: `value` is neither JSON data nor a known kind of SDK object.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if value is None or isinstance(value, str | int | float | list | tuple):
        return None
    dumped = _dump(value)
    if isinstance(dumped, Mapping):
        return cast("Mapping[str, Any]", dumped)
    msg = (
        f"{what} must be a dict or an SDK object with model_dump() or to_dict(), "
        f"not {type(value).__name__}"
    )
    raise TypeError(msg)


def _dump(value: Any) -> object:
    # A class has these methods too, but nothing to dump.
    if isinstance(value, type):
        return None
    if callable(getattr(value, "model_dump", None)):
        for options in _DUMP_OPTIONS:
            try:
                return value.model_dump(**options)
            except (TypeError, ValueError):
                pass  # no pydantic, or one without that option
        return value.model_dump()
    if callable(getattr(value, "to_dict", None)):
        return value.to_dict()
    return None


_DUMP_OPTIONS: tuple[dict[str, bool], ...] = (
    # As the provider spells it (`async`, `functionCall`), and without what is
    # not there: a dump goes back into histories. A server that departs from the
    # SDK's schema is expected here, and no reason to warn.
    {"by_alias": True, "exclude_none": True, "warnings": False},
    {"warnings": False},
)


def object_of(value: object, what: str, expected: str) -> Mapping[str, Any]:
    """
    Return the JSON object that `value` has to be, as `as_object` does.

    Raises:
        TypeError: It is none, neither of JSON nor of an SDK.
    """
    found = as_object(value, what)
    if found is None:
        msg = f"expected {expected}, not {type(value).__name__}"
        raise TypeError(msg)
    return found


def other_object(found: Mapping[str, Any], expected: str) -> ValueError:
    """Return the error for an object that is another than was expected."""
    keys = ", ".join(repr(str(key)[:40]) for key in list(found)[:5])
    return ValueError(f"expected {expected}, not an object with the keys {keys or 'none'}")


def as_array(value: object) -> Sequence[Any] | None:
    """Return `value` where it is a list or a tuple, else None."""
    if isinstance(value, list | tuple):
        return cast("Sequence[Any]", value)
    return None


def refuse_history(items: Sequence[Any], expected: str) -> None:
    """Raise ValueError where a bare list holds messages, not the parts of one."""
    # Without this a history would pass for a list without any calls.
    if any(map(_is_message, items)):
        msg = f"expected {expected}, not a list of messages; pass the last one"
        raise ValueError(msg)


def _is_message(item: object) -> bool:
    if not isinstance(item, Mapping):
        return hasattr(item, "role") and hasattr(item, "content")
    fields = cast("Mapping[str, Any]", item)
    # Anthropic's messages have a type; a call's is another.
    is_typed = fields.get("type") not in (None, "message")
    has_body = bool(fields.keys() & {"content", "tool_calls", "parts"})
    return "role" in fields and has_body and not is_typed


def provider_of(item: object) -> str | None:
    """Return the name of the format that a single call is in, by what it alone has."""
    if not isinstance(item, Mapping):
        return None
    fields = cast("Mapping[str, Any]", item)
    kind = fields.get("type")
    if isinstance(kind, str):
        return _BY_TYPE.get(kind)
    if "jsonrpc" in fields or fields.get("method") == "tools/call":
        return "mcp"
    if fields.get("functionCall") or fields.get("function_call"):
        return "gemini"
    function = fields.get("function")
    return "openai_chat" if isinstance(function, Mapping) and "type" not in fields else None


_BY_TYPE = {
    "custom": "openai_chat",
    "function": "openai_chat",
    "tool_use": "anthropic",
    "apply_patch_call": "openai_responses",
    "computer_call": "openai_responses",
    "custom_tool_call": "openai_responses",
    "function_call": "openai_responses",
    "local_shell_call": "openai_responses",
    "shell_call": "openai_responses",
    "tool_search_call": "openai_responses",
}


def refuse_strangers(items: Sequence[Any], provider: str, expected: str) -> None:
    """Raise ValueError where a bare list holds calls of another provider."""
    # They would pass for a list without any calls.
    for item in items:
        found = provider_of(item)
        if found not in (None, provider):
            msg = f"expected {expected}, but it holds a call in the format {found}"
            raise ValueError(msg)


def gives_arguments(given: object) -> bool:
    """Tell whether there is more than `ToolCall` takes for a call without arguments."""
    return given.strip() not in {"", "null"} if isinstance(given, str) else bool(given)


def str_or_empty(value: object) -> str:
    """Return a str as it is and ``""`` for anything else: the call is kept."""
    return value if isinstance(value, str) else ""


def is_one_of(value: object, names: Collection[str]) -> TypeGuard[str]:
    """Tell whether `value` is one of these names; a list or an object is none."""
    return isinstance(value, str) and value in names


def never_arguments(value: object) -> Any:
    """
    Return what a `ToolCall` takes for broken arguments, whatever `value` is.

    Where the call itself is broken, null or a str in its place must not be
    read as "no arguments" or as JSON; a list never passes for arguments.
    """
    return [value]


def fresh(value: object, text: Callable[[str], str] | None = None) -> Any:
    """
    Return `value` with all its dicts and lists copied.

    Arguments that came as an object are part of the provider's own item: a
    tool that changes what it was given must not change the conversation.

    Args:
        value: Of dicts, lists, tuples and anything else, which is kept as it is.
        text: What to make of each str.
    """
    try:
        return _copied(value, text)
    except RecursionError:
        return value


def _copied(value: object, text: Callable[[str], str] | None) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[Any, object]", value)
        if text is None:
            return {key: _copied(item, None) for key, item in fields.items()}
        return {_copied(key, text): _copied(item, text) for key, item in fields.items()}
    if isinstance(value, list):
        return [_copied(item, text) for item in cast("list[object]", value)]
    if isinstance(value, tuple):
        return tuple(_copied(item, text) for item in cast("tuple[object, ...]", value))
    return value if text is None or not isinstance(value, str) else text(value)


def encodable(text: str) -> str:
    """
    Return `text` as a plain str that UTF-8 can carry.

    The two halves of a character that were cut apart are joined; a half that
    is left alone becomes U+FFFD.
    """
    text = str.__str__(text)  # a subclass may have an encode() of its own
    try:
        text.encode()
    except UnicodeEncodeError:
        # Through UTF-16, since only there do two halves make a character.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
