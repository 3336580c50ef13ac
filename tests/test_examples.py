"""The examples of the documentation are programs, and do what their pages show."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
EXAMPLES = sorted(DOCS.glob("examples/*.py"))
ANSWERS = {"approvals": "y\nn\nToo much at once\n"}
"""What is typed into an example that asks, by its name."""
NEEDS = {
    "google_adk_agent": "google.adk",
    "haystack_agent": "haystack",
    "langchain_agent": "langchain",
    "langchain_approvals": "langchain",
    "langgraph_node": "langgraph",
    "mcp_tools": "mcp",
    "openai_agents_stop": "agents",
    "pydantic_ai_agent": "pydantic_ai",
    "telemetry_spans": "opentelemetry.sdk",
}
"""The module without which an example is skipped; the nox session `integrations` has it,
but for OpenTelemetry's SDK, which is there for all tests."""
ASYNCIO_ONLY = {
    "google_adk_agent",
    "haystack_agent",
    "langchain_agent",
    "langchain_approvals",
    "langgraph_node",
    "openai_agents_stop",
    "pydantic_ai_agent",
    "test_turn",
    "why_not_gather",
}
"""Examples of frameworks that run on nothing else, and others that say so themselves."""
UNASKED = """
import functools, runpy, sys, anyio
anyio.run = functools.partial(anyio.run, backend=sys.argv.pop())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a program that a reader types in, and that asks for no backend, on one all the same."""
LIVENESS = 30.0  # seconds, where one is meant


def environment() -> dict[str, str]:
    """The tests' own environment, made fit for another folder and for all machines."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(str(Path(folder).resolve()) for folder in folders if folder)
    settings = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    return {**os.environ, **settings}


def command(example: Path, backend: str) -> list[str | Path]:
    """What runs an example: Python, or pytest where it is a file of tests."""
    if example.stem.startswith("test_"):
        # As in a folder of its own: without this project's settings.
        alone = ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
        return ["-m", "pytest", "-qq", *alone, example]
    if "sys.argv" in example.read_text("utf-8"):
        return [example, backend]
    return ["-c", UNASKED, example, backend]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_its_page_shows(
    example: Path, backend: str, tmp_path: Path
) -> None:
    """Each example runs to its end, and its output is the file that the page includes."""
    for needed in (backend, NEEDS.get(example.stem, backend)):
        if not is_installed(needed):
            pytest.skip(f"{needed} is not installed")
    if backend != "asyncio" and example.stem in ASYNCIO_ONLY:
        pytest.skip("its framework runs on asyncio only")
    ended = subprocess.run(
        [sys.executable, "-P", "-W", "error", *command(example, backend)],
        input=ANSWERS.get(example.stem, ""),
        capture_output=True,
        encoding="utf-8",
        timeout=LIVENESS,
        cwd=tmp_path,
        env=environment(),
    )
    assert ended.stderr == ""
    assert ended.stdout == example.with_suffix(".txt").read_text("utf-8")
    assert ended.returncode == 0


def test_there_are_examples() -> None:
    """A folder that has moved must not pass for one without faults."""
    assert EXAMPLES
    assert set(NEEDS) <= {example.stem for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_some_page_includes_the_example_and_its_output(example: Path) -> None:
    """Nothing lies in the folder that no reader can find."""
    included = {
        (page.parent / name).resolve()
        for page in DOCS.rglob("*.md")
        if "_build" not in page.parts
        for name in re.findall(r"\{literalinclude\} (\S+)", page.read_text("utf-8"))
    }
    assert {example, example.with_suffix(".txt")} <= included
