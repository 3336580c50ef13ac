"""An integration without its package says which extra brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
try:
    import anyio_toolbatch.integrations.{module}
except ImportError as exc:
    print(exc)
"""


@pytest.mark.parametrize(("module", "package", "extra"), [("mcp", "mcp", "mcp")])
def test_missing_package_names_the_extra(module: str, package: str, extra: str) -> None:
    """Whoever lacks the package reads what to install, not the name of a module."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(module=module, package=package)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert f"pip install 'anyio-toolbatch[{extra}]'" in ended.stdout
