"""Losses against slow float64 references and hand-computed cases; theory as numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from zoo import functional


def unit(n: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1).to(dtype)


def integers(high: int, n: int, seed: int) -> Tensor:
    return torch.randint(high, (n,), generator=torch.Generator().manual_seed(seed))


def assert_same_with_gradients(ours, theirs, inputs: list[Tensor], rtol: float = 1e-9) -> None:
    for x in inputs:
        x.requires_grad_(True)
    a, b = ours(), theirs()
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-10)
    grads_a = torch.autograd.grad(a, inputs, allow_unused=True)
    grads_b = torch.autograd.grad(b, inputs, allow_unused=True)
    for ga, gb, x in zip(grads_a, grads_b, inputs, strict=True):
        zero = torch.zeros_like(x)
        torch.testing.assert_close(
            zero if ga is None else ga, zero if gb is None else gb, rtol=rtol, atol=1e-9
        )


SHAPES = [(1, 1, 2), (3, 7, 4), (5, 16, 8), (4, 0, 3)]
TAUS = [0.01, 0.07, 0.5, 10.0]


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize(("n", "k", "d"), SHAPES)
def test_info_nce_equals_reference(n: int, k: int, d: int, tau: float) -> None:
    q, key, queue = unit(n, d, 0), unit(n, d, 1), unit(k, d, 2)
    assert_same_with_gradients(
        lambda: functional.info_nce(q, key, queue, tau=tau),
        lambda: reference.info_nce(q, key, queue, tau),
        [q, key, queue],
    )


def test_info_nce_by_hand() -> None:
    # s+ = 1, s- = 0 and -1, tau = 1: -log e / (e + 1 + 1/e)
    q = torch.tensor([[1.0, 0.0]])
    queue = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    expected = -math.log(math.e / (math.e + 1 + 1 / math.e))
    assert functional.info_nce(q, q, queue, tau=1.0).item() == pytest.approx(expected, rel=1e-6)


def test_info_nce_ignores_slots_that_are_not_filled() -> None:
    q, k, queue = unit(4, 8, 0), unit(4, 8, 1), unit(10, 8, 2)
    valid = torch.arange(10) < 6
    got = functional.info_nce(q, k, queue, tau=0.1, valid=valid)
    torch.testing.assert_close(got, reference.info_nce(q, k, queue[:6], 0.1))
    empty = functional.info_nce(q, k, queue, tau=0.1, valid=torch.zeros(10, dtype=torch.bool))
    assert empty.item() == 0.0  # the positive is alone in its softmax


def test_info_nce_in_half_precision_is_computed_in_full() -> None:
    q, k, queue = (unit(n, 16, s).to(torch.bfloat16) for s, n in enumerate((4, 4, 32)))
    exact = reference.info_nce(q, k, queue, 0.05)
    got = functional.info_nce(q, k, queue, tau=0.05)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = functional.info_nce(q.float(), k.float(), queue.float(), tau=0.05)
    torch.testing.assert_close(inside.double(), exact, rtol=1e-5, atol=1e-6)


LABELS = {
    "mixed": (lambda n: integers(3, n, 5), lambda k: integers(3, k, 6)),
    "one class": (lambda n: torch.zeros(n, dtype=torch.long), lambda k: torch.zeros(k, dtype=torch.long)),
    "class absent from the queue": (lambda n: torch.full((n,), 2), lambda k: integers(2, k, 6)),
    "half-filled queue": (
        lambda n: integers(3, n, 5),
        lambda k: torch.where(torch.arange(k) < k // 2, integers(3, k, 6), -1),
    ),
}


@pytest.mark.parametrize("tau", [0.05, 1.0])
@pytest.mark.parametrize("case", LABELS)
@pytest.mark.parametrize(("n", "k", "d"), SHAPES)
def test_sup_con_equals_reference(n: int, k: int, d: int, case: str, tau: float) -> None:
    q, key, queue = unit(n, d, 0), unit(n, d, 1), unit(k, d, 2)
    labels, queue_labels = LABELS[case][0](n), LABELS[case][1](k)
    assert_same_with_gradients(
        lambda: functional.sup_con(q, key, labels, queue, queue_labels, tau=tau),
        lambda: reference.sup_con(q, key, labels, queue, queue_labels, tau),
        [q, key, queue],
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("case", LABELS)
@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "center_tau", "tau"),
    [
        (0.05, 1.0, 1.0, 1.0, 0.2),
        (0.01, 1.0, 1.0, 1.0, 0.05),
        (0.3, 0.7, 0.4, 2.0, 0.07),
        (0.0, 1.0, 0.0, 1.0, 1.0),
    ],
)
def test_paco_equals_reference(
    case: str, alpha: float, beta: float, gamma: float, center_tau: float, tau: float, reduction: str
) -> None:
    n, k, d, c = 5, 13, 6, 4  # 13 keys: no multiple of the batch; class 3 appears nowhere
    q, key, queue = unit(n, d, 0), unit(n, d, 1), unit(k, d, 2)
    labels, queue_labels = LABELS[case][0](n), LABELS[case][1](k)
    logits = torch.randn(n, c, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    prior = [0.6, 0.3, 0.08, 0.02]
    settings = dict(alpha=alpha, tau=tau, beta=beta, gamma=gamma, center_tau=center_tau, reduction=reduction)
    assert_same_with_gradients(
        lambda: functional.paco(
            q,
            key,
            labels,
            queue,
            queue_labels,
            logits,
            torch.tensor(prior, dtype=torch.float64).log(),
            **settings,
        ),
        lambda: reference.paco(q, key, labels, queue, queue_labels, logits, prior, **settings),
        [q, key, queue, logits],
    )


def test_paco_by_hand() -> None:
    # one anchor, other-class queue key at score 0, own key at 1; two plain centers with logits 2 and 0
    q = torch.tensor([[1.0, 0.0]])
    queue, queue_labels = torch.tensor([[0.0, 1.0]]), torch.tensor([1])
    logits = torch.tensor([[2.0, 0.0]])
    total = math.e**2 + 1 + math.e + 1
    expected = -(math.log(math.e**2 / total) + 0.5 * math.log(math.e / total)) / 1.5
    got = functional.paco(
        q, q, torch.tensor([0]), queue, queue_labels, logits, torch.zeros(2), alpha=0.5, tau=1.0
    )
    assert got.item() == pytest.approx(expected, rel=1e-6)


def test_paco_without_samples_is_balanced_softmax() -> None:
    logits, labels = torch.randn(8, 5), integers(5, 8, 1)
    counts = torch.tensor([100, 50, 20, 5, 1])
    got = functional.paco(
        unit(8, 4, 0).float(),
        unit(8, 4, 1).float(),
        labels,
        torch.zeros(0, 4),
        torch.zeros(0, dtype=torch.long),
        logits,
        functional.log_prior(counts),
        alpha=0.0,
        gamma=0.0,
        tau=0.1,
    )
    torch.testing.assert_close(got, functional.balanced_softmax(logits, labels, counts))


def test_paco_optimum_over_free_scores() -> None:
    """Minimising over free scores gives alpha/(1 + alpha K) to a pair and 1/(1 + alpha K) to the center."""
    alpha, positives = 0.05, 8
    q = torch.ones(1, 1, dtype=torch.float64)  # with D = 1 every key is its own score
    k = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    queue = torch.zeros(positives - 1, 1, dtype=torch.float64, requires_grad=True)
    center = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    label = torch.zeros(1, dtype=torch.long)
    optimizer = torch.optim.LBFGS(
        [k, queue, center],
        max_iter=500,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-12,
        tolerance_change=0,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.paco(
            q,
            k,
            label,
            queue,
            label.expand(positives - 1),
            center,
            torch.zeros(1, dtype=torch.float64),
            alpha=alpha,
            tau=1.0,
            reduction="sum",
        )
        loss.backward()
        return loss

    optimizer.step(closure)
    p = torch.cat([center, k, queue]).detach().softmax(0)
    assert p[0].item() == pytest.approx(1 / (1 + alpha * positives), rel=1e-6)
    assert p[1:].flatten().tolist() == pytest.approx([alpha / (1 + alpha * positives)] * positives, rel=1e-6)


def test_balanced_softmax_by_hand() -> None:
    # equal logits: the probability is the prior itself
    counts = torch.tensor([90, 10])
    loss = functional.balanced_softmax(torch.zeros(1, 2), torch.tensor([1]), counts)
    assert loss.item() == pytest.approx(-math.log(0.1), rel=1e-5)


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.13])
def test_simple_and_hard_losses_equal_references(keep: float) -> None:
    q, k, queue = unit(4, 6, 0), unit(4, 6, 1), unit(11, 6, 2)
    if keep == 1.0:
        assert_same_with_gradients(
            lambda: functional.simple_contrastive(q, k, queue, weight=0.3),
            lambda: reference.simple(q, k, queue, 0.3, 1.0),
            [q, k, queue],
        )
    assert_same_with_gradients(
        lambda: functional.hard_simple(q, k, queue, weight=0.3, keep=keep),
        lambda: reference.simple(q, k, queue, 0.3, keep),
        [q, k, queue],
    )
    assert_same_with_gradients(
        lambda: functional.hard_contrastive(q, k, queue, tau=0.2, keep=keep),
        lambda: reference.hard_info_nce(q, k, queue, 0.2, keep),
        [q, k, queue],
    )


def test_hard_losses_take_the_quantile_of_filled_slots_only() -> None:
    q, k, queue = unit(4, 6, 0), unit(4, 6, 1), unit(11, 6, 2)
    got = functional.hard_contrastive(q, k, queue, tau=0.2, keep=0.5, valid=torch.arange(11) < 7)
    torch.testing.assert_close(got, reference.hard_info_nce(q, k, queue[:7], 0.2, 0.5))


@pytest.mark.parametrize("squared", [False, True])
def test_margin_equals_reference(squared: bool) -> None:
    a, b = unit(9, 5, 0), unit(9, 5, 1)
    same = torch.arange(9) % 3 == 0
    assert_same_with_gradients(
        lambda: functional.margin_contrastive(a, b, same, margin=1.3, squared_margin=squared),
        lambda: reference.margin(a, b, same, 1.3, squared),
        [a, b],
    )


def test_margin_gradient_is_finite_where_two_images_coincide() -> None:
    a = torch.ones(1, 3, requires_grad=True)
    functional.margin_contrastive(a, torch.ones(1, 3), torch.tensor([False]), margin=1.0).backward()
    assert a.grad is not None
    assert torch.isfinite(a.grad).all()


def test_gradients_with_respect_to_scores_are_those_of_the_temperature_paper() -> None:
    """dL/ds_ii = -(1/tau) sum_k P_ik; dL/ds_ij = P_ij / tau (arXiv 2012.09740, section 3)."""
    tau = 0.2
    # scores are free when q is a one-hot row that selects them
    s_pos = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    s_neg = torch.tensor([[0.1], [-0.5], [0.25]], dtype=torch.float64, requires_grad=True)
    functional.info_nce(torch.ones(1, 1, dtype=torch.float64), s_pos, s_neg, tau=tau).backward()
    p = (torch.cat([s_pos, s_neg]).detach() / tau).softmax(0)
    torch.testing.assert_close(s_neg.grad, p[1:] / tau)
    torch.testing.assert_close(s_pos.grad, -p[1:].sum().view(1, 1) / tau)


@pytest.mark.parametrize("alpha", [0.75, 1.6, 2.0, 8.0])
def test_symmetric_beta_passes_kolmogorov_smirnov(alpha: float) -> None:
    from scipy.stats import beta, kstest

    x = functional.sample_beta(alpha, (20_000,), generator=torch.Generator().manual_seed(0))
    assert kstest(x.numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


def test_symmetric_beta_refuses_what_the_closed_form_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"0\.5"):
        functional.sample_beta(0.5, (3,))


def test_extrapolation_lowers_the_positive_score_by_the_stated_amount() -> None:
    q, k = unit(16, 8, 0), unit(16, 8, 1)
    lam = 1 + torch.rand(16, 1, dtype=torch.float64)
    q_hat, k_hat = functional.extrapolate(q, k, lam)
    s, s_hat = (q * k).sum(1), (q_hat * k_hat).sum(1)
    lam = lam.squeeze(1)
    torch.testing.assert_close(s_hat, 2 * lam * (1 - lam) * (1 - s) + s)
    assert (s_hat <= s + 1e-12).all()


def test_interpolation_by_hand() -> None:
    queue = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    got = functional.interpolate(queue, torch.tensor([[0.75], [0.5]]), torch.tensor([1, 0]))
    torch.testing.assert_close(got, torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_ema_update_by_hand() -> None:
    teacher, student = (
        [torch.tensor([1.0, 2.0]), torch.tensor(4.0)],
        [torch.tensor([3.0, 2.0]), torch.tensor(0.0)],
    )
    functional.ema_update(teacher, student, 0.75)
    torch.testing.assert_close(teacher[0], torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(teacher[1], torch.tensor(3.0))


def test_diagnostics_equal_double_loops() -> None:
    z, other, labels = unit(12, 4, 0), unit(12, 4, 1), integers(3, 12, 2)
    pairs = [(i, j) for i in range(12) for j in range(12) if i != j]
    potential = sum(math.exp(-2 * float((z[i] - z[j]).square().sum())) for i, j in pairs) / len(pairs)
    assert functional.uniformity(z).item() == pytest.approx(math.log(potential), rel=1e-9)
    squared = [float((z[i] - other[i]).square().sum()) for i in range(12)]
    assert functional.alignment(z, other).item() == pytest.approx(sum(squared) / 12, rel=1e-9)
    same = [float(z[i] @ z[j]) for i, j in pairs if labels[i] == labels[j]]
    assert functional.tolerance(z, labels).item() == pytest.approx(sum(same) / len(same), rel=1e-9)


def test_score_moments_equal_those_of_the_score_matrix() -> None:
    q, z = unit(7, 5, 0), unit(20, 5, 1)
    valid = torch.arange(20) < 13
    scores = q @ z[:13].T
    mean, variance = functional.score_moments(q, z, valid)
    assert mean.item() == pytest.approx(scores.mean().item(), rel=1e-9)
    assert variance.item() == pytest.approx(scores.var(correction=0).item(), rel=1e-9)
