"""
The tools: from a Python file or a module's name to what a runner takes.

A module says itself what its tools are, by a list or mapping `TOOLS`.
Without one they are its `Tool` objects, and the public functions that it
defines: what it has imported for its own use is not the model's.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from .. import Tool, ToolRunner
from .errors import UnusableInputError

__all__ = ("Tools", "collect", "load_tools")

Tools = Mapping[str, Tool | Callable[..., Any]] | list[Tool | Callable[..., Any]]


def load_tools(file_or_module: str) -> Tools:
    """
    Import the module and return its tools, checked.

    Args:
        file_or_module: A path (ends in ``.py``, has a separator, or is a
            file), else a module's name; the current folder is searched too.

    Raises:
        UnusableInputError: There is no such module, importing it fails, or
            it has no usable tools.
    """
    if _is_path(file_or_module):
        module = _import_file(Path(file_or_module), file_or_module)
    else:
        module = _import_module(file_or_module)
    return collect(module, file_or_module)


def collect(module: ModuleType, source: str) -> Tools:
    """
    Return the module's tools: a list or mapping that `ToolRunner` accepts.

    Raises:
        UnusableInputError: There is none, two have one name, or `TOOLS` is
            no collection of tools.
    """
    declared = getattr(module, "TOOLS", None)
    if declared is None:
        tools: Any = _found_in(module, source)
        expected = "TOOLS, Tool objects, or public functions that are defined there"
    else:
        # What is no collection is left to the runner to refuse. An iterator
        # would be used up by that, so it is made a list.
        is_items = isinstance(declared, Iterable) and not isinstance(declared, Mapping | str)
        tools = list(declared) if is_items else declared
        expected = "at least one tool in TOOLS"
    is_empty = isinstance(tools, list | Mapping) and not tools
    if is_empty:
        msg = f"{source} has no tools; expected {expected}"
        raise UnusableInputError(msg)
    try:
        ToolRunner(tools)
    except (TypeError, ValueError) as exc:
        msg = f"{source}: {'' if declared is None else 'TOOLS: '}{exc}"
        raise UnusableInputError(msg) from None
    return cast("Tools", tools)


def _found_in(module: ModuleType, source: str) -> dict[str, Tool | Callable[..., Any]]:
    found: dict[str, Tool | Callable[..., Any]] = {}
    for value in vars(module).values():
        # One tool under two names in the module is still one.
        if isinstance(value, Tool) and found.setdefault(value.name, value) is not value:
            msg = f"{source}: two tools are named {value.name!r}; rename one of them"
            raise UnusableInputError(msg)
    for name, value in vars(module).items():
        if not name.startswith("_") and _is_own_function(value, module):
            # The function that a Tool was made of gives way to it.
            found.setdefault(name, value)
    return found


def _is_own_function(value: object, module: ModuleType) -> bool:
    # A decorator such as `lru_cache` leaves an object that only wraps a function.
    is_function = inspect.isroutine(value) or (
        callable(value) and hasattr(value, "__wrapped__") and not inspect.isclass(value)
    )
    return is_function and getattr(value, "__module__", None) == module.__name__


# -- importing ---------------------------------------------------------------


def _is_path(text: str) -> bool:
    return text.endswith(".py") or "/" in text or os.sep in text or Path(text).is_file()


def _import_file(path: Path, source: str) -> ModuleType:
    if path.is_dir():
        msg = f"{source} is a directory; expected a Python file or a module's name"
        raise UnusableInputError(msg)
    if not path.exists():
        msg = f"{source} does not exist; expected a Python file with the tools"
        raise UnusableInputError(msg)
    if not os.access(path, os.R_OK):
        msg = f"{source} cannot be read: permission denied"
        raise UnusableInputError(msg)
    path = path.resolve()
    # As for a script: its neighbours can be imported.
    _search_first(path.parent)
    name = path.stem if path.stem not in sys.modules else f"_toolbatch_tools_{path.stem}"
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)

    def load() -> ModuleType:
        # Dataclasses and pickle look a module up by its name.
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    return _guarded(load, source, path)


def _import_module(name: str) -> ModuleType:
    msg = (
        f"there is no module and no file named {name!r}; expected a Python file or a "
        "module's name for --tools"
    )
    if not all(name.split(".")):
        raise UnusableInputError(msg)
    _search_first(Path.cwd())

    def load() -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as exc:
            # Not what the module itself fails to import.
            if exc.name is not None and f"{name}.".startswith(f"{exc.name}."):
                raise UnusableInputError(msg) from None
            raise

    return _guarded(load, name, None)


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _guarded(load: Callable[[], ModuleType], source: str, path: Path | None) -> ModuleType:
    """Import; what the module raises becomes one sentence with its place."""
    try:
        return load()
    except (UnusableInputError, KeyboardInterrupt):
        raise
    except SyntaxError as exc:
        place = f"{exc.filename or source}:{exc.lineno}" if exc.lineno else source
        if exc.filename is not None and path is not None and Path(exc.filename) == path:
            place = place.replace(exc.filename, source, 1)
        msg = f"{place}: not valid Python: {exc.msg}"
    except BaseException as exc:  # noqa: BLE001 - a module may raise anything, SystemExit too
        # The traceback's words, which never raise themselves, on one line.
        raised = " ".join("".join(traceback.format_exception_only(exc)).split())
        msg = f"{_place_of(exc, source, path)}: raised while it was imported: {raised}"
    raise UnusableInputError(msg)


def _place_of(exc: BaseException, source: str, path: Path | None) -> str:
    """Return the last line that is the user's: in the tools file, if it is known."""
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<") and frame.filename != __file__
    ]
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    if own:
        return f"{source}:{own[-1].lineno}"
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames and path is None else source
