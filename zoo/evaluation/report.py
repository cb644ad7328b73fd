"""Results as a table, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "many": "many",
    "medium": "medium",
    "few": "few",
}
"""Keys of `classification_metrics` in the order of every table, with their heading."""


def table(rows: Mapping[str, Mapping[str, Any]], *, title: str | None = None, first: str = "method") -> Table:
    """Return one line per method with its accuracies in percent, one decimal, `-` where there is none.

    Args:
        rows: metrics of each method, as `classification_metrics` returns them.
        title: of the table.
        first: heading of the methods' column.
    """
    result = Table(title=title and escape(title))
    result.add_column(first, no_wrap=True)
    for heading in COLUMNS.values():
        result.add_column(heading, justify="right", no_wrap=True)
    for name, metrics in rows.items():
        result.add_row(escape(name), *_cells(metrics))
    return result


def plain(rows: Mapping[str, Mapping[str, Any]], *, first: str = "method") -> str:
    """Return the same table as lines of aligned text without colour, for logs and files."""
    lines = [[first, *COLUMNS.values()], *([name, *_cells(metrics)] for name, metrics in rows.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def _cells(metrics: Mapping[str, Any]) -> list[str]:
    values = [metrics.get(key) for key in COLUMNS]
    return ["-" if value is None else f"{value:.1f}" for value in values]
