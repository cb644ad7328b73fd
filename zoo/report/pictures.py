"""Figures as files: those of a report, and the pictures of a release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.report import features, training  # noqa: F401  # which fill `FIGURES`
from zoo.report.style import FIGURES, groups_of, save
from zoo.report.subject import Subject

_MOST = 8  # groups of subjects that a figure has room for
IN_A_RELEASE = ("features", "centers", "scores", "balance", "accuracy", "curves")


def draw(key: str, subjects: Sequence[Subject], *files: Path, title: str = "") -> dict[str, str]:
    """Draw one of `FIGURES` of those subjects that lack nothing, as .png or .svg; none where all do.

    Returns:
        Why it does not show a subject, by the subject's label.
    """
    kind = FIGURES[key]
    groups = groups_of([subject for subject in subjects if kind.has(subject)])
    drawn = [subject for group in groups[:_MOST] for subject in group]
    if drawn:
        save(kind.draw(drawn), *files, title=title)
    rest = [subject for subject in subjects if subject not in drawn]
    return {each.label: f"more than {_MOST}" if kind.has(each) else kind.without for each in rest}


def draw_pictures(subject: Subject, folder: Path) -> dict[str, Path]:
    """Draw the pictures of a release that there is something to draw of, as `folder`/NAME.png.

    Returns:
        The files by name, of `IN_A_RELEASE`.
    """
    title = f"{subject.name}\n{subject.data}, seed {subject.seed}"
    files = {key: folder / f"{key}.png" for key in IN_A_RELEASE}
    return {key: file for key, file in files.items() if not draw(key, [subject], file, title=title)}
