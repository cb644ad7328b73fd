"""What is recorded of scores, probabilities and centers, against loops in float64 and cases by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from zoo import functional
from zoo.objectives import measures


def rows(count: int, dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator, dtype=torch.float64), dim=1)


LABELS = torch.tensor([0, 1, 0, 2, 1, 3])
QUEUE_LABELS = torch.tensor([0, 0, 1, -1, 2, 2, 1, 0, -1])


def problem() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return dict(
        q=rows(6, seed=1),
        k=rows(6, seed=2),
        labels=LABELS,
        queue=rows(9, seed=3),
        queue_labels=QUEUE_LABELS,
        center_logits=torch.randn(6, 4, generator=generator, dtype=torch.float64),
        log_prior=torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log(),
    )


def probabilities(
    given: dict[str, Any], *, center_tau: float = 1.0, **settings: Any
) -> functional.Probabilities:
    """Those of PaCo, whose centers are given as for the loss."""
    centers = (given["center_logits"] + given["log_prior"]) / center_tau
    samples = {key: given[key] for key in ("q", "k", "labels", "queue", "queue_labels")}
    return functional.contrast_probabilities(**samples, centers=centers, **settings)


@pytest.mark.parametrize(("gamma", "center_tau"), [(1.0, 1.0), (0.5, 0.7), (0.0, 1.0)])
@pytest.mark.parametrize("others", [None, (rows(4, seed=9), torch.tensor([1, 0, 3, 1]))])
def test_probabilities_of_paco_are_those_of_a_loop(
    gamma: float, center_tau: float, others: tuple[Tensor, Tensor] | None
) -> None:
    found = probabilities(problem(), tau=0.3, gamma=gamma, center_tau=center_tau, others=others, anchors=4)
    for i in range(4):
        expected = reference.paco_probabilities_of_anchor(
            i, **problem(), tau=0.3, gamma=gamma, center_tau=center_tau, others=others
        )
        assert [float(value[i]) for value in found] == pytest.approx(expected, rel=1e-10)
    assert all(len(value) == 4 for value in found)


def test_an_image_without_a_label_is_a_contrast_in_the_probabilities_as_in_the_loss() -> None:
    labels, queue_labels = torch.tensor([0, 1, 2, -1, -1, 3]), torch.tensor([-1, 7, 8, -1, 9])
    others = rows(4, seed=9), torch.tensor([-1, 5, -1, 6])
    given = dict(q=rows(6, seed=1), k=rows(6, seed=2), queue=rows(5, seed=3), queue_labels=queue_labels)
    _, _, pair, positives = functional.contrast_probabilities(**given, labels=labels, tau=0.3, others=others)
    known = labels >= 0
    # of a labelled image the own key is the one positive, so the loss is -log of its probability
    assert positives.tolist() == [1, 1, 1, 0, 0, 1] and pair[~known].isnan().all()
    loss = functional.sup_con(**given, labels=labels, tau=0.3, others=others)
    torch.testing.assert_close(-pair[known].log().mean(), loss)


def test_what_is_observed_of_images_without_labels_is_of_the_others() -> None:
    values = {"pair_probability": torch.tensor([0.25, torch.nan, 0.75])}
    found = measures.measure(measures.seen(torch.tensor([0, -1, 1]), values=values), groups=None)  # type: ignore[arg-type]
    assert float(found["pair_probability"]) == 0.5


def test_probabilities_of_sup_con_are_those_of_paco_without_centers() -> None:
    given = problem()
    nowhere = probabilities(given | {"center_logits": given["center_logits"] - 1e4}, tau=0.3)
    samples = {key: given[key] for key in ("q", "k", "labels", "queue", "queue_labels")}
    _, _, pair, positives = functional.contrast_probabilities(**samples, tau=0.3)
    torch.testing.assert_close(pair, nowhere.pair)
    assert positives.tolist() == nowhere.positives.tolist() == [6, 5, 6, 3, 5, 1]


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "smoothing", "reduction"),
    [(0.05, 1.0, 1.0, 0.0, "mean"), (0.3, 2.0, 0.5, 0.0, "sum"), (0.05, 1.0, 1.0, 0.2, "mean")],
)
def test_the_real_loss_of_free_scores_is_least_at_the_optimum(
    alpha: float, beta: float, gamma: float, smoothing: float, reduction: Any
) -> None:
    """Contrasts are orthogonal, so an anchor can have any scores with them."""
    basis = torch.eye(8, dtype=torch.float64)
    anchor = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    given: dict[str, Any] = dict(
        k=basis[:1],
        labels=torch.tensor([1]),
        queue=basis[1:],
        queue_labels=torch.tensor([1, 0, 2, 1, -1, 1, 0]),
        log_prior=torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log(),
    )
    optimizer = torch.optim.LBFGS([anchor, logits], max_iter=2000, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.paco(
            anchor,
            **given,
            center_logits=logits,
            tau=0.5,
            alpha=alpha,
            beta=beta,
            gamma=gamma,
            label_smoothing=smoothing,
            reduction=reduction,
        )
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    found = probabilities(given | {"q": anchor, "center_logits": logits}, tau=0.5, gamma=gamma)
    assert found.positives.tolist() == [4]
    optimum = functional.paco_optimum(
        found.positives.double(), alpha=alpha, beta=beta, gamma=gamma, label_smoothing=smoothing
    )
    for name, a, b in zip(found._fields, found, optimum, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=2e-3, atol=1e-5, check_dtype=False, msg=name)


def test_the_papers_optima() -> None:
    """science.md: q* = 0.001, |queue| = 8192, alpha = 0.05."""
    found = functional.paco_optimum(torch.tensor([8.192]), alpha=0.05)
    assert float(found.p_sup) == pytest.approx(0.71, abs=0.005)
    assert float(found.pair) == pytest.approx(0.035, abs=0.0005)
    assert float(found.center) == float(found.p_sup)


def test_moments_of_chosen_pairs() -> None:
    scores = torch.tensor([[1.0, 2.0, 30.0], [4.0, -5.0, 6.0], [7.0, 8.0, 9.0]])
    chosen = torch.tensor([[True, True, False], [False, False, True], [False, False, False]])
    moments = functional.anchor_moments(scores, chosen)
    assert moments[:2].tolist() == [[1.5, 0.25, 2], [6, 0, 1]]
    assert moments[2].isnan().tolist() == [True, True, False] and moments[2, 2] == 0
    mean, variance = functional.pooled_moments(moments)
    assert (float(mean), float(variance)) == pytest.approx((3.0, 14 / 3))
    nowhere = functional.anchor_moments(scores, torch.zeros_like(chosen))
    assert all(value.isnan() for value in functional.pooled_moments(nowhere))


def test_centers_of_a_simplex_are_as_far_apart_as_can_be() -> None:
    simplex = torch.eye(4) - 0.25
    assert float(functional.center_cosine(7 * simplex)) == pytest.approx(-1 / 3)
    weight = rows(7)
    pairs = [float(weight[a] @ weight[b]) for a in range(7) for b in range(7) if a != b]
    scaled = weight * torch.arange(1, 8)[:, None]
    assert float(functional.center_cosine(scaled)) == pytest.approx(sum(pairs) / len(pairs))
    assert functional.center_cosine(weight[:1]).isnan()


def test_means_of_groups_leave_out_unknown_classes_and_are_nan_without_a_value() -> None:
    members = torch.tensor([[True, False, False], [False, True, False], [False, False, True]])
    values = torch.tensor([1.0, 2.0, 4.0, torch.nan])
    found = functional.group_means(values, torch.tensor([0, 0, 1, -1]), members)
    assert found[:2].tolist() == [1.5, 4.0] and found[2].isnan()


def test_tolerance_takes_unknown_classes_for_no_class() -> None:
    z = rows(5)
    found = functional.tolerance(z, torch.tensor([0, -1, 0, -1, 2]))
    assert float(found) == pytest.approx(float(z[0] @ z[2]))
    assert functional.tolerance(z, torch.tensor([0, -1, 1, -1, 2])).isnan()


def test_scores_are_parted_by_class() -> None:
    q, queue = rows(6, seed=1), rows(9, seed=3)
    scores_of = measures.scores_by_class(q, LABELS, queue, QUEUE_LABELS)
    given = {f"{name}_ft": moments for name, moments in scores_of.items()}
    found = measures.measure(measures.seen(LABELS, scores=given), measures.Groups((), torch.zeros(0, 4)))
    pairs: dict[str, list[float]] = {"same_class": [], "negative": []}
    for i, j in ((i, j) for i in range(6) for j in range(9) if QUEUE_LABELS[j] >= 0):
        same = LABELS[i] == QUEUE_LABELS[j]
        pairs["same_class" if same else "negative"].append(float(q[i] @ queue[j]))
    for name, scores in pairs.items():
        expected = torch.tensor(scores, dtype=torch.float64)
        assert float(found[f"{name}_score_ft"]) == pytest.approx(float(expected.mean()))
        assert float(found[f"{name}_variance_ft"]) == pytest.approx(float(expected.var(correction=0)))


def test_scores_in_a_batch_and_geometry_on_the_sphere() -> None:
    a, b = rows(5, seed=1), rows(5, seed=2)
    scores_of = measures.scores_in_batch(a, b)
    labels = torch.zeros(5, dtype=torch.int64)
    found = measures.measure(measures.seen(labels, scores=scores_of), measures.Groups((), torch.zeros(0, 4)))
    apart = torch.stack([a[i] @ b[j] for i in range(5) for j in range(5) if i != j])
    assert float(found["negative_score"]) == pytest.approx(float(apart.mean()))
    assert float(found["negative_variance"]) == pytest.approx(float(apart.var(correction=0)))
    of_pairs = (a * b).sum(dim=1)
    assert float(found["positive_variance"]) == pytest.approx(float(of_pairs.var(correction=0)))
    sphere = measures.sphere(a, b, torch.tensor([0, 0, 1, 1, -1]))
    assert float(sphere["alignment"]) == pytest.approx(float((2 - 2 * of_pairs).mean()))
    potentials = [math.exp(-2 * float((a[i] - a[j]).square().sum())) for i in range(5) for j in range(i)]
    assert float(sphere["uniformity"]) == pytest.approx(math.log(sum(potentials) / len(potentials)))
    assert float(sphere["tolerance"]) == pytest.approx(float(a[0] @ a[1] + a[2] @ a[3]) / 2)
    alone = measures.sphere(a[:1], b[:1], torch.tensor([0]))
    assert alone["uniformity"].isnan() and alone["tolerance"].isnan() and alone.keys() == sphere.keys()
