"""Cases A: a call is left with no result, and each later request is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import (
    BatchNotSettledError,
    BatchSettled,
    CallSettled,
    Event,
    LateResult,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import (
    DeafTool,
    GatedTool,
    PromiseObserver,
    ScriptedTool,
    give,
    sleep,
)

LIVENESS = 20.0  # seconds where milliseconds are meant
SCRIPTS = Path(__file__).parent / "scripts"

DONE = ("completed", None, True, False)
CUT = ("interrupted", "user_interrupt", True, True)
NOT_STARTED = ("interrupted", "user_interrupt", False, False)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


def shape(results: list[ToolResult]) -> list[tuple[str, str | None, bool, bool]]:
    return [
        (r.status.value, r.reason.kind if r.reason else None, r.started, r.detached)
        for r in results
    ]


@contextlib.contextmanager
def letting_go(*tools: GatedTool | DeafTool) -> Iterator[None]:
    """Whatever becomes of the test, let go of its tools: a deaf one would hold the loop's end."""
    try:
        yield
    finally:
        for tool in tools:
            if isinstance(tool, GatedTool):
                tool.open()
            else:
                tool.release()


class OpenAIChatSession:
    """A conversation with a provider that refuses what the real one refuses."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []

    def model_asks_for(self, *names: str) -> list[ToolCall]:
        turn = len(self.history)
        items = [
            {
                "id": f"call_{turn}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": "{}"},
            }
            for i, name in enumerate(names)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": items}
        self.history.append(message)
        return openai_chat.parse_calls(message)

    def answer(self, results: list[ToolResult]) -> None:
        self.history.extend(openai_chat.render_results(results))

    def user_says(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})
        self.check()

    def check(self) -> None:
        messages = json.loads(json.dumps(self.history))
        while messages:
            message = messages.pop(0)
            assert message["role"] != "tool", "a result without a call"
            for item in message.get("tool_calls") or ():
                answer = messages.pop(0)
                assert answer["role"] == "tool", f"no output for {item['id']}"
                assert answer["tool_call_id"] == item["id"]
                assert answer["content"].strip()


class AnthropicSession(OpenAIChatSession):
    """The same with the other provider's rules."""

    def model_asks_for(self, *names: str) -> list[ToolCall]:
        turn = len(self.history)
        blocks = [
            {"type": "tool_use", "id": f"toolu_{turn}_{i}", "name": name, "input": {}}
            for i, name in enumerate(names)
        ]
        message = {"role": "assistant", "content": blocks}
        self.history.append(message)
        return anthropic.parse_calls(message)

    def answer(self, results: list[ToolResult]) -> None:
        self.history.append(anthropic.render_results(results))

    def user_says(self, text: str) -> None:
        # Behind the results, in the same message: two user messages in a row are refused.
        self.history[-1]["content"].append({"type": "text", "text": text})
        self.check()

    def check(self) -> None:
        asked: list[str] = []
        for message in json.loads(json.dumps(self.history)):
            blocks = message["content"]
            answers = [b for b in blocks if b["type"] == "tool_result"]
            assert [b["tool_use_id"] for b in answers] == asked
            assert blocks[: len(answers)] == answers, "results come first"
            assert all(b["content"].strip() for b in answers)
            asked = [b["id"] for b in blocks if b["type"] == "tool_use"]
        assert not asked


@pytest.fixture(params=[OpenAIChatSession, AnthropicSession], ids=["openai_chat", "anthropic"])
def session(request: pytest.FixtureRequest) -> OpenAIChatSession:
    return request.param()


async def test_a1_next_request_after_an_interrupt_is_well_formed(
    session: OpenAIChatSession, promises: PromiseObserver
) -> None:
    """A1, P1: the placeholder of the cut call pairs it, so the next request is accepted."""
    gate = GatedTool("search")
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], observers=[promises]) as runner:
            async with runner.open_batch(session.model_asks_for("search")) as batch:
                await gate.wait_started()
                batch.interrupt()
            assert shape(batch.results) == [CUT]
            session.answer(batch.results)
            session.user_says("What have you found so far?")
            gate.open()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_a2_every_id_has_a_result_also_of_an_unknown_tool(
    session: OpenAIChatSession, promises: PromiseObserver
) -> None:
    """A2, P1: two run, one waits, one has no tool any more: four results, in call order."""
    gate = GatedTool()
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], max_threads=2, observers=[promises]) as runner:
            asked = session.model_asks_for("gated", "gone", "gated", "gated")
            async with runner.open_batch(asked) as batch:
                await gate.wait_started(2)
                batch.interrupt()
            assert [r.call.id for r in batch.results] == [call.id for call in asked]
            assert [r.index for r in batch.results] == [0, 1, 2, 3]
            assert shape(batch.results) == [
                CUT,
                ("invalid", "unknown_tool", False, False),
                CUT,
                NOT_STARTED,
            ]
            assert "gone" in batch.results[1].text
            session.answer(batch.results)
            session.user_says("go on")
            gate.open()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


async def test_a3_no_interrupt_leaves_a_broken_history(session: OpenAIChatSession) -> None:
    """A3, P1: cut at any stage, turn after turn, a list is whole or there is none."""
    gate = GatedTool()
    quick = ScriptedTool(give("real"), name="quick")
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, quick.tool]) as runner:
            for stage in ("before the start", "while running", "after the first result"):
                asked = session.model_asks_for("quick", "gated", "nowhere")
                started = gate.started
                async with runner.open_batch() as batch:
                    if stage == "before the start":
                        batch.interrupt()
                    handles = [batch.submit(call) for call in asked]
                    if stage != "before the start":
                        await gate.wait_started(started + 1)
                    if stage == "after the first result":
                        await handles[0].wait()
                    with pytest.raises(BatchNotSettledError):
                        batch.results
                    assert len(batch.snapshot()) == len(asked)
                    batch.interrupt()
                assert [r.call for r in batch.results] == asked
                session.answer(batch.results)
                session.user_says(f"interrupted {stage}; please go on")
            assert batch.results[0].value == "real"
            gate.open()
            assert await runner.wait_detached(LIVENESS)


@pytest.mark.parametrize("kind", ["blocking", "async", "deaf"])
async def test_a4_session_goes_on_after_a_stop_in_mid_tool(
    session: OpenAIChatSession, promises: PromiseObserver, kind: str
) -> None:
    """A4, P1, P2: a lone call is cut to one result, and the same runner serves the next turn."""
    gate = GatedTool("slow")
    deaf = DeafTool("slow")
    tools = {
        "blocking": gate.tool,
        "async": ScriptedTool(sleep(600), name="slow").tool,
        "deaf": deaf.tool,
    }
    quick = ScriptedTool(give("an answer"), name="quick")
    with letting_go(gate, deaf), anyio.fail_after(LIVENESS):
        async with ToolRunner([tools[kind], quick.tool], observers=[promises]) as runner:
            async with runner.open_batch(session.model_asks_for("slow")) as batch:
                if kind == "blocking":
                    await gate.wait_started()
                else:
                    await anyio.wait_all_tasks_blocked()
                batch.interrupt("stop")
            assert shape(batch.results) == [CUT]
            assert gate.ended == deaf.ended == 0
            session.answer(batch.results)
            session.user_says("try something quicker")
            results = await runner.run(session.model_asks_for("quick"))
            assert [r.value for r in results] == ["an answer"]
            session.answer(results)
            session.user_says("thanks")
            gate.open()
            deaf.release()
            assert await runner.wait_detached(LIVENESS)


async def test_a6_two_finished_and_one_placeholder(
    session: OpenAIChatSession, promises: PromiseObserver
) -> None:
    """A6, P1, P3: a redirect after two of three keeps both results and closes the third."""
    gate = GatedTool()
    quick = GatedTool("quick", value="real")
    quick.open()
    with letting_go(gate, quick), anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool, quick.tool], observers=[promises]) as runner:
            asked = session.model_asks_for("quick", "gated", "quick")
            async with runner.open_batch() as batch:
                first, _, third = [batch.submit(call) for call in asked]
                await gate.wait_started()
                await first.wait()
                await third.wait()
                batch.interrupt("do something else")
            assert shape(batch.results) == [DONE, CUT, DONE]
            assert [r.value for r in batch.results] == ["real", None, "real"]
            session.answer(batch.results)
            session.user_says("do something else")
            gate.open()
            assert await runner.wait_detached(LIVENESS)
        promises.check(batch.id, batch.results)


@pytest.mark.parametrize(
    ("kind", "cap"),
    [
        ("blocking", "max_threads"),
        ("blocking", "max_concurrency"),
        ("async", "max_concurrency"),
    ],
)
async def test_a7_calls_that_never_ran_keep_their_place(
    session: OpenAIChatSession, promises: PromiseObserver, kind: str, cap: str
) -> None:
    """A7, P1, P6: 5 calls, 2 at once: five results, and three say that they never started."""
    gate = GatedTool("slow")
    scripted = ScriptedTool(sleep(600), name="slow")
    tool = gate.tool if kind == "blocking" else scripted.tool
    limits: dict[str, Any] = {cap: 2}
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises], **limits) as runner:
            async with runner.open_batch(session.model_asks_for(*["slow"] * 5)) as batch:
                if kind == "blocking":
                    await gate.wait_started(2)
                else:
                    await anyio.wait_all_tasks_blocked()
                statistics = runner.statistics()
                assert (statistics.running, statistics.waiting) == (2, 3)
                batch.interrupt()
            assert shape(batch.results) == [CUT, CUT, *[NOT_STARTED] * 3]
            for result in batch.results[2:]:
                assert "not started" in result.text
                assert result.effects == "none"
            for result in batch.results[:2]:
                assert "not started" not in result.text
                assert result.effects == "unknown"
            session.answer(batch.results)
            session.user_says("go on")
            gate.open()
            assert await runner.wait_detached(LIVENESS)
    assert gate.started + scripted.started == 2


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_a8_break_reaches_the_caller_and_the_results_can_be_had(backend: str) -> None:
    """A8, P1, P8: SIGINT in a blocking tool comes out; the batch has every result."""
    script = SCRIPTS / "a8_break_in_a_blocking_tool.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, backend],
        capture_output=True,
        text=True,
        timeout=LIVENESS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "came out": "KeyboardInterrupt",
        "results": [
            ["1", "completed", None, True],
            ["2", "interrupted", "caller_cancelled", True],
            ["3", "interrupted", "caller_cancelled", False],
        ],
    }


@pytest.mark.parametrize("way", ["run", "calls", "submit"])
async def test_a8_break_while_calls_are_taken_in_leaves_no_batch_open(
    promises: PromiseObserver, way: str
) -> None:
    """A8, P8, P10: a break in the middle of opening comes out, and nothing stays behind."""

    def first() -> str:
        return "not to be run"

    def second() -> None:
        raise AssertionError

    def break_comes(call: ToolCall) -> None:
        # A signal handler may raise at any line; this one can be met on purpose.
        raise KeyboardInterrupt

    tools = [Tool(first), Tool(second, validate=break_comes)]
    asked = calls("first", "second", "first")
    batch: ToolBatch | None = None
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(tools, max_concurrency=1, observers=[promises]) as runner:
            with pytest.raises(KeyboardInterrupt):
                if way == "run":
                    await runner.run(asked)
                elif way == "calls":
                    async with runner.open_batch(asked) as batch:
                        pass
                else:
                    async with runner.open_batch() as batch:
                        for call in asked[1:]:
                            batch.submit(call)
            if way == "submit":
                assert batch is not None
                assert shape(batch.results) == [
                    ("interrupted", "caller_cancelled", False, False)
                ]
            assert runner.statistics().open_batches == 0
            assert runner.interrupt() == 0


async def test_a9_cancellation_aimed_at_a_tool_is_that_calls_failure(
    anyio_backend_name: str, promises: PromiseObserver
) -> None:
    """A9, P1, P8: a tool cancelled from outside the batch has an error result; no more happens."""
    inner = anyio.CancelScope()
    tasks: list[asyncio.Task[Any]] = []

    async def escaping() -> None:
        """Carry the cancellation of a scope out of that scope."""
        foreign: BaseException | None = None
        with inner:
            try:
                await anyio.sleep(600)
            except anyio.get_cancelled_exc_class() as exc:
                foreign = exc
        assert foreign is not None
        raise foreign

    async def task_of_its_own() -> None:
        if anyio_backend_name == "asyncio":
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
        await release.wait()

    release = anyio.Event()
    with anyio.fail_after(LIVENESS):
        async with ToolRunner([escaping, task_of_its_own], observers=[promises]) as runner:
            asked = calls("escaping", "task_of_its_own", "task_of_its_own")
            async with runner.open_batch(asked) as batch:
                await anyio.wait_all_tasks_blocked()
                inner.cancel()
                for task in tasks[:1]:
                    task.cancel()
                await anyio.wait_all_tasks_blocked()
                snapshot = batch.snapshot()
                assert snapshot[0] is not None and snapshot[2] is None
                release.set()
            results = batch.results
            assert not batch.interrupted
            failed = results[:2] if anyio_backend_name == "asyncio" else results[:1]
            for result in failed:
                assert result.status is Status.FAILED
                assert result.is_error and result.started
                assert isinstance(result.error, anyio.get_cancelled_exc_class())
                assert result.effects == "unknown"
            assert all(r.status is Status.COMPLETED for r in results[len(failed) :])


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_a9_cancellation_of_the_caller_is_passed_on(
    promises: PromiseObserver, kind: str
) -> None:
    """A9, P8: the caller's own cancellation goes on, and the results are there all the same."""
    gate = GatedTool("slow")
    tool = gate.tool if kind == "blocking" else ScriptedTool(sleep(600), name="slow").tool
    seen: list[str] = []
    opened: list[ToolBatch] = []
    with letting_go(gate), anyio.fail_after(LIVENESS):
        async with ToolRunner([tool], observers=[promises]) as runner:
            with anyio.CancelScope() as scope:
                try:
                    async with runner.open_batch(calls("slow", "slow")) as batch:
                        opened.append(batch)
                        if kind == "blocking":
                            await gate.wait_started(2)
                        else:
                            await anyio.wait_all_tasks_blocked()
                        scope.cancel()
                    seen.append("eaten")
                except anyio.get_cancelled_exc_class():
                    seen.append("passed on")
                    raise
            assert scope.cancelled_caught
            assert seen == ["passed on"]
            cut = ("interrupted", "caller_cancelled", True, True)
            assert shape(opened[0].results) == [cut, cut]
            gate.open()
            assert await runner.wait_detached(LIVENESS)


async def test_a11_recorded_calls_whose_batch_is_gone_are_closed(
    promises: PromiseObserver,
) -> None:
    """A11, P6: what was stored as running gets a placeholder; what had settled keeps its own."""
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{n}", "type": "function", "function": {"name": "tool"}}
            for n in range(2)
        ],
    }
    history: list[Any] = [asked]
    quick, slow = GatedTool("tool", value="stored"), GatedTool("tool")
    first, second = openai_chat.parse_calls(asked)
    stored = anyio.Event()

    def store(event: Event) -> None:
        # The host persists each result as it comes, as DESIGN §4.2 has it.
        if isinstance(event, CallSettled) and event.result.status is Status.COMPLETED:
            history.extend(openai_chat.render_results([event.result]))
            stored.set()

    with letting_go(quick, slow), anyio.fail_after(LIVENESS):
        async with ToolRunner(observers=[promises, store]) as runner:
            calls_ = [
                ToolCall(first.id, "tool", tool=quick.tool),
                ToolCall(second.id, "tool", tool=slow.tool),
            ]
            async with runner.open_batch(calls_) as batch:
                await slow.wait_started()
                quick.open()
                await stored.wait()
                kept = list(history)  # the process is gone here, and the batch with it
                batch.interrupt()
            slow.open()
    repaired = openai_chat.repair(kept)
    assert [message is old for message, old in zip(repaired, kept, strict=False)] == [True] * 2
    assert repaired[2]["tool_call_id"] == "call_1"
    assert "may have had side effects" in repaired[2]["content"]
    assert openai_chat.repair(repaired) == repaired


def test_a12_recovered_result_whose_call_cannot_be_found_is_dropped() -> None:
    """A12: it would fail each later turn; the call that was stored is closed all the same."""
    stored = {"type": "tool_use", "id": "toolu_1", "name": "tool", "input": {}}
    made_up = {"type": "tool_result", "tool_use_id": "toolu_0", "content": "recovered"}
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [stored]},
        {"role": "user", "content": [made_up]},
    ]
    *untouched, answer = anthropic.repair(history)
    assert untouched == history[:2]
    assert [block["tool_use_id"] for block in answer["content"]] == ["toolu_1"]


async def test_a12_results_are_made_for_calls_of_this_batch_only(
    promises: PromiseObserver,
) -> None:
    """A12, P1, P5: a call of an earlier turn that ends now makes no result in this one."""
    old = GatedTool("tool", value="old")
    new = GatedTool("tool", value="new")
    late: list[LateResult] = []
    with letting_go(old, new), anyio.fail_after(LIVENESS):
        async with ToolRunner(observers=[promises], on_late=late.append) as runner:
            # One id in both turns, as some servers have it: ids are labels only.
            async with runner.open_batch([ToolCall("call_0", "tool", tool=old.tool)]) as first:
                await old.wait_started()
                first.interrupt()
            asked = [ToolCall("call_0", "tool", tool=new.tool) for _ in range(2)]
            async with runner.open_batch(asked) as second:
                await new.wait_started(2)
                old.open()
                assert await runner.wait_detached(LIVENESS)
                assert second.snapshot() == [None, None]
                new.open()
            assert all(r.call is call for r, call in zip(second.results, asked, strict=True))
            assert [r.value for r in second.results] == ["new", "new"]
            assert shape(first.results) == [CUT]
            assert [(item.batch_id, item.value) for item in late] == [(first.id, "old")]


@pytest.mark.parametrize("kind", ["blocking", "async"])
@pytest.mark.parametrize("way", ["block", "run"])
async def test_a14_base_exception_leaves_no_call_without_a_result(
    promises: PromiseObserver, kind: str, way: str
) -> None:
    """A14, P1, P4: a KeyboardInterrupt of a tool ends the batch whole, then comes out once."""
    ran: list[str] = []

    def first() -> str:
        ran.append("first")
        return "real"

    def second() -> None:
        ran.append("second")
        raise KeyboardInterrupt

    def third() -> None:
        ran.append("third")

    async def first_async() -> str:
        return first()

    async def second_async() -> None:
        second()

    async def third_async() -> None:
        third()

    tools: dict[str, Any] = {"first": first, "second": second, "third": third}
    if kind == "async":
        tools = {"first": first_async, "second": second_async, "third": third_async}
    events: list[Event] = []
    asked = calls("first", "second", "third")
    with anyio.fail_after(LIVENESS):
        runner = ToolRunner(tools, max_concurrency=1, observers=[promises, events.append])
        async with runner:
            if way == "block":
                with pytest.raises(KeyboardInterrupt):
                    async with runner.open_batch(asked) as batch:
                        pass
                results = batch.results
                try:
                    assert await batch.wait() == results
                except KeyboardInterrupt:
                    pytest.fail("it came out twice")
            else:
                with pytest.raises(KeyboardInterrupt):
                    await runner.run(asked)
                # Observers are told behind the awaiting code.
                while not any(isinstance(event, BatchSettled) for event in events):
                    await anyio.wait_all_tasks_blocked()
                settled = [event.result for event in events if isinstance(event, CallSettled)]
                results = sorted(settled, key=lambda result: result.index)
            assert shape(results) == [
                DONE,
                ("interrupted", "user_interrupt", True, False),
                NOT_STARTED,
            ]
            assert results[0].value == "real"
            assert isinstance(results[1].error, KeyboardInterrupt)
            # The exception belonged to that batch; the next turn is served.
            assert [r.value for r in await runner.run(calls("first"))] == ["real"]
    assert ran == ["first", "second", "first"]
