"""Subjects of the shipped releases, and records written by hand in the names that trainings use."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from zoo import release as releases
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, ViewsConfig, open_dataset
from zoo.evaluation.diagnosis.center_loss import center_loss
from zoo.evaluation.diagnosis.figures import Drawn, draw
from zoo.evaluation.diagnosis.look import Look, landmarks_of, look
from zoo.evaluation.diagnosis.subject import Subject

PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
COUNTS = np.array([125, 80, 52, 33, 21, 14, 9, 5, 3, 2])
DATA = "digits, long tail 50"


def points_of(figure: Figure) -> tuple[float, float]:
    """Points of the smallest letters of a figure, and of the smallest numbers in the cells of a map."""
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert not any("$" in text.get_text() for text in shown), "an exponent is smaller"
    cells = {text for axes in figure.axes if axes.images for text in axes.texts if "." in text.get_text()[:2]}
    letters = min(text.get_fontsize() for text in shown if text not in cells)
    return letters, min((text.get_fontsize() for text in cells), default=math.inf)


@functools.cache
def digits() -> tuple[ImageDataset, ImageDataset]:
    """Training and test split as the shipped releases had them."""
    config = parse(DataConfig, releases.open(PACO).recipe["data"], "data")
    return open_dataset(config, "train", None), open_dataset(config, "test", None)


def reading(name: str = PACO) -> dict[str, Any]:
    """How a shipped release reads its images."""
    recipe = releases.open(name).recipe
    views = parse(ViewsConfig, recipe["views"], "views")
    return dict(view=views.eval, mean=recipe["data"]["mean"], std=recipe["data"]["std"], views=views)


@functools.cache
def looked(name: str, sample: int = 2000, seed: int = 0) -> Look:
    """A look at a shipped release."""
    release = releases.open(name)
    marks = landmarks_of("cifar_resnet20", {}, seed=0)
    loss = "no centers"
    if release.centers is not None:
        loss = center_loss(release.recipe, release.centers.class_counts)
    settings = dict(centers=release.centers, center_loss=loss, sample=sample, seed=seed, landmarks=marks)
    return look(release.load(), *digits(), **reading(name), **settings)


def subject(name: str = PACO, **changes: Any) -> Subject:
    """A shipped release without a record of its training."""
    release = releases.open(name)
    label = release.name.partition(".")[2]
    given = dict(
        label=label,
        name=release.name,
        objective=release.recipe["objective"]["name"],
        data=DATA,
        seed=0,
        group=label,
        recipe=release.recipe,
        rows=[],
        class_rows=[],
        class_names=release.class_names,
        class_counts=torch.as_tensor(digits()[0].class_counts),
        centers=release.centers,
        look=looked(name),
    )
    return Subject(**given | changes)


def moco_rows(seed: int = 0, rows: int = 66, ft_from: int = 20) -> list[dict[str, Any]]:
    """A record of MoCo whose feature transformation begins at epoch `ft_from`."""
    draw = np.random.default_rng(seed).normal
    found = []
    for i in range(rows):
        t = i / rows
        row = {
            "step": 10 * (i + 1),
            "epoch": 10 * (i + 1) / 11,
            "loss": 3 * math.exp(-2 * t),
            "positive_score": 0.5 + 0.45 * (1 - math.exp(-4 * t)) + 0.01 * draw(),
            "positive_variance": 0.02,
            "negative_score": 0.3 - 0.25 * t + 0.01 * draw(),
            "negative_variance": 0.1 + 0.1 * t + 0.01 * draw(),
        }
        if row["epoch"] > ft_from:
            row |= {f"{name}_ft": 0.9 * row[name] for name in ("positive_score", "negative_variance")}
        found.append(row)
    return found


def paco_rows(seed: int = 0, rows: int = 66) -> list[dict[str, Any]]:
    """A record of PaCo whose P_sup goes from 0.4 of its optimum to nearly all of it."""
    draw = np.random.default_rng(seed).normal
    best = 1 / (1 + 0.01 * 256 * COUNTS / COUNTS.sum())
    groups = {"": COUNTS > 0, "_many": COUNTS > 100, "_few": COUNTS < 20}
    groups["_medium"] = ~groups["_many"] & ~groups["_few"]
    found = []
    for i in range(rows):
        t = i / rows
        row: dict[str, Any] = {"step": 10 * (i + 1), "epoch": 10 * (i + 1) / 11, "loss": 2 - t}
        row |= {"positive_score": 0.5 + 0.4 * t, "same_class_score": 0.3 + 0.5 * t}
        for name, members in groups.items():
            row[f"p_sup_optimum{name}"] = float(best[members].mean())
            row[f"p_sup{name}"] = float(best[members].mean()) * (1 - 0.6 * math.exp(-3 * t)) + 0.01 * draw()
        found.append(row)
    return found


def class_rows(power: float = 1.0, rows: int = 6, centers: bool = True) -> list[dict[str, Any]]:
    """Rows of classes.jsonl: a class contributes in proportion to its images to the power `power`."""
    each = COUNTS ** (power - 1.0)
    return [
        {
            "step": 110 * (i + 1),
            "epoch": 10 * (i + 1),
            "looks": 11,
            "images": (COUNTS * (i + 1)).tolist(),
            "feature_gradient": each.tolist(),
            "class_gradient": (each * COUNTS / COUNTS.sum()).tolist(),
            "center_gradient": (each / 3).tolist() if centers else None,
        }
        for i in range(rows)
    ]


def only(key: str, subjects: Sequence[Subject], folder: Path) -> Drawn:
    """Draw one figure, which must be possible."""
    (drawn,) = draw(subjects, folder, only=[key])
    assert drawn.missing is None, drawn.missing
    return drawn
