"""ResNets for ImageNet with a stem for 32 pixels, registered with timm as `resnet18_cifar`, `resnet50_cifar`.

timm's ResNet with a 3x3 convolution of stride 1 for the 7x7 one of stride 2, and no max-pool: a stride of 8
for 32. SimCLR describes it for CIFAR-10 (https://arxiv.org/abs/2002.05709, appendix B.9); SupCon, PiCO,
solo-learn and the literature on the temperature train it. It is not He et al.'s own CIFAR ResNet, which is
deeper and narrower: that is in `zoo.backbones.cifar_resnet`.

As everywhere in timm, the last BatchNorm of a block starts at zero; the code of SupCon and PiCO starts it at
one: `zero_init_last: false` in the backbone's arguments.

Two further arguments are for weights that others trained with another stem: `stem_padding` (1; solo-learn
has 2 on CIFAR, so its maps are 34 pixels wide) and `stem_act` (true; lightly's CIFAR examples lack the ReLU).
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

_STEM = {"stem_type", "stem_width", "replace_stem_pool"}  # timm's arguments for what is replaced here


def _resnet(*, stem_padding: int = 1, stem_act: bool = True, **kwargs: Any) -> ResNet:
    """Build timm's ResNet and exchange its stem; names of modules and parameters stay timm's."""
    for key in _STEM & kwargs.keys():
        raise TypeError(f"{key} has no effect: the stem is one 3x3 convolution")
    model = ResNet(**kwargs)
    first = model.conv1
    like = {"device": first.weight.device, "dtype": first.weight.dtype}
    model.conv1 = nn.Conv2d(
        first.in_channels, first.out_channels, 3, padding=stem_padding, bias=False, **like
    )
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as timm's other ones
    if not stem_act:
        model.act1 = nn.Identity()
    model.maxpool = nn.Identity()
    stem, *stages = model.feature_info
    model.feature_info = [
        {**stem, "reduction": stem["reduction"] // 2},
        *({**stage, "reduction": stage["reduction"] // 4} for stage in stages),
    ]
    return model


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
default_cfgs = generate_default_cfgs({"resnet18_cifar": _CFG, "resnet50_cifar": _CFG})


def _create(variant: str, pretrained: bool, **kwargs: Any) -> ResNet:
    kwargs.setdefault("num_classes", 10)  # timm's ResNet itself has 1000
    return build_model_with_cfg(_resnet, variant, pretrained, **kwargs)


@register_model
def resnet18_cifar(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """11.17 M parameters; 512 features."""
    return _create("resnet18_cifar", pretrained, block=BasicBlock, layers=(2, 2, 2, 2), **kwargs)


@register_model
def resnet50_cifar(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """23.52 M parameters; 2048 features."""
    return _create("resnet50_cifar", pretrained, block=Bottleneck, layers=(3, 4, 6, 3), **kwargs)
