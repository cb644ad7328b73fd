"""What an encoder takes for similar, as images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from zoo.evaluation.diagnosis.look import Look
from zoo.evaluation.diagnosis.overlay import choose, heading, no_look, seen, stack, told
from zoo.evaluation.diagnosis.similar import Neighbours
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.names import fitted_names
from zoo.evaluation.figures.style import COLORS, COLUMN, INK

_MOST = 3  # groups
_SIDE = 0.92  # of an image, in columns
_TEXT, _GAP = 0.33, 0.12  # inches of the two lines above it, and between queries
_RIGHT, _WRONG = COLORS[0], COLORS[3]


def _lacks(subject: Subject) -> str | None:
    if subject.look is None:
        return no_look(subject)
    return None if subject.look.neighbours else "its sample gave no query image"


def plot_neighbours(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw query images, their nearest training images and their hardest negatives; return the caption.

    Of a group with several seeds, its first subject.

    Raises:
        DataError: where no subject has a look.
    """
    chosen = choose(subjects, _lacks, _MOST)
    drawn = [group.subjects[0] for group in chosen.groups]
    looks = [subject.look for subject in drawn if subject.look is not None]
    columns = 1 + max(len(query.nearest) for look in looks for query in look.neighbours)
    rows = [len(look.neighbours) for look in looks]
    caption = (
        "First row of each query: it and the most similar training images; second: the most similar test "
    )
    caption += (
        "images of other classes. Above: class and cosine of pooled features. Queries: the first image "
    )
    caption += "in the sample of classes from the most to the least frequent. "
    galleries = [(group.name, _gallery(look)) for group, look in zip(chosen.groups, looks, strict=True)]
    caption += f"Neighbours among {told(galleries)}. "
    caption += f"{seen(drawn)}. "
    several = len(chosen.subjects) > len(chosen.groups)
    caption += "Of each group one seed is drawn. " if several else ""
    caption = (caption + chosen.left_out).strip()
    legend = [
        Patch(facecolor="white", edgecolor=_RIGHT, linewidth=1.8, label="the query's class"),
        Patch(
            facecolor="white", edgecolor=_WRONG, linewidth=1.8, linestyle=(0, (2, 1)), label="another class"
        ),
    ]
    column = (COLUMN - 0.12) / columns  # inches
    words = 0.35 if len(drawn) > 1 else 0.15  # what lies around the images
    heights = [(2 * (_SIDE * column + _TEXT) + _GAP) * count + words for count in rows]
    title = heading("What is most similar", chosen.groups)
    with stack(paths, heights, caption, title, legend) as axes_of:
        for axes, group, subject in zip(axes_of, chosen.groups, drawn, strict=True):
            assert subject.look is not None
            axes.axis("off")
            if len(drawn) > 1:
                axes.set_title(group.name, loc="left")
            names = fitted_names(subject.look.class_names, _SIDE * column)
            for place, query in enumerate(subject.look.neighbours):
                _draw_query(axes, query, place, names, column)
            axes.set_xlim(-0.03, columns)
            height = 2 * (_SIDE + _TEXT / column) + _GAP / column
            axes.set_ylim(-height * len(subject.look.neighbours) - 0.03, 0.05)
            axes.set_anchor("NW")
    return caption


def _gallery(look: Look) -> str:
    part = look.gallery < look.gallery_total
    number = f"{look.gallery:,} of {look.gallery_total:,}" if part else f"all {look.gallery:,}"
    return f"{number} training images of {look.training_data}"


def _draw_query(axes: Axes, query: Neighbours, place: int, names: Sequence[str], column: float) -> None:
    """Draw two rows of images, in columns of so many inches; one column is a unit wide."""
    text = _TEXT / column
    row_height = _SIDE + text
    top = -(2 * row_height + _GAP / column) * place
    words = f"query\n{names[query.label]}"
    _draw_image(axes, (0, top - text), query.image, words, INK, "-")
    axes.text(0, top - 1.5 * row_height, "hardest\nnegatives", color=INK, va="center")
    for row, images, labels, scores in (
        (0, query.nearest, query.nearest_labels, query.nearest_scores),
        (1, query.hardest, query.hardest_labels, query.hardest_scores),
    ):
        for at, (image, label, score) in enumerate(
            zip(images, labels.tolist(), scores.tolist(), strict=True), 1
        ):
            words = f"{names[label]}\n{score:.2f}"
            color, dash = (_RIGHT, "-") if label == query.label else (_WRONG, (0, (2, 1)))
            _draw_image(axes, (at, top - row * row_height - text), image, words, color, dash)


def _draw_image(
    axes: Axes, at: tuple[float, float], image: Tensor, text: str, color: str, dash: object
) -> None:
    x, y = at
    low = y - _SIDE
    extent = (x, x + _SIDE, low, low + _SIDE)
    axes.imshow(np.asarray(image.permute(1, 2, 0).numpy()), interpolation="nearest", extent=extent, zorder=1)
    style: dict[str, Any] = {"linewidth": 1.8, "linestyle": dash, "capstyle": "butt", "zorder": 2}
    axes.add_patch(Rectangle((x, low), _SIDE, _SIDE, fill=False, edgecolor=color, **style))
    axes.text(x, low + _SIDE + 0.05, text, color=INK, va="bottom", parse_math=False)
