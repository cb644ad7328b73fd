"""An evaluation as `metrics.json` records it: what its entry has to hold, and which figure comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from zoo.config import is_number
from zoo.errors import ReleaseError
from zoo.release import schema

ACCURACIES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "many": "many",
    "medium": "medium",
    "few": "few",
}
"""Top-1 accuracies in percent, in the order of every table, with their heading."""

_WORDS = ("protocol", "data", "split")
_RECALL = re.compile(r"recall_at_([1-9][0-9]{0,8})")


def recall_k(name: str) -> int | None:
    """Return the k of a metric that is a recall@k, `recall_at_8`; None of any other."""
    recall = _RECALL.fullmatch(name)
    return int(recall[1]) if recall else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return those metrics that cards and tables show, each once, in the order of their columns."""
    given = {*names}
    ks = sorted(k for name in given if (k := recall_k(name)) is not None)
    shown = (*ACCURACIES, "calibration_error", *(f"recall_at_{k}" for k in ks), "map")
    return [name for name in shown if name in given]


def headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `metric` and `value` of an entry: name and number of the figure that tables show first.

    That is the accuracy, or of retrieval the recall at its smallest k. Both are None where no table shows
    any of the metrics.
    """
    name = next((name for name in in_order(metrics) if is_number(metrics[name])), None)
    return {"metric": name, "value": None if name is None else metrics[name]}


def checked_evaluations(entries: object, where: str) -> list[dict[str, Any]]:
    """Return the entries as `checked_evaluation` does.

    Raises:
        ReleaseError: beginning with `where`, when they are no list of evaluations.
    """
    if not isinstance(entries, list):
        raise ReleaseError(f'{where}: "evaluations" is no list')
    return [checked_evaluation(entry, f"{where}: evaluation {index}") for index, entry in enumerate(entries)]


def checked_evaluation(entry: object, where: str) -> dict[str, Any]:
    """Return an entry with all that every entry has: also `metric` and `value`, `seed` and `date`.

    Entries of earlier versions lack the former two, those made by hand any of them; a seed or date that was
    not recorded is None.

    Raises:
        ReleaseError: beginning with `where`, when what the card is made of is not there, or `value` is not
            the figure in `metrics`.
    """
    words = [isinstance(entry, dict) and isinstance(entry.get(key), str) for key in _WORDS]
    if not isinstance(entry, dict) or not all(words) or not isinstance(entry.get("metrics"), dict):
        raise ReleaseError(f'{where} needs the words {", ".join(_WORDS)} and a section "metrics"')
    measured = {name: entry["metrics"].get(name) for name in ACCURACIES}
    counts = {name: entry.get(name) for name in ("shared_images", "classes_measured")}
    for name, found in {**measured, **counts}.items():
        fits = isinstance(found, int) if name in counts else is_number(found)
        if found is not None and not fits:
            raise ReleaseError(f'{where}: "{name}": found {str(found)[:40]!r}, expected a number')
    for name in ("settings", "train_set", "test_set"):
        if not isinstance(entry.get(name), dict | None):
            raise ReleaseError(f'{where}: "{name}" is no section')
    schema.check_dataset(entry.get("test_set") or {}, f"{where}: test_set")
    if problem := contradiction(entry):
        raise ReleaseError(f"{where}: {problem}")
    first = {key: entry[key] for key in _WORDS} | headline(entry["metrics"])  # a reader sees them at once
    rest = {key: value for key, value in entry.items() if key not in first}
    return {**first, **rest, "seed": entry.get("seed"), "date": entry.get("date")}


def contradiction(entry: Mapping[str, Any]) -> str:
    """Say how the `value` of an entry is another than its metrics have; '' where it is not, or absent.

    It is never used: what follows from other keys says nothing new. But others read it in the file as the
    result, and of two results nobody could tell which was measured; so this is refused as a key that stands
    there twice is. Which of the metrics is the headline may differ between versions, and contradicts nothing.
    """
    metrics, value = entry.get("metrics"), entry.get("value")
    if not isinstance(metrics, Mapping) or "value" not in entry:
        return ""
    name = entry.get("metric", headline(metrics)["metric"])
    measured = metrics.get(name) if isinstance(name, str) else None
    if value == measured and (value is None or is_number(value)):
        return ""
    return (
        f'"value": found {str(value)[:40]}, as "metric" {str(name)[:40]!r}; expected {str(measured)[:40]}, '
        'which "metrics" has; both keys follow from there and may be left out'
    )
