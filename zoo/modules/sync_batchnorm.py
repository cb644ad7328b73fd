"""BatchNorm whose statistics are those of all ranks' rows together.

torch's own SyncBatchNorm is for GPUs alone, and waits for the device in every layer. This one uses the same
kernels there, and the same equations on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import TrainingError
from zoo.functional.checks import to_float32 as full
from zoo.modules.batchnorm import GHOSTS
from zoo.ranks import Ranks


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(biased variance + eps) of each channel `[C]`."""
    var, mean = torch.var_mean(full(x), _but_channels(x), correction=0)
    return mean, (var + eps).rsqrt()


def _joined_stats(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Join several ranks' `_stats` `[W, C]` of `counts` `[W]` rows; the running statistics move in place."""
    count, weights = counts.sum(), counts[:, None]
    mean = (weights * means).sum(dim=0) / count
    variances = inverses.pow(-2) - eps
    # the deviations from the joint mean, never a difference of two sums of squares
    squares = (weights * (variances + (means - mean).square())).sum(dim=0)
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_((squares / (count - 1)).to(running_var.dtype), momentum)
    return mean, (squares / count + eps).rsqrt()


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, eps: float
) -> Tensor:
    scale = inverse if weight is None else inverse * weight
    out = (full(x) - mean.view(_shape(x))).mul_(scale.view(_shape(x)))
    return (out if bias is None else out.add_(bias.view(_shape(x)))).to(x.dtype)


def _sums(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over the rows `[C]`: gradient, gradient x deviation, and the gradients of weight and bias."""
    grad = full(grad)
    total = grad.sum(_but_channels(x))
    product = (full(x) - mean.view(_shape(x))).mul_(grad).sum(_but_channels(x))
    return total, product, product * inverse, total


def _gradient(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    total: Tensor,
    product: Tensor,
    counts: Tensor,
) -> Tensor:
    """Gradient of the rows, given all ranks' sums."""
    shape, count = _shape(x), counts.sum()
    scale = inverse if weight is None else inverse * weight
    slope = product * inverse.square() / count
    of_x = (full(x) - mean.view(shape)).mul_(-slope.view(shape))
    of_x.add_(grad).sub_((total / count).view(shape)).mul_(scale.view(shape))
    return of_x.to(x.dtype)


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _shape(x: Tensor) -> list[int]:
    return [-1 if dim == 1 else 1 for dim in range(x.dim())]


class _Kernels(NamedTuple):
    stats: Callable[..., tuple[Tensor, Tensor]]
    joined_stats: Callable[..., tuple[Tensor, Tensor]]
    normalized: Callable[..., Tensor]
    sums: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    gradient: Callable[..., Tensor]


_ON_CPU = _Kernels(_stats, _joined_stats, _normalized, _sums, _gradient)
_ON_GPU = _Kernels(
    torch.batch_norm_stats,
    torch.batch_norm_gather_stats_with_counts,
    torch.batch_norm_elemt,
    torch.batch_norm_backward_reduce,
    torch.batch_norm_backward_elemt,
)


class _SyncBatchNorm(torch.autograd.Function):
    """One collective forward and one backward; keeps the input and `[C]` of statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        ranks: Ranks,
    ) -> Tensor:
        kernels, x = _kernels(x), _dense(x)
        mean, inverse = kernels.stats(x, eps)
        count = mean.new_full((1,), x.numel() // x.shape[1])
        everyones = ranks.all_gather(torch.cat([mean, inverse, count]))
        means, inverses, counts = torch.split(everyones, [len(mean), len(mean), 1], dim=1)
        counts = counts.flatten()
        # the kernel wants its tensors as the running statistics are
        kept = counts if running_mean is None else counts.to(running_mean.dtype)
        mean, inverse = kernels.joined_stats(
            x, means.contiguous(), inverses.contiguous(), running_mean, running_var, momentum, eps, kept
        )
        ctx.ranks = ranks
        ctx.save_for_backward(x, weight, mean, inverse, counts.to(torch.int32))
        return kernels.normalized(x, weight, bias, mean, inverse, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, counts = ctx.saved_tensors
        kernels, grad = _kernels(x), _dense(grad)
        total, product, of_weight, of_bias = kernels.sums(
            grad, x, mean, inverse, weight, *ctx.needs_input_grad[:3]
        )
        of_x = None
        if ctx.needs_input_grad[0]:  # the same on all ranks
            total, product = ctx.ranks.all_reduce(torch.stack([total, product]))
            scale = None if weight is None else weight.to(mean.dtype)
            of_x = kernels.gradient(grad, x, mean, inverse, scale, total, product, counts)
        return (
            of_x,
            of_weight if ctx.needs_input_grad[1] else None,
            of_bias if ctx.needs_input_grad[2] else None,
            *([None] * 5),
        )


def _kernels(x: Tensor) -> _Kernels:
    return _ON_GPU if x.is_cuda else _ON_CPU


def _dense(x: Tensor) -> Tensor:
    """The kernels read either of the two layouts."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def _sync_batch_norm(norm: _BatchNorm, ranks: Ranks, x: Tensor) -> Tensor:
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return cast(
        "Tensor",
        _SyncBatchNorm.apply(
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, ranks
        ),
    )


class _Synchronized(_BatchNorm):
    """Forward of a BatchNorm with joint statistics in training; evaluation is unchanged."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        return _sync_batch_norm(self, self.ranks, x) if self.training else super().forward(x)


class SyncBatchNorm1d(_Synchronized, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all ranks."""


class SyncBatchNorm2d(_Synchronized, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all ranks."""


class SyncBatchNormAct2d(BatchNormAct2d):  # type: ignore[misc]
    """timm's fused BatchNorm and activation over all ranks."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[no-any-return]
        return self.act(self.drop(_sync_batch_norm(self, self.ranks, x)))  # type: ignore[no-any-return]


_SYNCHRONIZED: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    BatchNormAct2d: SyncBatchNormAct2d,
}


def synchronize_batchnorm(module: nn.Module, ranks: Ranks) -> nn.Module:
    """Let every BatchNorm inside `module` take its statistics over all ranks, in place.

    Keys of the state stay the same. Groups of keys (`convert_ghost_batchnorm`) keep theirs apart; with one
    rank nothing changes. Every rank has to compute the same layers in the same order.

    Raises:
        TrainingError: for a subclass of BatchNorm whose forward is not known here.
    """
    if ranks.alone:
        return module
    for name, child in module.named_modules():
        if not isinstance(child, _BatchNorm) or isinstance(child, (*GHOSTS, *_SYNCHRONIZED.values())):
            continue
        synchronized = _SYNCHRONIZED.get(type(child))
        if synchronized is None or child.momentum is None:
            raise TrainingError(
                f'layer "{name}" is a {type(child).__name__} with momentum {child.momentum}, whose '
                "statistics cannot be taken over several ranks; set training.sync_batchnorm to false"
            )
        child.__class__ = synchronized
        child.ranks = ranks  # type: ignore[assignment]  # a plain attribute
    return module


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances that each rank's training moves by its own rows.

    Those are of every BatchNorm in training mode that is not synchronized, groups of keys included, in the
    same order on all ranks. Their means over the ranks are what one rank's groups would have made of them.
    """
    return [
        buffer
        for child in module.modules()
        if isinstance(child, _BatchNorm)
        and child.training
        and not isinstance(child, tuple(_SYNCHRONIZED.values()))
        for buffer in (child.running_mean, child.running_var)
        if buffer is not None
    ]
