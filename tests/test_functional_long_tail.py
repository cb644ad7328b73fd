"""Equations for long-tailed data against slow float64 loops from the papers, and cases done by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo import functional
from zoo.errors import ArgumentError

COUNTS = torch.tensor([100, 16, 4, 1])


def problem(seed: int, c: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Logits `[7, c]` in float64, labels and class counts."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(7, c, generator=g, dtype=torch.float64)
    counts = torch.randint(1, 500, (c,), generator=g)
    return logits, torch.randint(c, (7,), generator=g), counts


# --- logit adjustment ---


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.floats(0, 3), c=st.integers(2, 12))
def test_logit_adjustment_is_the_cross_entropy_of_logits_and_scaled_log_prior(
    seed: int, tau: float, c: int
) -> None:
    logits, labels, counts = problem(seed, c=c)
    expected = F.cross_entropy(logits + tau * (counts / counts.sum()).double().log(), labels)
    found = functional.logit_adjusted(logits, labels, counts, tau=tau)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the prior is float32


def test_post_hoc_adjustment_takes_out_what_training_has_put_in() -> None:
    """By hand: log 2 ahead on 3 images to 1 loses by log(3/2). And it undoes the loss's own adjustment."""
    found = functional.post_hoc_adjusted(torch.tensor([[math.log(2), 0.0]]), torch.tensor([3, 1]))
    assert (found[0, 1] - found[0, 0]).item() == pytest.approx(math.log(1.5), rel=1e-5)
    logits, labels, counts = problem(1)
    undone = functional.post_hoc_adjusted(logits, counts, tau=0.7)
    plain = F.cross_entropy(logits, labels)
    again = functional.logit_adjusted(undone, labels, counts, tau=0.7)
    torch.testing.assert_close(again, plain, rtol=1e-12, atol=1e-12)


# --- LDAM and the effective number ---


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), margin=st.floats(0, 1), scale=st.floats(1, 40), weighted=st.booleans())
def test_ldam_is_the_cross_entropy_of_scaled_cosines_less_the_own_classs_margin(
    seed: int, margin: float, scale: float, weighted: bool
) -> None:
    logits, labels, counts = problem(seed)
    cosines, margins = logits.tanh(), counts.double() ** -0.25
    own = F.one_hot(labels, 4) * margin * margins / margins.max()
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64) if weighted else None
    found = functional.ldam(cosines, labels, counts, max_margin=margin, scale=scale, weight=weight)
    expected = F.cross_entropy(scale * (cosines - own), labels, weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999])
def test_class_balanced_weights_are_inverse_effective_numbers_that_sum_to_the_classes(beta: float) -> None:
    effective = [sum(beta**i for i in range(n)) for n in COUNTS.tolist()]  # 1 + b + ... + b^(n-1)
    total = sum(1 / n for n in effective)
    expected = [4 / n / total for n in effective]
    found = functional.class_balanced_weights(COUNTS, beta=beta)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert found.dtype == torch.float32


# --- classifiers ---


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_tau_normalisation_divides_by_the_norm_to_the_power_of_tau(tau: float) -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    expected = [[3 / 5**tau, 4 / 5**tau], [0, 2 / 2**tau], [0, 0]]
    assert functional.tau_normalize(weight, tau=tau).tolist() == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "logit"])
def test_the_linear_form_of_nearest_center_finds_the_nearest(similarity: str) -> None:
    g = torch.Generator().manual_seed(0)
    centers, bias, x = (torch.randn(*s, generator=g) for s in ((6, 4), (6,), (200, 4)))
    centers *= torch.linspace(0.2, 4, 6)[:, None]  # unequal norms: the three disagree
    measures = {
        "cosine": lambda c, f: (c @ f) / (c.norm() * f.norm()),
        "euclidean": lambda c, f: -((c - f) ** 2).sum().sqrt(),
    }
    weight, offset = functional.nearest_center(centers, bias, similarity)  # type: ignore[arg-type]
    for row in x:
        if similarity == "logit":
            scores = torch.stack([c @ row + b for c, b in zip(centers, bias, strict=True)])
        else:
            scores = torch.stack([measures[similarity](c, row) for c in centers])
        assert (weight @ row + offset).argmax() == scores.argmax()


# --- what is no class ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_never_leaves_a_class_no_chance_and_the_others_as_they_are(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 5, generator=g), torch.tensor([1.0, 20.7, -3.0])
    masked, offset = functional.mask_classes(weight, bias, torch.tensor([False, True, False]))
    x = 50 * torch.randn(100, 5, generator=g)
    logits = x.to(dtype) @ masked.to(dtype).T + offset.to(dtype)
    assert (logits.argmax(dim=1) != 1).all() and logits.isfinite().all()
    assert (logits.softmax(dim=1)[:, 1] == 0).all()
    assert torch.equal(masked[[0, 2]], weight[[0, 2]]) and torch.equal(offset[[0, 2]], bias[[0, 2]])


GOOD = dict(logits=torch.zeros(2, 3), labels=torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([500], r"shape \[1\], expected \[3\]"),  # would broadcast to plain cross-entropy
        (torch.ones(3, 1), r"shape \[3, 1\]"),
        (torch.ones(2, 1), r"shape \[2, 1\]"),
        (torch.tensor(7), r"shape \[\]"),
        ([5, 3, -1], "-1 to 5"),
        ([0, 0, 0], "0 to 0"),
        ([5, 3, math.nan], "nan"),
        ([5, 3, math.inf], "inf"),
    ],
)
def test_counts_that_are_none_are_refused_by_every_equation(counts: Any, found: str) -> None:
    for equation in (
        lambda: functional.balanced_softmax(**GOOD, class_counts=counts),
        lambda: functional.logit_adjusted(**GOOD, class_counts=counts),
        lambda: functional.post_hoc_adjusted(GOOD["logits"], counts),
        lambda: functional.ldam(GOOD["logits"], GOOD["labels"], counts, max_margin=0.5, scale=30.0),
    ):
        with pytest.raises(ArgumentError, match=rf"class_counts: found .*{found}"):
            equation()


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused_and_not_the_last_one(label: int) -> None:
    labels = torch.tensor([0, label])
    for equation in (
        lambda: functional.balanced_softmax(GOOD["logits"], labels, [5, 3, 1]),
        lambda: functional.ldam(GOOD["logits"], labels, [5, 3, 1], max_margin=0.5, scale=30.0),
        lambda: functional.class_means(torch.ones(2, 4), labels, 3),
    ):
        with pytest.raises(ArgumentError, match=rf"labels: found .*{label}.*, expected classes 0 to 2"):
            equation()


def test_groups_by_frequency() -> None:
    groups = functional.frequency_groups(torch.tensor([101, 100, 20, 19, 0]))
    assert {name: members.nonzero().flatten().tolist() for name, members in groups.items()} == {
        "many": [0],
        "medium": [1, 2],
        "few": [3, 4],
    }
