"""
Provider payloads to calls, results to provider payloads: one module per provider.

Pure functions on plain dicts; no SDK is imported. Every module has the same
three: `parse_calls(message)` gives the calls in order, `render_results(results)`
gives exactly what goes into the next request, and `repair(messages)` makes a
history valid that is not. Where calls can be streamed, a `CallStream` gives
them as they are complete; where a provider takes results later, `render_late`
renders them.
"""

from __future__ import annotations

from . import anthropic, gemini, mcp, openai_chat, openai_responses

__all__ = ("anthropic", "gemini", "mcp", "openai_chat", "openai_responses")
