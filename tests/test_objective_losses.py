"""Each objective computes the loss that its equation says, of the features that it says."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from tests.objective_helpers import COUNTS, INFO, batch, build, step
from tests.release_helpers import some_centers, trained_encoder
from zoo import functional
from zoo.modules import Teacher
from zoo.objectives import Batch, DataInfo

PRIOR = [0.6, 0.3, 0.1]
UNIT = ((0.0,) * 3, (1.0,) * 3)
LDAM = {"name": "ldam", "max_margin": 0.5, "scale": 30.0, "reweight_from": 0.8, "beta": 0.9999}
TEACH = {"distill": {"teachers": ["a", "b"], "weight": 0.7, "tau": 3.0}}


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def after_a_step(name: str, **changes: Any) -> Any:
    """In evaluation mode, where features are a plain function of the image, with 6 keys in the queue."""
    info = INFO
    if "distill" in changes:
        of_both = {"own": UNIT, "given": UNIT, "sha256": "0" * 64}
        teachers = (Teacher(trained_encoder(seed=s), some_centers(64, 3), **of_both) for s in (5, 6))
        info = INFO._replace(teachers=tuple(teachers))
    objective = build(name, info, **changes).eval()
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
        if hasattr(objective, "queue"):
            objective.queue.keys[6:] = 0.5  # nothing of an empty slot may count
    return objective


def parts(objective: Any, data: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Features, queries and keys of an objective with a key encoder."""
    features = objective.encoder(data.views[0])
    return features, unit(objective.head(features)), unit(objective.teacher(data.views[1]))


def of_centers(objective: Any, data: Batch, changes: dict[str, Any]) -> Tensor:
    """PaCo; of GPaCo both views are anchors, and there are no other keys than the queue's."""
    names = {"label_smoothing": "smoothing"}
    settings = {"alpha": 0.05, "tau": 0.05} | {names.get(key, key): value for key, value in changes.items()}
    prior = PRIOR if settings.pop("rebalance", True) else [1.0] * 3
    queued = objective.queue.keys, objective.queue.labels
    if objective.config.name == "gpaco":
        features = torch.cat([objective.encoder(view) for view in data.views])
        anchors = unit(objective.head(features))
        samples = anchors, anchors[:0], data.labels.repeat(2), *queued
    else:
        features, q, k = parts(objective, data)
        samples = q, k, data.labels, *queued
    return reference.paco(*samples, objective.classifier(features), prior, **settings)


def of_classifier(objective: Any, data: Batch, changes: dict[str, Any]) -> Tensor:
    features, labels = objective.encoder(data.views[0]), data.labels
    loss = changes.get("loss", "cross_entropy")
    if loss == LDAM:
        cosines = F.cosine_similarity(features[:, None], objective.classifier.weight, dim=2)
        weight = functional.class_balanced_weights(COUNTS, beta=0.9999).tolist()
        early = objective.progress < 0.8
        return reference.ldam(cosines, labels, COUNTS.tolist(), 0.5, 30.0, [1.0] * 3 if early else weight)
    logits, smoothing = objective.classifier(features), changes.get("label_smoothing", 0.0)
    if "scale" in changes:
        logits = 20 * F.cosine_similarity(features[:, None], objective.classifier.weight, dim=2)
    prior = [1.0] * 3 if loss == "cross_entropy" else PRIOR
    tau = loss["tau"] if isinstance(loss, dict) else 1.0
    found = reference.logit_adjusted(logits, labels, prior, smoothing, tau)
    if "distill" in changes:
        said = torch.stack([teacher(data.views[0]) for teacher in objective.teachers])
        found = 0.3 * found + 0.7 * reference.distillation(logits, said, 3.0)
    return found


def of_views(objective: Any, data: Batch, _: dict[str, Any]) -> Tensor:
    """SimCLR, and the margin loss over every pair of views."""
    a, b = (unit(objective.head(objective.encoder(view))) for view in data.views)
    if objective.config.name == "simclr":
        return reference.nt_xent(a, b, 0.2)
    z, classes = torch.cat([a, b]), data.labels.repeat(2)
    first, second = torch.triu_indices(12, 12, offset=1)
    return reference.margin(z[first], z[second], classes[first] == classes[second], 1.0)


def of_moco_v3(objective: Any, data: Batch, _: dict[str, Any]) -> Tensor:
    q1, q2 = (unit(objective.predictor(objective.projector(objective.encoder(v)))) for v in data.views)
    k1, k2 = (unit(objective.teacher(view)) for view in data.views)
    pairs = ((q1 @ k2.T, torch.arange(6)), (q2 @ k1.T, torch.arange(6)))
    return 2 * 0.2 * sum(F.cross_entropy(scores / 0.2, own) for scores, own in pairs)


def of_queue(objective: Any, data: Batch, changes: dict[str, Any]) -> Tensor:
    _, q, k = parts(objective, data)
    queue, loss = objective.queue, changes.get("loss", {"name": "info_nce"})
    if objective.config.name == "sup_con":
        return reference.sup_con(q, k, data.labels, queue.keys, queue.labels, 0.2)
    if "weight" in loss:
        return reference.simple(q, k, queue.keys[:6], loss["weight"], loss.get("keep", 1.0))
    return reference.info_nce(q, k, queue.keys[:6], 0.2, loss.get("keep", 1.0))


EXPECTED = {"paco": of_centers, "gpaco": of_centers, "classify": of_classifier, "moco_v3": of_moco_v3}
EXPECTED |= {"simclr": of_views, "margin": of_views, "moco": of_queue, "sup_con": of_queue}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("moco", {}),
        ("moco", {"loss": {"name": "hard_contrastive", "keep": 0.5}}),
        ("moco", {"loss": {"name": "simple", "weight": 0.3}, "tau": None}),
        ("moco", {"loss": {"name": "hard_simple", "weight": 0.3, "keep": 0.5}, "tau": None}),
        ("sup_con", {}),
        ("paco", {}),
        ("paco", {"gamma": 0.3, "center_tau": 2.0, "reduction": "sum", "beta": 0.5}),
        ("paco", {"rebalance": False}),
        ("gpaco", {"label_smoothing": 0.1}),
        ("simclr", {}),
        ("margin", {}),
        ("moco_v3", {}),
        ("classify", {"label_smoothing": 0.1}),
        ("classify", {"loss": "balanced_softmax", **TEACH}),
        ("classify", {"loss": {"name": "logit_adjustment", "tau": 2.0}}),
        ("classify", {"loss": LDAM, "head": "cosine"}),
        ("classify", {"loss": "balanced_softmax", "head": "cosine", "scale": 20.0}),
    ],
)
def test_loss_is_the_equations_with_the_queue_before_this_step(name: str, changes: dict[str, Any]) -> None:
    objective, data = after_a_step(name, **changes), batch(2)
    for progress in (0.79, 0.8):  # LDAM's weights begin there
        objective.progress = progress
        with torch.no_grad():
            expected, found = EXPECTED[name](objective, data, changes), objective(data).loss
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-5)


def test_moco_with_ft_scores_the_negatives_with_the_extrapolated_query_as_the_authors_code_does() -> None:
    """The paper's text leaves that query alone."""
    transform = {"positives": {"alpha": 2.0, "per": "step"}, "negatives": None}
    objective, data = after_a_step("moco", feature_transform=transform), batch(2)
    torch.manual_seed(7)  # the coefficient alone is drawn
    lam = 1 + functional.sample_beta(2.0, (1, 1)).double()
    with torch.no_grad():
        _, q, k = parts(objective, data)
        torch.manual_seed(7)
        loss = objective(data).loss.double()
    extrapolated = lam * q + (1 - lam) * k, lam * k + (1 - lam) * q
    expected = reference.info_nce(*extrapolated, objective.queue.keys[:6], 0.2)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_gpaco_enqueues_the_second_view() -> None:
    objective, data = after_a_step("gpaco"), batch(1)
    second = unit(objective.head(objective.encoder(data.views[1])))
    torch.testing.assert_close(objective.queue.keys[:6], second)


def test_bcl_classifies_the_first_view_and_contrasts_the_others_with_the_classifiers_rows() -> None:
    objective, data = build("bcl").double(), batch(2, views=3)
    views = tuple(view.double().requires_grad_() for view in data.views)
    features = objective.encoder(torch.cat(views))  # one batch: BatchNorm's statistics are of all
    a, b = unit(objective.head(features))[6:].chunk(2)
    prototypes = unit(objective.prototype_head(objective.classifier.weight))
    contrast = reference.balanced_contrast(a, b, data.labels, prototypes, 0.2)
    logits = objective.classifier(features[:6])
    expected = 2.0 * reference.logit_adjusted(logits, data.labels, PRIOR) + 0.6 * contrast
    found = objective(data._replace(views=views)).loss
    inputs = [*views, *objective.parameters()]
    found, expected = ([loss, *torch.autograd.grad(loss, inputs)] for loss in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    assert all(gradient.any() for gradient in found[1:4])  # of each view


def test_margin_leaves_out_the_pairs_of_unknown_class() -> None:
    objective, data, part = build("margin").eval(), batch(2), [0, 2, 3, 5]
    known = Batch(tuple(view[part] for view in data.views), data.labels[part], data.index[part], None)
    labels = data.labels.clone()
    labels[[1, 4]] = -1
    losses = [objective(each).loss for each in (known, data._replace(labels=labels))]
    expected, found = ([loss, *torch.autograd.grad(loss, objective.head.parameters())] for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert objective(data._replace(labels=torch.full_like(labels, -1))).loss.item() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": {"name": "logit_adjustment"}},
        {"loss": LDAM, "head": "cosine"},
        {"loss": "balanced_softmax", "head": "cosine", "scale": 30.0},
        {"head": "scaled"},
    ],
)
def test_centers_are_a_linear_classifier_that_decides_as_the_head_does(changes: dict[str, Any]) -> None:
    """Of a class without training images a loss that knows the counts learns nothing: never predicted."""
    objective = build("classify", **changes).eval()
    for parameter in objective.classifier.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)  # factors that differ, weights of unequal norm
    x = torch.randn(200, 64).abs()
    with torch.no_grad():
        logits = objective.classifier(x) * (30 if changes.get("head") == "cosine" else 1)
    of_norm = 1.0
    if changes.get("head") == "cosine":  # a linear classifier knows the usual norm alone
        for _ in range(200):
            objective.classifier.train()(x)
        of_norm = x.norm(dim=1, keepdim=True) / x.norm(dim=1).mean()
    assert len(logits.argmax(dim=1).unique()) > 1
    torch.testing.assert_close(objective.centers().logits(x) / of_norm, logits, rtol=1e-4, atol=1e-4)

    absent = build("classify", DataInfo(torch.tensor([60, 30, 0])), **changes)
    absent.progress = 0.9
    for seed in range(3):
        data = batch(seed, views=1)
        step(absent, data._replace(labels=data.labels.clamp(max=1)))
    assert all(value.isfinite().all() for value in absent.state_dict().values())
    if "loss" in changes:
        predicted = absent.centers().logits(10 * torch.randn(500, 64)).argmax(dim=1)
        assert (predicted != 2).all()


# --- PiCO: targets, prototypes and warm-up, against sums written out from the paper


def pico_parts(objective: Any, data: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, logits and the candidate class that the classifier prefers."""
    features, q, k = parts(objective, data)
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
    q, k, logits, _ = pico_parts(objective, data)
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
    q, k, logits, predicted = pico_parts(objective, data)
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
