"""Mixup and cutmix: timm's own numbers and pixels, and losses against both labels."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.data.mixup import Mixup
from torch import nn

from tests.test_training import assert_same_state, recipe, run
from zoo.data import Batch
from zoo.errors import RecipeError
from zoo.objectives import DataInfo
from zoo.objectives.classify import Classify, ClassifyConfig, MixConfig, mix
from zoo.recipe import Recipe
from zoo.training import RunFolder

CE = "cifar_resnet20.ce_digits_lt50"
MIX = "objective.mix={{mixup: {}, cutmix: {}, probability: {}, switch_probability: 0.5, mode: {}}}"


def config(mode: str, mixup: float = 0.8, cutmix: float = 1.0, probability: float = 0.7) -> MixConfig:
    return MixConfig(mixup=mixup, cutmix=cutmix, probability=probability, switch_probability=0.5, mode=mode)


def pictures(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=generator)
    return torch.randn(count, 3, 9, 12, generator=generator), labels


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.3, 0.7)])
def test_pixels_and_targets_are_those_of_timm(mode: str, mixup: float, cutmix: float) -> None:
    theirs = Mixup(mixup, cutmix, prob=0.7, switch_prob=0.5, mode=mode, label_smoothing=0.0, num_classes=5)
    changed = 0
    for seed in range(8):
        images, labels = pictures(8, seed)
        torch.manual_seed(seed)
        drawn = int(torch.randint(2**32, (), dtype=torch.int64))
        np.random.seed(drawn)  # noqa: NPY002
        expected = theirs(images.clone(), labels)
        torch.manual_seed(seed)
        torch.testing.assert_close(mix(config(mode, mixup, cutmix), images, labels, 5), expected)
        changed += not torch.equal(images, expected[0])
    assert 3 <= changed <= 8


def test_the_draws_follow_from_torchs_seed_alone_and_leave_all_global_states() -> None:
    images, labels = pictures(8)
    results = []
    for other in (1, 2):
        np.random.seed(other)  # noqa: NPY002
        random.seed(other)
        before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        torch.manual_seed(7)
        results.append(mix(config("elem"), images, labels, 5))
        assert before == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(images, pictures(8)[0]), "the batch itself is not changed"


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_in_an_odd_batch_every_image_mixes_with_its_mirror_and_the_middle_one_stays(mode: str) -> None:
    images, labels = pictures(7)
    torch.manual_seed(3)
    found, targets = mix(config(mode, 1.0, 0.0, probability=1.0), images, labels, 5)
    torch.testing.assert_close(found[3], images[3])
    assert targets[3].argmax() == labels[3]
    for i in (0, 1, 2):  # solve for the share of each image from its pixels
        partner = images[6 - i]
        share = ((found[i] - partner) * (images[i] - partner)).sum() / (images[i] - partner).square().sum()
        own = targets[i, labels[i]] if labels[i] != labels[6 - i] else share
        torch.testing.assert_close(share, own)
        assert share < 1


def objective(loss: str, smoothing: float, mixing: MixConfig | None) -> Classify:
    class Encoder(nn.Module):
        num_features = 3 * 9 * 12

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)

    torch.manual_seed(0)
    section = ClassifyConfig(name="classify", loss=loss, label_smoothing=smoothing, mix=mixing)  # type: ignore[arg-type]
    return Classify(section, Encoder(), DataInfo(torch.tensor([50, 20, 10, 5, 1]))).train()


@pytest.mark.parametrize("loss", ["cross_entropy", "balanced_softmax"])
def test_the_loss_is_against_both_labels_and_smoothed_as_timm_smooths(loss: str) -> None:
    images, labels = pictures(8)
    trained = objective(loss, 0.1, config("batch", probability=1.0))
    torch.manual_seed(5)
    found = trained(Batch((images,), labels, torch.arange(8))).loss

    torch.manual_seed(5)
    np.random.seed(int(torch.randint(2**32, (), dtype=torch.int64)))  # noqa: NPY002
    theirs = Mixup(0.8, 1.0, prob=1.0, mode="batch", label_smoothing=0.1, num_classes=5)
    mixed, targets = theirs(images.clone(), labels)
    weight, bias = trained.classifier.weight.double(), trained.classifier.bias.double()
    logits = mixed.flatten(1).double() @ weight.T + bias
    if loss == "balanced_softmax":
        logits = logits + (torch.tensor([50.0, 20, 10, 5, 1], dtype=torch.float64) / 86).log()
    expected = -(targets.double() * (logits - logits.logsumexp(1, keepdim=True))).sum(1).mean()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_mixing_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    r = recipe("classify", MIX.format(0.8, 1.0, 1.0, "elem"))
    undisturbed = run(r, tmp_path / "a")
    run(r, tmp_path / "b")
    RunFolder(tmp_path / "b").checkpoints()[12].unlink()  # as if killed before the last one was written
    assert_same_state(undisturbed, run(r, tmp_path / "b", resume=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [MIX.format(0.0, 0.0, 1.0, "batch")],
            "found mixup 0 and cutmix 0, expected one above 0, or mix: null",
        ),
        (
            [
                MIX.format(0.2, 0.0, 1.0, "batch"),
                "objective.loss={name: ldam}",
                "objective.head=cosine",
            ],
            'mix: found with loss "ldam"',
        ),
        ([MIX.format(0.2, 0.0, 1.0, "pairs")], r"found 'pairs' \(str\), expected 'batch', 'pair' or 'elem'"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_any_data_is_read(changes: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.load(CE, changes)
