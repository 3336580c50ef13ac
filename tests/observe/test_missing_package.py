"""Without OpenTelemetry the import of its observer says how to get it."""

from __future__ import annotations

import subprocess
import sys


def test_import_names_the_extra() -> None:
    """Also tested where the package is installed: as if it were not."""
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import anyio_toolbatch.observe, anyio_toolbatch.observe.stalls\n"
        "import anyio_toolbatch.observe.otel"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: this module needs OpenTelemetry's API: " in ended.stderr
    assert "pip install 'anyio-toolbatch[otel]'" in ended.stderr


def test_it_is_imported_only_by_those_who_use_it() -> None:
    """§6: the core needs anyio and nothing else."""
    program = (
        "import sys, anyio_toolbatch, anyio_toolbatch._cli, anyio_toolbatch.observe.stalls\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
