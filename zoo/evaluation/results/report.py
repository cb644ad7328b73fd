"""Results as a table, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zoo.release.evaluations import ACCURACIES, in_order, recall_k

_ANY_WIDTH = 10_000  # columns, of no terminal


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the keys that a table of these metrics shows, with their heading.

    Accuracies have the same columns in every table; calibration error (ECE), recalls and mean average
    precision have one where there are some.
    """
    keys = {key for metrics in rows for key in metrics}
    if "accuracy" in keys or all(recall_k(key) is None for key in keys):
        keys |= ACCURACIES.keys()
    return {key: _heading(key) for key in in_order(keys)}


def table(rows: Mapping[str, Mapping[str, Any]], *, title: str | None = None, first: str = "method") -> Table:
    """Return one line per method with its figures in percent, one decimal, `-` where there is none.

    Args:
        rows: metrics of each method, as entries of metrics.json have them.
        title: of the table.
        first: heading of the methods' column.
    """
    result = Table(title=title and escape(title))
    result.add_column(first, no_wrap=True)
    shown = columns(rows.values())
    for heading in shown.values():
        result.add_column(heading, justify="right", no_wrap=True)
    for name, metrics in rows.items():
        result.add_row(escape(name), *_cells(metrics, shown))
    return result


def plain(rows: Mapping[str, Mapping[str, Any]], *, first: str = "method") -> str:
    """Return the same table as lines of aligned text without colour, for logs and files."""
    shown = columns(rows.values())
    lines = [
        [first, *shown.values()],
        *([name, *_cells(metrics, shown)] for name, metrics in rows.items()),
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def show(
    rows: Mapping[str, Mapping[str, Any]],
    *,
    title: str,
    first: str = "method",
    console: Console | None = None,
) -> None:
    """Print the table; every figure is shown whole, wherever it goes.

    A frame needs a terminal that it fits into: in a narrower one, in a pipe and in a file the title and the
    lines of `plain` are printed, which nothing crops.

    Args:
        rows: see `table`.
        title: see `table`.
        first: see `table`.
        console: where to print; standard output when None.
    """
    console = console or Console()
    framed = table(rows, title=title, first=first)
    needed = console.measure(framed, options=console.options.update(max_width=_ANY_WIDTH)).maximum
    if console.is_terminal and needed <= console.width:
        console.print(framed)
    else:
        print(title, plain(rows, first=first), sep="\n", file=console.file)


def _heading(key: str) -> str:
    k = recall_k(key)
    return {**ACCURACIES, "calibration_error": "ECE", "map": "mAP"}[key] if k is None else f"R@{k}"


def _cells(metrics: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [_cell(metrics.get(key), metrics.get(f"{key}_interval")) for key in keys]


def _cell(value: float | None, interval: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if interval is None else f"{value:.1f} ± {interval:.1f}"
