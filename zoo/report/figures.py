"""All figures of a report, each drawn or with the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from zoo.report import classes, features, training
from zoo.report.overlay import groups_of
from zoo.report.style import write_figure
from zoo.report.subject import Subject


class Kind(NamedTuple):
    """A figure that can be made.

    Attributes:
        title: heading.
        reading: what is drawn and how to read it, with source.
        lacks: why a subject cannot be drawn, or None.
        plot: draws subjects that lack nothing.
        most: groups of subjects that it has room for.
    """

    title: str
    reading: str
    lacks: Callable[[Subject], str | None]
    plot: Callable[[Sequence[Subject]], Figure]
    most: int = 8


@dataclass(frozen=True)
class Drawn:
    """A figure of a report, or why it is not there.

    Attributes:
        key: of `FIGURES`.
        title: heading.
        reading: what is drawn and how to read it.
        png: the file; None where there is no figure.
        svg: the same figure.
        left_out: why it does not show a subject, by the subject's label.
    """

    key: str
    title: str
    reading: str
    png: Path | None
    svg: Path | None
    left_out: dict[str, str]

    @property
    def missing(self) -> str | None:
        """Why there is no figure; None where there is one."""
        return None if self.png else "; ".join(dict.fromkeys(self.left_out.values()))


FIGURES: dict[str, Kind] = {
    "curves": Kind(
        "Curves of training",
        "Everything else that was recorded, against the step.",
        training.lacks_record,
        training.curves,
    ),
    "scores": Kind(
        "Scores of positive and negative pairs in training",
        "Inner products that enter the loss; after FT, which changes norms, they are no cosines. Negatives "
        "whose mean and variance stay even make even gradients; lower positive scores are harder, and "
        "feature transformation (FT) lowers them on purpose (Zhu et al. 2021, arXiv 2108.02982, section 3).",
        training.lacks_scores,
        training.scores,
    ),
    "p_sup": Kind(
        "P_sup in training and its optimum",
        "The softmax's mass on all centers, mean over anchors, and β / (β + α |P(i)|) with the positives "
        "that were really there. A gap for few-shot classes says that their centers hold less than they "
        "should (Cui et al. 2021, arXiv 2107.12028).",
        training.lacks_p_sup,
        training.p_sup,
    ),
    "extra": Kind(
        "The extra loss that centers add",
        "L_extra(P) = −β log P − α K* log(1 − P), K* = |queue| q(y): its minimum, marked, says how much of "
        "the softmax the centers should hold: less for a class with many samples in the queue (Cui et al. "
        "2021).",
        training.lacks_extra,
        training.extra,
        4,
    ),
    "balance": Kind(
        "Gradients over the classes, the most frequent first",
        "2-norms of the loss's gradient with respect to pooled features (centers: their weights), means over "
        "the training, by their mean over the classes. A line that falls to the right is a training that "
        "listens to frequent classes; a level one listens to all (Cui et al. 2021, figure 2).",
        training.lacks_balance,
        training.balance,
    ),
    "hardness": Kind(
        "How hard negatives count at each temperature",
        "A small temperature gives nearly all of the gradient to the most similar negatives; a large one "
        "treats all alike (Wang and Liu 2021, arXiv 2012.09740, section 3.2). Negatives are images of other "
        "classes. Cosines are of pooled features; training takes them of projections.",
        features.lacks_negatives,
        features.hardness,
    ),
    "plane": Kind(
        "Uniformity and tolerance",
        "To the left features fill the sphere more evenly; further up images of a class are closer together. "
        "Black: references on the same images. The paper's claim on small temperatures is about projections, "
        "of which a training records both; these are pooled features (Wang and Liu 2021; Wang and Isola "
        "2020, arXiv 2005.10242).",
        features.lacks_tolerance,
        features.plane,
    ),
    "features": Kind(
        "A map of the test features",
        "Neighbours on the map are neighbours in the feature space; distances between groups, and their "
        "sizes, mean little in t-SNE (van der Maaten and Hinton 2008). Stars are learned class centers.",
        features.lacks_look,
        features.feature_map,
        4,
    ),
    "neighbours": Kind(
        "Nearest neighbours and hardest negatives",
        "Each query with the most similar training images and, below, the most similar test images of other "
        "classes; above each its class and cosine. Queries are the first image in the sample of classes from "
        "the most to the least frequent.",
        features.lacks_neighbours,
        features.neighbours,
        3,
    ),
    "centers": Kind(
        "Which classes are alike",
        "Cosine similarity of the learned class centers, without centers of mean features less their "
        "mean. The darker, the more alike; every panel has its own scale.",
        classes.lacks_classes,
        classes.center_map,
        4,
    ),
    "accuracy": Kind(
        "Accuracy of each class against its training images",
        "In the sample, by the learned centers, else by kNN. A rise to the right is what a long tail costs; "
        "many, medium and few are classes of more than 100, 20 to 100 and fewer than 20 training images (Liu "
        "et al. 2019, arXiv 1904.05160).",
        features.lacks_look,
        classes.accuracy,
    ),
}
"""Every figure by its key, in the order of the report."""


def draw(subjects: Sequence[Subject], folder: Path) -> list[Drawn]:
    """Draw every figure of `FIGURES` as `folder`/KEY.png and KEY.svg, side by side where there are several.

    Returns:
        One for each figure, also for those that no subject has data for.

    Raises:
        ZooError: if a file cannot be written.
    """
    return [draw_one(key, subjects, folder / f"{key}.png", folder / f"{key}.svg") for key in FIGURES]


def draw_one(key: str, subjects: Sequence[Subject], *paths: Path) -> Drawn:
    """Draw one figure of those subjects that lack nothing, to .png and .svg."""
    kind = FIGURES[key]
    reasons = {subject.label: reason for subject in subjects if (reason := kind.lacks(subject))}
    able = [subject for subject in subjects if subject.label not in reasons]
    for group in groups_of(able)[kind.most :]:
        reasons |= {subject.label: f"more than {kind.most} are not drawn" for subject in group.subjects}
    drawn = [subject for subject in able if subject.label not in reasons]
    if drawn:
        write_figure(partial(kind.plot, drawn), *paths)
    found = {path.suffix: path for path in paths if drawn}
    return Drawn(key, kind.title, kind.reading, found.get(".png"), found.get(".svg"), reasons)
