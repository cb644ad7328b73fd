"""The curves of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from zoo.config import is_number
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

_NAMES = {
    "lr": "learning rate",
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
_CLASSES = ("many", "medium", "few")  # groups by training images
_VARIANTS: dict[str, Any] = {"optimum": (0, (1, 2)), "ft": (0, (4, 1.5))}
_VARIANT_NAMES = {"optimum": "theoretical optimum", "ft": "after FT"}
_FIRST = ("loss", "lr", "images_per_second")
_HEIGHTS = {1: 1.75, 2: 1.5}  # inches of a panel, by how many lie side by side
_BESIDE = {1: 2.7, 2: 1.2}  # inches of its title


class _Line(NamedTuple):
    """A recorded scalar: which quantity it is, of which classes, and whether its optimum or after FT."""

    name: str
    quantity: str
    group: str
    variant: str

    @classmethod
    def of(cls, name: str) -> _Line:
        """Read a name as `QUANTITY[_optimum|_ft][_many|_medium|_few]`."""
        quantity, group, variant = name, "", ""
        for each in _CLASSES:
            if quantity.endswith(f"_{each}"):
                quantity, group = quantity.removesuffix(f"_{each}"), each
        for each in _VARIANTS:
            if quantity.endswith(f"_{each}"):
                quantity, variant = quantity.removesuffix(f"_{each}"), each
        return cls(name, quantity, group, variant)

    @property
    def color(self) -> str:
        return COLORS[_CLASSES.index(self.group) + 1 if self.group else 0]

    @property
    def marker(self) -> str:
        return MARKERS[_CLASSES.index(self.group) + 1] if self.group else "."

    @property
    def dash(self) -> Any:
        return _VARIANTS.get(self.variant, "-")

    @property
    def filling(self) -> str:
        """Markers of what was not measured are hollow: between many of them dashes cannot be seen."""
        return "white" if self.variant == "optimum" else self.color


def _legend(lines: Sequence[_Line]) -> list[Line2D]:
    """Say what the colours and dashes are that there are."""
    groups = [group for group in _CLASSES if any(line.group == group for line in lines)]
    variants = [variant for variant in _VARIANTS if any(line.variant == variant for line in lines)]
    of_groups = [_Line("", "", group, "") for group in (["", *groups] if groups else [])]
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
    together: dict[int, dict[str, Any]] = {}  # a step may have two rows, the second of a validation
    for row in records:
        if "step" in row:
            together.setdefault(row["step"], {}).update(row)
    rows = [together[step] for step in sorted(together)]
    keys = {key for row in rows for key, value in row.items() if is_number(value)} - {"step", "epoch"}
    panels_of: dict[str, list[_Line]] = {}
    for name in [*(k for k in _FIRST if k in keys), *sorted(keys.difference(_FIRST))]:
        line = _Line.of(name)
        panels_of.setdefault(line.quantity, []).append(line)
    names = list(panels_of)
    if not names:
        raise DataError(f"training curves: none of {len(records)} records has a step and a scalar metric")
    columns = 1 if len(names) <= 3 else 2
    rows_of_panels = math.ceil(len(names) / columns)
    caption = f"{data}. " if data else ""
    caption += f"{len(rows):,} records, steps {rows[0]['step']:,} to {rows[-1]['step']:,}"
    epochs = [row["epoch"] for row in rows if is_number(row.get("epoch"))]
    if epochs:
        caption += f", epochs {round(epochs[0], 2):g} to {round(epochs[-1], 2):g}"
    window = len(rows) // 50 if len(rows) > 100 else 1
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
            shown = [
                [(row["step"], row[line.name]) for row in rows if is_number(row.get(line.name))]
                for line in lines
            ]
            scale, unit = _scale([value for each in shown for _, value in each], name)
            for line, each in zip(lines, shown, strict=True):
                steps, values = np.array([s for s, _ in each]), np.array([v for _, v in each]) * scale
                style: dict[str, Any] = {"color": line.color, "linestyle": line.dash}
                marker = line.marker if len(values) < 30 or line.group else None
                style["markevery"] = max(1, len(values) // 10) if line.group else None
                if window > 1 and len(values) > window:
                    if len(lines) == 1:
                        axes.plot(steps, values, alpha=0.25, linewidth=0.6, **style)
                    steps, values = _running_mean(steps, window), _running_mean(values, window)
                style |= {"marker": marker, "markersize": 3, "markerfacecolor": line.filling}
                axes.plot(steps, values, linewidth=1.2, markeredgewidth=0.8, **style)
            called = _NAMES.get(name, name.replace("_", " "))
            axes.set_title(wrapped(called, _BESIDE[columns], 9), loc="left")
            axes.set_ylabel(unit)
            axes.xaxis.set_major_locator(MaxNLocator(2 if columns == 2 else 4, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.ticklabel_format(axis="y", style="plain", useOffset=False)
            grid(axes)
        for axes in panels[len(names) :]:
            axes.remove()
        if legend:  # in the title's lines from the second on
            style = {"ncols": entries, "handlelength": 2.4, "columnspacing": 1.2, "labelspacing": 0.1}
            style |= {"borderpad": 0, "borderaxespad": 0}
            at = (0.01, 1 - (0.05 + 0.15 * len((title or " ").splitlines())) / size[1])
            figure.legend(handles=legend, loc="upper left", bbox_to_anchor=at, **style)
        for i, axes in enumerate(panels[: len(names)]):
            if i + columns >= len(names):
                axes.set_xlabel("step")
                axes.tick_params(labelbottom=True)


def _running_mean(values: np.ndarray[Any, Any], window: int) -> np.ndarray[Any, Any]:
    return np.convolve(values, np.ones(window) / window, mode="valid")


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
