"""
The items of OpenAI Responses: which are calls, which for us, and how each is answered.

A call is paired with its output by `call_id`, not by its `id`; only the output
of the old local shell has the call's `call_id` in its own `id`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._model.calls import ToolCall, broken_call
from .._model.results import Status, goes_on
from ._openai_builtin import computer_output, patch_output, search_output, shell_output
from ._plain import encodable, fresh, gives_arguments, is_one_of, never_arguments, str_or_empty
from ._stream import CUT_OFF
from ._wording import Worded, joined

__all__ = (
    "OUTPUT_OF",
    "call_of",
    "is_async",
    "is_ours",
    "is_whole",
    "label_of_output",
    "output_of",
)

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}
"""The type of a call's output, by the type of the call."""

# What a built-in tool's function is called, and by which names it gets the
# fields of the item. Whole, so that a field that is added later breaks nothing.
_BUILT_IN = {
    "local_shell_call": ("local_shell", ("action",)),
    "shell_call": ("shell", ("action",)),
    "apply_patch_call": ("apply_patch", ("operation",)),
    "computer_call": ("computer", ("action", "actions", "pending_safety_checks")),
}


def is_ours(item: Mapping[str, Any]) -> bool:
    """Tell whether a call is one that this client has to answer."""
    kind = item.get("type")
    if kind == "shell_call":
        # In a container of the provider's, it runs the commands itself.
        environment = item.get("environment")
        return not isinstance(environment, Mapping) or environment.get("type") in (
            None,
            "local",
        )
    if kind == "tool_search_call":
        return item.get("execution") == "client"
    return is_one_of(kind, OUTPUT_OF)


def is_async(item: Mapping[str, Any]) -> bool:
    """Tell whether the model goes on without the output of this call."""
    # The SDK's objects spell it with an underscore.
    return item.get("async") is True or item.get("async_") is True


def call_of(item: Mapping[str, Any]) -> ToolCall:
    """Return the call that an item asks for."""
    kind = str_or_empty(item.get("type"))
    name = str_or_empty(item.get("name"))
    arguments: Any
    if kind == "function_call":
        arguments = fresh(item.get("arguments"))
    elif kind == "custom_tool_call":
        text = item.get("input")
        arguments = {"input": text} if isinstance(text, str) else never_arguments(text)
    elif kind == "tool_search_call":
        name, arguments = "tool_search", fresh(item.get("arguments"))
    else:
        name, keys = _BUILT_IN[kind]
        arguments = {key: fresh(item[key]) for key in keys if item.get(key) is not None}
    id_ = str_or_empty(item.get("call_id"))
    if item.get("status") in ("incomplete", "in_progress"):
        return broken_call(id_, name, arguments, CUT_OFF, wire=item)
    return ToolCall(id_, name, arguments, wire=item)


def is_whole(item: Mapping[str, Any], call: ToolCall) -> bool:
    """
    Tell whether the item of a call says by itself how far it has come.

    Not every kind has a status, such as custom tools, and not every server
    sends it. JSON has an end of its own; free text has none, nor has what may
    be no arguments, or none so far. Then the item may be the one in which its
    response was cut off.
    """
    if is_one_of(item.get("status"), {"completed", "incomplete", "in_progress"}):
        return True
    if item.get("type") != "function_call" or call.parse_error is not None:
        return False
    return gives_arguments(item.get("arguments"))


def label_of_output(item: Mapping[str, Any]) -> str | None:
    """Return the `call_id` that an output names; None: it names none."""
    key = "id" if item.get("type") == "local_shell_call_output" else "call_id"
    label = item.get(key)
    return encodable(label) if isinstance(label, str) else None


def output_of(worded: Worded) -> dict[str, Any]:
    """Return the output item of a result, of the kind that its call asks for."""
    result = worded.result
    wire: Mapping[str, Any] = result.call.wire if isinstance(result.call.wire, Mapping) else {}
    kind = wire.get("type")
    kind = kind if is_one_of(kind, OUTPUT_OF) else "function_call"
    is_local_shell = kind == "local_shell_call"
    item: dict[str, Any] = {
        "type": OUTPUT_OF[kind],
        "id" if is_local_shell else "call_id": encodable(result.call.id),
    }
    is_cut = result.status in {Status.INTERRUPTED, Status.TIMED_OUT}
    if kind in {"function_call", "custom_tool_call"}:
        item["output"] = worded.content
    elif is_local_shell:
        item["output"] = joined(worded.content)
    elif kind == "shell_call":
        item |= shell_output(worded, wire, is_cut=is_cut)
    elif kind == "apply_patch_call":
        item |= patch_output(worded)
    elif kind == "computer_call":
        item |= computer_output(worded)
    else:
        item |= search_output(worded)
    if kind == "function_call" and goes_on(result) and is_async(wire):
        item["status"] = "in_progress"
    elif is_cut and kind not in {"custom_tool_call", "apply_patch_call"}:
        item["status"] = "incomplete"
    if isinstance(wire.get("caller"), Mapping) and not is_local_shell:
        item["caller"] = fresh(dict(wire["caller"]), encodable)
    return item
