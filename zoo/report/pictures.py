"""The pictures of a release: how its training went, what it learned, where it fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from zoo.data import ImageDataset
from zoo.data.config import data_words
from zoo.errors import ZooWarning
from zoo.evaluation.encode import Features
from zoo.modules.centers import Centers
from zoo.recipe import Recipe
from zoo.report import classes, features, training
from zoo.report.style import panels, write_figure
from zoo.report.subject import Subject

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
        The files by name: of `features`, `centers`, `scores`, `balance`, `accuracy` and `curves` those that
        there is enough for.
    """
    counts = torch.from_numpy(train_set.class_counts)
    subject = Subject(
        label=recipe.name,
        name=recipe.name,
        objective=recipe.objective.name,
        data=data_words(dataset),
        seed=recipe.training.seed,
        group=recipe.name,
        recipe=recipe.model_dump(mode="json"),
        rows=rows,
        class_rows=class_rows,
        class_names=train_set.class_names,
        class_counts=counts,
        centers=centers,
    )

    def draw_features() -> Figure | None:
        if test is None:
            return None
        if len(test.features) < features.FEWEST:
            few = len(test.features)
            warnings.warn(
                f"{few} test images are too few for a map of their features, which takes {features.FEWEST}",
                ZooWarning,
                stacklevel=2,
            )
            return None
        figure, (axes,) = panels([3.3])
        features.draw_map(axes, *test, test_names, centers, counts, seed=recipe.training.seed)
        return figure

    def draw_if(lacks: Callable[[Subject], str | None], plot: Callable[[Sequence[Subject]], Figure]) -> Any:
        return lambda: None if lacks(subject) else plot([subject])

    made: dict[str, Callable[[], Figure | None]] = {
        "features": draw_features,
        "centers": draw_if(_lacks_centers, classes.center_map),
        "scores": draw_if(training.lacks_scores, training.scores),
        "balance": draw_if(training.lacks_balance, training.balance),
        "accuracy": lambda: classes.recorded_accuracy(subject, entries),
        "curves": draw_if(training.lacks_record, training.curves),
    }
    title = f"{recipe.name}\n{subject.data}, seed {subject.seed}"
    files = {name: folder / f"{name}.png" for name in made}
    return {name: files[name] for name, make in made.items() if write_figure(make, files[name], title=title)}


def _lacks_centers(subject: Subject) -> str | None:
    return "no centers" if subject.centers is None else classes.lacks_classes(subject)
