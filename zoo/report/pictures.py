"""Write figures to files: those of a report, and a release's pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from zoo.files import writing
from zoo.release.format import DRAWN
from zoo.report import features, training  # noqa: F401  # which fill `FIGURES`
from zoo.report.style import COLORS, FAINT, FIGURES, groups_of, styled
from zoo.report.subject import Subject

_MOST = 8  # groups of subjects in one figure


def draw(key: str, subjects: Sequence[Subject], *files: Path, title: str = "") -> dict[str, str]:
    """Draw one of `FIGURES` as .png or .svg; return, by label, why the other subjects are not shown."""
    kind = FIGURES[key]
    groups = groups_of([subject for subject in subjects if kind.has(subject)])
    drawn = [subject for group in groups[:_MOST] for subject in group]
    if drawn:
        _save(kind.draw(drawn), *files, title=title)
    rest = [subject for subject in subjects if subject not in drawn]
    return {each.label: f"more than {_MOST}" if kind.has(each) else kind.without for each in rest}


def _save(made: Figure, *paths: Path, title: str = "") -> None:
    """Write a figure to .png or .svg files; ZooError if one cannot be written."""
    with styled():
        if title:
            made.suptitle(title, x=0.01, ha="left", wrap=True)
        for path in paths:
            with writing(f'figure "{path}"'):
                path.parent.mkdir(parents=True, exist_ok=True)
                made.savefig(path, dpi=200)


def draw_pictures(subject: Subject, folder: Path) -> dict[str, Path]:
    """Draw those pictures of a release that its data allow, as `folder`/NAME.png.

    Returns:
        The files by name, of `zoo.release.format.DRAWN`.
    """
    title = f"{subject.name}\n{subject.data}, seed {subject.seed}"
    files = {key: folder / f"{key}.png" for key in DRAWN}
    return {key: file for key, file in files.items() if not draw(key, [subject], file, title=title)}


def draw_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Draw one panel per column with a row for each `point` of the index: runs, mean, deviation."""
    points = numbers.groupby(level="point", sort=False)
    means, deviations = points.mean(), points.std()
    with styled():
        size = (4.0 + 1.6 * len(means.columns), 0.9 + 0.36 * len(means))
        made = Figure(size, layout="constrained")
        panels = made.subplots(1, len(means.columns), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, numbers, strict=True):
            axes.plot(numbers[name], numbers.index.get_level_values("point"), "o", color=FAINT)
            axes.errorbar(means[name], means.index, xerr=deviations[name], fmt="D", color=COLORS[0])
            axes.set_title(textwrap.fill(str(name).replace("_", " "), 22))  # the width of a panel
        panels[0].set_ylim(len(means) - 0.5, -0.5)  # which all panels share
        made.supxlabel("dots: seeds; diamonds: mean ± standard deviation", fontsize=7)
    _save(made, file)
