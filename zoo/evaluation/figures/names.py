"""Names that fit and still differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from zoo.evaluation.figures.style import SMALL, fitted


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


def without_common_end(tags: Sequence[str]) -> list[str]:
    """Return tags such as `ce_digits_lt50`, `paco_digits_lt50` without the words that all end in."""
    words = [tag.split("_") for tag in tags]
    shared = 0
    while (
        len(tags) > 1
        and all(len(w) > shared + 1 for w in words)
        and len({w[-shared - 1] for w in words}) == 1
    ):
        shared += 1
    return ["_".join(w[: len(w) - shared]) for w in words]


def _numbered(c: int, name: str, cut: Callable[[str], str]) -> str:
    shown = cut(f"{c}: {name}")
    return shown if shown.startswith(f"{c}:") else str(c)
