"""Which tools a file or module has, and what is said where it has none."""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

import pytest

from anyio_toolbatch import Tool
from anyio_toolbatch._cli.errors import UnusableInputError
from anyio_toolbatch._cli.toolbox import collect


def names_in(code: str) -> list[str]:
    module = ModuleType("some_tools")
    exec(code, vars(module))
    tools = collect(module, "some_tools.py")
    return list(tools) if isinstance(tools, dict) else [t.__name__ for t in tools]  # type: ignore[union-attr]


def test_public_functions_of_the_module_are_its_tools() -> None:
    """Sync, async and wrapped ones; not what is private, imported, a class or a value."""
    code = """
from functools import lru_cache
from os.path import join
from json import dumps as public
import re
class Helper:
    pass
def find(): ...
async def fetch(): ...
def _private(): ...
@lru_cache
def cached(): ...
answer = 42
"""
    assert names_in(code) == ["find", "fetch", "cached"]


def test_tool_objects_count_wherever_they_come_from() -> None:
    """A `Tool` was made on purpose: under its own name, and in place of its function."""
    code = """
from anyio_toolbatch import Tool, tool
@tool(name="search", timeout=5)
def decorated(): ...
def plain(): ...
_hidden = same = Tool(plain)
"""
    assert names_in(code) == ["search", "plain"]


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ("[one]", ["one"]),
        ("(one, two)", ["one", "two"]),
        ("{'first': one}", ["first"]),
        ("(f for f in (one, two))", ["one", "two"]),
    ],
)
def test_tools_is_used_instead_where_it_is_there(tools: str, names: list[str]) -> None:
    """`TOOLS`, a list or a mapping, is the module's own word on what its tools are."""
    assert names_in(f"def one(): ...\ndef two(): ...\nTOOLS = {tools}") == names


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "has no tools; expected TOOLS"),
        ("from os.path import join", "has no tools"),
        ("TOOLS = []", "has no tools; expected at least one tool in TOOLS"),
        ("TOOLS = {}", "has no tools"),
        ("TOOLS = 5", "TOOLS: tools must be an iterable"),
        ("TOOLS = 'abc'", "TOOLS: tools must be an iterable"),
        ("TOOLS = [1]", "TOOLS: a tool must be a Tool or a callable, not int"),
        ("TOOLS = [print, print]", "TOOLS: two tools are named 'print'"),
    ],
)
def test_a_module_without_usable_tools_is_refused(code: str, words: str) -> None:
    """The sentence says what was expected of the module."""
    with pytest.raises(UnusableInputError, match=r"some_tools\.py") as caught:
        names_in(code)
    assert words in str(caught.value)


def test_two_different_tools_of_one_name_are_refused() -> None:
    """Which of the two a call means could only be guessed."""
    module = ModuleType("some_tools")
    vars(module).update(a=Tool(print, name="x"), b=Tool(len, name="x"))
    with pytest.raises(UnusableInputError, match="two tools are named 'x'"):
        collect(module, "some_tools.py")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(:\n  pass", ["tools.py:1: not valid Python"]),
        (
            "\n\nx = 1 / 0\ndef f(): ...",
            ["tools.py:3:", "ZeroDivisionError: division by zero"],
        ),
        ("import no_such_package", ["tools.py:1:", "No module named 'no_such_package'"]),
        ("def f():\n    raise ValueError('a\\nb')\nf()", ["tools.py:2:", "ValueError: a b"]),
        ("raise SystemExit(3)", ["tools.py:1:", "SystemExit"]),
        ("import sibling", ["tools.py:1:", "KeyError"]),
        ("import unparsable", ["unparsable.py:1: not valid Python"]),
        ("from anyio_toolbatch import Tool\nTool(len, exclusive=1)", ["tools.py:2:"]),
        (b"x = '\xff'\ndef f(): ...", ["tools.py"]),
        (b"x = 1\0\n", ["tools.py"]),
        ("_x = 1", ["tools.py has no tools"]),
    ],
)
def test_a_tools_file_that_cannot_be_imported(
    desk: Any, main: Any, code: Any, words: list[str]
) -> None:
    """Status 2 and one sentence with the line that is to blame, whatever was raised."""
    desk.turn(desk.openai(("f", {})))
    desk.write("tools.py", code)
    desk.write("sibling.py", "{}['x']")
    desk.write("unparsable.py", "def")
    status, out, err = main("run", "turn.json", "--tools", "tools.py")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    for word in words:
        assert word in err


def test_a_tools_file_or_module_that_is_not_there(desk: Any, main: Any) -> None:
    """A path and a module's name are told apart in what is said."""
    desk.turn(desk.openai(("f", {})))
    (desk.folder / "a_folder").mkdir()
    desk.write("half.py", "import no_such_package\n")
    for given, words in [
        ("missing.py", "missing.py does not exist"),
        ("./a_folder", "./a_folder is a directory"),
        ("no_such_module", "no module and no file named 'no_such_module'"),
        ("no_such.module", "no module and no file named 'no_such.module'"),
        ("json.no_such", "no module and no file named 'json.no_such'"),
        ("..relative", "no module and no file named '..relative'"),
        ("half", "half.py:1"),
    ]:
        status, out, err = main("run", "turn.json", "--tools", given)
        assert (status, out) == (2, ""), given
        assert words in err
        assert len(err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_tools_file_without_permission(desk: Any, main: Any) -> None:
    """A file that may not be read is said to be that."""
    desk.turn(desk.openai(("f", {})))
    desk.write("tools.py", "def f(): ...").chmod(0)
    status, _, err = main("run", "turn.json", "--tools", "tools.py")
    assert status == 2 and "tools.py cannot be read" in err


def test_a_tools_file_may_have_the_name_of_a_known_module(desk: Any, main: Any) -> None:
    """A file `json.py` neither shadows Python's own nor is taken for it."""
    desk.turn(desk.openai(("json_of", {"value": [1]})))
    desk.write("json.py", "import anyio\ndef json_of(value): return str(value)")
    status, out, _ = main("run", "turn.json", "--tools", "./json.py")
    assert (status, json.loads(out)[0]["content"]) == (0, "[1]")


def test_a_tools_file_can_import_its_neighbours(desk: Any, main: Any) -> None:
    """As a script can, wherever the command was called from."""
    (desk.folder / "sub").mkdir()
    desk.write("sub/neighbour.py", "WORD = 'hi'")
    desk.write("sub/tools.py", "import neighbour\ndef f(): return neighbour.WORD")
    desk.turn(desk.openai(("f", {})))
    status, out, _ = main("run", "turn.json", "--tools", "sub/tools.py")
    assert (status, json.loads(out)[0]["content"]) == (0, "hi")
