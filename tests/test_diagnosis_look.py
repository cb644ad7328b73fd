"""What is seen on a sample of images, against slow computations of the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnosis_helpers import COUNTS, MOCO, PACO, digits, looked, reading
from zoo import functional
from zoo import release as releases
from zoo.data import ImageDataset
from zoo.errors import DataError, ZooError
from zoo.evaluation.diagnosis.center_loss import center_loss
from zoo.evaluation.diagnosis.look import landmarks_of, look
from zoo.modules.centers import Centers

SAMPLE = 60


@pytest.fixture(scope="module")
def seen():
    return looked(PACO, SAMPLE)


@pytest.fixture(scope="module")
def encoder():
    return releases.open(PACO).load()


@torch.no_grad()
def encoded(encoder: nn.Module, dataset: ImageDataset, indices) -> torch.Tensor:
    """Features of images, one at a time, by timm's own transform."""
    transform = releases.open(PACO).transform()
    encoder.eval()
    return torch.cat([encoder(transform(dataset.image(int(i)))[None]) for i in indices])


def test_features_labels_and_scores_are_those_of_the_sample(seen, encoder):
    _, test = digits()
    assert len(seen.index) == SAMPLE and len({*seen.index.tolist()}) == SAMPLE and seen.total == 547
    raw = encoded(encoder, test, seen.index)
    assert torch.allclose(seen.features * seen.norms[:, None], raw, atol=1e-4)
    assert torch.allclose(seen.features.norm(dim=1), torch.ones(SAMPLE), atol=1e-6)
    assert seen.labels.tolist() == test.labels[seen.index].tolist()
    assert torch.allclose(seen.scores, seen.features @ seen.features.T, atol=1e-6)


def test_measures_are_means_over_pairs(seen):
    z, y = seen.features.double(), seen.labels
    potentials, alike, same, other = [], [], [], []
    for i in range(SAMPLE):
        for j in range(SAMPLE):
            if i != j:
                (same if y[i] == y[j] else other).append(float(z[i] @ z[j]))
            if i < j:
                potentials.append(math.exp(-2 * float((z[i] - z[j]).square().sum())))
            if i != j and y[i] == y[j]:
                alike.append(float(z[i] @ z[j]))
    assert seen.uniformity == pytest.approx(math.log(np.mean(potentials)), abs=1e-5)
    assert seen.tolerance == pytest.approx(np.mean(alike), abs=1e-5)
    assert np.allclose(seen.same_class.numpy(), same, atol=1e-5)
    assert np.allclose(seen.other_class.numpy(), other, atol=1e-5)


def test_two_views_are_of_the_same_image_and_depend_on_the_seed_alone(seen, encoder):
    again = look(encoder, *digits(), **reading(), sample=SAMPLE)
    assert torch.equal(again.positive_scores, seen.positive_scores)
    assert seen.alignment == pytest.approx(float((2 - 2 * seen.positive_scores).mean()), abs=1e-6)
    other = looked(PACO, SAMPLE, 1)
    assert not torch.equal(other.index, seen.index)
    # views without a random operation are the image itself: then every pair is one point
    views = reading()["views"]
    still = views.model_copy(update={"train": [[], []]})
    alike = look(encoder, *digits(), **reading() | {"views": still}, sample=SAMPLE)
    assert torch.allclose(alike.positive_scores, torch.ones(SAMPLE), atol=1e-5)
    assert alike.alignment == pytest.approx(0, abs=1e-5)
    # of three views, the first of which is a classifier's, the pair is the other two
    three = type(views).model_validate(
        views.model_dump() | {"train": [views.model_dump()["train"][0], [], []]}
    )
    alike = look(encoder, *digits(), **reading() | {"views": three}, sample=SAMPLE)
    assert torch.allclose(alike.positive_scores, torch.ones(SAMPLE), atol=1e-5)
    # and of an image and its negative, as they are computed one by one
    erased = [{"op": "solarize", "p": 1.0, "threshold": 0}]
    half = type(views).model_validate(views.model_dump() | {"train": [[], erased]})
    mixed = look(encoder, *digits(), **reading() | {"views": half}, sample=SAMPLE)
    transform, (_, test) = releases.open(PACO).transform(), digits()
    mean, std = (torch.tensor(reading()[key]).view(3, 1, 1) for key in ("mean", "std"))
    encoder.eval()  # a release is handed out for training
    with torch.no_grad():
        for i in range(5):
            image = transform(test.image(int(mixed.index[i])))
            inverted = (1 - (image * std + mean) - mean) / std
            pair = encoder(torch.stack([image, inverted]))
            assert float(mixed.positive_scores[i]) == pytest.approx(
                float(F.cosine_similarity(*pair, dim=0)), abs=1e-4
            )


def test_one_view_or_none_is_said(encoder):
    views = reading()["views"]
    one = views.model_copy(update={"train": views.train[:1]})
    for given, why in ((one, "one view of an image"), (None, "no recipe says")):
        found = look(encoder, *digits(), **reading() | {"views": given}, sample=SAMPLE)
        assert found.positive_scores is None and found.alignment is None and why in found.without_views


def test_gradient_is_that_of_the_loss_that_the_centers_were_trained_with(seen, encoder):
    train, _ = digits()
    centers = releases.open(PACO).centers
    assert (seen.gallery, seen.gallery_total) == (344, 344)
    features = encoded(encoder, train, range(len(train))).requires_grad_()
    labels = torch.from_numpy(train.labels.copy())
    prior = torch.from_numpy(COUNTS / COUNTS.sum()).log()  # the recipe's objective.rebalance is true
    F.cross_entropy(centers.logits(features) + prior, labels, reduction="sum").backward()
    norms = features.grad.norm(dim=1)
    assert seen.gradient_of == "the softmax over its centers without the samples, with log prior"
    expected = [float(norms[labels == c].mean()) for c in range(10)]
    assert np.allclose(seen.gradient.numpy(), expected, atol=1e-4)
    assert looked(MOCO).gradient is None and looked(MOCO).gradient_of == "no centers"
    # the rarest third is what is still learned; without the prior it would seem forgotten
    assert float(seen.gradient[:3].mean()) < float(seen.gradient[-3:].mean())
    given = dict(centers=centers, center_loss="there is none", sample=SAMPLE)
    without = look(encoder, *digits(), **reading(), **given)
    assert without.gradient is None and without.gradient_of == "there is none"


LOSSES = {
    "cross_entropy": "cross-entropy, no prior",
    "balanced_softmax": "cross-entropy, with log prior",
    "logit_adjustment": "cross-entropy, with 0.5 log prior",
    "paco": "the softmax over its centers without the samples, with log prior",
    "gpaco": "the softmax over its centers without the samples, no prior",
    "bcl": "cross-entropy beside the contrast, with log prior",
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_centers_is_that_of_the_recipe(name):
    draw = torch.Generator().manual_seed(0)
    counts = torch.from_numpy(COUNTS)
    logits = torch.randn(30, 10, generator=draw, requires_grad=True)
    labels = torch.randint(10, (30,), generator=draw)
    sections = {
        "cross_entropy": {"name": "classify", "loss": "cross_entropy", "label_smoothing": 0.1},
        "balanced_softmax": {"name": "classify", "loss": "balanced_softmax", "label_smoothing": 0.2},
        "logit_adjustment": {
            "name": "classify",
            "loss": {"name": "logit_adjustment", "tau": 0.5},
            "label_smoothing": 0.0,
        },
        "paco": {"name": "paco", "rebalance": True, "center_tau": 1.0, "label_smoothing": 0.1},
        "gpaco": {"name": "gpaco", "rebalance": False, "center_tau": 0.5, "label_smoothing": 0.3},
        "bcl": {"name": "bcl", "classification_weight": 2.0, "contrast_weight": 0.6},
    }
    section = sections[name]
    found = center_loss({"objective": section, "method": None}, counts)
    smoothing = section.get("label_smoothing", 0.0)
    if name == "cross_entropy":
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    elif name in ("balanced_softmax", "bcl"):
        loss = functional.balanced_softmax(logits, labels, counts, label_smoothing=smoothing)
    elif name == "logit_adjustment":
        loss = functional.logit_adjusted(logits, labels, counts, tau=0.5)
    else:  # PaCo's loss with neither samples among the positives nor in the denominator
        q, k = F.normalize(torch.randn(2, 30, 4, generator=draw), dim=2)
        prior = functional.log_prior(counts) * section["rebalance"]
        weights = dict(alpha=0.0, tau=0.1, gamma=0.0, center_tau=section["center_tau"])
        queue = q[:0], labels[:0]
        loss = functional.paco(
            q, k, labels, *queue, logits, prior, **weights, reduction="sum", label_smoothing=smoothing
        )
    (gradient,) = torch.autograd.grad(30 * loss, logits)
    assert torch.allclose(found.error(logits.detach(), labels), gradient, atol=1e-5)
    assert found.words == LOSSES[name]


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ({}, "objective None has no closed form"),
        ({"objective": {"name": "pico"}}, "objective pico has no closed form"),
        ({"objective": {"name": "paco"}}, "is not recorded"),
        ({"objective": {"name": "classify", "loss": {"name": "ldam"}}}, "ldam has a margin"),
        ({"objective": {"name": "classify"}, "method": {"name": "crt"}}, "by the method crt"),
    ],
)
def test_where_the_loss_of_centers_is_not_one_of_these_it_is_said(recipe, why):
    assert why in center_loss(recipe, torch.from_numpy(COUNTS))
    section = {"name": "paco", "rebalance": True, "center_tau": 1.0, "label_smoothing": 0.0}
    unknown = torch.full((10,), -1)
    assert "are not known" in center_loss({"objective": section}, unknown)
    assert not isinstance(center_loss({"objective": section | {"rebalance": False}}, unknown), str)


def test_accuracy_is_that_of_the_centers_else_of_neighbours(seen, encoder):
    whole = looked(PACO)
    recorded = releases.open(PACO).metrics["evaluations"][0]
    assert recorded["protocol"] == "classifier" and whole.classifier == "the learned centers"
    assert whole.accuracy == pytest.approx(recorded["metrics"]["accuracy"])
    assert np.allclose(whole.per_class.numpy(), recorded["metrics"]["per_class"])
    moco = looked(MOCO)
    recorded = next(e for e in releases.open(MOCO).metrics["evaluations"] if e["protocol"] == "knn")
    assert recorded["settings"]["k"] == 5 and recorded["settings"]["tau"] == 0.07
    assert moco.accuracy == pytest.approx(recorded["metrics"]["accuracy"])
    assert moco.classifier == "kNN (k = 5, tau = 0.07) among 344 training images"
    others = Centers(torch.randn(7, 64), torch.zeros(7), torch.ones(7, dtype=torch.int64))
    found = look(encoder, *digits(), **reading(), centers=others, sample=SAMPLE)
    assert found.classifier.startswith("kNN") and found.gradient is None


def test_neighbours_are_the_most_similar_and_negatives_of_other_classes(seen, encoder):
    train, test = digits()
    bank = F.normalize(encoded(encoder, train, range(len(train))), dim=1)
    assert [query.label for query in seen.neighbours] == [0, 3, 6, 9]  # along the frequency of classes
    for query in seen.neighbours:
        place = seen.labels.tolist().index(query.label)
        pixels = np.asarray(test.image(int(seen.index[place])))
        assert np.array_equal(query.image.permute(1, 2, 0).numpy(), pixels)
        similar = bank @ seen.features[place]
        order = similar.argsort(descending=True)[:4]
        assert np.allclose(query.nearest_scores.numpy(), similar[order].numpy(), atol=1e-4)
        assert query.nearest_labels.tolist() == train.labels[order].tolist()
        assert np.array_equal(
            query.nearest[0].permute(1, 2, 0).numpy(), np.asarray(train.image(int(order[0])))
        )
        other = (seen.features @ seen.features[place])[seen.labels != query.label].sort(descending=True)
        assert np.allclose(query.hardest_scores.numpy(), other.values[:4].numpy(), atol=1e-5)
        assert query.label not in query.hardest_labels


def test_landmarks_are_raw_pixels_and_the_start_of_training(seen):
    _, test = digits()
    assert [*seen.landmarks] == ["raw pixels", "random encoder"]
    pixels = torch.stack([torch.tensor(np.array(test.image(int(i)))) for i in seen.index]).float() / 255
    mean, std = (torch.tensor(reading()[key]) for key in ("mean", "std"))
    z = F.normalize(((pixels - mean) / std).flatten(1), dim=1).double()
    assert seen.landmarks["raw pixels"].uniformity == pytest.approx(
        float((-2 * torch.pdist(z).square()).exp().mean().log()), abs=1e-5
    )
    first, second = (landmarks_of("cifar_resnet20", {}, seed=s)["random encoder"] for s in (0, 0))
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    from zoo.training import Recipe, build_objective

    begun = build_objective(Recipe.load(PACO), digits()[0]).encoder
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), begun.parameters(), strict=True))


def test_nothing_else_is_moved(encoder):
    encoder.train()
    encoder.bn1.eval()
    modes = [module.training for module in encoder.modules()]
    weights = [value.clone() for value in encoder.state_dict().values()]
    torch.manual_seed(3)
    state, numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    look(encoder, *digits(), **reading(), sample=SAMPLE, landmarks=landmarks_of("cifar_resnet20", {}, seed=1))
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(weights, encoder.state_dict().values(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy, np.random.get_state()[1])  # noqa: NPY002
    encoder.eval()


def test_mistakes_are_named(encoder):
    train, test = digits()
    given = reading()
    with pytest.raises(DataError, match="the test split has no image, expected 4 or more"):
        look(encoder, train, test.subset([]), **given)
    with pytest.raises(DataError, match="the training split has no image"):
        look(encoder, train.subset([]), test, **given)
    with pytest.raises(ZooError, match="sample: found 3, expected 4 or more"):
        look(encoder, train, test, **given, sample=3)

    class Diverged(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :5] * float("nan")

    with pytest.raises(DataError, match="hold NaN or infinity"):
        look(Diverged(), train, test, **given)


def test_one_class_and_one_image_of_each_have_no_such_pairs(encoder):
    train, test = digits()
    zeros = np.flatnonzero(test.labels == 0)[:20]
    found = look(encoder, train, test.subset(zeros), **reading())
    assert (
        len(found.other_class) == 0 and len(found.neighbours) == 1 and len(found.neighbours[0].hardest) == 0
    )
    assert int(np.isfinite(found.per_class.numpy()).sum()) == 1
    single = [int(np.flatnonzero(test.labels == c)[0]) for c in range(10)]
    assert look(encoder, train, test.subset(single), **reading()).tolerance is None
    assert COUNTS.tolist() == found.class_counts.tolist()
