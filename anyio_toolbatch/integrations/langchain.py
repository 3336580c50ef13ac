"""
LangChain: a middleware by which `create_agent` runs a step's tool calls as one batch.

``create_agent(model, middleware=[ToolBatchMiddleware(runner, tools)])``. It is a
`ToolBatchNode` for agents; that module says what it does, and how.
"""

# mypy and pyright look at this file without LangChain, as the default checks have none.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import ToolRunner
from ._frameworks import missing

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as exc:
    raise ImportError(missing("LangChain", "langchain")) from exc

from .langgraph import ToolBatchNode

__all__ = ("ToolBatchMiddleware",)


class ToolBatchMiddleware(AgentMiddleware[Any, Any, Any]):
    """
    Answers the calls for its tools in one batch, before LangChain would.

    It brings the tools to the agent; calls for others (the agent's own, structured
    output) stay with LangChain. It belongs first in the list of middlewares: then what
    the others do after the model, such as asking a person, is done before.

    Args:
        runner: Runs the calls. Tools of its own are not used.
        tools: LangChain tools or functions.
        options: By the name of a tool, options of `Tool` for it, such as ``writes``.
        timeout: Seconds that each batch may take.
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
        self._node = ToolBatchNode(runner, tools, options=options, timeout=timeout)
        self.tools = list(self._node.tools.values())

    async def abefore_agent(self, state: Any, runtime: Any) -> Any:
        """Close the calls that a cancelled run has left open in the thread."""
        return self._node.close(state)

    async def aafter_model(self, state: Any, runtime: Any) -> Any:
        """Answer the calls."""
        return await self._node.answer(state, own_only=True)
