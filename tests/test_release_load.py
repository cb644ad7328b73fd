"""`zoo.load` and `zoo.open`: the model, its heads, where releases are found, and what is refused."""

import pickle
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from tests.release_helpers import CLASSES, trained_encoder
from zoo.errors import DataError, ReleaseError


@pytest.fixture
def released(made):
    """A release of a CIFAR ResNet with centers, and its encoder."""
    return made, trained_encoder()


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def test_a_fresh_head_is_drawn_from_torchs_generator_and_an_encoder_is_not(released, images):
    release, encoder = released
    torch.manual_seed(3)
    first, other = (zoo.load(release.path, num_classes=CLASSES) for _ in range(2))
    torch.manual_seed(3)
    again = zoo.load(release.path, num_classes=CLASSES)
    assert torch.equal(first.fc.weight, again.fc.weight)
    assert not torch.equal(first.fc.weight, other.fc.weight)
    assert not torch.equal(first.fc.weight, release.centers.weight), "the centers' number is no centers"
    first.eval()
    assert torch.equal(first.forward_head(first.forward_features(images), pre_logits=True), encoder(images))
    state = torch.get_rng_state()
    for kwargs in ({}, {"head": "centers"}, {"drop_rate": 0.1}, {"dtype": torch.float64}):
        zoo.load(release.path, **kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    with mock.patch.object(torch, "set_rng_state") as set_back:  # which other threads' draws would repeat
        zoo.load(release.path, head="centers")
    set_back.assert_not_called()


def test_a_fresh_head_has_the_encoders_dtype_and_no_class_names(released):
    release, _ = released
    assert zoo.load(release.path, head="centers").pretrained_cfg["label_names"]
    torch.set_default_dtype(torch.float64)
    try:
        model = zoo.load(release.path, num_classes=CLASSES)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert "label_names" not in model.pretrained_cfg


def test_timms_arguments_are_passed_through(released, images):
    release, encoder = released
    loaded = zoo.load(str(release.path), pretrained=True, drop_rate=0.3)
    assert loaded.training and loaded.drop_rate == 0.3, "as timm's create_model returns it"
    assert torch.equal(loaded.eval()(images), encoder(images))
    gray = zoo.load(release.path, in_chans=1)
    torch.testing.assert_close(gray.conv1.weight, encoder.conv1.weight.sum(1, keepdim=True))
    pooled = zoo.load(release.path, global_pool="max").eval()
    torch.testing.assert_close(pooled(images), encoder.forward_features(images).amax((2, 3)))


def test_the_transform_is_the_releases_own(released):
    release, _ = released
    white = Image.new("RGB", (50, 40), (255, 255, 255))
    expected = torch.tensor([(1 - m) / s for m, s in zip((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), strict=True)])
    torch.testing.assert_close(release.transform()(white), expected.view(3, 1, 1).expand(3, 32, 32))
    assert release.transform(training=True)(white).shape == (3, 32, 32)
    noise, again = Image.effect_noise((41, 37), 60), pickle.loads(pickle.dumps(release.transform()))
    assert torch.equal(again(noise), release.transform()(noise.convert("RGB"))), "for workers of a loader"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"num_classes": 3, "head": "centers"}, "num_classes"),
        ({"num_classes": 3, "features_only": True}, "features_only"),
        ({"num_classes": -3}, "num_classes: found -3"),
        ({"num_classes": None}, "num_classes: found None"),
        ({"head": "center"}, "head: found 'center'"),
        ({"checkpoint_path": "x"}, "checkpoint_path"),
        ({"device": "cuda:77"}, "cuda:77"),
        ({"dtype": torch.int64}, r"torch\.int64"),
        ({"drop_rat": 0.3}, '"drop_rat".*"drop_rate"'),
    ],
)
def test_what_cannot_be_loaded_is_refused(released, asked, named):
    with pytest.raises(ReleaseError, match=named):
        released[0].load(**asked)


def test_the_transform_refuses_what_it_would_show_wrongly(released):
    transform = released[0].transform()
    grey = np.linspace(0, 255, 40 * 40).reshape(40, 40).astype(np.uint16)
    with pytest.raises(DataError, match=r"0\.\.65535"):
        transform(Image.fromarray(grey * 257))
    small = transform(Image.fromarray(grey))  # 16 bits that hold 8
    assert torch.equal(small, transform(Image.fromarray(grey.astype(np.uint8))))
    with pytest.raises(DataError, match="ndarray"):
        transform(grey)
