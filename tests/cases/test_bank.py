"""No case is without a test, and no test of a case without a case."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
bank: Any = importlib.import_module("bank")


def test_every_case_has_a_test() -> None:
    """Each id of the bank is the beginning of a test's name, and each such id is in it."""
    kinds, cases = bank.load()
    assert {id[0] for id in cases} == kinds.keys()
    assert len({case.title for case in cases.values()}) == len(cases)


def test_a_case_without_a_test_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: for a case nobody plays, and for a test of none."""
    source = bank.SOURCE.read_text("utf-8")
    changed = source.replace('A1 = "', 'A99 = "').replace("[beyond]", '[beyond]\nZ9 = "?"')
    (tmp_path / "bank.toml").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(bank, "SOURCE", tmp_path / "bank.toml")
    with pytest.raises(ValueError) as caught:
        bank.load()
    problems = str(caught.value)
    assert "A99: no test" in problems
    assert "beyond: no case Z9" in problems
    assert "test_a1_next_request_after_an_interrupt_is_well_formed is of no known" in problems


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_a1_next_request", ["A1"]),
        ("test_j2_j3_j7_results_are_in_order", ["J2", "J3", "J7"]),
        ("test_e_late_stop", []),
        ("test_limits_of_f1", []),
    ],
)
def test_ids_stand_at_the_beginning_of_a_name(name: str, ids: list[str]) -> None:
    """A name may begin with several; one that comes later in it is not meant."""
    assert bank.ids_of(name) == ids
