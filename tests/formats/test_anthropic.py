"""The Anthropic format against payloads of the provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import Reason, Status, ToolCall, ToolResult
from anyio_toolbatch.formats.anthropic import parse_calls, render_results

FIXTURES = Path(__file__).parent.parent / "fixtures" / "anthropic"
CASES = ["odd_arguments", "parallel", "single"]
PLACEHOLDER = (
    "Tool call interrupted by the user before it finished. "
    "It may have had side effects; its outcome is unknown."
)


def load(case: str) -> Any:
    return json.loads((FIXTURES / f"{case}.json").read_text(encoding="utf-8"))


def text_of(block: dict[str, Any]) -> str:
    """Return the text of an expected block, which may have it as a part, or none."""
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def answer(call: ToolCall, index: int, expected: dict[str, Any]) -> ToolResult:
    """Return a result that ought to be rendered as `expected`."""
    text, is_error = text_of(expected), expected.get("is_error", False)
    if text == PLACEHOLDER:
        cut = Reason("user_interrupt")
        return ToolResult(call, index, Status.INTERRUPTED, reason=cut)
    return ToolResult(call, index, Status.COMPLETED, value=text, is_error=is_error)


def tool_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in message["content"] if block["type"] == "tool_result"]


def tool_use(given: object, **other: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": "f", "input": given, **other}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["results", "interrupted_results"])
def test_one_user_message_as_the_provider_takes_it(case: str, key: str) -> None:
    """P1, P3: one block per call, results first, errors marked, toolset echoed."""
    fixture = load(case)
    calls = parse_calls(fixture["response"])
    expected = tool_results(fixture[key])
    pairs = zip(calls, expected, strict=True)
    results = [answer(call, index, block) for index, (call, block) in enumerate(pairs)]
    # Where the fixture has text parts or leaves content out, ours is plain text.
    as_text = [{**block, "content": text_of(block)} for block in expected]
    assert render_results(results) == {"role": "user", "content": as_text}


def test_server_side_items_get_no_client_call() -> None:
    """What the provider runs itself is not answered from here."""
    fixture = load("odd_arguments")
    calls = parse_calls(fixture["response"])
    assert [call.id for call in calls] == fixture["client_calls"]


def test_other_blocks_are_no_calls() -> None:
    """Text, thinking and everything run by the provider is passed over, order kept."""
    kinds = [
        "thinking",
        "mcp_tool_use",
        "mcp_tool_result",
        "code_execution_tool_result",
    ]
    blocks: list[Any] = [{"type": kind, "id": "x", "name": "f"} for kind in kinds]
    blocks[2:2] = [tool_use({"a": 1}), None, "text", 5]
    assert parse_calls(blocks) == [ToolCall("toolu_1", "f", {"a": 1})]


def test_unparsable_streamed_input_is_invalid() -> None:
    """R3: the wrapper of broken JSON is never run as if it were the arguments."""
    call = parse_calls(load("odd_arguments")["response"])[-1]
    assert (call.name, call.arguments) == ("write", {})
    assert call.raw_arguments == '{"path": "a'
    assert call.parse_error is not None


def test_wrapped_text_is_judged_as_any_json_text() -> None:
    """A wrapper around a whole object after all gives that object."""
    (call,) = parse_calls([tool_use({"INVALID_JSON": '{"a": 1}'})])
    assert call == ToolCall("toolu_1", "f", {"a": 1})


@pytest.mark.parametrize(
    "given", [{"INVALID_JSON": "{", "other": 1}, {"INVALID_JSON": {}}, {"invalid": "{"}]
)
def test_only_the_exact_wrapper_is_unwrapped(given: dict[str, Any]) -> None:
    """An argument that happens to have that name is an argument."""
    (call,) = parse_calls([tool_use(given)])
    assert (call.arguments, call.parse_error) == (given, None)


@pytest.mark.parametrize("given", [[1], 5, True, "ls -la", "[1]"])
def test_input_that_is_no_object_is_invalid(given: object) -> None:
    """R1: the call is kept, with what was given and why it can't run."""
    (call,) = parse_calls([tool_use(given)])
    assert (call.arguments, call.raw_arguments) == ({}, given)
    assert call.parse_error is not None


def test_missing_input_means_no_arguments() -> None:
    """A call without input is one without arguments."""
    block = tool_use(None)
    del block["input"]
    assert parse_calls([block]) == [ToolCall("toolu_1", "f", {})]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "assistant"}, "content is missing"),
        ({"role": "assistant", "content": None}, "content is NoneType"),
        ({"role": "user", "content": []}, "role 'user'"),
        (
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [{"id": "a"}],
            },
            "not an OpenAI message",
        ),
        (tool_use({}), "content is missing"),
    ],
)
def test_wrong_shape_is_named(message: object, reason: str) -> None:
    """Misuse raises at once and says what was wrong."""
    with pytest.raises(ValueError, match=reason):
        parse_calls(message)


def test_stored_message_with_plain_text_has_no_calls() -> None:
    """An assistant message of the history may be a plain text."""
    assert parse_calls({"role": "assistant", "content": "Done."}) == []


def block_of(status: Status, *, wire: object = None, **options: Any) -> Any:
    call = ToolCall("toolu_1", "f", wire=wire)
    (block,) = render_results([ToolResult(call, 0, status, **options)])["content"]
    return block


def test_failed_call_is_marked_and_its_text_is_left_alone() -> None:
    """This format has a mark for errors; the text needs none."""
    assert block_of(Status.FAILED, error=ValueError("boom")) == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "ValueError: boom",
        "is_error": True,
    }


def test_good_answer_has_no_error_key() -> None:
    """The mark is there for errors only; an empty answer is an answer."""
    assert block_of(Status.COMPLETED, value="") == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "",
    }


@pytest.mark.parametrize("silence", ["", " \n"])
def test_silent_error_gets_a_text(silence: str) -> None:
    """An error without content would be refused, and the conversation with it."""
    block = block_of(Status.COMPLETED, value=silence, is_error=True)
    assert block["content"] == "The tool reported an error without a message."
    assert block["is_error"] is True


@pytest.mark.parametrize("wire", [None, 5, {}, {"toolset_name": None}, object()])
def test_no_toolset_is_invented(wire: object) -> None:
    """The toolset is echoed only where the call had one, whatever the wire item is."""
    assert "toolset_name" not in block_of(Status.COMPLETED, wire=wire, value="ok")


def test_toolset_is_made_encodable() -> None:
    """What is echoed is text like any other: lone surrogates are replaced."""
    block = block_of(Status.COMPLETED, wire={"toolset_name": "b\ud83d"}, value="ok")
    assert block["toolset_name"] == "b\ufffd"


@pytest.mark.parametrize("text", ['{"path": "/"}', "", "null"])
def test_input_in_a_str_is_never_run(text: str) -> None:
    """R1: the provider's input is an object; JSON within JSON is what nobody has checked."""
    (call,) = parse_calls([tool_use(text)])
    assert (call.arguments, call.raw_arguments) == ({}, text)
    assert call.parse_error == "input must be an object, not a str"


@pytest.mark.parametrize("blocks", [[], [{"type": "text", "text": " "}], [{"type": "text"}]])
def test_blank_texts_among_blocks_are_left_out(blocks: Any) -> None:
    """A text block without text is refused, and so is an error without content."""
    result = ToolResult(ToolCall("toolu_1", "f"), 0, Status.COMPLETED, value="x")
    (block,) = render_results([result], content=lambda _: blocks)["content"]
    assert not block["content"]
    bad = ToolResult(ToolCall("toolu_1", "f"), 0, Status.FAILED, error=OSError("x"))
    (block,) = render_results([bad], content=lambda _: blocks)["content"]
    assert block["content"] == "The tool reported an error without a message."
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    (block,) = render_results([bad], content=lambda _: [*blocks, image])["content"]
    assert block["content"] == [image]
