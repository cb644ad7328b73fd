"""FT's coefficients are Beta, its mixes stay within their class, and the queue keeps what it had."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tests.objective_helpers import FT, QUEUED, batch, build, step
from zoo import functional
from zoo.objectives.config import FeatureTransformConfig
from zoo.objectives.momentum_contrast import Pairs, transform

LABELLED = ["sup_con", "paco", "gpaco"]
NOW = FT | {"start_epoch": 0}
GRANULARITIES = ["step", "sample", "dimension"]


def is_beta(x: Tensor, alpha: float) -> bool:
    """Whether a Kolmogorov-Smirnov test lets the samples pass; seeds are fixed, so that it always does."""
    return bool(stats.kstest(x.double().flatten().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.01)


@pytest.mark.parametrize("alpha", [0.6, 1.6, 5.0])
def test_beta_passes_kolmogorov_smirnov(alpha: float) -> None:
    x = functional.sample_beta(alpha, (50_000,), generator=torch.Generator().manual_seed(0))
    assert is_beta(x, alpha) and not is_beta(x, alpha * 1.1)  # the test can tell a neighbour
    assert ((x >= 0) & (x <= 1)).all()


def transformed(pairs: Pairs, per: str, *, labelled: bool = False, keep: bool = False, **more: Any) -> Pairs:
    """What FT makes of one step's features with these settings."""
    negatives = {"alpha": 1.6, "per": per, "keep_originals": keep}
    section = {"positives": {"alpha": 2.0, "per": per}, "negatives": negatives, **more}
    return transform(pairs, FeatureTransformConfig.model_validate(section), labelled=labelled)


@pytest.mark.parametrize("per", GRANULARITIES)
def test_ft_draws_as_many_coefficients_as_it_says_each_from_its_own_beta(per: str) -> None:
    """Read off features made for it: with q = 1 and k = 0 the transformed query is l itself.

    With the identity as queue, a mixed row holds its own l on the diagonal; rows that the permutation sends
    to themselves tell nothing.
    """
    torch.manual_seed(0)
    filled = torch.ones(40, dtype=torch.bool)
    pairs = Pairs(torch.ones(40, 3), torch.zeros(40, 3), torch.eye(40), filled.long(), filled)
    found = [transformed(pairs, per) for _ in range(400)]
    positives = torch.stack([each.q - 1 for each in found])
    negatives = torch.stack([each.queue.diagonal() for each in found])
    negatives = negatives.masked_fill(negatives == 1, torch.nan)
    assert (positives >= 0).all()  # l is never below 1
    if per == "step":
        assert (positives == positives[:, :1, :1]).all()
        middle = negatives.nanmedian(dim=1).values
        assert ((negatives - middle[:, None]).nan_to_num().abs() < 1e-6).all()
        positives, negatives = positives[:, 0, 0], middle
    elif per == "sample":
        assert (positives == positives[:, :, :1]).all()
        positives = positives[:, :, 0]
    assert len(positives.flatten().unique()) > 0.99 * positives.numel()
    assert is_beta(positives, 2.0) and is_beta(negatives[~negatives.isnan()], 1.6)


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    empty=st.integers(0, 5),
    per=st.sampled_from(GRANULARITIES),
    keep=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_mixes_stay_within_the_class(labels: list[int], empty: int, per: str, keep: bool, seed: int) -> None:
    torch.manual_seed(seed)
    filled, size = len(labels), len(labels) + empty
    queue_labels, valid = torch.tensor(labels + [-1] * empty), torch.arange(size) < filled
    queue = torch.eye(size)
    queue[filled:] = torch.nan  # an empty slot that gets in shows
    before, pair = queue.clone(), torch.ones(2, size)
    found = transformed(Pairs(pair, pair, queue, queue_labels, valid), per, labelled=True, keep=keep)
    assert torch.equal(queue.view(torch.int32), before.view(torch.int32))  # bit for bit, NaN included
    assert torch.equal(found.valid, valid.repeat(2) if keep else valid)
    assert torch.equal(found.queue_labels, queue_labels.repeat(2) if keep else queue_labels)
    if keep:
        assert torch.equal(found.queue[size : size + filled], queue[:filled])
    mixed = found.queue[:filled, :filled]
    assert (mixed >= 0).all()  # NaN is not
    # no weight outside the row's own class, and of two rows at most
    assert (mixed[queue_labels[:filled, None] != queue_labels[:filled]] == 0).all()
    assert ((mixed > 0).sum(dim=1) <= 2).all()
    if per != "dimension":
        torch.testing.assert_close(mixed.sum(dim=1), torch.ones(filled))
    # each row is the partner of exactly one, of itself where no other shows
    others = mixed.clone().fill_diagonal_(0)
    partner = torch.where(others.amax(dim=1) > 0, others.argmax(dim=1), torch.arange(filled))
    assert torch.equal(partner.sort().values, torch.arange(filled))


def test_feature_transform_renormalises_on_request() -> None:
    q, filled = torch.nn.functional.normalize(torch.randn(6, 8), dim=1), torch.ones(6, dtype=torch.bool)
    pairs = Pairs(q, q.flip(0), q, filled.long(), filled)
    for vectors in transformed(pairs, "sample", keep=True, renormalize=True)[:3]:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))


@pytest.mark.parametrize("name", QUEUED)
def test_objectives_keep_the_original_keys_under_ft_and_mix_within_a_class(name: str) -> None:
    """Forward leaves the queue alone; update enqueues the very keys that go in without FT.

    All keys of a class alike: mixed within it they stay what they are, with other classes' they do not.
    PiCO reads labels once its prototypes guide it, which they do not yet.
    """
    found: dict[str, Any] = {}
    for kind, ft in (("plain", None), ("FT", NOW), ("negatives", NOW | {"positives": None})):
        objective = build(name, feature_transform=ft)
        queue = objective.queue
        step(objective, batch(0), lr=0.0)
        queue.filled.fill_(len(queue))
        queue.labels.copy_(torch.arange(len(queue)) % 3)
        queue.keys.copy_(torch.eye(queue.keys.shape[1])[queue.labels])
        before = queue.keys.clone()
        torch.manual_seed(1)
        output = objective(batch(1))
        assert torch.equal(queue.keys, before)
        objective.update(batch(1), output)
        found[kind] = queue.keys, queue.labels, output.loss
    keys, labels, plain = found["plain"]
    assert torch.equal(found["FT"][0], keys) and torch.equal(found["FT"][1], labels)
    assert not torch.allclose(found["FT"][2], plain, rtol=1e-3)  # and FT was on
    assert torch.allclose(found["negatives"][2], plain, rtol=1e-5) == (name in LABELLED)


def test_ft_begins_at_its_epoch() -> None:
    objective = build("moco", feature_transform=FT)
    step(objective, batch(0))
    losses = []
    for objective.epoch in (0.0, 1.9, 2.0):
        losses.append(objective(batch(1)).loss.item())
    assert losses[0] == losses[1] != losses[2]
