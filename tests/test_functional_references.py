"""Every loss and its gradients against slow float64 references, over shapes, labels, tau and precisions.

The references (`tests/reference.py`) are loops written from the equations. `LOSSES` holds each loss once,
with the inputs it is differentiable in; the tests run over all of them.
"""

from collections.abc import Callable
from types import SimpleNamespace as Problem
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import reference
from zoo import functional
from zoo.functional import _streaming, contrastive


@pytest.fixture(autouse=True, params=[12, 2**18])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems have many blocks of keys, whole and cut off, or one."""
    monkeypatch.setattr(_streaming, "CPU_BLOCK", request.param)
    monkeypatch.setattr(contrastive, "KEPT", request.param)


DOUBLE = torch.float64
ROUNDED = ("q", "k", "queue", "prototypes", "logits", "cosines", "teachers")
DEFAULTS: dict[str, Any] = dict(tau=0.2, keep=0.37, weight=0.3, margin=1.2, smoothing=0.0)
PACO = dict(alpha=0.05, beta=1.0, gamma=1.0, center_tau=1.0, reduction="mean")


def problem(
    n: int = 4,
    k: int = 11,
    d: int = 16,
    c: int = 4,
    case: str = "half-filled queue",
    *,
    seed: int = 0,
    dtype: torch.dtype = DOUBLE,
    paco: dict[str, Any] = PACO,
    **settings: Any,
) -> Problem:
    """Random inputs of every loss, rounded to `dtype`: N anchors, K keys, D dimensions, C classes."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=DOUBLE)

    p = Problem(**{**DEFAULTS, **settings}, paco=paco)
    p.q, p.k, p.queue, p.prototypes = (F.normalize(normal(rows, d), dim=1) for rows in (n, n, k, c))
    p.logits, p.cosines, p.teachers = 3 * normal(n, c), normal(n, c).tanh(), 3 * normal(2, n, c)
    for name in ROUNDED:
        setattr(p, name, getattr(p, name).to(dtype))
    if dtype == DOUBLE:  # a learned temperature
        p.tau = torch.tensor(p.tau, dtype=DOUBLE)
    p.labels, p.queue_labels = (torch.randint(c, (m,), generator=g) for m in (n, k))
    p.same = torch.rand(n, generator=g) < 0.5
    # a long tail whose last class, if there are two, has no image at all
    p.counts = torch.tensor([int(100 * 0.3**i) if i < max(1, c - 1) else 0 for i in range(c)])
    filled = {"half-filled queue": k // 2, "empty queue": 0}.get(case, k)
    p.valid = torch.arange(k) < filled
    if case == "one class":
        p.labels, p.queue_labels = (torch.full_like(each, c - 1) for each in (p.labels, p.queue_labels))
    elif case == "absent from the queue":
        p.labels, p.queue_labels = torch.zeros_like(p.labels), p.queue_labels.clamp(min=min(1, c - 1))
    p.queue_labels = torch.where(p.valid, p.queue_labels, -1)
    p.prior = reference.priors(p.counts.tolist())
    return p


def contrast(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return p.q, p.k, p.queue


def filled(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    return p.q, p.k, p.queue[p.valid]


def labelled(p: Problem) -> tuple[Tensor, ...]:
    return p.q, p.k, p.labels, p.queue, p.queue_labels


class Loss(NamedTuple):
    inputs: str
    ours: Callable[[Problem], Tensor]
    theirs: Callable[[Problem], Tensor]


f, r = functional, reference
LOSSES = {
    "info_nce": Loss(
        "q k queue tau",
        lambda p: f.info_nce(*contrast(p), tau=p.tau, valid=p.valid),
        lambda p: r.info_nce(*filled(p), p.tau),
    ),
    "nt_xent": Loss(
        "q k tau",
        lambda p: f.in_batch_info_nce(p.q, p.k, tau=p.tau, both_views=True),
        lambda p: r.nt_xent(p.q, p.k, p.tau),
    ),
    "hard_contrastive": Loss(
        "q k queue tau",
        lambda p: f.hard_contrastive(*contrast(p), tau=p.tau, keep=p.keep, valid=p.valid),
        lambda p: r.info_nce(*filled(p), p.tau, p.keep),
    ),
    "simple_contrastive": Loss(
        "q k queue",
        lambda p: f.simple_contrastive(*contrast(p), weight=p.weight, valid=p.valid),
        lambda p: r.simple(*filled(p), p.weight),
    ),
    "hard_simple": Loss(
        "q k queue",
        lambda p: f.hard_simple(*contrast(p), weight=p.weight, keep=p.keep, valid=p.valid),
        lambda p: r.simple(*filled(p), p.weight, p.keep),
    ),
    "sup_con": Loss(
        "q k queue tau",
        lambda p: f.sup_con(*labelled(p), tau=p.tau),
        lambda p: r.sup_con(*labelled(p), p.tau),
    ),
    "balanced_contrast": Loss(
        "q k prototypes tau",
        lambda p: f.balanced_contrast(p.q, p.k, p.labels, p.prototypes, tau=p.tau),
        lambda p: r.balanced_contrast(p.q, p.k, p.labels, p.prototypes, p.tau),
    ),
    "paco": Loss(
        "q k queue logits tau",
        lambda p: f.paco(
            *labelled(p), p.logits, f.log_prior(p.counts), tau=p.tau, label_smoothing=p.smoothing, **p.paco
        ),
        lambda p: r.paco(*labelled(p), p.logits, p.prior, tau=p.tau, smoothing=p.smoothing, **p.paco),
    ),
    "balanced_softmax": Loss(
        "logits",
        lambda p: f.balanced_softmax(p.logits, p.labels, p.counts, label_smoothing=p.smoothing),
        lambda p: r.logit_adjusted(p.logits, p.labels, p.prior, p.smoothing),
    ),
    "logit_adjusted": Loss(
        "logits",
        lambda p: f.logit_adjusted(p.logits, p.labels, p.counts, tau=p.weight),
        lambda p: r.logit_adjusted(p.logits, p.labels, p.prior, tau=p.weight),
    ),
    "ldam": Loss(
        "cosines",
        lambda p: f.ldam(p.cosines, p.labels, p.counts, max_margin=p.weight, scale=20.0, weight=1 + p.counts),
        lambda p: r.ldam(p.cosines, p.labels, p.counts.tolist(), p.weight, 20.0, (1 + p.counts).tolist()),
    ),
    "distillation": Loss(
        "logits",
        lambda p: f.distillation(p.logits, p.teachers, tau=1 + p.weight),
        lambda p: r.distillation(p.logits, p.teachers, 1 + p.weight),
    ),
    "margin": Loss(
        "q k",
        lambda p: f.margin_contrastive(p.q, p.k, p.same, margin=p.margin),
        lambda p: r.margin(p.q, p.k, p.same, p.margin),
    ),
    "margin, squared": Loss(
        "q k",
        lambda p: f.margin_contrastive(p.q, p.k, p.same, margin=p.margin, squared_margin=True),
        lambda p: r.margin(p.q, p.k, p.same, p.margin, squared=True),
    ),
}

every_loss = pytest.mark.parametrize("name", LOSSES)


def gradients(loss: Callable[[Problem], Tensor], p: Problem, names: list[str]) -> tuple[Tensor, list[Tensor]]:
    """The loss, and its gradients with respect to these inputs: zero where it does not depend on one."""
    leaves = {name: getattr(p, name).detach().requires_grad_() for name in names}
    found = loss(Problem(**{**vars(p), **leaves}))
    given = [*leaves.values()]
    if not found.requires_grad:
        return found, [torch.zeros_like(x) for x in given]
    return found, list(torch.autograd.grad(found, given, allow_unused=True, materialize_grads=True))


# K is no multiple of N; one anchor, one dimension, one key, one class, no key at all
CASES: list[tuple[int, int, int, int, str]] = [
    *((1, 1, 1, 1, "mixed"), (1, 0, 3, 2, "mixed"), (2, 1, 1, 3, "one class"), (4, 0, 5, 2, "mixed")),
    *((5, 13, 8, 4, case) for case in ("mixed", "one class", "half-filled queue", "empty queue")),
    (3, 7, 4, 3, "absent from the queue"),
]
SHARP = PACO | dict(alpha=1.0, beta=2.0, gamma=0.4, center_tau=1.7)
SUMMED = PACO | dict(alpha=0.7, beta=0.3, gamma=0.0, center_tau=0.7, reduction="sum")
SETTINGS: list[dict[str, Any]] = [
    {},
    dict(paco=SUMMED, smoothing=0.2, keep=0.1, tau=1.0),
    dict(paco=SHARP, keep=1.0, weight=0.9, margin=0.5, tau=0.02),
]


def assert_equal_with_gradients(name: str, p: Problem) -> None:
    """In float64; the tolerance is relative to the largest entry, and above the prior's float32."""
    loss = LOSSES[name]
    names = loss.inputs.split()
    (ours, found), (theirs, expected) = (gradients(each, p, names) for each in loss[1:])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    for x, a, b in zip(names, found, expected, strict=True):
        tolerance = 1e-6 * max(float(b.abs().max()) if b.numel() else 0.0, 1e-3)
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance, msg=lambda m, x=x: f"d/d{x}: {m}")


@pytest.mark.parametrize("settings", SETTINGS, ids=["defaults", "others", "sharp"])
@every_loss
def test_equals_reference(name: str, settings: dict[str, Any]) -> None:
    for seed, case in enumerate(CASES):
        if case[3] > 1 or not settings.get("smoothing"):  # one class has no others to share with
            assert_equal_with_gradients(name, problem(*case, seed=seed, **settings))


def test_sup_con_takes_unlabelled_images_as_contrasts_alone() -> None:
    p = problem(6, 13, 5, 3, seed=3)
    for unlabelled in ([1, 2], [0, 1, 2, 3, 4]):  # several, as of one class; all but one
        p.labels[unlabelled] = -1
        assert_equal_with_gradients("sup_con", p)
        others = p.k.flip(1)[:2], p.labels[[1, 5]]  # of another rank, one unlabelled
        found = functional.sup_con(*labelled(p), tau=p.tau, others=others)
        nobodys = torch.where(others[1] < 0, 99, others[1])  # in the reference's queue -1 is an empty slot
        longer = torch.cat([p.queue, others[0]]), torch.cat([p.queue_labels, nobodys])
        torch.testing.assert_close(found, reference.sup_con(p.q, p.k, p.labels, *longer, p.tau))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_loss
def test_half_precision_costs_no_more_than_the_rounding_of_inputs(name: str, dtype: torch.dtype) -> None:
    """Against the reference on the rounded inputs: the loss within float32's error of a score over tau.

    A gradient is returned in the input's precision: its entries are within one rounding of the reference.
    """
    loss, rounding = LOSSES[name], torch.finfo(dtype).eps
    names = [x for x in loss.inputs.split() if x != "tau"]
    for tau in (0.01, 0.3, 10.0) if "tau" in loss.inputs else (1.0,):
        p = problem(tau=tau, seed=1, dtype=dtype)
        exact = Problem(**{**vars(p), **{x: getattr(p, x).double() for x in ROUNDED}})
        (ours, found), (theirs, expected) = (
            gradients(loss.ours, p, names),
            gradients(loss.theirs, exact, names),
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss.ours(p)
        assert ours.dtype == inside.dtype == torch.float32
        torch.testing.assert_close(inside, ours, rtol=1e-6, atol=1e-6)
        noise = 2e-6 * (1 + 1 / tau)  # float32: some roundings of a score in [-1, 1], divided by tau
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=noise)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == dtype
            atol = noise * float(b.abs().max()) + torch.finfo(dtype).smallest_normal * rounding
            torch.testing.assert_close(a.double(), b, rtol=rounding, atol=atol)


@pytest.mark.parametrize("name", ["info_nce", "sup_con", "simple_contrastive", "hard_contrastive", "margin"])
def test_arguments_of_different_precision_meet_in_the_highest(name: str) -> None:
    p = problem(seed=2, dtype=torch.float32)
    double = Problem(**{**vars(p), **{x: getattr(p, x).double() for x in ROUNDED}})
    for x in set(LOSSES[name].inputs.split()) - {"tau"}:
        mixed = Problem(**{**vars(p), x: getattr(double, x)})
        torch.testing.assert_close(LOSSES[name].ours(mixed), LOSSES[name].ours(double), rtol=1e-12, atol=0)
