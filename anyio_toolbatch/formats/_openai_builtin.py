"""
Outputs of the tools that OpenAI defines and the client runs: shell, patches, screen.

Their outputs have fields of their own where others have a text. A tool may
return what `run_command` returns, or the provider's own objects.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, cast

from .._model.results import Status, ToolResult
from ._plain import as_array, encodable, fresh
from ._wording import Worded, joined

__all__ = (
    "computer_output",
    "patch_output",
    "search_output",
    "shell_output",
    "shell_texts",
)

_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel: the provider wants a picture also where there is none."""


def shell_output(worded: Worded, wire: Mapping[str, Any], *, is_cut: bool) -> dict[str, Any]:
    """
    Return what the commands wrote, and how each ended.

    Args:
        worded: Its content is the one text, or the blocks of `shell_texts`, or
            the caller's own: outputs of commands, or texts, which are joined.
        wire: The call.
        is_cut: The call was cut.
    """
    result, content = worded.result, worded.content
    fields: dict[str, Any] = {}
    action = wire.get("action")
    if isinstance(action, Mapping) and action.get("max_output_length") is not None:
        fields["max_output_length"] = action["max_output_length"]
    ended = _ended(result.value)
    if not isinstance(content, str) and not worded.is_own:
        texts = (block["text"] for block in content)
        fields["output"] = [
            {"stdout": next(texts), "stderr": next(texts), "outcome": part["outcome"]}
            for part in ended or ()
        ]
    elif not isinstance(content, str) and all("stdout" in block for block in content):
        fields["output"] = content
    else:
        text = joined(content)
        outcome: dict[str, Any] = {"type": "exit", "exit_code": int(worded.is_bad)}
        if is_cut:
            outcome = {"type": "timeout"}
        elif ended:
            outcome = ended[-1]["outcome"]
        out, err = ("", text) if worded.is_bad else (text, "")
        fields["output"] = [{"stdout": out, "stderr": err, "outcome": outcome}]
    return fields


def shell_texts(result: ToolResult) -> list[dict[str, Any]] | None:
    """
    Return what ended commands wrote, apart, so that each is cut by itself.

    Returns:
        A block for each stdout and stderr, in turn; None where the result is
        something else than ended commands.
    """
    ended = _ended(result.value) if result.status is Status.COMPLETED else None
    if not ended:
        return None
    return [{"text": part[name]} for part in ended for name in ("stdout", "stderr")]


def _ended(value: object) -> list[dict[str, Any]] | None:
    """Return the output of ended commands; None where the value is something else."""
    values = as_array(value)
    parts = [_ended_command(item) for item in ([value] if values is None else values)]
    return None if None in parts else [part for part in parts if part is not None]


def _ended_command(value: object) -> dict[str, Any] | None:
    def field(name: str) -> Any:
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value).get(name)
        return getattr(value, name, None)

    out, err = field("stdout"), field("stderr")
    if not isinstance(out, str) or not isinstance(err, str):
        return None
    outcome = field("outcome")
    if not isinstance(outcome, Mapping):
        code = field("returncode")
        outcome = {
            "type": "exit",
            "exit_code": code if isinstance(code, int) else _signalled(field("signal")),
        }
    return {
        "stdout": encodable(out),
        "stderr": encodable(err),
        "outcome": fresh(dict(outcome), encodable),
    }


def _signalled(name: object) -> int:
    """Return the exit status that shells give to what a signal has ended."""
    number = getattr(signal.Signals, name, None) if isinstance(name, str) else None
    return 1 if number is None else 128 + number


def patch_output(worded: Worded) -> dict[str, Any]:
    """Return whether the patch was applied, and what the tool said."""
    fields: dict[str, Any] = {"status": "failed" if worded.is_bad else "completed"}
    text = joined(worded.content)
    is_silent = not worded.is_bad and not worded.is_own and worded.result.value is None
    if text and not is_silent:
        fields["output"] = text
    return fields


def computer_output(worded: Worded) -> dict[str, Any]:
    """
    Return the screenshot, and the safety checks that somebody has acknowledged.

    The tool returns its URL (a ``data:`` one as a rule), the provider's own
    ``computer_screenshot``, or a mapping with that as `output` and the
    `acknowledged_safety_checks`. A text has no place in this item.
    """
    value: Any = None if worded.is_bad else worded.result.value
    if worded.is_own:
        value = (
            next(iter(worded.content), None)
            if isinstance(worded.content, list)
            else worded.content
        )
    fields: dict[str, Any] = {}
    if isinstance(value, Mapping) and "output" in value:
        checks = value.get("acknowledged_safety_checks")
        if checks:
            fields["acknowledged_safety_checks"] = fresh(list(checks), encodable)
        value = value["output"]
    if isinstance(value, Mapping) and value.get("type") == "computer_screenshot":
        fields["output"] = fresh(dict(value), encodable)
    else:
        url = _NO_SCREENSHOT
        if isinstance(value, str) and value.startswith(("data:", "http")):
            url = encodable(value)
        fields["output"] = {"type": "computer_screenshot", "image_url": url}
    return fields


def search_output(worded: Worded) -> dict[str, Any]:
    """Return the tools that were found: the list of definitions that the tool returned."""
    result = worded.result
    found = as_array(result.value) if result.status is Status.COMPLETED else None
    if worded.is_own and (not worded.content or not isinstance(worded.content, str)):
        found = worded.content or []
    tools = [fresh(dict(tool), encodable) for tool in found or () if isinstance(tool, Mapping)]
    return {
        "execution": "client",
        "status": "completed" if found is not None else "incomplete",
        "tools": tools,
    }
