"""What a class may be called: words that a figure, a card and a terminal can show."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 10_000
"""Characters of a name, as releases allow."""
EXPECTED = f"words in UTF-8 without control characters, at most {LONGEST:,} characters long"
"""What `first_unfit` looks for, in words."""

# Unicode's categories Cc and Cs: a terminal obeys the first; the others are bytes that are no UTF-8
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_shown(text: str) -> bool:
    """Whether every character can be printed and written to a file."""
    return _UNSHOWN.search(text) is None


def first_unfit(names: Sequence[object]) -> int | None:
    """Return the first class that cannot be called as it is; None: all can be."""
    return next((place for place, name in enumerate(names) if not _is_fit(name)), None)


def _is_fit(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= LONGEST and is_shown(name)
