"""Options by the names of tools are for tools that there are."""

from __future__ import annotations

import pytest

from anyio_toolbatch.integrations._options import check_names


def test_known_names_pass() -> None:
    """Not each tool needs options."""
    check_names({"edit": {}}, ["edit", "search"])
    check_names({}, [])


@pytest.mark.parametrize(
    ("known", "told"), [(["search", "edit"], "known: edit, search"), ([], "known: none")]
)
def test_strangers_are_named_beside_what_is_known(known: list[str], told: str) -> None:
    """P6: whoever misspells a name reads both."""
    with pytest.raises(ValueError, match=rf"no tool named 'edti', 'x' \({told}\)"):
        check_names({"edti": {}, "x": {}}, known)
