"""What a report is about: a release with what its training recorded, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo import hub
from zoo.config import is_number
from zoo.data.config import data_words
from zoo.files import is_file
from zoo.modules.centers import Centers
from zoo.recipe.overrides import COMPUTATION
from zoo.release import Release
from zoo.release import history as histories
from zoo.report.sample import Sample
from zoo.training import RunFolder
from zoo.training.stages import recorded

Row = Mapping[str, Any]
"""Of metrics.jsonl or classes.jsonl."""

Array = NDArray[np.float64]

LAST = 0.2
"""Share of the steps that a scalar has records of, at the end of a training, that means are taken over."""

GRADIENTS = {
    "class_gradient": "of a class: all its images",
    "feature_gradient": "of one image: mean in its class",
    "center_gradient": "of the class's center",
}
"""Gradient norms that a training records of each class."""


@dataclass(eq=False)
class Subject:
    """One release, or what is about to become one.

    Attributes:
        name: of the weights.
        objective: the recipe's `objective.name`.
        data: the training data in words.
        recipe: plain; of a converted release what it records instead.
        rows: of metrics.jsonl; may be empty.
        class_rows: of classes.jsonl; may be empty.
        class_names: of the C classes; empty where not known.
        class_counts: training images of each class `[C]`, int64; -1 where not known.
        centers: learned class centers, if there are any.
        evaluations: entries of the release's metrics.json, the recipe's own first.
        sample: features of some of its test images; None where there are none.
        no_sample: why.
        release: None for what has none yet.
        label: its name in the report, short and unique.
        group: the label without the seed: subjects of one group differ in the seed alone.
        place: of its group in the report, which decides colour and marker.
    """

    name: str
    objective: str
    data: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    class_rows: Sequence[Row] = ()
    class_names: Sequence[str] = ()
    class_counts: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    centers: Centers | None = None
    evaluations: Sequence[Row] = ()
    sample: Sample | None = None
    no_sample: str = "no images were encoded"
    release: Release | None = None
    label: str = ""
    group: str = ""
    place: int = 0

    @property
    def seed(self) -> int | None:
        """Of the training; None for a converted release."""
        seed: int | None = (self.recipe.get("training") or {}).get("seed")
        return seed

    @cached_property
    def record(self) -> pd.DataFrame:
        """The recorded scalars, a row for each step and NaN for what was not recorded at it."""
        rows = [
            {key: value for key, value in row.items() if is_number(value) and math.isfinite(value)}
            for row in self.rows
        ]
        frame = pd.DataFrame([row for row in rows if "step" in row])
        scalars = sorted({*frame.columns} - {"step", "epoch"})
        # of a step recorded twice, the last
        return frame.groupby("step")[scalars].last() if scalars else pd.DataFrame()

    @cached_property
    def gradients(self) -> dict[str, Array]:
        """Mean norm over the training of the gradients of each class `[C]`, by `GRADIENTS`."""
        found = {key: class_means(self.class_rows, key, len(self.class_counts)) for key in GRADIENTS}
        return {key: values for key, values in found.items() if values is not None}

    @property
    def counted(self) -> bool:
        """Whether the training images of each of several classes are known."""
        return len(self.class_counts) > 1 and int(self.class_counts.min()) >= 0

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Numbers by name; what is not finite or not there is left out.

        - `recorded/NAME`: mean of every recorded scalar over the last fifth of its records, each of which
          counts by the steps that it is the mean of;
        - `beginning/NAME`: its first record;
        - `deviation/NAME`: its standard deviation over the records of `recorded`;
          `relative_deviation/NAME`: the same by the size of their mean;
        - `unsteadiness/NAME`: standard deviation of the differences of consecutive ones of these records, by
          sqrt 2 and by the size of their mean: noise from record to record, whatever the level and a drift;
        - `features/NAME`: see `Sample.numbers`;
        - `balance/NAME`: mean of a gradient norm over the most frequent third of the classes by that over the
          rarest third;
        - `accuracy/PROTOCOL`: top-1 in percent on the data that the subject was trained on;
          `accuracy/PROTOCOL/METRIC`: every other metric, and how many `test_images` they are of. Of several
          evaluations of one protocol the first counts. On other data PROTOCOL is followed by their words,
          e.g. `accuracy/knn on cifar100 fine_label`.
        """
        found = self._recorded() | self._accuracies()
        for key, values in self.gradients.items():
            ratio = head_to_tail(values, self.class_counts) if self.counted else math.nan
            found[f"balance/{key}"] = ratio
        if self.sample is not None:
            found |= {f"features/{name}": value for name, value in self.sample.numbers().items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _recorded(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self.record:
            values, weights = ending(self.record, name)
            mean = float(np.average(values, weights=weights))
            found[f"recorded/{name}"] = mean
            found[f"beginning/{name}"] = float(self.record[name].dropna().iloc[0])
            if len(values) > 1:
                variance = np.average((values - mean) ** 2, weights=weights) * len(values) / (len(values) - 1)
                found[f"deviation/{name}"] = deviation = float(np.sqrt(variance))
                found[f"relative_deviation/{name}"] = deviation / abs(mean) if mean else math.nan
            if len(values) > 2 and mean:
                found[f"unsteadiness/{name}"] = float(np.diff(values).std(ddof=1)) / math.sqrt(2) / abs(mean)
        return found

    def _accuracies(self) -> dict[str, float]:
        found: dict[str, float] = {}
        seen: set[str] = set()
        for entry in self.evaluations:
            protocol, data = str(entry["protocol"]), str(entry.get("data", self.data))
            if data != self.data:
                protocol += f" on {data.replace(',', '').replace('/', '_')}"
            if protocol in seen:
                continue
            seen.add(protocol)
            images = (entry.get("test_set") or {}).get("num_images")
            for name, value in {"test_images": images, **entry["metrics"]}.items():
                if is_number(value):
                    key = f"accuracy/{protocol}" if name == "accuracy" else f"accuracy/{protocol}/{name}"
                    found[key] = float(value)
        return found


def ending(record: pd.DataFrame, name: str) -> tuple[Array, Array]:
    """Return the last records of a scalar `[T]`, and for how many steps each of them stands `[T]`.

    A row is the mean of the steps since the row before it: where a training was stopped and went on, or in a
    release's history, that is not the same number for all. Together they are of at least `LAST` of the steps
    that the scalar has records of.
    """
    lengths = pd.Series(np.diff(record.index, prepend=0).clip(1), record.index)
    values = record[name].dropna()
    weights = lengths[values.index].to_numpy(dtype=float)
    reached = np.cumsum(weights[::-1])
    count = int(np.searchsorted(reached, (LAST - 1e-9) * weights.sum())) + 1
    return values.to_numpy(dtype=float)[-count:], weights[-count:]


def class_means(class_rows: Sequence[Row], key: str, classes: int) -> Array | None:
    """Return a quantity of each class over a whole training `[C]`, from the rows of classes.jsonl.

    A row's value counts by what it is a mean of: images of the class for `feature_gradient`, steps that were
    observed for everything else. NaN for a class that was never observed.

    Args:
        class_rows: may be empty.
        key: of the rows.
        classes: C; a row of another number is left out.

    Returns:
        None where no class was observed.
    """
    total, weights = np.zeros(classes), np.zeros(classes)
    for row in class_rows:
        if len(row.get(key) or ()) != classes:
            continue
        values = np.array(row[key], dtype=float)  # None is NaN
        weight = row["images"] if key == "feature_gradient" else np.full(classes, row["looks"])
        known = np.isfinite(values)
        total[known] += (values * weight)[known]
        weights[known] += np.asarray(weight)[known]
    means: Array = np.divide(total, weights, out=np.full(classes, np.nan), where=weights > 0)
    return means if weights.any() else None


def most_frequent_first(counts: Tensor) -> NDArray[np.int64]:
    """Return the classes `[C]` from the most to the least frequent."""
    return np.argsort(-counts.numpy(), kind="stable").astype(np.int64)


def head_to_tail(values: Array, counts: Tensor) -> float:
    """Return a quantity's mean over the most frequent third of the classes by that over the rarest third.

    Args:
        values: `[C]`; classes with NaN are left out.
        counts: training images `[C]`.

    Returns:
        NaN where there is nothing in one of the thirds.
    """
    third = max(len(values) // 3, 1)
    ordered = pd.Series(values[most_frequent_first(counts)])
    head, tail = ordered[:third].mean(), ordered[-third:].mean()
    return float(head / tail) if tail > 0 else math.nan


def open_subjects(names: Sequence[str | Path | Release]) -> list[Subject]:
    """Open releases with what they record; no encoder is loaded, no image opened.

    Their labels are the names that they are given by, without what all begin with. Those whose recipes
    differ in the seed alone are one group.

    Raises:
        ZooError: for a name that is no release.
    """
    given = list(dict.fromkeys(map(hub.named, names)))
    subjects = [_open(hub.open(name)) for name in given]
    parts = [Path(str(name).removeprefix("shipped:")).parts for name in given]
    while len({each[0] for each in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [each[1:] for each in parts]
    labels = [str(Path(*each)) for each in parts]
    recipes = recipe_table(subjects).drop(columns="training.seed", errors="ignore")
    keys = [tuple(row) for row in recipes.to_numpy()]
    for subject, label, key in zip(subjects, labels, keys, strict=True):
        more = keys.count(key) - 1
        subject.label, subject.place = label, [*dict.fromkeys(keys)].index(key)
        subject.group = labels[keys.index(key)] + (f" (+{more} seeds)" if more else "")
    return subjects


def _open(release: Release) -> Subject:
    run, history = RunFolder(release.path / "run"), release.history
    begun = (run.stages() or [run]) if is_file(run.recipe_file) else []
    rows, class_rows = recorded(begun)
    if not rows and history is not None:
        rows, class_rows = histories.rows_of(history), history["classes"]
    described, centers = release.config["zoo"]["dataset"], release.centers
    unknown = torch.full((len(release.class_names),), -1, dtype=torch.int64)
    return Subject(
        name=release.name,
        objective=str(release.config["zoo"]["objective"]),
        data=data_words(described) if described.get("name") else "data that are not recorded",
        recipe=release.recipe,
        rows=rows,
        class_rows=class_rows,
        class_names=tuple(release.class_names),
        class_counts=unknown if centers is None else centers.class_counts,
        centers=centers,
        evaluations=release.metrics["evaluations"],
        release=release,
    )


def recipe_table(subjects: Sequence[Subject]) -> pd.DataFrame:
    """Return the recipes as text, a row for each and a column for each key but for how it was computed."""
    frame = pd.json_normalize([dict(subject.recipe) for subject in subjects]).astype(str)
    frame = frame.set_axis([subject.label for subject in subjects])
    return frame.drop(columns=[*COMPUTATION], errors="ignore")
