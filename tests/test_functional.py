"""Each equation on a case small enough to work out by hand, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import zoo
from zoo import functional

EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


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
    teacher, student = (
        [torch.tensor([1.0, 2.0]), torch.tensor(4.0)],
        [torch.tensor([3.0, 2.0]), torch.tensor(0.0)],
    )
    functional.ema_update(teacher, student, 0.75)
    torch.testing.assert_close(teacher[0], torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(teacher[1], torch.tensor(3.0))
    torch.testing.assert_close(student[0], torch.tensor([3.0, 2.0]))
    assert not functional.ema_update([torch.ones(1, requires_grad=True)], [torch.ones(1)], 0.5)


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


CONTRACT = """
    info_nce sup_con paco simple_contrastive hard_contrastive hard_simple margin_contrastive balanced_softmax
    sample_beta extrapolate interpolate ema_update uniformity alignment tolerance
"""


@pytest.mark.parametrize("name", CONTRACT.split())
def test_the_contracts_names_are_there(name: str) -> None:
    assert callable(getattr(functional, name))
