"""Which test plays which case: `bank.toml`, and the names of the tests in this folder."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "bank.toml"


@dataclass
class Case:
    """One fault that has been seen, and the tests that would find it here."""

    id: str
    title: str
    beyond: str = ""
    """What of it is answered in another way."""
    tests: list[tuple[str, str]] = field(default_factory=list)
    """File, from this folder on, and name."""


def load() -> tuple[dict[str, str], dict[str, Case]]:
    """
    Return what each kind is about, and the cases by id.

    Raises:
        ValueError: A case has no test, a test names no case, or the file is not whole.
    """
    table = tomllib.loads(SOURCE.read_text("utf-8"))
    kinds: dict[str, str] = table["kinds"]
    cases = {id: Case(id, title) for id, title in table["cases"].items()}
    problems = [f"{id}: of no kind" for id in cases if id[0] not in kinds]
    for id, text in table["beyond"].items():
        if id in cases:
            cases[id].beyond = text
        else:
            problems.append(f"beyond: no case {id}")
    for file, name in _tests():
        for id in ids_of(name):
            if id in cases:
                cases[id].tests.append((file, name))
            else:
                problems.append(f"{file}: {name} is of no known case")
    problems += [f"{case.id}: no test" for case in cases.values() if not case.tests]
    if problems:
        raise ValueError("; ".join(problems))
    return kinds, cases


def ids_of(name: str) -> list[str]:
    """Return the cases that a test's name begins with: `test_j2_j3_…` is of two."""
    ids = []
    for word in name.split("_")[1:]:
        if not re.fullmatch(r"[a-z]\d+", word):
            break
        ids.append(word.upper())
    return ids


def _tests() -> Iterator[tuple[str, str]]:
    for path in files():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) and node.name.startswith("test_"):
                yield path.relative_to(HERE).as_posix(), node.name


def files() -> list[Path]:
    """Return the files that tests of cases are in."""
    return sorted(HERE.rglob("test_kind*.py"))
