"""Figures as files: each of a report, or why it is not there, and the pictures of a release."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from zoo.errors import ZooWarning
from zoo.report import features, training  # noqa: F401  # which fill `FIGURES`
from zoo.report.style import FIGURES, groups_of, save
from zoo.report.subject import Subject

IN_A_RELEASE = ("features", "centers", "scores", "balance", "accuracy", "curves")


def draw(key: str, subjects: Sequence[Subject], *files: Path, title: str = "") -> dict[str, str]:
    """Draw one of `FIGURES` of those subjects that lack nothing, as .png or .svg; none where all do.

    Returns:
        Why it does not show a subject, by the subject's label.
    """
    kind = FIGURES[key]
    left_out = {subject.label: reason for subject in subjects if (reason := kind.lacks(subject))}
    groups = groups_of([subject for subject in subjects if subject.label not in left_out])
    for group in groups[kind.most :]:
        left_out |= {subject.label: f"more than {kind.most} are not drawn" for subject in group.subjects}
    drawn = [subject for group in groups[: kind.most] for subject in group.subjects]
    if drawn:
        save(kind.draw(drawn), *files, title=title)
    return left_out


def draw_pictures(subject: Subject, folder: Path) -> dict[str, Path]:
    """Draw the pictures of a release that there is something to draw of, as `folder`/NAME.png.

    Returns:
        The files by name, of `IN_A_RELEASE`.
    """
    made = {}
    for key in IN_A_RELEASE:
        title = f"{subject.name}\n{subject.data}, seed {subject.seed}"
        left_out = draw(key, [subject], folder / f"{key}.png", title=title)
        if not left_out:
            made[key] = folder / f"{key}.png"
        elif key == "features" and subject.sample is not None:
            warnings.warn(f"no map of features: {left_out[subject.label]}", ZooWarning, stacklevel=2)
    return made
