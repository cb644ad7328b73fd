"""Softmax denominators over many keys, block by block: memory is linear in anchors and keys.

The gradient of log sum_j exp(q_i.z_j / tau) with respect to q_i / tau is the softmax-weighted mean of the
keys: attention whose keys are also its values. So one pass over blocks of keys gives value and gradient.
Nothing here synchronizes with the device, and no shape depends on values.
"""

from typing import Any, cast

import torch
from torch import Tensor

CPU_BLOCK, GPU_BLOCK = 2**18, 2**22  # elements in a block


def row_blocks(count: int, width: int, device: torch.device) -> list[slice]:
    """Split `count` rows of `width` elements into blocks that fit a CPU core's cache or fill a GPU."""
    elements = CPU_BLOCK if device.type == "cpu" else GPU_BLOCK
    rows = max(elements // max(width, 1), 1)
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def log_sum_exp(q: Tensor, keys: Tensor, *, usable: Tensor | None = None, itself: bool = False) -> Tensor:
    """Return log sum_j exp(q_i . z_j) for every anchor without materializing the scores `[N, K]`.

    Anchors `q` `[N, D]` are already divided by the temperature; keys `[K, D]` have the same precision.
    `usable` `[K]`, bool, masks the keys that count (the others must be finite, too). With `itself` the keys
    are the anchors, and pairs (i, i) are left out. The result `[N]` is -inf, with zero gradient, where no key
    counts. Differentiable once; the backward pass recomputes scores only if the keys need a gradient.
    Source: the online softmax of https://arxiv.org/abs/1805.02867; as attention,
    https://arxiv.org/abs/2205.14135.
    """
    return cast("Tensor", _LogSumExp.apply(q, keys, usable, itself))


class _LogSumExp(torch.autograd.Function):
    """Saves the result `[N]` and the mean key `[N, D]` for the backward pass, nothing of size N x K."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, usable: Tensor | None, itself: bool) -> Tensor:
        bias = None
        if usable is not None:
            bias = torch.zeros_like(usable, dtype=keys.dtype).masked_fill_(~usable, -torch.inf)
        # the lowest finite value instead of -inf, since -inf - -inf is NaN
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
        if torch.is_grad_enabled():  # create_graph=True: the saved means would be treated as constants
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
    """Return all anchors' scores for one block of keys, -inf where a key does not count."""
    scores = q @ keys[block].T if bias is None else torch.addmm(bias[block], q, keys[block].T)
    if itself:
        scores.diagonal(-block.start).fill_(-torch.inf)
    return scores
