"""Names of classes that fit and still differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from zoo.evaluation._figure import SMALL, fitted


def shortened(names: Sequence[str], cut: Callable[[str], str]) -> list[str]:
    """Cut names so that no two become the same.

    Where the beginnings of several are alike, their ends are shown; where these are too, or the names
    themselves, the class's number in front.

    Args:
        names: of the C classes.
        cut: returns a text that fits; what is too long ends in an ellipsis.
    """
    ways: tuple[Callable[[int, str], str], ...] = (
        lambda _, name: cut(name[::-1])[::-1],
        lambda c, name: _numbered(c, name, cut),
    )
    found = [cut(name) for name in names]
    for other in ways:
        times = Counter(found)
        found = [
            shown if times[shown] == 1 else other(c, name)
            for c, (name, shown) in enumerate(zip(names, found, strict=True))
        ]
    return found


def fitted_names(names: Sequence[str], inches: float, points: float = SMALL) -> list[str]:
    """Return names that are no wider, and that differ."""
    return shortened(names, lambda name: fitted(name, inches, points))


def _numbered(c: int, name: str, cut: Callable[[str], str]) -> str:
    shown = cut(f"{c}: {name}")
    return shown if shown.startswith(f"{c}:") else str(c)
