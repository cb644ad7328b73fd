"""Class centers as a product: their similarity, the nearest classes of an image, the map of classes."""

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo.modules import Centers

PACO, MOCO = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
DIGITS = tuple("0123456789")


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


def test_an_image_s_nearest_classes_are_the_classifier_s() -> None:
    release, pixels = zoo.open(PACO), np.random.RandomState(0).randint(0, 255, (8, 8)).astype("uint8")
    image = Image.fromarray(pixels)  # grey, as people's pictures of digits are
    with torch.no_grad():
        logits = zoo.load(PACO, head="centers").eval()(release.transform()(image)[None])
    expected = sorted(zip(DIGITS, logits.softmax(1)[0].tolist(), strict=True), key=lambda pair: -pair[1])
    found = release.nearest_classes(image, k=10)
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [p for _, p in found] == pytest.approx([p for _, p in expected], abs=1e-6)
    assert release.nearest_classes(image, k=3) == found[:3]
    assert release.nearest_classes(image.convert("RGBA"), k=99) == found


def test_what_has_no_centers_says_so_and_what_to_use() -> None:
    with pytest.raises(zoo.ZooError, match=r"moco_v2_ft_digits_lt50 has no centers"):
        zoo.open(MOCO).nearest_classes(Image.new("RGB", (8, 8)))
