"""PiCO: targets, prototypes and warm-up, against sums written out from the paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests import reference
from tests.objective_helpers import batch, build, step
from zoo.objectives import Batch
from zoo.objectives.pico import PiCO


def parts(objective: PiCO, data):
    """Queries, keys, logits and the candidate class that the classifier prefers."""
    with torch.no_grad():
        features = objective.encoder(data.views[0])
        q = F.normalize(objective.head(features), dim=1)
        k = F.normalize(objective.teacher(data.views[1]), dim=1)
        logits = objective.classifier(features)
    predicted = []
    for row, allowed in zip(logits.softmax(1).tolist(), data.candidates.tolist(), strict=True):
        predicted.append(max((c for c in range(3) if allowed[c]), key=lambda c: row[c]))
    return q, k, logits, torch.tensor(predicted)


def soft_cross_entropy(targets, logits):
    return -(targets * logits.log_softmax(1)).sum(1).mean()


def test_the_truth_is_only_counted_where_it_is_known() -> None:
    objective = build("pico").eval()
    data = batch(1)
    labels = data.labels.clone()
    labels[[1, 4]] = -1
    known = [0, 2, 3, 5]
    views = tuple(view[known] for view in data.views)
    part = Batch(views, data.labels[known], data.index[known], data.candidates[known])
    found, expected = objective(data._replace(labels=labels)), objective(part)
    assert found.loss == objective(data).loss  # not trained on
    for name in ("train_accuracy", "disambiguation_accuracy"):
        torch.testing.assert_close(found.metrics[name], expected.metrics[name])
    assert objective.facts(torch.full((100,), -1)) == {}


def test_warm_up_takes_uniform_targets_and_contrast_without_labels() -> None:
    objective = build("pico").eval()
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
        data = batch(2)
        q, k, logits, _ = parts(objective, data)
        expected = soft_cross_entropy(objective.targets[data.index], logits) + 0.5 * reference.info_nce(
            q, k, objective.queue.keys[:6], 0.2
        )
        output = objective(data)
        torch.testing.assert_close(output.loss.double(), expected.double(), rtol=1e-5, atol=1e-6)
        before = objective.targets.clone()
        objective.update(data, output)
    assert torch.equal(objective.targets, before)  # only the prototypes move
    assert objective.prototypes.any()


def test_after_warm_up_targets_move_to_the_nearest_prototype_before_the_loss() -> None:
    objective = build("pico").eval()
    with torch.no_grad():
        for seed in (1, 3):
            objective.update(batch(seed), objective(batch(seed)))
        objective.epoch, objective.progress = 1.0, 0.5  # phi = (0.95 + 0.8) / 2
        data = batch(2)
        q, k, logits, predicted = parts(objective, data)
        targets = []
        for i in range(6):
            allowed = [c for c in range(3) if data.candidates[i, c]]
            nearest = max(allowed, key=lambda c: float(q[i] @ objective.prototypes[c]))
            moved = 0.875 * objective.targets[data.index[i]]
            moved[nearest] += 0.125
            targets.append(moved)
        targets = torch.stack(targets)
        queue = objective.queue
        contrast = reference.sup_con(q, k, predicted, queue.keys[:12], queue.labels[:12], 0.2)
        output = objective(data)
        expected = soft_cross_entropy(targets, logits) + 0.5 * contrast
        torch.testing.assert_close(output.loss.double(), expected.double(), rtol=1e-5, atol=1e-6)
        # prototypes: one row after the other, normalised once
        prototypes = objective.prototypes.clone()
        for row, c in zip(q, predicted.tolist(), strict=True):
            prototypes[c] = 0.9 * prototypes[c] + 0.1 * row
        objective.update(data, output)
    torch.testing.assert_close(objective.prototypes, F.normalize(prototypes, dim=1))
    torch.testing.assert_close(objective.targets[data.index], targets)
    assert torch.equal(queue.labels[12:18], predicted)


def test_the_nearest_prototype_is_found_in_full_precision_under_autocast() -> None:
    """The later of two prototypes that differ less than bfloat16 can tell is the nearer one."""
    objective = build("pico").eval()
    objective.epoch = 1.0
    data = batch(2)
    data = data._replace(candidates=torch.ones_like(data.candidates))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        q = objective(data).carry[1][0]
        aside = F.normalize(torch.randn(8, generator=torch.Generator().manual_seed(0)), dim=0)
        objective.prototypes.copy_(F.normalize(torch.stack([-q, q + 0.02 * aside, q]), dim=1))
        before = objective.targets[data.index[0]]
        moved = objective(data).carry[3][0] - before
    assert moved.argmax() == 2


def test_true_labels_are_counted_but_never_learned_from() -> None:
    one, other = build("pico"), build("pico")
    for objective in (one, other):
        objective.epoch = 2.0
    for seed in range(3):
        data = batch(seed)
        step(one, data)
        step(other, data._replace(labels=(data.labels + 1) % 3))
    for key, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
