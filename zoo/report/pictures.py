"""Figures as files: those of a report, and the pictures of a release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from zoo.files import writing
from zoo.release.format import DRAWN
from zoo.report import features, training  # noqa: F401  # which fill `FIGURES`
from zoo.report.style import FIGURES, groups_of, styled
from zoo.report.subject import Subject

_MOST = 8  # groups of subjects that a figure has room for


def draw(key: str, subjects: Sequence[Subject], *files: Path, title: str = "") -> dict[str, str]:
    """Draw one of `FIGURES` as .png or .svg; return by label what subjects that it does not show lack."""
    kind = FIGURES[key]
    groups = groups_of([subject for subject in subjects if kind.has(subject)])
    drawn = [subject for group in groups[:_MOST] for subject in group]
    if drawn:
        _save(kind.draw(drawn), *files, title=title)
    rest = [subject for subject in subjects if subject not in drawn]
    return {each.label: f"more than {_MOST}" if kind.has(each) else kind.without for each in rest}


def _save(made: Figure, *paths: Path, title: str = "") -> None:
    """Write a figure to files that end in .png or .svg; raise `ZooError` for one that cannot be written."""
    with styled():
        if title:
            made.suptitle(title, x=0.01, ha="left", wrap=True)
        for path in paths:
            with writing(f'figure "{path}"'):
                path.parent.mkdir(parents=True, exist_ok=True)
                made.savefig(path, dpi=200)


def draw_pictures(subject: Subject, folder: Path) -> dict[str, Path]:
    """Draw the pictures of a release that there is something to draw of, as `folder`/NAME.png.

    Returns:
        The files by name, of `zoo.release.format.DRAWN`.
    """
    title = f"{subject.name}\n{subject.data}, seed {subject.seed}"
    files = {key: folder / f"{key}.png" for key in DRAWN}
    return {key: file for key, file in files.items() if not draw(key, [subject], file, title=title)}
