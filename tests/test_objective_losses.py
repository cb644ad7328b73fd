"""Each objective computes the loss that its equation says, of the features that it says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from tests import reference
from tests.objective_helpers import batch, build, config
from zoo import backbones, functional
from zoo.errors import ArgumentError, TrainingError
from zoo.objectives import Batch, DataInfo, Objective
from zoo.objectives.bcl import BCL
from zoo.training.observe import figures_of


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def after_a_step(name: str, **changes) -> Objective:
    """In evaluation mode, where features are a plain function of the image, with 6 keys in the queue."""
    objective = build(name, **changes).eval()
    with torch.no_grad():
        objective.update(batch(1), objective(batch(1)))
    return objective


def test_moco_loss_is_info_nce_against_the_queue_before_this_step() -> None:
    objective = after_a_step("moco")
    with torch.no_grad():
        data = batch(2)
        q = F.normalize(objective.contrast.head(objective.encoder(data.views[0])), dim=1)
        k = F.normalize(objective.contrast.teacher(data.views[1]), dim=1)
        expected = reference.info_nce(q, k, objective.contrast.queue.keys[:6], 0.2)
        output = objective(data)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    metrics = figures_of(objective, data.labels, output.held, {})
    torch.testing.assert_close(metrics["positive_score"], (q * k).sum(1).mean())
    negatives = q @ objective.contrast.queue.keys[:6].T
    torch.testing.assert_close(metrics["negative_score"], negatives.mean())
    torch.testing.assert_close(metrics["negative_variance"], negatives.var(correction=0))


def test_moco_with_ft_scores_the_negatives_with_the_extrapolated_query_as_the_authors_code_does() -> None:
    """The paper's text leaves that query alone: `tests/test_theory.py` has both forms."""
    transform = {
        "positives": {"alpha": 2.0, "per": "step"},
        "negatives": None,
        "renormalize": False,
        "start_epoch": 0,
    }
    objective = after_a_step("moco", feature_transform=transform)
    torch.manual_seed(7)  # features are a plain function of the image: the coefficient alone is drawn
    lam = 1 + functional.sample_beta(2.0, (1, 1), device=torch.device("cpu")).double()
    with torch.no_grad():
        data = batch(2)
        q = unit(objective.contrast.head(objective.encoder(data.views[0])))
        k = unit(objective.contrast.teacher(data.views[1]))
        keys = objective.contrast.queue.keys[:6]
        torch.manual_seed(7)
        loss = objective(data).loss.double()
    unmixed = torch.ones(6, 1).double()
    expected, textual = (
        reference.ft_info_nce(
            q, k, keys, 0.2, lam.expand(len(q), 1), unmixed, list(range(6)), negatives_scored_with=form
        )
        for form in ("extrapolated", "original")
    )
    torch.testing.assert_close(loss, expected.squeeze(), rtol=1e-5, atol=1e-6)
    assert abs(float(expected - textual)) > 1e-3


def test_paco_loss_uses_prior_centers_queue_and_both_views() -> None:
    objective = after_a_step("paco")
    with torch.no_grad():
        data = batch(2)
        features = objective.encoder(data.views[0])
        q = F.normalize(objective.contrast.head(features), dim=1)
        k = F.normalize(objective.contrast.teacher(data.views[1]), dim=1)
        expected = reference.paco(
            q,
            k,
            data.labels,
            objective.contrast.queue.keys,
            objective.contrast.queue.labels,
            objective.learned(features),
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
        torch.testing.assert_close(features @ centers.weight.T + centers.bias, objective.learned(features))
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


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (
            {"name": "hard_contrastive", "keep": 0.5},
            lambda q, k, z: reference.hard_info_nce(q, k, z, 0.2, 0.5),
        ),
        ({"name": "simple", "weight": 0.3}, lambda q, k, z: reference.simple(q, k, z, 0.3, 1.0)),
        (
            {"name": "hard_simple", "weight": 0.3, "keep": 0.5},
            lambda q, k, z: reference.simple(q, k, z, 0.3, 0.5),
        ),
    ],
)
def test_moco_takes_the_losses_of_the_temperature_paper(loss, expected) -> None:
    objective = after_a_step("moco", loss=loss, tau=0.2 if loss["name"] == "hard_contrastive" else None)
    data = batch(2)
    with torch.no_grad():
        q = unit(objective.contrast.head(objective.encoder(data.views[0])))
        k = unit(objective.contrast.teacher(data.views[1]))
        found = objective(data).loss.double()
    torch.testing.assert_close(found, expected(q, k, objective.contrast.queue.keys[:6]), rtol=1e-5, atol=1e-6)


def test_sup_con_contrasts_both_views_and_the_queue() -> None:
    objective = after_a_step("sup_con")
    data = batch(2)
    with torch.no_grad():
        q = unit(objective.contrast.head(objective.encoder(data.views[0])))
        k = unit(objective.contrast.teacher(data.views[1]))
        found = objective(data).loss.double()
    queue = objective.contrast.queue
    expected = reference.sup_con(q, k, data.labels, queue.keys, queue.labels, 0.2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_gpaco_is_the_mean_over_the_anchors_of_both_views_without_a_teacher() -> None:
    objective = after_a_step("gpaco", label_smoothing=0.1)
    data = batch(2)
    with torch.no_grad():
        features = torch.cat([objective.encoder(view) for view in data.views])
        anchors, logits = unit(objective.head(features)), objective.learned.classifier(features)
        labels = data.labels.repeat(2)
        prior = torch.tensor([0.6, 0.3, 0.1]).log()
        losses = []
        for i in range(12):
            others = [j for j in range(12) if j != i]
            contrast = torch.cat([anchors[others], objective.queue.keys[:6]]) @ anchors[i] / 0.05
            log_p = torch.cat([logits[i] + prior, contrast]).log_softmax(0)
            same = torch.cat([labels[others], objective.queue.labels[:6]]) == labels[i]
            own = 0.9 * F.one_hot(labels[i], 3) + 0.05 * (1 - F.one_hot(labels[i], 3))
            weight = torch.cat([own, 0.05 * same])
            losses.append(-(weight * log_p).sum() / weight.sum())
        found = objective(data).loss
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    assert torch.equal(objective.queue.labels[:6], batch(1).labels)


def test_gpaco_enqueues_the_second_view() -> None:
    objective, data = after_a_step("gpaco"), batch(1)
    with torch.no_grad():
        first, second = (unit(objective.head(objective.encoder(view))) for view in data.views)
    torch.testing.assert_close(objective.queue.keys[:6], second)
    assert not torch.allclose(objective.queue.keys[:6], first, atol=1e-3)


def test_simclr_takes_each_of_the_batchs_other_views_as_a_negative() -> None:
    objective, data = build("simclr").eval(), batch(2)
    with torch.no_grad():
        z = unit(torch.cat([objective.head(objective.encoder(view)) for view in data.views])).double()
        losses = []
        for i in range(12):
            scores = (z @ z[i] / 0.2).exp()
            losses.append(-(scores[(i + 6) % 12] / (scores.sum() - scores[i])).log())
        found = objective(data).loss.double()
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-5, atol=1e-6)


def test_bcl_classifies_the_first_view_and_contrasts_the_others_with_the_classifiers_rows() -> None:
    objective, data = build("bcl").double(), batch(2, views=3)
    views = tuple(view.double().requires_grad_() for view in data.views)
    features = objective.encoder(torch.cat(views))  # one batch: BatchNorm's statistics are of all
    a, b = unit(objective.head(features))[6:].chunk(2)
    prototypes = unit(objective.prototype_head(objective.classifier.weight))
    contrast = reference.balanced_contrast(a, b, data.labels, prototypes, 0.2)
    classification = reference.balanced_softmax(
        objective.classifier(features[:6]), data.labels, reference.priors([60, 30, 10]), smoothing=0.0
    )
    expected = 2.0 * classification + 0.6 * contrast
    output = objective(data._replace(views=views))
    torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(output.metrics["contrast_loss"], contrast.detach(), rtol=1e-6, atol=0)
    inputs = [*views, *objective.parameters()]
    found, theirs = (torch.autograd.grad(loss, inputs) for loss in (output.loss, expected))
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    assert all(gradient.any() for gradient in found[:3])  # of each view


def test_the_centers_of_bcl_leave_out_a_class_without_images() -> None:
    objective = BCL(config("bcl"), backbones.create("cifar_resnet20"), DataInfo(torch.tensor([8, 0, 4])))
    centers = objective.centers()
    assert centers.bias[1] == functional.LOWEST_LOGIT and not centers.weight[1].any()
    assert torch.equal(centers.weight[::2], objective.classifier.weight[::2])


def test_bcl_with_a_cosine_head_scales_cosines_and_releases_the_directions() -> None:
    objective, data = build("bcl", head="cosine", scale=30.0, contrast_weight=0.0), batch(2, views=3)
    with torch.no_grad():
        features = objective.encoder(torch.cat(data.views))[:6]
        cosines = unit(features) @ unit(objective.classifier.weight).T
        expected = 2.0 * functional.balanced_softmax(30 * cosines, data.labels, [60, 30, 10])
        centers = objective.centers()
        logits = features @ centers.weight.T + centers.bias
    torch.testing.assert_close(objective(data).loss, expected)
    torch.testing.assert_close(logits, 30 * cosines * features.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("changes", [{"head": "cosine"}, {"scale": 30.0}])
def test_bcl_has_a_scale_with_a_cosine_head_alone(changes: dict) -> None:
    with pytest.raises(
        ValidationError, match=r'scale: found (None with head "cosine"|30\.0 with head "linear")'
    ):
        config("bcl", **changes)


def test_bcls_prototypes_do_not_depend_on_the_mode() -> None:
    objective = build("bcl")
    weight = objective.classifier.weight
    assert torch.equal(objective.train().prototype_head(weight), objective.eval().prototype_head(weight))


def test_bcl_needs_views_of_one_size() -> None:
    data = batch(1, views=3)
    views = (*data.views[:2], data.views[2][..., :6, :6])
    with pytest.raises(TrainingError, match=r"views of 8 x 8, 8 x 8, 6 x 6 pixels, expected one size"):
        build("bcl")(data._replace(views=views))


def test_moco_v3_is_symmetric_and_predicts_the_other_views_keys() -> None:
    objective, data = build("moco_v3").eval(), batch(2)
    with torch.no_grad():
        student = nn.Sequential(objective.encoder, objective.projector, objective.predictor)
        q = [unit(student(view)).double() for view in data.views]
        k = [unit(objective.teacher(view)).double() for view in data.views]
        expected = torch.zeros((), dtype=torch.float64)
        for mine, others in ((q[0], k[1]), (q[1], k[0])):
            for i in range(6):
                scores = (others @ mine[i] / 0.2).exp()
                expected -= 2 * 0.2 * (scores[i] / scores.sum()).log() / 6
        found = objective(data).loss.double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_moco_v3_key_encoder_slows_down_along_a_cosine() -> None:
    objective = build("moco_v3")
    output = objective(batch(1))
    for progress, momentum in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        objective.progress = progress
        before = objective.teacher.module[0].conv1.weight.clone()
        with torch.no_grad():
            objective.encoder.conv1.weight.add_(0.1)
        objective.update(batch(1), output)
        student = objective.encoder.conv1.weight
        torch.testing.assert_close(
            objective.teacher.module[0].conv1.weight, momentum * before + (1 - momentum) * student
        )


def test_moco_v3_freezes_a_vits_patch_embedding() -> None:
    args = dict(img_size=8, patch_size=4, embed_dim=32, depth=1, num_heads=2)
    objective = build(
        "moco_v3", "vit_tiny_patch16_224", args, freeze_patch_embedding=True, sincos_positions=True
    )
    trained = {name for name, p in objective.named_parameters() if p.requires_grad}
    assert (
        not {"encoder.patch_embed.proj.weight", "encoder.patch_embed.proj.bias", "encoder.pos_embed"}
        & trained
    )
    assert "encoder.cls_token" in trained


@pytest.mark.parametrize("pairs", ["class", "instance"])
@pytest.mark.parametrize("squared", [False, True])
def test_margin_compares_every_pair_of_views(pairs: str, squared: bool) -> None:
    objective = build("margin", pairs=pairs, squared_margin=squared, normalize=squared).eval()
    data = batch(2)
    with torch.no_grad():
        z = torch.cat([objective.head(objective.encoder(view)) for view in data.views])
        z = unit(z) if squared else z
        identity = (data.labels if pairs == "class" else data.index).tolist() * 2
        both = [(i, j) for i in range(12) for j in range(i)]
        first, second = z[[i for i, _ in both]], z[[j for _, j in both]]
        same = torch.tensor([identity[i] == identity[j] for i, j in both])
        expected = reference.margin(first, second, same, 1.0, squared)
        found = objective(data).loss
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


class TwoRanks:
    """One process that computes as if it were one of several."""

    alone = False
    own = slice(None)

    def gather(self, rows):
        return rows


@pytest.mark.parametrize("ranks", [None, TwoRanks()])
@pytest.mark.parametrize("squared", [False, True])
def test_margin_leaves_out_the_pairs_of_unknown_class(ranks, squared: bool) -> None:
    objective = build("margin", squared_margin=squared, margin=3.0, normalize=False).eval()
    objective.ranks = ranks or objective.ranks
    data = batch(2)
    part = [0, 2, 3, 5]
    known = Batch(tuple(view[part] for view in data.views), data.labels[part], data.index[part], None)
    labels = data.labels.clone()
    labels[[1, 4]] = -1
    expected, found = objective(known), objective(data._replace(labels=labels))
    torch.testing.assert_close(found.loss, expected.loss)
    gradients = torch.autograd.grad(found.loss, list(objective.head.parameters()), retain_graph=True)
    same = torch.autograd.grad(expected.loss, list(objective.head.parameters()))
    torch.testing.assert_close(gradients, same, rtol=1e-4, atol=1e-6)
    nobody = objective(data._replace(labels=torch.full_like(labels, -1)))
    assert nobody.loss.item() == 0


@pytest.mark.parametrize("name", ["bcl", "paco", "gpaco", "classify"])
def test_objectives_with_centers_take_no_unknown_label_for_a_class(name: str) -> None:
    objective = build(name, **({"loss": "balanced_softmax"} if name == "classify" else {}))
    data = batch(1, views=objective.num_views)
    data.labels[2] = -1
    with pytest.raises(ArgumentError, match="labels: found -1 to 2, expected classes 0 to 2"):
        objective(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"gamma": 0.3},
        {"center_tau": 2.0},
        {"reduction": "sum"},
        {"beta": 0.5},
        {"alpha": 0.4},
        {"tau": 0.5},
        {"rebalance": False},
        {"label_smoothing": 0.2},
    ],
)
def test_every_setting_of_paco_reaches_its_loss(changes: dict) -> None:
    for name in ("paco", "gpaco"):
        plain = after_a_step(name)(batch(2)).loss.item()
        assert plain != pytest.approx(after_a_step(name, **changes)(batch(2)).loss.item(), rel=1e-3)
