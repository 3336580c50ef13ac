"""
What each result says: the caller's words or our own, within the caller's budget.

The formats differ in where the words go; who may write them and how they are
cut is the same for all and is decided here, before any payload is made.
"""

# Arguments are checked at run time, too: not everybody runs a type checker.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .._model.results import LateResult, Status, ToolResult, text_of_error
from .._model.tools import ToolOutput
from ._budget import cut_middle, fair_shares
from ._plain import as_array, as_object, encodable, fresh

__all__ = (
    "NO_DATA",
    "ContentFunction",
    "Spill",
    "Worded",
    "Wording",
    "as_results",
    "data_of",
    "joined",
    "marked_text",
    "result_of",
)

Content = str | Sequence[Mapping[str, Any]]
"""A text, or a list of the provider's own content blocks."""

ContentFunction = Callable[[ToolResult], Content | None]
"""From a result to what to show of it; None: the format's own text."""

Spill = Callable[[ToolResult], str]
"""Stores the whole of a result somewhere and returns where."""

_SHOWN_ERROR = 200  # characters of a failed spill's error; arbitrary


@dataclass(slots=True)
class Worded:
    """A result and what is to be shown of it."""

    result: ToolResult
    content: str | list[dict[str, Any]]
    """Fit for UTF-8. A list is the caller's blocks, copied."""
    is_own: bool
    """The caller's words: a format adds nothing to them."""
    has_text: bool = True
    """The format has a place for words here; if not, nothing is counted."""
    is_cut: bool = False
    """Something was left out of the text."""

    @property
    def is_bad(self) -> bool:
        """The tool has not completed, or says itself that it is an error."""
        return self.result.is_error or self.result.status is not Status.COMPLETED


class Wording:
    """
    The options of `render_results`, checked, and how they are carried out.

    Raises:
        TypeError: `content` or `spill` is not callable, a limit is no int.
        ValueError: A limit is negative.
    """

    def __init__(
        self,
        content: ContentFunction | None,
        max_chars_per_result: int | None,
        max_chars_total: int | None,
        spill: Spill | None,
    ) -> None:
        for name, function in (("content", content), ("spill", spill)):
            if function is not None and not callable(function):
                msg = f"{name} must be a function of a result, not {type(function).__name__}"
                raise TypeError(msg)
        for name, limit in (
            ("max_chars_per_result", max_chars_per_result),
            ("max_chars_total", max_chars_total),
        ):
            if limit is None:
                continue
            if not isinstance(limit, int) or isinstance(limit, bool):
                msg = f"{name} must be a number of characters, not {type(limit).__name__}"
                raise TypeError(msg)
            if limit < 0:
                msg = f"{name} must be 0 or more, not {limit}"
                raise ValueError(msg)
        self._content = content
        self._per_result = max_chars_per_result
        self._total = max_chars_total
        self._spill = spill

    def word(
        self,
        results: Iterable[ToolResult],
        text_of: Callable[[ToolResult], Content | None],
        limit_of: Callable[[ToolResult], int | None] = lambda _: None,
    ) -> list[Worded]:
        """
        Return what to show of each result, in order.

        Args:
            results: The results of one batch.
            text_of: The format's own words: a text, or several in blocks that
                are cut one by one; None: this result has no place for words,
                so that nothing of it is counted or cut.
            limit_of: A limit that the call itself asks for.

        Raises:
            TypeError: `results` are none; `content` gave something else than a
                str, a list of objects or None; or `spill` something else than
                a str.
        """
        worded = [self._worded(result, text_of(result)) for result in as_results(results)]
        sizes = [sum(map(len, texts)) for texts in map(_texts, worded)]
        shares = [
            min([size, *(n for n in (self._per_result, limit_of(w.result)) if n is not None)])
            for w, size in zip(worded, sizes, strict=True)
        ]
        if self._total is not None:
            shares = fair_shares(shares, self._total)
        for entry, size, share in zip(worded, sizes, shares, strict=True):
            if share < size:
                self._cut(entry, share)
        return worded

    def _worded(self, result: ToolResult, own: Content | None) -> Worded:
        given = None if self._content is None else self._content(result)
        has_text, is_own = own is not None, given is not None
        if given is None:
            given = "" if own is None else own
        if isinstance(given, str):
            return Worded(result, encodable(given), is_own, has_text)
        items = as_array(given)
        blocks = (
            [] if items is None else [as_object(item, "a content block") for item in items]
        )
        if items is None or None in blocks:
            msg = (
                "content must return a str, a list of content blocks or None, "
                f"not {type(given).__name__}"
            )
            raise TypeError(msg)
        # Of no blocks there is nothing to show, and an empty list is refused.
        shown = [fresh(dict(block or {}), encodable) for block in blocks] or ""
        return Worded(result, shown, is_own, has_text)

    def _cut(self, entry: Worded, share: int) -> None:
        texts = _texts(entry)
        shares = fair_shares([len(text) for text in texts], share)
        head = _head(entry)
        # Nothing is stored for what is shorter than the mark of its cut.
        if all(
            cut_middle(text, limit, head=head) is text
            for text, limit in zip(texts, shares, strict=True)
        ):
            return
        entry.is_cut = True
        note = "" if self._spill is None else _note(self._spill, entry.result)
        cut = [
            cut_middle(text, limit, head=head, note=note)
            for text, limit in zip(texts, shares, strict=True)
        ]
        if isinstance(entry.content, str):
            (entry.content,) = cut
        else:
            for block, text in zip(_text_blocks(entry.content), cut, strict=True):
                block["text"] = text


NO_DATA = object()
"""In place of data, where there is none: None is data, too."""


def data_of(worded: Worded) -> Any:
    """
    Return a completed call's value as plain JSON data, for providers that take that.

    Returns:
        A copy that is fit for UTF-8; `NO_DATA` where the text says it all, or
        says less than the value, or JSON has no words for it.
    """
    result = worded.result
    if worded.is_bad or worded.is_own or worded.is_cut or isinstance(result.value, str):
        return NO_DATA
    try:
        given = json.dumps(result.value, ensure_ascii=False, allow_nan=False)
        return json.loads(encodable(given))
    except Exception:  # noqa: BLE001 - any user class may raise anything here
        return NO_DATA


def as_results(results: Iterable[ToolResult]) -> list[ToolResult]:
    """
    Return the results as a list.

    Raises:
        TypeError: They are something else, such as a snapshot with calls that have none yet.
    """
    if not isinstance(results, Iterable):
        msg = f"results must be the results of a batch, not {type(results).__name__}"
        raise TypeError(msg)
    found = list(results)
    for result in found:
        if not isinstance(result, ToolResult):
            msg = f"results must hold a ToolResult for each call, not {type(result).__name__}"
            raise TypeError(msg)
    return found


def joined(content: str | list[dict[str, Any]]) -> str:
    """Return the text alone, for where blocks have no place."""
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in _text_blocks(content))


def marked_text(result: ToolResult) -> str:
    """
    Return a result's text with ``Error:`` before the tool's own report of an error.

    For where there is no other mark. Placeholders speak for themselves.
    """
    is_own_words = result.reason is None and result.status in _TOOL_ANSWERED
    if result.is_error and is_own_words and not result.text.lower().startswith("error:"):
        return f"Error: {result.text}"
    return result.text


_TOOL_ANSWERED = {Status.COMPLETED, Status.FAILED, Status.INVALID}


def result_of(late: LateResult) -> ToolResult:
    """Return the end of a call that was let go as the result that it would have been."""
    value, is_error = late.value, late.error is not None
    if isinstance(value, ToolOutput):
        value, is_error = value.value, value.is_error
    status = Status.COMPLETED if late.error is None else Status.FAILED
    return ToolResult(
        late.call, late.index, status, value=value, error=late.error, is_error=is_error
    )


def _texts(entry: Worded) -> list[str]:
    if not entry.has_text:
        return []
    if isinstance(entry.content, str):
        return [entry.content]
    return [block["text"] for block in _text_blocks(entry.content)]


def _text_blocks(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    # What is no text, such as an image, is neither counted nor cut.
    return (
        block
        for block in blocks
        if isinstance(block.get("text"), str) and block.get("type") in _TEXT_TYPES
    )


_TEXT_TYPES = (None, "text", "input_text", "output_text")


def _head(entry: Worded) -> int:
    """Return how much must stay: that a call may have had effects is never cut away."""
    if entry.is_own or entry.result.reason is None:
        return 0
    return len(cast("str", entry.content).partition("\n")[0])


def _note(spill: Spill, result: ToolResult) -> str:
    try:
        reference = spill(result)
    except Exception as exc:  # noqa: BLE001 - a full disk must not cost the turn its results
        error = " ".join(text_of_error(exc)[:_SHOWN_ERROR].split())
        return f"; storing the whole failed: {encodable(error)}"
    if not isinstance(reference, str):
        msg = f"spill must return a str, where the whole is, not {type(reference).__name__}"
        raise TypeError(msg)
    return f"; the whole: {encodable(reference)}"
