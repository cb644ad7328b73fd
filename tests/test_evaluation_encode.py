"""Features: those of evaluation mode, the model left as it was, and anything else refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.data_fixtures import list_dataset, photo
from zoo.errors import DataError
from zoo.evaluation.encode import extract
from zoo.evaluation.published import choose_backend


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 3, 8, 8, generator=g), torch.arange(s, s + n)) for s, n in ((0, 4), (4, 3))]


def test_features_are_those_of_evaluation_mode_and_the_model_is_left_as_it_was() -> None:
    model, seen = encoder().train(), list[int]()
    model[1].eval()  # a frozen BatchNorm inside a model that trains
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = extract(model, batches(), device="cpu", progress=seen.append)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.eval()
    expected = torch.cat([model(image[None]) for images, _ in batches() for image in images]).detach()
    torch.testing.assert_close(found.features, expected)
    assert found.labels.tolist() == list(range(7)) and seen == [4, 3]
    (nn.Parameter(torch.ones(8)) * found.features).sum().backward()  # no inference tensor
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(extract(model, batches(), device="cpu").features, found.features)
    half = extract(encoder().bfloat16(), batches(), device="cpu").features
    assert half.dtype == torch.float32 and 0 < (half - found.features).abs().max() < 0.05
    alone = extract(encoder(), [images for images, _ in batches()], device="cpu")
    assert alone.labels.tolist() == [-1] * 7


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (encoder(), [], "no batch"),
        (encoder()[:3], batches(), r"returned \[4, 8, 6, 6\], expected \[4, D\]"),
    ],
)
def test_anything_but_images_to_features_is_refused(model: nn.Module, data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        extract(model, data, device="cpu")  # type: ignore[arg-type]


def test_training_views_are_tensors_where_images_are_equally_large(tmp_path: Path) -> None:
    data = list_dataset(tmp_path, [photo(9, 8 + (place == 77), place) for place in range(100)])
    assert choose_backend(data) == "torchvision"  # one of another size among many
    assert choose_backend(data.subset(range(77))) == "tensor"
