"""Objectives: order of operations, state, gradients, and what they release."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests import reference
from zoo import backbones, functional
from zoo.objectives import OBJECTIVES, Batch, DataInfo, Objective
from zoo.objectives.classify import Classify, ClassifyConfig
from zoo.objectives.moco import MoCo, MoCoConfig
from zoo.objectives.paco import PaCo, PaCoConfig

INFO = DataInfo(100, torch.tensor([60, 30, 10]))


def moco_config(**changes) -> MoCoConfig:
    values = dict(
        name="moco",
        dim=8,
        head_layers=2,
        head_hidden=16,
        head_batchnorm=False,
        queue_size=20,
        tau=0.2,
        momentum=0.9,
        key_groups=1,
        feature_transform=None,
    )
    return MoCoConfig(**(values | changes))


def paco_config(**changes) -> PaCoConfig:
    values = dict(
        name="paco",
        dim=8,
        head_layers=2,
        head_hidden=16,
        head_batchnorm=True,
        queue_size=20,
        tau=0.05,
        alpha=0.05,
        beta=1.0,
        gamma=1.0,
        center_tau=1.0,
        rebalance=True,
        reduction="mean",
        momentum=0.9,
        key_groups=1,
    )
    return PaCoConfig(**(values | changes))


def build(name: str, **changes) -> Objective:
    torch.manual_seed(0)
    encoder = backbones.create("cifar_resnet20")
    if name == "moco":
        return MoCo(moco_config(**changes), encoder, INFO)
    if name == "paco":
        return PaCo(paco_config(**changes), encoder, INFO)
    return Classify(ClassifyConfig(name="classify", loss=changes.get("loss", "cross_entropy")), encoder, INFO)


def batch(seed: int = 0, size: int = 6, views: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = tuple(torch.randn(size, 3, 8, 8, generator=generator) for _ in range(views))
    labels = torch.randint(3, (size,), generator=generator)
    return Batch(images, labels, torch.arange(size))


def step(objective: Objective, data: Batch, lr: float = 0.1):
    parameters = [p for p in objective.parameters() if p.requires_grad]
    output = objective(data)
    for p, g in zip(parameters, torch.autograd.grad(output.loss, parameters), strict=True):
        p.data.sub_(g, alpha=lr)
    objective.update(data, output)
    return output


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_forward_changes_nothing_but_batch_statistics(name: str) -> None:
    objective = build(name)
    step(objective, batch(1, views=objective.num_views))
    before = copy.deepcopy(objective.state_dict())
    objective(batch(2, views=objective.num_views))
    for key, value in objective.state_dict().items():
        if not key.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", ["moco", "paco"])
def test_update_moves_teacher_then_enqueues_the_keys_of_this_step(name: str) -> None:
    objective = build(name)
    data = batch(1)
    before = {n: p.clone() for n, p in objective.teacher.named_parameters()}
    expected_keys = F.normalize(copy.deepcopy(objective.teacher)(data.views[1]), dim=1)
    step(objective, data)
    torch.testing.assert_close(objective.queue.keys[:6], expected_keys)
    assert torch.equal(objective.queue.labels[:6], data.labels)
    assert int(objective.queue.filled) == 6
    student = dict(nn.Sequential(objective.encoder, objective.head).named_parameters())
    for key, value in objective.teacher.module.named_parameters():
        torch.testing.assert_close(value, 0.9 * before[f"module.{key}"] + 0.1 * student[key])


@pytest.mark.parametrize("name", ["moco", "paco"])
def test_teacher_and_queue_get_no_gradient(name: str) -> None:
    objective = build(name)
    step(objective, batch(1))
    objective(batch(2)).loss.backward()
    for key, p in objective.named_parameters():
        if key.startswith("teacher."):
            assert not p.requires_grad
            assert p.grad is None
        else:
            assert p.grad is not None, key
    assert not objective.queue.keys.requires_grad


def test_moco_loss_is_info_nce_against_the_queue_before_this_step() -> None:
    objective = build("moco").eval()  # evaluation mode: features are a plain function of the image
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
        data = batch(2)
        q = F.normalize(objective.head(objective.encoder(data.views[0])), dim=1)
        k = F.normalize(objective.teacher(data.views[1]), dim=1)
        expected = reference.info_nce(q, k, objective.queue.keys[:6], 0.2)
        output = objective(data)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.metrics["positive_score"], (q * k).sum(1).mean())
    negatives = q @ objective.queue.keys[:6].T
    torch.testing.assert_close(output.metrics["negative_score"], negatives.mean())
    torch.testing.assert_close(output.metrics["negative_variance"], negatives.var(correction=0))


def test_feature_transform_begins_at_its_epoch_and_the_queue_keeps_original_keys() -> None:
    ft = {
        "positives": {"alpha": 2.0, "per": "dimension"},
        "negatives": {"alpha": 1.6, "per": "dimension", "keep_originals": False},
        "renormalize": False,
        "start_epoch": 2,
    }
    objective = build("moco", feature_transform=ft)
    step(objective, batch(1))
    objective.epoch = 1.99
    assert "positive_score_ft" not in objective(batch(2)).metrics
    objective.epoch = 2.0
    output = objective(batch(2))
    assert output.metrics["positive_score_ft"] < output.metrics["positive_score"]
    torch.testing.assert_close(output.carry.norm(dim=1), torch.ones(6))  # what is enqueued is not transformed


def test_paco_loss_uses_prior_centers_queue_and_both_views() -> None:
    objective = build("paco").eval()
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
        data = batch(2)
        features = objective.encoder(data.views[0])
        q = F.normalize(objective.head(features), dim=1)
        k = F.normalize(objective.teacher(data.views[1]), dim=1)
        expected = reference.paco(
            q,
            k,
            data.labels,
            objective.queue.keys,
            objective.queue.labels,
            objective.classifier(features),
            [0.6, 0.3, 0.1],
            alpha=0.05,
            tau=0.05,
            beta=1.0,
            gamma=1.0,
            center_tau=1.0,
            reduction="mean",
        )
        loss = objective(data).loss
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_paco_centers_are_a_classifier_on_pooled_features_without_prior() -> None:
    objective = build("paco").eval()
    centers = objective.centers()
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        features = objective.encoder(x)
        torch.testing.assert_close(features @ centers.weight.T + centers.bias, objective.classifier(features))
    assert centers.weight.shape == (3, 64)
    assert centers.class_counts.tolist() == [60, 30, 10]


@pytest.mark.parametrize("loss", ["cross_entropy", "balanced_softmax"])
def test_classify_computes_the_loss_it_is_told(loss: str) -> None:
    objective = build("classify", loss=loss).eval()
    data = batch(3, views=1)
    with torch.no_grad():
        logits = objective.classifier(objective.encoder(data.views[0]))
        prior = torch.tensor([0.6, 0.3, 0.1]).log() if loss == "balanced_softmax" else torch.zeros(3)
        probabilities = (logits + prior).softmax(dim=1)
        expected = -probabilities[torch.arange(6), data.labels].log().mean()
        torch.testing.assert_close(objective(data).loss, expected)


def test_classify_can_start_from_centers_and_refuses_others() -> None:
    from zoo.errors import TrainingError

    paco, classify = build("paco"), build("classify")
    centers = paco.centers()
    classify.start_from(centers)
    assert torch.equal(classify.classifier.weight, centers.weight)
    with pytest.raises(TrainingError, match="3 classes x 32 features, expected 3 x 64"):
        classify.start_from(centers._replace(weight=torch.zeros(3, 32)))


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_state_dict_restores_an_objective_exactly(name: str) -> None:
    one, other = build(name), build(name)
    for seed in range(3):
        step(one, batch(seed, views=one.num_views))
    other.load_state_dict(one.state_dict())
    for seed in range(3, 5):
        torch.manual_seed(seed)
        a = step(one, batch(seed, views=one.num_views))
        torch.manual_seed(seed)
        b = step(other, batch(seed, views=one.num_views))
        assert torch.equal(a.loss, b.loss)
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_last_small_batches_do_not_break_the_queue() -> None:
    objective = build("moco", key_groups=4)
    for seed, size in enumerate((8, 3, 2)):
        assert torch.isfinite(step(objective, batch(seed, size)).loss)
    assert int(objective.queue.filled) == 13


def test_in_batch_functional_names_are_the_contract() -> None:
    expected = {
        "info_nce",
        "sup_con",
        "paco",
        "simple_contrastive",
        "hard_contrastive",
        "hard_simple",
        "margin_contrastive",
        "balanced_softmax",
        "sample_beta",
        "extrapolate",
        "interpolate",
        "ema_update",
        "uniformity",
        "alignment",
        "tolerance",
    }
    assert expected <= set(functional.__all__)


@pytest.mark.parametrize(
    "changes",
    [{"gamma": 0.3}, {"center_tau": 2.0}, {"reduction": "sum"}, {"beta": 0.5}, {"alpha": 0.4}, {"tau": 0.5}],
)
def test_every_setting_of_paco_reaches_its_loss(changes: dict) -> None:
    def loss(objective: Objective) -> float:
        objective.eval()
        with torch.no_grad():
            objective.update(batch(1), objective(batch(1)))
            return objective(batch(2)).loss.item()

    assert loss(build("paco")) != pytest.approx(loss(build("paco", **changes)), rel=1e-3)


def test_weight_decay_exemptions_of_the_backbone_reach_the_optimizer() -> None:
    from zoo.training import Recipe
    from zoo.training.optim import build_optimizer

    encoder = backbones.create(
        "vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=32, depth=1, num_heads=2
    )
    objective = Classify(ClassifyConfig(name="classify", loss="cross_entropy"), encoder, INFO)
    section = Recipe.load("cifar_resnet20.ce_digits_lt50").optimizer
    groups = build_optimizer(
        objective, section.model_copy(update={"decay_norm_and_bias": False})
    ).param_groups
    decayed = {id(p) for g in groups if g["weight_decay"] > 0 for p in g["params"]}
    assert id(encoder.pos_embed) not in decayed
    assert id(encoder.blocks[0].attn.qkv.weight) in decayed
