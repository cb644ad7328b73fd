"""Each equation on a case small enough to work out by hand, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import zoo
from zoo import functional

EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


def unit(n: int, d: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)


def rows(*vectors: list[float]) -> Tensor:
    return torch.tensor(vectors)


def labels(*values: int) -> Tensor:
    return torch.tensor(values)


def paco(**changes: object) -> float:
    """One anchor of class 0: own key at 1, other-class queue key at 0; centers' logits 2 and 0."""
    given = dict(alpha=0.5, tau=1.0, labels=labels(0), log_prior=torch.zeros(2)) | changes
    q, logits = rows(EAST), torch.tensor([[2.0, 0.0]])
    queued = dict(queue=rows(NORTH), queue_labels=labels(1))
    return functional.paco(q, q, center_logits=logits, **queued, **given).item()


SCORED = rows([0.9, 0.0], [0.5, 0.0], [0.1, 0.0], [-0.3, 0.0], [-0.7, 0.0])


def test_extrapolation() -> None:
    q_hat, k_hat = functional.extrapolate(rows(EAST), rows(NORTH), 1.5)
    torch.testing.assert_close(q_hat, rows([1.5, -0.5]))
    torch.testing.assert_close(k_hat, rows([-0.5, 1.5]))
    # one for each of two pairs in two dimensions: not one for each dimension
    q, k, lam = rows(EAST, EAST), rows(NORTH, NORTH), torch.tensor([1.5, 2.0])
    torch.testing.assert_close(functional.extrapolate(q, k, lam)[0], rows([1.5, -0.5], [2.0, -1.0]))


def test_interpolation() -> None:
    lam = torch.tensor([[0.75], [0.5]])
    found = functional.interpolate(rows(EAST, NORTH), lam, labels(1, 0))
    torch.testing.assert_close(found, rows([0.75, 0.25], [0.5, 0.5]))
    torch.testing.assert_close(functional.interpolate(rows(EAST, NORTH), lam[:, 0], labels(1, 0)), found)
    found = functional.interpolate(rows(EAST, NORTH, WEST), 0.75, labels(1, 2, 0))
    torch.testing.assert_close(found, rows([0.75, 0.25], [-0.25, 0.75], [-0.5, 0.0]))


def test_ema_update() -> None:
    teacher = [torch.tensor([1.0, 2.0]), torch.ones((), requires_grad=True)]
    student = [torch.tensor([3.0, 2.0]), torch.tensor(0.0)]
    functional.ema_update(teacher, student, 0.75)
    assert [each.tolist() for each in (*teacher, *student)] == [[1.5, 2.0], 0.75, [3.0, 2.0], 0.0]


SAMPLES = (rows(EAST), rows(EAST), labels(0), rows(NORTH), labels(1))


@pytest.mark.parametrize("tau", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize(
    "loss",
    [
        lambda tau: functional.info_nce(rows(EAST), rows(EAST), SCORED, tau=tau),
        lambda tau: functional.in_batch_info_nce(rows(EAST), rows(EAST), tau=tau),
        lambda tau: functional.hard_contrastive(rows(EAST), rows(EAST), SCORED, tau=tau, keep=0.5),
        lambda tau: functional.sup_con(*SAMPLES, tau=tau),
        lambda tau: functional.balanced_contrast(*SAMPLES[:3], rows(EAST, NORTH), tau=tau),
        lambda tau: functional.distillation(rows(EAST), rows(EAST)[None], tau=tau),
        lambda tau: paco(tau=tau),
    ],
)
def test_a_temperature_is_above_zero(loss, tau: float) -> None:
    with pytest.raises(zoo.ZooError, match=f"tau: found {tau}, expected a finite number above 0"):
        loss(tau)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("alpha", lambda: functional.sample_beta(0.5, (2,))),
        ("alpha", lambda: functional.sample_beta(math.nan, (2,))),
        ("alpha", lambda: paco(alpha=-0.1)),
        ("gamma", lambda: paco(gamma=-1.0)),
        ("center_tau", lambda: paco(center_tau=0.0)),
        ("label_smoothing", lambda: paco(label_smoothing=1.5)),
        ("reduction", lambda: paco(reduction="total")),
        ("teacher_logits", lambda: functional.distillation(rows(EAST), rows(EAST), tau=1.0)),
        *(
            ("keep", lambda keep=keep: functional.hard_simple(*SAMPLES[:2], SCORED, weight=1.0, keep=keep))
            for keep in (0.0, -0.1, 1.1, math.nan)
        ),
    ],
)
def test_what_an_equation_does_not_hold_for_is_named(name: str, call) -> None:
    with pytest.raises(zoo.errors.ArgumentError, match=f"{name}: found"):
        call()


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused_and_not_the_last_one(label: int) -> None:
    given, prototypes = (rows(EAST), rows(EAST), labels(label)), rows(EAST, NORTH)
    with pytest.raises(zoo.errors.ArgumentError, match=f"labels: found {label} to {label}"):
        functional.balanced_contrast(*given, prototypes, tau=1.0)
    with pytest.raises(zoo.errors.ArgumentError, match=f"labels: found {label} to {label}"):
        paco(labels=labels(label))


# --- identities of the papers -----------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0, 10.0])
def test_the_gradients_of_scores_are_the_negatives_probabilities(tau: float) -> None:
    """dL/ds_ij = P_ij / tau, dL/ds_ii = -(1/tau) sum_k P_ik (arXiv 2012.09740); q = 1: keys are scores."""
    positive, negatives = (torch.tensor(s, dtype=torch.float64)[:, None] for s in ([0.3], [0.1, -0.5, 0.8]))
    loss = functional.info_nce(
        torch.ones_like(positive), positive.requires_grad_(), negatives.requires_grad_(), tau=tau
    )
    pull, push = torch.autograd.grad(loss, (positive, negatives))
    p = (torch.cat([positive, negatives]) / tau).softmax(dim=0)[1:]
    torch.testing.assert_close(push, p / tau)
    torch.testing.assert_close(pull, -p.sum(dim=0, keepdim=True) / tau)


def test_paco_is_its_two_parts_and_the_split_of_the_mass_between_them() -> None:
    """PaCo = L_sup + alpha L_supcon - log P_sup - alpha K* log(1 - P_sup), for K* positives."""
    alpha, tau, label = 0.05, 0.3, labels(0)
    q, k, queue, queue_labels = unit(1, 6, 0), unit(1, 6, 1), unit(12, 6, 2), torch.arange(12) % 3
    logits = torch.tensor([[1.2, -0.4, 0.3]], dtype=torch.float64)
    prior = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    contrast = (q, k, label, queue, queue_labels)
    whole = functional.paco(*contrast, logits, prior, alpha=alpha, tau=tau, reduction="sum")
    l_supcon = 5 * functional.sup_con(*contrast, tau=tau)  # its own key and four of the queue
    centers, samples = (logits + prior).exp().sum(), (q @ torch.cat([k, queue]).T / tau).exp().sum()
    p_sup = centers / (centers + samples)
    extra = -p_sup.log() - alpha * 5 * (1 - p_sup).log()
    torch.testing.assert_close(whole, F.cross_entropy(logits + prior, label) + alpha * l_supcon + extra)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_paco_without_samples_is_balanced_softmax(smoothing: float) -> None:
    """alpha = 0, gamma = 0. GPaCo's smoothing eps is torch's eps C/(C - 1): the own class takes no part."""
    counts, g = torch.tensor([100, 40, 9, 1]), torch.Generator().manual_seed(7)
    own, queue_labels = torch.randint(4, (6,), generator=g), torch.randint(-1, 4, (11,), generator=g)
    logits = torch.randn(6, 4, generator=g, dtype=torch.float64)
    given = (unit(6, 5, 0), unit(6, 5, 1), own, unit(11, 5, 2), queue_labels, logits)
    settings = dict(alpha=0.0, gamma=0.0, tau=0.2, label_smoothing=smoothing)
    found = functional.paco(*given, functional.log_prior(counts), **settings)
    expected = functional.balanced_softmax(logits, own, counts, label_smoothing=smoothing * 4 / 3)
    torch.testing.assert_close(found, expected)
