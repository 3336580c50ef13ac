"""R7: own words and a budget for the results of a turn, alike in all formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch.formats import anthropic, gemini, mcp, openai_chat, openai_responses
from anyio_toolbatch.formats._budget import cut_middle, fair_shares

RENDER: dict[str, Callable[..., Any]] = {
    "openai_chat": openai_chat.render_results,
    "openai_responses": openai_responses.render_results,
    "anthropic": anthropic.render_results,
    "gemini": gemini.render_results,
    "mcp": mcp.render_results,
}
MARK = re.compile(r"\n\[… (\d+) characters left out(.*) …\]\n")

each_format = pytest.mark.parametrize("name", RENDER)


def texts_of(name: str, rendered: Any) -> list[Any]:
    """Return the content of each rendered result, wherever its provider has it."""
    if name == "openai_chat":
        return [message["content"] for message in rendered]
    if name == "openai_responses":
        return [item["output"] for item in rendered]
    if name == "anthropic":
        return [block["content"] for block in rendered["content"]]
    if name == "gemini":
        responses = [part["functionResponse"]["response"] for part in rendered["parts"]]
        return [response.get("error", response.get("output")) for response in responses]
    return [result["content"][0]["text"] for result in rendered]


def done(value: Any, index: int = 0) -> ToolResult:
    return ToolResult(ToolCall(f"id_{index}", "f"), index, Status.COMPLETED, value=value)


def render(name: str, results: list[ToolResult], **options: Any) -> list[Any]:
    return texts_of(name, RENDER[name](results, **options))


# -- the shares, and the cut -----------------------------------------------------


@given(st.lists(st.integers(0, 50)), st.integers(0, 500))
def test_shares_are_fair(sizes: list[int], total: int) -> None:
    """R7: nobody gets more than needed, nothing is wasted, the cut ones get the same."""
    shares = fair_shares(sizes, total)
    assert sum(shares) == min(sum(sizes), total)
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shares) <= max(cut) + 1, "a whole one is no larger than a cut one"


@given(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=300),
    st.integers(0, 300),
    st.integers(0, 50),
    st.text(max_size=20),
)
def test_cut_says_how_much_is_missing(text: str, limit: int, head: int, note: str) -> None:
    """R7: never a silent cut: front, mark and back make up the whole, within the limit."""
    cut = cut_middle(text, limit, head=head, note=note)
    if len(text) <= limit:
        assert cut is text
    if cut is text:
        return
    mark = re.search(rf"\n\[… (\d+) characters left out{re.escape(note)} …\]\n", cut)
    assert mark is not None
    front, back = cut[: mark.start()], cut[mark.end() :]
    assert text.startswith(front) and text.endswith(back) and len(front) >= min(head, 1)
    assert len(front) + int(mark[1]) + len(back) == len(text)
    assert len(cut) < len(text)
    assert len(cut) <= max(limit, head + len(mark[0]))


# -- in every format -------------------------------------------------------------


@each_format
def test_each_result_has_its_limit(name: str) -> None:
    """R7: what is longer is cut in the middle, what is not stays as it is."""
    long = "a" * 5_000 + "z" * 5_000
    short, cut = render(name, [done("short"), done(long, 1)], max_chars_per_result=1_000)
    assert short == "short"
    assert len(cut) <= 1_000
    mark = MARK.search(cut)
    assert mark is not None
    assert 10_000 - int(mark[1]) == len(cut) - len(mark[0])
    assert cut.startswith("a" * 400) and cut.endswith("z" * 400)


@each_format
def test_all_share_what_there_is(name: str) -> None:
    """R7: 8 × 50 KB and a small one: the small one whole, the others alike."""
    results = [done("x" * 50_000, index) for index in range(8)] + [done("small", 8)]
    *large, small = render(name, results, max_chars_total=20_000)
    assert small == "small"
    assert sum(map(len, large)) + len(small) <= 20_000
    assert min(map(len, large)) >= 2_490 and all(map(MARK.search, large))


@each_format
def test_both_limits_hold(name: str) -> None:
    """R7: a cap per call and one per batch."""
    results = [done("x" * 900), done("y" * 5_000, 1)]
    texts = render(name, results, max_chars_per_result=1_000, max_chars_total=1_500)
    assert [len(text) <= 1_000 for text in texts] == [True, True]
    assert sum(map(len, texts)) <= 1_500


@each_format
def test_limits_of_nothing_still_say_what_is_missing(name: str) -> None:
    """R7: a mark is shown even where it is all that fits; tiny texts beat their mark."""
    texts = render(name, [done("x" * 100), done("tiny", 1)], max_chars_total=0)
    assert texts == ["\n[… 100 characters left out …]\n", "tiny"]


@each_format
def test_placeholder_is_never_cut_away(name: str) -> None:
    """P6: that a call may have had effects is said whatever the budget."""
    cut = ToolResult(
        ToolCall("a", "f"),
        0,
        Status.INTERRUPTED,
        reason=Reason("user_interrupt"),
        partial="p" * 1_000,
    )
    (text,) = render(name, [cut], max_chars_per_result=10)
    assert text.startswith(cut.text.splitlines()[0])
    assert MARK.search(text) and len(text) < 200


@each_format
def test_nothing_is_split(name: str) -> None:
    """A character outside the basic plane, and halves that belong together, stay whole."""
    for limit in range(60, 70):
        (text,) = render(
            name, [done("\U0001f600\ud83d\ude00" * 50)], max_chars_per_result=limit
        )
        assert set(MARK.sub("", text)) == {"\U0001f600"}


@each_format
def test_whole_is_stored_where_something_is_cut(name: str) -> None:
    """R7: `spill` is asked for what was cut alone, and the model is told where it is."""
    spilled: list[ToolResult] = []

    def spill(result: ToolResult) -> str:
        spilled.append(result)
        return f"/tmp/{result.call.id}.txt"

    results = [done("short"), done("x" * 1_000, 1)]
    short, cut = render(name, results, max_chars_per_result=100, spill=spill)
    assert short == "short"
    assert spilled == results[1:]
    assert "characters left out; the whole: /tmp/id_1.txt …]" in cut and len(cut) <= 100


@each_format
def test_spill_that_fails_costs_nothing_but_itself(name: str) -> None:
    """P1: a full disk must not cost the turn its results; the model is told."""

    def spill(result: ToolResult) -> str:
        raise OSError("disk\nfull \ud83d")

    (cut,) = render(name, [done("x" * 1_000)], max_chars_per_result=200, spill=spill)
    assert "; storing the whole failed: OSError: disk full \ufffd …]" in cut
    assert len(cut) <= 200


@each_format
def test_own_words(name: str) -> None:
    """`content` decides what is shown; None leaves the format's own text."""

    def content(result: ToolResult) -> str | None:
        return None if result.index == 0 else f"own {result.value} \ud83d"

    bad = ToolResult(ToolCall("b", "f"), 1, Status.FAILED, error=ValueError("boom"))
    texts = render(name, [done("as it is"), bad], content=content)
    assert texts == ["as it is", "own None \ufffd"]


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic"])
def test_own_blocks_are_kept_and_their_texts_are_cut(name: str) -> None:
    """R7: blocks share a result's budget; what is no text is not counted; none is changed."""
    image = {"type": "image", "source": {"data": "A" * 5_000}}
    long = {"type": "text", "text": "x" * 1_000}
    short = {"type": "text", "text": "short \ud83d"}
    blocks = [short, image, long, dict(long)]
    (shown,) = render(name, [done("v")], content=lambda _: blocks, max_chars_per_result=300)
    assert shown[0] == {"type": "text", "text": "short \ufffd"}
    assert shown[1] == image and shown[1] is not image
    assert MARK.search(shown[2]["text"]) and MARK.search(shown[3]["text"])
    assert sum(len(shown[n]["text"]) for n in (0, 2, 3)) <= 300
    assert long["text"] == "x" * 1_000


@each_format
def test_no_blocks_are_the_empty_text(name: str) -> None:
    """Some providers refuse an empty list; there is nothing to show."""
    assert render(name, [done("x")], content=lambda _: []) == [""]


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic"])
def test_texts_deep_in_blocks_can_be_sent(name: str) -> None:
    """Lone surrogates are replaced in lists and tuples, keys and values alike."""
    block = {"type": "x", "in": ({"a\ud83d": ["\udc00", ("\ud83d\ude00",)]},)}
    (shown,) = render(name, [done("v")], content=lambda _: [block])
    assert shown == [{"type": "x", "in": ({"a\ufffd": ["\ufffd", ("\U0001f600",)]},)}]


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic"])
def test_what_is_no_text_is_whole_or_not_there(name: str) -> None:
    """R7: half a picture is none: whatever a block calls its data, only texts are cut."""
    picture = {"type": "image", "text": "A" * 5_000}
    (shown,) = render(name, [done("v")], content=lambda _: [picture], max_chars_total=10)
    assert shown == [picture]


def test_blocks_of_the_sdk_are_taken() -> None:
    """An SDK's block is the dict that it stands for."""

    class Block:
        def to_dict(self) -> dict[str, Any]:
            return {"type": "text", "text": "hi"}

    shown = anthropic.render_results([done("v")], content=lambda _: [Block()])  # type: ignore[list-item]
    assert shown["content"][0]["content"] == [{"type": "text", "text": "hi"}]


def test_error_of_own_words_is_marked_as_data_alone() -> None:
    """A format adds nothing to the caller's words; marks beside the text stay."""
    bad = ToolResult(ToolCall("b", "f"), 0, Status.FAILED, error=ValueError("boom"))
    own = {"content": lambda _: "own"}
    assert openai_chat.render_results([bad], **own)[0]["content"] == "own"
    assert anthropic.render_results([bad], **own)["content"][0]["is_error"] is True
    silent = anthropic.render_results([bad], content=lambda _: [])
    assert silent["content"][0]["content"]


@each_format
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"content": "x"}, TypeError, "content must be a function"),
        ({"spill": 5}, TypeError, "spill must be a function"),
        ({"max_chars_per_result": 1.5}, TypeError, "max_chars_per_result must be a number"),
        ({"max_chars_total": True}, TypeError, "max_chars_total must be a number"),
        ({"max_chars_total": -1}, ValueError, "max_chars_total must be 0 or more"),
    ],
)
def test_options_are_checked_at_once(
    name: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Misuse raises with no result in hand, too."""
    with pytest.raises(error, match=words):
        RENDER[name]([], **options)


@each_format
@pytest.mark.parametrize("wrong", [5, {"type": "text"}, ["text"], [None]])
def test_content_of_the_wrong_kind_raises(name: str, wrong: Any) -> None:
    """A programmer's mistake is no result, and says what was expected."""
    with pytest.raises(TypeError, match="content must return a str, a list of content"):
        render(name, [done("x")], content=lambda _: wrong)


@each_format
def test_mistakes_in_own_functions_are_not_hidden(name: str) -> None:
    """What `content` raises is raised; a `spill` that returns no str is a mistake."""
    with pytest.raises(ZeroDivisionError):
        render(name, [done("x")], content=lambda _: str(1 / 0))
    with pytest.raises(TypeError, match="spill must return a str"):
        render(name, [done("x" * 99)], max_chars_total=9, spill=lambda _: None)


@each_format
@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([done("x"), None], "must hold a ToolResult for each call, not NoneType"),
        (["x"], "must hold a ToolResult for each call, not str"),
        (done("x"), "must be the results of a batch, not ToolResult"),
    ],
)
def test_what_is_no_result_is_refused(name: str, results: Any, words: str) -> None:
    """P1: a snapshot in which calls have no result yet is no history to send."""
    with pytest.raises(TypeError, match=words):
        RENDER[name](results)
