"""Figures of scores, probabilities and centers, against loops in float64 and cases by hand."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import reference
from zoo import functional
from zoo.training import observe


def rows(count: int, dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1)


LABELS = torch.tensor([0, 1, 0, 2, 1, 3])
QUEUE_LABELS = torch.tensor([0, 0, 1, -1, 2, 2, 1, 0, -1])
SAMPLES = rows(6, seed=1), rows(6, seed=2), LABELS, rows(9, seed=3), QUEUE_LABELS


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("others", [None, (rows(4, seed=9), torch.tensor([1, 0, 3, 1]))])
def test_probabilities_of_paco_are_those_of_a_loop(gamma: float, others: Any) -> None:
    centers = 3 * rows(6, 4, seed=4)
    settings = dict(tau=0.3, gamma=gamma, others=others, anchors=4)
    found = functional.contrast_probabilities(*SAMPLES, centers, **settings)
    for i in range(4):
        members = reference.contrasts(i, *SAMPLES) + [
            (z, int(y)) for z, y in zip(*(others or ((), ())), strict=True)
        ]
        expected = reference.paco_probabilities(
            SAMPLES[0][i], int(LABELS[i]), members, centers[i], 0.3, gamma
        )
        assert [float(value[i]) for value in found] == pytest.approx(expected, rel=1e-10)
    assert all(len(value) == 4 for value in found)


def test_an_image_without_a_label_is_a_contrast_in_the_probabilities_as_in_the_loss() -> None:
    labels, queue_labels = torch.tensor([0, 1, 2, -1, -1, 3]), torch.tensor([-1, 7, 8, -1, 9])
    others = rows(4, seed=9), torch.tensor([-1, 5, -1, 6])
    given = (*SAMPLES[:2], labels, rows(5, seed=3), queue_labels)
    _, _, pair, positives = functional.contrast_probabilities(*given, tau=0.3, others=others)
    known = labels >= 0
    # of a labelled image the own key is the one positive, so the loss is -log of its probability
    assert positives.tolist() == [1, 1, 1, 0, 0, 1] and pair[~known].isnan().all()
    loss = functional.sup_con(*given, tau=0.3, others=others)
    torch.testing.assert_close(-pair[known].log().mean(), loss)


@pytest.mark.parametrize(
    ("reduction", "settings"),
    [
        ("mean", dict(alpha=0.05, beta=1.0, gamma=1.0)),
        ("sum", dict(alpha=0.3, beta=2.0, gamma=0.5)),
        ("mean", dict(alpha=0.05, beta=1.0, gamma=1.0, label_smoothing=0.2)),
    ],
)
def test_the_real_loss_of_free_scores_is_least_at_the_optimum(
    reduction: Any, settings: dict[str, Any]
) -> None:
    """Contrasts are orthogonal, so an anchor can have any scores with them."""
    basis = torch.eye(8, dtype=torch.float64)
    anchor, logits = (torch.zeros(1, d, dtype=torch.float64, requires_grad=True) for d in (8, 3))
    labels, queue_labels = torch.tensor([1]), torch.tensor([1, 0, 2, 1, -1, 1, 0])
    samples = anchor, basis[:1], labels, basis[1:], queue_labels
    log_prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    optimizer = torch.optim.LBFGS([anchor, logits], max_iter=2000, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.paco(*samples, logits, log_prior, tau=0.5, reduction=reduction, **settings)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    gamma = settings["gamma"]
    found = functional.contrast_probabilities(*samples, logits + log_prior, tau=0.5, gamma=gamma)
    assert found.positives.tolist() == [4]
    optimum = functional.paco_optimum(found.positives.double(), **settings)
    for a, b in zip(found, optimum, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=2e-3, atol=1e-5, check_dtype=False)


def test_centers_of_a_simplex_are_as_far_apart_as_can_be() -> None:
    simplex = torch.eye(4) - 0.25
    few = {"few": torch.arange(4) < 2}
    found = observe.center_figures(simplex * torch.arange(1, 5)[:, None], few)
    assert float(found["center_cosine"]) == pytest.approx(-1 / 3)
    assert float(found["center_norm_few"]) == pytest.approx(1.5 * 0.75**0.5)
    assert observe.center_figures(simplex[:1], {}) == {}


def test_means_leave_out_unknown_classes_and_rows_without_a_value() -> None:
    groups = {name: torch.arange(3) == c for c, name in enumerate(("many", "medium", "few"))}
    labels, values = torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, 2.0, 4.0, 8.0])
    found = observe.group_means("p_sup", values, labels, groups)
    assert [float(found[f"p_sup_{name}"]) for name in ("many", "medium")] == [1.5, 4.0]
    assert found["p_sup_few"].isnan()


def figures(labels: Tensor, **held: Any) -> dict[str, float]:
    """Of a step of an objective that says no more than `held`."""
    found = observe.figures_of(nn.Identity(), labels, held, {})  # type: ignore[arg-type]
    return {name: float(value) for name, value in found.items()}


def moments(scores: list[Tensor]) -> list[Any]:
    values = torch.stack(scores)
    return [pytest.approx(float(values.mean())), pytest.approx(float(values.var(correction=0)))]


@pytest.mark.parametrize("ft", ["", "_ft"])
def test_scores_are_parted_by_class(ft: str) -> None:
    q, queue = SAMPLES[0], SAMPLES[3]
    names = ("q", "k", "queue", "queue_labels", "valid")
    held = dict(zip(names, (q, q, queue, QUEUE_LABELS, torch.ones(9, dtype=torch.bool)), strict=True))
    if ft:
        held |= {f"{name}_ft": value for name, value in held.items()}
        held["queue"] = queue.roll(1, dims=0)
    found = figures(LABELS, **held, classes=LABELS)
    pairs = [(i, j) for i in range(6) for j in range(9) if QUEUE_LABELS[j] >= 0]
    for name, alike in (("same_class", True), ("negative", False)):
        scores = [q[i] @ queue[j] for i, j in pairs if (LABELS[i] == QUEUE_LABELS[j]) == alike]
        assert [found[f"{name}_score{ft}"], found[f"{name}_variance{ft}"]] == moments(scores)
    of_all = figures(LABELS, **held)  # without classes every filled key is a negative
    assert of_all[f"negative_score{ft}"] == pytest.approx(float((q @ queue.T).mean()))


def test_scores_in_a_batch_and_geometry_on_the_sphere() -> None:
    a, b, labels = rows(5, seed=1), rows(5, seed=2), torch.tensor([0, 0, 1, 1, -1])
    found = figures(labels, q=a, k=b)
    apart = [a[i] @ b[j] for i in range(5) for j in range(5) if i != j]
    assert [found["negative_score"], found["negative_variance"]] == moments(apart)
    assert found["positive_variance"] == moments([*(a * b).sum(dim=1)])[1]
    assert found["alignment"] == pytest.approx(float(reference.alignment(a, b)))
    assert found["uniformity"] == pytest.approx(float(reference.uniformity(a, 2.0)))
    assert found["tolerance"] == pytest.approx(float(reference.tolerance(a[:4], labels[:4])))
    alone = figures(labels[:1], q=a[:1], k=b[:1])
    assert math.isnan(alone["uniformity"]) and math.isnan(alone["tolerance"])


def test_variance_of_nearly_equal_scores_is_neither_negative_nor_rounding() -> None:
    """An encoder close to collapse: squares of scores near 1 differ by less than float32 holds."""
    g = torch.Generator().manual_seed(0)
    q, z = (F.normalize(1 + 1e-2 * torch.randn(n, 16, generator=g), dim=1) for n in (32, 64))
    scores = q.double() @ z.double()[:50].T
    mean, variance = observe.moments(q @ z.T, (torch.arange(64) < 50).expand(32, 64))
    assert mean.item() == pytest.approx(scores.mean().item(), rel=1e-6)
    assert variance.item() == pytest.approx(scores.var(correction=0).item(), rel=1e-3)
