"""Kind P of the cases from the field: placeholders that lie, and unsafe repeats."""

# P3 and P6 for async tools are in `virtual/`, as they are about time.

from __future__ import annotations

import importlib
import pathlib
import re
import signal
import sys
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallProgress,
    LateResult,
    Status,
    Tool,
    ToolCall,
    ToolResult,
    ToolRunner,
    current_call,
    from_thread,
    run_batch,
)
from anyio_toolbatch.formats import anthropic, openai_chat
from anyio_toolbatch.testing import GatedTool, PromiseObserver

LIVENESS = 20.0  # seconds where milliseconds are meant

DENIES_THE_RUN = re.compile(
    r"not started|(did|has|was) ?n[o']t|never ran|no effects|rejected|denied|refused", re.I
)
INVITES_A_REPEAT = re.compile(r"try (it )?again|retry|repeat|re-?run|once more", re.I)


sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "importable"))
process_tools: Any = importlib.import_module("process_tools")
carrier_tools: Any = importlib.import_module("carrier_tools")


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"id-{i}", name) for i, name in enumerate(names)]


async def happens(event: threading.Event) -> None:
    """Wait, on the loop, for what a worker thread does."""
    assert await anyio.to_thread.run_sync(event.wait, LIVENESS)


def texts(result: ToolResult) -> list[str]:
    """What the model gets to see of it, in every format."""
    (message,) = openai_chat.render_results([result])
    (block,) = anthropic.render_results([result])["content"]
    return [result.text, message["content"], block["content"]]


def assert_paired(asked: list[ToolCall], results: list[ToolResult]) -> None:
    """Check that the next request is one that a provider takes."""
    ids = [call.id for call in asked]
    messages = openai_chat.render_results(results)
    assert [(m["role"], m["tool_call_id"]) for m in messages] == [("tool", i) for i in ids]
    blocks = anthropic.render_results(results)["content"]
    assert [(b["type"], b["tool_use_id"]) for b in blocks] == [("tool_result", i) for i in ids]
    assert all(isinstance(item["content"], str) for item in [*messages, *blocks])


# -- P1 ------------------------------------------------------------------------


async def test_p1_started_and_not_started_read_differently(promises: PromiseObserver) -> None:
    """P1 (case), P6: what has begun never reads as "did not run", in data and in words."""
    gate = GatedTool()
    async with ToolRunner([gate.tool], max_threads=1, observers=[promises]) as runner:
        async with runner.open_batch(calls("gated", "gated")) as batch:
            await gate.wait_started()
            batch.interrupt("stop that")
        begun, waiting = batch.results
        assert (begun.started, begun.detached, begun.effects) == (True, True, "unknown")
        for text in texts(begun):
            assert not DENIES_THE_RUN.search(text)
            assert "may have had side effects" in text
            assert "outcome is unknown" in text
        assert (waiting.started, waiting.detached, waiting.effects) == (False, False, "none")
        for text in texts(waiting):
            assert "not started" in text
            assert "side effects" not in text
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    assert gate.started == 1  # so that what was said of both is true


async def test_p1_one_that_stopped_in_the_grace_is_told_apart() -> None:
    """P1 (case), P6: stopped when asked to: started, effects unknown, but nothing goes on."""
    begun = threading.Event()

    def cooperative() -> None:
        begun.set()
        current_call().cancelled.wait(LIVENESS)
        from_thread.check_cancelled()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([cooperative], interrupt_grace=LIVENESS) as runner:
            async with runner.open_batch(calls("cooperative")) as batch:
                await happens(begun)
                batch.interrupt()
            assert runner.statistics().detached == ()
    (result,) = batch.results
    assert result.status is Status.INTERRUPTED
    assert (result.started, result.detached, result.effects) == (True, False, "unknown")
    for text in texts(result):
        assert not DENIES_THE_RUN.search(text)


async def test_p1_one_that_goes_on_by_agreement_says_so() -> None:
    """P1 (case), P6: a kept call is said to go on; its end is told to the late hook only."""
    gate = GatedTool(value="sent", on_interrupt="keep")
    late: list[LateResult] = []
    landed = anyio.Event()

    def on_late(result: LateResult) -> None:
        late.append(result)
        landed.set()

    with anyio.fail_after(LIVENESS):
        async with ToolRunner([gate.tool], on_late=on_late) as runner:
            async with runner.open_batch(calls("gated")) as batch:
                await gate.wait_started()
                batch.interrupt()
            (result,) = batch.results
            for text in texts(result):
                assert not DENIES_THE_RUN.search(text)
                assert "goes on in the background" in text
            assert (result.started, result.detached) == (True, True)
            gate.open()
            await landed.wait()
    assert [r.value for r in late] == ["sent"]
    assert batch.results == [result]


# -- P2 ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
async def test_p2_what_has_committed_is_never_said_to_have_written_nothing(
    how: str, tmp_path: pathlib.Path
) -> None:
    """P2 (case), P6: the commit is there, the hook runs on: "may have had side effects"."""
    committed = threading.Event()
    hook_may_end = threading.Event()
    target = tmp_path / "commit"

    def commit() -> None:
        target.write_text("done")
        committed.set()
        hook_may_end.wait(LIVENESS)

    timeout = 0.05 if how == "timeout" else None  # the hook outlasts it in any case
    async with ToolRunner([Tool(commit, timeout=timeout)]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("commit")) as batch:
                await happens(committed)
                if how == "interrupt":
                    batch.interrupt()
        hook_may_end.set()
        assert await runner.wait_detached(LIVENESS)
    (result,) = batch.results
    assert target.read_text() == "done"
    assert (result.started, result.effects) == (True, "unknown")
    for text in texts(result):
        assert "may have had side effects" in text
        assert not DENIES_THE_RUN.search(text)


async def test_p2_the_same_in_a_process_that_was_stopped(tmp_path: pathlib.Path) -> None:
    """P2 (case), P6: that the work was stopped does not undo what it has done."""
    target = tmp_path / "commit"
    tool = Tool(process_tools.commits, runs_in="process")
    async with ToolRunner([tool]) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(
                [ToolCall("id", "commits", {"target": target})]
            ) as batch:
                async for event in batch.events():
                    if isinstance(event, CallProgress):
                        batch.interrupt()
        assert await runner.wait_detached(LIVENESS)
    (result,) = batch.results
    assert target.read_text() == "done"
    assert (result.started, result.detached, result.effects) == (True, False, "unknown")
    for text in texts(result):
        assert "was stopped. It may have had side effects" in text
        assert not DENIES_THE_RUN.search(text)


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_p2_the_same_in_an_executor(kind: str, tmp_path: pathlib.Path) -> None:
    """P2 (case), P6: it was let go of after its commit; nobody says that it was stopped."""
    with carrier_tools.new_executor(kind) as executor:
        tool = Tool(carrier_tools.gated, name="commits", runs_in=executor)
        try:
            async with ToolRunner([tool]) as runner:
                with anyio.fail_after(LIVENESS):
                    async with runner.open_batch(
                        [ToolCall("id", "commits", {"folder": tmp_path})]
                    ) as batch:
                        while not (tmp_path / "started-0").exists():
                            await anyio.sleep(0.005)
                        batch.interrupt()
                (tmp_path / "go").touch()
                assert await runner.wait_detached(LIVENESS)
        finally:
            (tmp_path / "go").touch()
    (result,) = batch.results
    assert (result.started, result.detached, result.effects) == (True, True, "unknown")
    for text in texts(result):
        assert "may have had side effects" in text
        assert "was stopped" not in text
        assert not DENIES_THE_RUN.search(text)


# -- P3 ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["call", "batch"])
async def test_p3_a_limit_is_not_the_users_doing(
    limit: str, promises: PromiseObserver
) -> None:
    """P3 (case), P6: where a deadline cut a blocking call, data and words say deadline."""
    gate = GatedTool(timeout=0.05 if limit == "call" else None)
    async with ToolRunner([gate.tool], observers=[promises]) as runner:
        with anyio.fail_after(LIVENESS):
            (result,) = await runner.run(
                calls("gated"), timeout=0.05 if limit == "batch" else None
            )
        gate.open()
        await runner.wait_detached(LIVENESS)
    assert result.status is Status.TIMED_OUT
    assert result.reason is not None and result.reason.kind == f"{limit}_timeout"
    for text in texts(result):
        assert "timed out" in text
        assert "user" not in text and "interrupt" not in text


# -- P5 ------------------------------------------------------------------------


async def test_p5_after_ctrl_c_there_is_a_full_list_to_store(
    promises: PromiseObserver,
) -> None:
    """P5 (case), P1: every call has its answer, so the next turn has nothing to replay."""
    effects: list[str] = []
    all_begun = threading.Barrier(3)  # the two that run, and the test
    release = threading.Event()

    def edit(name: str) -> str:
        effects.append(name)
        return f"edited {name}"

    def send(name: str) -> str:
        effects.append(name)
        all_begun.wait(LIVENESS)
        release.wait(LIVENESS)
        return f"sent {name}"

    asked = openai_chat.parse_calls(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": tool, "arguments": f'{{"name": "{n}"}}'},
                }
                for n, tool in [("a", "edit"), ("b", "send"), ("c", "edit"), ("d", "send")]
            ],
        }
    )
    answers: list[int] = []
    async with ToolRunner([edit, send], observers=[promises]) as runner:

        def ctrl_c(*_: Any) -> None:
            answers.append(runner.interrupt("Ctrl-C"))

        with anyio.fail_after(LIVENESS):
            async with runner.open_batch() as batch:
                handles = [batch.submit(call) for call in asked]
                await handles[0].wait()
                await handles[2].wait()
                await anyio.to_thread.run_sync(all_begun.wait, LIVENESS)
                before = signal.signal(signal.SIGINT, ctrl_c)
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    signal.signal(signal.SIGINT, before)
        assert answers == [1]
        assert [r.value for r in batch.results] == ["edited a", None, "edited c", None]
        assert [r.effects for r in batch.results] == ["done", "unknown", "done", "unknown"]
        assert_paired(asked, batch.results)

        # The next turn: the runner starts what it is given, and nothing else.
        next_turn = [ToolCall("call_e", "edit", {"name": "e"})]
        assert [r.value for r in await runner.run(next_turn)] == ["edited e"]
        assert sorted(effects) == ["a", "b", "c", "d", "e"]
        release.set()
        assert await runner.wait_detached(LIVENESS)
    promises.check(batch.id, batch.results)


# -- P6 ------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", ["loop", "thread"])
async def test_p6_a_failed_call_is_not_run_a_second_time(carrier: str) -> None:
    """P6 (case), P1: no hidden retry of what failed after it had taken effect."""
    effects: list[str] = []

    def send() -> None:
        effects.append("sent")
        raise ConnectionResetError("the connection was lost")

    async def send_async() -> None:
        send()

    func: Any = send if carrier == "thread" else send_async
    (result,) = await run_batch(calls("send"), {"send": func})
    assert effects == ["sent"]
    assert result.status is Status.FAILED
    assert isinstance(result.error, ConnectionResetError)
    assert (result.started, result.effects) == (True, "unknown")
    for text in texts(result):
        assert "ConnectionResetError: the connection was lost" in text
        assert not INVITES_A_REPEAT.search(text)


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_p6_a_placeholder_never_invites_a_repeat(grace: float) -> None:
    """P6 (case), P6: nor does the text of a blocking call that was cut, whatever the grace."""
    gate = GatedTool()
    async with ToolRunner([gate.tool], interrupt_grace=grace) as runner:
        with anyio.fail_after(LIVENESS):
            async with runner.open_batch(calls("gated")) as batch:
                await gate.wait_started()
                batch.interrupt()
        assert batch.results[0].started
        for text in texts(batch.results[0]):
            assert not INVITES_A_REPEAT.search(text)
        gate.open()
        assert await runner.wait_detached(LIVENESS)
    assert gate.started == 1
