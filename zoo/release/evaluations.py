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

PREFERRED = ("classifier", "linear_full", "linear", "knn")
"""By which protocol a release is ranked: by the first of these that it was measured by."""

_WORDS = ("protocol", "data", "split")
_FOLLOWS = '"metric" and "value" follow from there and may be left out'
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


def plain(value: object, where: str, path: tuple[str, ...] = ()) -> Any:
    """Return a value as reading the file gives it: numbers of NumPy and torch are Python's, tuples are lists.

    Raises:
        ReleaseError: beginning with `where`, for what a file cannot hold: other objects, and keys that are no
            words, which would be others when they are read.
    """
    if len(path) > schema.MAX_DEPTH:
        return value  # which `check_words` refuses
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ReleaseError(
                f"{where}: {_place(path)}found the key {_short(odd[0])}, expected words as keys"
            )
        return {key: plain(item, where, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, where, (*path, str(index))) for index, item in enumerate(value)]
    if getattr(value, "ndim", None) == 0:
        value = getattr(value, "item", lambda: value)()
    if isinstance(value, str | int | float | None):
        return value
    raise ReleaseError(
        f"{where}: {_place(path)}found {_short(value)} ({type(value).__name__}), expected a number, words, a "
        "list, a section or None"
    )


def checked_evaluation(entry: object, where: str) -> dict[str, Any]:
    """Return an entry with all that every entry has: also `metric` and `value`, `seed` and `date`.

    Entries of earlier versions lack the former two, those made by hand any of them; a seed or date that was
    not recorded is None.

    Raises:
        ReleaseError: beginning with `where`, when what the card is made of is not there, seed, date or a
            figure that tables show is of another kind, or `metric` and `value` are not in `metrics`.
    """
    words = [isinstance(entry, dict) and isinstance(entry.get(key), str) for key in _WORDS]
    if not isinstance(entry, dict) or not all(words) or not isinstance(entry.get("metrics"), dict):
        raise ReleaseError(f'{where} needs the words {", ".join(_WORDS)} and a section "metrics"')
    shown = [key for name in in_order(entry["metrics"]) for key in (name, f"{name}_interval")]
    measured = {key: entry["metrics"].get(key) for key in shown}
    counts = {name: entry.get(name) for name in ("shared_images", "classes_measured")}
    for name, found in {**measured, **counts}.items():
        fits = isinstance(found, int) if name in counts else is_number(found)
        if found is not None and not fits:
            raise ReleaseError(f'{where}: "{name}": found {str(found)[:40]!r}, expected a number')
    for name, kind, expected in (("seed", int, "a whole number or null"), ("date", str, "a word or null")):
        found = entry.get(name)
        if isinstance(found, bool) or not isinstance(found, kind | None):
            raise ReleaseError(f'{where}: "{name}": found {_short(found)}, expected {expected}')
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
    """Say how `metric` or `value` of an entry is not in its metrics; '' where they are, or absent.

    They are never used: what follows from other keys says nothing new. But others read it in the file as the
    result, and of two results nobody could tell which was measured; so this is refused as a key that stands
    there twice is. Which of the metrics is the headline may differ between versions, and contradicts nothing.
    """
    metrics, value = entry.get("metrics"), entry.get("value")
    if not isinstance(metrics, Mapping):
        return ""
    name = entry.get("metric", headline(metrics)["metric"])
    if name is not None and not (isinstance(name, str) and name in metrics):
        return f'"metric": found {_short(name)}, expected a name in "metrics"; {_FOLLOWS}'
    measured = None if name is None else metrics[name]
    if "value" not in entry or (value == measured and (value is None or is_number(value))):
        return ""
    return (
        f'"value": found {_short(value)}, as "metric" {_short(name)}; expected {_short(measured)}, '
        f'which "metrics" has; {_FOLLOWS}'
    )


def _place(path: tuple[str, ...]) -> str:
    return f'"{".".join(path)}": ' if path else ""


def _short(value: object) -> str:
    return repr(value)[:40]
