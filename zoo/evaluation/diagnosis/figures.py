"""All figures of a report, each made or with the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zoo.evaluation.diagnosis.subject import Subject


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
        caption: data, split, sample and seed; what is drawn how. Empty where there is no figure.
        reading: how to read it, with source.
        missing: why there is no figure; None where there is one.
    """

    key: str
    title: str
    png: Path | None
    svg: Path | None
    caption: str
    reading: str
    missing: str | None = None


FIGURES: dict[str, Kind] = {}
"""Every figure by its key, in the order of the report."""


def draw(subjects: Sequence[Subject], folder: Path, *, only: Collection[str] | None = None) -> list[Drawn]:
    """Draw every figure of `FIGURES` as `folder`/KEY.png and KEY.svg.

    Args:
        subjects: one or several; figures lay them side by side.
        folder: made if it is not there.
        only: the keys of the figures that are wanted; all when None.

    Returns:
        One for each figure, in the order of `FIGURES`, also for those that the subjects have no data for.

    Raises:
        ZooError: without a subject, for unknown keys, or if a file cannot be written.
    """
    raise NotImplementedError
