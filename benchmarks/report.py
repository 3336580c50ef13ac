"""Text tables, and the figures that have a bound."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

__all__ = ("Report", "seconds", "size", "times")


def seconds(value: float) -> str:
    """Show a duration in the unit that suits it."""
    if value < 0.001:
        return f"{value * 1e6:.3g} µs" if value * 1e6 < 99.95 else f"{value * 1e6:.0f} µs"
    if value < 1.0:
        return f"{value * 1e3:.3g} ms" if value * 1e3 < 99.95 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s"


def times(value: float) -> str:
    """Show a ratio."""
    return f"{value:.3g} ×" if value < 99.95 else f"{value:.0f} ×"


def size(value: float) -> str:
    """Show a number of bytes."""
    return f"{value / 1024:.0f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.2f} MiB"


@dataclass(frozen=True, slots=True)
class _Figure:
    backend: str
    name: str
    bound: str
    measured: str
    ok: bool


class Report:
    """Prints as it goes; keeps what has a bound for the summary."""

    def __init__(self) -> None:
        self._figures: list[_Figure] = []

    @property
    def all_ok(self) -> bool:
        return all(figure.ok for figure in self._figures)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; the first column stands left, the others right."""
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        print(f"\n{title}")
        rule = ["-" * width for width in widths]
        for row in (head, rule, *rows):
            first, *others = (
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            print("  " + "  ".join((first, *others)).rstrip())
        sys.stdout.flush()

    def at_most(
        self, backend: str, name: str, bound: float, value: float, show: object = times
    ) -> None:
        """Hold a figure against the most that it may be."""
        self._hold(backend, name, f"≤ {show(bound)}", show(value), value <= bound)  # type: ignore[operator]

    def at_least(
        self, backend: str, name: str, bound: float, value: float, show: object = times
    ) -> None:
        """Hold a figure against the least that it has to be."""
        self._hold(backend, name, f"≥ {show(bound)}", show(value), value >= bound)  # type: ignore[operator]

    def expect(self, backend: str, name: str, wanted: str, found: str) -> None:
        """Hold what was seen against what has to be seen."""
        self._hold(backend, name, wanted, found, wanted == found)

    def _hold(self, backend: str, name: str, bound: str, measured: str, ok: bool) -> None:
        self._figures.append(_Figure(backend, name, bound, measured, ok))

    def machine(self) -> None:
        """Print what all this ran on."""
        packages = []
        for name in ("anyio", "trio", "uvloop"):
            try:
                packages.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue
        print(
            f"\n{platform.python_implementation()} {platform.python_version()}, "
            f"{platform.platform()}, {os.cpu_count()} cores; {', '.join(packages)}"
        )

    def summary(self) -> None:
        """Print every figure that has a bound, by event loop."""
        for backend in dict.fromkeys(figure.backend for figure in self._figures):
            rows = [
                (f.name, f.bound, f.measured, "ok" if f.ok else "NO")
                for f in self._figures
                if f.backend == backend
            ]
            self.table(f"Summary: {backend}", ("figure", "bound", "measured", "ok"), rows)
