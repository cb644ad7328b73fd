"""The picture of a comparison: every run, each method's mean and its interval; of one seed, the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.evaluation.figures.style import CELL, COLORS, FAINT, INK, figure_to, grid
from zoo.evaluation.results.comparison import COLUMNS, LEVEL, Summary

_PANELS = ("balanced_accuracy", "many", "medium", "few", "calibration_error")


def plot_comparison(
    summaries: Mapping[str, Summary], path: Path | str, *, title: str | None = None, about: str = ""
) -> None:
    """Draw one line for each method and one panel for each metric that any method has.

    Args:
        summaries: as `summarize` returns them, best first.
        path: .png or .pdf.
        title: heading of the figure.
        about: data, start and the like, for the caption.
    """
    panels = [key for key in _PANELS if any(summary.metrics[key] for summary in summaries.values())]
    names = list(summaries)
    seeds = len(next(iter(next(iter(summaries.values())).metrics.values())).values)  # type: ignore[union-attr]
    caption = f"{about}; " if about else ""
    if seeds > 1:
        caption += (
            f"dots: each of {seeds} seeds; mark: their mean, line: its {LEVEL:.0%} interval (Student's t). "
        )
        if any(_has_no_spread(summary, panels) for summary in summaries.values()):
            caption += "no line: no spread, the same with every seed. "
    else:
        caption += "one seed: what differs by chance is not told apart. "
    caption += "many, medium, few: mean over classes with > 100, 20 to 100, < 20 training images"
    row = 0.24 if seeds > 1 else 0.3  # inches: with a number above each mark
    size = (1.6 + 1.35 * max(len(panels), 2), max(0.8 + row * len(names), 1.5))  # room for the words
    with figure_to(path, size, caption, title) as figure:
        axes_of = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, key in zip(axes_of, panels, strict=True):
            for place, summary in enumerate(summaries.values()):
                value = summary.metrics[key]
                if value is None:
                    continue
                if seeds > 1:
                    axes.plot(value.values, [place] * seeds, "o", color=FAINT, markersize=2.5)
                else:
                    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
                    axes.annotate(f"{value.mean:.1f}", (value.mean, place), fontsize=CELL, **above)
                color = COLORS[3] if key == "calibration_error" else COLORS[0]
                axes.errorbar(
                    value.mean,
                    place,
                    xerr=value.half_width,
                    fmt="D",
                    color=color,
                    markersize=4,
                    elinewidth=1.4,
                    capsize=2,
                )
            axes.set_title(COLUMNS[key], loc="left")
            axes.margins(x=0.12)  # for the numbers at both ends
            axes.set_xlabel("%, less is better" if key == "calibration_error" else "top-1 accuracy (%)")
            low, high = axes.get_xlim()
            axes.set_xlim(max(low, -1.0), min(high, 101.0))  # an interval may reach beyond what can be
            grid(axes, "x")
        axes_of[0].set_yticks(range(len(names)), names, color=INK)
        axes_of[0].invert_yaxis()
        axes_of[0].set_ylim(len(names) - 0.5, -0.5)


def _has_no_spread(summary: Summary, panels: Sequence[str]) -> bool:
    values = (summary.metrics[key] for key in panels)
    return any(value is not None and value.half_width is None for value in values)
