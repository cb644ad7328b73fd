"""Class centers: their similarity, and the nearest classes of features (of images: test_interop.py)."""

import numpy as np
import pytest
import torch

import zoo
from zoo.modules import Centers


def test_similarity_is_the_cosine_of_the_centers() -> None:
    weight = torch.tensor([[2.0, 0.0], [3.0, 3.0], [0.0, -1.0], [0.0, 0.0]])
    found = Centers(weight, torch.tensor([9.0, 0, 0, 0]), torch.ones(4).long()).similarity()
    half = 0.5**0.5
    expected = torch.tensor([[1, half, 0, 0], [half, 1, -half, 0], [0, -half, 1, 0], [0, 0, 0, 0.0]])
    torch.testing.assert_close(found, expected)


def test_nearest_classes_are_those_of_the_largest_logits_the_bias_included() -> None:
    centers = Centers(torch.eye(3), torch.tensor([0.0, 0.0, 2.0]), torch.ones(3).long())
    probability, index = centers.nearest(torch.tensor([[1.0, 0.5, 0.0], [5.0, 0.0, 0.0]]), k=2)
    assert index.tolist() == [[2, 0], [0, 2]]
    total = np.exp([1.0, 0.5, 2.0]).sum()
    assert probability[0].tolist() == pytest.approx([np.exp(2) / total, np.exp(1) / total])
    assert centers.nearest(torch.zeros(1, 3), k=9)[1].shape == (1, 3)
    with pytest.raises(zoo.ZooError, match="k: found 0"):
        centers.nearest(torch.zeros(1, 3), k=0)
