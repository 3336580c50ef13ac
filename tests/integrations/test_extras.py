"""Without what an integration needs, its import says how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("extra", "needs"), [("ray", "ray"), ("dask", "distributed")])
def test_import_names_the_extra(extra: str, needs: str) -> None:
    """Also tested where the extra is installed: as if it were not."""
    program = (
        f"import sys; sys.modules[{needs!r}] = None\n"
        f"import anyio_toolbatch.integrations.{extra}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"ImportError: this module needs {extra.capitalize()}: " in ended.stderr
    assert f"pip install 'anyio-toolbatch[{extra}]'" in ended.stderr
