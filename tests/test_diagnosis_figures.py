"""The figures of a report: what they show of what is known, and what they say where it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from tests.diagnosis_helpers import (
    COUNTS,
    DATA,
    MOCO,
    PACO,
    class_rows,
    moco_rows,
    only,
    paco_rows,
    points_of,
    subject,
)
from zoo import functional
from zoo import release as releases
from zoo.errors import DataError, ZooError
from zoo.evaluation import series
from zoo.evaluation.diagnosis import figures
from zoo.evaluation.diagnosis.class_accuracy import plot_class_accuracy
from zoo.evaluation.diagnosis.figures import FIGURES, draw
from zoo.evaluation.diagnosis.look import Landmark
from zoo.evaluation.diagnosis.overlay import brief, short
from zoo.evaluation.diagnosis.p_sup import Weights
from zoo.evaluation.diagnosis.subject import Subject, at_the_end, summary
from zoo.evaluation.figures.class_map import plot_class_map
from zoo.evaluation.figures.names import fitted_names
from zoo.evaluation.figures.style import COLORS, FAINT, MARKERS, fitted
from zoo.modules.centers import Centers


def texts(figure: Figure) -> str:
    return " ".join(t.get_text() for t in figure.findobj(mpl.text.Text)).replace("\n", " ")


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def lines_of(axes, color):
    return [line for line in axes.lines if to_hex(line.get_color()).lower() == color.lower()]


def seeds(name=MOCO, group="MoCo, momentum 0.99, FT from epoch 20", rows=moco_rows, **changes):
    return [
        subject(name, label=f"{group}, seed {s}", group=group, seed=s, rows=rows(s), **changes)
        for s in (0, 1, 2)
    ]


# --- what was recorded


def test_a_curve_is_in_the_order_of_steps_with_the_last_word_on_each():
    rows = [
        {"step": 20, "loss": 2.0, "epoch": 2},
        {"step": 10, "loss": 1.0},
        {"step": 20, "loss": 3.0},
        {"step": 30, "loss": None, "note": "text", "flag": True},
        {"step": 40, "loss": math.nan},
        {"loss": 7.0},
    ]
    found = series.curve(rows, "loss")
    assert found.steps.tolist() == [10, 20] and found.values.tolist() == [1, 3]
    assert series.names(rows) == ["loss"]
    assert series.curve(rows, "absent").values.tolist() == []


def test_the_mean_of_curves_covers_the_steps_that_all_reach():
    a = series.Curve(np.array([0.0, 10, 20]), np.array([0.0, 10, 20]))
    b = series.Curve(np.array([10.0, 30]), np.array([1.0, 3]))
    mean = series.mean_curve([a, b])
    assert mean.steps.tolist() == [10, 20]
    assert mean.values.tolist() == [(10 + 1) / 2, (20 + 2) / 2]
    smoothed = series.smooth(series.Curve(np.arange(5.0), np.array([0.0, 3, 6, 0, 0])), 3)
    assert smoothed.steps.tolist() == [1, 2, 3] and np.allclose(smoothed.values, [3, 3, 2])


def test_class_means_weigh_by_what_was_observed():
    rows = [
        {"step": 1, "images": [3, 1], "feature_gradient": [2.0, None], "class_gradient": [1.0, 0.0]},
        {"step": 2, "images": [1, 1], "feature_gradient": [6.0, 5.0], "class_gradient": [4.0, 3.0]},
        {"step": 3, "images": [1, 1, 1], "feature_gradient": [9.0] * 3, "class_gradient": [9.0] * 3},
    ]
    looks = [*rows, *({**row, "looks": n} for row, n in zip(rows, (1, 3, 1), strict=True))]
    assert series.class_means(rows, "class_gradient", 2) is None  # without looks they do not count
    assert series.class_means(looks, "center_gradient", 2) is None
    assert series.class_means([], "class_gradient", 2) is None
    assert series.class_means(looks, "class_gradient", 2).tolist() == [(1 + 3 * 4) / 4, 3 * 3 / 4]
    assert series.class_means(looks, "feature_gradient", 2).tolist() == [(3 * 2 + 6) / 4, 5]


def test_a_training_that_was_stopped_has_the_numbers_of_one_that_was_not():
    """A signal closes a row early; it stands for fewer steps."""
    losses = [math.sin(step) + step for step in range(1, 101)]

    def recorded(ends: list[int]) -> dict[str, float]:
        parts = pairwise([0, *ends])
        rows = [{"step": b, "loss": sum(losses[a:b]) / (b - a), "epoch": b / 10} for a, b in parts]
        return summary(subject(rows=rows, class_rows=[]))

    tens = list(range(10, 101, 10))
    whole = sum(losses[80:]) / 20
    assert recorded(tens)["recorded/loss"] == pytest.approx(whole)
    assert recorded(sorted([*tens, 83, 97]))["recorded/loss"] == pytest.approx(whole)
    assert at_the_end([{"step": 7, "p": 0.5}], "p") == 0.5 and at_the_end([], "p") is None


def test_head_to_tail_compares_thirds_of_the_classes():
    counts = np.array([1.0, 50, 10, 100, 5, 20])
    values = np.array([1.0, 6, 3, 8, 3, np.nan])  # head: 100 and 50 images; tail: 5 and 1
    assert series.head_to_tail(values, counts) == (8 + 6) / 2 / ((3 + 1) / 2)
    assert series.head_to_tail(values, -np.ones(6)) is None
    assert series.head_to_tail(np.array([1.0]), np.array([5.0])) is None


# --- numbers


def test_numbers_are_means_over_the_last_fifth_of_what_was_recorded():
    rows = [{"step": i, "epoch": i, "loss": float(i)} for i in range(1, 11)]
    rows[9]["p_sup"], rows[1]["p_sup"], rows[0]["bad"] = 0.5, 0.1, None
    found = summary(
        subject(rows=rows, class_rows=class_rows(2.0)), releases.open(PACO).metrics["evaluations"]
    )
    assert found["recorded/loss"] == 9.5
    assert found["deviation/loss"] == pytest.approx(math.sqrt(0.5))
    assert found["recorded/p_sup"] == 0.5  # the last fifth of two records is one
    assert "recorded/bad" not in found and "recorded/epoch" not in found
    head, tail = COUNTS[:3].mean(), COUNTS[-3:].mean()
    assert found["balance/feature_gradient"] == pytest.approx(head / tail)
    assert found["balance/class_gradient"] == pytest.approx(
        (COUNTS[:3] ** 2).mean() / (COUNTS[-3:] ** 2).mean()
    )
    entries = {e["protocol"]: e["metrics"] for e in releases.open(PACO).metrics["evaluations"]}
    assert found["accuracy/classifier"] == entries["classifier"]["accuracy"]
    assert found["accuracy/knn/few"] == entries["knn"]["few"]
    look = subject().look
    assert found["features/uniformity"] == look.uniformity and found["features/tolerance"] == look.tolerance
    assert found["features/positive_score"] == pytest.approx(float(look.positive_scores.mean()))
    assert all(math.isfinite(value) for value in found.values())


def test_of_several_evaluations_of_a_protocol_the_first_counts_and_others_are_passed_over():
    entries = [
        {"protocol": "knn", "metrics": {"accuracy": 50.0, "per_class": [1.0], "many": None}},
        {"protocol": "knn", "metrics": {"accuracy": 60.0, "few": 1.0}},
        {"protocol": "retrieval", "metrics": {"map": 30.0}},
        {"metrics": {"accuracy": 1.0}},
        {"protocol": "linear", "metrics": None},
    ]
    bare = subject(look=None)
    assert summary(bare, entries) == {"accuracy/knn": 50.0, "accuracy/retrieval/map": 30.0}


# --- each figure


def test_the_plane_is_of_the_encoders_features_and_says_that_the_paper_speaks_of_another_space(tmp_path):
    drawn = only("plane", [subject()], tmp_path)
    assert "pooled features of test images" in drawn.reading and "after the projection" in drawn.reading
    assert "move an encoder" not in drawn.reading


def test_scores_are_the_recorded_ones_before_and_after_ft(tmp_path, saved):
    one = subject(MOCO, rows=moco_rows())
    drawn = only("scores", [one], tmp_path)
    panels = {axes.get_title(loc="left"): axes for axes in saved[0].axes}
    assert "pairs of one class: mean" not in panels
    before, after = panels["positive pairs: mean"].lines
    assert before.get_xydata().tolist() == [[row["step"], row["positive_score"]] for row in one.rows]
    assert after.get_xydata().tolist() == [
        [row["step"], row["positive_score_ft"]] for row in one.rows if "positive_score_ft" in row
    ]
    assert before.get_linestyle() != after.get_linestyle()
    assert len(panels["negative pairs: mean"].lines) == 1
    assert DATA in drawn.caption and "training seed 0" in drawn.caption
    assert " ".join(drawn.caption.split()) in " ".join(texts(saved[0]).split())


def test_seeds_of_a_group_are_faint_behind_their_mean(tmp_path, saved):
    members = seeds()
    other = subject(PACO, label="PaCo", group="PaCo", rows=paco_rows())
    drawn = only("scores", [*members, other], tmp_path)
    axes = saved[0].axes[1]  # below the legend
    first = [line for line in lines_of(axes, COLORS[0]) if line.get_linestyle() == "-"]
    *faint, mean = first
    assert len(faint) == 3 and all(line.get_alpha() < 0.5 for line in faint)
    assert np.allclose(mean.get_ydata(), np.mean([line.get_ydata() for line in faint], axis=0))
    assert mean.get_marker() == MARKERS[0]
    (second,) = lines_of(axes, COLORS[1])
    assert second.get_marker() == MARKERS[1]
    assert "training seeds 0, 1, 2" in drawn.caption and "Faint: each seed" in drawn.caption


def test_a_ninth_group_is_left_out_and_named(tmp_path, saved):
    nine = [subject(label=f"run {i}", group=f"run {i}", rows=paco_rows(i)) for i in range(9)]
    drawn = only("p_sup", nine, tmp_path)
    assert "Not drawn: run 8: more than 8 are not drawn." in drawn.caption
    handles = saved[0].axes[0].get_legend().legend_handles[:8]
    assert len({handle.get_marker() for handle in handles}) == 8
    assert len({handle.get_color() for handle in handles}) == 8


def test_pairs_are_densities_of_the_looks_scores(tmp_path, saved):
    one = subject()
    drawn = only("pairs", [one], tmp_path)
    steps = [patch for patch in saved[0].axes[1].patches if type(patch).__name__ == "StepPatch"]
    areas = [float((s.get_data().values * np.diff(s.get_data().edges)).sum()) for s in steps]
    assert np.allclose(areas, 1)
    expected = {"other": one.look.other_class, "same": one.look.same_class, "views": one.look.positive_scores}
    for step, scores in zip((steps[0], *steps[2:]), expected.values(), strict=True):
        values, edges, _ = step.get_data()
        mean = (values * np.diff(edges) * (edges[:-1] + edges[1:]) / 2).sum()
        assert mean == pytest.approx(float(scores.double().mean()), abs=float(np.diff(edges)[0]))
    assert "all 547 test images (drawn with seed 0)" in drawn.caption
    assert (
        "Two views: one pair of each image (547). Two images: the first images of the sample (256)"
        in drawn.caption
    )
    without = subject(
        look=replace(one.look, positive_scores=None, without_views="its training takes one view")
    )
    assert "Without two views where its training takes one view" in only("pairs", [without], tmp_path).caption


def test_hardness_is_the_relative_penalty_of_real_negatives(tmp_path, saved):
    one = subject()
    only("hardness", [one], tmp_path)
    legend, above, _ = saved[0].axes
    labels = [text.get_text() for text in legend.get_legend().get_texts()]
    assert labels == ["τ = 0.05", "τ = 0.1 (its own)", "τ = 0.2", "τ = 0.5", "τ = 1"]
    anchors = len(one.look.scores)
    valid = one.look.labels[:anchors, None] != one.look.labels
    among = valid.sum(dim=1, keepdim=True).expand_as(valid)[valid].numpy()
    for tau, line in zip((0.05, 0.1, 0.2, 0.5, 1.0), above.lines, strict=False):
        rows = [
            functional.relative_penalty(
                one.look.features[i : i + 1].double() @ one.look.features.double().T, tau=tau, valid=valid[i]
            )
            for i in range(anchors)
        ]
        weights = torch.cat(rows)[valid].numpy() * among
        scores = one.look.scores.double()[valid].numpy()
        x, y = line.get_data()
        width = x[1] - x[0]
        for place in range(0, len(x), 7):
            inside = (scores >= x[place] - width / 2) & (scores < x[place] + width / 2)
            inside |= (scores == scores.max()) & (place == len(x) - 1)
            if inside.sum() >= 5:
                assert y[place] == pytest.approx(weights[inside].mean(), rel=1e-3)
    below = saved[0].axes[2].patches[0].get_data()
    assert (below.edges[0], below.edges[-1]) == pytest.approx((scores.min(), scores.max()))
    # several: each at its own temperature, none for those without
    plain = subject(label="ce", group="ce", recipe={"objective": {"name": "classify"}})
    only("hardness", [one, plain], tmp_path)
    labels = [text.get_text() for text in saved[-1].axes[0].get_legend().get_texts()]
    assert labels == ["paco_digits_lt50 (τ = 0.1)", "ce (no τ)"]


def test_the_plane_has_every_subject_and_landmark_at_its_place(tmp_path, saved):
    two = [subject(), subject(MOCO)]
    only("plane", two, tmp_path)
    (axes,) = saved[0].axes[1:]
    at = {tuple(line.get_xydata()[0]) for line in axes.lines if len(line.get_xydata()) == 1}
    looks = [each.look for each in two]
    expected = {(look.uniformity, look.tolerance) for look in looks}
    expected |= {tuple(mark) for look in looks for mark in look.landmarks.values()}
    assert at == expected
    names = legend_texts(saved[0])
    assert names[2:] == ["raw pixels", "random encoder"]
    elsewhere = {name: Landmark(-2.0, 0.1 * i) for i, name in enumerate(looks[0].landmarks)}
    away = subject(label="away", group="away", look=replace(looks[0], data="cifar10", landmarks=elsewhere))
    only("plane", [*two, away], tmp_path)
    of = ["raw pixels, digits", "random encoder, digits", "raw pixels, cifar10", "random encoder, cifar10"]
    assert legend_texts(saved[-1])[3:] == of
    wide = subject(label="wide", group="wide")
    wide = replace(
        wide,
        name="wide.paco_digits_lt50",
        look=replace(looks[0], landmarks={"random encoder": Landmark(-3.0, 0.5)}),
    )
    only("plane", [two[0], wide], tmp_path)
    of = ["raw pixels", "random encoder, cifar_resnet20", "random encoder, wide"]
    assert legend_texts(saved[-1])[2:] == of
    nowhere = subject(look=replace(two[0].look, tolerance=None))
    (missing,) = draw([nowhere], tmp_path, only=["plane"])
    assert missing.missing == "no two images of the sample share a class"


def test_balance_has_mean_one_over_classes_from_the_most_to_the_least_frequent(tmp_path, saved):
    shuffled = np.random.default_rng(0).permutation(10)
    rows = [
        {k: [v[c] for c in shuffled] if isinstance(v, list) else v for k, v in row.items()}
        for row in class_rows(1.5)
    ]
    one = subject(class_rows=rows, class_counts=torch.from_numpy(COUNTS[shuffled]))
    other = subject(label="ce", group="ce", class_rows=class_rows(1.0, centers=False))
    drawn = only("balance", [one, other], tmp_path)
    panels = {axes.get_title(loc="left"): axes for axes in saved[0].axes}
    assert [*panels][1:] == [
        "of a class: all its images",
        "of one image: mean in its class",
        "of the class's center",
    ]
    share = panels["of a class: all its images"]
    steep, level = (lines_of(share, COLORS[i])[0].get_ydata() for i in (0, 1))
    assert np.allclose(steep, COUNTS**1.5 / (COUNTS**1.5).mean())
    assert np.allclose(level, COUNTS / COUNTS.mean())
    assert np.allclose(lines_of(panels["of one image: mean in its class"], COLORS[1])[0].get_ydata(), 1)
    assert len(lines_of(panels["of the class's center"], COLORS[1])) == 0
    assert "Of a class: its images' sum in a step. Mean over training on" in drawn.caption
    # the same counts in another order: one dashed line, and no class's name along the axis
    assert len(lines_of(share, FAINT)) == 1
    below = saved[0].axes[-1]
    assert below.get_xlabel() == "place of the class\n(125 to 2 training images)"
    assert not any("125" in label.get_text() for label in below.get_xticklabels())


def test_balance_of_trainings_on_other_images_has_a_share_for_each_and_places_alone(tmp_path, saved):
    one = subject(class_rows=class_rows(1.5))
    level = subject(label="level", group="level", class_rows=class_rows(1.0))
    level = replace(level, class_counts=torch.full((10,), 40))
    only("balance", [one, level], tmp_path)
    dotted = [[line for line in saved[0].axes[1].lines if line.get_color() == c] for c in COLORS[:2]]
    shares = [
        next(line for line in lines if line.get_linewidth() == 1.4 and line.get_zorder() == 1)
        for lines in dotted
    ]
    assert np.allclose(shares[0].get_ydata(), COUNTS / COUNTS.mean())
    assert np.allclose(shares[1].get_ydata(), 1)
    below = saved[0].axes[-1]
    assert below.get_xlabel() == "place of the class\n(most training images first)"
    only("balance", [one], tmp_path)
    ticks = [label.get_text() for label in saved[-1].axes[-1].get_xticklabels()]
    assert ticks[0] == "0\n125" and ticks[-1] == "9\n2"


def test_balance_without_a_record_is_computed_and_said(tmp_path, saved):
    one = subject()
    drawn = only("balance", [one], tmp_path)
    assert (
        "Not recorded but computed, at the released encoder and centers, after training: the softmax over "
        "its centers without the samples, with log prior; 344 of 344 training images of digits, "
        "long tail 50, evaluation view."
    ) in drawn.caption
    assert "in a step" not in drawn.caption and "ean over training" not in drawn.caption
    share, each = saved[0].axes[1:]
    gradient = one.look.gradient.numpy()
    assert np.allclose(lines_of(each, COLORS[0])[0].get_ydata(), gradient / gradient.mean())
    whole = gradient * COUNTS
    assert np.allclose(lines_of(share, COLORS[0])[0].get_ydata(), whole / whole.mean())
    # of seeds of which some have a record these alone are drawn: no mean is of both kinds
    both = [replace(one, label=f"s{i}", group="g", class_rows=class_rows(2.0) if i else []) for i in (0, 1)]
    assert "computed" not in only("balance", both, tmp_path).caption
    assert np.allclose(
        lines_of(saved[-1].axes[-1], COLORS[0])[0].get_ydata(), COUNTS / 3 / (COUNTS / 3).mean()
    )
    assert "digits, long tail 50" in only("balance", [both[1], one], tmp_path).caption
    # and of a loss that is no such cross-entropy nothing is computed
    other = subject(look=replace(one.look, gradient=None, gradient_of="the loss ldam has a margin"))
    (none,) = draw([other], tmp_path, only=["balance"])
    assert none.missing is not None and none.missing.endswith(
        "cannot be computed: the loss ldam has a margin"
    )


def test_the_extra_loss_is_smallest_where_the_paper_says():
    weights = Weights(alpha=0.05, beta=1.0, queue=8192)
    p = np.linspace(1e-4, 1 - 1e-4, 100_000)
    counts = np.array([1.0, 999.0])
    positives = float(weights.positives(counts)[0])  # q* = 0.001
    assert positives == pytest.approx(8.192)
    assert p[weights.loss(p, positives).argmin()] == pytest.approx(0.71, abs=0.005)
    for other in (Weights(0.05, 1, 8192), Weights(0.3, 2, 100), Weights(0.0, 1, 10)):
        for k in (0.5, 3.0, 80.0):
            lowest = p[other.loss(p, k).argmin()]
            assert other.optimum(k) == pytest.approx(lowest, abs=2e-4)


def test_extra_marks_each_minimum_and_nothing_of_whole_groups(tmp_path, saved):
    one = subject(rows=paco_rows())
    only("extra", [one], tmp_path)
    marks = [line.get_xdata()[0] for line in saved[0].axes[1].lines if len(line.get_xdata()) == 1]
    assert np.allclose(marks, [1 / (1 + 0.01 * 256 * n / COUNTS.sum()) for n in (125, 14, 2)])


def test_of_several_trainings_the_only_one_with_centers_is_named(tmp_path):
    two = [subject(rows=paco_rows()), subject(MOCO, rows=moco_rows())]
    for drawn in draw(two, tmp_path, only=["extra", "p_sup"]):
        assert "Drawn: paco_digits_lt50. Not drawn: moco_v2_ft_digits_lt50: " in drawn.caption
    assert "Drawn" not in only("p_sup", two[:1], tmp_path).caption


def test_p_sup_is_drawn_against_its_optimum_for_each_group(tmp_path, saved):
    one = subject(rows=paco_rows())
    drawn = only("p_sup", [one], tmp_path)
    panels = saved[0].axes[1:]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "all classes",
        "many (> 100 training images)",
        "medium (20 to 100)",
        "few (< 20)",
    ]
    for axes, name in zip(panels, ("", "_many", "_medium", "_few"), strict=True):
        found, best = (line.get_ydata() for line in axes.lines)
        assert found.tolist() == [row[f"p_sup{name}"] for row in one.rows]
        assert best.tolist() == [row[f"p_sup_optimum{name}"] for row in one.rows]
        assert axes.get_ylim()[0] < 0.01 and axes.get_ylim()[1] > 0.99
    assert "training seed 0" in drawn.caption


def test_centers_are_drawn_or_the_mean_features(tmp_path, saved):
    two = [subject(), subject(MOCO)]
    drawn = only("centers", two, tmp_path)
    images = [axes.images[0].get_array() for axes in saved[0].axes if axes.images]
    similarity = two[0].centers.similarity().numpy()
    shown = np.sort(images[0].compressed())
    assert np.allclose(shown, np.sort(similarity[~np.eye(10, dtype=bool)]), atol=1e-6)
    look = two[1].look
    means = torch.stack([look.features[look.labels == c].sum(0) for c in range(10)])
    means = torch.nn.functional.normalize(means, dim=1)
    unit = torch.nn.functional.normalize(means - means.mean(0), dim=1).double()
    expected = np.sort((unit @ unit.T).numpy()[~np.eye(10, dtype=bool)])
    assert np.allclose(np.sort(images[1].compressed()), expected, atol=1e-5)
    assert "for want of centers, the classes' mean features, less the mean of these (moco" in drawn.caption
    assert "(paco_digits_lt50); for want" in drawn.caption
    rows = [[t.get_text() for t in axes.get_yticklabels()] for axes in saved[0].axes if axes.images]
    assert rows[0] == rows[1] and "0 (125)" in rows[0]  # one order, so that maps can be compared


def test_accuracy_stands_against_training_images(tmp_path, saved):
    one = subject()
    only("accuracy", [one, *seeds()], tmp_path)
    (axes,) = saved[0].axes[1:]
    assert axes.get_xscale() == "log"
    line = lines_of(axes, COLORS[0])[0]
    assert line.get_xdata().tolist() == sorted(COUNTS)
    assert np.allclose(line.get_ydata(), one.look.per_class.numpy()[::-1])
    assert {"few", "medium", "many"} <= {t.get_text() for t in axes.texts}
    level = subject(class_counts=torch.full((10,), 125))
    drawn = only("accuracy", [level], tmp_path)
    images = torch.bincount(one.look.labels)
    assert f"is of {images.min()} to {images.max()} test images. " in drawn.caption
    assert "Every class has 125 training images" in drawn.caption
    assert np.allclose(saved[-1].axes[0].lines[0].get_ydata(), np.sort(one.look.per_class.numpy()))
    assert "sampled test images." in only("accuracy", [elsewhere()], tmp_path).caption


def test_neighbours_are_images_with_the_class_and_cosine_of_each(tmp_path, saved):
    one = subject()
    drawn = only("neighbours", [one], tmp_path)
    axes = saved[0].axes[-1]
    queries = one.look.neighbours
    assert len(axes.images) == sum(1 + len(q.nearest) + len(q.hardest) for q in queries)
    assert np.array_equal(np.asarray(axes.images[0].get_array()), queries[0].image.permute(1, 2, 0).numpy())
    written = [t.get_text() for t in axes.texts]
    for query in queries:
        for label, score in zip(query.nearest_labels.tolist(), query.nearest_scores.tolist(), strict=True):
            assert f"{label}\n{score:.2f}" in written
    assert "all 344 training images of digits, long tail 50. " in drawn.caption


# --- what holds for one subject is not said of another


def elsewhere(**changes) -> Subject:
    """A subject whose sample and gallery are of other data than its training's."""
    look = subject().look
    look = replace(
        look, data="one", training_data="one, long tail 2", total=2000, gallery=90, gallery_total=600
    )
    return subject(MOCO, label="away", group="away", look=replace(look, **changes), seed=0)


def test_captions_name_the_data_that_was_looked_at(tmp_path):
    keys = ["pairs", "hardness", "plane", "centers", "features", "accuracy", "neighbours"]
    for drawn in draw([elsewhere()], tmp_path, only=keys):
        assert "one: 547 of 2,000 test images (drawn with seed 0)" in drawn.caption, drawn.key
        assert "digits" not in drawn.caption
    for drawn in draw([subject(), elsewhere()], tmp_path, only=[*keys[:3], *keys[4:]]):
        assert "digits: all 547 test images (drawn with seed 0) / one: 547 of 2,000" in drawn.caption


def test_a_caption_says_of_which_subject_what_holds(tmp_path):
    five, forty = (
        subject(label=f"{n} each", group=f"{n} each", class_counts=torch.full((10,), n)) for n in (5, 40)
    )
    level = only("accuracy", [five, forty], tmp_path).caption
    assert "Every class has 5 training images (5 each); 40 training images (40 each)." in level
    near = only("neighbours", [subject(), elsewhere()], tmp_path).caption
    assert "Neighbours among all 344 training images of digits, long tail 50 (paco_digits_lt50); " in near
    assert "90 of 600 training images of one, long tail 2 (away). " in near
    two = [subject(), many_classes(100, label="hundred", group="hundred", data="cifar100")]
    alike = only("centers", two, tmp_path).caption
    assert "10 classes (paco_digits_lt50); 100 classes (hundred)" in alike
    assert "seed 0. " in alike and "0, 0" not in alike
    maps = only("features", [subject(), subject(MOCO)], tmp_path).caption
    assert "; stars: the 10 class centers (names in italics), embedded jointly" in maps
    assert "(moco_v2_ft_digits_lt50: no centers)" in maps
    maps = only("features", two, tmp_path).caption
    assert "of all 547 features (D = 64; centred, unit norm), seed 0 (paco_digits_lt50); t-SNE" in maps
    assert "of all 300 features (D = 16; centred, unit norm), seed 0 (hundred); stars: the 10" in maps
    assert "the 100 class centers (in italics the names of the 5 most and the 5 least frequent)" in maps


def test_every_map_of_many_classes_names_its_pairs(tmp_path, saved):
    only("centers", [subject(), many_classes(100, label="hundred", group="hundred")], tmp_path)
    only("centers", [many_classes(100, label="hundred", group="hundred"), subject()], tmp_path)
    for figure in (saved[0], saved[-1]):
        assert texts(figure).count("most alike") == 1
        assert sum(bool(axes.images) for axes in figure.axes) == 2


def test_names_of_classes_that_are_cut_still_differ(tmp_path, saved):
    names = ["golden_retriever", "golden_eagle", "n01440764", "n01440765", "x" * 40, "x" * 40, "cat"]
    for inches in (0.95, 0.5):
        found = fitted_names(names, inches)
        assert len({*found}) == len(names) and found[-1] == "cat"
        assert found[4].startswith("4: x") and found[5].startswith("5: x")
        assert all(fitted(name, inches) == name for name in found)
    assert [name[0] for name in found[:2]] == ["…", "…"] and names[0].endswith(found[0][1:])
    ten = [*names, "dog", "frog", "crane"]
    look = replace(subject().look, class_names=ten)
    for key in ("centers", "neighbours"):
        only(key, [subject(look=look, class_names=ten)], tmp_path)
    beside = [label.get_text() for axes in saved[0].axes if axes.images for label in axes.get_yticklabels()]
    assert len({*beside}) == len(beside) == 10
    queries = [text.get_text() for text in saved[-1].axes[-1].texts if text.get_text().startswith("query")]
    assert len(queries) > 2 and len({*queries}) == len(queries)
    plot_class_map(subject().centers, tmp_path / "a.png", class_names=["x" * 30] * 10)
    assert len({label.get_text() for label in saved[-1].axes[0].get_yticklabels()}) == 10


def test_labels_that_are_long_are_told_apart_by_what_differs():
    head = "paco_digits_lt50, imbalance 50, warmup epochs 5"
    assert brief([f"{head}, epochs 60", f"{head}, epochs 120"]) == ["epochs 60", "epochs 120"]
    assert brief(["a, b 1", "a, b 2"]) == ["a, b 1", "a, b 2"]  # there is room
    far = ["x" * 60 + end for end in "12"]
    assert [each[-1] for each in brief(far)] == ["1", "2"] and all(len(each) == 36 for each in brief(far))
    inside = ["x" * 50 + digit + "y" * 50 for digit in "12"]
    assert len({*brief(inside)}) == 2 and all(len(each) <= 36 for each in brief(inside))
    assert brief([f"{head}, epochs 60", head]) == ["epochs 60", short(head)]
    assert brief(["a" * 60]) == ["a" * 35 + "…"]


def test_legends_and_panels_have_the_words_that_differ(tmp_path, saved):
    head = "paco_digits_lt50, imbalance 50, warmup epochs 5"
    two = [subject(label=f"{head}, epochs {n}", group=f"{head}, epochs {n}") for n in (60, 120)]
    for key in ("accuracy", "plane", "hardness", "balance"):
        only(key, two, tmp_path)
        assert legend_texts(saved[-1])[0].startswith("epochs 60")
        assert legend_texts(saved[-1])[1].startswith("epochs 120")
    for key in ("pairs", "extra", "centers"):
        only(key, two, tmp_path)
        titles = [axes.get_title(loc="left").partition("\n")[0] for axes in saved[-1].axes]
        assert {"epochs 60", "epochs 120"} <= {*titles}, key


def test_names_of_centers_lie_above_all_stars(tmp_path, saved):
    only("features", [many_classes(100)], tmp_path)
    only("features", [subject()], tmp_path)
    for figure in (saved[0], saved[-1]):
        axes = next(axes for axes in figure.axes if axes.collections)
        stars = [each for each in axes.collections if each.get_zorder() == 4]
        names = [text for text in axes.texts if text.get_fontstyle() == "italic"]
        assert len(names) == 10 and stars
        assert min(text.get_zorder() for text in names) > max(star.get_zorder() for star in stars)


def many_classes(classes: int, **changes):
    """A subject of so many classes with random features and centers."""
    draw_ = torch.Generator().manual_seed(0)
    counts = torch.from_numpy(np.geomspace(500, 5, classes).astype(int))
    weight = torch.randn(classes, 16, generator=draw_)
    labels = torch.arange(classes).repeat(3)
    features = torch.nn.functional.normalize(
        weight[labels] + torch.randn(3 * classes, 16, generator=draw_), dim=1
    )
    names = [f"a class with a long name {c}" for c in range(classes)]
    look = replace(
        subject().look,
        class_names=names,
        class_counts=counts,
        features=features,
        norms=torch.ones(3 * classes),
        labels=labels,
        index=torch.arange(3 * classes),
        per_class=torch.linspace(90, 10, classes).double(),
        scores=features @ features.T,
        gradient=torch.linspace(1, 3, classes).double(),
    )
    centers = Centers(weight, torch.zeros(classes), counts)
    given = dict(class_names=names, class_counts=counts, centers=centers, look=look)
    return subject(**given | changes)


def test_running_means_over_classes_leave_out_those_that_were_never_looked_at(tmp_path, saved):
    values = [None if c % 3 == 1 or 40 <= c < 60 else float(c + 1) for c in range(100)]
    images = [0 if value is None else 2 for value in values]
    row = {"step": 10, "epoch": 1.0, "looks": 5, "images": images, "feature_gradient": values}
    look = many_classes(100)
    drawn = only("balance", [replace(look, look=None, class_rows=[row])], tmp_path)
    assert "Running means over 5 classes, of those that were looked at." in drawn.caption
    (line,) = lines_of(saved[0].axes[-1], COLORS[0])
    order = np.argsort(-look.class_counts.numpy(), kind="stable")
    known = np.array([np.nan if value is None else value for value in values])[order]
    known /= np.nanmean(known)
    windows = [each[np.isfinite(each)] for each in np.lib.stride_tricks.sliding_window_view(known, 5)]
    expected = np.array([each.mean() if len(each) else np.nan for each in windows])
    assert np.isnan(expected).sum() == 16
    assert np.allclose(np.asarray(line.get_ydata(), dtype=float), expected, equal_nan=True)


def test_a_releases_accuracies_are_named_by_what_they_are_drawn_against(tmp_path, saved):
    entry = {
        "protocol": "knn",
        "data": DATA,
        "split": "test",
        "metrics": {"per_class": [90.0 + c for c in range(10)], "test_images": 360},
    }
    level = subject(class_counts=torch.full((10,), 80))
    said = plot_class_accuracy(level, [entry], [tmp_path / "a.png"])
    assert "Every class has 80 training images: sorted by accuracy." in said
    assert "Accuracy of each class" in texts(saved[0]) and "by training images" not in texts(saved[0])
    said = plot_class_accuracy(subject(), [entry], [tmp_path / "b.png"])
    assert "sorted" not in said and "Accuracy by training images" in texts(saved[1])


def test_a_releases_accuracies_are_of_its_own_data(tmp_path, saved):
    own = {"protocol": "knn", "data": DATA, "split": "test", "metrics": {"per_class": [90.0] * 10}}
    other = {**own, "data": "digits", "metrics": {"per_class": [10.0] * 10}}
    again = {**own, "metrics": {"per_class": [50.0] * 10}}
    said = plot_class_accuracy(subject(), [other, own, again], [tmp_path / "a.png"])
    assert f"by knn; {DATA}, test split" in said
    (line,) = lines_of(saved[0].axes[-1], COLORS[0])
    assert set(line.get_ydata()) == {90.0}
    with pytest.raises(DataError, match=f"no evaluation on {DATA} has accuracies of its classes"):
        plot_class_accuracy(subject(), [other], [tmp_path / "b.png"])


def test_captions_say_of_how_many_anchors_each_is(tmp_path):
    few = subject(label="few", group="few")
    few = replace(few, look=replace(few.look, scores=few.look.scores[:40]))
    both = f"({len(subject().look.scores)} (paco_digits_lt50); 40 (few))"
    for key in ("hardness", "pairs"):
        assert f"the first images of the sample {both}" in only(key, [subject(), few], tmp_path).caption
        alone = only(key, [few], tmp_path).caption
        assert "the first images of the sample (40)" in alone


def test_an_svg_that_would_be_large_is_shown_as_png(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "_LARGEST_SVG", 1000)
    drawn = only("plane", [subject()], tmp_path)
    assert drawn.bare == tmp_path / "plane.bare.png" and drawn.bare.is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"plane.png", "plane.svg", "plane.bare.png"}


def test_words_are_taken_away_and_nothing_else(tmp_path):
    drawn = only("neighbours", [subject()], tmp_path)
    whole, bare = (np.asarray(Image.open(path).convert("L")).astype(int) for path in (drawn.png, drawn.bare))
    assert bare.shape[1] == whole.shape[1] and bare.shape[0] < 0.9 * whole.shape[0]
    apart = [  # in grey levels of 255; images are resampled anew
        np.abs(whole[top : top + bare.shape[0]] - bare).max()
        for top in range(whole.shape[0] - bare.shape[0] + 1)
    ]
    top = int(np.argmin(apart))
    assert apart[top] <= 8 and sum(each <= 8 for each in apart) == 1
    above, below = whole[:top], whole[top + bare.shape[0] :]
    assert above.min() < 100 and below.min() < 150  # title and caption, which is grey
    assert (bare[[0, -1]] == 255).all()


def test_a_hundred_classes_are_named_where_there_is_room(tmp_path, saved):
    hundred = many_classes(100)
    found = {
        each.key: each
        for each in draw([hundred], tmp_path, only=["centers", "accuracy", "balance", "features"])
    }
    assert all(each.missing is None for each in found.values())
    balance, centers, _, accuracy = saved[::3]
    similarity = hundred.centers.similarity().fill_diagonal_(-2)
    a, b = divmod(int(similarity.argmax()), 100)
    assert f"{float(similarity.max()):.2f}  …" in texts(centers)  # names that begin alike show their ends
    assert f"most alike {float(similarity.max()):.2f}" in texts(centers) and a != b
    assert "running means over 5 classes" in found["balance"].caption.lower()
    line = lines_of(balance.axes[-1], COLORS[0])[0]
    each = hundred.look.gradient.numpy() / hundred.look.gradient.numpy().mean()
    assert np.allclose(line.get_ydata(), np.convolve(each, np.ones(5) / 5, mode="valid"))
    points, means = accuracy.axes[0].lines[:2]
    assert len(points.get_xdata()) == 100 and 5 <= len(means.get_xdata()) <= 10
    assert np.all(np.diff(means.get_ydata()) > 0)  # the more images the better, as it was made
    for path in tmp_path.glob("*.png"):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert all((edge == 255).all() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    (drawn,) = draw([many_classes(1001)], tmp_path, only=["centers"])
    assert drawn.missing == "1,001 classes, at most 1,000 are drawn"


# --- all of them


def everything() -> list[Subject]:
    """Three groups, one with three seeds, one without a record."""
    paco = subject(rows=paco_rows(), class_rows=class_rows(1.1))
    return [paco, *seeds(), subject(MOCO, label="no record", group="no record")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Folder, result and matplotlib's figures of all there is."""
    folder, kept = tmp_path_factory.mktemp("report"), []
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k))[1])
        drawn = draw(everything(), folder)
    return folder, drawn, kept[::3]


def test_every_figure_is_there_as_png_and_svg(report):
    folder, drawn, _ = report
    assert [each.key for each in drawn] == [*FIGURES]
    assert {path.name for path in folder.iterdir()} == {
        f"{key}.{ending}"
        for key in FIGURES
        for ending in ("png", "svg", "bare.png" if key in ("neighbours", "features") else "bare.svg")
    }
    for each in drawn:
        assert each.missing is None and each.png.is_file() and each.svg.is_file() and each.bare.is_file()
        assert "digits" in each.caption and "seed" in each.caption, each.key
        assert len(each.reading) > 60 and each.title
        svg = each.svg.read_text()
        assert svg.lstrip().startswith("<?xml") and "<script" not in svg


def test_letters_are_large_enough_and_lie_inside(report):
    folder, _, kept = report
    assert len(kept) == len(FIGURES)
    for figure in kept:
        pixels = 326 / (72 * figure.get_size_inches()[0])  # for a point, on a telephone 360 CSS pixels wide
        letters, cells = points_of(figure)
        assert letters * pixels >= 11 and cells * pixels >= 10, texts(figure)
    for path in folder.glob("*.png"):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 255).all(), path.name  # nothing is cut off


def test_the_same_subjects_give_the_same_files(tmp_path, report):
    folder, *_ = report
    keys = ("scores", "plane", "balance", "neighbours")
    draw(everything(), tmp_path, only=keys)
    for key in keys:
        for ending in ("png", "svg", "bare.png" if key == "neighbours" else "bare.svg"):
            name = f"{key}.{ending}"
            assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_what_is_missing_says_why_and_the_rest_is_made(tmp_path):
    bare = subject(MOCO, look=None, without_look="the data folder is not here")
    found = {each.key: each.missing for each in draw([bare], tmp_path)}
    assert found == {
        "scores": "no record of its training",
        "pairs": "no look at its images (the data folder is not here)",
        "hardness": "no look at its images (the data folder is not here)",
        "plane": "no look at its images (the data folder is not here)",
        "balance": "no record of its classes' gradients, and no centers to compute them with",
        "extra": "objective moco has no alpha that weighs samples against centers",
        "p_sup": "objective moco has no centers beside samples in its softmax",
        "centers": "no centers, and no look at its images (the data folder is not here)",
        "features": "no look at its images (the data folder is not here)",
        "accuracy": "no look at its images (the data folder is not here)",
        "neighbours": "no look at its images (the data folder is not here)",
    }
    assert list(tmp_path.iterdir()) == []
    # a release without images and records still shows its centers and its optimum
    found = {each.key: each.missing for each in draw([subject(look=None)], tmp_path)}
    assert {key for key, missing in found.items() if missing is None} == {"extra", "centers"}


def test_one_class_unknown_counts_and_old_records_are_told(tmp_path):
    one_class = subject(
        class_names=["0"], class_counts=torch.tensor([125]), centers=None, look=None, class_rows=class_rows()
    )
    unknown = subject(class_counts=torch.full((10,), -1), rows=moco_rows(), look=None)
    old = subject(rows=[{"step": 1, "loss": 1.0}])
    cases = {
        ("balance", "one class"): one_class,
        ("balance", "the training images of each class are not known"): unknown,
        ("extra", "the training images of each class are not known"): unknown,
        ("p_sup", "its record has no P_sup"): old,
        ("scores", "its record has no scores of pairs: objective paco has none, or none was recorded"): old,
    }
    for (key, why), given in cases.items():
        (drawn,) = draw([given], tmp_path, only=[key])
        assert drawn.missing is not None and drawn.missing.startswith(why), (key, drawn.missing)
        assert drawn.png is None and drawn.svg is None and drawn.bare is None and drawn.caption == ""


def test_one_that_lacks_something_does_not_take_the_others_with_it(tmp_path):
    drawn = only("scores", [*seeds(), subject(label="bare", group="bare")], tmp_path)
    assert "Not drawn: bare: no record of its training." in drawn.caption
    (neither,) = draw([subject(label="a", group="a"), subject(MOCO, look=None)], tmp_path, only=["p_sup"])
    assert neither.missing == (
        "a: no record of its training; "
        "moco_v2_ft_digits_lt50: objective moco has no centers beside samples in its softmax"
    )


def test_unexpected_errors_and_full_disks_are_not_taken_for_missing_data(tmp_path, monkeypatch):
    def broken(subjects, paths):
        raise KeyError("a mistake of ours")

    kind = FIGURES["plane"]
    monkeypatch.setitem(FIGURES, "plane", kind._replace(plot=broken))
    with pytest.raises(KeyError):
        draw([subject()], tmp_path, only=["plane"])
    monkeypatch.setitem(FIGURES, "plane", kind)
    (tmp_path / "plane.png").mkdir()
    with pytest.raises(ZooError, match=r"plane\.png\" cannot be written") as caught:
        draw([subject()], tmp_path, only=["plane"])
    assert not isinstance(caught.value, DataError)
    (tmp_path / "file").write_text("")
    with pytest.raises(ZooError, match="cannot be made"):
        draw([subject()], tmp_path / "file" / "figures")


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ZooError, match=r'found "scors", expected some of .* Did you mean "scores"'):
        draw([subject()], tmp_path, only=["scors"])
    with pytest.raises(ZooError, match="found no subject"):
        draw([], tmp_path)
    assert figures.FIGURES is FIGURES
