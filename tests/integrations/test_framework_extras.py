"""Without what an integration needs, its import says how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "needs", "extra"),
    [
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("langgraph", "langgraph", "langgraph"),
        ("langchain", "langchain", "langchain"),
        ("openai_agents", "agents", "openai-agents"),
        ("haystack", "haystack", "haystack"),
        ("google_adk", "google.adk", "google-adk"),
    ],
)
def test_import_names_the_extra(module: str, needs: str, extra: str) -> None:
    """Also tested where the framework is installed: as if it were not."""
    program = (
        f"import sys; sys.modules[{needs!r}] = None\n"
        f"import anyio_toolbatch.integrations.{module}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert "ImportError: this module needs " in ended.stderr
    assert f"pip install 'anyio-toolbatch[{extra}]'" in ended.stderr
