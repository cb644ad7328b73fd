"""What a report is about: one release or run, with what it recorded and what is seen on its images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from zoo.modules.centers import Centers
from zoo.report import series
from zoo.report.look import Look
from zoo.report.series import Row

LAST = 0.2
"""Share of the steps that a scalar has records of, at the end of a training, that means are taken over."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One release or run of a report.

    Attributes:
        label: short and unique in the report.
        name: of the weights.
        objective: the recipe's `objective.name`.
        data: the training data in words.
        seed: of the training; None where it is not known.
        group: the label without the seed: subjects of one group differ in the seed alone.
        recipe: plain; empty where there is none.
        rows: of metrics.jsonl; may be empty.
        class_rows: of classes.jsonl; may be empty.
        class_names: of the C classes.
        class_counts: training images of each class `[C]`, int64; -1 where not known.
        centers: learned class centers, if there are any.
        look: what is seen on a sample of the images; None where there are none.
        without_look: why `look` is None.
        numbers: by `summary`.
        place: of its group in the report, which decides colour and marker.
    """

    label: str
    name: str
    objective: str
    data: str
    seed: int | None
    group: str
    recipe: Mapping[str, Any]
    rows: Sequence[Row]
    class_rows: Sequence[Row]
    class_names: Sequence[str]
    class_counts: Tensor
    centers: Centers | None = None
    look: Look | None = None
    without_look: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    place: int = 0


def summary(subject: Subject, evaluations: Sequence[Row] = ()) -> dict[str, float]:
    """Return a subject's numbers; what is not finite or not there is left out.

    Args:
        subject: its `numbers` are not read.
        evaluations: the entries of its release's metrics.json. Of several of one protocol on the same data
            the first counts: the recipe's own.

    Returns:
        Values by name:

        - `recorded/NAME`: mean of every recorded scalar over the last fifth of its records, each of which
          counts by the steps that it is the mean of;
        - `beginning/NAME`: its first record;
        - `deviation/NAME`: its standard deviation over the records of `recorded`;
          `relative_deviation/NAME`: the same by the size of their mean;
        - `unsteadiness/NAME`: standard deviation of the differences of consecutive ones of these records, by
          sqrt 2 and by the size of their mean: noise from record to record, whatever the level and a drift;
        - `features/NAME`: measures of the look: `uniformity`, `tolerance`, `alignment`, means and standard
          deviations of the scores of two views (`positive_score`), of pairs of one class and of others,
          `accuracy` in percent;
        - `balance/NAME`: mean over the most frequent third of the classes by mean over the rarest third, of
          `class_gradient`, `feature_gradient` and `center_gradient` over the whole training;
        - `accuracy/PROTOCOL`: top-1 in percent on the data that the subject was trained on;
          `accuracy/PROTOCOL/METRIC`: every other metric, and how many `test_images` they are of. On other
          data PROTOCOL is followed by their words, e.g. `accuracy/knn on cifar100 fine_label`.
    """
    found = _recorded(subject.rows) | _balance(subject) | _accuracies(evaluations, subject.data)
    if subject.look is not None:
        found |= {f"features/{name}": value for name, value in subject.look.numbers().items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def at_the_end(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of a scalar over the last fifth of its records; None where it has none."""
    values, weights = series.ending(rows, name, LAST)
    return float(np.average(values, weights=weights)) if len(values) else None


def counts_of(subject: Subject) -> series.Array:
    """Return the training images of each class that was looked at `[C]`; -1 where not known.

    They are those of the subject's own training where the images are of the same classes.
    """
    look, known = subject.look, subject.class_counts
    if look is not None and (tuple(look.class_names) != tuple(subject.class_names) or int(known.min()) < 0):
        known = look.class_counts
    return np.asarray(known.double().numpy())


def _recorded(rows: Sequence[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in series.names(rows):
        values, weights = series.ending(rows, name, LAST)
        if not len(values):
            continue
        mean = float(np.average(values, weights=weights))
        found[f"recorded/{name}"] = mean
        found[f"beginning/{name}"] = float(series.curve(rows, name).values[0])
        if len(values) > 1:
            variance = np.average((values - mean) ** 2, weights=weights) * len(values) / (len(values) - 1)
            found[f"deviation/{name}"] = float(np.sqrt(variance))
        if len(values) > 1 and mean:
            found[f"relative_deviation/{name}"] = found[f"deviation/{name}"] / abs(mean)
        if len(values) > 2 and mean:
            found[f"unsteadiness/{name}"] = float(np.diff(values).std(ddof=1)) / math.sqrt(2) / abs(mean)
    return found


def _balance(subject: Subject) -> dict[str, float]:
    counts = subject.class_counts.double().numpy()
    found: dict[str, float] = {}
    for key in ("class_gradient", "feature_gradient", "center_gradient"):
        values = series.class_means(subject.class_rows, key, len(counts))
        ratio = None if values is None else series.head_to_tail(values, counts)
        if ratio is not None:
            found[f"balance/{key}"] = ratio
    return found


def _accuracies(evaluations: Sequence[Row], own: str) -> dict[str, float]:
    """Return the metrics of all evaluations, those on other data than the `own` under names that say so."""
    found: dict[str, float] = {}
    seen: set[str] = set()
    images: dict[str, Any] = {}  # by the data's words: two folders may be called the same
    for entry in evaluations:
        protocol, metrics = entry.get("protocol"), entry.get("metrics")
        if not isinstance(protocol, str) or not isinstance(metrics, Mapping):
            continue
        data, test_set = str(entry.get("data", own)), entry.get("test_set") or {}
        if data != own:
            protocol += f" on {data.replace(',', '').replace('/', '_')}"
        if images.setdefault(data, test_set.get("sha256")) != test_set.get("sha256"):
            protocol += " (other images)"
        if protocol in seen:
            continue
        seen.add(protocol)
        for name, value in {"test_images": test_set.get("num_images"), **metrics}.items():
            if series.is_number(value):
                key = f"accuracy/{protocol}" if name == "accuracy" else f"accuracy/{protocol}/{name}"
                found[key] = float(value)
    return found
