"""The one way in which the command line refuses to work."""

from __future__ import annotations

__all__ = ("UnusableInputError",)


class UnusableInputError(Exception):
    """
    Raised where the command cannot do what it was asked to; exit status 2.

    The message is one sentence for the user: which file, which place in it,
    what was expected.
    """
