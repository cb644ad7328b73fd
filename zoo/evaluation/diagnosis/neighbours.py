"""What an encoder takes for similar, as images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from torch import Tensor

from zoo.evaluation._figure import COLORS, FAINT, INK
from zoo.evaluation.diagnosis.look import Neighbours
from zoo.evaluation.diagnosis.overlay import WIDTH, choose, heading, no_look, seen, short, stack
from zoo.evaluation.diagnosis.subject import Subject

_MOST = 3  # groups
_ROW = 0.98  # inches of a row of images with its two lines of text
_NAME = 11  # characters that fit above an image
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
    look = drawn[0].look
    assert look is not None  # chosen for it
    columns = 1 + max(len(query.nearest) for query in look.neighbours)
    rows = [len(subject.look.neighbours) for subject in drawn if subject.look is not None]
    caption = "First row of each query: it and the most similar training images; second: the most similar test "
    caption += "images of other classes. Above: class and cosine of pooled features. Queries: the first image "
    caption += "in the sample of classes from the most to the least frequent. "
    if look.gallery < look.gallery_total:
        caption += f"Neighbours among {look.gallery:,} of {look.gallery_total:,} training images. "
    else:
        caption += f"Neighbours among all {look.gallery:,} training images. "
    caption += f"{seen(drawn)}. "
    several = len(chosen.subjects) > len(chosen.groups)
    caption += "Of each group one seed is drawn. " if several else ""
    caption = (caption + chosen.left_out).strip()
    legend = [
        Patch(facecolor="white", edgecolor=_RIGHT, linewidth=1.8, label="the query's class"),
        Patch(facecolor="white", edgecolor=_WRONG, linewidth=1.8, linestyle=(0, (2, 1)), label="another class"),
    ]
    heights = [2 * _ROW * count + 0.2 for count in rows]
    title = heading("What is most similar", chosen.groups)
    with stack(paths, heights, caption, title, legend, width=WIDTH + 0.2) as axes_of:
        for axes, group, subject in zip(axes_of, chosen.groups, drawn, strict=True):
            assert subject.look is not None
            axes.axis("off")
            if len(drawn) > 1:
                axes.set_title(short(group.label), loc="left")
            for place, query in enumerate(subject.look.neighbours):
                _draw_query(axes, query, place, rows[0], columns, subject.look.class_names)
    return caption


def _draw_query(
    axes: Axes, query: Neighbours, place: int, queries: int, columns: int, names: Sequence[str]
) -> None:
    def cell(row: int, column: int) -> Axes:
        height, width = 1 / (2 * queries), 1 / columns
        box = (column * width, 1 - (2 * place + row + 1) * height, width * 0.92, height * 0.68)
        inside: Axes = axes.inset_axes(box)
        inside.set_xticks([])
        inside.set_yticks([])
        return inside

    _draw_image(cell(0, 0), query.image, f"query\n{short(names[query.label], _NAME)}", INK, "-")
    below = cell(1, 0)
    for spine in below.spines.values():
        spine.set_visible(False)
    below.text(0.0, 0.5, "of other\nclasses", fontsize=7, color=FAINT, va="center", transform=below.transAxes)
    for row, images, labels, scores in (
        (0, query.nearest, query.nearest_labels, query.nearest_scores),
        (1, query.hardest, query.hardest_labels, query.hardest_scores),
    ):
        for column, (image, label, score) in enumerate(
            zip(images, labels.tolist(), scores.tolist(), strict=True), 1
        ):
            right = label == query.label
            text = f"{short(names[label], _NAME)}\n{score:.2f}"
            dash = "-" if right else (0, (2, 1))
            _draw_image(cell(row, column), image, text, _RIGHT if right else _WRONG, dash)


def _draw_image(axes: Axes, image: Tensor, text: str, color: str, dash: object) -> None:
    axes.imshow(np.asarray(image.permute(1, 2, 0).numpy()), interpolation="nearest")
    axes.set_title(text, fontsize=7, pad=2, loc="left", color=INK, parse_math=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(color)
        spine.set_linewidth(1.8)
        spine.set_linestyle(dash)  # type: ignore[arg-type]
