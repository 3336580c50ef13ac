"""
Haystack: an agent hook that runs a step's tool calls as one batch.

``Agent(…, hooks={"before_tool": [ToolBatchHook(runner)]})``. The agent runs no tool by itself when the
last message has no calls any more: the hook answers them all, and that is the case.
Arguments from the agent's `State`, and what goes back into it, are Haystack's own doing,
before the batch and after it: what a call that was let go gives can't land there.
"""

# mypy and pyright look at this file without Haystack, as the default checks have none.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import (
    Reason,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolResult,
    ToolRunner,
    UnknownToolError,
    current_call,
)
from ._frameworks import (
    check_runner,
    checked_options,
    framework_tool,
    missing,
    require_asyncio,
)
from ._options import check_names

try:
    # The underscored ones have no public counterpart. Whatever they do about a tool's
    # inputs and outputs, they do for us.
    from haystack.components.agents.tool_calling import (
        _finalize_tool_result,
        _prepare_tool_args,
        _schedule_tool_calls,
    )
    from haystack.dataclasses import ChatMessage
    from haystack.tools import flatten_tools_or_toolsets
except ImportError as exc:
    raise ImportError(missing("Haystack", "haystack")) from exc

__all__ = ("ToolBatchHook",)


class ToolBatchHook:
    """
    Answers the calls of the agent's last message, all in one batch.

    Args:
        runner: Runs them. Tools of its own are not used.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take.
        ends_run: An interrupt ends the agent's run with this step, before the model is
            asked again (its ``exit_reason`` is ``"interrupted"``).
        on_cut: Called with the run's `State`, its messages complete, when the run is
            cancelled during a batch: a cancelled run returns nothing.

    Raises:
        TypeError, ValueError: An argument is of the wrong kind, or `options` has something
            that `Tool` does not take. In a run: it names a tool that the agent does not have.
    """

    allowed_hook_points = ("before_tool",)

    def __init__(
        self,
        runner: ToolRunner,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
        ends_run: bool = False,
        on_cut: Callable[[Any], object] | None = None,
    ) -> None:
        check_runner(runner, timeout)
        if on_cut is not None and not callable(on_cut):
            msg = f"on_cut must be a function of a State, not {type(on_cut).__name__}"
            raise TypeError(msg)
        self._runner = runner
        self._options = checked_options(options)
        self._timeout = timeout
        self._ends_run = ends_run
        self._on_cut = on_cut
        self._tools: dict[tuple[str, bool], Tool] = {}
        """Made once for each tool: its own limits go by identity."""

    def run(self, state: Any) -> None:
        """Refuse: there is no event loop in `Agent.run`."""
        msg = "ToolBatchHook is async only: use the agent's run_async"
        raise RuntimeError(msg)

    async def run_async(self, state: Any) -> None:
        """Answer the calls of the last message."""
        require_asyncio("Haystack")
        messages = state.data.get("messages") or []
        calls = messages[-1].tool_calls if messages else []
        if not calls:
            return
        tools = {t.name: t for t in flatten_tools_or_toolsets(state.data.get("tools") or [])}
        if not _may_have_more(tools):
            check_names(self._options, tools)
        answers: list[Any] = [None] * len(calls)
        batch: ToolBatch | None = None
        submitted: list[int] = []
        try:
            async with self._runner.open_batch(timeout=self._timeout) as batch:
                for step in _steps(calls, tools):
                    for position in step:
                        batch.submit(self._call(calls[position], tools, state))
                        submitted.append(position)
                    for position, result in zip(submitted, await batch.wait(), strict=True):
                        if answers[position] is None:  # of this step: the next may read it
                            answers[position] = _answer(result, calls[position], tools, state)
        except BaseException:
            if batch is not None:
                for position, result in zip(submitted, batch.results, strict=True):
                    if answers[position] is None:
                        answers[position] = _answer(result, calls[position], tools, state)
            for position, call in enumerate(calls):
                if answers[position] is None:
                    answers[position] = _not_started(call)
            state.set("messages", answers)
            if self._on_cut is not None:
                self._on_cut(state)
            raise
        state.set("messages", answers)
        if self._ends_run and batch.interrupted:
            state.set("stop_run", "interrupted")

    def _call(self, call: Any, tools: Mapping[str, Any], state: Any) -> ToolCall:
        tool = tools.get(call.tool_name)
        return ToolCall(
            call.id or "",
            call.tool_name,
            call.arguments,
            tool=_unknown(call.tool_name, tools) if tool is None else self._tool(tool),
            metadata=None if tool is None else _prepared(tool, call, state),
            wire=call,
        )

    def _tool(self, tool: Any) -> Tool:
        key = tool.name, tool.async_function is None
        if key not in self._tools:
            options = self._options.get(tool.name, {})
            self._tools[key] = framework_tool(tool.name, _run, blocks=key[1], options=options)
        return self._tools[key]

    def to_dict(self) -> dict[str, Any]:
        """Refuse: a runner can't be written down, so an agent with it can't either."""
        msg = "a ToolBatchHook holds a runner, and can't be serialized"
        raise TypeError(msg)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ToolBatchHook:
        """Refuse, as `to_dict` does."""
        msg = "a ToolBatchHook holds a runner, and can't be deserialized"
        raise TypeError(msg)


def _prepared(tool: Any, call: Any, state: Any) -> tuple[Any, dict[str, Any]]:
    arguments = _prepare_tool_args(tool=tool, tool_call_arguments=call.arguments, state=state)
    return tool, arguments


async def _run() -> Any:
    tool, arguments = current_call().call.metadata
    return await tool.invoke_async(**arguments)


def _may_have_more(tools: Mapping[str, Any]) -> bool:
    """Whether one of the tools finds others, which the agent has from then on."""
    finds = "haystack.tools.searchable_toolset"
    return any(getattr(tool.function, "__module__", None) == finds for tool in tools.values())


def _unknown(name: str, tools: Mapping[str, Any]) -> Tool:
    """Stand in for a tool that there is not: what there is is the agent's, not the runner's."""

    def refuse(call: ToolCall) -> dict[str, Any]:
        known = ", ".join(sorted(tools)) or "none"
        msg = f"there is no tool named {name!r} (known: {known})"
        raise UnknownToolError(msg)

    return Tool(_run, name=name, validate=refuse)


def _steps(calls: list[Any], tools: Mapping[str, Any]) -> list[list[int]]:
    """Return positions of calls that may run together; later ones read what earlier write."""
    known = [n for n, call in enumerate(calls) if call.tool_name in tools]
    steps = _schedule_tool_calls(
        [calls[n] for n in known], [tools[calls[n].tool_name] for n in known]
    )
    unknown = [n for n, call in enumerate(calls) if call.tool_name not in tools]
    return [[known[n] for n in step] for step in steps] + ([unknown] if unknown else [])


def _answer(result: ToolResult, call: Any, tools: Mapping[str, Any], state: Any) -> Any:
    if not result.is_error:
        try:
            tool = tools[call.tool_name]
            return _finalize_tool_result(
                result.value, call, tool, state, raise_on_failure=False
            )
        except Exception as exc:  # noqa: BLE001 - a handler of the tool's: its own failure
            text = f"{type(exc).__name__}: {exc}"
            return ChatMessage.from_tool(text, origin=call, error=True)
    return ChatMessage.from_tool(result.text, origin=call, error=True)


def _not_started(call: Any) -> Any:
    reason = Reason("caller_cancelled")
    result = ToolResult(
        ToolCall(call.id or "", call.tool_name),
        0,
        Status.INTERRUPTED,
        reason=reason,
        started=False,
    )
    return ChatMessage.from_tool(result.text, origin=call, error=True)
