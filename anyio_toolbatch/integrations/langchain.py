"""
LangChain: a middleware by which `create_agent` runs a step's tool calls as a batch.

``create_agent(model, middleware=[ToolBatchMiddleware(runner, tools)])``. LangChain makes each call
in a task of its graph; the hook that wraps it there hands it to the batch of the step. So the
hooks of the other middlewares wrap it as ever, and what a person says in one of them holds.
"""

# mypy and pyright look at this file without LangChain, as the default checks have none.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from .. import CallHandle, ToolBatch, ToolRunner
from ._frameworks import check_runner, missing, require_asyncio

try:
    from langchain.agents.middleware import AgentMiddleware, hook_config
    from langgraph.prebuilt import ToolNode
    from langgraph.runtime import get_runtime
except ImportError as exc:
    raise ImportError(missing("LangChain", "langchain")) from exc

from . import _langgraph_history as history
from ._langgraph_calls import BatchedTools, Handler, answered, answers_of, refusal

__all__ = ("ToolBatchMiddleware",)

MAX_INTERRUPTED = 64
"""Steps that are remembered, as they may have calls to come; arbitrary, ample."""
NOT_READ = "The arguments of this tool call are no valid JSON object; it was not run."


class ToolBatchMiddleware(AgentMiddleware[Any, Any, Any]):
    """
    Runs the calls for its tools as batches. Async only.

    The calls of a step that are under way together are one batch. One that comes when all
    before it have ended, as LangGraph or another middleware has held it back, begins the
    next; if the user has interrupted the step, it is not started.

    It brings the tools to the agent; calls for others (the agent's own, structured
    output) stay with LangChain. Middlewares before it in the list wrap what
    the batch does for a call; those behind it are part of the call.

    Args:
        runner: Runs the calls. Tools of its own are not used.
        tools: LangChain tools or functions.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind, or `options` has something
            that `Tool` does not take, or names a tool that is not among `tools`.
    """

    def __init__(
        self,
        runner: ToolRunner,
        tools: Iterable[Any | Callable[..., Any]],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        check_runner(runner, timeout)
        made = ToolNode(list(tools)).tools_by_name
        self.tools = list(made.values())
        self._runner = runner
        self._timeout = timeout
        self._batched = BatchedTools(made, options)
        self._kept = history.KeptAnswers()
        self._steps: dict[Any, _Step] = {}
        """Those whose calls are under way, by what is one step's alone."""
        self._interrupted: dict[Any, tuple[Any, str | None]] = {}
        """
        The last steps that were, with calls still to come: none of those is to start. By
        step, the run, kept alive as its identity is in the key, and what the user said.
        """

    def before_agent(self, state: Any, runtime: Any) -> Any:
        """Refuse a run without an event loop, before it has done anything."""
        msg = "ToolBatchMiddleware is async only: use ainvoke() or astream()"
        raise RuntimeError(msg)

    async def abefore_agent(self, state: Any, runtime: Any) -> Any:
        """Close the calls that a cancelled run has left open in the thread."""
        return history.close(state["messages"], "messages", self._kept)

    @hook_config(can_jump_to=["model"])  # type: ignore[untyped-decorator,unused-ignore]
    async def aafter_model(self, state: Any, runtime: Any) -> Any:
        """Answer the calls that LangChain could not read, and has no way to make."""
        message, calls = history.last_calls(state["messages"])
        answers = [
            refusal(call, NOT_READ)
            for position, call in calls.items()
            if position >= len(message.tool_calls) and call["id"] is not None
        ]
        if not answers:
            return None
        if message.tool_calls:
            return {"messages": answers}
        # Without a call to make, LangChain would take it for the model's last message.
        return {"messages": answers, "jump_to": "model"}

    async def awrap_tool_call(self, request: Any, handler: Handler) -> Any:
        """
        Make the call in the batch of its step.

        Cancellation:
            Cuts this call. LangGraph cancels a step as a whole: what the batch had by then
            is kept for the run that goes on.
        """
        if request.tool_call["name"] not in self._batched:
            return await handler(request)
        step = await self._join(request)
        try:
            position = step.take(request.tool_call)
            if position in step.earlier:
                answer = step.earlier[position]
            else:
                call = self._batched.submit(step.batch, request, handler, position)
                answer = await step.answered(call)
        except BaseException as exc:
            await self._leave(step, exc)
            raise
        await self._leave(step)
        return answer

    async def _join(self, request: Any) -> _Step:
        """Return the step that a call is of, with a batch that is open."""
        require_asyncio("LangChain")
        run = get_runtime().control
        info = request.runtime.execution_info
        key = (id(run), info.checkpoint_id, info.checkpoint_ns.rpartition("|")[0])
        step = self._steps.get(key)
        if step is None:
            thread = history.current_thread()
            asking, calls = history.last_calls(request.state["messages"])
            context = self._runner.open_batch(timeout=self._timeout)
            step = self._steps[key] = _Step(
                key=key,
                run=run,
                thread=thread,
                message=asking,
                earlier=self._kept.of_cut(thread, asking, run),
                expected=list(calls.items()),
                context=context,
                # No await is in there: the next call of the step can't come in between.
                batch=await context.__aenter__(),
            )
            if key in self._interrupted:
                _, message = self._interrupted[key]
                step.batch.interrupt(message)
        step.running += 1
        return step

    async def _leave(self, step: _Step, error: BaseException | None = None) -> None:
        """End the step's batch with its last call."""
        step.running -= 1
        # A hook may cancel one call, for a timeout; then its siblings do not end like that.
        cut = None if isinstance(error, Exception) else error
        if step.running:
            return
        del self._steps[step.key]
        try:
            # As an `async with` does that all the calls were in.
            await step.context.__aexit__(type(cut) if cut is not None else None, cut, None)
        finally:
            # LangGraph has them too, but would drop them where another way is taken.
            answers = answers_of(step.batch.results)
            cut_run = step.run if cut is not None else None
            self._kept.add(step.thread, step.message, answers, cut_run=cut_run)
            reason = step.batch.reason
            if reason is not None and step.batch.interrupted and step.expected:
                self._interrupted[step.key] = (step.run, reason.message)
                while len(self._interrupted) > MAX_INTERRUPTED:
                    del self._interrupted[next(iter(self._interrupted))]


@dataclass
class _Step:
    """The calls of one message, while they run."""

    key: Any
    run: Any
    thread: Any
    message: Any
    earlier: Mapping[int, Any]
    expected: list[tuple[int, Any]]
    """The message's open calls that have not come, with their positions."""
    context: AbstractAsyncContextManager[ToolBatch]
    batch: ToolBatch
    running: int = 0
    taken: dict[Any, int] = field(default_factory=dict)

    def take(self, call: Any) -> int:
        """Return the call's position; ids need not differ, and a call may come again."""
        for at, (position, wanted) in enumerate(self.expected):
            if wanted["id"] == call["id"]:
                del self.expected[at]
                self.taken[call["id"]] = position
                return position
        # Or another middleware has made the call up: then it has a place of its own.
        return self.taken.setdefault(call["id"], -1 - len(self.taken))

    async def answered(self, call: CallHandle) -> Any:
        """Wait for a call's answer; if that is cancelled, it is the call that is cut."""
        try:
            return await answered(call)
        except Exception:
            raise
        except BaseException:
            if self.running > 1:  # else the batch ends, and says so in its own words
                call.cancel()
            raise
