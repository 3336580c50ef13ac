"""
The Gemini format: as many function responses as calls, in one content right behind.

Older models and Vertex give calls no id: then order and name pair them. Parts
that the provider runs itself (``toolCall``, ``executableCode``) get no answer.
Names are taken as REST has them (``functionCall``) and as the SDK has them
(``function_call``); what is rendered is REST's, which both take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from .._model.calls import ToolCall
from .._model.results import LateResult, Status, ToolResult, goes_on
from ._gemini_repair import repair
from ._gemini_wire import CALL, WHOLE_REASONS, call_of, field, response_part
from ._plain import as_array, as_object, object_of, other_object, refuse_strangers
from ._stream import cut_off
from ._wording import NO_DATA, ContentFunction, Spill, Worded, Wording, data_of, result_of

__all__ = ("parse_calls", "render_late", "render_results", "repair")

_EXPECTED = "a Gemini content of the model, the whole response, or its list of parts"

Scheduling = Literal["SILENT", "WHEN_IDLE", "INTERRUPT"]


def parse_calls(message: object) -> list[ToolCall]:
    """
    Return the calls for this client, in order.

    Nothing of a broken call is lost: a missing id or name becomes ``""``, and
    `args` that are no object make the call invalid, with the reason in
    `parse_error`; so does a piece of a call whose arguments are streamed
    (``willContinue``, ``partialArgs``), and a call at the end of a response
    that was cut off (``finishReason: MAX_TOKENS``).

    Args:
        message: The content, or the whole response (of several candidates the
            first counts), or the bare list of parts. Dicts, or SDK objects with
            `model_dump()` or `to_dict()`, at any level.

    Returns:
        One call per part with a ``functionCall``; `wire` holds the part, the
        very dict where it was one, with its thought signature. A content
        without calls gives an empty list.

    Raises:
        TypeError: `message` or a part in it is neither JSON data nor an SDK
            object.
        ValueError: It is no content of the model: a history, another
            provider's message.

    .. versionadded:: 0.1
    """
    calls: list[ToolCall] = []
    parts, is_cut = _parts(message)
    part: Mapping[str, Any] | None = None
    for item in parts:
        part = as_object(item, "a part")
        if part is not None and field(part, *CALL) is not None:
            calls.append(call_of(part))
    if is_cut and calls and calls[-1].wire is part:
        calls[-1] = cut_off(calls[-1])
    return calls


def render_results(
    results: Iterable[ToolResult],
    *,
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    max_chars_total: int | None = None,
    spill: Spill | None = None,
    non_blocking: Collection[str] = (),
) -> dict[str, Any]:
    """
    Return the one content to append; never raises for a result.

    A value is given as the data that it is: an object as the response itself,
    anything else as its `output`; where JSON cannot hold it, or it is too long
    for the budget, as text. Errors and placeholders are the response's `error`.

    Args:
        results: The results of one batch, in call order.
        content, max_chars_per_result, max_chars_total, spill: Own words and a
            budget, alike in all formats: see the page on formats. Of blocks,
            those with a `text` make the output, the others its `parts`.
        non_blocking: Names of the functions that are declared NON_BLOCKING
            (Gemini Live). Of these, a call that goes on (``on_interrupt=
            "keep"``) is answered with ``willContinue``, and `render_late` has
            its end; one that was cut is closed without a word of the model.

    Returns:
        A ``user`` content with one ``functionResponse`` part per result, in the
        same order, ids as given, none where the call had none; lone surrogates
        are replaced by U+FFFD. Of no results, a content without parts: append
        it only when something is in it.

    Raises:
        TypeError: There is something else than results among them, an option is
            of the wrong type, or a function in one returned something else than
            it should.
        ValueError: A limit is negative.

    .. versionadded:: 0.1
    """
    if isinstance(non_blocking, str):
        msg = "non_blocking must be a collection of names, not a str"
        raise TypeError(msg)
    wording = Wording(content, max_chars_per_result, max_chars_total, spill)
    parts: list[dict[str, Any]] = []
    for worded in wording.word(results, lambda result: result.text):
        part = _part(worded)
        result = worded.result
        if result.call.name in non_blocking and result.status in _CUT:
            is_pending = goes_on(result)
            response = part["functionResponse"]
            if is_pending and "error" in response["response"]:
                response["response"] = {"output": response["response"]["error"]}
            response["willContinue"] = is_pending
            response["scheduling"] = "WHEN_IDLE" if is_pending else "SILENT"
        parts.append(part)
    return {"role": "user", "parts": parts}


def render_late(
    late: LateResult,
    *,
    scheduling: Scheduling = "WHEN_IDLE",
    content: ContentFunction | None = None,
    max_chars_per_result: int | None = None,
    spill: Spill | None = None,
) -> dict[str, Any]:
    """
    Return the last response of a call that was answered with ``willContinue``.

    Only for functions that are declared NON_BLOCKING (Gemini Live), and only
    for calls that `render_results` answered so: to any other it would be a
    second response.

    Args:
        late: What `on_late` was given.
        scheduling: When the model is to take notice.
        content, max_chars_per_result, spill: As in `render_results`; `content`
            is given a result that is completed or failed.

    Returns:
        A content with one part; a session of Gemini Live is sent what is in
        its ``functionResponse``.

    Raises:
        TypeError: As `render_results`.

    .. versionadded:: 0.1
    """
    message = render_results(
        [result_of(late)],
        content=content,
        max_chars_per_result=max_chars_per_result,
        spill=spill,
    )
    message["parts"][0]["functionResponse"] |= {
        "willContinue": False,
        "scheduling": scheduling,
    }
    return message


_CUT = {Status.INTERRUPTED, Status.TIMED_OUT}


def _parts(message: object) -> tuple[Sequence[Any], bool]:
    """Return the parts, and whether the last may have been cut off."""
    bare = as_array(message)
    if bare is not None:
        refuse_strangers(bare, "gemini", _EXPECTED)
        for item in bare:
            is_dict = isinstance(item, Mapping)
            if "parts" in item or "role" in item if is_dict else hasattr(item, "role"):
                msg = f"expected {_EXPECTED}, not a list of messages; pass the last one"
                raise ValueError(msg)
        return bare, False
    found = object_of(message, "message", _EXPECTED)
    is_cut = False
    if "candidates" in found:
        candidates = as_array(found["candidates"])
        candidate = as_object(candidates[0], "a candidate") if candidates else None
        reason = field(candidate or {}, "finishReason", "finish_reason")
        is_cut = isinstance(reason, str) and reason not in {*WHOLE_REASONS, ""}
        # A blocked prompt has no candidates, a blocked answer no content.
        found = as_object((candidate or {}).get("content"), "a content") or {"parts": None}
    role = found.get("role")
    if role not in (None, "model"):
        msg = f"expected {_EXPECTED}, not a message with the role {role!r}"
        raise ValueError(msg)
    parts = as_array(found.get("parts"))
    if parts is None and found.get("parts") is not None:
        msg = f"parts must be a list, not {type(found['parts']).__name__}"
        raise ValueError(msg)
    if "parts" not in found and role is None:
        raise other_object(found, _EXPECTED)
    return parts or (), is_cut


def _part(worded: Worded) -> dict[str, Any]:
    result, content = worded.result, worded.content
    media: list[dict[str, Any]] = []
    response: dict[str, Any]
    if isinstance(content, list):
        texts = [block for block in content if isinstance(block.get("text"), str)]
        media = [block for block in content if block not in texts]
        content = "".join(block["text"] for block in texts)
    data = data_of(worded)
    if worded.is_bad:
        response = {"error": content}
    elif data is NO_DATA:
        response = {"output": content}
    else:
        # These two keys have a meaning of their own.
        is_plain = isinstance(data, dict) and not data.keys() & {"output", "error"}
        response = data if is_plain else {"output": data}
    part = response_part(result.call.id, result.call.name, response)
    if media:
        part["functionResponse"]["parts"] = media
    return part
