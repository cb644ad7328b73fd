"""The objective `classify` with its long-tailed losses and its heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.objective_helpers import COUNTS, batch, build, config, step
from zoo import backbones, functional
from zoo.objectives import Classify, DataInfo

LDAM = {"name": "ldam", "max_margin": 0.5, "scale": 30.0, "reweight_from": 0.8, "beta": 0.9999}


def classify(**changes: Any) -> Classify:
    objective = build("classify", **changes).eval()
    assert isinstance(objective, Classify)
    return objective


def test_ldam_weights_the_classes_from_its_share_of_the_training_on() -> None:
    objective, data = classify(loss=LDAM, head="cosine"), batch(3, views=1)
    features = objective.encoder(data.views[0])
    cosines = torch.cosine_similarity(features[:, None], objective.classifier.weight, dim=2)
    for progress, weight in ((0.79, None), (0.8, functional.class_balanced_weights(COUNTS, beta=0.9999))):
        objective.progress = progress
        expected = functional.ldam(cosines, data.labels, COUNTS, max_margin=0.5, scale=30.0, weight=weight)
        torch.testing.assert_close(objective(data).loss, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": {"name": "logit_adjustment", "tau": 1.0}},
        {"loss": LDAM, "head": "cosine"},
        {"head": "scaled"},
    ],
)
def test_centers_are_a_linear_classifier_that_decides_as_the_head_does(changes: dict[str, Any]) -> None:
    objective = classify(**changes)
    for parameter in objective.classifier.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)  # factors that differ, weights of unequal norm
    x = torch.randn(200, 64).abs()
    with torch.no_grad():
        logits = objective.classifier(x)
    centers = objective.centers()
    assert centers.weight.shape == (3, 64) and centers.bias.shape == (3,)
    linear = x @ centers.weight.T + centers.bias
    assert len(logits.argmax(dim=1).unique()) > 1
    assert torch.equal(linear.argmax(dim=1), logits.argmax(dim=1))
    if changes.get("head") != "cosine":
        torch.testing.assert_close(linear, logits, rtol=1e-5, atol=1e-5)


def test_a_scaled_head_learns_factors_and_nothing_else() -> None:
    objective = classify(head="scaled", freeze_encoder=True).train()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    for seed in range(3):
        step(objective, batch(seed, views=1))
    changed = {name for name, value in objective.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.scale"}


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "balanced_softmax"},
        {"loss": {"name": "logit_adjustment", "tau": 2.0}},
        {"loss": LDAM, "head": "cosine"},
    ],
)
def test_a_class_without_training_images_is_learned_around_and_never_predicted(
    changes: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    info = DataInfo(torch.tensor([60, 30, 0]))
    objective = Classify(config("classify", **changes), backbones.create("cifar_resnet20"), info)
    objective.progress = 0.9
    for seed in range(3):
        data = batch(seed, views=1)
        step(objective, data._replace(labels=data.labels.clamp(max=1)))
    assert all(value.isfinite().all() for value in objective.state_dict().values())
    centers = objective.centers()
    x = 10 * torch.randn(500, 64)
    assert ((x @ centers.weight.T + centers.bias).argmax(dim=1) != 2).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": LDAM}, 'head: found "linear" with loss "ldam", expected "cosine"'),
        ({"loss": LDAM, "head": "cosine", "label_smoothing": 0.1}, 'loss: found "ldam" with'),
        ({"loss": LDAM, "head": "cosine", "mix": {"mixup": 0.2}}, 'loss: found "ldam" with'),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config("classify", **changes)
