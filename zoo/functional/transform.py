"""Feature transformation (FT): harder positives and more diverse negatives, made from the features.

Source: Zhu et al. 2021, https://arxiv.org/abs/2108.02982. Also the EMA update of momentum encoders.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.errors import ArgumentError


def sample_beta(
    alpha: float,
    shape: Sequence[int],
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw float32 samples of the symmetric Beta(alpha, alpha), alpha > 1/2; `generator` must be on `device`.
    X = 1/2 + 1/2 sqrt(1 - U^(2 / (2 alpha - 1))) cos(2 pi V), exact, with U and V uniform in [0, 1].
    Source: Ulrich 1984, as in Devroye 1996, "Random variate generation in one line of code".
    """
    if not alpha > 0.5:
        raise ArgumentError(f"alpha: found {alpha}, expected a number above 0.5")
    # 64 random bits take 0.6 of the time of two floats: |a| / 2^31 is U, b / 2^32 is V, up to a whole turn
    bits = torch.empty(math.prod(shape), dtype=torch.int64, device=device)
    bits.random_(-(2**63), None, generator=generator)
    a, b = bits.view(torch.int32).view(2, *shape).float()
    # U^p as exp(p log U); for U = 0 the log is -inf and the power 0
    power = a.abs_().mul_(2.0**-31).log_().mul_(2 / (2 * alpha - 1)).exp_()
    radius = torch.rsub(power, 1).clamp_(min=0).sqrt_()
    samples: Tensor = b.mul_(2 * math.pi / 2**32).cos_().mul_(radius).add_(1).mul_(0.5)
    return samples


def extrapolate(q: Tensor, k: Tensor, lam: Tensor | float) -> tuple[Tensor, Tensor]:
    """Push a positive pair `[N, D]` apart: q^ = lam q + (1 - lam) k, k^ = lam k + (1 - lam) q, lam >= 1.

    For unit rows and one lam per pair, q^.k^ = 2 lam (1 - lam) (1 - q.k) + q.k <= q.k: a harder positive.
    `lam` is a number, one per pair `[N]`, or broadcastable to `[N, D]`. The results are not renormalised.
    Source: https://arxiv.org/abs/2108.02982, equations 3 to 5.
    """
    lam = _by_row(lam, len(q)) if isinstance(lam, Tensor) else lam
    return lam * q + (1 - lam) * k, lam * k + (1 - lam) * q


def interpolate(queue: Tensor, lam: Tensor | float, perm: Tensor) -> Tensor:
    """Mix each negative `[K, D]` with another: lam Z + (1 - lam) Z[perm]; not renormalised.
    `lam` in [0, 1] is a number, one per row `[K]`, or broadcastable to `[K, D]`; `perm` `[K]` permutes rows.
    Source: https://arxiv.org/abs/2108.02982, equation 6.
    """
    lam = torch.as_tensor(lam, dtype=queue.dtype, device=queue.device)
    # in place, to save the memory of a second queue
    return torch.index_select(queue, 0, perm).lerp_(queue, _by_row(lam, len(queue)))


def _by_row(lam: Tensor, rows: int) -> Tensor:
    """Reshape coefficients `[N]` to `[N, 1]`, so that they broadcast over rows and not over dimensions."""
    return lam[:, None] if lam.shape == (rows,) else lam


def permute_filled(valid: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Return a random permutation `[K]` of a queue's filled slots, which come first; empty ones stay."""
    order = torch.randperm(len(valid), device=valid.device, generator=generator)
    filled = valid[order]
    place = torch.where(filled, filled.cumsum(dim=0) - 1, len(valid))  # slot K is cut off below
    return torch.arange(len(valid) + 1, device=valid.device).index_copy_(0, place, order)[:-1]


def permute_within_classes(labels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Return a random permutation `[K]` that maps each slot to one with the same label (-1 if empty)."""
    shuffled = torch.randperm(len(labels), device=labels.device, generator=generator)
    # the n-th slot of a class in queue order maps to the n-th of that class in random order
    permutation = torch.empty_like(shuffled)
    permutation[labels.argsort(stable=True)] = shuffled[labels[shuffled].argsort(stable=True)]
    return permutation


@torch.no_grad()
def ema_update(teacher_tensors: Sequence[Tensor], student_tensors: Sequence[Tensor], momentum: float) -> None:
    """Update the teacher's tensors toward the student's, in place: t <- momentum t + (1 - momentum) s.
    Source: https://arxiv.org/abs/1911.05722, equation 2.
    """
    if teacher_tensors:
        torch._foreach_lerp_(list(teacher_tensors), list(student_tensors), 1 - momentum)
