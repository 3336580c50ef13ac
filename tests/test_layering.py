"""§5: a file imports only from below itself, and values and decisions stay pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyio_toolbatch

PACKAGE = "anyio_toolbatch"
ROOT = Path(anyio_toolbatch.__file__).parent

LAYERS = {
    "_errors": 0,
    "_files": 0,
    "_model": 1,
    "_core": 2,
    "_runtime": 3,
    "from_thread": 4,
    # The front door itself: only what stands above it may come in that way.
    "": 5,
    "formats": 6,
    "observe": 6,
    "testing": 6,
    "blocking": 6,
    "integrations": 7,
    "_cli": 8,
    "__main__": 9,
}
"""The higher imports from the lower; what has the same number, not from each other."""

PURE = {"_model", "_core"}
IMPURE = {"anyio", "asyncio", "trio", "threading", "time", "logging"}
LOOPS = {"asyncio", "trio", "uvloop"}
MAY_KNOW_LOOPS = {"_runtime.backend", "testing._stepping"}

FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the module's name below the package; "" for the package itself."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """
    Give the absolute names of all that a source imports, wherever it does.

    Inside functions and under ``if TYPE_CHECKING`` too; and by name, with
    `importlib.import_module` or `__import__`.
    """
    full = f"{PACKAGE}.{module}".rstrip(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = full.split(".")
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            # `from package import name`: the name may be a module of its own.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            function = node.func
            called = (
                function.attr
                if isinstance(function, ast.Attribute)
                else getattr(function, "id", "")
            )
            if called in {"import_module", "__import__"} and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value


def is_module(name: str) -> bool:
    """Tell whether a name below the package is one of its modules."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def top_of(name: str) -> str:
    return name.partition(".")[0]


def ours(name: str) -> str | None:
    """Return the layer that an imported name belongs to; None if it is not ours."""
    if top_of(name) != PACKAGE:
        return None
    first = top_of(name.removeprefix(PACKAGE).removeprefix("."))
    return first if first in LAYERS or is_module(first) else ""


def problems_of(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return each rule that the imports of a module break."""
    layer = top_of(module)
    if layer not in LAYERS:
        return [f"{module}: a new module must be given its place in LAYERS"]
    found = []
    for name in imports_of(source, module, is_package=is_package):
        target = ours(name)
        if target is None:
            if layer in PURE and top_of(name) in IMPURE:
                found.append(f"{module} is pure and imports {name}")
            if top_of(name) in LOOPS and module not in MAY_KNOW_LOOPS:
                found.append(f"{module} knows an event loop: {name}")
        elif target == "testing" and layer != "testing":
            found.append(f"{module} imports the testing helpers")
        elif target != layer and LAYERS[target] >= LAYERS[layer]:
            found.append(f"{module} imports {name} from above or beside itself")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path) or PACKAGE)
def test_imports_keep_to_the_layers(path: Path) -> None:
    """§5: layers, purity, and one door to the event loops."""
    problems = problems_of(
        path.read_text(encoding="utf-8"), module_of(path), is_package=path.stem == "__init__"
    )
    assert problems == []


def test_all_layers_of_this_version_were_looked_at() -> None:
    """The walk above has found the package."""
    assert {"", "_errors", "_model", "_core", "_runtime", "from_thread", "testing"} <= {
        top_of(module_of(path)) for path in FILES
    }


def test_who_may_know_the_loops_does_so() -> None:
    """The exemptions are needed: were they not, they should go."""
    source = (ROOT / "_runtime" / "backend.py").read_text(encoding="utf-8")
    known = {top_of(name) for name in imports_of(source, "_runtime.backend", is_package=False)}
    assert {"asyncio", "trio"} <= known
    source = (ROOT / "testing" / "_stepping.py").read_text(encoding="utf-8")
    known = {
        top_of(name) for name in imports_of(source, "testing._stepping", is_package=False)
    }
    assert known >= LOOPS


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("_core.ledger", "from .._runtime import hub", "from above"),
        ("_core.ledger", "def f():\n    from .._runtime.hub import Hub", "from above"),
        ("_model.calls", "from .._core.record import CallRecord", "from above"),
        ("_model.calls", "from anyio_toolbatch._core import record", "from above"),
        ("_model.calls", "import anyio_toolbatch._core.record", "from above"),
        ("_model.calls", "if TYPE_CHECKING:\n    from .._core import record", "from above"),
        ("_runtime.hub", "from .. import Tool", "from above"),
        ("_runtime.hub", "from .. import from_thread", "from above"),
        ("_runtime.hub", "import anyio_toolbatch", "from above"),
        ("formats.anthropic", "from .._cli import main", "from above"),
        ("formats.anthropic", "from ..observe import trace", "beside"),
        ("_errors", "from ._model import calls", "from above"),
        ("_runtime.hub", "from ..testing import GatedTool", "testing helpers"),
        ("_cli.run", "from ..testing import GatedTool", "testing helpers"),
        ("_cli.run", "from .. import testing", "testing helpers"),
        ("", "from .testing import GatedTool", "testing helpers"),
        ("_model.calls", "import time", "is pure"),
        ("_model.calls", "from time import monotonic", "is pure"),
        ("_core.record", "import threading as t", "is pure"),
        ("_core.record", "def f():\n    import logging.handlers", "is pure"),
        ("_core.record", "import anyio.lowlevel", "is pure"),
        ("_core.record", "import json, time", "is pure"),
        ("_core.record", "import_module('threading')", "is pure"),
        ("_runtime.hub", "import asyncio", "knows an event loop"),
        ("_runtime.hub", "class A:\n    def f(self):\n        import trio", "knows"),
        ("_runtime.hub", "from asyncio import events", "knows an event loop"),
        ("_runtime.hub", "importlib.import_module('trio.lowlevel')", "knows"),
        ("_cli.run", "__import__('uvloop')", "knows an event loop"),
        ("newcomer", "", "must be given its place"),
    ],
)
def test_broken_rules_are_found(module: str, source: str, problem: str) -> None:
    """Each rule fails where it is broken, also inside functions."""
    found = problems_of(source, module, is_package=module == "")
    assert len(found) >= 1
    assert problem in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "_core.ledger",
            "from .._model.results import Reason\nfrom .record import CallRecord",
        ),
        ("_core.ledger", "import enum, json, weakref\nfrom collections import deque"),
        ("_runtime.hub", "import threading, time, logging, anyio"),
        ("_runtime.backend", "import asyncio\ndef f():\n    import trio"),
        ("from_thread", "from ._runtime.context import current_record"),
        ("formats.anthropic", "from .. import ToolCall\nfrom ._plain import plain"),
        ("_cli.run", "from .. import ToolRunner\nfrom ..formats import anthropic"),
        ("__main__", "from ._cli import main"),
        ("testing", "from ._model.tools import Tool"),
        ("_model.calls", "from . import frozen"),
    ],
)
def test_good_imports_are_left_alone(module: str, source: str) -> None:
    """The check does not cry wolf."""
    assert problems_of(source, module) == []


def test_package_may_import_its_own_front() -> None:
    """In an ``__init__`` one dot is the package itself."""
    source = "from . import from_thread\nfrom ._runtime.runner import run_batch"
    assert problems_of(source, "", is_package=True) == []
    assert problems_of("from .inputs import read", "_cli", is_package=True) == []
