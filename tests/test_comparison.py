"""Comparing methods over seeds: the statistics, the table, the picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from zoo.errors import ZooError
from zoo.evaluation.figures.comparison import plot_comparison
from zoo.evaluation.results.comparison import COLUMNS, as_markdown, as_rows, estimate, summarize


def metrics(value: float, **others: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS, value), "test_images": 100, **others}


RUNS = {
    "a": {0: metrics(50.0), 1: metrics(52.0), 2: metrics(54.0)},
    "b": {0: metrics(60.0), 1: metrics(61.0), 2: metrics(65.0)},
    "c": {0: metrics(59.0), 1: metrics(61.5), 2: metrics(64.0)},
}


def test_interval_is_students_as_scipy_computes_it_and_as_by_hand() -> None:
    found = estimate([50.0, 52.0, 54.0])
    low, high = stats.t.interval(0.95, 2, loc=52.0, scale=stats.sem([50.0, 52.0, 54.0]))
    assert found.mean == 52.0
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.mean + found.half_width == pytest.approx(high)
    assert found.half_width == pytest.approx(4.302652729911275 * 2 / math.sqrt(3))  # t(0.975, 2), s = 2
    assert estimate([7.0]).half_width is None


def test_methods_are_ranked_and_differences_are_taken_seed_by_seed() -> None:
    found = summarize(RUNS)
    assert list(found) == ["b", "c", "a"]
    assert found["b"].to_best is None
    assert found["b"].verdict == "best"
    assert found["c"].to_best.values == (-1.0, 0.5, -1.0)
    assert found["c"].tied is True
    # far apart in each seed, though the intervals of their means overlap
    assert found["a"].to_best.values == (-10.0, -9.0, -11.0)
    assert found["a"].tied is False
    assert found["a"].metrics["few"].mean + found["a"].metrics["few"].half_width > 56.0
    assert found["b"].metrics["few"].mean - found["b"].metrics["few"].half_width < 56.0


def test_one_seed_has_neither_interval_nor_ties() -> None:
    found = summarize({"a": {3: metrics(1.0)}, "b": {3: metrics(1.0)}})
    assert [summary.tied for summary in found.values()] == [None, None]
    assert found["b"].verdict == "0.0 (one seed)"


def test_other_seeds_and_no_method_are_refused() -> None:
    with pytest.raises(ZooError, match=r"b has the seeds \(1,\), but a has \(0,\)"):
        summarize({"a": {0: metrics(1.0)}, "b": {1: metrics(1.0)}})
    with pytest.raises(ZooError, match="no method"):
        summarize({})


def test_tables_leave_out_what_no_run_has() -> None:
    runs = {"a": {0: metrics(1.0, many=None)}, "b": {0: metrics(2.0, many=None, few=None)}}
    text = as_markdown(summarize(runs))
    assert text.splitlines() == [
        "| method | accuracy | balanced | medium | few | calibration error | balanced, to the best |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| b | 2.0 | 2.0 | 2.0 | - | 2.0 | best |",
        "| a | 1.0 | 1.0 | 1.0 | 1.0 | 1.0 | -1.0 (one seed) |",
    ]
    assert as_rows(summarize(runs))[1] == ["b", "2.0", "2.0", "2.0", "-", "2.0", "best"]


def test_a_name_with_a_bar_ends_no_cell() -> None:
    assert (
        as_markdown(summarize({"a|b <c>": {0: metrics(1.0)}}))
        .splitlines()[2]
        .startswith("| a\\|b &lt;c> | 1.0 |")
    )


def test_the_picture_shows_each_method(tmp_path: Path) -> None:
    plot_comparison(summarize(RUNS), tmp_path / "all.png", title="three", about="data")
    plot_comparison(
        summarize({name: RUNS[name] for name in "ab"}), tmp_path / "two.png", title="three", about="data"
    )
    everything, two = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("all", "two"))
    assert everything.shape[0] > two.shape[0]
    assert everything.std() > 5


def test_the_caption_says_why_a_mark_has_no_line(tmp_path: Path, saved: list[Figure]) -> None:
    plot_comparison(summarize(RUNS), tmp_path / "a.png")
    plot_comparison(summarize({**RUNS, "d": dict.fromkeys(range(3), metrics(40.0))}), tmp_path / "b.png")
    varying, same = (figure.get_supxlabel().replace("\n", " ") for figure in saved)
    assert "no spread" not in varying
    assert "(Student's t). no line: no spread, the same with every seed. many, medium" in same


def test_of_one_seed_the_picture_shows_values_and_speaks_of_no_mean(
    tmp_path: Path, saved: list[Figure]
) -> None:
    runs = {"a": {0: metrics(50.0)}, "b": {0: metrics(61.26)}}
    plot_comparison(summarize(runs), tmp_path / "a.png", about="seed 0")
    (figure,) = saved
    assert [text.get_text() for text in figure.axes[0].texts] == ["61.3", "50.0"]
    caption = figure.get_supxlabel().replace("\n", " ")
    assert caption.startswith("seed 0; one seed: what differs by chance is not told apart. many, medium,")
