"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def escaped(text: str) -> str:
    """Return a text of which no character ends a cell or begins a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,)
) -> str:
    """Return a table whose cells may hold anything; its last line has no end.

    Args:
        head: of the columns.
        rows: a cell for each column.
        left: columns of words; all others are aligned to the right, as numbers are.
    """
    rule = ["---" if place in left else "---:" for place in range(len(head))]
    lines = [[*map(escaped, head)], rule, *([*map(escaped, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
