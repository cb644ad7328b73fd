"""The projects whose files are understood: a plain dict; the layouts themselves are in `rules`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from zoo.release.convert import rules
from zoo.release.convert.rules import QUEUE, Part, Rules, momentum_only

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_INATURALIST: Statistics = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))  # PaCo, LT/paco_lt.py
_CIFAR100: Statistics = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))  # PiCO, utils/cifar100.py

# What torchvision has under the names of timm, and the same with names of timm or of this project alone.
_RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200"),
    *("resnext50_32x4d", "resnext101_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
    *("wide_resnet50_2", "wide_resnet101_2"),
)
_CIFAR_RESNETS = ("resnet18_cifar", "resnet50_cifar")
_PACO_RESNETS = (*_RESNETS, *(f"cifar_resnet{depth}" for depth in (20, 32, 44, 56, 110)))
_VITS = (
    *(f"vit_{size}_patch16_{pixels}" for size in ("tiny", "small", "base", "large") for pixels in (224, 384)),
    *(f"vit_{size}_patch32_{pixels}" for size in ("small", "base", "large") for pixels in (224, 384)),
    *("vit_small_patch8_224", "vit_base_patch8_224", "vit_huge_patch14_224"),
)
_OTHERS = (
    *(f"convnext_{size}" for size in ("tiny", "small", "base", "large", "xlarge")),
    *(f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")),
    *(f"swin_{size}_patch4_window12_384" for size in ("base", "large")),
)


@dataclass(frozen=True)
class Layout:
    """One way in which a family's files are laid out.

    Attributes:
        rules: see the module `rules`.
        needs: what must be there, besides an encoder: a part, or something that is left out.
    """

    rules: Rules
    needs: tuple[Part | str, ...] = ()


@dataclass(frozen=True)
class Family:
    """A project whose checkpoints can be converted.

    Attributes:
        repository: its code, where the layout was read.
        objective: the objective of this project that is the same, or "unknown" where the family has many.
        license: the one that the repository states, as the Hub writes it, or "unknown".
        layouts: in the order in which they are tried.
        architectures: of timm, which compute what the authors' encoders do; many others have the same shapes.
        any_architecture: whether its users bring encoders of their own, which are none of these.
        any_weights: whether it is no project's layout: a model of timm as its state dict is, whoever trained
            it, so that nothing is known of it but its architecture.
        cifar: mean and standard deviation with which the authors evaluate 32-pixel images, if they do.
        by_classes: the same for data that the number of centers tells, e.g. the 8,142 classes of iNaturalist.
        arguments: what shapes do not show: arguments of the architecture, from the tensors of the encoder as
            they are in the file.
    """

    repository: str
    objective: str
    license: str
    layouts: tuple[Layout, ...]
    architectures: tuple[str, ...]
    any_architecture: bool = False
    any_weights: bool = False
    cifar: Statistics | None = None
    by_classes: Mapping[int, Statistics] = field(default_factory=dict)
    arguments: Callable[[Mapping[str, Tensor]], dict[str, Any]] = field(default=lambda encoder: {})


def _moco_v3(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """MoCo v3's ViT-S has 12 heads, where everyone else's has 6. The weights have the same shapes."""
    return {"num_heads": 12} if _width(encoder) == 384 else {}


def _gpaco(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """Their ViTs are MAE's: the mean of the patches, normalised after it (`fc_norm`)."""
    return {"global_pool": "avg"} if "fc_norm.weight" in encoder else {}


def _solo_learn(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """Its ResNets for CIFAR pad the first convolution by 2; its ViTs of MoCo v3 and MAE have 12 heads.

    Those two have sine-cosine positions, which leave zeros for the class token.
    """
    first, positions = encoder.get("conv1.weight"), encoder.get("pos_embed")
    if first is not None and first.shape[-1] == 3:
        return {"stem_padding": 2}
    if positions is not None and not positions[:, 0].any() and _width(encoder) in (192, 384):
        return {"num_heads": 12}
    return {}


def _lightly(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """`nn.Sequential(*list(ResNetGenerator(...).children())[:-1], ...)` lacks the ReLU after the stem.

    lightly's own ResNet applies it as a function, so it is no child; the tutorials and the CIFAR benchmark
    train without it. The stages then have the indices 2 to 5; torchvision's ReLU and pooling make it 4 to 7.
    """
    return {"stem_act": False} if "2.0.conv1.weight" in encoder else {}


def _width(encoder: Mapping[str, Tensor]) -> int:
    key = "cls_token"
    return encoder[key].shape[-1] if key in encoder else 0


_BARE = Layout(rules.BARE, needs=(Part.QUERY,))

FAMILIES: dict[str, Family] = {
    "moco": Family(
        "https://github.com/facebookresearch/moco",
        objective="moco",
        license="cc-by-nc-4.0",  # the README's; some files of later versions say MIT
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
        layouts=(Layout(rules.MOCO), Layout(rules.MOCO_BARE, needs=(Part.QUERY,))),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ),
    "moco-v3": Family(
        "https://github.com/facebookresearch/moco-v3",
        objective="moco_v3",
        license="cc-by-nc-4.0",
        architectures=(*_RESNETS, *_VITS),
        layouts=(Layout(rules.MOCO_V3), _BARE),
        arguments=_moco_v3,
    ),
    "paco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="paco",
        license="mit",
        architectures=_PACO_RESNETS,
        layouts=(
            Layout(rules.PACO, needs=(Part.MOMENTUM, Part.CENTERS)),
            Layout(momentum_only(rules.PACO), needs=(Part.MOMENTUM,)),
            _BARE,
        ),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        by_classes={8142: _INATURALIST},
    ),
    "gpaco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="gpaco",
        license="mit",
        architectures=(*_PACO_RESNETS, *_VITS),
        layouts=(
            Layout(rules.GPACO, needs=(Part.CENTERS,)),
            Layout(rules.GPACO_VIT, needs=(Part.CENTERS, QUEUE)),
            _BARE,
        ),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        by_classes={8142: _INATURALIST},
        arguments=_gpaco,
    ),
    "ft": Family(
        "https://github.com/DTennant/CL-Visualizing-Feature-Transformation",
        objective="moco",  # FT changes the scores of MoCo's loss
        license="unknown",
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
        layouts=(Layout(rules.FT), _BARE),
    ),
    "pico": Family(
        "https://github.com/hbzju/PiCO",
        objective="pico",
        license="unknown",
        architectures=(*_CIFAR_RESNETS, *_RESNETS),
        layouts=(
            Layout(rules.PICO, needs=(Part.CENTERS, Part.PROTOTYPES)),
            Layout(momentum_only(rules.PICO), needs=(Part.MOMENTUM,)),
            _BARE,
        ),
        cifar=((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
        by_classes={100: _CIFAR100},
    ),
    "lightly": Family(
        "https://github.com/lightly-ai/lightly",
        objective="unknown",
        license="unknown",  # MIT is the code's; the weights are the user's own
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS, *_OTHERS),
        any_architecture=True,
        layouts=(
            Layout(rules.LIGHTLY),
            Layout(rules.LIGHTLY_TEACHER, needs=(Part.QUERY,)),
            Layout(rules.LIGHTLY_BARE, needs=(Part.QUERY,)),
        ),
        cifar=IMAGENET,  # its CIFAR benchmark and its tutorials normalise so
        arguments=_lightly,
    ),
    "solo-learn": Family(
        "https://github.com/vturrisi/solo-learn",
        objective="unknown",
        license="unknown",
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS, *_OTHERS),
        layouts=(Layout(rules.SOLO_LEARN), _BARE),
        cifar=((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
        arguments=_solo_learn,
    ),
    "timm": Family(
        "https://github.com/huggingface/pytorch-image-models",
        objective="unknown",
        license="unknown",  # Apache-2.0 is the code's
        architectures=(),
        any_architecture=True,
        any_weights=True,
        layouts=(Layout(rules.TIMM, needs=(Part.QUERY,)),),
    ),
}
