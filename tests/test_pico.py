"""PiCO: targets, prototypes and warm-up, against sums written out from the paper."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from tests.objective_helpers import batch, build, step
from zoo.objectives import Batch


def parts(objective: Any, data: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, logits and the candidate class that the classifier prefers."""
    features = objective.encoder(data.views[0])
    q = F.normalize(objective.head(features), dim=1)
    k = F.normalize(objective.teacher(data.views[1]), dim=1)
    logits = objective.classifier(features)
    return q, k, logits, torch.where(data.candidates, logits.softmax(dim=1), 0).argmax(dim=1)


def soft_cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(1)).sum(1).mean()


def test_the_truth_is_only_counted_where_it_is_known() -> None:
    objective, data, known = build("pico").eval(), batch(1), [0, 2, 3, 5]
    labels = data.labels.clone()
    labels[[1, 4]] = -1
    views = tuple(view[known] for view in data.views)
    part = Batch(views, data.labels[known], data.index[known], data.candidates[known])
    found, expected = objective(data._replace(labels=labels)), objective(part)
    for name in ("train_accuracy", "disambiguation_accuracy"):
        torch.testing.assert_close(found.metrics[name], expected.metrics[name])
    assert objective.facts(torch.full((100,), -1)) == {}


@torch.no_grad()
def test_warm_up_takes_uniform_targets_and_contrast_without_labels() -> None:
    objective, data = build("pico").eval(), batch(2)
    objective.update(batch(1), objective(batch(1)))
    q, k, logits, _ = parts(objective, data)
    uniform = data.candidates / data.candidates.sum(dim=1, keepdim=True)
    contrast = reference.info_nce(q, k, objective.queue.keys[:6], 0.2)
    output = objective(data)
    expected = soft_cross_entropy(uniform, logits) + 0.5 * contrast
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    before = objective.targets.clone()
    objective.update(data, output)
    assert torch.equal(objective.targets, before)  # only the prototypes move
    assert objective.prototypes.any()


@torch.no_grad()
def test_after_warm_up_targets_move_to_the_nearest_prototype_before_the_loss() -> None:
    objective, data = build("pico").eval(), batch(2)
    for seed in (1, 3):
        objective.update(batch(seed), objective(batch(seed)))
    objective.epoch, objective.progress = 1.0, 0.2  # phi = 0.95 - 0.2 (0.95 - 0.8)
    q, k, logits, predicted = parts(objective, data)
    nearest = (q @ objective.prototypes.T).masked_fill(~data.candidates, -2).argmax(dim=1)
    targets = 0.92 * objective.targets[data.index] + 0.08 * F.one_hot(nearest, 3)
    queue = objective.queue
    contrast = reference.sup_con(q, k, predicted, queue.keys[:12], queue.labels[:12], 0.2)
    output = objective(data)
    expected = soft_cross_entropy(targets, logits) + 0.5 * contrast
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    prototypes = objective.prototypes.clone()
    for row, c in zip(q, predicted.tolist(), strict=True):  # one row after the other, normalised once
        prototypes[c] = 0.9 * prototypes[c] + 0.1 * row
    objective.update(data, output)
    torch.testing.assert_close(objective.prototypes, F.normalize(prototypes, dim=1))
    torch.testing.assert_close(objective.targets[data.index], targets)
    assert torch.equal(queue.labels[12:18], predicted)


@torch.no_grad()
def test_the_nearest_prototype_is_found_in_full_precision_under_autocast() -> None:
    """The later of two prototypes that differ less than bfloat16 can tell is the nearer one."""
    objective, data = build("pico").eval(), batch(2)
    objective.epoch = 1.0
    data = data._replace(candidates=torch.ones_like(data.candidates))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = objective(data).carry[1][0]
        aside = F.normalize(torch.randn(8, generator=torch.Generator().manual_seed(0)), dim=0)
        objective.prototypes.copy_(F.normalize(torch.stack([-q, q + 0.02 * aside, q]), dim=1))
        moved = objective(data).carry[3][0] - objective.targets[data.index[0]]
    assert moved.argmax() == 2


def test_true_labels_are_counted_but_never_learned_from() -> None:
    one, other = build("pico"), build("pico")
    for seed in range(3):
        one.epoch = other.epoch = 2.0
        data = batch(seed)
        step(one, data)
        step(other, data._replace(labels=(data.labels + 1) % 3))
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
