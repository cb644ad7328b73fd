"""Figures and numbers of a report: what is drawn is what was recorded or measured."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

import zoo
from tests.programs.plain_sweep import draw_no_figure
from tests.report_helpers import COUNTS, MOCO, PACO, class_rows, rows, some_sample, subject
from zoo.modules.centers import Centers
from zoo.report.features import cluster, penalty
from zoo.report.pictures import draw, draw_pictures
from zoo.report.style import FIGURES

GOLDEN = json.loads((Path(__file__).with_name("golden") / "report.json").read_text())


def lines_of(figure: Figure) -> list[list[NDArray[Any]]]:
    """X and y of every line of a figure that has three points or more."""
    found = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) >= 3]
    return [[np.asarray(each, float) for each in line.get_data()] for line in found]


def test_numbers_and_lines_of_shipped_releases_are_what_they_were(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("zoo.report.diagnose.draw", draw_no_figure)
    report = zoo.diagnose(PACO, MOCO, out=tmp_path / "out", sample=GOLDEN["sample"])
    shipped = {each.name: each for each in report.subjects}
    for name, expected in GOLDEN["numbers"].items():
        assert shipped[name].numbers == pytest.approx(expected, rel=1e-3, abs=1e-4), name
    for name, figures in GOLDEN["lines"].items():
        for key, expected in figures.items():
            for line, before in zip(lines_of(FIGURES[key].draw([shipped[name]])), expected, strict=True):
                wanted = [np.array([math.nan if v is None else v for v in axis]) for axis in before]
                np.testing.assert_allclose(line, wanted, rtol=2e-2, atol=1e-3, err_msg=key)


def test_numbers_are_means_over_the_last_fifth_of_what_was_recorded() -> None:
    found = subject(rows=[{"step": 10 * (i + 1), "loss": float(i)} for i in range(10)]).numbers
    assert found["recorded/loss"] == 8.5 and found["beginning/loss"] == 0.0
    assert found["deviation/loss"] == pytest.approx(math.sqrt(0.5))
    balance = subject(class_rows=class_rows(2.0)).numbers["balance/feature_gradient"]
    assert balance == pytest.approx(COUNTS[:3].mean() / COUNTS[-3:].mean())


def test_hardness_is_the_relative_penalty_of_real_negatives() -> None:
    sample, edges = some_sample(), np.linspace(-1, 1, 5)
    sums, counts = np.zeros(4), np.zeros(4)
    for anchor in range(len(sample.scores)):
        others = sample.scores[anchor][sample.labels != sample.labels[anchor]].double().numpy()
        weight = np.exp(others / 0.2) / np.exp(others / 0.2).sum() * len(others)
        place = np.digitize(others, edges) - 1
        np.add.at(sums, place, weight)
        np.add.at(counts, place, 1)
    expected = np.where(counts >= 5, sums / np.maximum(counts, 1), np.nan)
    np.testing.assert_allclose(penalty(sample, 0.2, edges), expected, rtol=1e-6)


@pytest.mark.parametrize("classes", [3, 26])
def test_maps_of_few_and_many_classes_are_drawn(classes: int, tmp_path: Path) -> None:
    sample = some_sample(4 * classes, classes)
    weight = torch.randn(classes, 16, generator=torch.Generator().manual_seed(0))
    centers = Centers(weight, weight[:, 0], sample.class_counts)
    names = sample.class_names = tuple(f"class ${name}_" for name in sample.class_names)  # no formula
    drawn = subject(sample=sample, centers=centers, class_names=names)
    assert not draw("features", [drawn], tmp_path / "features.png")
    assert (tmp_path / "features.png").read_bytes().startswith(b"\x89PNG")
    axes = FIGURES["centers"].draw([drawn]).axes[0]
    cosines = centers.similarity().double().numpy()
    order = cluster(cosines)
    assert [text.get_text() for text in axes.get_yticklabels()] == [names[c] for c in order]
    shown = np.ma.filled(axes.images[0].get_array(), math.nan)
    assert shown[0, 1] == pytest.approx(cosines[order[0], order[1]]) and math.isnan(shown[0, 0])


def test_pictures_of_a_release_are_those_that_there_is_something_to_draw_of(tmp_path: Path) -> None:
    drawn = draw_pictures(subject(rows=rows(), sample=some_sample()), tmp_path)
    assert drawn == {name: tmp_path / f"{name}.png" for name in ("features", "scores", "curves")}
    pair = [subject(rows=rows(), class_rows=class_rows()), subject("bare", recipe={})]
    found = {key: draw(key, pair, tmp_path / "all" / f"{key}.png") for key in FIGURES}
    able = {"curves", "scores", "p_sup", "balance"}
    assert {key for key, left_out in found.items() if [*left_out] == ["bare"]} == able
    assert {file.stem for file in (tmp_path / "all").iterdir()} == able
