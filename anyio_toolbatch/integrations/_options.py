"""Options that a framework's user gives by the names of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ("check_names",)


def check_names(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """
    Raise if options are for a tool that there is not.

    Raises:
        ValueError: A name, most often a misspelled one, is none of the known.
    """
    known = sorted(known)
    strangers = [name for name in options if name not in known]
    if strangers:
        msg = (
            f"options: there is no tool named {', '.join(map(repr, strangers))} "
            f"(known: {', '.join(known) or 'none'})"
        )
        raise ValueError(msg)
