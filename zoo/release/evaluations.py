"""An evaluation as `metrics.json` records it: what its entry has to hold, and how its figures are shown."""

from __future__ import annotations

import json
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


def recall_k(name: str) -> int | None:
    """Return the k of a metric that is a recall@k, `recall_at_8`; None of any other."""
    recall = re.fullmatch(r"recall_at_([1-9][0-9]{0,8})", name)
    return int(recall[1]) if recall else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return those metrics that cards and tables show, each once, in the order of their columns."""
    given = {*names}
    recalls = sorted(filter(recall_k, given), key=lambda name: recall_k(name) or 0)
    return [name for name in (*ACCURACIES, "calibration_error", *recalls, "map") if name in given]


def metric_title(name: str) -> str:
    """Return what a card calls a metric of `in_order`."""
    titles = {**ACCURACIES, "calibration_error": "calibration error"}
    return "mAP" if name == "map" else (titles.get(name) or f"recall@{recall_k(name)}").capitalize()


def headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `metric` and `value` of an entry: the first of its `in_order` that is a number, else None."""
    name = next((name for name in in_order(metrics) if is_number(metrics[name])), None)
    return {"metric": name, "value": None if name is None else metrics[name]}


def checked_evaluation(entry: object, where: str) -> dict[str, Any]:
    """Return an entry with all keys that every entry has: also `metric` and `value`, `seed` and `date`.

    `entry` has `protocol`, `data`, `split`, `metrics` and what else describes it. Numbers of NumPy and torch
    become Python's, tuples lists. A `ReleaseError`, which begins with `where`, says what is missing or of
    another kind, or that a given `value` is not in `metrics`.
    """
    try:
        plain = json.loads(json.dumps(entry, default=lambda value: value.item()))  # of NumPy or torch
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"{where}: cannot be recorded as JSON: {error}") from None
    schema.check(schema.Evaluation, plain, where)
    metrics = plain["metrics"]
    for name in (key for shown in in_order(metrics) for key in (shown, f"{shown}_interval")):
        if metrics.get(name) is not None and not is_number(metrics[name]):
            raise ReleaseError(f'{where}: "metrics.{name}": found {metrics[name]!r:.40}, expected a number')
    first = headline(metrics)
    metric = plain.get("metric", first["metric"])
    value = metrics.get(metric)
    if plain.get("value", value) != value or (metric is not None and metric not in metrics):
        found = f"found {plain.get('value')!r:.40} as {metric!r:.40}"
        raise ReleaseError(f'{where}: "value": {found}, but "metrics" has {value!r:.40}')
    words = {key: plain[key] for key in ("protocol", "data", "split")}
    return {**words, **first, **plain, **first, "seed": plain.get("seed"), "date": plain.get("date")}


def identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what distinguishes evaluations: one that is made again takes the place of the earlier one."""
    sets = [(entry.get(name) or {}).get("sha256") for name in ("train_set", "test_set")]
    settings = entry.get("settings") or {}
    return (entry["protocol"], entry["data"], entry["split"], settings, entry.get("seed"), sets)


def stated_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation's settings, with the k that voted where there were fewer images than asked for."""
    settings, chosen = dict(entry.get("settings") or {}), entry.get("chosen")
    used = chosen.get("k") if entry["protocol"] == "knn" and isinstance(chosen, Mapping) else None
    if is_number(used) and settings.get("k", used) != used:
        settings["k"] = f"{used} ({settings['k']} asked)"
    return settings


def split_words(entry: Mapping[str, Any]) -> str:
    """Return the split of an evaluation, with the classes it is limited to and the images from training."""
    words, about = [str(entry["split"])], entry.get("test_set") or {}
    if entry.get("classes_measured"):
        words.append(f"{entry['classes_measured']} of {about.get('num_classes', '?')} classes")
    if entry.get("shared_images"):
        words.append(f"{entry['shared_images']} of {about.get('num_images', '?')} images from training")
    return ", ".join(words)
