"""
Immutable slotted values that are cheap to make.

A frozen dataclass pays `object.__setattr__` for every field: 3 µs for a
12-field result, 3 ms for a batch of 1,000 at the very moment when the user
waits for the turn. Here a value is filled as an ordinary slotted object of a
private *draft* subclass and then becomes its frozen class by one `__class__`
assignment (`benchmarks/results.py` has the figures).
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ("Frozen",)


class Frozen:
    """Base of the slotted values: refuses assignment and deletion, pickles, copies."""

    __slots__: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        msg = f"{type(self).__name__} is immutable: cannot set {name!r}"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> NoReturn:
        msg = f"{type(self).__name__} is immutable: cannot delete {name!r}"
        raise AttributeError(msg)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in slots_of(type(self))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={getattr(self, name)!r}"
            for name in slots_of(type(self))
            if not name.startswith("_")
        )
        return f"{type(self).__name__}({fields})"


def slots_of(cls: type) -> tuple[str, ...]:
    """Return the names of all fields, the bases' first."""
    return tuple(n for base in reversed(cls.__mro__) for n in getattr(base, "__slots__", ()))
