"""All figures of a report, each made or with the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zoo.errors import DataError, ZooError, did_you_mean
from zoo.evaluation.diagnosis.accuracy import plot_accuracy
from zoo.evaluation.diagnosis.balance import plot_balance
from zoo.evaluation.diagnosis.maps import plot_centers, plot_map
from zoo.evaluation.diagnosis.neighbours import plot_neighbours
from zoo.evaluation.diagnosis.p_sup import plot_extra, plot_p_sup
from zoo.evaluation.diagnosis.pairs import plot_hardness, plot_pairs
from zoo.evaluation.diagnosis.plane import plot_plane
from zoo.evaluation.diagnosis.scores import plot_scores
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.figures.style import BARE


class Kind(NamedTuple):
    """A figure that can be made.

    Attributes:
        title: heading.
        reading: one or two sentences on how to read it, with source.
        plot: writes the figure of some subjects to every path, and returns its caption. Raises DataError for
            what the subjects lack.
    """

    title: str
    reading: str
    plot: Callable[[Sequence[Subject], Sequence[Path]], str]


@dataclass(frozen=True)
class Drawn:
    """A figure of a report, or why it is not there.

    Attributes:
        key: of `FIGURES`.
        title: heading.
        png: the file; None where there is no figure.
        svg: the same figure.
        bare: the same figure without title and caption, for a page that has them as text: SVG, or PNG where
            the figure is made of images or of so many points that an SVG would be large.
        caption: data, split, sample and seed; what is drawn how. Empty where there is no figure.
        reading: how to read it, with source.
        missing: why there is no figure; None where there is one.
    """

    key: str
    title: str
    png: Path | None
    svg: Path | None
    bare: Path | None
    caption: str
    reading: str
    missing: str | None = None


FIGURES: dict[str, Kind] = {
    "scores": Kind(
        "Scores of positive and negative pairs in training",
        "A contrastive loss sees these scores alone. Negatives whose mean and variance stay even make even "
        "gradients; lower positive scores are harder, and feature transformation (FT) lowers them on purpose "
        "(Zhu et al. 2021, arXiv 2108.02982, section 3).",
        plot_scores,
    ),
    "pairs": Kind(
        "Scores of pairs of images",
        "The further the scores of two views, of one class and of other classes lie apart, the better the "
        "encoder tells them apart without a classifier; where the last two overlap, nearest neighbours err.",
        plot_pairs,
    ),
    "hardness": Kind(
        "How hard negatives count at each temperature",
        "A small temperature gives nearly all of the gradient to the most similar negatives; a large one "
        "treats all alike (Wang and Liu 2021, arXiv 2012.09740, section 3.2).",
        plot_hardness,
    ),
    "plane": Kind(
        "Uniformity and tolerance",
        "To the left features fill the sphere more evenly; further up images of a class are closer together. "
        "These are pooled features of test images. That small temperatures move features to the left and "
        "down is said of the space that the loss acts on, after the projection (Wang and Liu 2021, arXiv "
        "2012.09740, equation 9; Wang and Isola 2020, arXiv 2005.10242): before it they may move otherwise. "
        "What a training recorded as uniformity and tolerance is of that space.",
        plot_plane,
    ),
    "balance": Kind(
        "Gradients over the classes, the most frequent first",
        "A line that falls to the right is a training that listens to frequent classes; a level one listens "
        "to all. On ImageNet-LT it falls more steeply with supervised contrast than with parametric centers "
        "(Cui et al. 2021, arXiv 2107.12028, figure 2). A closed form is no mean over training: it says on "
        "which classes the loss still pulls at the end.",
        plot_balance,
    ),
    "extra": Kind(
        "The extra loss that centers add",
        "Between its supervised and its contrastive part PaCo has a loss of its own, whose minimum says how "
        "much of the softmax the centers should hold: less for a class with many samples in the queue "
        '(Cui et al. 2021, arXiv 2107.12028, "PaCo under balanced setting"). How much they held in training '
        "is drawn as P_sup.",
        plot_extra,
    ),
    "p_sup": Kind(
        "P_sup in training and its optimum",
        "The recorded line heads for the dashed one as far as images and labels allow it; a gap for few-shot "
        "classes says that their centers hold less than they should (Cui et al. 2021).",
        plot_p_sup,
    ),
    "centers": Kind(
        "Which classes are alike",
        "The darker a cell, the more alike its two classes, from the least to the most alike pair of each "
        "panel: every panel has its own scale. Blocks along the diagonal are groups of classes.",
        plot_centers,
    ),
    "features": Kind(
        "A map of the test features",
        "Neighbours on the map are neighbours in the feature space; distances between groups, and their "
        "sizes, mean little in t-SNE (van der Maaten and Hinton 2008; https://distill.pub/2016/misread-tsne).",
        plot_map,
    ),
    "accuracy": Kind(
        "Accuracy of each class against its training images",
        "A rise to the right is what a long tail costs; many, medium and few are the usual groups of more "
        "than 100, 20 to 100 and fewer than 20 training images (Liu et al. 2019, arXiv 1904.05160). Classes "
        "that all have as many images are sorted by accuracy instead, so that such a line always rises.",
        plot_accuracy,
    ),
    "neighbours": Kind(
        "Nearest neighbours and hardest negatives",
        "What the neighbours share with the query is what the encoder looks at; hardest negatives that are "
        "no mistake to the eye show where labels or augmentation ask for something else.",
        plot_neighbours,
    ),
}
"""Every figure by its key, in the order of the report."""


_AS_PNG = frozenset({"neighbours", "features"})  # grids of images, clouds of points
_LARGEST_SVG = 600_000  # bytes


def draw(subjects: Sequence[Subject], folder: Path, *, only: Collection[str] | None = None) -> list[Drawn]:
    """Draw every figure of `FIGURES` as `folder`/KEY.png and KEY.svg, and as KEY.bare.svg or KEY.bare.png.

    Args:
        subjects: one or several; figures lay them side by side.
        folder: made if it is not there.
        only: the keys of the figures that are wanted; all when None.

    Returns:
        One for each figure, in the order of `FIGURES`, also for those that the subjects have no data for.

    Raises:
        ZooError: without a subject, for unknown keys, or if a file cannot be written.
    """
    if not subjects:
        raise ZooError("figures: found no subject, expected at least one")
    wanted = FIGURES if only is None else only
    for key in wanted:
        if key not in FIGURES:
            hint = did_you_mean(key, FIGURES)
            raise ZooError(f'figures: found "{key}", expected some of {", ".join(FIGURES)}.{hint}')
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ZooError(f'figures: "{folder}" cannot be made: {error.strerror or error}') from None
    return [_draw(key, kind, subjects, folder) for key, kind in FIGURES.items() if key in wanted]


def _draw(key: str, kind: Kind, subjects: Sequence[Subject], folder: Path) -> Drawn:
    png, svg = folder / f"{key}.png", folder / f"{key}.svg"
    bare = folder / f"{key}{BARE}{'.png' if key in _AS_PNG else '.svg'}"
    try:
        caption = kind.plot(subjects, (png, svg, bare))
        if bare.suffix == ".svg" and bare.stat().st_size > _LARGEST_SVG:
            bare.unlink()
            bare = bare.with_suffix(".png")
            kind.plot(subjects, (bare,))
    except DataError as error:  # what the subjects lack; all else is a mistake of ours, or a full disk
        return Drawn(key, kind.title, None, None, None, "", kind.reading, str(error))
    return Drawn(key, kind.title, png, svg, bare, caption, kind.reading)
