"""The tables of a card's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config import is_number
from zoo.markdown import markdown_table
from zoo.release.card.metadata import facts, metric_title, split_words, stated_settings
from zoo.release.evaluations import ACCURACIES, in_order


def tables(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return tables with their titles, every evaluation a row with its protocol, data and split."""
    classified = [entry for entry in evaluations if "accuracy" in entry["metrics"]]
    others = [entry for entry in evaluations if "accuracy" not in entry["metrics"]]
    names = [
        name for name in (*ACCURACIES, "calibration_error") if any(name in e["metrics"] for e in classified)
    ]
    kinds = (
        ("Top-1 accuracies.", classified, names),
        ("Retrieval.", others, in_order(name for entry in others for name in entry["metrics"])),
    )
    return [(title, _table(entries, names)) for title, entries, names in kinds if entries]


def _table(evaluations: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    head = ["Protocol", "Data", "Split", *(f"{metric_title(name)} (%)" for name in names), "Settings"]
    rows = []
    for entry in evaluations:
        metrics = entry["metrics"]
        values = [_percent(metrics.get(name), metrics.get(f"{name}_interval")) for name in names]
        settings = "; ".join(facts(stated_settings(entry)))
        rows.append([entry["protocol"], entry["data"], split_words(entry), *values, settings])
    return markdown_table(head, rows, left=(0, 1, 2, len(head) - 1))


def _percent(value: Any, interval: Any = None) -> str:
    if not is_number(value):
        return ""
    return f"{value:.2f} ± {interval:.2f}" if is_number(interval) else f"{value:.2f}"
