"""The pictures of a release: how its training went, what it learned, where it fails."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zoo.api.classes import trained_on
from zoo.data import ImageDataset
from zoo.data.words import data_words
from zoo.errors import DataError, ZooWarning
from zoo.evaluation.diagnosis.balance import plot_balance
from zoo.evaluation.diagnosis.class_accuracy import plot_class_accuracy
from zoo.evaluation.diagnosis.overlay import recorded
from zoo.evaluation.diagnosis.scores import plot_scores
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.features import Features
from zoo.evaluation.figures.class_map import MOST_DRAWN, plot_class_map
from zoo.evaluation.figures.feature_map import FEWEST, plot_features
from zoo.evaluation.figures.plots import plot_curves
from zoo.modules.centers import Centers
from zoo.training import Recipe

_SCORE = re.compile(r"(positive|negative|same_class)_(score|variance)(_ft)?")  # of which `scores` is

Rows = Sequence[Mapping[str, Any]]


def draw_pictures(
    recipe: Recipe,
    train_set: ImageDataset,
    centers: Centers | None,
    test: Features | None,
    test_names: Sequence[str],
    folder: Path,
    *,
    rows: Rows,
    class_rows: Rows,
    entries: Rows,
    dataset: Mapping[str, Any],
) -> dict[str, Path]:
    """Draw what there is something to draw of, as `folder`/NAME.png.

    Args:
        recipe: of the training.
        train_set: its images.
        centers: that it learned.
        test: features of the test images, and their labels; None where there are no such images.
        test_names: names of the test images' classes.
        folder: of the run.
        rows: of metrics.jsonl; none where nothing was trained.
        class_rows: of classes.jsonl.
        entries: the release's evaluations.
        dataset: what the release records of the training images.

    Returns:
        The files by name: of `features`, `curves`, `scores`, `balance`, `centers` and `accuracy` those that
        there is enough for.
    """
    name, seed = recipe.name, recipe.training.seed
    pictures: dict[str, Path] = {}
    if test is not None and len(test.features) < FEWEST:
        few = len(test.features)
        warnings.warn(
            f"{few} test images are too few for a map of their features, which takes {FEWEST}",
            ZooWarning,
            stacklevel=2,
        )
    elif test is not None:
        pictures["features"] = folder / "features.png"
        plot_features(
            *test,
            test_names,
            centers,
            pictures["features"],
            seed=seed,
            title=f"{name}: test features",
            data=f"Test split; encoder {trained_on(dataset, seed)}",
        )
    if centers is not None and 1 < len(centers.weight) <= MOST_DRAWN:
        pictures["centers"] = folder / "centers.png"
        plot_class_map(
            centers,
            pictures["centers"],
            class_names=train_set.class_names,
            title=f"{name}: class centers",
            data=trained_on(dataset, seed),
            whole=False,
        )
    subject = Subject(
        label=name,
        name=name,
        objective=recipe.objective.name,
        data=data_words(dataset),
        seed=seed,
        group=name,
        recipe=recipe.model_dump(mode="json"),
        rows=rows,
        class_rows=class_rows,
        class_names=train_set.class_names,
        class_counts=torch.from_numpy(train_set.class_counts),
        centers=centers,
    )
    for key, plot in (
        ("scores", partial(plot_scores, [subject])),
        ("balance", partial(plot_balance, [subject])),
        ("accuracy", partial(plot_class_accuracy, subject, entries)),
    ):
        try:
            plot([folder / f"{key}.png"])
        except DataError:  # there is no record of it
            continue
        pictures[key] = folder / f"{key}.png"
    if rows:
        pictures["curves"] = folder / "curves.png"
        others = [{key: value for key, value in row.items() if not _SCORE.fullmatch(key)} for row in rows]
        plot_curves(
            others if "scores" in pictures else rows,
            pictures["curves"],
            title=name,
            data=f"Recorded while training on {recorded([subject])}",
        )
    return pictures
