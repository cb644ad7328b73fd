"""The losses in linear memory: gradients, precision with a long queue, memory, and no waiting.

Their values are those of `tests/reference.py` (tests/test_functional_references.py). Blocks are made tiny
here, so that small problems have many, whole and cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.test_functional_references import LOSSES, Problem
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


def differentiable(p: Problem) -> Problem:
    names = ("q", "k", "queue", "logits", "tau")
    leaves = {x: torch.as_tensor(p[x], dtype=p["q"].dtype).detach().requires_grad_() for x in names}
    return replace(p, tensors=p.tensors | leaves)


@pytest.mark.parametrize(("name", "limit"), [("info_nce", 3e-7), ("sup_con", 6e-7), ("paco", 6e-7)])
def test_gradients_of_a_long_queue_are_within_the_gates(name: str, limit: float) -> None:
    given = Problem(24, 65_536, 128, 1000, tau=0.3).drawn().to(torch.float32)
    rounded, exact = (differentiable(given.to(dtype)) for dtype in (torch.float32, DOUBLE))
    (loss, exact_loss) = (LOSSES[name].ours(p) for p in (rounded, exact))
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-6, atol=0)
    (q,), (exact_q,) = torch.autograd.grad(loss, rounded["q"]), torch.autograd.grad(exact_loss, exact["q"])
    assert float((q - exact_q).abs().max() / exact_q.abs().max()) <= limit


class Watch(TorchDispatchMode):
    """Refuses what waits for the device, and remembers the largest result."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique")

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


def watched(loss: Callable[[], Tensor], inputs: Iterable[Tensor]) -> tuple[int, int]:
    """Largest tensor made, and numbers kept for backward beside the inputs."""
    kept: dict[int, int] = {}
    own = {x.untyped_storage().data_ptr() for x in inputs}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with Watch() as watch, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss().backward()
    return watch.largest, sum(kept.values())


@pytest.mark.parametrize("name", ["nt_xent", *(n for n, loss in LOSSES.items() if "queue" in loss.inputs)])
def test_no_matrix_of_scores_is_made_or_kept_and_nothing_waits(name: str) -> None:
    # the hard losses take some anchors' scores at once: a share of many anchors'
    n, k, d, c = 512 if "hard" in name else 256, 8192, 16, 10
    drawn = Problem(n, k, d, c, "half-filled queue", tau=0.3).drawn()
    p = differentiable(drawn.to(torch.float32))
    largest, kept = watched(lambda: LOSSES[name].ours(p), p.tensors.values())
    scores = 4 * n * n if name == "nt_xent" else n * k
    assert largest <= max(scores // (3 if "hard" in name else 8), k * (d + 1), _streaming._BLOCK["cpu"])
    assert kept <= 4 * k * d
    # and the measure can tell
    q, z = p["q"], p["queue"]
    assert watched(lambda: (q @ z.T).logsumexp(dim=1).mean(), [q, z])[0] >= n * k


def test_any_number_of_classes_costs_the_same() -> None:
    p = differentiable(Problem(64, 4096, 16, 4, tau=0.3).drawn().to(torch.float32))
    labels, queue_labels = (torch.randint(10**12, (m,)) for m in (64, 4096))
    queue_labels[:64] = labels
    p.tensors.update({"labels": labels, "queue_labels": queue_labels})

    def loss() -> Tensor:
        return LOSSES["sup_con"].ours(p)

    assert watched(loss, p.tensors.values())[0] <= max(_streaming._BLOCK["cpu"], 4096 * 17)
    found = loss()
    _, small = torch.cat([labels, queue_labels]).unique(return_inverse=True)
    p.tensors.update({"labels": small[:64], "queue_labels": small[64:]})
    torch.testing.assert_close(found, loss())
