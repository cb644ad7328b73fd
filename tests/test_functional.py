"""Equations on cases small enough to work out by hand, and what they refuse."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.test_functional_references import LOSSES, problem
from zoo import functional
from zoo.errors import ArgumentError

EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


def rows(*vectors: list[float]) -> Tensor:
    return torch.tensor(vectors)


def labels(*values: int) -> Tensor:
    return torch.tensor(values)


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


Q = rows(EAST), rows(EAST)
COUNTED = dict(logits=torch.zeros(2, 3), labels=labels(0, 2))
NO_TAU = [0.0, -0.1, math.nan, math.inf]


def with_tau(name: str) -> Callable[[float], Tensor]:
    return lambda tau: LOSSES[name].ours(problem(tau=tau, dtype=torch.float32))


def paco(label: int = 0, **changes: Any) -> Tensor:
    given = dict(alpha=0.5, tau=1.0) | changes
    samples = (*Q, labels(label), rows(NORTH), labels(1))
    return functional.paco(*samples, center_logits=rows([2.0, 0.0]), log_prior=torch.zeros(2), **given)


@pytest.mark.parametrize(
    ("name", "values", "call"),
    [
        *(("tau", NO_TAU, with_tau(name)) for name, loss in LOSSES.items() if "tau" in loss.inputs),
        ("tau", [0.0], lambda x: functional.distillation(rows(EAST), rows(EAST)[None], tau=x)),
        ("alpha", [0.5, math.nan], lambda x: functional.sample_beta(x, (2,))),
        ("alpha", [-0.1], lambda x: paco(alpha=x)),
        ("gamma", [-1.0], lambda x: paco(gamma=x)),
        ("center_tau", [0.0], lambda x: paco(center_tau=x)),
        ("label_smoothing", [1.5], lambda x: paco(label_smoothing=x)),
        ("reduction", ["total"], lambda x: paco(reduction=x)),
        ("teacher_logits", [1], lambda _: functional.distillation(rows(EAST), rows(EAST), tau=1.0)),
        ("keep", [0.0, 1.1, math.nan], lambda x: functional.hard_simple(*Q, rows(EAST), weight=1.0, keep=x)),
        ("beta", [1.0], lambda x: functional.class_balanced_weights([1], beta=x)),
    ],
)
def test_what_an_equation_refuses_is_named(name: str, values: list[Any], call: Callable[[Any], Any]) -> None:
    for value in values:
        with pytest.raises(ArgumentError, match=f"{name}: found"):
            call(value)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused_and_not_the_last_one(label: int) -> None:
    given = torch.zeros(1, 3), labels(label)
    for equation in (
        lambda: functional.balanced_contrast(*Q, labels(label), torch.eye(3)[:, :2], tau=1.0),
        lambda: paco(label),
        lambda: functional.balanced_softmax(*given, [5, 3, 1]),
        lambda: functional.ldam(*given, [5, 3, 1], max_margin=0.5, scale=30.0),
        lambda: functional.class_means(*given, 3),
    ):
        with pytest.raises(ArgumentError, match=f"labels: found {label} to {label}, expected classes 0 to"):
            equation()


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([500], r"shape \[1\], expected \[3\]"),  # would broadcast to plain cross-entropy
        (torch.ones(3, 1), r"shape \[3, 1\]"),
        ([5, 3, -1], "-1 to 5"),
        ([0, 0, 0], "0 to 0"),
        ([5, 3, math.inf], "inf"),
    ],
)
def test_counts_that_are_none_are_refused_by_every_equation(counts: Any, found: str) -> None:
    for equation in (
        lambda: functional.logit_adjusted(**COUNTED, class_counts=counts),
        lambda: functional.post_hoc_adjusted(COUNTED["logits"], counts),
        lambda: functional.ldam(*COUNTED.values(), counts, max_margin=0.5, scale=30.0),
    ):
        with pytest.raises(ArgumentError, match=rf"class_counts: found .*{found}"):
            equation()


def test_pairs_of_unlike_shapes_are_not_broadcast() -> None:
    views = torch.eye(2), torch.eye(2)[:1]
    for equation in (functional.alignment, lambda q, k: functional.info_nce(q, k, torch.eye(2), tau=1.0)):
        with pytest.raises(ArgumentError, match=r"found shapes \[2, 2\] and \[1, 2\]"):
            equation(*views)


def test_groups_by_frequency() -> None:
    groups = functional.frequency_groups([101, 100, 20, 19, 0])
    found = {name: members.nonzero().flatten().tolist() for name, members in groups.items()}
    assert found == {"many": [0], "medium": [1, 2], "few": [3, 4]}


def test_post_hoc_adjustment_takes_the_prior_off() -> None:
    """By hand: log 2 ahead on 3 images to 1 loses by log(3/2)."""
    found = functional.post_hoc_adjusted(torch.tensor([[math.log(2), 0.0]]), torch.tensor([3, 1]))
    assert (found[0, 1] - found[0, 0]).item() == pytest.approx(math.log(1.5), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_class_balanced_weights_are_inverse_effective_numbers_that_sum_to_the_classes(beta: float) -> None:
    counts = [100, 16, 4, 1, 0]
    effective = [sum(beta**i for i in range(n)) for n in counts[:4]]  # 1 + b + ... + b^(n-1)
    expected = [4 / n / sum(1 / each for each in effective) for n in effective]
    found = functional.class_balanced_weights(counts, beta=beta)
    assert found.tolist() == pytest.approx([*expected, 0.0], rel=1e-6) and found.dtype == torch.float32


@pytest.mark.parametrize("tau", [0.0, 0.5, 2.0])
def test_tau_normalisation_divides_by_the_norm_to_the_power_of_tau(tau: float) -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    expected = [[3 / 5**tau, 4 / 5**tau], [0, 2 / 2**tau], [0, 0]]
    assert functional.tau_normalize(weight, tau=tau).tolist() == [pytest.approx(row) for row in expected]


def test_class_means_and_the_linear_form_of_the_nearest_center() -> None:
    means = functional.class_means(rows([1.0, 0.0], [3.0, 0.0], [0.0, 5.0]), labels(0, 0, 2), 3)
    assert means.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 5.0]]
    g = torch.Generator().manual_seed(0)
    centers, bias, x = (torch.randn(*s, generator=g) for s in ((6, 4), (6,), (200, 4)))
    centers *= torch.linspace(0.2, 4, 6)[:, None]  # unequal norms: the three disagree
    nearest = {
        "cosine": F.cosine_similarity(x[:, None], centers, dim=2),
        "euclidean": -torch.cdist(x, centers),
        "logit": x @ centers.T + bias,
    }
    for similarity, scores in nearest.items():
        weight, offset = functional.nearest_center(centers, bias, similarity)  # type: ignore[arg-type]
        assert torch.equal((x @ weight.T + offset).argmax(dim=1), scores.argmax(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_masked_class_has_no_chance_and_the_others_stay(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 5, generator=g), torch.tensor([1.0, 20.7, -3.0])
    masked, offset = functional.mask_classes(weight, bias, torch.tensor([False, True, False]))
    x = 50 * torch.randn(100, 5, generator=g)
    logits = x.to(dtype) @ masked.to(dtype).T + offset.to(dtype)
    assert logits.isfinite().all() and (logits.softmax(dim=1)[:, 1] == 0).all()
    assert torch.equal(masked[[0, 2]], weight[[0, 2]]) and torch.equal(offset[[0, 2]], bias[[0, 2]])
