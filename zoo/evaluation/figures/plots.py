"""The curves of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from zoo.errors import DataError
from zoo.evaluation.figures.style import (
    COLORS,
    COLUMN,
    INK,
    MARKERS,
    caption_height,
    figure_to,
    folded,
    grid,
    title_height,
    wrapped,
)
from zoo.evaluation.series import GROUPS, Curve, Scalar, curve, is_number, names, smooth, steps

_NAMES = {
    "lr": "learning rate",
    "knn_accuracy": "kNN accuracy",
    "knn_balanced_accuracy": "kNN balanced accuracy",
    "images_per_second": "throughput",
    "p_sup": "P_sup: all centers",
    "center_probability": "P of own center",
    "pair_probability": "P of positive pair",
    "center_norm": "norm of centers",
    "center_cosine": "pairs of centers",
    "feature_gradient": "feature gradient",
    "gradient_norm": "weight gradient",
    "positive_score": "positive pairs",
    "positive_variance": "positive pairs",
    "negative_score": "negative pairs",
    "negative_variance": "negative pairs",
    "same_class_score": "pairs of one class",
    "same_class_variance": "pairs of one class",
}
_UNITS = {
    "loss": "nats",
    "validation_loss": "nats",
    "images_per_second": "images / s",
    "p_sup": "probability",
    "center_probability": "probability",
    "pair_probability": "probability",
    "target_confidence": "probability",
    "center_norm": "2-norm",
    "gradient_norm": "2-norm",
    "feature_gradient": "2-norm",
    "center_cosine": "mean cosine",
    "tolerance": "mean cosine",
    "alignment": "E |q − k|²",
    "uniformity": "log E exp(−2 d²)",
    "same_distance": "distance",
    "other_distance": "distance",
}
_VARIANTS: dict[str, Any] = {"optimum": (0, (1, 2)), "ft": (0, (4, 1.5))}
_VARIANT_NAMES = {"optimum": "theoretical optimum", "ft": "after FT"}
_FIRST = ("loss", "lr", "images_per_second")
_HEIGHTS = {1: 1.75, 2: 1.5}  # inches of a panel, by how many lie side by side
_BESIDE = {1: 2.7, 2: 1.2}  # inches of its title


class _Line(NamedTuple):
    """How a scalar is drawn, told by its name."""

    name: str
    variant: str = ""
    group: str = ""

    @property
    def color(self) -> str:
        return COLORS[GROUPS.index(self.group) + 1 if self.group else 0]

    @property
    def marker(self) -> str:
        return MARKERS[GROUPS.index(self.group) + 1] if self.group else "."

    @property
    def dash(self) -> Any:
        return _VARIANTS.get(self.variant, "-")

    @property
    def filling(self) -> str:
        """Markers of what was not measured are hollow: between many of them dashes cannot be seen."""
        return "white" if self.variant == "optimum" else self.color


def _legend(lines: Sequence[_Line]) -> list[Line2D]:
    """Say what the colours and dashes are that there are."""
    groups = [group for group in GROUPS if any(line.group == group for line in lines)]
    variants = [variant for variant in _VARIANTS if any(line.variant == variant for line in lines)]
    of_groups = [_Line("", group=group) for group in (["", *groups] if groups else [])]
    return [
        *(
            Line2D(
                [],
                [],
                label=f"{line.group}-shot" if line.group else "all classes",
                color=line.color,
                marker=line.marker,
                markersize=3,
            )
            for line in of_groups
        ),
        *(
            Line2D(
                [],
                [],
                label=_VARIANT_NAMES[v],
                color=INK,
                linestyle=_VARIANTS[v],
                marker="o" if v == "optimum" and groups else None,
                markersize=3,
                markerfacecolor="white",
            )
            for v in variants
        ),
    ]


def plot_curves(
    records: Sequence[Mapping[str, Any]], path: Path | str, *, title: str | None = None, data: str = ""
) -> None:
    """Draw every scalar of a run's `metrics.jsonl` against the step, one panel for each quantity.

    A quantity recorded of many-, medium- and few-shot classes, with its theoretical optimum (`_optimum`), or
    after feature transformation too (`_ft`), has its lines in one panel, told apart by colour and dashes.
    A step that was run twice (before and after a resume) counts once, as last recorded. Beyond 100
    records the line is a running mean over 2 % of them and the records are shown faintly behind it.

    Args:
        records: rows with `step` and any of `epoch`, `loss`, `lr`, `images_per_second` and further
            scalar metrics; a row need not have all of them.
        path: .png or .pdf.
        title: heading of the figure.
        data: what was trained on, and with which seed, for the caption.

    Raises:
        DataError: when no row has a step and a scalar.
    """
    rows = [row for row in records if is_number(row.get("step"))]
    recorded = names(rows)
    panels_of: dict[str, list[_Line]] = {}
    for name in [*(each for each in _FIRST if each in recorded), *(n for n in recorded if n not in _FIRST)]:
        quantity, variant, group = Scalar.of(name)
        panels_of.setdefault(quantity, []).append(_Line(name, variant, group))
    if not panels_of:
        raise DataError(f"training curves: none of {len(records)} records has a step and a scalar metric")
    columns = 1 if len(panels_of) <= 3 else 2
    rows_of_panels = math.ceil(len(panels_of) / columns)
    caption = f"{data}. " if data else ""
    every, epochs = steps(rows), curve(rows, "epoch").values
    caption += f"{len(every):,} records, steps {every[0]:,} to {every[-1]:,}"
    if len(epochs):
        caption += f", epochs {round(epochs[0], 2):g} to {round(epochs[-1], 2):g}"
    window = len(every) // 50 if len(every) > 100 else 1
    if window > 1:
        caption += f"; lines: running mean over {window} records, faint: the records"
    legend = _legend([line for lines in panels_of.values() for line in lines])
    entries = 2  # of the legend in a line
    above = math.ceil(len(legend) / entries)
    title = folded(title, COLUMN) if title else title
    heading = (title or " ") + "\n " * above if legend else title
    words = caption_height(caption, COLUMN) + title_height(heading or "", COLUMN)
    size = (COLUMN, _HEIGHTS[columns] * rows_of_panels + words)
    with figure_to(path, size, caption, heading) as figure:
        panels = figure.subplots(rows_of_panels, columns, squeeze=False, sharex=True).ravel()
        for axes, (name, lines) in zip(panels, panels_of.items(), strict=False):
            shown = [curve(rows, line.name) for line in lines]
            scale, unit = _scale([value for each in shown for value in each.values], name)
            for line, each in zip(lines, shown, strict=True):
                found = Curve(each.steps, each.values * scale)
                style: dict[str, Any] = {"color": line.color, "linestyle": line.dash}
                marker = line.marker if len(found.values) < 30 or line.group else None
                style["markevery"] = max(1, len(found.values) // 10) if line.group else None
                smoothed = smooth(found, window)
                if smoothed is not found and len(lines) == 1:
                    axes.plot(*found, alpha=0.25, linewidth=0.6, **style)
                style |= {"marker": marker, "markersize": 3, "markerfacecolor": line.filling}
                axes.plot(*smoothed, linewidth=1.2, markeredgewidth=0.8, **style)
            called = _NAMES.get(name, name.replace("_", " "))
            axes.set_title(wrapped(called, _BESIDE[columns], 9), loc="left")
            axes.set_ylabel(unit)
            axes.xaxis.set_major_locator(MaxNLocator(2 if columns == 2 else 4, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.ticklabel_format(axis="y", style="plain", useOffset=False)
            grid(axes)
        for axes in panels[len(panels_of) :]:
            axes.remove()
        if legend:  # in the title's lines from the second on
            style = {"ncols": entries, "handlelength": 2.4, "columnspacing": 1.2, "labelspacing": 0.1}
            style |= {"borderpad": 0, "borderaxespad": 0}
            at = (0.01, 1 - (0.05 + 0.15 * len((title or " ").splitlines())) / size[1])
            figure.legend(handles=legend, loc="upper left", bbox_to_anchor=at, **style)
        for i, axes in enumerate(panels[: len(panels_of)]):
            if i + columns >= len(panels_of):
                axes.set_xlabel("step")
                axes.tick_params(labelbottom=True)


def _scale(values: Sequence[float], name: str) -> tuple[float, str]:
    """Return what brings values to a readable size, and the label of their axis with the power of ten."""
    unit = _UNITS.get(name, "")
    if name.endswith("_score"):
        unit = "inner product"
    elif name.endswith("_variance"):
        unit = "variance"
    elif "accuracy" in name:
        unit = "%"
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest > 0 else 0
    if -3 < exponent < 5:
        return 1.0, unit
    return 10.0**-exponent, rf"{unit} $\times 10^{{{exponent}}}$".strip()
