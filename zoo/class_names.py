"""What a class may be called: words that a figure, a card and a terminal can show."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.errors import is_printable

LONGEST = 10_000
"""Characters of a name, as releases allow."""
EXPECTED = f"words in UTF-8 without control characters, at most {LONGEST:,} characters long"
"""What `first_unfit` looks for, in words."""


def first_unfit(names: Sequence[object]) -> int | None:
    """Return the first class that cannot be called as it is; None: all can be."""
    return next((place for place, name in enumerate(names) if not _is_fit(name)), None)


def _is_fit(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= LONGEST and is_printable(name)
