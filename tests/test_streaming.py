"""The losses in linear memory: scores of any size, precision with a long queue, memory, and no waiting.

Their values and gradients are those of `tests/reference.py` (tests/test_functional_references.py).
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace as Problem
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.test_functional_references import LOSSES, ROUNDED, gradients, problem
from zoo.functional import _streaming, contrastive
from zoo.functional._streaming import log_sum_exp


def unit(*shape: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_a_second_derivative_is_refused_not_wrong() -> None:
    q = unit(2, 3, seed=0).requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(log_sum_exp(q, unit(4, 3, seed=1)).sum(), q, create_graph=True)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e30])
def test_scores_neither_overflow_nor_vanish(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_streaming, "CPU_BLOCK", 12)  # many blocks of keys
    monkeypatch.setattr(contrastive, "KEPT", 12)
    q, z = unit(5, 3, seed=0) * scale, unit(30, 3, seed=1)
    torch.testing.assert_close(log_sum_exp(q, z), (q @ z.T).logsumexp(dim=1))
    lowest = q - 1e4 * z.mean(dim=0)  # every score far below 0, and rising from block to block
    torch.testing.assert_close(log_sum_exp(lowest, z), (lowest @ z.T).logsumexp(dim=1))


@pytest.mark.parametrize(("name", "limit"), [("info_nce", 3e-7), ("paco", 6e-7)])
def test_gradients_of_a_long_queue_are_within_the_gates(name: str, limit: float) -> None:
    p = problem(24, 65_536, 128, 1000, "mixed", tau=0.3, dtype=torch.float32)
    exact = Problem(**{**vars(p), **{x: getattr(p, x).double() for x in ROUNDED}})
    (loss, (found,)), (exact_loss, (expected,)) = (
        gradients(LOSSES[name].ours, each, ["q"]) for each in (p, exact)
    )
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-6, atol=0)
    assert float((found - expected).abs().max() / expected.abs().max()) <= limit


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


def watched(loss: Callable[[], Tensor], inputs: Iterable[object]) -> tuple[int, int]:
    """Largest tensor made, and numbers kept for backward beside the inputs."""
    kept: dict[int, int] = {}
    own = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with Watch() as watch, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss().backward()
    return watch.largest, sum(kept.values())


def learned(p: Problem) -> Problem:
    p.tau = torch.tensor(p.tau)
    for name in ("q", "k", "queue", "logits", "tau"):
        getattr(p, name).requires_grad_()
    return p


@pytest.mark.parametrize("name", ["nt_xent", *(n for n, loss in LOSSES.items() if "queue" in loss.inputs)])
def test_no_matrix_of_scores_is_made_or_kept_and_nothing_waits(name: str) -> None:
    # the hard losses take some anchors' scores at once: a share of many anchors'
    n, k, d = 512 if "hard" in name else 256, 8192, 16
    p = learned(problem(n, k, d, 500, tau=0.3, dtype=torch.float32))  # nor one of keys times classes
    largest, kept = watched(lambda: LOSSES[name].ours(p), vars(p).values())
    scores = 4 * n * n if name == "nt_xent" else n * k
    assert largest <= max(scores // (3 if "hard" in name else 8), k * (d + 1), _streaming.CPU_BLOCK)
    assert kept <= 4 * k * d
    # and the measure can tell
    assert watched(lambda: (p.q @ p.queue.T).logsumexp(dim=1).mean(), [p.q, p.queue])[0] >= n * k
