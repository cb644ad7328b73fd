"""The card's pictures: grouped by what they show, each with a sentence, and words for who does not see it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class _Picture(NamedTuple):
    """A picture that a release may have.

    Attributes:
        alt: what is on it, for a screen reader.
        reading: how to read it.
    """

    alt: str
    reading: str


_GROUPS: dict[str, dict[str, _Picture]] = {
    "How the training went": {
        "curves": _Picture(
            "Line charts of loss, learning rate and what else was recorded, against the training step",
            "What was recorded of the training. Loss and throughput are means over all steps since the point "
            "before; what is looked at every few steps is a mean over those steps.",
        ),
        "scores": _Picture(
            "Line charts of mean and variance of the scores of positive and negative pairs, against the step",
            "The inner products that the loss sees: those of positive pairs should rise, the variance of the "
            "negative ones should stay steady. Dashed lines are after feature transformation (FT), where it "
            "was used: it changes norms, so these are no cosines.",
        ),
        "balance": _Picture(
            "Line chart of gradient norms over the classes, from the most to the least frequent",
            "Which classes the training listened to: a line that falls to the right favours frequent ones, a "
            "level one favours none.",
        ),
    },
    "What it learned": {
        "features": _Picture(
            "Scatter plot of the test images' features in two dimensions",
            "Neighbours on the map are neighbours in the feature space; how far apart groups are, and how "
            "large, means little. Stars are learned class centers, where there are any.",
        ),
        "centers": _Picture(
            "Heat map of the cosine similarity of every two learned class centers",
            "The darker a cell, the more alike the weights hold its two classes to be; the colours run from "
            "the least to the most alike pair.",
        ),
        "accuracy": _Picture(
            "Chart of the accuracy of each class against its number of training images",
            "A line that rises to the right is what rare classes lose by being rare.",
        ),
    },
}


# What is said instead where all classes have as many training images.
_LEVEL: dict[str, _Picture] = {
    "balance": _Picture(
        "Line chart of gradient norms over the classes",
        "Which classes the training listened to; all have as many training images.",
    ),
    "accuracy": _Picture(
        "Chart of the accuracy of each class, sorted from the worst to the best",
        "How much worse than the others the worst classes are recognised; all have as many training images.",
    ),
}


def section(names: Iterable[str], *, level: bool = False) -> str:
    """Return the section of the pictures that there are; '' without any.

    Args:
        names: of PNG files in the release's folder. Those that a training draws come in groups, others last.
        level: whether all classes have as many training images.
    """
    files = {Path(name).stem: name for name in names}
    parts: list[str] = []
    for heading, known in _GROUPS.items():
        words = {stem: _LEVEL.get(stem, picture) if level else picture for stem, picture in known.items()}
        shown = [
            f"{picture.reading}\n\n![{picture.alt}]({files.pop(stem)})"
            for stem, picture in words.items()
            if stem in files
        ]
        if shown:
            parts += [f"### {heading}", *shown]
    others = [f"![{stem.replace('_', ' ')}]({name})" for stem, name in files.items()]
    if others and parts:
        parts.append("### Further")
    parts += others
    return "\n\n".join(["## Pictures", *parts]) if parts else ""
