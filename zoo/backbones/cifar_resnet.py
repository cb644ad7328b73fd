"""The CIFAR ResNets of He et al. 2016, registered with timm as `cifar_resnet20/32/44/56/110`.

Deep Residual Learning, https://arxiv.org/abs/1512.03385, section 4.2: 3x3 stem, three stages of n blocks
with 16, 32 and 64 channels, depth 6n + 2, shortcuts without parameters ("option A").
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import create_classifier
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices  # timm's models take it from there too
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: `[B, in, H, W]` -> `[B, out, H/stride, W/stride]`."""

    def __init__(self, in_chs: int, out_chs: int, stride: int, **dd: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chs, out_chs, 3, stride, padding=1, bias=False, **dd)
        self.bn1 = nn.BatchNorm2d(out_chs, **dd)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_chs, out_chs, 3, padding=1, bias=False, **dd)
        self.bn2 = nn.BatchNorm2d(out_chs, **dd)
        self.act2 = nn.ReLU(inplace=True)
        self.stride = stride
        self.new_chs = out_chs - in_chs

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.act2(y + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """Option A: subsample, and fill the new channels with zeros.

        The zeros go to both sides, as in the code that the long-tail literature trains with (LDAM, PaCo),
        so that its weights mean the same here. The paper does not say where they go.
        """
        if self.stride == 1 and self.new_chs == 0:
            return x
        before = self.new_chs // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_chs - before))


def _stage(in_chs: int, out_chs: int, blocks: int, stride: int, **dd: Any) -> nn.Sequential:
    first = BasicBlock(in_chs, out_chs, stride, **dd)
    return nn.Sequential(first, *(BasicBlock(out_chs, out_chs, 1, **dd) for _ in range(blocks - 1)))


class CifarResNet(nn.Module):
    """A CIFAR ResNet with timm's model interface.

    Args:
        blocks: residual blocks per stage, n in "depth 6n + 2".
        num_classes: size of the classifier; 0 for none.
        in_chans: channels of the input.
        global_pool: timm's pooling type; '' for none, which needs `num_classes=0`.
        drop_rate: dropout before the classifier.
        device, dtype: where and how parameters are created, as in `torch.nn`.
    """

    global_pool: Any  # timm's SelectAdaptivePool2d
    fc: nn.Module

    def __init__(
        self,
        blocks: int,
        num_classes: int = 10,
        in_chans: int = 3,
        *,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.drop_rate = drop_rate
        self.grad_checkpointing = False

        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False, **dd)
        self.bn1 = nn.BatchNorm2d(16, **dd)
        self.act1 = nn.ReLU(inplace=True)
        self.layer1 = _stage(16, 16, blocks, stride=1, **dd)
        self.layer2 = _stage(16, 32, blocks, stride=2, **dd)
        self.layer3 = _stage(32, 64, blocks, stride=2, **dd)
        self.feature_info = [
            {"num_chs": 16, "reduction": 1, "module": "layer1"},
            {"num_chs": 32, "reduction": 2, "module": "layer2"},
            {"num_chs": 64, "reduction": 4, "module": "layer3"},
        ]
        self.num_features = 64
        self.reset_classifier(num_classes, global_pool)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return the layers' groups for layer-wise learning rates."""
        return {"stem": r"^conv1|bn1", "blocks": r"^layer(\d+)" if coarse else r"^layer(\d+)\.(\d+)"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade compute for memory in the backward pass."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """Return the classifier: `nn.Linear`, or `nn.Identity` without classes."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a fresh one, and the pooling too if `global_pool` is given."""
        pool_type = self.global_pool.pool_type if global_pool is None else global_pool
        self.num_classes = num_classes
        self.global_pool, self.fc = create_classifier(self.num_features, num_classes, pool_type=pool_type)
        self.fc.to(device=self.conv1.weight.device, dtype=self.conv1.weight.dtype)
        self.head_hidden_size = self.num_features * self.global_pool.feat_mult()
        self.global_pool.train(self.training)
        self.fc.train(self.training)

    def forward_features(self, x: Tensor) -> Tensor:
        """`[B, in_chans, H, W]` -> `[B, 64, H/4, W/4]`."""
        x = self.act1(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = checkpoint_seq(stage, x) if self.grad_checkpointing else stage(x)
        return x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        *,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the feature maps of the chosen stages, and the last stage's unless `intermediates_only`.

        The interface is that of timm's models; there is no final norm here, so `norm` changes nothing.
        """
        if output_fmt != "NCHW":
            raise ValueError(f'output_fmt: found "{output_fmt}", expected "NCHW"')
        taken, last = feature_take_indices(len(self.feature_info), indices)
        stages = (self.layer1, self.layer2, self.layer3)
        intermediates = []
        x = self.act1(self.bn1(self.conv1(x)))
        for index, stage in enumerate(stages[: last + 1] if stop_early else stages):
            x = checkpoint_seq(stage, x) if self.grad_checkpointing else stage(x)
            if index in taken:
                intermediates.append(x)
        return intermediates if intermediates_only else (x, intermediates)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """`[B, 64, h, w]` -> logits `[B, num_classes]`; the pooled features `[B, 64]` with `pre_logits`."""
        x = self.global_pool(x)
        x = F.dropout(x, self.drop_rate, training=self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


_CFG = {
    "url": "",
    "num_classes": 10,
    "input_size": (3, 32, 32),
    "pool_size": (8, 8),
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "first_conv": "conv1",
    "classifier": "fc",
    "license": "apache-2.0",
    "paper_ids": "arXiv:1512.03385",
}
default_cfgs = generate_default_cfgs({f"cifar_resnet{depth}": _CFG for depth in (20, 32, 44, 56, 110)})


def _create(variant: str, blocks: int, pretrained: bool, **kwargs: Any) -> CifarResNet:
    return build_model_with_cfg(
        CifarResNet,
        variant,
        pretrained,
        blocks=blocks,
        feature_cfg={"out_indices": (0, 1, 2)},
        **kwargs,
    )


@register_model
def cifar_resnet20(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """0.27 M parameters."""
    return _create("cifar_resnet20", 3, pretrained, **kwargs)


@register_model
def cifar_resnet32(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """0.46 M parameters."""
    return _create("cifar_resnet32", 5, pretrained, **kwargs)


@register_model
def cifar_resnet44(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """0.66 M parameters."""
    return _create("cifar_resnet44", 7, pretrained, **kwargs)


@register_model
def cifar_resnet56(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """0.85 M parameters."""
    return _create("cifar_resnet56", 9, pretrained, **kwargs)


@register_model
def cifar_resnet110(pretrained: bool = False, **kwargs: Any) -> CifarResNet:
    """1.7 M parameters."""
    return _create("cifar_resnet110", 18, pretrained, **kwargs)
