"""What is known of the loss that a recipe's class centers were trained with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo.evaluation.center_loss import CenterLoss, center_loss

COUNTS = torch.tensor([125, 80, 52, 33, 21, 14, 9, 5, 3, 2])
PRIOR = (COUNTS / COUNTS.sum()).log()


@pytest.mark.parametrize(
    ("objective", "share", "tau"),
    [
        ({"name": "classify", "loss": "cross_entropy"}, 0.0, 1.0),
        ({"name": "classify", "loss": "balanced_softmax"}, 1.0, 1.0),
        ({"name": "classify", "loss": {"name": "logit_adjustment", "tau": 0.5}}, 0.5, 1.0),
        ({"name": "paco", "rebalance": True, "center_tau": 1.0}, 1.0, 1.0),
        ({"name": "gpaco", "rebalance": False, "center_tau": 0.5}, 0.0, 0.5),
        ({"name": "bcl"}, 1.0, 1.0),
    ],
)
def test_the_prior_is_that_of_the_recipe(objective: dict[str, Any], share: float, tau: float) -> None:
    found = center_loss({"objective": objective, "method": None}, COUNTS)
    assert isinstance(found, CenterLoss) and found.tau == tau
    torch.testing.assert_close(found.prior, share * PRIOR)


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
def test_other_losses_are_named(recipe: dict[str, Any], why: str) -> None:
    found = center_loss(recipe, COUNTS)
    assert isinstance(found, str) and why in found


def test_without_counts_there_is_a_loss_only_without_a_prior() -> None:
    section = {"name": "paco", "rebalance": True, "center_tau": 1.0}
    unknown = torch.full((10,), -1)
    assert isinstance(center_loss({"objective": section}, unknown), str)
    assert isinstance(center_loss({"objective": section | {"rebalance": False}}, unknown), CenterLoss)
