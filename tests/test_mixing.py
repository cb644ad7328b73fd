"""Mixup and cutmix: timm's own numbers and pixels, and losses against both labels."""

import random

import numpy as np
import pytest
import torch
from timm.data.mixup import Mixup
from torch import nn

from zoo.data import Batch
from zoo.objectives import DataInfo
from zoo.objectives.classify import Classify, mix
from zoo.objectives.config import ClassifyConfig, MixConfig


def pictures(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=generator)
    return torch.randn(count, 3, 9, 12, generator=generator), labels


def timms(seed: int, images: torch.Tensor, labels: torch.Tensor, *settings: float, **more: float) -> tuple:
    """What timm makes of a batch when NumPy is seeded as the training seeds it."""
    torch.manual_seed(seed)
    np.random.seed(int(torch.randint(2**32, (), dtype=torch.int64)))  # noqa: NPY002
    return Mixup(*settings, **{"label_smoothing": 0.0, **more}, num_classes=5)(images.clone(), labels)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_pixels_and_targets_are_those_of_timm(mixup: float, cutmix: float) -> None:
    """The last image of an odd batch, which timm refuses, stays as it is."""
    changed = 0
    for seed in range(8):
        images, labels = pictures(7, seed)
        before = images.clone()
        expected, targets = timms(seed, images[:6], labels[:6], mixup, cutmix, prob=0.7)
        torch.manual_seed(seed)
        generators = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        found = mix(MixConfig(mixup=mixup, cutmix=cutmix, probability=0.7), images, labels, 5)
        torch.testing.assert_close(found[0], torch.cat([expected, images[6:]]))
        torch.testing.assert_close(found[1][:6], targets)
        assert found[1].argmax(dim=1)[-1] == labels[-1]
        assert torch.equal(images, before), "the batch itself is not changed"
        assert generators == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
        changed += not torch.equal(images, found[0])
    assert 3 <= changed <= 8


@pytest.mark.parametrize("loss", ["cross_entropy", "balanced_softmax"])
def test_the_loss_is_against_both_labels_and_smoothed_as_timm_smooths(loss: str) -> None:
    encoder = nn.Flatten()
    encoder.num_features = 3 * 9 * 12
    images, labels = pictures(8)
    counts = torch.tensor([50, 20, 10, 5, 1])
    mixing = MixConfig(mixup=0.8, cutmix=1.0)
    section = ClassifyConfig(name="classify", loss=loss, label_smoothing=0.1, mix=mixing)  # type: ignore[arg-type]
    trained = Classify(section, encoder, DataInfo(counts)).train()
    torch.manual_seed(5)
    found = trained(Batch((images,), labels, torch.arange(8))).loss

    mixed, targets = timms(5, images, labels, 0.8, 1.0, label_smoothing=0.1)
    weight, bias = trained.classifier.weight.double(), trained.classifier.bias.double()
    logits = mixed.flatten(1).double() @ weight.T + bias
    if loss == "balanced_softmax":
        logits = logits + (counts.double() / 86).log()
    expected = -(targets.double() * (logits - logits.logsumexp(1, keepdim=True))).sum(1).mean()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
