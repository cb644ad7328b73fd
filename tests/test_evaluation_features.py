from __future__ import annotations

import pytest
import torch
from torch import nn
from zoo.evaluation.features import extract

from zoo.errors import DataError


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def batches(sizes: tuple[int, ...] = (4, 4, 3)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    start = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        (torch.randn(n, 3, 8, 8, generator=g), torch.arange(s, s + n))
        for n, s in zip(sizes, start, strict=True)
    ]


def test_features_are_those_of_evaluation_mode_in_the_order_of_the_data():
    model, data = encoder(), batches()
    result = extract(model, data, device="cpu")
    model.eval()
    expected = torch.cat([model(image[None]) for images, _ in data for image in images]).detach()
    torch.testing.assert_close(result.features, expected)
    assert result.labels.tolist() == list(range(11))
    assert (result.features.dtype, result.labels.dtype) == (torch.float32, torch.int64)


def test_each_module_returns_to_its_own_mode_and_no_state_changes():
    model = encoder().train()
    model[1].eval()  # a frozen BatchNorm inside a model that trains
    before = {k: v.clone() for k, v in model.state_dict().items()}
    extract(model, batches(), device="cpu")
    assert [m.training for m in model] == [True, False, True, True, True]
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_modes_return_even_when_the_data_fails():
    def broken():
        yield batches()[0]
        raise RuntimeError("disk gone")

    model = encoder().train()
    with pytest.raises(RuntimeError, match="disk gone"):
        extract(model, broken(), device="cpu")
    assert all(m.training for m in model.modules())


def test_surrounding_autocast_and_gradients_do_not_change_the_features():
    model, data = encoder(), batches()
    plain = extract(model, data, device="cpu").features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = extract(model, data, device="cpu").features
    assert torch.equal(plain, inside)
    assert not plain.requires_grad
    (nn.Parameter(torch.ones(8)) * plain).sum().backward()  # not inference tensors: usable in a loss


def test_a_half_precision_model_gives_float32_features():
    data = batches()
    full = extract(encoder(), data, device="cpu").features
    half = extract(encoder().bfloat16(), data, device="cpu").features
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, atol=0.05, rtol=0.05)
    assert not torch.equal(half, full)


def test_progress_counts_every_image():
    seen: list[int] = []
    extract(encoder(), batches(), device="cpu", progress=seen.append)
    assert seen == [4, 4, 3]


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (encoder(), [], "no batch"),
        (encoder()[:3], batches(), r"returned \(4, 8, 6, 6\) for 4 images, expected \[4, D\]"),
    ],
)
def test_no_data_and_unpooled_features_are_refused(model, data, message):
    with pytest.raises(DataError, match=message):
        extract(model, data, device="cpu")


def test_a_model_that_returns_several_tensors_is_refused():
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(DataError, match="returned a tuple"):
        extract(Two(), batches(), device="cpu")


def test_images_alone_have_no_label_and_what_a_loader_adds_is_not_looked_at():
    pairs = batches()
    expected = extract(encoder(), pairs, device="cpu").features
    for alone in ([images for images, _ in pairs], [[images] for images, _ in pairs]):
        features, labels = extract(encoder(), alone, device="cpu", count=11)
        assert torch.equal(features, expected)
        assert labels.tolist() == [-1] * 11
    more = [[*pair, {"file": "a.png"}] for pair in pairs]
    assert extract(encoder(), more, device="cpu").labels.tolist() == list(range(11))


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"image": torch.zeros(2, 3, 8, 8)}, "found a dict"),
        ("ab", "found a str"),
        ([], "found a list"),
        ([[torch.zeros(2, 3, 8, 8)], torch.zeros(2)], "found a list in the place of images"),
        ([torch.zeros(2, 3, 8, 8), torch.zeros(2, 10)], r"found labels \[2, 10\] of 2 images"),
        ([torch.zeros(2, 3, 8, 8), ["a", "b"]], "found labels a list of 2 images"),
    ],
)
def test_a_batch_of_another_form_is_refused_with_its_place(batch, found):
    with pytest.raises(DataError, match=rf"^features: batch 1: {found}, expected images \[B, 3, H, W\]"):
        extract(encoder(), [torch.zeros(2, 3, 8, 8), batch], device="cpu")
