"""The README is what a newcomer copies from: its lines have to hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["main-job", "tests"])
def test_command_is_one_line_that_needs_nothing_before_it(name: str) -> None:
    """Each of the two commands makes its own environment and is one line to copy."""
    block = re.search(
        rf"<!-- {name}:begin -->\n```sh\n(.*?)\n```\n<!-- {name}:end -->", TEXT, re.DOTALL
    )
    assert block is not None
    command = block.group(1)
    assert "\n" not in command
    assert command.startswith("python3 -m venv ")
    assert "sudo" not in command and "--break-system-packages" not in command


def test_python_blocks_are_python() -> None:
    """The code shown is code: each block compiles, with ``await`` at its top level."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_public_names_in_the_readme_exist() -> None:
    """What the README imports can be imported."""
    imports = re.findall(r"^from (anyio_toolbatch[\w.]*) import (.+)$", TEXT, re.MULTILINE)
    assert imports
    for module, names in imports:
        namespace: dict[str, object] = {}
        exec(f"from {module} import {names}", namespace)


def test_figures_are_there() -> None:
    """The comparison is a table of measured figures, not a promise of one."""
    block = TEXT.split("<!-- figures:begin -->")[1].split("<!-- figures:end -->")[0]
    assert block.count("|") > 20
    assert re.search(r"\d", block)
