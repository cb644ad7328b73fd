from __future__ import annotations

import subprocess
import sys
import time

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from sklearn.datasets import load_digits

from zoo.errors import DataError, ZooError
from zoo.evaluation.figures import feature_map
from zoo.evaluation.figures.feature_map import _directions, plot_features
from zoo.evaluation.figures.plots import plot_curves
from zoo.evaluation.figures.style import figure_to, fitted, folded
from zoo.modules.centers import Centers

NAMES = [str(i) for i in range(10)]


def texts(figure: Figure) -> str:
    return " ".join(t.get_text() for t in figure.findobj(mpl.text.Text)).replace("\n", " ")


def digits(n: int = 300):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:n], dtype=torch.float32), torch.tensor(y[:n])
    means = torch.stack([x[y == c].mean(0) for c in range(10)])
    return x, y, Centers(means, torch.zeros(10), torch.arange(100, 0, -10))


def records(n: int = 120):
    return [
        {"step": i, "epoch": i // 10, "loss": 5 / (i + 1), "lr": 1e-4, "positive_score": 0.5}
        for i in range(n)
    ]


def is_white_framed(path) -> bool:
    pixels = np.asarray(Image.open(path).convert("RGB"))
    border = np.concatenate(
        [pixels[:3].ravel(), pixels[-3:].ravel(), pixels[:, :3].ravel(), pixels[:, -3:].ravel()]
    )
    return bool((border == 255).all())


def test_same_input_gives_the_same_bytes(tmp_path):
    x, y, centers = digits()
    begin = time.process_time()
    for name in "ab":
        plot_features(x, y, NAMES, centers, tmp_path / f"map_{name}.png")
        plot_curves(records(), tmp_path / f"curves_{name}.png")
    assert time.process_time() - begin < 30
    for kind in ("map", "curves"):
        first, second = (tmp_path / f"{kind}_{name}.png" for name in "ab")
        assert first.read_bytes() == second.read_bytes(), kind
        assert is_white_framed(first), kind
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        f"{k}_{n}.png" for k in ("map", "curves") for n in "ab"
    )


def test_a_users_style_and_state_are_neither_used_nor_changed(tmp_path):
    plot_curves(records(), tmp_path / "a.png")
    with mpl.rc_context({"figure.facecolor": "black", "font.size": 30, "text.color": "white"}):
        before = dict(mpl.rcParams)
        plot_curves(records(), tmp_path / "b.png")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_pyplot_is_never_imported(tmp_path):
    code = (
        "import sys, torch\n"
        "from zoo.evaluation.figures.feature_map import plot_features\n"
        "from zoo.evaluation.figures.plots import plot_curves\n"
        f"plot_curves([{{'step': 1, 'loss': 2.0}}], r'{tmp_path}/a.pdf')\n"
        "x, y = torch.randn(20, 5), torch.arange(20) % 2\n"
        f"plot_features(x, y, ['a', 'b'], None, r'{tmp_path}/b.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_curves_have_a_panel_for_each_scalar_with_its_unit(tmp_path, saved):
    rows = [
        *records(),
        {"step": 5, "loss": 7.0},
        {"step": 7, "loss": float("nan"), "note": "text"},
        {"epoch": 3},
    ]
    rows += [{"step": 120, "epoch": 12, "knn_accuracy": 55.0}]
    plot_curves(rows, tmp_path / "c.png", title="A run", data="Trained on digits, seed 7")
    (figure,) = saved
    titles = [a.get_title(loc="left") for a in figure.axes]
    assert titles == ["loss", "learning rate", "kNN accuracy", "positive pairs"]
    assert [a.get_ylabel() for a in figure.axes] == ["nats", r"$\times 10^{-4}$", "%", "inner product"]
    words = " ".join(texts(figure).split())
    assert "Trained on digits, seed 7. 121 records, steps 0 to 120, epochs 0 to 12; lines: running" in words
    assert figure.get_size_inches()[0] == 3.4, "letters of 8.5 points can be read at a telephone's width"
    written = [t for t in figure.findobj(mpl.text.Text) if t.get_text().strip() and t.get_visible()]
    assert min(t.get_fontsize() for t in written) >= 8.5
    raw, mean = figure.axes[0].lines
    assert len(raw.get_xdata()) == 120  # the repeated steps count once, as last recorded
    assert raw.get_ydata()[[0, 5]].tolist() == [5.0, 7.0]
    assert np.allclose(mean.get_ydata()[0], raw.get_ydata()[:2].mean())
    assert np.allclose(figure.axes[1].lines[0].get_ydata(), 1.0)  # the power of ten is in the label
    assert figure.axes[2].lines[0].get_xydata().tolist() == [[120, 55.0]]


def test_the_map_draws_each_class_and_each_center_in_its_color(tmp_path, saved):
    x, y, centers = digits()
    plot_features(x, y, NAMES, centers, tmp_path / "m.png", title="Digits", seed=4, data="Test split")
    (figure,) = saved
    groups = figure.axes[0].collections
    assert [len(g.get_offsets()) for g in groups[:10]] == torch.bincount(y).tolist()
    assert [len(g.get_offsets()) for g in groups[10:]] == [1] * 10
    for c in range(10):
        assert np.allclose(groups[c].get_facecolor()[0, :3], groups[10 + c].get_facecolor()[0, :3])
    assert len({tuple(g.get_facecolor()[0, :3]) for g in groups}) == 10
    assert (
        "Test split. t-SNE (perplexity 30) of all 300 features (D = 64; centred, unit norm), seed 4; "
        "stars: the 10" in texts(figure)
    )
    # class means are the centers here: each star lies nearest to the median of its own class
    medians = np.stack([np.median(np.asarray(g.get_offsets()), axis=0) for g in groups[:10]])
    stars = np.concatenate([g.get_offsets() for g in groups[10:]])
    assert sorted(t.get_text() for t in figure.axes[0].texts) == sorted(NAMES)  # each once
    assert (np.linalg.norm(stars[:, None] - medians[None], axis=2).argmin(1) == np.arange(10)).sum() >= 9


def test_what_all_centers_share_moves_nothing_and_scale_neither():
    x, _, centers = digits()
    assert np.allclose(_directions(x), _directions(x * 3 - 5), atol=1e-5)
    assert np.allclose(_directions(centers.weight), _directions(centers.weight * 7 + 100), atol=1e-5)


def test_many_classes_are_colored_by_their_training_images(tmp_path, saved, monkeypatch):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 8, generator=g)
    y = torch.arange(30).repeat(4)
    counts = torch.arange(1, 31) * 10
    names = [f"class {c}" for c in range(30)]
    plot_features(weight[y], y, names, Centers(weight, torch.zeros(30), counts), tmp_path / "m.png")
    monkeypatch.setattr(feature_map, "_MOST", 50)
    plot_features(weight[y], y, names, None, tmp_path / "n.png")
    with_centers, without = saved
    points, stars = with_centers.axes[0].collections
    assert points.get_array().tolist() == counts[y].tolist()
    assert stars.get_array().tolist() == counts.tolist()
    named = {t.get_text() for t in with_centers.axes[0].texts}
    assert named == {f"class {c}" for c in (*range(5), *range(25, 30))}
    assert "training images of the class" in texts(with_centers)
    assert "in italics the names of the 5 most and the 5 least frequent" in " ".join(
        texts(with_centers).split()
    )
    words = " ".join(texts(without).split())
    assert "50 of 120 features" in words
    assert "in colours 10 of the 30 classes, evenly chosen by index" in words
    grey, *ten = without.axes[0].collections
    legend = [each.get_text() for each in without.axes[0].get_legend().get_texts()]
    assert legend == [f"class {c}" for c in (0, 3, 6, 10, 13, 16, 19, 23, 26, 29)]
    assert len({tuple(each.get_facecolor()[0, :3]) for each in (grey, *ten) if len(each.get_offsets())}) > 9
    assert sum(len(each.get_offsets()) for each in (grey, *ten)) == 50


def test_any_name_of_a_class_is_drawn_as_it_is_and_none_is_wider_than_the_map(tmp_path, saved):
    g = torch.Generator().manual_seed(0)
    weight, y = torch.randn(12, 8, generator=g), torch.arange(12).repeat(4)
    names = [r"$\frac$", "_back", *(f"great spotted woodpecker {c}" for c in range(10))]
    plot_features(weight[y], y, names, None, tmp_path / "m.png")
    few = y < 3
    plot_features(weight[y[few]], y[few], names[:3], None, tmp_path / "n.png")
    ten = Centers(weight[:3], torch.zeros(3), torch.arange(1, 4))
    plot_features(weight[y[few]], y[few], names[:3], ten, tmp_path / "o.png")
    legend = saved[0].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()][:2] == names[:2]
    saved[0].canvas.draw()
    box = legend.get_window_extent()
    assert saved[0].bbox.x0 <= box.x0 and box.x1 <= saved[0].bbox.x1
    assert {r"$\frac$", "_back"} <= {t.get_text() for t in saved[1].axes[0].texts}


def test_names_of_stars_that_lie_together_cover_no_other_name(tmp_path, saved):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(30, 8, generator=g)
    weight[[1, 2, 26, 27]] = weight[0] + 0.03 * torch.randn(4, 8, generator=g)
    y = torch.arange(30).repeat(4)
    names = ["aquarium_fish", *(f"class of many letters {c}" for c in range(1, 30))]
    centers = Centers(weight, torch.zeros(30), torch.arange(1, 31))
    plot_features(weight[y], y, names, centers, tmp_path / "m.png")
    ten = Centers(weight[:10], torch.zeros(10), torch.arange(1, 11))
    plot_features(weight[y[y < 10]], y[y < 10], names[:10], ten, tmp_path / "n.png")
    for figure in saved:
        figure.canvas.draw()
        written = [t for t in figure.axes[0].texts if t.get_fontstyle() == "italic"]
        assert len(written) == 10
        for name in written:
            box = Text.get_window_extent(name)  # an annotation's own has its line too
            others = [Text.get_window_extent(t) for t in figure.axes[0].texts if t is not name]
            assert box.width > 0
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
            assert not any(box.overlaps(other) for other in others), name.get_text()


def test_a_class_absent_from_the_test_set_and_few_points_are_drawn(tmp_path):
    x, y, centers = digits(8)
    weight = torch.arange(640.0).reshape(10, 64).sin()
    plot_features(x, y, NAMES, centers._replace(weight=weight), tmp_path / "a.png")


@pytest.mark.parametrize(
    ("title", "caption"),
    [
        ("cifar_resnet32.balanced_softmax_cifar100_lt100_e100: test features", "W" * 200),
        ("M" * 90, "a caption of words " * 20),
        ("a $ and a_b", "costs $5 and $6, " * 20 + "/a/path/" + "of_names/" * 30),
    ],
)
def test_titles_and_captions_are_broken_before_the_edge(title, caption, tmp_path):
    with figure_to([tmp_path / "a.png", tmp_path / "a.bare.png"], (3.4, 4.0), caption, title) as figure:
        figure.subplots().plot([0, 1])
    assert is_white_framed(tmp_path / "a.png") and is_white_framed(tmp_path / "a.bare.png")
    assert folded(title, 3.4).replace("\n", "").replace(" ", "") == title.replace(" ", "")


def test_titles_of_small_panels_are_broken_before_the_edge(tmp_path, saved):
    names = ["feature_gradient", "gradient_norm", "center_probability", "pair_probability"]
    names += ["a_quantity_with_a_long_name", "validation_balanced_accuracy"]
    rows = [{"step": 1000 * i, "loss": 1.0, **dict.fromkeys(names, 1.0 / (i + 1))} for i in range(9)]
    plot_curves(rows, tmp_path / "c.png", title="cifar_resnet32.balanced_softmax_cifar100_lt100_e100")
    assert is_white_framed(tmp_path / "c.png")
    titles = [axes.get_title(loc="left") for axes in saved[0].axes]
    assert any("\n" in title for title in titles)
    unbroken = {title.replace("\n", " ") for title in titles}
    assert {"a quantity with a long name", "feature gradient"} <= unbroken


def test_what_is_too_long_for_its_place_ends_in_an_ellipsis():
    assert fitted("truck", 1.0) == "truck"
    short = fitted("a class with a long name", 0.7)
    assert short.endswith("…") and "a class with".startswith(short[:-1])
    assert len(fitted("iiiiiiiiiiiiiiiiiiiiiiii", 0.7)) > len(fitted("WWWWWWWWWWWWWWWWWWWWWWWW", 0.7)) + 4


def test_mistakes_are_named_and_leave_no_file(tmp_path):
    x, y, centers = digits(30)
    with pytest.raises(ZooError, match=r'found the ending "\.jpg", expected \.png, \.svg or \.pdf'):
        plot_curves(records(), tmp_path / "a.jpg")
    with pytest.raises(DataError, match="none of 1 records has a step and a scalar"):
        plot_curves([{"step": 1, "note": "x"}], tmp_path / "a.png")
    with pytest.raises(DataError, match="found 3 points, expected four or more"):
        plot_features(x[:3], y[:3], NAMES, None, tmp_path / "a.png")
    with pytest.raises(DataError, match="found 10 centers for 11 classes"):
        plot_features(x, y, [*NAMES, "more"], centers, tmp_path / "a.png")
    with pytest.raises(DataError, match="found 63 dimensions, expected 64"):
        plot_features(x[:, 1:], y, NAMES, centers, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_lines_of_one_quantity_share_a_panel_and_are_told_apart_without_colour(tmp_path, saved):
    rows = [
        {"step": i, "loss": 1.0, "p_sup": 0.5, "p_sup_many": 0.4, "p_sup_few": 0.6, "p_sup_optimum_few": 0.7,
         "negative_score": 0.1, "negative_score_ft": 0.2, "many": 3.0}
        for i in range(40)
    ]  # fmt: skip
    plot_curves(rows, tmp_path / "curves.png", title="a run")
    (figure,) = saved
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert set(panels) == {"loss", "P_sup: all centers", "negative pairs", "many"}
    looks = [(line.get_marker(), line.get_linestyle()) for line in panels["P_sup: all centers"].lines]
    assert len(looks) == len(set(looks)) == 4
    solid, dashed = panels["negative pairs"].lines
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert np.allclose(dashed.get_ydata(), 0.2)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["all classes", "many-shot", "few-shot", "theoretical optimum", "after FT"]
    title, legend = figure._suptitle.get_window_extent(), figure.legends[0].get_window_extent()
    first_line = title.y0 + title.height * 0.75  # of four
    assert legend.y1 <= first_line + 2, "the legend lies below the title's words"
    assert legend.x1 <= figure.bbox.x1
    assert legend.y0 >= max(axes.get_tightbbox().y1 for axes in figure.axes), "and above the panels"
