"""Results as a table of plain text, for people, logs and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zoo.release.evaluations import ACCURACIES, in_order, recall_k


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the keys that a table of these metrics shows, with their heading.

    Accuracies have the same columns in every table; calibration error (ECE), recalls and mean average
    precision have one where there are some.
    """
    keys = {key for metrics in rows for key in metrics}
    if "accuracy" in keys or all(recall_k(key) is None for key in keys):
        keys |= ACCURACIES.keys()
    titles = {**ACCURACIES, "calibration_error": "ECE", "map": "mAP"}
    return {key: titles.get(key) or f"R@{recall_k(key)}" for key in in_order(keys)}


def plain(rows: Mapping[str, Mapping[str, Any]], *, first: str = "method") -> str:
    """Return one line for each row: its figures in percent, one decimal, `-` where there is none.

    Args:
        rows: metrics by name, as entries of metrics.json have them. An interval is shown in brackets.
        first: heading of the names' column.
    """
    shown = columns(rows.values())
    lines = [[first, *shown.values()]]
    lines += [[name, *(_cell(metrics, key) for key in shown)] for name, metrics in rows.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
    )


def _cell(metrics: Mapping[str, Any], key: str) -> str:
    value, half = metrics.get(key), metrics.get(f"{key}_interval")
    if value is None:
        return "-"
    return f"{value:.1f}" if half is None else f"{value:.1f} [{value - half:.1f}, {value + half:.1f}]"
