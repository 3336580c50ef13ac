"""
`repair` on random histories, judged by checkers that know nothing of it.

Each checker states a provider's own rule for a request, in its simplest form.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyio_toolbatch.formats import anthropic, gemini, mcp, openai_chat, openai_responses

LOST = (
    "The result of this tool call was lost. The call may have had side effects; "
    "its outcome is unknown."
)
IDS = ["a", "b", "c", "d"]


# -- the providers' rules ------------------------------------------------------


def check_openai_chat(history: list[Any]) -> None:
    """Right behind an assistant message: one tool message per call, and nowhere else."""
    due: Counter[str] = Counter()
    for message in history:
        if message.get("role") == "tool":
            assert due[message["tool_call_id"]] > 0, "a result without a call"
            due[message["tool_call_id"]] -= 1
            continue
        assert not +due, "a call without a result"
        due = Counter(call["id"] for call in message.get("tool_calls") or ())
    assert not +due, "a call without a result at the end"


def check_anthropic(history: list[Any]) -> None:
    """The user message behind a turn begins with the results of all its calls."""
    due: list[str] = []
    unresolved: set[str] = set()
    resolved = {
        block["tool_use_id"]
        for message in history
        for block in message["content"]
        if not isinstance(block, str) and block["type"] == "web_search_tool_result"
    }
    previous = ""
    for message in history:
        content = message["content"]
        blocks = [{"type": "text"}] if isinstance(content, str) else content
        role = message.get("role", "assistant")
        if role == "assistant":
            assert not due or previous == "assistant", "a call without a result"
            due += [block["id"] for block in blocks if block["type"] == "tool_use"]
            for block in blocks:
                if block["type"] == "server_tool_use" and block["id"] not in resolved:
                    unresolved.add(block["id"])
            assert blocks, "a message without content"
        else:
            kinds = [block["type"] for block in blocks]
            has = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
            assert sorted(has) == sorted(due), "not one result per call"
            assert kinds[: len(has)] == ["tool_result"] * len(has), "results come first"
            assert not unresolved or len(has) == len(kinds), "nothing but results"
            due = []
        previous = role
    assert not due, "a call without a result at the end"


def check_gemini(history: list[Any]) -> None:
    """Behind the model's turn: as many responses as calls, with their ids and names."""
    due: list[tuple[Any, str]] = []
    for content in history:
        if content.get("role", "model") == "model":
            due += [
                (part["functionCall"].get("id"), part["functionCall"]["name"])
                for part in content["parts"]
                if "functionCall" in part
            ]
            continue
        has = [p["functionResponse"] for p in content["parts"] if "functionResponse" in p]
        assert len(has) == len(due), "counts differ"
        for id_, name in due:
            found = [r for r in has if r["name"] == name and r.get("id") in (id_, None)]
            found = found or [r for r in has if r["name"] == name and id_ is None]
            assert found, "a call without a response"
            has.remove(found[0])
        due = []
    assert not due, "a call without a response at the end"


def check_openai_responses(history: list[Any]) -> None:
    """Behind each call one final output; a pending one of an async call before that."""
    for id_ in {item["call_id"] for item in history if "call_id" in item}:
        # Of calls that share an id, any may be the one that an output is for.
        ways: set[tuple[str, ...]] = {()}
        for item in history:
            if item.get("call_id") == id_:
                ways = {way for before in ways for way in after(before, item)}
        settled = [way for way in ways if "async" not in way and "call" not in way]
        assert settled, f"not one output for each call of {id_}"


def after(states: tuple[str, ...], item: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what may have become of the calls that share an id: `states`, one each."""
    if item["type"] == "function_call":
        return [(*states, "async" if item.get("async") else "call")]
    is_pending = item.get("status") == "in_progress"
    to = {"call": "done", "async": "pending" if is_pending else "done"}
    if not is_pending:
        to["pending"] = "done"
    return [
        (*states[:n], to[state], *states[n + 1 :])
        for n, state in enumerate(states)
        if state in to
    ]


def check_mcp(history: list[Any]) -> None:
    """One response to each request that was not cancelled, and behind it."""
    due: Counter[Any] = Counter()
    for message in history:
        method = message.get("method")
        if method == "notifications/cancelled":
            due.pop(message["params"]["requestId"], None)
        elif method:
            due[message["id"]] += 1
        else:
            assert due[message["id"]] > 0, "a response without a request"
            due[message["id"]] -= 1
    assert not +due, "a request without a response"


# -- histories -----------------------------------------------------------------


@st.composite
def turns(draw: st.DrawFn, *, unique: bool = True) -> list[tuple[str, list[str]]]:
    """
    What happened, and was written down with faults: (who, ids), for calls unique or not.

    ``model`` asks, ``results`` answers whatever it likes, ``text`` is the user.
    """
    left = list(IDS)
    steps: list[tuple[str, list[str]]] = []
    for _ in range(draw(st.integers(0, 6))):
        who = draw(st.sampled_from(["model", "results", "results", "text", "both"]))
        if who == "model" and not unique:
            steps.append((who, draw(st.lists(st.sampled_from(IDS[:2]), max_size=3))))
        elif who == "model":
            count = draw(st.integers(0, len(left)))
            steps.append((who, left[:count]))
            left = left[count:]
        else:
            known = [*IDS, "x"] if unique else IDS[:2]
            ids = [] if who == "text" else draw(st.lists(st.sampled_from(known)))
            steps.append((who, ids))
    return steps


def chat_history(steps: list[tuple[str, list[str]]], draw: st.DataObject) -> list[Any]:
    history: list[Any] = []
    for who, ids in steps:
        if who == "model":
            calls = [
                {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for id_ in ids
            ]
            role = {} if calls and draw.draw(st.booleans()) else {"role": "assistant"}
            message = {**role, "content": "x"}
            history.append({**message, "tool_calls": calls} if calls else message)
        else:
            history += [{"role": "tool", "tool_call_id": i, "content": "r"} for i in ids]
            if who != "results":
                history.append({"role": "user", "content": "hi"})
    return history


def anthropic_history(steps: list[tuple[str, list[str]]], draw: st.DataObject) -> list[Any]:
    history: list[Any] = []
    open_: list[str] = []  # tools of the provider's that have no result
    for who, ids in steps:
        if who == "model":
            blocks: list[Any] = [
                {"type": "web_search_tool_result", "tool_use_id": open_.pop()}
                for _ in range(draw.draw(st.integers(0, len(open_))))
            ]
            if ids or draw.draw(st.booleans()):
                blocks.append({"type": "text", "text": "x"})
            blocks += [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            if not blocks or draw.draw(st.booleans()):
                server = {"type": "server_tool_use", "id": f"s{len(history)}"}
                blocks.insert(draw.draw(st.integers(0, len(blocks))), server)
                if draw.draw(st.booleans()):
                    blocks.append(
                        {"type": "web_search_tool_result", "tool_use_id": server["id"]}
                    )
                else:
                    open_.append(server["id"])
            role = {} if ids and draw.draw(st.booleans()) else {"role": "assistant"}
            history.append({**role, "content": blocks})
            continue
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": "r"} for i in ids]
        if who == "both":
            place = draw.draw(st.integers(0, len(blocks)))
            blocks.insert(place, {"type": "text", "text": "hi"})
        if blocks:
            history.append({"role": "user", "content": blocks})
        elif who == "text":
            history.append({"role": "user", "content": "hi"})
    return history


def gemini_history(steps: list[tuple[str, list[str]]], draw: st.DataObject) -> list[Any]:
    with_ids = draw.draw(st.booleans())
    history: list[Any] = []

    def body(id_: str) -> dict[str, Any]:
        return {"name": f"f_{id_}", **({"id": id_} if with_ids else {})}

    for who, ids in steps:
        if who == "model":
            parts: list[Any] = [{"text": "x", "thoughtSignature": "c2ln"}]
            parts += [{"functionCall": body(id_)} for id_ in ids]
            role = {} if ids and draw.draw(st.booleans()) else {"role": "model"}
            history.append({**role, "parts": parts})
            continue
        parts = [{"functionResponse": {**body(id_), "response": {}}} for id_ in ids]
        if who != "results":
            parts.insert(draw.draw(st.integers(0, len(parts))), {"text": "hi"})
        if parts:
            history.append({"role": "user", "parts": parts})
    return history


def responses_history(steps: list[tuple[str, list[str]]], draw: st.DataObject) -> list[Any]:
    history: list[Any] = []
    for who, ids in steps:
        if who == "model":
            history.append({"type": "reasoning", "id": "rs", "summary": []})
            for id_ in ids:
                item = {"type": "function_call", "call_id": id_, "name": "f", "arguments": ""}
                history.append({**item, "async": True} if draw.draw(st.booleans()) else item)
            continue
        for id_ in ids:
            item = {"type": "function_call_output", "call_id": id_, "output": "r"}
            status = draw.draw(st.sampled_from([None, "in_progress", "incomplete"]))
            history.append({**item, "status": status} if status else item)
        if who != "results":
            history.append({"role": "user", "content": "hi"})
    return history


def mcp_history(steps: list[tuple[str, list[str]]], draw: st.DataObject) -> list[Any]:
    history: list[Any] = []
    for who, ids in steps:
        for id_ in ids:
            if who == "model":
                params = {"name": "f"}
                history.append(
                    {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}
                )
            elif draw.draw(st.integers(0, 4)):
                history.append({"jsonrpc": "2.0", "id": id_, "result": {"content": []}})
            else:
                method = "notifications/cancelled"
                history.append(
                    {"jsonrpc": "2.0", "method": method, "params": {"requestId": id_}}
                )
    return history


def chat_items(history: list[Any]) -> list[Any]:
    return history


def inner(key: str) -> Callable[[list[Any]], list[Any]]:
    def items(history: list[Any]) -> list[Any]:
        found: list[Any] = []
        for message in history:
            found += message[key] if isinstance(message[key], list) else [message[key]]
        return found

    return items


@dataclass(frozen=True)
class Provider:
    """A provider's `repair`, its rule, and how its histories are made and taken apart."""

    name: str
    repair: Callable[[Any], list[Any]]
    check: Callable[[list[Any]], None]
    history: Callable[[list[tuple[str, list[str]]], st.DataObject], list[Any]]
    items: Callable[[list[Any]], list[Any]]
    """The smallest things in a history that `repair` may leave out or add."""


PROVIDERS = [
    Provider("openai_chat", openai_chat.repair, check_openai_chat, chat_history, chat_items),
    Provider(
        "openai_responses",
        openai_responses.repair,
        check_openai_responses,
        responses_history,
        chat_items,
    ),
    Provider(
        "anthropic", anthropic.repair, check_anthropic, anthropic_history, inner("content")
    ),
    Provider("gemini", gemini.repair, check_gemini, gemini_history, inner("parts")),
    Provider("mcp", mcp.repair, check_mcp, mcp_history, chat_items),
]

each_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.name)


def is_result(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return (
        item.get("role") == "tool"
        or item.get("type") in {"tool_result", "function_call_output"}
        or "functionResponse" in item
        or "result" in item
    )


@each_provider
@given(steps=turns() | turns(unique=False), data=st.data())
def test_any_history_becomes_valid(
    provider: Provider, steps: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    """A11, A12: valid by the provider's rule, once and for all, and the given one untouched."""
    history = provider.history(steps, data)
    before = copy.deepcopy(history)
    repaired = provider.repair(history)
    provider.check(repaired)
    assert history == before
    again = provider.repair(repaired)
    assert len(again) == len(repaired)
    assert all(a is b for a, b in zip(again, repaired, strict=True))


@each_provider
@given(steps=turns(), data=st.data())
def test_a_valid_history_stays_as_it_is(
    provider: Provider, steps: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    """A history that its provider takes is given back, object by object."""
    history = provider.history(steps, data)
    try:
        provider.check(history)
    except AssertionError:
        return
    repaired = provider.repair(history)
    assert [id(message) for message in repaired] == [id(message) for message in history]


@each_provider
@given(steps=turns(), data=st.data())
def test_only_results_come_and_go(
    provider: Provider, steps: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    """P3: all but results stays, in order; a result that is kept is the one that was given."""
    history = provider.history(steps, data)
    repaired = provider.repair(history)
    given_items, items = provider.items(history), provider.items(repaired)

    def others(found: list[Any]) -> list[Any]:
        texts = [{"type": "text", "text": i} if isinstance(i, str) else i for i in found]
        return [item for item in texts if not is_result(item)]

    # What the provider was to run, and will not: the check above says where.
    gone = [item for item in others(given_items) if item not in others(items)]
    assert {item["type"] for item in gone} <= {"server_tool_use"}
    assert others(items) == [item for item in others(given_items) if item not in gone]
    for item in filter(is_result, items):
        if LOST not in json.dumps(item):
            assert any(item is known for known in given_items)


# -- by hand -------------------------------------------------------------------


def chat_call(id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat_asks(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [chat_call(id_) for id_ in ids],
    }


def chat_tells(id_: str, content: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def test_calls_left_open_by_a_lost_process() -> None:
    """A11, P6: each gets a placeholder that neither denies nor invites anything."""
    done = chat_tells("b", "done")
    assert openai_chat.repair([chat_asks("a", "b", "c"), done]) == [
        chat_asks("a", "b", "c"),
        chat_tells("a", LOST),
        done,
        chat_tells("c", LOST),
    ]
    assert "unknown" in LOST and "again" not in LOST and "not" not in LOST


def test_result_without_a_call_is_dropped() -> None:
    """A12: what recovery made up, or a cut left over, does not fail each later turn."""
    user = {"role": "user", "content": "hi"}
    history = [user, chat_tells("gone"), chat_asks("a"), chat_tells("a"), chat_tells("a")]
    assert openai_chat.repair(history) == [user, chat_asks("a"), chat_tells("a")]


def test_first_of_two_results_is_the_result() -> None:
    """One id, two results: the request would be refused; what the model knows stays."""
    history = [chat_asks("a"), chat_tells("a", "first"), chat_tells("a", "second")]
    assert openai_chat.repair(history) == history[:2]


def test_equal_ids_in_one_message_take_one_result_each() -> None:
    """J5: pairing is by position where ids do not tell."""
    asks = chat_asks("same", "same", "")
    one, two = chat_tells("same", "1"), chat_tells("same", "2")
    assert openai_chat.repair([asks, one, two]) == [asks, one, two, chat_tells("", LOST)]


def test_ids_that_come_again_each_turn_do_not_mix_turns() -> None:
    """A server that counts from 0 in each turn: a result answers its own turn's call."""
    first, second = chat_asks("call_0"), chat_asks("call_0")
    history = [first, second, chat_tells("call_0", "of the second")]
    assert openai_chat.repair(history) == [
        first,
        chat_tells("call_0", LOST),
        second,
        chat_tells("call_0", "of the second"),
    ]
    astray = [first, chat_tells("call_0"), second, chat_tells("call_0"), chat_tells("call_0")]
    assert openai_chat.repair(astray) == astray[:4]
    # A second result of the second call is nothing that the first one has lost.
    twice = [first, second, chat_tells("call_0", "r"), chat_tells("call_0", "double")]
    assert openai_chat.repair(twice) == [
        first,
        chat_tells("call_0", LOST),
        second,
        chat_tells("call_0", "r"),
    ]


def test_result_is_moved_to_its_call_when_something_came_between() -> None:
    """P3: a real result is worth more than a placeholder that says nothing."""
    user = {"role": "user", "content": "hi"}
    history = [chat_asks("a", "b"), chat_tells("a"), user, chat_tells("b")]
    assert openai_chat.repair(history) == [
        chat_asks("a", "b"),
        chat_tells("a"),
        chat_tells("b"),
        user,
    ]


def test_lone_surrogates_in_ids_pair_all_the_same() -> None:
    """What was rendered for an odd id is still that call's result."""
    history = [chat_asks("a\ud83d"), chat_tells("a\ufffd")]
    assert openai_chat.repair(history) == history


def use(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id_, "name": "f", "input": {}} for id_ in ids]
    return {"role": "assistant", "content": blocks}


def result(id_: str, content: str = "r", **other: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **other}


def says(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize("content", ["hi", [TEXT]])
def test_anthropic_results_come_before_the_users_text(content: Any) -> None:
    """One user message behind the calls, results first, the text after them."""
    history = [use("a"), {"role": "user", "content": content}]
    lost = result("a", LOST, is_error=True)
    assert anthropic.repair(history) == [use("a"), says(lost, TEXT)]


def test_anthropic_results_in_two_messages_become_one() -> None:
    """All results in one message, and the other one is gone with nothing left in it."""
    history = [use("a", "b"), says(result("a")), says(result("b")), says(TEXT)]
    merged = says(result("a"), result("b"))
    assert anthropic.repair(history) == [use("a", "b"), merged, says(TEXT)]


def test_anthropic_toolset_is_echoed_by_a_placeholder() -> None:
    """The placeholder is of the kind that the call asks for."""
    asks = use("a")
    asks["content"][0]["toolset_name"] = "browser"
    (_, answer) = anthropic.repair([asks])
    assert answer["content"] == [result("a", LOST, is_error=True, toolset_name="browser")]


SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
THOUGHT = {"type": "thinking", "thinking": "x", "signature": "sig"}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_anthropic_unresolved_server_tool_goes_where_the_user_has_spoken() -> None:
    """Words beside it would be refused, and a second message is the same turn to the provider."""
    (call,) = use("a")["content"]
    answer = says(result("a"), TEXT)
    assert anthropic.repair([model(SEARCH, call), answer]) == [model(call), answer]
    lost = says(result("a", LOST, is_error=True), TEXT)
    assert anthropic.repair([model(SEARCH, call), says(TEXT)]) == [model(call), lost]
    # Nothing is left of the message, or nothing that it may end with.
    assert (
        anthropic.repair([says(TEXT), model(THOUGHT, SEARCH), says(TEXT)]) == [says(TEXT)] * 2
    )


def test_anthropic_server_tool_that_is_still_to_run_stays() -> None:
    """The provider goes on with it: nothing was said since, or its result comes later."""
    (call,) = use("a")["content"]
    results = says(result("a"))
    for history in (
        [says(TEXT), model(SEARCH)],
        [says(TEXT), model(SEARCH, call), results],
        [model(SEARCH, call), results, model(FOUND, TEXT), says(TEXT)],
        [model(SEARCH, FOUND, call), says(result("a"), TEXT)],
    ):
        repaired = anthropic.repair(history)
        assert [id(message) for message in repaired] == [id(message) for message in history]


def test_anthropic_old_server_tool_is_forgotten() -> None:
    """What was once left open says nothing of the turns behind it."""
    (call,) = use("a")["content"]
    history = [
        says(TEXT),
        model(TEXT, SEARCH),
        says(TEXT),
        model(call),
        says(result("a"), TEXT),
    ]
    repaired = anthropic.repair(history)
    assert repaired == [history[0], model(TEXT), *history[2:]]
    assert all(a is b for a, b in zip(repaired[2:], history[2:], strict=True))


def test_anthropic_call_from_a_program_that_is_gone_is_the_models_own() -> None:
    """Its caller is no more: the result is for the model."""
    (call,) = use("a")["content"]
    from_program = {**call, "caller": {"type": "code_execution_20250825", "tool_id": "s"}}
    answer = says(result("a"), TEXT)
    assert anthropic.repair([model(SEARCH, from_program), answer]) == [model(call), answer]


def test_anthropic_results_come_before_a_message_of_another_role() -> None:
    """Right behind the calls, whoever speaks next."""
    system = {"role": "system", "content": "New rules."}
    answer = result("a")
    history = [use("a"), system, says(answer), says(TEXT)]
    assert anthropic.repair(history) == [use("a"), says(answer), system, says(TEXT)]


def test_gemini_calls_without_ids_pair_by_order_and_name() -> None:
    """Older models: the counts must be equal, and the names those of the calls."""
    calls = [{"functionCall": {"name": name}} for name in ("f", "g", "f")]
    asks = {"role": "model", "parts": calls}

    def answer(name: str, **response: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": response}}

    got = answer("f", output=1)
    assert gemini.repair([asks, {"role": "function", "parts": [got]}]) == [
        asks,
        {
            "role": "function",
            "parts": [got, answer("g", error=LOST), answer("f", error=LOST)],
        },
    ]


def test_gemini_of_the_sdks_names_and_signatures() -> None:
    """`function_call` is a call, too; the model's content stays the very object."""
    part = {"function_call": {"name": "f", "id": "1"}, "thought_signature": b"sig"}
    asks = {"role": "model", "parts": [part]}
    repaired = gemini.repair([asks])
    assert repaired[0] is asks
    assert repaired[1]["parts"][0]["functionResponse"]["id"] == "1"


def item(id_: str, **other: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}", **other}


def output(id_: str, text: str = "r", **other: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": text, **other}


def test_responses_async_call_may_be_pending_and_final() -> None:
    """A pending output is enough, and the final one comes once, not before it."""
    asks = item("a", **{"async": True})
    pending = output("a", "started", status="in_progress")
    final = output("a", "done")
    assert openai_responses.repair([asks, pending]) == [asks, pending]
    assert openai_responses.repair([asks, pending, final]) == [asks, pending, final]
    assert openai_responses.repair([asks, final, pending]) == [asks, final]
    assert openai_responses.repair([asks, pending, pending, final, final]) == [
        asks,
        pending,
        final,
    ]


def test_responses_pending_output_answers_one_call() -> None:
    """J5: of two calls that share an id, the other one is lost, and stays closed."""
    waits, asks = item("a", **{"async": True}), item("a")
    pending, lost = output("a", status="in_progress"), output("a", LOST, status="incomplete")
    for calls in ([waits, asks], [asks, waits], [waits, waits]):
        repaired = openai_responses.repair([*calls, pending])
        assert repaired == [*calls, pending, lost]
        assert openai_responses.repair(repaired) == repaired
    assert openai_responses.repair([asks, pending]) == [asks, pending]


def test_responses_own_call_comes_before_what_the_provider_runs() -> None:
    """An output from here is for a call that was ours to answer, if they share an id."""
    theirs = {"type": "shell_call", "call_id": "a", "environment": {"type": "container"}}
    ours = {"type": "shell_call", "call_id": "a", "action": {}}
    answer = {"type": "shell_call_output", "call_id": "a", "output": []}
    assert openai_responses.repair([theirs, ours, answer]) == [theirs, ours, answer]


def test_responses_placeholders_stand_in_the_order_of_the_calls() -> None:
    """P1: also where calls share an id."""
    asks = [item("a"), item("b"), item("a")]
    lost = [output(id_, LOST, status="incomplete") for id_ in "aba"]
    assert openai_responses.repair(asks) == [*asks, *lost]


def test_chat_and_gemini_without_a_role() -> None:
    """What `parse_calls` takes for the model's is the model's here, too."""
    asks = chat_asks("a")
    del asks["role"]
    told = chat_tells("a")
    assert [call.id for call in openai_chat.parse_calls(asks)] == ["a"]
    assert openai_chat.repair([asks, told]) == [asks, told]
    call = {"parts": [{"functionCall": {"name": "f"}}]}
    answer = {"parts": [{"functionResponse": {"name": "f", "response": {}}}]}
    assert len(gemini.parse_calls(call)) == 1
    assert gemini.repair([call, answer]) == [call, answer]


def test_mcp_requests_that_share_an_id() -> None:
    """Each response is for one of them; what was cancelled is over when the id comes again."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "f"}}
    told: dict[str, Any] = {"jsonrpc": "2.0", "id": 1.0, "result": {}}
    cancelled = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 1},
    }
    *rest, lost = mcp.repair([asked, asked, told])
    assert rest == [asked, asked, told] and LOST in json.dumps(lost)
    assert mcp.repair([*rest, lost]) == [*rest, lost]
    assert mcp.repair([asked, cancelled, told]) == [asked, cancelled]
    assert mcp.repair([asked, cancelled, asked, told]) == [asked, cancelled, asked, told]
    # A notification asks for no answer, whatever its method.
    note = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "f"}}
    assert mcp.repair([note]) == [note]


def test_responses_each_kind_of_call_gets_its_kind_of_output() -> None:
    """Client-run built-ins are closed in kind; what the provider runs is left alone."""
    history = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "L", "action": {}},
        {"type": "shell_call", "call_id": "H", "action": {"commands": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "P", "operation": {}},
        {"type": "custom_tool_call", "call_id": "C", "name": "py", "input": "1"},
        {
            "type": "shell_call",
            "call_id": "theirs",
            "environment": {"type": "container_reference"},
        },
        {"type": "tool_search_call", "call_id": None, "execution": "server"},
        {"type": "tool_search_output", "call_id": None, "execution": "server"},
    ]
    repaired = openai_responses.repair(history)
    assert repaired[: len(history)] == history
    assert [(i["type"], i.get("call_id", i.get("id"))) for i in repaired[len(history) :]] == [
        ("local_shell_call_output", "L"),
        ("shell_call_output", "H"),
        ("apply_patch_call_output", "P"),
        ("custom_tool_call_output", "C"),
    ]
    assert all(LOST in json.dumps(i) for i in repaired[len(history) :])


def test_responses_output_behind_a_reference_is_not_judged() -> None:
    """A reference may stand for the call; what cannot be known is left as it is."""
    history = [{"type": "item_reference", "id": "fc_1"}, output("a")]
    assert openai_responses.repair(history) == history
    assert openai_responses.repair(history[1:]) == []


def test_responses_placeholder_stands_before_the_next_message() -> None:
    """It belongs to its turn, behind the outputs that are there."""
    user = {"role": "user", "content": "hi"}
    history = [item("a"), item("b"), output("b"), user, item("c"), output("c")]
    lost = output("a", LOST, status="incomplete")
    assert openai_responses.repair(history) == [*history[:3], lost, *history[3:]]


def test_mcp_cancelled_request_is_not_answered() -> None:
    """A late response to a cancelled request is ignored; others get theirs."""
    fixture = load("mcp", "odd_arguments")
    history = [*fixture["requests"], *fixture["notifications"], *fixture["responses"]]
    assert mcp.repair([*history, *fixture["late_responses"]]) == history
    *_, answer = mcp.repair([*fixture["requests"][:1]])
    assert answer == {
        "jsonrpc": "2.0",
        "id": 21,
        "result": {"content": [{"type": "text", "text": LOST}], "isError": True},
    }


def test_mcp_other_requests_keep_their_responses() -> None:
    """Only requests for tools are answered from here, and notifications are let be."""
    history = [
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": "1", "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}},
        {"jsonrpc": "2.0"},
    ]
    assert mcp.repair(history) == history


def load(provider: str, case: str) -> Any:
    path = Path(__file__).parent.parent / "fixtures" / provider / f"{case}.json"
    return json.loads(path.read_text(encoding="utf-8"))


@each_provider
@pytest.mark.parametrize("wrong", [None, {}, "x", [None], [5], [["x"]]])
def test_what_is_no_history_raises(provider: Provider, wrong: object) -> None:
    """Misuse raises at once and says what was expected."""
    with pytest.raises(TypeError, match=r"messages must be a list of"):
        provider.repair(wrong)


class SdkObject:
    """A message as an SDK has it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def model_dump(self, **options: bool) -> dict[str, Any]:
        return self.data


def test_sdk_objects_stay_what_they_are() -> None:
    """Only what has to change becomes a dict."""
    asks = SdkObject(use("a"))
    text = SdkObject({"role": "user", "content": "hi"})
    repaired = anthropic.repair([asks, text, text])
    assert repaired[0] is asks and repaired[2] is text
    assert [block["type"] for block in repaired[1]["content"]] == ["tool_result", "text"]


def test_calls_that_share_an_id_keep_their_own_results() -> None:
    """P3: a second repair changes nothing, and no real result is lost to a placeholder."""
    history = [
        {"role": "model", "parts": [{"functionCall": {"id": "a", "name": n}} for n in "gf"]},
        {"role": "user", "parts": [{"functionResponse": {"name": "g", "response": {"x": 1}}}]},
    ]
    once = gemini.repair(history)
    assert gemini.repair(once) == once
    found = [part["functionResponse"] for part in once[1]["parts"]]
    assert [(f["name"], f["response"].get("x")) for f in found] == [("g", 1), ("f", None)]
