"""The projects whose files are understood, as data: which key is what, read from the authors' own code.

A rule is a key or a prefix, and what is found there. `prefix.*` names a container: without it, the keys are
those of the part. `prefix.**` names modules of the part itself, whose keys stay as they are, `**` all of
them. The first rule that matches counts; a key without a rule is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor


class Part(Enum):
    """What of a file can become part of a release."""

    QUERY = "query encoder"
    MOMENTUM = "momentum encoder"
    CENTERS = "centers"
    MOMENTUM_CENTERS = "centers of the momentum encoder"
    PROTOTYPES = "prototypes"


Rules = tuple[tuple[str, Part | str], ...]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
HEAD = "projection head"
PREDICTOR = "prediction head"
QUEUE = "queue"

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # as MoCo and PaCo have it
_CIFAR10_TRUE: Statistics = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))  # PiCO, solo-learn
_CIFAR100: Statistics = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))  # PiCO, utils/cifar100.py
_INATURALIST: Statistics = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))  # PaCo, LT/paco_lt.py

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

_MOCO: Rules = (
    ("encoder_q.fc.*", HEAD),
    ("encoder_k.fc.*", HEAD),
    ("encoder_q.net.9.*", HEAD),  # the CIFAR notebook: torchvision's children without the pooling
    ("encoder_k.net.9.*", HEAD),
    ("encoder_q.*", Part.QUERY),
    ("encoder_k.*", Part.MOMENTUM),
    ("queue", QUEUE),
    ("queue_ptr", QUEUE),
)
_PACO: Rules = (
    *_MOCO,
    ("queue_l", QUEUE),
    ("linear.*", Part.CENTERS),
    ("linear_k.*", Part.MOMENTUM_CENTERS),
)
_GPACO: Rules = tuple(rule for rule in _PACO if not rule[0].startswith(("encoder_k", "linear_k")))
_GPACO_VIT: Rules = (
    ("mlp.*", HEAD),
    ("head.*", Part.CENTERS),
    *((key, QUEUE) for key in ("queue", "queue_l", "queue_ptr")),
    *((key, Part.QUERY) for key in ("cls_token", "pos_embed", "patch_embed.**", "blocks.**")),
    *((key, Part.QUERY) for key in ("norm.**", "fc_norm.**")),
)
_PICO: Rules = (
    ("encoder_q.encoder.*", Part.QUERY),
    ("encoder_k.encoder.*", Part.MOMENTUM),
    ("encoder_q.fc.*", Part.CENTERS),
    ("encoder_k.fc.*", Part.MOMENTUM_CENTERS),
    ("encoder_q.head.*", HEAD),
    ("encoder_k.head.*", HEAD),
    ("encoder_q.prototypes", "zeros; the prototypes are those at the top"),
    ("encoder_k.prototypes", "zeros; the prototypes are those at the top"),
    ("prototypes", Part.PROTOTYPES),
    *((key, QUEUE) for key in ("queue", "queue_ptr", "queue_pseudo", "queue_rel")),
)
_LIGHTLY_HEADS: Rules = (
    *((f"{name}.*", HEAD) for name in ("projection_head", "projection_head_momentum", "student_head")),
    *((f"{name}.*", HEAD) for name in ("momentum_projection_head", "teacher_head", "head")),
    *((f"{name}_projection_head.*", HEAD) for name in ("query", "key", "student", "teacher", "online")),
    *((f"{name}.*", PREDICTOR) for name in ("prediction_head", "student_prediction_head")),
    *((f"{name}.*", PREDICTOR) for name in ("query_prediction_head", "online_prediction_head")),
    *((f"{name}.*", QUEUE) for name in ("memory_bank", "queue", "queues")),
    ("prototypes.*", "SwAV's prototypes, in the space of the projection"),
    ("criterion.*", "state of the loss"),
)
# Its examples name the trained copy `backbone`. Its benchmarks name it `query_backbone` or
# `student_backbone`, and `backbone` is then the momentum copy, on which the online classifier is trained.
_LIGHTLY_TEACHER: Rules = (
    ("query_backbone.*", Part.QUERY),
    ("student_backbone.*", Part.QUERY),
    ("backbone.*", Part.MOMENTUM),
    ("teacher_backbone.*", Part.MOMENTUM),
    ("online_classifier.classification_head.*", Part.MOMENTUM_CENTERS),
    *_LIGHTLY_HEADS,
)
_LIGHTLY: Rules = (
    ("backbone.mask_token", "not used at test time"),
    ("backbone.vit.*", Part.QUERY),
    ("backbone.*", Part.QUERY),
    ("backbone_momentum.*", Part.MOMENTUM),
    ("momentum_backbone.*", Part.MOMENTUM),
    ("teacher_backbone.*", Part.MOMENTUM),
    ("online_classifier.classification_head.*", Part.CENTERS),
    *_LIGHTLY_HEADS,
    ("resnet18_parameters.*", Part.QUERY),  # of the tutorials: `nn.Sequential(*resnet.children())`
)
_SOLO_LEARN: Rules = (
    ("backbone.mask_token", "not used at test time"),
    ("backbone.*", Part.QUERY),
    ("encoder.*", Part.QUERY),  # before version 1.0.4
    ("momentum_backbone.*", Part.MOMENTUM),
    ("momentum_encoder.*", Part.MOMENTUM),
    ("classifier.*", Part.CENTERS),
    ("momentum_classifier.*", Part.MOMENTUM_CENTERS),
    *((f"{name}.*", HEAD) for name in ("projector", "momentum_projector", "head", "momentum_head")),
    *((f"{name}.*", PREDICTOR) for name in ("predictor", "momentum_predictor", "decoder")),
    *((key, QUEUE) for key in ("queue", "queue_ptr", "queue_y", "queue_index")),
    ("prototypes.*", "prototypes, in the space of the projection"),
    ("dino_loss_func.*", "state of the loss"),
)
_MOCO_V3: Rules = (
    *((f"{name}.fc.*", HEAD) for name in ("base_encoder", "momentum_encoder")),
    *((f"{name}.head.*", HEAD) for name in ("base_encoder", "momentum_encoder")),
    ("base_encoder.*", Part.QUERY),
    ("momentum_encoder.*", Part.MOMENTUM),
    ("predictor.*", PREDICTOR),
)
_FT: Rules = (
    ("encoder.*", Part.QUERY),
    ("head.*", HEAD),
    ("head_jig.*", HEAD),
    ("model_ema.encoder.*", Part.MOMENTUM),
    ("model_ema.head.*", HEAD),
    ("model_ema.head_jig.*", HEAD),
)
# A model of timm, whoever trained it: which of its keys are the classifier's, the built model tells.
_TIMM: Rules = (
    ("state_dict_ema.*", Part.MOMENTUM),  # timm's train.py --model-ema
    ("model_ema.*", Part.MOMENTUM),  # DeiT, ConvNeXt
    ("model.*", Part.QUERY),  # a LightningModule's
    ("**", Part.QUERY),
)


@dataclass(frozen=True)
class Family:
    """A project whose checkpoints can be converted.

    Attributes:
        repository: its code, where the layouts were read.
        objective: the objective of this project that is the same, or "unknown" where the family has many.
        license: the one that the repository states, as the Hub writes it, or "unknown".
        layouts: ways in which its files are laid out, in the order in which they are tried: rules, and the
            parts that a file must have besides an encoder.
        architectures: of timm, which compute what the authors' encoders do; many others have the same shapes.
        any_architecture: whether its users bring encoders of their own, which are none of these.
        cifar: mean and standard deviation with which the authors evaluate 32-pixel images, if they do.
        by_classes: the same for data that the number of centers tells, e.g. the 8,142 classes of iNaturalist.
        arguments: what shapes do not show: arguments of the architecture, from the tensors of the encoder as
            they are in the file.
    """

    repository: str
    objective: str
    license: str
    layouts: tuple[tuple[Rules, tuple[Part | str, ...]], ...]
    architectures: tuple[str, ...] = ()
    any_architecture: bool = False
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
    if first is not None and first.shape[-1:] == (3,):
        return {"stem_padding": 2}
    fixed = positions is not None and positions.ndim == 3 and not positions[:, :1].any()
    if fixed and _width(encoder) in (192, 384):
        return {"num_heads": 12}
    return {}


def _lightly(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """`nn.Sequential(*list(ResNetGenerator(...).children())[:-1], ...)` lacks the ReLU after the stem.

    lightly's own ResNet applies it as a function, so it is no child; the tutorials and the CIFAR benchmark
    train without it. The stages then have the indices 2 to 5; torchvision's ReLU and pooling make it 4 to 7.
    """
    return {"stem_act": False} if "2.0.conv1.weight" in encoder else {}


def _width(encoder: Mapping[str, Tensor]) -> int:
    token = encoder.get("cls_token")
    return 0 if token is None or not token.ndim else token.shape[-1]


FAMILIES: dict[str, Family] = {
    "moco": Family(
        "https://github.com/facebookresearch/moco",
        objective="moco",
        license="cc-by-nc-4.0",  # the README's; some files of later versions say MIT
        layouts=((_MOCO, ()),),
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
        cifar=_CIFAR10,
    ),
    "moco-v3": Family(
        "https://github.com/facebookresearch/moco-v3",
        objective="moco_v3",
        license="cc-by-nc-4.0",
        layouts=((_MOCO_V3, ()),),
        architectures=(*_RESNETS, *_VITS),
        arguments=_moco_v3,
    ),
    "paco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="paco",
        license="mit",
        layouts=((_PACO, (Part.MOMENTUM, Part.CENTERS)),),
        architectures=_PACO_RESNETS,
        cifar=_CIFAR10,
        by_classes={8142: _INATURALIST},
    ),
    "gpaco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="gpaco",
        license="mit",
        layouts=((_GPACO, (Part.CENTERS,)), (_GPACO_VIT, (Part.CENTERS, QUEUE))),
        architectures=(*_PACO_RESNETS, *_VITS),
        cifar=_CIFAR10,
        by_classes={8142: _INATURALIST},
        arguments=_gpaco,
    ),
    "ft": Family(
        "https://github.com/DTennant/CL-Visualizing-Feature-Transformation",
        objective="moco",  # FT changes the scores of MoCo's loss
        license="unknown",
        layouts=((_FT, ()),),
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
    ),
    "pico": Family(
        "https://github.com/hbzju/PiCO",
        objective="pico",
        license="unknown",
        layouts=((_PICO, (Part.CENTERS, Part.PROTOTYPES)),),
        architectures=(*_CIFAR_RESNETS, *_RESNETS),
        cifar=_CIFAR10_TRUE,
        by_classes={100: _CIFAR100},
    ),
    "lightly": Family(
        "https://github.com/lightly-ai/lightly",
        objective="unknown",
        license="unknown",  # MIT is the code's; the weights are the user's own
        layouts=((_LIGHTLY, ()), (_LIGHTLY_TEACHER, (Part.QUERY,))),
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS, *_OTHERS),
        any_architecture=True,
        cifar=IMAGENET,  # its CIFAR benchmark and its tutorials normalise so
        arguments=_lightly,
    ),
    "solo-learn": Family(
        "https://github.com/vturrisi/solo-learn",
        objective="unknown",
        license="unknown",
        layouts=((_SOLO_LEARN, ()),),
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS, *_OTHERS),
        cifar=_CIFAR10_TRUE,
        arguments=_solo_learn,
    ),
    "timm": Family(
        "https://github.com/huggingface/pytorch-image-models",
        objective="unknown",
        license="unknown",  # Apache-2.0 is the code's
        layouts=((_TIMM, ()),),
        any_architecture=True,
    ),
}
