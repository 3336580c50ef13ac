"""
How much text the results of a turn may have: who gets which share, and the cut.

Lengths are counted in characters (code points). A share counts the mark that
tells of the cut, so what is shown keeps to it; where it is smaller than the
mark alone, the mark is shown all the same: a silent cut would be a lie.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("cut_middle", "fair_shares")


def fair_shares(sizes: Sequence[int], total: int) -> list[int]:
    """
    Divide `total` so that nobody gets more than its size, and the rest is even.

    Small ones get all that they need; what they leave is shared by the large
    ones alike. Of equal ones the later gets the odd character.
    """
    shares = [0] * len(sizes)
    for done, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], total // (len(sizes) - done))
        total -= shares[index]
    return shares


def cut_middle(text: str, limit: int, *, head: int = 0, note: str = "") -> str:
    """
    Return `text` with its middle left out, and a mark that says how much that is.

    Args:
        text: Free of surrogates, so that every index is between characters.
        limit: The length to keep to, with the mark.
        head: So many characters at the beginning stay in any case.
        note: Goes into the mark, such as where the whole can be found.

    Returns:
        The cut text, or `text` itself where it fits, or the cut would not be shorter.
    """
    if len(text) <= limit:
        return text
    # The number in the mark can only have fewer digits than the length has.
    room = max(limit - len(_mark(len(text), note)), 0)
    front = max(head, room - room // 2)
    back = max(room - front, 0)
    left_out = len(text) - front - back
    cut = f"{text[:front]}{_mark(left_out, note)}{text[len(text) - back :]}"
    return cut if left_out > 0 and len(cut) < len(text) else text


def _mark(left_out: int, note: str) -> str:
    return f"\n[… {left_out} characters left out{note} …]\n"
