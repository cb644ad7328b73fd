"""BatchNorm over groups of keys and over ranks, and evaluation mode for a while.

The groups are for keys, so that statistics do not tell which key belongs to which query.

With one batch for queries and keys, BatchNorm lets the two views of an image share statistics with the
same neighbours, and the network can find the positive by that alone. MoCo shuffles the keys across GPUs;
on one device a permutation of the whole batch changes nothing, so the key batch is split into groups with
statistics of their own ("ghost" BatchNorm) after it has been permuted.

Source: https://arxiv.org/abs/1911.05722, section 3.3; ghost statistics: https://arxiv.org/abs/1705.08741.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import TrainingError


def _ghost_batch_norm(norm: _BatchNorm, x: Tensor, groups: int, images: int | None) -> Tensor:
    """Normalise the groups `x[0::G], x[1::G], ...` each by its own statistics.

    The running statistics move as if by the mean of the groups' statistics. No group is smaller than two
    rows, so a small last batch has fewer groups.

    Args:
        norm: whose parameters and running statistics these are.
        x: `[B, C, ...]`.
        groups: G.
        images: how many images B are; None: B. Where a row is one of the N tokens of an image
            (`[B, N, C]` flattened to `[BN, C]`, as LeViT does it), groups are of images all the same.

    Raises:
        TrainingError: where rows are neither images nor equally many parts of each.
    """
    if images is not None and images != len(x):
        if len(x) % images:
            what = f"{type(norm).__name__.removeprefix('Ghost')} of {norm.num_features} channels"
            raise _unsplittable(f"a layer {what} that gets {len(x)} rows from {images} images")
        parts = x.reshape(images, -1, *x.shape[1:]).transpose(1, 2)  # [B, C, N, ...]
        return _ghost_batch_norm(norm, parts, groups, None).transpose(1, 2).reshape(x.shape)
    batch, channels = x.shape[:2]
    groups = max(1, min(groups, batch // 2))
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    if batch % groups == 0 and _is_better_by_moments(x):
        return _by_moments(norm, x, groups)

    def tiled(values: Tensor | None, times: int) -> Tensor | None:
        return None if values is None else values.repeat(times)

    def normalise(rows: Tensor, mean: Tensor | None, var: Tensor | None, times: int = 1) -> Tensor:
        weight, bias = tiled(norm.weight, times), tiled(norm.bias, times)
        return F.batch_norm(rows, mean, var, weight, bias, True, norm.momentum or 0.0, norm.eps)

    mean, var = tiled(norm.running_mean, groups), tiled(norm.running_var, groups)
    if batch % groups == 0:
        # rows b = i * G + g read as channel g * C + c of row i: a reshape, no copy, one call
        grouped = x.reshape(batch // groups, groups * channels, *x.shape[2:])
        out = normalise(grouped, mean, var, groups).reshape(x.shape)
    else:
        means = [None] * groups if mean is None else list(mean.view(groups, channels))
        variances = [None] * groups if var is None else list(var.view(groups, channels))
        out = torch.empty_like(x)
        for g in range(groups):
            out[g::groups] = normalise(x[g::groups], means[g], variances[g])
    if mean is not None and var is not None:
        norm.running_mean.copy_(mean.view(groups, channels).mean(dim=0))  # type: ignore[union-attr]
        norm.running_var.copy_(var.view(groups, channels).mean(dim=0))  # type: ignore[union-attr]
    return out


def _unsplittable(layer: str) -> TrainingError:
    return TrainingError(
        f"{layer}: its statistics cannot be split into groups; set objective.key_groups to 1 (keys may then "
        "leak through BatchNorm)"
    )


def _is_better_by_moments(x: Tensor) -> bool:
    """Whether `_by_moments` is for these: on a CPU the copies that it saves cost less than its reductions."""
    innermost = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return x.is_cuda and innermost and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _by_moments(norm: _BatchNorm, x: Tensor, groups: int) -> Tensor:
    """Do the same to `[B, C, H, W]` whose channels lie innermost, and leave them there; B = i * G + g.

    As channels of one batch the groups would have to be copied into the other layout, and what comes next
    would copy them back. Nothing of it is for a backward pass. One multiply-add takes the mean off: where
    that is far larger than the spread, it loses no more than the rounding of `x` itself had lost.
    """
    with torch.autocast(x.device.type, enabled=False):
        grouped = (len(x) // groups, groups, *x.shape[1:])
        out = torch.empty_like(x)
        rows = x.view(grouped)
        over, count = (0, 3, 4), x.numel() // (groups * x.shape[1])
        wide = torch.promote_types(x.dtype, torch.float32)
        mean = rows.mean(over, dtype=wide)  # [G, C]
        # into a tensor of that type: a GPU reads 16-bit values without a copy of them in 32
        var = torch.var(rows, over, correction=0, out=torch.empty_like(mean))
        scale = (var + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight
        shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
        scale, shift = (values[:, :, None, None].to(wide) for values in (scale, shift))
        torch.addcmul(shift, rows, scale, out=out.view(grouped))
        if norm.running_mean is not None and norm.running_var is not None:
            share = norm.momentum or 0.0
            norm.running_mean.lerp_(mean.mean(dim=0).to(norm.running_mean.dtype), share)
            unbiased = var.mean(dim=0) * (count / max(count - 1, 1))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
    return out


class _Ghost(_BatchNorm):
    """Forward of a BatchNorm with `groups` separate statistics in training; evaluation is unchanged."""

    groups: int
    images: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        if not self.training:
            return super().forward(x)
        return _ghost_batch_norm(self, x, self.groups, self.images)


class GhostBatchNorm1d(_Ghost, nn.BatchNorm1d):
    """`nn.BatchNorm1d` with group statistics."""


class GhostBatchNorm2d(_Ghost, nn.BatchNorm2d):
    """`nn.BatchNorm2d` with group statistics."""


class GhostBatchNormAct2d(BatchNormAct2d):  # type: ignore[misc]
    """timm's fused BatchNorm and activation with group statistics."""

    groups: int
    images: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[no-any-return]
        return self.act(self.drop(_ghost_batch_norm(self, x, self.groups, self.images)))  # type: ignore[no-any-return]


_GHOST_OF: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    BatchNormAct2d: GhostBatchNormAct2d,
}
GHOSTS = tuple(_GHOST_OF.values())
"""Classes of BatchNorm with group statistics."""


def convert_ghost_batchnorm(module: nn.Module, groups: int) -> nn.Module:
    """Turn every BatchNorm inside `module` into its ghost form, in place; keys of the state stay the same.

    Raises:
        TrainingError: for a subclass of BatchNorm whose forward is not known here, since leaving it whole
            would leak.
    """
    for name, child in module.named_modules():
        if not isinstance(child, _BatchNorm):
            continue
        ghost = _GHOST_OF.get(type(child))
        if ghost is None or child.momentum is None:
            raise _unsplittable(f'layer "{name}" is a {type(child).__name__} with momentum {child.momentum}')
        child.__class__ = ghost
        child.groups = groups  # type: ignore[assignment]  # a plain attribute
    return module


def set_ghosts(module: nn.Module, *, groups: int | None = None, images: int | None = None) -> None:
    """Tell every ghost BatchNorm inside `module` its number of groups, or how many images a batch is."""
    for child in module.modules():
        if isinstance(child, GHOSTS):
            child.groups = child.groups if groups is None else groups
            child.images = child.images if images is None else images


def has_batchnorm(module: nn.Module) -> bool:
    """Whether any layer computes statistics over the batch, as none does in evaluation mode."""
    return any(isinstance(child, _BatchNorm) and child.training for child in module.modules())


def synchronize_batchnorm(module: nn.Module) -> None:
    """Let every BatchNorm inside `module` take its statistics over all ranks, in place, except ghosts.

    The layers become torch's SyncBatchNorm, which is for GPUs alone; keys of the state stay the same.
    """
    for name, child in module.named_children():
        if isinstance(child, GHOSTS):
            continue
        if isinstance(child, _BatchNorm):
            setattr(module, name, convert_sync_batchnorm(child))
        else:
            synchronize_batchnorm(child)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances that each rank's training moves by its own rows.

    Those are of every BatchNorm in training mode that is not synchronized, groups of keys included, in the
    same order on all ranks. Their means over the ranks are what one rank's groups would have made of them.
    """
    norms = (child for child in module.modules() if isinstance(child, _BatchNorm) and child.training)
    return [
        buffer
        for norm in norms
        if not isinstance(norm, nn.SyncBatchNorm)
        for buffer in (norm.running_mean, norm.running_var)
        if buffer is not None
    ]
