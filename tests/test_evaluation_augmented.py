"""Augmented views in the cached linear probe: the right features, at their image, and none leaking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo
from tests.data_fixtures import list_dataset, photo
from tests.test_api import picture_folder
from zoo.config import parse
from zoo.data import DataConfig, EvalView, open_dataset
from zoo.errors import DataError, ZooError
from zoo.evaluation.linear import fit_linear
from zoo.evaluation.measure import Encoded, measure
from zoo.recipe.protocols import Augmentation, LinearProtocol

WHOLE: dict[str, Any] = dict(scale=[1.0, 1.0], ratio=[1.0, 1.0], flip=0.0)  # the crop is the image
PLAIN = dict(mean=[0.0] * 3, std=[1.0] * 3, device="cpu")


def digits(**changes: Any) -> Encoded:
    data = parse(DataConfig, {"source": {"kind": "digits"}}, "test")
    train_set, test_set = (open_dataset(data, split, None) for split in ("train", "test"))
    return Encoded(
        nn.Flatten(),
        train_set.subset(range(0, 1250, 3)),
        test_set,
        view=EvalView(size=8, crop_pct=1.0),
        **PLAIN,
    )


def augmentation(views: int, **settings: Any) -> Augmentation:
    return parse(Augmentation, {"views": views, **settings}, "test")


@pytest.mark.parametrize("backend", ["tensor", "torchvision"])
def test_copies_stand_at_their_image(backend: str) -> None:
    encoded = digits()
    plain = encoded.train.features.view(-1, 3, 8, 8)
    same = encoded.probe.augmented(augmentation(2, **WHOLE, backend=backend), 0)
    assert same.shape == (2, len(plain), 3 * 8 * 8)
    for copy in same:
        torch.testing.assert_close(copy.view_as(plain), plain, atol=1e-6, rtol=0)
    flipped = encoded.probe.augmented(augmentation(1, **{**WHOLE, "flip": 1.0}, backend=backend), 0)
    torch.testing.assert_close(flipped.view_as(plain), plain.flip(-1), atol=1e-6, rtol=0)


def test_copies_are_those_of_their_seed_and_more_of_them_change_none() -> None:
    three = digits().probe.augmented(augmentation(3), 5)
    assert torch.equal(digits().probe.augmented(augmentation(2), 5), three[:2])
    assert not torch.equal(digits().probe.augmented(augmentation(2), 6), three[:2])
    assert not torch.equal(three[0], three[1])


def test_an_image_is_encoded_once_however_often_its_features_are_asked_for() -> None:
    encoded, calls = digits(), []
    encoded.probe.model.register_forward_hook(lambda *call: calls.append(len(call[1][0])))
    for _ in range(2):
        for seed in (0, 1):
            encoded.probe.augmented(augmentation(2), seed)
        encoded.train  # noqa: B018
    assert sum(calls) == len(encoded.train_set) * (1 + 2 * 2)


def test_the_backend_is_tensor_where_images_are_equally_large(tmp_path: Path) -> None:
    assert digits().probe.backend == "tensor"
    data = list_dataset(tmp_path, [photo(12, 10, 0), photo(11, 12, 1), photo(16, 9, 2), photo(9, 9, 3)])
    encoded = Encoded(nn.Flatten(), data, data, view=EvalView(size=8), **PLAIN)
    assert encoded.probe.backend == "torchvision"
    assert encoded.probe.augmented(augmentation(2), 0).shape == (2, 4, 3 * 8 * 8)
    with pytest.raises(DataError, match="the tensor backend needs one size"):
        encoded.probe.augmented(augmentation(1, backend="tensor"), 0)


def test_one_image_of_another_size_among_many_is_seen(tmp_path: Path) -> None:
    data = list_dataset(tmp_path, [photo(9, 8 + (place == 77), place) for place in range(100)])
    encoded = Encoded(nn.Flatten(), data, data, view=EvalView(size=8), **PLAIN)
    assert encoded.probe.backend == "torchvision"
    assert encoded.probe.augmented(augmentation(1), 0).shape == (1, 100, 3 * 8 * 8)
    others = data.subset([place for place in range(100) if place != 77])
    assert Encoded(nn.Flatten(), others, others, view=EvalView(size=8), **PLAIN).probe.backend == "tensor"


@pytest.mark.parametrize("backend", ["tensor", "torchvision"])
def test_an_unreadable_image_is_left_out_of_the_copies_as_of_the_features(
    backend: str, tmp_path: Path
) -> None:
    data = parse(DataConfig, {"source": {"kind": "folder"}}, "test")
    root = picture_folder(tmp_path, bad="train/dark/03.png")
    train_set, test_set = (open_dataset(data, split, root) for split in ("train", "test"))
    view = EvalView(size=8, crop_pct=1.0)
    encoded = Encoded(nn.Flatten(), train_set, test_set, view=view, **PLAIN, max_bad_images=1)
    copies = encoded.probe.augmented(augmentation(2, **WHOLE, backend=backend), 0)
    assert encoded.train.features.shape == (23, 192)
    for copy in copies:
        torch.testing.assert_close(copy, encoded.train.features, atol=1e-6, rtol=0)


def test_a_fit_on_copies_is_a_fit_on_all_rows() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g), torch.arange(60) % 3
    copies = x + 0.3 * torch.randn(2, 60, 5, generator=g)
    ours = fit_linear(x, y, 3, l2_grid=[1e-2], augmented=copies)
    rows = torch.cat([x, copies[0], copies[1]])
    expected = fit_linear(rows, y.repeat(3), 3, l2_grid=[1e-2])
    torch.testing.assert_close(ours.weight, expected.weight)
    assert not torch.allclose(ours.weight, fit_linear(x, y, 3, l2_grid=[1e-2]).weight, atol=1e-3)


def test_copies_of_a_validation_image_are_not_fitted() -> None:
    """Labels are noise: a validation image is only then right above chance when a copy of it was fitted."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 400, generator=g), torch.randint(0, 10, (300,), generator=g)
    copies = x + 0.01 * torch.randn(3, 300, 400, generator=g)
    probe = fit_linear(x, y, 10, augmented=copies)
    assert max(probe.validation_scores.values()) < 30
    assert (probe.predict(copies[0]) == y).float().mean() > 0.5


def test_the_entry_says_how_it_was_augmented_and_is_the_one_of_before_without() -> None:
    def entry(**settings: Any) -> dict[str, Any]:
        chosen = parse(LinearProtocol, {"protocol": "linear", "l2_grid": [0.01], **settings}, "test")
        return measure(chosen, encoded, None)

    encoded = digits()
    before = {"l2_grid", "validation_fraction", "select", "balanced", "solver"}
    assert entry()["settings"].keys() == before
    assert entry()["chosen"] == {"l2": 0.01}
    shifted = entry(augmentation={"views": 3, "scale": [0.7, 1.0], "flip": 0.0})
    assert shifted["settings"]["augmentation"] == {
        "views": 3,
        "scale": [0.7, 1.0],
        "ratio": [3 / 4, 4 / 3],
        "interpolation": "bilinear",
        "flip": 0.0,
        "backend": "auto",
    }
    assert shifted["chosen"] == {"l2": 0.01, "backend": "tensor"}
    assert shifted["metrics"] != entry()["metrics"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"augmentation": {"veiws": 2}}, 'unknown key "augmentation.veiws". Did you mean "views"?'),
        ({"augmentation": {"views": 0}}, '"augmentation.views": found 0'),
        ({"augmentation": 4}, '"augmentation": found 4'),
        ({"augmentation": {"views": 1, "scale": [0.5, 2.0]}}, "scale: found [0.5, 2.0]"),
        ({"augmentation": {"views": 1, "backend": "tensors"}}, 'Did you mean "tensor"?'),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ZooError) as error:
        zoo.evaluate("cifar_resnet20.moco_v2_ft_digits_lt50", "linear", **settings)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_features_of_another_shape_are_refused() -> None:
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    with pytest.raises(DataError, match=r"augmented features: found \(2, 9, 3\), expected \(A, 10, 3\)"):
        fit_linear(x, y, 2, augmented=torch.randn(2, 9, 3))
    with pytest.raises(DataError, match="augmented features: 1 of 20 rows hold NaN"):
        fit_linear(
            x,
            y,
            2,
            augmented=torch.randn(2, 10, 3).index_fill(0, torch.tensor([0]), 0)
            + torch.tensor([float("nan"), *[0.0] * 19]).view(2, 10, 1),
        )
