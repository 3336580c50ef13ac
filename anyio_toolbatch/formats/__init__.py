"""
Provider payloads to calls, results to provider payloads: one module per provider.

Pure functions on plain dicts; no SDK is imported. Every module has the same
two: `parse_calls(message)` gives the calls in order, and
`render_results(results)` gives exactly what goes into the next request.
"""

from __future__ import annotations

from . import anthropic, openai_chat

__all__ = ("anthropic", "openai_chat")
