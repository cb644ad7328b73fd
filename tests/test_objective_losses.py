"""Each objective computes the loss that its equation says, of the features that it says."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from tests.objective_helpers import batch, build
from zoo import functional
from zoo.objectives import Batch, Objective

PRIOR = [0.6, 0.3, 0.1]


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def after_a_step(name: str, **changes: Any) -> Objective:
    """In evaluation mode, where features are a plain function of the image, with 6 keys in the queue."""
    objective = build(name, **changes).eval()
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
        if hasattr(objective, "queue"):
            objective.queue.keys[6:] = 0.5  # nothing of an empty slot may count
    return objective


def expected_loss(name: str, changes: dict[str, Any], objective: Any, data: Batch) -> Tensor:
    """The loss, put together anew from the objective's networks and queue."""
    settings = dict(alpha=0.05, tau=0.05, beta=1.0, gamma=1.0, center_tau=1.0, reduction="mean")
    if name == "gpaco":  # both views are anchors, and there are no other keys than the queue's
        both = torch.cat([objective.encoder(view) for view in data.views])
        anchors, labels, queue = unit(objective.head(both)), data.labels.repeat(2), objective.queue
        contrast = anchors, anchors[:0], labels, queue.keys, queue.labels
        return reference.paco(*contrast, objective.learned.classifier(both), PRIOR, smoothing=0.1, **settings)
    if name == "moco_v3":
        projected = [objective.projector(objective.encoder(view)) for view in data.views]
        q = [unit(objective.predictor(each)).double() for each in projected]
        k = [unit(objective.teacher(view)).double() for view in data.views]
        pairs = ((q[0], k[1]), (q[1], k[0]))
        return sum(
            2 * 0.2 * F.cross_entropy(mine @ others.T / 0.2, torch.arange(6)) for mine, others in pairs
        )
    if name == "simclr":
        return reference.nt_xent(*(unit(objective.head(objective.encoder(v))) for v in data.views), 0.2)
    features = objective.encoder(data.views[0])
    q, k = unit(objective.head(features)), unit(objective.teacher(data.views[1]))
    keys, labels = objective.queue.keys, objective.queue.labels
    if name == "sup_con":
        return reference.sup_con(q, k, data.labels, keys, labels, 0.2)
    if name == "paco":
        logits = objective.learned(features)
        return reference.paco(q, k, data.labels, keys, labels, logits, PRIOR, **settings)
    loss, negatives = changes.get("loss", {"name": "info_nce"}), keys[:6]
    keep = loss.get("keep", 1.0)
    if loss["name"] in ("info_nce", "hard_contrastive"):
        return reference.hard_info_nce(q, k, negatives, 0.2, keep)
    return reference.simple(q, k, negatives, loss["weight"], keep)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("moco", {}),
        ("moco", {"loss": {"name": "hard_contrastive", "keep": 0.5}}),
        ("moco", {"loss": {"name": "simple", "weight": 0.3}, "tau": None}),
        ("moco", {"loss": {"name": "hard_simple", "weight": 0.3, "keep": 0.5}, "tau": None}),
        ("sup_con", {}),
        ("paco", {}),
        ("gpaco", {"label_smoothing": 0.1}),
        ("simclr", {}),
        ("moco_v3", {}),
    ],
)
def test_loss_is_that_of_the_equation_against_the_queue_before_this_step(
    name: str, changes: dict[str, Any]
) -> None:
    objective, data = after_a_step(name, **changes), batch(2)
    with torch.no_grad():
        expected = expected_loss(name, changes, objective, data)
        found = objective(data).loss.double()
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5)


def test_moco_with_ft_scores_the_negatives_with_the_extrapolated_query_as_the_authors_code_does() -> None:
    """The paper's text leaves that query alone."""
    transform = {"positives": {"alpha": 2.0, "per": "step"}, "negatives": None}
    objective, data = after_a_step("moco", feature_transform=transform), batch(2)
    torch.manual_seed(7)  # features are a plain function of the image: the coefficient alone is drawn
    lam = 1 + functional.sample_beta(2.0, (1, 1), device=torch.device("cpu")).double()
    with torch.no_grad():
        q, k = unit(objective.head(objective.encoder(data.views[0]))), unit(objective.teacher(data.views[1]))
        torch.manual_seed(7)
        loss = objective(data).loss.double()
    extrapolated = lam * q + (1 - lam) * k, lam * k + (1 - lam) * q
    expected = reference.info_nce(*extrapolated, objective.queue.keys[:6], 0.2)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_gpaco_enqueues_the_second_view() -> None:
    objective, data = after_a_step("gpaco"), batch(1)
    with torch.no_grad():
        first, second = (unit(objective.head(objective.encoder(view))) for view in data.views)
    torch.testing.assert_close(objective.queue.keys[:6], second)
    assert not torch.allclose(objective.queue.keys[:6], first, atol=1e-3)


def test_classify_can_start_from_centers() -> None:
    paco, classify = build("paco"), build("classify")
    centers = paco.centers()
    assert centers.weight.shape == (3, 64) and centers.class_counts.tolist() == [60, 30, 10]
    classify.start_from(centers)
    assert torch.equal(classify.classifier.weight, centers.weight)


def test_bcl_classifies_the_first_view_and_contrasts_the_others_with_the_classifiers_rows() -> None:
    objective, data = build("bcl").double(), batch(2, views=3)
    views = tuple(view.double().requires_grad_() for view in data.views)
    features = objective.encoder(torch.cat(views))  # one batch: BatchNorm's statistics are of all
    a, b = unit(objective.head(features))[6:].chunk(2)
    prototypes = unit(objective.prototype_head(objective.classifier.weight))
    contrast = reference.balanced_contrast(a, b, data.labels, prototypes, 0.2)
    logits = objective.classifier(features[:6])
    classification = reference.balanced_softmax(logits, data.labels, PRIOR, smoothing=0.0)
    expected = 2.0 * classification + 0.6 * contrast
    output = objective(data._replace(views=views))
    torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=0)
    inputs = [*views, *objective.parameters()]
    found, theirs = (torch.autograd.grad(loss, inputs) for loss in (output.loss, expected))
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    assert all(gradient.any() for gradient in found[:3])  # of each view


def test_margin_compares_every_pair_of_views() -> None:
    objective, data = build("margin").eval(), batch(2)
    with torch.no_grad():
        z = unit(torch.cat([objective.head(objective.encoder(view)) for view in data.views]))
        classes = data.labels.tolist() * 2
        both = [(i, j) for i in range(12) for j in range(i)]
        first, second = z[[i for i, _ in both]], z[[j for _, j in both]]
        same = torch.tensor([classes[i] == classes[j] for i, j in both])
        expected = reference.margin(first, second, same, 1.0, False)
        found = objective(data).loss
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_margin_leaves_out_the_pairs_of_unknown_class() -> None:
    objective, data, part = build("margin").eval(), batch(2), [0, 2, 3, 5]
    known = Batch(tuple(view[part] for view in data.views), data.labels[part], data.index[part], None)
    labels = data.labels.clone()
    labels[[1, 4]] = -1
    expected, found = objective(known), objective(data._replace(labels=labels))
    torch.testing.assert_close(found.loss, expected.loss)
    gradients = torch.autograd.grad(found.loss, list(objective.head.parameters()))
    same = torch.autograd.grad(expected.loss, list(objective.head.parameters()))
    torch.testing.assert_close(gradients, same, rtol=1e-4, atol=1e-6)
    assert objective(data._replace(labels=torch.full_like(labels, -1))).loss.item() == 0


@pytest.mark.parametrize(
    "changes",
    [{"gamma": 0.3}, {"center_tau": 2.0}, {"reduction": "sum"}, {"beta": 0.5}, {"rebalance": False}],
)
def test_every_setting_of_paco_reaches_its_loss(changes: dict[str, Any]) -> None:
    plain = after_a_step("paco")(batch(2)).loss.item()
    assert plain != pytest.approx(after_a_step("paco", **changes)(batch(2)).loss.item(), rel=1e-3)
