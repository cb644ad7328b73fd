"""Softmax denominators over many keys, a block at a time: memory linear in anchors and keys.

The gradient of log sum_j exp(q_i.z_j / tau) with respect to q_i / tau is the softmax-weighted mean of the
keys: attention whose keys and values are the same. So one pass over blocks of keys gives value and gradient.
Nothing here waits for the device, and shapes do not depend on values.
"""

from typing import Any, cast

import torch
from torch import Tensor

BLOCK, GPU_BLOCK = {"cpu": 2**18}, 2**22  # numbers in a block, by type of device: what stays in a cache


def row_blocks(count: int, width: int, device: torch.device) -> list[slice]:
    """Cut `count` rows of `width` numbers into blocks that stay in a core's cache, or fill a GPU."""
    rows = max(BLOCK.get(device.type, GPU_BLOCK) // max(width, 1), 1)
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def log_sum_exp(q: Tensor, keys: Tensor, *, usable: Tensor | None = None, itself: bool = False) -> Tensor:
    """Return log sum_j exp(q_i . z_j) of every anchor without ever holding the scores `[N, K]`.

    Anchors `[N, D]` come divided by the temperature, keys `[K, D]` in the same precision. `usable` `[K]`,
    bool, says which keys count (the others must be finite too); with `itself` the keys are the anchors' own
    rows, and pair (i, i) is left out. The result `[N]` is -inf, with gradient zero, where no key counts.
    Differentiable once; the backward pass recomputes scores only where the keys need a gradient.
    Source: the online softmax of https://arxiv.org/abs/1805.02867; as attention,
    https://arxiv.org/abs/2205.14135.
    """
    return cast("Tensor", _LogSumExp.apply(q, keys, usable, itself))


class _LogSumExp(torch.autograd.Function):
    """Keeps the result `[N]` and the mean key `[N, D]` for the backward pass, and nothing of size N x K."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, usable: Tensor | None, itself: bool) -> Tensor:
        bias = None
        if usable is not None:
            bias = torch.zeros_like(usable, dtype=keys.dtype).masked_fill_(~usable, -torch.inf)
        # the least number instead of -inf, whose difference with itself is not a number
        highest = q.new_full((len(q), 1), torch.finfo(q.dtype).min)
        total, means = torch.zeros_like(highest), torch.zeros_like(q)
        with torch.autocast(q.device.type, enabled=False):
            for block in row_blocks(len(keys), len(q), q.device):
                scores = _scores(q, keys, bias, itself, block)
                higher = torch.maximum(highest, scores.amax(dim=1, keepdim=True))
                shrink = (highest - higher).exp_()  # rescales the sums so far to the new maximum
                scores.sub_(higher).exp_()
                total.mul_(shrink).add_(scores.sum(dim=1, keepdim=True))
                if ctx.needs_input_grad[0]:
                    means.mul_(shrink).addmm_(scores, keys[block])
                highest = higher
        result = (highest + total.log()).squeeze(1)
        means.div_(total.clamp_(min=torch.finfo(q.dtype).tiny))
        ctx.itself = itself
        ctx.save_for_backward(means, *([q, keys, bias, result] if ctx.needs_input_grad[1] else []))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if torch.is_grad_enabled():  # create_graph=True; the kept means would pass for constants
            raise RuntimeError("streamed losses have no second derivative")
        means, *again = ctx.saved_tensors
        of_q = gradient[:, None] * means if ctx.needs_input_grad[0] else None
        if not again:
            return of_q, None, None, None
        q, keys, bias, result = again
        of_keys, pushed = torch.empty_like(keys), gradient[:, None] * q
        denominator = result.clamp(min=torch.finfo(q.dtype).min)[:, None]
        with torch.autocast(q.device.type, enabled=False):
            for block in row_blocks(len(keys), len(q), q.device):
                softmax = _scores(q, keys, bias, ctx.itself, block).sub_(denominator).exp_()
                torch.mm(softmax.T, pushed, out=of_keys[block])
        return of_q, of_keys, None, None


def _scores(q: Tensor, keys: Tensor, bias: Tensor | None, itself: bool, block: slice) -> Tensor:
    """Return the scores of all anchors with one block of keys, -inf where a key does not count."""
    scores = q @ keys[block].T if bias is None else torch.addmm(bias[block], q, keys[block].T)
    if itself:
        scores.diagonal(-block.start).fill_(-torch.inf)
    return scores
