"""What the source notes say about the losses, as numbers that autograd and minimisation must reproduce.

Scores are free variables where a test needs them so: with D = 1 and q = 1, a key is its own score.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo import functional

ONE = torch.ones(1, 1, dtype=torch.float64)
ZERO = torch.zeros(1, dtype=torch.long)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def unit(n: int, d: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def info_nce_of_scores(positive: float | Tensor, negatives: Tensor, tau: float) -> Tensor:
    """InfoNCE of one anchor whose scores are given."""
    return functional.info_nce(
        ONE, torch.as_tensor(positive, dtype=torch.float64).view(1, 1), negatives[:, None], tau=tau
    )


def score_gradients(
    loss: Callable[[Tensor, Tensor], Tensor], positive: float, negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """dL/ds_ii `[]` and dL/ds_ij `[K]` by autograd."""
    s_ii, s_ij = double(positive)[0].requires_grad_(), negatives.clone().requires_grad_()
    return torch.autograd.grad(loss(s_ii, s_ij), (s_ii, s_ij))


NEGATIVES = double(0.1, -0.5, 0.25, 0.8, -0.05)

# ---- temperature: arXiv 2012.09740 ------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0, 10.0])
@pytest.mark.parametrize("positive", [-0.4, 0.3, 0.95])
def test_gradients_with_respect_to_scores(positive: float, tau: float) -> None:
    """dL/ds_ij = P_ij / tau and dL/ds_ii = -(1/tau) sum_k P_ik: the positive's equals all negatives'."""
    pull, push = score_gradients(lambda p, n: info_nce_of_scores(p, n, tau), positive, NEGATIVES)
    e = [math.exp(s / tau) for s in (positive, *NEGATIVES.tolist())]
    p = [x / sum(e) for x in e[1:]]
    assert push.tolist() == pytest.approx([x / tau for x in p], rel=1e-9)
    assert pull.item() == pytest.approx(-sum(p) / tau, rel=1e-9)


@pytest.mark.parametrize(("positive", "limit"), [(0.7, 0.1), (0.95, 0.0)])
def test_small_tau_leaves_only_the_hardest_negative(positive: float, limit: float) -> None:
    """tau L -> max(s_max - s_ii, 0), with an error between 0 and tau log(1 + K), and exponentially small.

    The error is tau log(1 + e^{-gap/tau} + ...), gap from the largest score to the next.
    """
    gap = 0.1 if limit else 0.15  # 0.8 beats 0.7 by 0.1; 0.95 beats 0.8 by 0.15
    errors, taus = [], [0.08, 0.04, 0.02, 0.01]
    for tau in taus:
        loss = info_nce_of_scores(positive, NEGATIVES, tau)
        errors.append(tau * loss.item() - limit)
        assert 0 < errors[-1] <= tau * math.log(1 + len(NEGATIVES))
        pull, push = score_gradients(lambda p, n, t=tau: info_nce_of_scores(p, n, t), positive, NEGATIVES)
        assert push.argmax().item() == 3
    # log(error / tau) is a line in 1 / tau with slope -gap
    slope = math.log((errors[-1] / taus[-1]) / (errors[-2] / taus[-2])) / (1 / taus[-1] - 1 / taus[-2])
    assert slope == pytest.approx(-gap, rel=0.01)
    # the gradients' limits: 1/tau on the hardest pair and nothing elsewhere, or nothing at all
    weight = 1.0 if limit else 0.0
    assert (0.01 * push).tolist() == pytest.approx([0, 0, 0, weight, 0], abs=1e-4)
    assert 0.01 * pull.item() == pytest.approx(-weight, abs=1e-4)


def test_large_tau_weighs_every_negative_alike() -> None:
    """L -> -s_ii/tau + (1/(N tau)) sum_k s_ik + log N, k over all N candidates, the positive too.

    The error is var(s) / (2 tau^2) to leading order: it falls by four when tau doubles.
    """
    positive, n = 0.6, len(NEGATIVES) + 1
    scores = torch.cat([double(positive), NEGATIVES])
    errors = []
    for tau in (20.0, 40.0, 80.0, 160.0):
        limit = -positive / tau + scores.sum().item() / (n * tau) + math.log(n)
        errors.append(info_nce_of_scores(positive, NEGATIVES, tau).item() - limit)
        assert errors[-1] * tau**2 == pytest.approx(scores.var(correction=0).item() / 2, rel=0.5 / tau + 0.01)
    for coarse, fine in itertools.pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.02)


# ---- PaCo: arXiv 2107.12028 -------------------------------------------------------------------------------


def l_extra(p_sup: float, alpha_k: float) -> float:
    return -math.log(p_sup) - alpha_k * math.log(1 - p_sup)


def test_extra_loss_is_what_paco_adds_to_its_two_parts() -> None:
    """PaCo = L_sup + alpha L_supcon + L_extra, exactly: two softmaxes and how the mass is split between them.

    L_sup is the centers' cross-entropy, L_supcon the sum over the K* positives, P_sup the centers' mass.
    """
    alpha, tau = 0.05, 0.3
    q, k, queue = unit(1, 6, 0), unit(1, 6, 1), unit(12, 6, 2)
    queue_labels = torch.arange(12) % 3
    logits = double(1.2, -0.4, 0.3)[None]
    prior = double(0.7, 0.2, 0.1).log()
    positives = 1 + int((queue_labels == 0).sum())
    whole = functional.paco(
        q, k, ZERO, queue, queue_labels, logits, prior, alpha=alpha, tau=tau, reduction="sum"
    )
    l_sup = F.cross_entropy(logits + prior, ZERO)
    l_supcon = positives * functional.sup_con(q, k, ZERO, queue, queue_labels, tau=tau)
    samples = (q @ torch.cat([k, queue]).T / tau).exp().sum()
    centers = (logits + prior).exp().sum()
    extra = l_extra((centers / (centers + samples)).item(), alpha * positives)
    assert whole.item() == pytest.approx((l_sup + alpha * l_supcon).item() + extra, rel=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_paco_without_samples_is_balanced_softmax(smoothing: float) -> None:
    """alpha = 0, gamma = 0. GPaCo's smoothing eps is torch's eps C/(C - 1): the own class takes no part."""
    counts, g = torch.tensor([100, 40, 9, 1]), torch.Generator().manual_seed(7)
    labels, queue_labels = torch.randint(4, (6,), generator=g), torch.randint(-1, 4, (11,), generator=g)
    q, k, queue = unit(6, 5, 0), unit(6, 5, 1), unit(11, 5, 2)
    logits = torch.randn(6, 4, generator=g, dtype=torch.float64)
    given = (q, k, labels, queue, queue_labels, logits, functional.log_prior(counts))
    found = functional.paco(*given, alpha=0.0, gamma=0.0, tau=0.2, label_smoothing=smoothing)
    expected = functional.balanced_softmax(logits, labels, counts, label_smoothing=smoothing * 4 / 3)
    torch.testing.assert_close(found, expected)
