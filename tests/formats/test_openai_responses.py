"""The OpenAI Responses format against payloads of the provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch import (
    CommandResult,
    LateResult,
    Reason,
    Status,
    ToolCall,
    ToolOutput,
    ToolResult,
)
from anyio_toolbatch._model.results import make_result
from anyio_toolbatch.formats.openai_responses import (
    parse_calls,
    render_late,
    render_results,
)

FIXTURES = Path(__file__).parent.parent / "fixtures" / "openai_responses"
CASES = ["async_tool", "mixed_tool_items", "odd_arguments", "parallel", "single"]
PLACEHOLDER = (
    "Tool call interrupted by the user before it finished. "
    "It may have had side effects; its outcome is unknown."
)


def load(case: str) -> Any:
    return json.loads((FIXTURES / f"{case}.json").read_text(encoding="utf-8"))


def text_of(item: dict[str, Any]) -> str:
    """Return the text of an expected output, wherever its kind has it."""
    given = item.get("output", "")
    if isinstance(given, str):
        return given
    return "".join(part.get("text", "") or part.get("stdout", "") for part in given)


def cut(call: ToolCall, index: int) -> ToolResult:
    return ToolResult(call, index, Status.INTERRUPTED, reason=Reason("user_interrupt"))


def kept(call: ToolCall, index: int = 0) -> ToolResult:
    """The result that a batch gives a call which is left to go on."""
    reason = Reason("user_interrupt")
    return make_result(
        call,
        index,
        Status.INTERRUPTED,
        None,
        None,
        reason,
        True,
        True,
        True,
        None,
        0.0,
        0.0,
        "kept",
    )


def answer(call: ToolCall, index: int, expected: dict[str, Any]) -> ToolResult:
    """Return a result that ought to be rendered as `expected`."""
    if PLACEHOLDER in json.dumps(expected):
        return cut(call, index)
    if expected.get("status") == "in_progress":
        return kept(call, index)
    text = text_of(expected)
    value = None if expected["type"] == "apply_patch_call_output" else text
    return ToolResult(call, index, Status.COMPLETED, value=value)


def as_ours(item: dict[str, Any], call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """Level what the fixtures do now one way, now the other, all of it valid."""
    item = dict(item)
    if isinstance(item.get("output"), list) and "text" in item["output"][0]:
        item["output"] = text_of(item)  # text parts: ours is plain text
    if "caller" in call.wire:
        item["caller"] = call.wire["caller"]
    if result.status is Status.INTERRUPTED and item["type"] == "function_call_output":
        item.setdefault("status", "incomplete")
    return item


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", ["results", "interrupted_results"])
def test_items_as_the_provider_takes_them(case: str, key: str) -> None:
    """P1, P3: one output per call, in order and in kind; what was cut is incomplete."""
    fixture = load(case)
    calls = parse_calls(fixture["output"])
    expected = fixture[key]
    if case == "async_tool" and key == "results":
        expected = [{**expected[0], "output": kept(calls[0]).text}]
    pairs = list(zip(calls, expected, strict=True))
    results = [answer(call, index, item) for index, (call, item) in enumerate(pairs)]
    assert render_results(results) == [
        as_ours(item, call, result)
        for (call, item), result in zip(pairs, results, strict=True)
    ]


def test_calls_of_the_mixed_response() -> None:
    """What the provider runs itself gets no call; the built-in ones have names of ours."""
    calls = parse_calls({"output": load("mixed_tool_items")["output"]})
    assert [call.id for call in calls] == load("mixed_tool_items")["client_calls"]
    assert [call.name for call in calls] == ["local_shell", "shell", "apply_patch", "ping"]
    assert calls[1].arguments == {"action": {"commands": ["ls", "pwd"]}}
    assert calls[2].arguments["operation"]["path"] == "old.txt"


def test_cut_off_arguments_are_never_run() -> None:
    """R3: incomplete is incomplete, also where nothing or something whole has arrived."""
    calls = {call.id: call for call in parse_calls(load("odd_arguments")["output"])}
    assert calls["call_0"].parse_error is None
    assert calls["call_1"].parse_error is not None
    assert calls["call_2"] == ToolCall("call_2", "python", {"input": "1/0"})
    for arguments in ("", "{}"):
        (call,) = parse_calls([function_call(arguments, status="incomplete")])
        assert call.parse_error is not None and "before the arguments" in call.parse_error


def test_custom_call_at_the_end_of_a_cut_off_response_is_never_run() -> None:
    """Free text has no end of its own: only the response tells that it was cut."""
    item = {"type": "custom_tool_call", "call_id": "c", "name": "py", "input": "rm -r /tm"}
    (call,) = parse_calls({"status": "incomplete", "output": [item]})
    assert call.parse_error is not None
    (call,) = parse_calls({"status": "completed", "output": [item]})
    assert call.parse_error is None


def function_call(arguments: object, **other: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": "a",
        "name": "f",
        "arguments": arguments,
        **other,
    }


@pytest.mark.parametrize(
    "item",
    [
        {"type": "shell_call", "call_id": "a", "environment": {"type": "container_reference"}},
        {"type": "tool_search_call", "call_id": "a", "execution": "server"},
        {"type": "mcp_call", "id": "a", "name": "f", "arguments": "{}"},
        {"type": "code_interpreter_call", "id": "a"},
    ],
)
def test_what_the_provider_runs_is_no_call(item: dict[str, Any]) -> None:
    """An answer from here would be one without a call."""
    assert parse_calls([item]) == []


def test_what_is_answered_in_the_same_response_is_no_call() -> None:
    """The provider's own output stands beside the call that it has run."""
    done = {"type": "shell_call_output", "call_id": "a", "output": []}
    assert parse_calls([{"type": "shell_call", "call_id": "a", "action": {}}, done]) == []


def rendered(call: ToolCall, status: Status = Status.COMPLETED, **options: Any) -> Any:
    (item,) = render_results([ToolResult(call, 0, status, **options)])
    return item


def built_in(kind: str, **fields: Any) -> ToolCall:
    (call,) = parse_calls([{"type": kind, "call_id": "c", **fields}])
    return call


def exit_of(code: int) -> dict[str, Any]:
    return {"type": "exit", "exit_code": code}


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("text", [{"stdout": "text", "stderr": "", "outcome": exit_of(0)}]),
        (
            CommandResult(2, None, "out", "err", False),
            [{"stdout": "out", "stderr": "err", "outcome": exit_of(2)}],
        ),
        (
            CommandResult(None, "SIGKILL", "out", "", False),
            [{"stdout": "out", "stderr": "", "outcome": exit_of(137)}],
        ),
        (
            [
                {"stdout": "1", "stderr": "", "returncode": 0},
                {"stdout": "2", "stderr": "", "outcome": {"type": "timeout"}},
            ],
            [
                {"stdout": "1", "stderr": "", "outcome": exit_of(0)},
                {"stdout": "2", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        ),
    ],
)
def test_shell_output_from_what_a_tool_returns(value: Any, parts: list[Any]) -> None:
    """A text, what `run_command` gives, or one part per command."""
    assert rendered(built_in("shell_call", action={}), value=value)["output"] == parts


def test_shell_that_failed_has_the_error_on_stderr() -> None:
    """P6: an error is no output, and no success."""
    call = built_in("shell_call", action={})
    item = rendered(call, Status.FAILED, error=OSError("no shell"))
    assert item["output"] == [
        {"stdout": "", "stderr": "OSError: no shell", "outcome": exit_of(1)}
    ]


def test_shell_output_keeps_to_the_length_that_the_model_asked_for() -> None:
    """The limit is echoed, as the provider wants it, and kept."""
    call = built_in("shell_call", action={"commands": ["yes"], "max_output_length": 100})
    item = rendered(call, value=CommandResult(3, None, "y" * 1000, "", False))
    (part,) = item["output"]
    assert item["max_output_length"] == 100
    assert len(part["stdout"]) <= 100 and "characters left out" in part["stdout"]
    assert part["outcome"] == exit_of(3)


def test_patch_that_failed_says_so() -> None:
    """The status is the mark; the text says why."""
    call = built_in("apply_patch_call", operation={"type": "delete_file", "path": "x"})
    item = rendered(call, Status.FAILED, error=OSError("no such file"))
    assert (item["status"], item["output"]) == ("failed", "OSError: no such file")
    item = rendered(call, value="deleted", is_error=True)
    assert (item["status"], item["output"]) == ("failed", "deleted")
    item = rendered(call, value="deleted")
    assert (item["status"], item["output"]) == ("completed", "deleted")


def test_computer_gets_its_screenshot() -> None:
    """A URL, or the provider's own object, with what somebody has acknowledged."""
    call = built_in("computer_call", actions=[{"type": "wait"}], pending_safety_checks=[])
    assert call.arguments == {"actions": [{"type": "wait"}], "pending_safety_checks": []}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}
    checks = [{"id": "s1", "code": "malicious", "message": "hm"}]
    assert rendered(call, value=shot["image_url"])["output"] == shot
    assert "acknowledged_safety_checks" not in rendered(call, value={"output": shot})
    item = rendered(call, value={"output": shot, "acknowledged_safety_checks": checks})
    assert (item["output"], item["acknowledged_safety_checks"]) == (shot, checks)
    item = cut(call, 0)
    (item,) = render_results([item])
    assert item["status"] == "incomplete"
    assert item["output"]["image_url"].startswith("data:image/png")


def test_client_run_tool_search() -> None:
    """The tools that were found, or none."""
    call = built_in("tool_search_call", execution="client", arguments={"goal": "x"})
    assert (call.name, call.arguments) == ("tool_search", {"goal": "x"})
    found = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    item = rendered(call, value=[found])
    assert (item["status"], item["tools"], item["execution"]) == (
        "completed",
        [found],
        "client",
    )
    item = rendered(call, Status.FAILED, error=OSError("x"))
    assert (item["status"], item["tools"]) == ("incomplete", [])


def test_own_blocks_for_the_built_in_tools() -> None:
    """Where a text has a place, the blocks' texts are joined; else they are taken as they are."""

    def own(kind: str, blocks: Any, **fields: Any) -> Any:
        call = built_in(kind, **fields)
        (item,) = render_results([cut(call, 0)], content=lambda _: blocks)
        return item["tools"] if kind == "tool_search_call" else item["output"]

    parts = [{"stdout": "x", "stderr": "", "outcome": exit_of(0)}]
    shot = {"type": "computer_screenshot", "image_url": "https://x/y.png"}
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert own("shell_call", parts, action={}) == parts
    assert own("local_shell_call", texts, action={}) == "ab"
    assert own("apply_patch_call", texts, operation={}) == "ab"
    assert own("computer_call", [shot], action={}) == shot
    assert own("computer_call", shot["image_url"], action={}) == shot
    assert own("computer_call", [], action={})["image_url"].startswith("data:")
    assert own("tool_search_call", texts, execution="client") == texts


def test_call_made_by_hand_is_a_functions() -> None:
    """Without a provider's item the usual kind of output is given."""
    assert rendered(ToolCall("a", "f"), Status.FAILED, error=ValueError("boom")) == {
        "type": "function_call_output",
        "call_id": "a",
        "output": "Error: ValueError: boom",
    }


def test_caller_is_echoed() -> None:
    """A program that called the tool must get the answer."""
    caller = {"type": "program", "caller_id": "prog_1"}
    (call,) = parse_calls([function_call("{}", caller=caller)])
    assert rendered(call, value="x")["caller"] == caller


def test_shell_output_is_cut_stream_by_stream() -> None:
    """R7: what was an error stays one, each command has its ending, and small ones are whole."""
    call = built_in("shell_call", action={})
    value = [
        CommandResult(1, None, "o" * 5_000, "no such file", False),
        CommandResult(0, None, "2", "", False),
    ]
    result = ToolResult(call, 0, Status.COMPLETED, value=value)
    (item,) = render_results([result], max_chars_per_result=1_000)
    first, second = item["output"]
    assert "characters left out" in first["stdout"] and len(first["stdout"]) < 1_000
    assert (first["stderr"], first["outcome"]) == ("no such file", exit_of(1))
    assert second == {"stdout": "2", "stderr": "", "outcome": exit_of(0)}
    (item,) = render_results([result])
    assert item["output"][0]["stdout"] == "o" * 5_000


def test_own_texts_of_a_shell_are_its_output() -> None:
    """A shell's output has no content blocks: their texts are what it has written."""
    call = built_in("shell_call", action={})
    (item,) = render_results(
        [ToolResult(call, 0, Status.COMPLETED, value="x")],
        content=lambda _: [{"type": "input_text", "text": "hi"}],
    )
    assert item["output"] == [{"stdout": "hi", "stderr": "", "outcome": exit_of(0)}]
    ended = ToolResult(call, 0, Status.COMPLETED, value=CommandResult(3, None, "x", "", False))
    (item,) = render_results([ended], content=lambda _: "own")
    assert item["output"] == [{"stdout": "own", "stderr": "", "outcome": exit_of(3)}]


@pytest.mark.parametrize("own", [True, False])
def test_screenshots_take_nothing_from_the_budget(own: bool) -> None:
    """R7: a picture is no text: it is not counted, not cut, and not stored elsewhere."""
    url = "data:image/png;base64," + "A" * 5_000
    shot = ToolResult(built_in("computer_call", action={}), 0, Status.COMPLETED, value=url)
    text = ToolResult(ToolCall("a", "f"), 1, Status.COMPLETED, value="x" * 1_000)
    spilled: list[ToolResult] = []

    def spill(result: ToolResult) -> str:
        spilled.append(result)
        return "there"

    first, second = render_results(
        [shot, text],
        content=(lambda result: result.value) if own else None,
        max_chars_per_result=1_000,
        max_chars_total=1_000,
        spill=spill,
    )
    assert first["output"]["image_url"] == url
    assert second["output"] == "x" * 1_000
    assert spilled == []


def test_found_tools_are_not_counted() -> None:
    """R7: definitions are no text either; own words that are none show none."""
    found = [{"type": "function", "name": "f" * 500, "parameters": {}, "strict": False}]
    call = built_in("tool_search_call", execution="client")
    result = ToolResult(call, 0, Status.COMPLETED, value=found)
    (item,) = render_results([result], max_chars_total=10)
    assert item["tools"] == found
    (item,) = render_results([result], content=lambda _: [])
    assert (item["tools"], item["status"]) == ([], "completed")


@pytest.mark.parametrize("wire", [{"type": []}, {"type": {}}, {"type": None}])
def test_odd_wire_is_a_functions(wire: object) -> None:
    """Whatever a caller has put there, the result is rendered."""
    assert rendered(ToolCall("a", "f", wire=wire), value="x")["type"] == "function_call_output"


# -- pending, and late -----------------------------------------------------------


def async_call(key: str = "async", **other: Any) -> ToolCall:
    (call,) = parse_calls([function_call("{}", **{key: True}, **other)])
    return call


def late(
    call: ToolCall, value: Any = "done", error: BaseException | None = None
) -> LateResult:
    return LateResult("batch", call, 0, value, error, 1.0)


@pytest.mark.parametrize("key", ["async", "async_"])
def test_call_that_goes_on_is_pending_and_answered_later(key: str) -> None:
    """P6: a pending placeholder now, the real output later under the same id, once."""
    call = async_call(key)
    sent = render_results([kept(call)])
    assert sent[0]["status"] == "in_progress"
    assert "goes on in the background" in sent[0]["output"]
    final = render_late(late(call), sent)
    assert final == [{"type": "function_call_output", "call_id": "a", "output": "done"}]
    assert render_late(late(call), [*sent, *final]) == []


def test_late_error_is_told_as_one() -> None:
    """However it ended: an error of the tool, or an answer that it marks as one."""
    call = async_call()
    sent = render_results([kept(call)])
    (item,) = render_late(late(call, None, ValueError("boom")), sent)
    assert item["output"] == "Error: ValueError: boom"
    (item,) = render_late(late(call, ToolOutput("bad", is_error=True)), sent)
    assert item["output"] == "Error: bad"
    (item,) = render_late(late(call), sent, content=lambda result: f"own {result.value}")
    assert item["output"] == "own done"


def test_late_result_of_a_call_with_a_final_output_is_not_rendered() -> None:
    """P5: never both kinds of final, be the call async or not, kept or not."""
    call = async_call()
    assert render_late(late(call), render_results([cut(call, 0)])) == []
    assert render_late(late(call), []) == []
    plain = parse_calls([function_call("{}")])[0]
    sent = render_results([kept(plain)])
    assert sent[0]["status"] == "incomplete"
    assert render_late(late(plain), sent) == []
    assert render_late(late(ToolCall("a", "f")), sent) == []
    assert rendered(ToolCall("a", "f", wire=5), value="x")["output"] == "x"
    (item,) = render_results([kept(ToolCall("a", "f", wire=5))])
    assert item["status"] == "incomplete"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"output": None}, "keys 'output'"),
        ([{"role": "assistant", "content": "hi"}], "list of messages"),
        (
            [function_call("{}"), {"type": "message", "role": "user", "content": []}],
            "messages",
        ),
        ({"choices": []}, "keys 'choices'"),
    ],
)
def test_wrong_shape_is_named(message: object, reason: str) -> None:
    """Misuse raises at once and says what was wrong."""
    with pytest.raises(ValueError, match=reason):
        parse_calls(message)
