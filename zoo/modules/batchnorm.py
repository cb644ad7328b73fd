"""Ghost BatchNorm: separate statistics for groups of keys, so that statistics do not reveal the pairs.

With the statistics of a whole batch, the network can match an image's two views by its neighbours. Sources:
https://arxiv.org/abs/1911.05722, section 3.3 (shuffling); https://arxiv.org/abs/1705.08741 (ghosts).
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import TrainingError


class _Ghost(_BatchNorm):
    """BatchNorm that in training normalises each group of rows `[g::groups]` with its own statistics.

    A group has at least two rows. Running statistics are updated with the mean of the groups' statistics. If
    rows are tokens of `images` images (LeViT: `[B, N, C]` flattened to `[BN, C]`), groups consist of images.
    """

    groups: int
    images: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        images = self.images or len(x)
        if images == len(x):
            out = self._normalize(x)
        else:
            tokens = x.reshape(images, -1, *x.shape[1:]).transpose(1, 2)  # [B, C, N]
            out = self._normalize(tokens).transpose(1, 2).reshape(x.shape)
        return self.act(self.drop(out)) if isinstance(self, BatchNormAct2d) else out

    def _normalize(self, x: Tensor) -> Tensor:
        norm: Any = self  # it has all buffers: the conversion rejects layers without them
        norm.num_batches_tracked.add_(1)
        groups = max(1, min(self.groups, len(x) // 2))
        affine, settings = (norm.weight, norm.bias), (True, norm.momentum, norm.eps)
        mean, var = norm.running_mean.repeat(groups, 1), norm.running_var.repeat(groups, 1)  # [G, C]
        if len(x) % groups == 0:
            # view row b = i G + g as channels g C + c of row i: no copy, and a single call
            rows = x.reshape(len(x) // groups, mean.numel(), *x.shape[2:])
            scale, shift = (each if each is None else each.repeat(groups) for each in affine)
            out = F.batch_norm(rows, mean.view(-1), var.view(-1), scale, shift, *settings).reshape(x.shape)
        else:
            out = torch.empty_like(x)
            for g in range(groups):
                out[g::groups] = F.batch_norm(x[g::groups], mean[g], var[g], *affine, *settings)
        norm.running_mean.copy_(mean.mean(dim=0))
        norm.running_var.copy_(var.mean(dim=0))
        return out


_GHOSTS: dict[type[nn.Module], Any] = {
    kind: type(f"Ghost{kind.__name__}", (_Ghost, kind), {})
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, BatchNormAct2d)
}


def convert_ghost_batchnorm(module: nn.Module, groups: int) -> nn.Module:
    """Turn every BatchNorm inside `module` into its ghost form, in place; state dict keys stay the same.

    TrainingError for a BatchNorm of another class, or without running statistics or momentum.
    """
    for name, child in module.named_modules():
        if isinstance(child, _BatchNorm):
            if type(child) not in _GHOSTS or child.momentum is None or child.running_mean is None:
                found = f'layer "{name}" is a {type(child).__name__}'
                raise TrainingError(f"{found}, which has no groups of keys, expected objective.key_groups: 1")
            child.__class__ = _GHOSTS[type(child)]
            child.groups = groups  # type: ignore[assignment]  # a plain attribute
    return module


def ghosts(module: nn.Module) -> list[_Ghost]:
    """Return every ghost BatchNorm inside `module`."""
    return [child for child in module.modules() if isinstance(child, _Ghost)]


def has_batchnorm(module: nn.Module) -> bool:
    """Whether any BatchNorm is in training mode, and so computes statistics over the batch."""
    return any(isinstance(child, _BatchNorm) and child.training for child in module.modules())


def synchronize_batchnorm(module: nn.Module) -> None:
    """Turn every BatchNorm inside `module`, except ghosts, into torch's SyncBatchNorm, for GPUs, in place."""
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            setattr(module, name, child if isinstance(child, _Ghost) else convert_sync_batchnorm(child))
        else:
            synchronize_batchnorm(child)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running statistics, including ghosts', that each rank updates only from its own rows."""
    own = [each for each in module.modules() if each.training and not isinstance(each, nn.SyncBatchNorm)]
    buffers = [named for each in own for named in each.named_buffers(recurse=False)]
    return [buffer for name, buffer in buffers if name.startswith("running_")]
