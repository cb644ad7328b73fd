"""Which training a figure is of: reports show figures without titles, so captions and legends say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.diagnosis_helpers import MOCO, only, paco_rows, subject

LONG = "cifar_resnet32.paco_cifar100_lt100_200_epochs_of_the_second_seed"


def legend_of(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def one_of_two(key):
    """Two trainings of which a figure can draw the second alone."""
    one = subject(label=LONG, group=LONG, rows=paco_rows() if key == "p_sup" else [])
    return [subject(MOCO, label="the other", group="the other", look=None), one]


@pytest.mark.parametrize("key", ["balance", "extra", "p_sup", "plane"])
def test_the_only_one_of_several_that_is_drawn_is_named_in_full(key, tmp_path):
    two = one_of_two(key)
    caption = only(key, two, tmp_path).caption
    assert f"Drawn: {LONG}. Not drawn: the other: " in caption
    assert LONG not in only(key, two[1:], tmp_path).caption  # a report of one is named by its title


def test_legends_name_the_only_one_of_several(tmp_path, saved):
    for key, after in (("balance", "\n(closed form)"), ("plane", "")):
        only(key, one_of_two(key), tmp_path)
        first = legend_of(saved[-1])[0]
        assert "\n" in first and first.replace("\n", "") == LONG + after.strip(), key
    figure = saved[-1]
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    box, panel = legend.get_window_extent(), figure.axes[1].get_tightbbox()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert box.y0 >= panel.y1 - 1  # an entry of two lines has room for both
    only("balance", one_of_two("balance")[1:], tmp_path)
    assert legend_of(saved[-1]) == ["as the class's images"]
    (name,) = [label for label in _plane_of_one(tmp_path, saved) if label.startswith("cifar")]
    assert name.replace("\n", "") == LONG


def _plane_of_one(folder, saved):
    only("plane", [subject(label=LONG, group=LONG)], folder)
    return legend_of(saved[-1])


def test_balance_names_the_one_whose_classes_are_as_many(tmp_path, saved):
    one = subject(label=LONG, group=LONG)
    gradient = torch.tensor([4.0, 3.0, 2.0, 1.0])
    four = dict(class_names=list("abcd"), class_counts=torch.tensor([9, 5, 3, 1]))
    other = subject(label="four", group="four", look=replace(one.look, gradient=gradient), **four)
    drawn = only("balance", [one, other], tmp_path)
    assert f"Drawn: {LONG}. Not drawn: four: another number of classes." in drawn.caption
    assert legend_of(saved[-1])[0].replace("\n", "") == f"{LONG}(closed form)"
