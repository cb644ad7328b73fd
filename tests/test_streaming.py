"""The losses in linear memory: gradients, precision with a long queue, memory, and no waiting.

Their values are those of `tests/reference.py` (tests/test_functional_references.py). Blocks are made tiny
here, so that small problems have many, whole and cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import functional
from zoo.functional import _streaming
from zoo.functional._streaming import log_sum_exp

DOUBLE = torch.float64


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(_streaming._BLOCK, "cpu", 12)
    yield


def unit(*shape: int, seed: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(shape, generator=g, dtype=DOUBLE), dim=-1).to(dtype)


class Problem:
    """Inputs of every loss."""

    def __init__(self, n: int, k: int, d: int, c: int, filled: float, seed: int, dtype: torch.dtype) -> None:
        g = torch.Generator().manual_seed(seed)
        self.q, self.k, self.queue = (unit(m, d, seed=seed + i, dtype=dtype) for i, m in enumerate((n, n, k)))
        # any slots may be empty, not only the last; classes are far apart and need not be in the batch
        self.valid = torch.rand(k, generator=g) < filled
        self.labels = torch.randint(c, (n,), generator=g) * 1000
        self.queue_labels = torch.where(self.valid, torch.randint(c, (k,), generator=g) * 1000, -1)
        self.own = self.labels // 1000
        self.logits = torch.randn(n, c, generator=g, dtype=DOUBLE).to(dtype)
        self.prior = torch.randn(c, generator=g, dtype=DOUBLE).log_softmax(0).to(dtype)


def losses(p: Problem) -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Each loss as a function of all that it is differentiable in, tau last."""
    # PaCo's labels index its centers; the queue's are shrunk likewise
    stored = torch.where(p.valid, p.queue_labels // 1000, -1)
    f, pair, contrast, tau = functional, [p.q, p.k], [p.q, p.k, p.queue], torch.tensor(0.3, dtype=p.q.dtype)
    return {
        "info_nce": (lambda q, k, z, t: f.info_nce(q, k, z, tau=t, valid=p.valid), [*contrast, tau]),
        "nt_xent": (lambda q, k, t: f.in_batch_info_nce(q, k, tau=t, both_views=True), [*pair, tau]),
        "sup_con": (lambda q, k, z, t: f.sup_con(q, k, p.labels, z, p.queue_labels, tau=t), [*contrast, tau]),
        "paco": (
            lambda q, k, z, c, prior, t: f.paco(q, k, p.own, z, stored, c, prior, tau=t, alpha=0.05),
            [*contrast, p.logits, p.prior, tau],
        ),
        "simple": (lambda q, k, z: f.simple_contrastive(q, k, z, weight=0.3, valid=p.valid), contrast),
        "hard": (
            lambda q, k, z, t: f.hard_contrastive(q, k, z, tau=t, keep=0.4, valid=p.valid),
            [*contrast, tau],
        ),
        "hard simple": (
            lambda q, k, z: f.hard_simple(q, k, z, weight=0.3, keep=0.4, valid=p.valid),
            contrast,
        ),
    }


def with_gradients(loss: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    given = [x.detach().requires_grad_() for x in inputs]
    value = loss(*given)
    found = torch.autograd.grad(value, given, allow_unused=True)
    return [
        value.detach(),
        *(torch.zeros_like(x) if g is None else g for g, x in zip(found, given, strict=True)),
    ]


@pytest.mark.parametrize("case", ["both", "queries", "keys", "itself"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_pass_gradcheck(case: str, masked: bool, tiny_blocks: None) -> None:
    q, z = unit(5, 3, seed=0), unit(11, 3, seed=1)
    usable = torch.rand(11, generator=torch.Generator().manual_seed(0)) < 0.6 if masked else None
    q.requires_grad_(case != "keys")
    z.requires_grad_(case in ("both", "keys"))

    def f(q: Tensor, z: Tensor) -> Tensor:
        if case == "itself":
            return log_sum_exp(q * 3, q, itself=True)
        return log_sum_exp(q * 3, z, usable=usable)

    assert torch.autograd.gradcheck(f, (q, z))


def test_a_second_derivative_is_refused_not_wrong() -> None:
    q = unit(2, 3, seed=0).requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(log_sum_exp(q, unit(4, 3, seed=1)).sum(), q, create_graph=True)


def test_no_usable_key_gives_minus_infinity_and_no_gradient() -> None:
    q, z = unit(2, 3, seed=0).requires_grad_(), unit(4, 3, seed=1).requires_grad_()
    for found in (log_sum_exp(q, z, usable=torch.zeros(4, dtype=torch.bool)), log_sum_exp(q, z[:0])):
        assert found.tolist() == [-torch.inf] * 2
        assert not any(
            g is not None and g.any() for g in torch.autograd.grad(found.sum(), [q, z], allow_unused=True)
        )
    assert log_sum_exp(q[:1], q[:1], itself=True).item() == -torch.inf


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e30])
def test_scores_of_any_size_neither_overflow_nor_vanish(scale: float, tiny_blocks: None) -> None:
    q, z = unit(5, 3, seed=0, dtype=torch.float32) * scale, unit(30, 3, seed=1, dtype=torch.float32)
    torch.testing.assert_close(log_sum_exp(q, z), (q @ z.T).logsumexp(dim=1))
    lowest = q - 1e4 * z.mean(dim=0)  # every score far below 0, and rising from block to block
    torch.testing.assert_close(log_sum_exp(lowest, z), (lowest @ z.T).logsumexp(dim=1))


# the keys of 65,536 slots: performance.md's gates
LARGE = dict(n=24, k=65_536, d=128, c=1000, seed=0)


@pytest.mark.parametrize(("name", "limit"), [("info_nce", 3e-7), ("sup_con", 6e-7), ("paco", 6e-7)])
def test_gradients_of_a_long_queue_are_within_the_gates(name: str, limit: float) -> None:
    results = {}
    for dtype in (torch.float32, DOUBLE):
        loss, inputs = losses(Problem(**LARGE, filled=1.0, dtype=torch.float32))[name]
        results[dtype] = with_gradients(loss, [x.to(dtype) for x in inputs])
    value, *gradients = results[torch.float32]
    exact, *exact_gradients = results[DOUBLE]
    assert abs(float(value - exact)) < 1e-6 * float(exact)
    q, exact_q = gradients[0], exact_gradients[0]
    assert float((q - exact_q).abs().max() / exact_q.abs().max()) <= limit


class Watch(TorchDispatchMode):
    """Refuses what waits for the device, and remembers the largest result."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_to_copy.default_to_cpu")

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.largest, self.refused = 0, (*self.WAITING, *refused)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        assert not name.startswith(self.refused), name
        if name.startswith(("index.", "index_put")):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), name
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return result


def watched(loss: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[int, int]:
    """Largest tensor made, and numbers kept for backward beside the inputs."""
    kept: dict[int, int] = {}
    own = {x.untyped_storage().data_ptr() for x in inputs}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    given = [x.detach().requires_grad_() for x in inputs]
    with Watch() as watch, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss(*given).backward()
    return watch.largest, sum(kept.values())


@pytest.mark.parametrize("name", losses(Problem(2, 2, 2, 2, 1.0, 0, DOUBLE)))
def test_no_matrix_of_scores_is_made_or_kept_and_nothing_waits(name: str) -> None:
    # the hard losses take some anchors' scores at once: a share of many anchors'
    n, k, d, c = 512 if "hard" in name else 256, 8192, 16, 10
    p = Problem(n, k, d, c, 0.9, 0, torch.float32)
    largest, kept = watched(*losses(p)[name])
    scores = 4 * n * n if name == "nt_xent" else n * k
    assert largest <= max(scores // (3 if "hard" in name else 8), k * (d + 1), _streaming._BLOCK["cpu"])
    assert kept <= 4 * k * d
    # and the measure can tell
    assert watched(lambda q, z: (q @ z.T).logsumexp(dim=1).mean(), [p.q, p.queue])[0] >= n * k


def test_any_number_of_classes_costs_the_same() -> None:
    p = Problem(64, 4096, 16, 4, 1.0, 0, torch.float32)
    p.labels, p.queue_labels = (torch.randint(10**12, (m,)) for m in (64, 4096))
    p.queue_labels[:64] = p.labels
    loss, inputs = losses(p)["sup_con"]
    assert watched(loss, inputs)[0] <= max(_streaming._BLOCK["cpu"], 4096 * 17)
    found = loss(*inputs)
    _, small = torch.cat([p.labels, p.queue_labels]).unique(return_inverse=True)
    p.labels, p.queue_labels = small[:64], small[64:]
    torch.testing.assert_close(found, losses(p)["sup_con"][0](*inputs))
