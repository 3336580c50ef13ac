"""Unusable input: status 2, one sentence that says where and what, nothing on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from anyio_toolbatch._cli.detection import detect_format
from anyio_toolbatch._cli.inputs import FORMATS

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOOD_TOOLS = "def greet(name='you'): return f'hello {name}'"


def check_refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("anyio-toolbatch: ")
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["turn.json is empty", "expected an assistant message"]),
        (b" \n ", ["turn.json is empty"]),
        (b'{"a": 1,\n "b": }', ["turn.json, line 2, column 7", "not valid JSON"]),
        (b'{"tool_calls": []} x', ["line 1, column 20"]),
        (b'["\n\xff"]', ["turn.json, line 2, byte 1: 0xff", "expected a JSON file in UTF-8"]),
        ('["ä"]'.encode("utf-16"), ["turn.json, line 1, byte 1", "UTF-8"]),
        (b"[" * 100_000, ["nested too deeply"]),
        (b'{"tool_calls": ' + b"9" * 5000 + b"}", ["turn.json: not usable JSON", "digits"]),
        (b"42", ["expected an assistant message", "found a number"]),
        (b'"text"', ["found a string"]),
        (b"true", ["found a boolean"]),
        (b"null", ["found null"]),
        (b"{}", ["found an empty object"]),
        (b'{"a": 1}', ["an object with the keys 'a'"]),
        (b'{"type": "function", "function": {}}', ["put a single call into a list"]),
        (b'{"messages": []}', ["found an object with the keys 'messages'"]),
        (b'{"messages": [{"role": "user"}]}', ["pass its last assistant message"]),
        (b'[{"role": "user", "content": "hi"}]', ["list of messages"]),
        (b"[1, 2]", ["a list without a call, beginning with a number"]),
        (b'[{"type": "text_call_me"}]', ["beginning with an object of type"]),
        (b'{"error": {"message": "overloaded"}}', ["an error that the provider"]),
        (b'{"object": "response", "output": 5}', ["keys 'object', 'output'"]),
        (b'{"output": [{"type": "tool_use"}]}', ["a call in the format anthropic"]),
        (b'{"role": "user", "parts": [{"text": "hi"}]}', ["role 'user'"]),
        (b'{"choices": []}', ["turn.json: ", "no choices"]),
        (b'{"choices": [{"delta": {}}]}', ["streamed chunk"]),
        (b'{"role": "user", "content": "hi"}', ["role 'user'"]),
        (b'{"role": "assistant", "tool_calls": "no"}', ["tool_calls must be a list"]),
        (b'{"role": "assistant", "content": 5}', ["whose content is a number"]),
        (b'{"role": "assistant", "function_call": {"name": "x"}}', ["deprecated"]),
    ],
)
def test_a_turn_that_is_none(desk: Any, main: Any, content: bytes, words: list[str]) -> None:
    """What is no assistant message is never taken for one without calls."""
    desk.write("turn.json", content)
    desk.write("tools.py", GOOD_TOOLS)
    check_refused(main("run", "turn.json", "--tools", "tools.py"), *words)


def test_a_file_that_cannot_be_read(desk: Any, main: Any) -> None:
    """A missing file and a directory are told apart."""
    desk.write("tools.py", GOOD_TOOLS)
    check_refused(main("run", "no.json", "--tools", "tools.py"), "no.json does not exist")
    check_refused(main("run", ".", "--tools", "tools.py"), ". is a directory")


def test_a_byte_order_mark_is_no_error(desk: Any, main: Any) -> None:
    """Some shells begin a file with one."""
    turn = json.dumps(desk.openai(("greet", {}))).encode("utf-8-sig")
    desk.write("turn.json", turn)
    desk.write("tools.py", GOOD_TOOLS)
    assert main("run", "turn.json", "--tools", "tools.py")[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "bedrock"], ["--format", "bedrock"]),
        (["--timeout", "-1"], ["--timeout", "0 or more", "'-1'"]),
        (["--timeout", "nan"], ["--timeout"]),
        (["--grace", "soon"], ["--grace", "'soon'"]),
        (["--interrupt-after", "-0.1"], ["--interrupt-after"]),
        (["--max-threads", "0"], ["--max-threads", "1 or more"]),
        (["--max-threads", "2.5"], ["--max-threads"]),
        (["--backend", "curio"], ["--backend", "curio"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_options_that_make_no_sense(
    desk: Any, main: Any, options: list[str], words: list[str]
) -> None:
    """An option's fault names the option and what it takes."""
    desk.turn(desk.openai(("greet", {})))
    desk.write("tools.py", GOOD_TOOLS)
    check_refused(main("run", "turn.json", "--tools", "tools.py", *options), *words)


def test_a_command_line_that_is_incomplete(main: Any) -> None:
    """Without a command, a turn or tools there is a sentence, not a traceback."""
    check_refused(main(), "COMMAND")
    check_refused(main("run"), "CALLS.json")
    check_refused(main("run", "turn.json"), "--tools")


def test_a_backend_that_is_not_installed(
    desk: Any, main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what to install."""
    monkeypatch.setitem(sys.modules, "trio", None)
    desk.turn(desk.openai(("greet", {})))
    desk.write("tools.py", GOOD_TOOLS)
    answer = main("run", "turn.json", "--tools", "tools.py", "--backend", "trio")
    check_refused(answer, "--backend trio", "pip install 'anyio-toolbatch[trio]'")


def test_input_is_refused_by_the_real_command_too(desk: Any) -> None:
    """The process itself ends with status 2 and one line."""
    code, out, err = desk.start_raw("run", "no.json", "--tools", "no.py").end()
    check_refused((code, out, err), "no.json does not exist")


def test_a_forced_format_that_is_not_the_messages_own(desk: Any, main: Any) -> None:
    """`--format` cannot turn a message of another provider into one without calls."""
    desk.write("tools.py", GOOD_TOOLS)
    for message, other in [
        (desk.openai(("greet", {})), "gemini"),
        (desk.openai(("greet", {})), "openai_responses"),
        (desk.anthropic(("greet", {})), "mcp"),
        (desk.openai(("greet", {})), "anthropic"),
        (desk.openai(("greet", {}))["tool_calls"], "anthropic"),
        (desk.anthropic(("greet", {})), "openai_chat"),
        (desk.anthropic(("greet", {}))["content"], "openai_chat"),
    ]:
        desk.turn(message)
        answer = main("run", "turn.json", "--tools", "tools.py", "--format", other)
        check_refused(answer, "--format")


def test_a_forced_format_decides_where_nothing_else_does(desk: Any, main: Any) -> None:
    """A broken item that no format can be seen in is still answered, as invalid."""
    desk.turn([{"id": "call_0"}])
    desk.write("tools.py", GOOD_TOOLS)
    answer = main("run", "turn.json", "--tools", "tools.py", "--format", "openai_chat")
    assert answer[0] == 1
    assert json.loads(answer[1])[0]["tool_call_id"] == "call_0"


def provider_messages() -> list[Any]:
    found = []
    for path in sorted(FIXTURES.glob("*/*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        name, message = path.parent.name, None
        for key in ("assistant", "response", "output", "model", "requests"):
            message = message or content.get(key)
        if message is not None:
            found.append(pytest.param(name, message, id=f"{name}-{path.stem}"))
    return found


def all_of(name: str, message: Any) -> list[Any]:
    """Return the message, the whole response and the bare list, as the provider has them."""
    if name == "openai_chat":
        return [message, {"choices": [{"message": message}]}, message["tool_calls"]]
    if name == "openai_responses":
        return [message, {"output": message}]
    if name == "anthropic":
        content = message["content"]
        return [message, content, {"role": "assistant", "content": content}]
    if name == "gemini":
        return [message, {"candidates": [{"content": message}]}, message["parts"]]
    return [message, message[0]]


@pytest.mark.parametrize(("name", "message"), provider_messages())
def test_each_real_payload_is_recognised(name: str, message: Any) -> None:
    """The message, the whole response and the bare list all show their format."""
    for one in all_of(name, message):
        assert detect_format(one) == name
        assert FORMATS[name].parse_calls(one)


@pytest.mark.parametrize(("name", "message"), provider_messages())
def test_each_real_payload_is_answered(name: str, message: Any, desk: Any, main: Any) -> None:
    """P1: a list with one answer per call, or the one message that holds them."""
    desk.turn(message)
    desk.write("tools.py", "def nothing(): pass")
    _, out, _ = main("run", "turn.json", "--tools", "tools.py")
    answers = json.loads(out)
    key = {"anthropic": "content", "gemini": "parts"}.get(name)
    if key is not None:
        (answers,) = [answer[key] for answer in answers]
    assert len(answers) == len(FORMATS[name].parse_calls(message))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # compatible servers: null and extra keys of the other side
        ({"role": "assistant", "content": "x", "tool_calls": None}, None),
        ({"role": "assistant", "content": [{"type": "text", "text": "x"}]}, None),
        ({"content": [{"type": "tool_use"}], "tool_calls": None}, "anthropic"),
        ({"content": [{"type": "thinking"}]}, "anthropic"),
        ({"content": "", "tool_calls": [{"function": {}}], "error": None}, "openai_chat"),
        ([{"type": "text", "text": "x"}, {"type": "tool_use"}], "anthropic"),
        ([{"id": "1", "function": {"name": "f"}}], "openai_chat"),
        ([{"type": "custom", "custom": {}}], "openai_chat"),
        ([], None),
        ({"role": "model", "parts": [{"text": "x"}]}, "gemini"),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {}}, "mcp"),
        ([{"type": "web_search_call"}, {"type": "message"}], "openai_responses"),
        (
            [{"type": "message", "role": "assistant", "content": [{"type": "output_text"}]}],
            "openai_responses",
        ),
    ],
)
def test_detection_by_what_only_one_format_has(message: object, expected: str | None) -> None:
    """A mark of one format decides; the absence of any is not taken for one."""
    assert detect_format(message) == expected
