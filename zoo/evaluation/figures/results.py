"""The picture of a table of results: accuracy by shot of each method, every seed, and what was published."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zoo.evaluation.figures.names import without_common_end
from zoo.evaluation.figures.style import COLORS, FAINT, INK, caption_height, figure_to, grid
from zoo.evaluation.results.rows import GROUPS
from zoo.evaluation.results.table import Line, measured_groups

_MOST_ROWS = 40
_MEASURES = {"linear": "linear probe", "linear, balanced": "balanced linear probe", "knn": "kNN"}
_LEAST = 10.0  # points of accuracy that an axis shows
_LETTERS = 40  # of a line of a row's name
_WIDE, _NAMES = 1.55, 2.4  # inches of a panel, and of the rows' names
_ENDS, _HEADING = 0.55, 0.2  # inches of a block beside its rows: titles and ticks; the name of its data


def plot_results(shown: Sequence[Line], paths: Path | str | Sequence[Path]) -> bool:
    """Draw a block for each data set and measure, with a line for each row and a panel for each metric.

    Every panel has an x axis of its own: on one for all, the overall accuracies, which lie closer together
    than those by shot, would be one dot. What a classifier has and what a probe has are never beside each
    other.

    Args:
        shown: rows in words, in the order from top to bottom.
        paths: .png, .svg or .pdf, or several of them.

    Returns:
        Whether there was something to draw.
    """
    measured = [line for line in shown if line.row.figures]
    if not measured:
        return False
    drawn, more = measured[:_MOST_ROWS], len(measured) - _MOST_ROWS
    blocks = _blocks(drawn)
    panels = measured_groups(drawn)
    caption = _caption(drawn, panels, more)
    names = {data: labels(rows) for data, rows in blocks.items()}
    tall = {  # inches of a row, by block
        data: 0.13 + 0.13 * max(name.count("\n") + 1 for name in each) for data, each in names.items()
    }
    width = _NAMES + _WIDE * max(len(panels), 2)
    heading = _HEADING + 0.08 if len(blocks) > 1 else 0.0
    height = sum(_ENDS + heading + tall[data] * len(rows) for data, rows in blocks.items())
    size = (width, height + caption_height(caption, width) + 0.25)  # with the label of the x axis
    with figure_to(paths, size, caption, None) as figure:
        _draw_blocks(figure, blocks, names, panels, tall)
    return True


def _blocks(drawn: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the rows by what stands above them: the data and, where it has several, the measure."""
    measures: dict[str, set[str]] = {}
    for line in drawn:
        measures.setdefault(line.data, set()).add(_measure(line))
    found: dict[str, list[Line]] = {}
    for line in drawn:
        measure = _measure(line)
        several = len(measures[line.data]) > 1
        found.setdefault(
            f"{line.data}, {_MEASURES.get(measure, measure)}" if several else line.data, []
        ).append(line)
    return found


def _measure(line: Line) -> str:
    return "" if line.row.evaluated is None else line.row.evaluated.measure


def _caption(drawn: Sequence[Line], panels: Sequence[str], more: int) -> str:
    data = dict.fromkeys(line.data for line in drawn)
    used = dict.fromkeys(_measure(line) for line in drawn if line.row.evaluated is not None)
    texts = [f"{next(iter(data))}, test split" if len(data) == 1 else "Test splits"]
    texts[0] += f", measured by {' or '.join(_MEASURES.get(each, each) for each in used)}"
    texts.append("Every panel has an x axis of its own")
    texts.append("Dots: single seeds")
    if any(line.row.measured == 1 and _images(line) for line in drawn):
        texts[-1] += (
            "; thin lines through those alone: 95 % interval of the overall accuracy by the choice of test "
            "images"
        )
    if any(line.row.measured > 1 for line in drawn):
        texts[-1] += "; diamonds above them: their means, bars: ± sample standard deviation"
    if any(line.published for line in drawn):
        texts[-1] += "; orange strokes: published figures, for what differs see the table"
    if len(panels) > 1:
        texts.append("Many, medium, few: classes with > 100, 20 to 100, < 20 training images")
    if more > 0:
        texts.append(f"{more} more rows are in the table")
    return f"{'. '.join(texts)}."


def _draw_blocks(
    figure: Figure,
    blocks: Mapping[str, Sequence[Line]],
    names: Mapping[str, Sequence[str]],
    panels: Sequence[str],
    tall: Mapping[str, float],
) -> None:
    several = len(blocks) > 1
    heights = [
        inches
        for data, rows in blocks.items()
        for inches in ([_HEADING] if several else []) + [tall[data] * len(rows)]
    ]
    places = figure.add_gridspec(len(heights), len(panels), height_ratios=heights)
    lowest = dict[str, Axes]()
    for number, (data, rows) in enumerate(blocks.items()):
        if several:
            heading = figure.add_subplot(places[2 * number, :])
            heading.set_axis_off()
            heading.text(0, 0, data, fontsize=9.0, fontweight="bold", parse_math=False).set_in_layout(False)
        own = measured_groups(rows)
        first: Axes | None = None
        for metric in own:
            place = places[2 * number + 1 if several else number, panels.index(metric)]
            axes = lowest[metric] = figure.add_subplot(place, sharey=first)
            for y, line in enumerate(rows):
                _draw(axes, y, line, metric)
            axes.set_title(GROUPS[metric], loc="left")
            axes.tick_params(axis="y", labelleft=first is None)
            grid(axes, "x")
            _widen(axes)
            first = first or axes
        if first is not None:
            first.set_yticks(range(len(rows)), names[data], color=INK)
            first.set_ylim(len(rows) - 0.5, -0.5)
    for axes in lowest.values():
        axes.set_xlabel("top-1 accuracy (%)")


def _widen(axes: Axes) -> None:
    """Give the x axis ten points at least, else a tie fills the width, and room around a dot at 0 or 100."""
    low, high = axes.get_xlim()
    missing = max(0.0, _LEAST - (high - low)) / 2
    low, high = low - missing, high + missing
    room = 0.05 * (min(high, 100.0) - max(low, 0.0))
    axes.set_xlim(max(low, -room), min(high, 100.0 + room))


def _images(line: Line) -> float:
    """Return how many test images a row's accuracy is a share of; 0 where that is not recorded."""
    return 0.0 if line.row.evaluated is None else line.row.evaluated.metrics.get("test_images", 0.0)


def _draw(axes: Axes, place: int, line: Line, metric: str) -> None:
    found, published = line.row.figures.get(metric), line.published
    if published is not None and published.metric == metric:
        axes.plot([published.value] * 2, [place - 0.36, place + 0.36], color=COLORS[3], linewidth=1.8)
    if found is None:
        return
    single = found.deviation is None
    if single and metric == "accuracy" and (images := _images(line)):
        share = found.mean / 100
        half = 196.0 * (share * (1 - share) / images) ** 0.5
        axes.plot([found.mean - half, found.mean + half], [place, place], color=COLORS[0], linewidth=1.0)
    axes.plot(
        found.values,
        [place if single else place + 0.22] * len(found.values),  # below their mean, which they would hide
        "o",
        color=COLORS[0] if single else FAINT,
        markersize=4 if single else 2.8,
        zorder=3,
    )
    if not single:
        axes.errorbar(
            found.mean,
            place,
            xerr=found.deviation,
            fmt="D",
            color=COLORS[0],
            markersize=4,
            elinewidth=1.2,
            capsize=2,
        )


def labels(shown: Sequence[Line]) -> list[str]:
    """Return short names for rows: the method, and of data, length and recipe what tells them apart."""
    data = len({line.data for line in shown}) > 1
    lengths = len({line.row.first.epochs for line in shown}) > 1  # a shorter row of another method misleads
    measures = [_measure(line) for line in shown]
    told = len({*measures}) > 1  # a probe's figure is none of a classifier
    found = [
        ", ".join(
            [
                line.method,
                *([line.data] if data else []),
                *([f"{line.row.first.epochs} epochs"] if lengths else []),
                *([_MEASURES.get(measure, measure)] if told and measure not in ("", "classifier") else []),
            ]
        )
        for line, measure in zip(shown, measures, strict=True)
    ]
    for text in {each for each in found if found.count(each) > 1}:
        places = [place for place, each in enumerate(found) if each == text]
        words_of = _told_apart([shown[place].recipe for place in places])
        for place, words in zip(places, words_of, strict=True):
            found[place] = f"{found[place]}, {words}" if words else f"{found[place]}, row {place + 1}"
    return [textwrap.fill(text, _LETTERS) for text in found]


def _told_apart(recipes: Sequence[str]) -> list[str]:
    """Leave out what all have: of the name architecture, tag or the tag's end, and values."""
    words = [each.split(", ") for each in recipes]
    names = [each[0].partition(".") for each in words]
    architectures, tags = [name[0] for name in names], [name[2] for name in names]
    if len({*architectures}) > 1 and len({*tags}) > 1:
        own = [each[0] for each in words]
    else:
        own = architectures if len({*architectures}) > 1 else without_common_end(tags)
    shared = {word for word in words[0] if all(word in each for each in words)}
    alike = len({each[0] for each in words}) == 1
    return [
        ", ".join([*([] if alike else [name]), *(word for word in each[1:] if word not in shared)])
        for name, each in zip(own, words, strict=True)
    ]
