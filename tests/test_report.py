"""Figures, labels and tables of a report: what is drawn is what was recorded or measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

import zoo
from tests.report_helpers import COUNTS, MOCO, PACO, class_rows, rows, some_look, subject
from zoo.errors import ZooError
from zoo.modules.centers import Centers
from zoo.report import classes, series
from zoo.report import diagnose as diagnosis
from zoo.report.features import directions, penalty, tau_of
from zoo.report.figures import FIGURES, draw, draw_one
from zoo.report.labels import differences, short_labels
from zoo.report.page import difference_table, estimate, number_tables
from zoo.report.style import COLORS, write_figure
from zoo.report.subject import Subject, at_the_end, summary
from zoo.report.training import Weights

GOLDEN = json.loads((Path(__file__).with_name("golden") / "report.json").read_text())


def lines_of(figure: Figure, least: int = 3) -> list[list[NDArray[Any]]]:
    """X and y of every line of a figure that has so many points."""
    found = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) >= least]
    return [[np.asarray(each, float) for each in line.get_data()] for line in found]


def title_of(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title()


@pytest.fixture(scope="module")
def shipped() -> dict[str, Subject]:
    """Two shipped releases as `zoo.diagnose` sees them."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(diagnosis, "draw", lambda *_: [])
        patch.setattr(diagnosis, "render", lambda *_: "")
        found = zoo.diagnose(PACO, MOCO, out=Path(folder) / "out", sample=GOLDEN["sample"])
    return {each.name: each for each in found.subjects}


def test_numbers_of_shipped_releases_are_what_they_were(shipped: dict[str, Subject]) -> None:
    for name, expected in GOLDEN["numbers"].items():
        assert shipped[name].numbers == pytest.approx(expected, rel=1e-3, abs=1e-4), name


def test_lines_of_shipped_releases_are_what_they_were(shipped: dict[str, Subject]) -> None:
    for name, figures in GOLDEN["lines"].items():
        for key, expected in figures.items():
            found = lines_of(FIGURES[key].plot([shipped[name]]))
            assert len(found) == len(expected), key
            for line, before in zip(found, expected, strict=True):
                wanted = [np.array([math.nan if v is None else v for v in axis]) for axis in before]
                np.testing.assert_allclose(line, wanted, rtol=2e-2, atol=1e-3, err_msg=key)


def test_numbers_are_means_over_the_last_fifth_of_what_was_recorded() -> None:
    found = summary(subject(rows=[{"step": 10 * (i + 1), "loss": float(i)} for i in range(10)]))
    assert found["recorded/loss"] == at_the_end([{"step": 1, "loss": 8.5}], "loss") == 8.5
    assert found["beginning/loss"] == 0.0 and found["deviation/loss"] == pytest.approx(math.sqrt(0.5))
    balance = summary(subject(class_rows=class_rows(2.0)))["balance/feature_gradient"]
    assert balance == pytest.approx(COUNTS[:3].mean() / COUNTS[-3:].mean())
    assert series.head_to_tail(np.ones(10), -np.ones(10)) is None


def test_of_several_evaluations_of_a_protocol_the_first_counts_and_other_data_are_named() -> None:
    entries = [
        {"protocol": "knn", "metrics": {"accuracy": 50.0, "few": 20.0}, "test_set": {"num_images": 9}},
        {"protocol": "knn", "metrics": {"accuracy": 60.0}, "test_set": {"num_images": 9}},
        {"protocol": "knn", "metrics": {"accuracy": 70.0}, "data": "cifar10, long tail 10"},
    ]
    found = summary(subject(), entries)
    assert found == {
        "accuracy/knn": 50.0,
        "accuracy/knn/few": 20.0,
        "accuracy/knn/test_images": 9.0,
        "accuracy/knn on cifar10 long tail 10": 70.0,
    }


def test_scores_are_the_recorded_ones_before_and_after_ft_of_trainings_with_and_without() -> None:
    with_ft, without = rows(1), rows(2, ft_from=10_000)
    figure = FIGURES["scores"].plot([subject("ft", rows=with_ft), subject("plain", rows=without, place=1)])
    panel = next(axes for axes in figure.axes if title_of(axes) == "positive: mean")
    drawn = [(line.get_color(), np.asarray(line.get_ydata())) for line in panel.lines]
    expected = [
        (COLORS[0], [row["positive_score"] for row in with_ft]),
        (COLORS[0], [row["positive_score_ft"] for row in with_ft if "positive_score_ft" in row]),
        (COLORS[1], [row["positive_score"] for row in without]),
    ]
    for (color, values), (wanted, by_hand) in zip(drawn, expected, strict=True):
        assert color == wanted
        np.testing.assert_allclose(values, by_hand)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "ft",
        "plain",
        "before FT",
        "after FT",
    }


def test_seeds_of_a_group_are_faint_behind_their_mean() -> None:
    seeds = [subject(f"a, seed {s}", group="a", seed=s, rows=rows(s, ft_from=10_000)) for s in range(3)]
    panel = FIGURES["scores"].plot(seeds).axes[0]
    *faint, mean = panel.lines
    assert len(faint) == 3 and all(line.get_alpha() for line in faint) and mean.get_alpha() is None
    each = np.array([[row["positive_score"] for row in s.rows] for s in seeds])
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), each.mean(axis=0))


def test_hardness_is_the_relative_penalty_of_real_negatives() -> None:
    look, edges = some_look(), np.linspace(-1, 1, 5)
    sums, counts = np.zeros(4), np.zeros(4)
    for anchor in range(len(look.scores)):
        others = look.scores[anchor][look.labels != look.labels[anchor]].double().numpy()
        weight = np.exp(others / 0.2) / np.exp(others / 0.2).sum() * len(others)
        place = np.digitize(others, edges) - 1
        np.add.at(sums, place, weight)
        np.add.at(counts, place, 1)
    expected = np.where(counts >= 5, sums / np.maximum(counts, 1), np.nan)
    np.testing.assert_allclose(penalty(look, 0.2, edges), expected, rtol=1e-6)
    scheduled = {"objective": {"tau": {"start": 0.1, "end": 0.5}}}
    assert tau_of(subject()) == 0.2 and tau_of(subject(recipe=scheduled)) == 0.5


def test_the_plane_has_every_subject_and_landmark_at_its_place() -> None:
    axes = FIGURES["plane"].plot([subject(look=some_look())]).axes[0]
    points = {tuple(float(v[0]) for v in line.get_data()) for line in axes.lines}
    assert points == {(-1.5, 0.7), (-1.0, 0.9)}


def test_balance_has_mean_one_from_the_most_to_the_least_frequent_class() -> None:
    order = np.random.default_rng(0).permutation(10)
    shuffled = [
        {key: np.array(v)[order].tolist() if isinstance(v, list) else v for key, v in row.items()}
        for row in class_rows(1.5)
    ]
    counts = torch.from_numpy(COUNTS[order])
    figure = FIGURES["balance"].plot([subject(class_rows=shuffled, class_counts=counts)])
    drawn = next(a for a in figure.axes if "one image" in title_of(a)).lines[0]
    expected = COUNTS**0.5
    np.testing.assert_allclose(np.asarray(drawn.get_ydata()), expected / expected.mean())


def test_running_means_over_classes_leave_out_those_that_were_never_looked_at() -> None:
    counts = np.arange(100, 0, -1)
    values = [None if c == 50 else 2.0 for c in range(100)]
    row = {"step": 1, "looks": 1, "images": counts.tolist(), "class_gradient": values}
    drawn = FIGURES["balance"].plot([subject(class_rows=[row], class_counts=torch.from_numpy(counts))])
    mean = np.asarray(drawn.axes[0].lines[-1].get_ydata())
    assert len(mean) == 96 and np.allclose(mean, 1)


def test_the_extra_loss_is_smallest_where_the_paper_says() -> None:
    weights = Weights(0.05, 1.0, 8192)
    positives = float(weights.positives(np.array([1.0, 999.0]))[0])
    assert weights.optimum(positives) == pytest.approx(1 / (1 + 0.05 * 8.192))
    assert round(weights.optimum(positives), 2) == 0.71
    p = np.linspace(0.001, 0.999, 999)
    assert p[weights.loss(p, positives).argmin()] == pytest.approx(0.71, abs=2e-3)
    marks = [line for line in FIGURES["extra"].plot([subject()]).axes[0].lines if len(line.get_xdata()) == 1]
    rare = 1 / (1 + 0.05 * 8192 * 2 / COUNTS.sum())
    assert float(marks[-1].get_xdata()[0]) == pytest.approx(rare)


def test_accuracy_stands_against_training_images() -> None:
    line = FIGURES["accuracy"].plot([subject(look=some_look())]).axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), COUNTS[::-1])
    np.testing.assert_allclose(line.get_ydata(), np.linspace(10, 90, 10))
    entry = {"protocol": "knn", "metrics": {"per_class": [float(c) for c in range(10)]}}
    other = entry | {"protocol": "linear", "data": "elsewhere"}
    figure = classes.recorded_accuracy(subject(), [entry, entry, other])
    assert figure is not None and len(lines_of(figure)) == 1
    assert classes.recorded_accuracy(subject(), [other]) is None


def test_classes_are_compared_by_centers_else_by_mean_features() -> None:
    weight = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    centers = Centers(weight, weight[:, 0], torch.from_numpy(COUNTS))
    found, names = classes.similarity_of(subject(centers=centers))
    np.testing.assert_allclose(found, centers.similarity().double().numpy())
    assert names == list("abcdefghij")
    of_features, names = classes.similarity_of(subject(look=some_look()))
    assert of_features.shape == (10, 10) and np.allclose(np.diag(of_features), 1)


def test_what_all_centers_share_moves_nothing_and_scale_neither() -> None:
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(directions(3 * vectors + 7), directions(vectors), atol=1e-5)


@pytest.mark.parametrize("names", [list("abc"), [f"class ${c}_" for c in range(30)]])
def test_maps_of_few_and_many_classes_are_drawn_and_named(names: list[str], tmp_path: Path) -> None:
    count = len(names)
    weight = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))
    counts = torch.arange(count) + 1
    centers = Centers(weight, weight[:, 0], counts, class_names=tuple(names))
    look = some_look(90, 3)
    looked = Subject(**vars(subject(centers=centers, class_counts=counts, class_names=tuple(names))))
    labels = torch.arange(90) % count
    given = vars(look) | {"class_names": tuple(names), "labels": labels, "class_counts": counts}
    given["features"] = look.features[:, :8]
    drawn = subject(**vars(looked) | {"look": type(look)(**given)})
    figure = FIGURES["features"].plot([drawn])
    written = {text.get_text() for text in figure.axes[0].texts}
    assert written == ({*names} if count == 3 else {*names[:4], *names[-4:]})
    assert draw_one("centers", [drawn], tmp_path / "a.png").missing is None
    first = (tmp_path / "a.png").read_bytes()
    draw_one("centers", [drawn], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == first


def test_every_figure_is_drawn_as_png_and_svg_or_says_why_not(tmp_path: Path) -> None:
    recorded = subject(rows=rows(), class_rows=class_rows())
    found = {each.key: each for each in draw([recorded, subject("bare", recipe={})], tmp_path)}
    assert [*found] == [*FIGURES]
    able = {"curves", "scores", "p_sup", "extra", "balance"}
    assert {key for key, each in found.items() if each.missing is None} == able
    assert {file.name for file in tmp_path.iterdir()} == {
        f"{key}.{k}" for key in able for k in ("png", "svg")
    }
    assert found["scores"].left_out == {"bare": "no record of its training"}
    assert "there are no images" in (found["hardness"].missing or "")


def test_a_ninth_group_is_left_out_and_named(tmp_path: Path) -> None:
    nine = [subject(f"r{i}", rows=rows(i, 5), place=i) for i in range(9)]
    assert draw_one("scores", nine, tmp_path / "a.png").left_out == {"r8": "more than 8 are not drawn"}


def test_a_title_lies_above_the_legend_and_inside_the_picture(tmp_path: Path) -> None:
    made = []

    def make() -> Figure:
        made.append(FIGURES["scores"].plot([subject(rows=rows())]))
        return made[0]

    write_figure(make, tmp_path / "a.png", title="a_long_name_of_weights_" * 4 + "\nits data")
    (figure,) = made
    figure.set_dpi(200)  # as it was written
    (legend,) = figure.legends
    title = legend.get_title().get_window_extent()
    assert title.x0 >= 0 and title.x1 <= figure.bbox.x1 and title.y1 <= figure.bbox.y1
    assert all(title.y0 >= text.get_window_extent().y1 for text in legend.get_texts())
    assert all(legend.get_window_extent().y0 >= axes.get_window_extent().y1 for axes in figure.axes)


def test_a_users_style_is_neither_used_nor_changed_and_pyplot_never_imported(tmp_path: Path) -> None:
    code = (
        "import sys, matplotlib as mpl\nfrom pathlib import Path\n"
        "from tests.report_helpers import rows, subject\nfrom zoo.report.figures import draw_one\n"
        "for size in (8, 30):\n    mpl.rcParams['font.size'] = size\n"
        f"    draw_one('curves', [subject(rows=rows())], Path({str(tmp_path)!r}) / f'{{size}}.svg')\n"
        "    assert mpl.rcParams['font.size'] == size\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "8.svg").read_bytes() == (tmp_path / "30.svg").read_bytes()


def test_other_files_and_folders_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"\.png, \.pdf, \.svg"):
        write_figure(lambda: None, tmp_path / "a.jpg")
    (tmp_path / "file").write_text("")
    with pytest.raises(ZooError, match="file"):
        draw_one("extra", [subject()], tmp_path / "file" / "a.png")


def recipe(tau: float = 0.2, seed: int = 0, transform: Any = None, **training: Any) -> dict[str, Any]:
    objective = {"name": "moco", "tau": tau, "transform": transform}
    return {"objective": objective, "training": {"seed": seed, **training}, "description": str(tau)}


@pytest.mark.parametrize(
    ("recipes", "expected"),
    [
        ([recipe()], ["a.m"]),
        ([recipe(0.1), recipe(0.2)], ["tau 0.1", "tau 0.2"]),
        ([recipe(seed=0), recipe(seed=1)], ["a.m, seed 0", "a.m, seed 1"]),
        ([recipe(0.1, 3), recipe(0.1, 4), recipe(0.2, 3)], ["tau 0.1, seed 3", "tau 0.1, seed 4", "tau 0.2"]),
        ([recipe(), recipe(transform={"start": 0})], ["transform off", "transform on"]),
        ([recipe(device="cpu"), recipe(device="cuda")], ["a.m (1)", "a.m (2)"]),
        ([recipe(a=1, b=1, c=1, d=1), recipe(a=2, b=2, c=2, d=2)], ["#1", "#2"]),
        ([{}, {}], ["a.m (1)", "a.m (2)"]),
    ],
)
def test_trainings_of_one_name_are_called_by_what_differs(
    recipes: list[dict[str, Any]], expected: list[str]
) -> None:
    assert [label.name for label in short_labels(["a.m"] * len(recipes), recipes)] == expected


def test_other_names_are_called_by_these_and_groups_differ_in_the_seed_alone() -> None:
    labels = short_labels(["r.a", "r.b", "r.b"], [recipe(), recipe(seed=1), recipe(seed=2)])
    assert [label.name for label in labels] == ["a", "b, seed 1", "b, seed 2"]
    assert [label.group for label in labels] == ["a", "b", "b"]
    assert [each.name for each in short_labels(["r.a", "s.a"], [{}, {}])] == ["r.a", "s.a"]


def test_differences_are_of_every_key_but_how_it_was_computed() -> None:
    found = differences([recipe(0.1, device="cpu"), recipe(0.2, device="cuda", extra=True)])
    assert found == {"objective.tau": ["0.1", "0.2"], "training.extra": ["absent", "true"]}
    pair = [subject("a", recipe=recipe(0.1)), subject("b", recipe=recipe(0.2))]
    table = difference_table(pair)
    assert (
        table is not None and table.head == ["", "a", "b"] and table.rows == [["objective.tau", "0.1", "0.2"]]
    )
    assert difference_table(pair[:1]) is None


def test_over_seeds_there_is_the_mean_with_its_interval() -> None:
    values = [50.0, 52.0, 57.0]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert found.mean - (found.half_width or 0) == pytest.approx(low)
    assert str(found) == f"{found.mean:.1f} [{low:.1f}, {high:.1f}]"
    assert estimate([1.0, 1.0]).half_width is None
    seeds = [subject(f"a{s}", group="a", numbers={"accuracy/knn": v}) for s, v in enumerate(values)]
    (table,) = number_tables([*seeds, subject("a3", group="a"), subject("b")])
    assert table.head == ["", "a (4 seeds)", "b"]
    assert table.rows == [["knn", f"{found} (of 3)", "-"]]
