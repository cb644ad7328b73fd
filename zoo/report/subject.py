"""The subject of a report: a release, the record of its training, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo import hub
from zoo.config import is_number
from zoo.data.dataset import data_words
from zoo.modules.centers import Centers
from zoo.recipe.overrides import COMPUTATION
from zoo.release import Release
from zoo.release.schema import is_own
from zoo.report.sample import Sample
from zoo.training import RunFolder
from zoo.training.stages import recorded_rows

Row = Mapping[str, Any]
Array = NDArray[np.float64]
GRADIENTS = {  # norms recorded per class
    "class_gradient": "of a class: all its images",
    "feature_gradient": "of one image: mean in its class",
    "center_gradient": "of the class's center",
}


@dataclass(eq=False)
class Subject:
    """A release, or one about to be written; unknown values are empty, None or, for counts, -1.

    `rows` and `class_rows` are those of metrics.jsonl and classes.jsonl, `class_counts` the training images
    of each class `[C]`. The `label` is short and unique. Subjects of one `group` differ only in the seed; the
    position of the group in the report, `place`, determines colour and marker.
    """

    name: str
    objective: str
    data: str
    recipe: Row = field(default_factory=dict)
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
        """The seed of the training; None for a converted release."""
        return (self.recipe.get("training") or {}).get("seed")

    @property
    def counted(self) -> bool:
        """Whether there are several classes, with known numbers of training images."""
        return len(self.class_counts) > 1 and int(self.class_counts.min()) >= 0

    @cached_property
    def record(self) -> pd.DataFrame:
        """The recorded scalars, one row per step, NaN for values that were not recorded."""
        finite = [{k: v for k, v in row.items() if is_number(v) and math.isfinite(v)} for row in self.rows]
        frame = pd.DataFrame([row for row in finite if "step" in row])
        scalars = sorted({*frame.columns} - {"step", "epoch"})
        # if a step was recorded twice, the last counts
        return frame.groupby("step")[scalars].last() if scalars else pd.DataFrame()

    @cached_property
    def gradients(self) -> dict[str, Array]:
        """Mean gradient norm of each class `[C]` over the training."""
        found = {key: mean_by_class(self.class_rows, key, len(self.class_counts)) for key in GRADIENTS}
        return {key: values for key, values in found.items() if values is not None}

    @property
    def frequent_first(self) -> NDArray[np.int64]:
        """The classes `[C]` from the most to the least frequent."""
        return np.argsort(-self.class_counts.numpy(), kind="stable").astype(np.int64)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Numbers by name, without missing and non-finite ones.

        Over the records of a scalar's last fifth of steps, weighted by the number of steps each averages:
        `recorded/NAME` is the mean, `deviation/NAME` the standard deviation, `relative_deviation/NAME` the
        same divided by the absolute mean, and `unsteadiness/NAME` the noise between records: the standard
        deviation of differences divided by sqrt 2 and the absolute mean. `beginning/NAME`: the first record.

        `features/NAME`: see `Sample.numbers`. `balance/NAME`: the mean of a gradient norm over the most
        frequent third of the classes divided by that over the rarest third. `accuracy/PROTOCOL` and
        `accuracy/PROTOCOL/METRIC`: the first evaluation by each protocol; "PROTOCOL on DATA" on other data.
        """
        found = _recorded(self.record) | _accuracies(self)
        for key, values in self.gradients.items() if self.counted else ():
            ordered, third = pd.Series(values[self.frequent_first]), max(len(values) // 3, 1)
            tail = ordered[-third:].mean()  # without classes that were never observed
            found[f"balance/{key}"] = float(ordered[:third].mean() / tail) if tail > 0 else math.nan
        if self.sample is not None:
            found |= {f"features/{name}": value for name, value in self.sample.numbers.items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _recorded(record: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    # a row is the mean over the steps since the previous row, a number that varies
    lengths = pd.Series(np.diff(record.index, prepend=0).clip(1), record.index)
    for name in record:
        all_values = record[name].dropna()
        steps = lengths[all_values.index].to_numpy(dtype=float)
        count = int(np.searchsorted(np.cumsum(steps[::-1]), (0.2 - 1e-9) * steps.sum())) + 1
        values, weights = all_values.to_numpy(dtype=float)[-count:], steps[-count:]
        found[f"beginning/{name}"] = float(all_values.iloc[0])
        found[f"recorded/{name}"] = mean = float(np.average(values, weights=weights))
        if len(values) > 1:
            variance = np.average((values - mean) ** 2, weights=weights) * len(values) / (len(values) - 1)
            found[f"deviation/{name}"] = deviation = float(np.sqrt(variance))
            found[f"relative_deviation/{name}"] = deviation / abs(mean) if mean else math.nan
        if len(values) > 2 and mean:
            found[f"unsteadiness/{name}"] = float(np.diff(values).std(ddof=1)) / math.sqrt(2) / abs(mean)
    return found


def _accuracies(subject: Subject) -> dict[str, float]:
    first: dict[str, Row] = {}
    for entry in subject.evaluations:
        protocol, data = str(entry["protocol"]), str(entry["data"])
        if not is_own(entry, subject.data):
            protocol += f" on {data.replace(',', '').replace('/', '_')}"
        first.setdefault(protocol, entry)
    found: dict[str, float] = {}
    for protocol, entry in first.items():
        images = (entry.get("test_set") or {}).get("num_images")
        known = {k: float(v) for k, v in {"test_images": images, **entry["metrics"]}.items() if is_number(v)}
        found |= {f"accuracy/{protocol}/{name}".removesuffix("/accuracy"): v for name, v in known.items()}
    return found


def mean_by_class(class_rows: Sequence[Row], key: str, classes: int) -> Array | None:
    """Return a per-class quantity's mean over a training `[C]`: NaN for classes without it, None if all are.

    Rows of classes.jsonl are weighted by images of the class for `feature_gradient`, else by observed steps.
    """
    found = [row for row in class_rows if len(row.get(key) or ()) == classes]
    per_image = key == "feature_gradient"
    weights = np.array([row["images"] if per_image else [row["looks"]] * classes for row in found])
    values = np.array([row[key] for row in found], dtype=float)  # None is NaN
    known = np.isfinite(values)
    if not known.any():
        return None
    total = np.where(known, values * weights, 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        means: Array = total / np.where(known, weights, 0).sum(axis=0)
    return means


def open_subjects(names: Sequence[str | Path | Release]) -> list[Subject]:
    """Open releases with their records, without loading encoders or images.

    Labels omit common leading folders. Recipes that differ only in seed and `COMPUTATION` form a group.
    """
    given = list(dict.fromkeys(map(hub.named, names)))
    subjects = [_open(hub.open(name)) for name in given]
    parts = [Path(str(name).removeprefix("shipped:")).parts for name in given]
    while len({each[0] for each in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [each[1:] for each in parts]
    for subject, each in zip(subjects, parts, strict=True):
        subject.label = str(Path(*each))
    recipes = recipe_table(subjects).drop(columns="training.seed", errors="ignore")
    keys = [tuple(row) for row in recipes.to_numpy()]
    for subject, key in zip(subjects, keys, strict=True):
        more, subject.place = keys.count(key) - 1, [*dict.fromkeys(keys)].index(key)
        subject.group = subjects[keys.index(key)].label + (f" (+{more} seeds)" if more else "")
    return subjects


def _open(release: Release) -> Subject:
    run, history = RunFolder(release.path / "run"), release.history
    begun = (run.stages() or [run]) if isfile(run.recipe_file) else []
    rows, class_rows = recorded_rows(begun)
    if not rows and history is not None:
        rows, class_rows = history_rows(history), history["classes"]
    described, centers = release.config["zoo"]["dataset"], release.centers
    unknown = torch.full((len(release.class_names),), -1, dtype=torch.int64)
    return Subject(
        name=release.name,
        objective=str(release.config["zoo"]["objective"]),
        data=data_words(described) if described.get("name") else "data that are not recorded",
        recipe=release.recipe,
        rows=rows,
        class_rows=class_rows,
        class_names=release.class_names,
        class_counts=unknown if centers is None else centers.class_counts,
        centers=centers,
        evaluations=release.metrics["evaluations"],
        release=release,
    )


def recipe_table(subjects: Sequence[Subject]) -> pd.DataFrame:
    """Return the recipes as text, one row each, with a column per key, except for `COMPUTATION`."""
    frame = pd.json_normalize([dict(subject.recipe) for subject in subjects]).astype(str)
    frame = frame.set_axis([subject.label for subject in subjects])
    return frame.drop(columns=[*COMPUTATION], errors="ignore")


def history_rows(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a history's rows in the form of metrics.jsonl, without values that were not recorded."""
    columns = history["columns"]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
