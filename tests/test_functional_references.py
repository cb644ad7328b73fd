"""Every loss and its gradients against slow float64 references, over shapes, labels, tau and precisions.

The references (`tests/reference.py`) are loops written from the equations. `LOSSES` holds each loss once,
with the inputs it is differentiable in; the tests run over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from zoo import functional
from zoo.functional import _streaming


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems have many blocks of keys, whole and cut off."""
    monkeypatch.setitem(_streaming._BLOCK, "cpu", 12)


TAUS = [10.0**e for e in (-2, -1.5, -1, -0.5, 0, 0.5, 1)]
LABELS = ["mixed", "one class", "absent from the queue", "half-filled queue", "empty queue"]


@dataclass(frozen=True)
class Problem:
    """Random inputs of every loss; N anchors, K keys, D dimensions, C classes."""

    n: int
    k: int
    d: int
    c: int
    label_case: str = "mixed"
    tau: float = 0.2
    alpha: float = 0.05
    beta: float = 1.0
    gamma: float = 1.0
    center_tau: float = 1.0
    smoothing: float = 0.0
    reduction: str = "mean"
    keep: float = 0.37
    weight: float = 0.3
    margin: float = 1.2
    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def drawn(self) -> Problem:
        g = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=g, dtype=torch.float64)

        labels = torch.randint(self.c, (self.n,), generator=g)
        queue_labels = torch.randint(self.c, (self.k,), generator=g)
        valid = torch.ones(self.k, dtype=torch.bool)
        if self.label_case == "one class":
            labels, queue_labels = (
                torch.full_like(labels, self.c - 1),
                torch.full_like(queue_labels, self.c - 1),
            )
        elif self.label_case == "absent from the queue":
            labels, queue_labels = torch.zeros_like(labels), queue_labels.clamp(min=min(1, self.c - 1))
        elif self.label_case in ("half-filled queue", "empty queue"):
            valid = torch.arange(self.k) < (self.k // 2 if self.label_case == "half-filled queue" else 0)
            queue_labels = torch.where(valid, queue_labels, -1)
        tensors = {
            "q": F.normalize(normal(self.n, self.d), dim=1),
            "k": F.normalize(normal(self.n, self.d), dim=1),
            "queue": F.normalize(normal(self.k, self.d), dim=1),
            "logits": 3 * normal(self.n, self.c),
            "tau": torch.tensor(self.tau, dtype=torch.float64),
            "labels": labels,
            "queue_labels": queue_labels,
            "valid": valid,
            "same": torch.rand(self.n, generator=g) < 0.5,
            # a long tail whose last class, if there are two, has no image at all
            "counts": torch.tensor(
                [int(100 * 0.3**c) if c < max(1, self.c - 1) else 0 for c in range(self.c)]
            ),
            "prototypes": F.normalize(normal(self.c, self.d), dim=1),
        }
        return replace(self, tensors=tensors)

    def to(self, dtype: torch.dtype) -> Problem:
        """The same problem, features and logits rounded to `dtype`; tau becomes a number."""
        rounded = {n: self.tensors[n].to(dtype) for n in ("q", "k", "queue", "logits", "prototypes")}
        return replace(self, tensors=self.tensors | rounded | {"tau": self.tau})

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def prior(self) -> list[float]:
        return reference.priors(self["counts"].tolist())

    @property
    def filled(self) -> Tensor:
        return self["queue"][self["valid"]]

    @property
    def paco(self) -> dict[str, object]:
        names = ("alpha", "beta", "gamma", "center_tau", "reduction")
        return {name: getattr(self, name) for name in names} | {"tau": self["tau"]}


class Loss(NamedTuple):
    ours: Callable[[Problem], Tensor]
    theirs: Callable[[Problem], Tensor]
    inputs: str


def contrast(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return p["q"], p["k"], p["queue"]


def labelled(p: Problem) -> tuple[Tensor, ...]:
    return p["q"], p["k"], p["labels"], p["queue"], p["queue_labels"]


LOSSES = {
    "info_nce": Loss(
        lambda p: functional.info_nce(*contrast(p), tau=p["tau"], valid=p["valid"]),
        lambda p: reference.info_nce(p["q"], p["k"], p.filled, p["tau"]),
        "q k queue tau",
    ),
    "nt_xent": Loss(
        lambda p: functional.in_batch_info_nce(p["q"], p["k"], tau=p["tau"], both_views=True),
        lambda p: reference.nt_xent(p["q"], p["k"], p["tau"]),
        "q k tau",
    ),
    "sup_con": Loss(
        lambda p: functional.sup_con(*labelled(p), tau=p["tau"]),
        lambda p: reference.sup_con(*labelled(p), p["tau"]),
        "q k queue tau",
    ),
    "balanced_contrast": Loss(
        lambda p: functional.balanced_contrast(p["q"], p["k"], p["labels"], p["prototypes"], tau=p["tau"]),
        lambda p: reference.balanced_contrast(p["q"], p["k"], p["labels"], p["prototypes"], p["tau"]),
        "q k prototypes tau",
    ),
    "paco": Loss(
        lambda p: functional.paco(
            *labelled(p),
            p["logits"],
            functional.log_prior(p["counts"]),
            label_smoothing=p.smoothing,
            **p.paco,
        ),
        lambda p: reference.paco(*labelled(p), p["logits"], p.prior, smoothing=p.smoothing, **p.paco),
        "q k queue logits tau",
    ),
    "balanced_softmax": Loss(
        lambda p: functional.balanced_softmax(
            p["logits"], p["labels"], p["counts"], label_smoothing=p.smoothing
        ),
        lambda p: reference.balanced_softmax(p["logits"], p["labels"], p.prior, p.smoothing),
        "logits",
    ),
    "simple_contrastive": Loss(
        lambda p: functional.simple_contrastive(*contrast(p), weight=p.weight, valid=p["valid"]),
        lambda p: reference.simple(p["q"], p["k"], p.filled, p.weight, 1.0),
        "q k queue",
    ),
    "hard_simple": Loss(
        lambda p: functional.hard_simple(*contrast(p), weight=p.weight, keep=p.keep, valid=p["valid"]),
        lambda p: reference.simple(p["q"], p["k"], p.filled, p.weight, p.keep),
        "q k queue",
    ),
    "hard_contrastive": Loss(
        lambda p: functional.hard_contrastive(*contrast(p), tau=p["tau"], keep=p.keep, valid=p["valid"]),
        lambda p: reference.hard_info_nce(p["q"], p["k"], p.filled, p["tau"], p.keep),
        "q k queue tau",
    ),
    "margin": Loss(
        lambda p: functional.margin_contrastive(p["q"], p["k"], p["same"], margin=p.margin),
        lambda p: reference.margin(p["q"], p["k"], p["same"], p.margin, squared=False),
        "q k",
    ),
    "margin, squared": Loss(
        lambda p: functional.margin_contrastive(
            p["q"], p["k"], p["same"], margin=p.margin, squared_margin=True
        ),
        lambda p: reference.margin(p["q"], p["k"], p["same"], p.margin, squared=True),
        "q k",
    ),
}
WITH_TAU = [name for name, loss in LOSSES.items() if "tau" in loss.inputs]

every_loss = pytest.mark.parametrize("name", LOSSES)


def gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """d loss / d inputs, zero where the loss does not depend on one."""
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def assert_equal_with_gradients(name: str, p: Problem) -> None:
    """Compare in float64; the tolerance is relative to the largest entry, and above the prior's float32."""
    loss = LOSSES[name]
    names = loss.inputs.split()
    for x in names:
        p[x].requires_grad_(True)
    inputs = [p[x] for x in names]
    ours, theirs = loss.ours(p), loss.theirs(p)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    for x, a, b in zip(names, gradients(ours, inputs), gradients(theirs, inputs), strict=True):
        largest = float(b.abs().max()) if b.numel() else 0.0
        tolerance = 1e-6 * max(largest, 1e-3)
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance, msg=lambda m, x=x: f"d/d{x}: {m}")


# K is no multiple of N; one anchor, one dimension, one key, one class, no key at all
SHAPES = [(1, 1, 1, 1), (1, 0, 3, 2), (2, 1, 1, 3), (3, 7, 4, 3), (5, 13, 8, 4), (4, 0, 5, 2)]


SETTINGS: list[dict[str, Any]] = [
    {},
    dict(alpha=0.7, beta=0.3, gamma=0.0, center_tau=0.7, smoothing=0.2, reduction="sum", keep=0.1, tau=1.0),
    dict(alpha=1.0, beta=2.0, gamma=0.4, center_tau=1.7, keep=1.0, weight=0.9, margin=0.5, tau=0.02),
]


@pytest.mark.parametrize("label_case", LABELS)
@pytest.mark.parametrize("settings", SETTINGS, ids=["defaults", "others", "sharp"])
@every_loss
def test_equals_reference(name: str, settings: dict[str, Any], label_case: str) -> None:
    for seed, (n, k, d, c) in enumerate(SHAPES):
        if c > 1 or not settings.get("smoothing"):  # one class has no others to share with
            assert_equal_with_gradients(name, Problem(n, k, d, c, label_case, seed=seed, **settings).drawn())


@pytest.mark.parametrize("label_case", LABELS)
def test_sup_con_takes_unlabelled_images_as_contrasts_alone(label_case: str) -> None:
    p = Problem(6, 13, 5, 3, label_case, seed=3).drawn()
    for unlabelled in ([1, 2], [0, 1, 2, 3, 4]):  # several, as of one class; all but one
        p["labels"][unlabelled] = -1
        assert_equal_with_gradients("sup_con", p)
        others = p["k"].flip(1)[:2], p["labels"][[1, 5]]  # of another rank, one unlabelled
        found = functional.sup_con(*labelled(p), tau=p["tau"], others=others)
        q, k, labels, queue, queue_labels = labelled(p)
        nobodys = torch.where(others[1] < 0, 99, others[1])  # in the reference's queue -1 is an empty slot
        longer = torch.cat([queue, others[0]]), torch.cat([queue_labels, nobodys])
        expected = reference.sup_con(q, k, labels, *longer, p["tau"])
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_loss
def test_half_precision_costs_no_more_than_its_own_rounding(name: str, dtype: torch.dtype) -> None:
    """Against the reference on the rounded inputs: the loss within float32's error of a score over tau.

    A gradient is returned in the input's precision: its entries are within one rounding of the reference.
    """
    loss = LOSSES[name]
    names = [x for x in loss.inputs.split() if x != "tau"]
    for tau in TAUS if name in WITH_TAU else [1.0]:
        p = Problem(4, 11, 16, 4, "half-filled queue", tau=tau, seed=1).drawn().to(dtype)
        inputs = [p[x].requires_grad_(True) for x in names]
        exact = [p[x].detach().double().requires_grad_(True) for x in names]
        theirs = loss.theirs(replace(p, tensors=p.tensors | dict(zip(names, exact, strict=True))))
        ours = loss.ours(p)
        assert ours.dtype == torch.float32
        noise = 2e-6 * (1 + 1 / tau)  # float32: some roundings of a score in [-1, 1], divided by tau
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=noise)
        for x, a, b in zip(names, gradients(ours, inputs), gradients(theirs, exact), strict=True):
            assert a.dtype == dtype
            rounding = torch.finfo(dtype).eps
            atol = noise * float(b.abs().max()) + torch.finfo(dtype).smallest_normal * rounding
            torch.testing.assert_close(
                a.double(), b, rtol=rounding, atol=atol, msg=lambda m, x=x, t=tau: f"d/d{x} at {t}: {m}"
            )


@every_loss
def test_autocast_changes_nothing(name: str) -> None:
    p = Problem(4, 11, 16, 4, "half-filled queue", tau=0.05, seed=2).drawn().to(torch.float32)
    outside = LOSSES[name].ours(p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = LOSSES[name].ours(p)
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, outside, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["info_nce", "sup_con", "simple_contrastive", "hard_contrastive", "margin"])
def test_arguments_of_different_precision_meet_in_the_highest(name: str) -> None:
    p = Problem(4, 11, 16, 4, seed=2).drawn().to(torch.float32)
    expected = LOSSES[name].ours(p.to(torch.float64))
    for x in set(LOSSES[name].inputs.split()) - {"tau"}:
        mixed = replace(p, tensors=p.tensors | {x: p[x].double()})
        torch.testing.assert_close(LOSSES[name].ours(mixed), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_diagnostics_equal_references_in_every_precision(dtype: torch.dtype, autocast: bool) -> None:
    p = Problem(9, 17, 6, 3, "half-filled queue").drawn().to(dtype)
    q, k = p["q"], p["k"]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = (
            *(functional.uniformity(q), functional.uniformity(q, t=1.0)),
            *(functional.alignment(q, k), functional.tolerance(q, p["labels"])),
        )
    expected = (
        *(reference.uniformity(q, 2.0), reference.uniformity(q, 1.0)),
        *(reference.alignment(q, k), reference.tolerance(q, p["labels"])),
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)
