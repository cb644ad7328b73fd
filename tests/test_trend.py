"""What a sweep's numbers are said to do: against hand-computed cases, scipy's tests, and chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from zoo.evaluation.figures.sweep import _places, plot_sweep
from zoo.evaluation.results.comparison import Estimate, in_figures
from zoo.evaluation.results.trend import in_words, trend

VALUES = {"0.1": 0.1, "0.2": 0.2, "1.0": 1.0}


def along(found, **more):  # type: ignore[no-untyped-def]
    return in_words(found, number="uniformity", along="tau", **more)


def test_a_rise_is_that_of_a_paired_t_test() -> None:
    first, last = {0: 1.0, 1: 3.0, 2: 5.0}, {0: 2.0, 1: 4.5, 2: 6.2}
    found = trend({"0.1": first, "0.2": {0: 1.5, 1: 3.5, 2: 5.5}, "1.0": last}, VALUES)
    theirs = stats.ttest_rel([*last.values()], [*first.values()])
    low, high = theirs.confidence_interval(0.95)
    difference = found.ends.difference
    assert difference.mean == pytest.approx(3.7 / 3)
    assert difference.mean - difference.half_width == pytest.approx(low)
    assert difference.mean + difference.half_width == pytest.approx(high)
    assert theirs.pvalue < 0.05 and found.ends.verdict == "rises" and found.ends.agree == 3
    unpaired = stats.ttest_ind([*last.values()], [*first.values()])
    assert unpaired.pvalue > 0.3  # the pairs are what tells them apart
    values = [0.1] * 3 + [0.2] * 3 + [1.0] * 3
    numbers = [*first.values(), 1.5, 3.5, 5.5, *last.values()]
    assert found.correlation == pytest.approx(stats.spearmanr(values, numbers).statistic)
    text = along(found, expects="falls")
    assert text.startswith(
        "From tau 0.1 to tau 1.0, uniformity rises by 1.23 ± 0.63 (from 3.00 to 4.23; 3 of 3"
    )
    assert "Spearman's rank correlation with tau is" in text and "over all 9 runs" in text
    assert text.endswith("The source expects that it falls: here it does not.")


def test_chance_is_seldom_called_a_direction() -> None:
    """Where nothing changes, 5 % of sweeps are said to rise or fall: that is what the interval promises."""
    random = np.random.default_rng(0)
    drawn = random.normal(size=(2000, 2, 3))
    verdicts = [
        trend({"a": dict(enumerate(first)), "b": dict(enumerate(last))}).ends.verdict for first, last in drawn
    ]
    directions = sum(verdict in ("rises", "falls") for verdict in verdicts)
    assert 0.035 < directions / len(verdicts) < 0.065
    assert {*verdicts} == {"rises", "falls", "not told apart"}


def test_what_the_seeds_do_not_tell_apart_is_said_so() -> None:
    found = trend({"0.1": {0: 1.0, 1: 2.0}, "1.0": {0: 1.5, 1: 1.9}}, VALUES)
    text = along(found, expects="rises")
    assert "which 2 seeds do not tell from no change (difference 0.2 ± 3.8; 1 of 2 seeds in this" in text
    assert text.endswith("these runs do not show it.")
    assert "Spearman" not in text  # of two values it would say nothing more


def test_one_seed_tells_nothing_of_chance() -> None:
    text = along(trend({"0.1": {4: 1.0}, "1.0": {4: 9.0}}, VALUES), expects="rises")
    assert "goes from 1.00 to 9.00 with the one seed, which tells nothing of chance" in text
    assert "these runs do not show it" in text


def test_seeds_that_only_one_end_has_are_in_no_difference() -> None:
    found = trend({"0.1": {0: 1.0, 1: 2.0, 2: 90.0}, "1.0": {1: 3.0, 0: 2.0, 7: -50.0}}, VALUES)
    assert found.ends.difference == Estimate(1.0, None, (1.0, 1.0))
    assert (found.ends.before, found.ends.after) == (1.5, 2.5)
    assert found.ends.verdict == "no spread"
    assert found.runs == 6 and len(found.points["0.1"].values) == 3
    none = trend({"0.1": {0: 1.0}, "1.0": {1: 3.0}}, VALUES)
    assert none.ends.verdict == "no pair" and "No seed has uniformity both at tau 0.1" in along(none)


@pytest.mark.parametrize("last", [{0: 3.0, 1: 4.0}, {0: 3.0, 1: 4.0 + 1e-13}])
def test_equal_differences_have_no_interval_and_show_no_direction(last: dict[int, float]) -> None:
    found = trend({"0.1": {0: 1.0, 1: 2.0}, "1.0": last}, VALUES)
    assert found.ends.difference.half_width is None and found.ends.verdict == "no spread"
    text = along(found, expects="rises")
    assert "goes from 1.50 to 3.50, by the same amount with all 2 seeds: without a spread there" in text
    assert text.endswith("The source expects that it rises: these runs do not show it.")


def test_accuracies_of_counted_images_differ_by_the_same_though_rounding_says_otherwise() -> None:
    first, last = {0: 100 * 401 / 547, 1: 100 * 384 / 547}, {0: 100 * 404 / 547, 1: 100 * 387 / 547}
    assert last[0] - first[0] != last[1] - first[1]
    assert trend({"0.1": first, "1.0": last}, VALUES).ends.verdict == "no spread"


def test_what_should_be_0_is_compared_with_0_at_each_value() -> None:
    runs = {"0.1": {0: -0.1, 1: 0.2}, "0.2": {0: 0.30, 1: 0.31}, "1.0": {0: -0.5, 1: -0.51}}
    text = along(trend(runs, VALUES), expects="near 0")
    assert text.endswith(
        "The source expects 0: at tau 0.1 (0.1 ± 1.9) the interval holds 0, and whatever else lies in it; "
        "at tau 0.2 (0.305 ± 0.064) the interval lies above 0; at tau 1.0 (−0.505 ± 0.064) the interval lies "
        "below 0."
    )
    assert "expects that it" not in text
    level = trend({"0.1": {0: 0.30, 1: 0.31}, "1.0": {0: 0.31, 1: 0.30}}, VALUES)  # no change, yet not 0
    assert "at tau 0.1 (0.305 ± 0.064), tau 1.0 (0.305 ± 0.064) the interval lies above 0" in along(
        level, expects="near 0"
    )
    alone = along(trend({"0.1": {0: 0.3}}, VALUES), expects="near 0")
    assert "at tau 0.1 (0.300) there is one seed, which tells nothing of chance" in alone
    flat = along(trend({"0.1": {0: 0.0, 1: 0.0}, "1.0": {0: 0.2, 1: 0.2}}, VALUES), expects="near 0")
    assert "at tau 0.1 (0) all seeds have 0; at tau 1.0 (0.200) all seeds are the same, without" in flat
    words = in_words(
        trend({"a": {0: 1.0}, "b": {0: 2.0}}), number="x", along="y", ordered=False, expects="near 0"
    )
    assert "The source expects 0: at a (1.00), b (2.00) there is one seed" in words


def test_numbers_that_are_missing_or_not_finite_are_left_out() -> None:
    found = trend({"0.1": {0: float("nan")}, "0.2": {0: 1.0, 1: float("inf")}, "1.0": {0: 1.0}}, VALUES)
    assert [*found.points] == ["0.2", "1.0"] and found.runs == 2
    assert along(trend({"0.1": {}}, VALUES)) == "No run has uniformity."
    assert "nothing to compare it with" in along(trend({"0.1": {0: 1.0}}, VALUES))
    same = trend({"0.1": {0: 1.0, 1: 2.0}, "1.0": {0: 1.0, 1: 2.0}}, VALUES)
    assert "uniformity stays the same with all 2 seeds" in along(same)


def test_values_are_put_in_order_and_a_mean_inside_beyond_the_ends_is_told() -> None:
    found = trend({"1.0": {0: 1.0, 1: 1.1}, "0.2": {0: 5.0, 1: 5.2}, "0.1": {0: 0.0, 1: 0.2}}, VALUES)
    assert [*found.points] == ["0.1", "0.2", "1.0"]
    assert "Its highest mean, 5.10, is inside the range, at 0.2." in along(found)
    assert "lowest" not in along(found)


def test_categories_are_each_compared_with_the_first() -> None:
    runs = {"sup_con": {0: 3.0, 1: 3.2}, "ce": {0: 2.9, 1: 2.1}, "paco": {0: 1.0, 1: 1.1}}
    text = in_words(trend(runs), number="the ratio", along="recipe", ordered=False, expects="falls")
    assert "From sup_con to ce, the ratio goes from 3.10 to 2.50, which 2 seeds do not tell" in text
    assert "From sup_con to paco, the ratio falls by 2.05 ± 0.64" in text
    assert text.endswith("so it does here.") and "Spearman" not in text and "inside the range" not in text


def test_numbers_are_written_as_in_the_tables_beside_the_words() -> None:
    found = trend({"0.1": {0: -3407918.0}}, VALUES)
    assert "is \N{MINUS SIGN}3.41e+06 at" in along(found)
    assert found.points["0.1"].in_figures() == in_figures(-3407918.0)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.05, 0.1, 1.0], "log scale"),
        ([0.9, 0.99, 0.999], "log scale of 1 - x"),
        ([0.0, 0.9, 0.99], "log scale of 1 - x"),
        ([0.0, 0.01, 1.0], "not to scale"),
        ([0.1, 0.2, 0.3], None),
        ([-1.0, 1.0, 100.0], None),
    ],
)
def test_axes_are_laid_out_by_what_the_values_span(values: list[float], scale: str | None) -> None:
    labels = [str(value) for value in values]
    places, name, ticks = _places("x", labels, dict(zip(labels, values, strict=True)))
    assert name == ("x" if scale is None else f"x ({scale})")
    assert [*places.values()] == sorted(places.values()) and len({*places.values()}) == 3
    assert ticks[0] == labels[0] and ticks[-1] == labels[-1]


def test_labels_that_would_touch_are_left_out_but_for_the_ends() -> None:
    labels = [f"{value:.4f}" for value in np.linspace(0, 1, 60)]
    _, _, ticks = _places("x", labels, {label: float(label) for label in labels})
    assert ticks[0] == "0.0000" and ticks[-1] == "1.0000" and 3 <= len(ticks) <= 8


def test_a_figure_of_every_kind_is_drawn_to_png_and_svg(tmp_path: Path) -> None:
    one = trend({"0.1": {0: 1.0, 1: 2.0}, "0.2": {0: 1.5}, "1.0": {0: 3.0, 1: 2.0}}, VALUES)
    cases = {
        "numbers": ({"a (%)": {"": one}}, VALUES),
        "lines": ({f"panel {i}": {f"line {n}": one for n in range(10)} for i in range(5)}, VALUES),
        "words": ({"a": {"": trend({"x": {0: 1.0}, "y": {0: 2.0}})}}, None),
        "nothing": ({}, None),
    }
    for name, (panels, values) in cases.items():
        files = [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
        labels = ["x", "y"] if values is None else [*values]
        plot_sweep(panels, files, axis="tau", labels=labels, values=values)
        assert all(file.stat().st_size > 3_000 for file in files)
