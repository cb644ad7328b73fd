"""FT's coefficients are Beta, its mixes stay within their class, and the queue keeps what it had."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tests.objective_helpers import FT, QUEUED, batch, build, step, transformed
from zoo import functional
from zoo.modules import KeyQueue
from zoo.objectives.momentum_contrast import FeatureTransformConfig

LABELLED = ["sup_con", "paco", "gpaco"]
NOW = FT | {"start_epoch": 0}
GRANULARITIES = ["step", "sample", "dimension"]


def is_beta(x: Tensor, alpha: float) -> bool:
    """Whether a Kolmogorov-Smirnov test lets the samples pass; seeds are fixed, so that it always does."""
    return bool(stats.kstest(x.double().flatten().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.01)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.6, 2.0, 5.0])
def test_beta_passes_kolmogorov_smirnov(alpha: float) -> None:
    x = functional.sample_beta(alpha, (50_000,), generator=torch.Generator().manual_seed(0))
    assert is_beta(x, alpha)
    assert not is_beta(x, alpha * 1.1)  # the test can tell a neighbour
    assert ((x >= 0) & (x <= 1)).all()


def config(
    positives: str | None, negatives: str | None, keep: bool = False, renormalize: bool = False
) -> FeatureTransformConfig:
    return FeatureTransformConfig.model_validate(
        {
            "positives": positives and {"alpha": 2.0, "per": positives},
            "negatives": negatives and {"alpha": 1.6, "per": negatives, "keep_originals": keep},
            "renormalize": renormalize,
        }
    )


def coefficients(per: str, rounds: int, size: int = 40) -> tuple[Tensor, Tensor]:
    """l - 1 of the positives and l of the negatives, read off features made for it.

    With q = 1 and k = 0 the transformed query is l itself. With the identity as queue, a mixed row holds its
    own l on the diagonal; rows that the permutation sends to themselves tell nothing and are left out.
    """
    q, k, queue = torch.ones(size, 3), torch.zeros(size, 3), torch.eye(size)
    positives, negatives = [], []
    for _ in range(rounds):
        q_hat, _, queue_hat, *_ = transformed(
            q, k, queue, torch.ones(size, dtype=torch.bool), config(per, per)
        )
        own = queue_hat.diagonal()
        positives.append(q_hat - 1)
        negatives.append(own.masked_fill(own == 1, torch.nan))
    return torch.stack(positives), torch.stack(negatives)


@pytest.mark.parametrize("per", GRANULARITIES)
def test_ft_draws_as_many_coefficients_as_it_says_each_from_its_own_beta(per: str) -> None:
    torch.manual_seed(0)
    positives, negatives = coefficients(per, rounds=400)
    if per == "step":
        assert (positives == positives[:, :1, :1]).all()
        spread = negatives.nan_to_num(-1).max(dim=1).values - negatives.nan_to_num(2).min(dim=1).values
        assert spread.abs().max() < 1e-6
        positives, negatives = positives[:, 0, 0], negatives.nanmedian(dim=1).values
    elif per == "sample":
        assert (positives == positives[:, :, :1]).all()
        positives = positives[:, :, 0]
    assert len(positives.flatten().unique()) > 0.99 * positives.numel()
    assert is_beta(positives, 2.0)
    assert is_beta(negatives[~negatives.isnan()], 1.6)


def partners(queue_hat: Tensor) -> Tensor:
    """Which row each was mixed with, where the queue was the identity; itself where no other shows."""
    size = len(queue_hat)
    others = queue_hat.clone().fill_diagonal_(0)
    return torch.where(others.amax(dim=1) > 0, others.argmax(dim=1), torch.arange(size))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    empty=st.integers(0, 5),
    per=st.sampled_from(GRANULARITIES),
    keep=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_mixing_with_labels_stays_within_the_class(
    labels: list[int], empty: int, per: str, keep: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    filled, size = len(labels), len(labels) + empty
    queue_labels = torch.tensor(labels + [-1] * empty)
    valid = torch.arange(size) < filled
    queue = torch.eye(size)
    queue[filled:] = torch.nan  # an empty slot that gets in shows
    before = queue.clone()
    pair = torch.ones(2, size)
    _, _, queue_hat, _, valid_hat = transformed(
        pair, pair, queue, valid, config(None, per, keep), queue_labels
    )
    assert torch.equal(queue.view(torch.int32), before.view(torch.int32))  # bit for bit, NaN included
    assert torch.equal(valid_hat, torch.cat([valid, valid]) if keep else valid)
    mixed = queue_hat[:filled]
    assert torch.isfinite(mixed).all()
    # no weight outside the row's own class, and none negative
    same = queue_labels[:filled, None] == queue_labels
    assert (mixed[~same] == 0).all()
    assert (mixed >= 0).all()
    # of two rows at most; each row is some row's partner exactly once
    assert ((mixed > 0).sum(dim=1) <= 2).all()
    if per != "dimension":
        torch.testing.assert_close(mixed.sum(dim=1), torch.ones(filled))
    partner = partners(mixed[:, :filled])
    assert torch.equal(partner.sort().values, torch.arange(filled))
    for i in range(filled):
        if labels.count(labels[i]) == 1:
            torch.testing.assert_close(mixed[i], queue[i])


def test_feature_transform_renormalises_on_request() -> None:
    torch.manual_seed(0)
    q, k, queue = (F.normalize(torch.randn(n, 8), dim=1) for n in (6, 6, 20))
    filled = torch.ones(20, dtype=torch.bool)
    for vectors in transformed(q, k, queue, filled, config("sample", "dimension", True, True))[:3]:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))


@pytest.mark.parametrize("name", QUEUED)
def test_objectives_keep_the_original_keys_under_ft(name: str) -> None:
    """Forward leaves the queue alone; update enqueues the very keys that go in without FT."""
    queues = {}
    for kind, ft in (("plain", None), ("FT", NOW)):
        objective = build(name, feature_transform=ft)
        step(objective, batch(0), lr=0.0)  # something to mix
        (queue,) = (m for m in objective.modules() if isinstance(m, KeyQueue))
        before = queue.keys.clone()
        torch.manual_seed(1)
        output = objective(batch(1))
        assert torch.equal(queue.keys, before)
        objective.update(batch(1), output)
        queues[kind] = (queue.keys, queue.labels, output.loss)
    assert torch.equal(queues["FT"][0], queues["plain"][0])
    assert torch.equal(queues["FT"][1], queues["plain"][1])
    assert not torch.equal(queues["FT"][2], queues["plain"][2])  # and FT was on


@pytest.mark.parametrize("name", QUEUED)
def test_objectives_that_read_the_queues_labels_mix_within_a_class(name: str) -> None:
    """All keys of a class alike: mixed within it they stay what they are, with other classes' they do not.

    PiCO reads labels once its prototypes guide it, which they do not yet.
    """
    losses = []
    for ft in (None, NOW | {"positives": None}):
        objective = build(name, feature_transform=ft)
        (queue,) = (m for m in objective.modules() if isinstance(m, KeyQueue))
        queue.filled.fill_(len(queue))
        queue.labels.copy_(torch.arange(len(queue)) % 3)
        queue.keys.copy_(torch.eye(queue.keys.shape[1])[queue.labels])
        torch.manual_seed(1)
        losses.append(objective(batch(1)).loss)
    assert torch.allclose(*losses, rtol=1e-5) == (name in LABELLED)
