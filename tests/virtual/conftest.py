"""
The tests of this folder run in virtual time: clocks jump when nothing is ready.

No test here may use a worker thread: virtual clocks do not see them.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def anyio_backend(virtual_backend: Any) -> Any:
    return virtual_backend
