"""ResNets for 32-pixel images, registered with timm: two families that are often confused.

`cifar_resnet20/32/44/56/110` (0.27 to 1.7 M parameters): He et al. 2016, https://arxiv.org/abs/1512.03385,
section 4.2: 3x3 stem, three stages of n blocks with 16, 32 and 64 channels, depth 6n + 2, shortcuts without
parameters ("option A").

`resnet18_cifar`, `resnet50_cifar` are timm's ResNets for ImageNet with a 3x3 convolution of stride 1 instead
of 7x7 with stride 2, and no max-pool: a total stride of 8 instead of 32. SimCLR describes them for CIFAR-10
(https://arxiv.org/abs/2002.05709, appendix B.9); SupCon, PiCO and solo-learn train them. As everywhere in
timm, the last BatchNorm of a block starts at zero; in the code of SupCon and PiCO at one, which is
`zero_init_last: false`. `stem_padding` (1) is for others' weights: solo-learn uses 2 on CIFAR, so that its
maps are 34 pixels wide.
"""

from copy import deepcopy
from typing import Any

import torch
from timm.layers import create_classifier
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices  # as timm's own models do
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F

_CFG = {
    "url": "",
    "num_classes": 10,
    "input_size": (3, 32, 32),
    "pool_size": (4, 4),
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "first_conv": "conv1",
    "classifier": "fc",
    "license": "apache-2.0",
    "paper_ids": ["arXiv:1512.03385", "arXiv:2002.05709"],
}
_HE = _CFG | {"pool_size": (8, 8), "paper_ids": "arXiv:1512.03385"}
default_cfgs = generate_default_cfgs(
    {f"cifar_resnet{depth}": _HE for depth in (20, 32, 44, 56, 110)}
    | {"resnet18_cifar": _CFG, "resnet50_cifar": _CFG}
)


class Subsample(nn.Module):
    """Parameter-free shortcut (option A): every `stride`-th pixel, and zeros in the new channels.

    The zeros go on both sides, as in the code of the long-tail literature (LDAM, PaCo), so that its
    weights can be used here. The paper does not say where they go.
    """

    def __init__(self, stride: int, new_chs: int) -> None:
        super().__init__()
        self.stride, self.new_chs = stride, new_chs

    def forward(self, x: Tensor) -> Tensor:
        before = self.new_chs // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_chs - before))


class CifarResNet(ResNet):  # type: ignore[misc]  # timm has no types
    """A CIFAR ResNet of `blocks` residual blocks per stage, n in "depth 6n + 2", with timm's interface."""

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
        nn.Module.__init__(self)  # timm's __init__ would build another network
        self.num_classes, self.in_chans, self.drop_rate = num_classes, in_chans, drop_rate
        self.grad_checkpointing = False
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn1, self.act1, self.maxpool = nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Identity()
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.layer4 = nn.Sequential()
        self.feature_info = [
            {"num_chs": 16, "reduction": 1, "module": "layer1"},
            {"num_chs": 32, "reduction": 2, "module": "layer2"},
            {"num_chs": 64, "reduction": 4, "module": "layer3"},
        ]
        self.num_features = 64
        self.global_pool, self.fc = create_classifier(64, num_classes, pool_type=global_pool)
        self.head_hidden_size = 64 * self.global_pool.feat_mult()
        self.init_weights(zero_init_last=False)
        self.to(device=device, dtype=dtype)

    def forward_intermediates(self, x: Tensor, indices: int | list[int] | None = None, **kwargs: Any) -> Any:
        """Return feature maps as timm's ResNet does, but `indices` do not count the stem's map."""
        taken, _ = feature_take_indices(len(self.feature_info), indices)
        return super().forward_intermediates(x, [1 + index for index in taken], **kwargs)

    def prune_intermediate_layers(self, indices: int | list[int] = 1, **kwargs: Any) -> list[int]:
        """Remove the classifier and keep all stages."""
        self.reset_classifier(0, "")
        return list(feature_take_indices(len(self.feature_info), indices)[0])


def _stage(in_chs: int, out_chs: int, blocks: int, stride: int) -> nn.Sequential:
    shortcut = Subsample(stride, out_chs - in_chs) if stride > 1 else None
    first = BasicBlock(in_chs, out_chs, stride, downsample=shortcut)
    return nn.Sequential(first, *(BasicBlock(out_chs, out_chs) for _ in range(blocks - 1)))


def _resnet(*, stem_padding: int = 1, **kwargs: Any) -> ResNet:
    """Build timm's ResNet and replace its stem, keeping timm's names of modules and parameters."""
    for key in {"stem_type", "stem_width", "replace_stem_pool"} & kwargs.keys():
        raise TypeError(f"{key} has no effect: the stem is one 3x3 convolution")
    model = ResNet(**kwargs)
    first = model.conv1
    like = {"device": first.weight.device, "dtype": first.weight.dtype}
    model.conv1 = nn.Conv2d(
        first.in_channels, first.out_channels, 3, padding=stem_padding, bias=False, **like
    )
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as in timm
    model.maxpool = nn.Identity()
    stem, *stages = model.feature_info
    model.feature_info = [
        {**stem, "reduction": stem["reduction"] // 2},
        *({**stage, "reduction": stage["reduction"] // 4} for stage in stages),
    ]
    return model


def _register(name: str, model: Any, **args: Any) -> None:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> Any:
        # a copy, because timm writes the caller's `out_indices` into `feature_cfg`
        return build_model_with_cfg(model, name, pretrained, **(deepcopy(args) | kwargs))

    entrypoint.__name__ = name  # timm registers it by this name
    globals()[name] = register_model(entrypoint)


for _depth in (20, 32, 44, 56, 110):
    _stages = {"out_indices": (0, 1, 2)}
    _register(f"cifar_resnet{_depth}", CifarResNet, blocks=(_depth - 2) // 6, feature_cfg=_stages)
_register("resnet18_cifar", _resnet, num_classes=10, block=BasicBlock, layers=(2, 2, 2, 2))
_register("resnet50_cifar", _resnet, num_classes=10, block=Bottleneck, layers=(3, 4, 6, 3))
