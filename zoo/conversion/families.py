"""The projects whose files are understood, as data: which key is what, read in the authors' own code.

A layout names what the keys of a file are. `prefix.*` is a container: without it, its keys are those of the
part. `prefix.**` are modules of the part itself, whose keys stay as they are, `**` all of them. The first
pattern that matches counts; a key that none matches is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

QUERY, MOMENTUM = "query encoder", "momentum encoder"
CENTERS, MOMENTUM_CENTERS = "centers", "centers of the momentum encoder"
PROTOTYPES = "prototypes"
RELEASED = {QUERY, MOMENTUM, CENTERS, MOMENTUM_CENTERS, PROTOTYPES}
"""What can become part of a release; what else a file holds is named and left out."""
_HEAD, _PREDICTOR, QUEUE = "projection head", "prediction head", "queue"
_LOSS, _UNUSED = "state of the loss", "not used at test time"
_PROJECTED = "prototypes, in the space of the projection"

Layout = Mapping[str, str]  # what the keys are -> their patterns, between blanks
Statistics = tuple[tuple[float, ...], tuple[float, ...]]

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
_MOCO: Layout = {
    # `net.9` is of the CIFAR notebook: torchvision's children without the pooling
    _HEAD: "encoder_q.fc.* encoder_k.fc.* encoder_q.net.9.* encoder_k.net.9.*",
    QUERY: "encoder_q.*",
    MOMENTUM: "encoder_k.*",
    QUEUE: "queue queue_ptr",
}
_PACO: Layout = {
    **_MOCO,
    QUEUE: "queue queue_ptr queue_l",
    CENTERS: "linear.*",
    MOMENTUM_CENTERS: "linear_k.*",
}
_GPACO: Layout = {
    _HEAD: "encoder_q.fc.*",
    QUERY: "encoder_q.*",
    CENTERS: "linear.*",
    QUEUE: "queue queue_ptr queue_l",
}
_GPACO_VIT: Layout = {
    _HEAD: "mlp.*",
    CENTERS: "head.*",
    QUEUE: "queue queue_ptr queue_l",
    QUERY: "cls_token pos_embed patch_embed.** blocks.** norm.** fc_norm.**",
}
_PICO: Layout = {
    QUERY: "encoder_q.encoder.*",
    MOMENTUM: "encoder_k.encoder.*",
    CENTERS: "encoder_q.fc.*",
    MOMENTUM_CENTERS: "encoder_k.fc.*",
    _HEAD: "encoder_q.head.* encoder_k.head.*",
    "zeros; the prototypes are those at the top": "encoder_q.prototypes encoder_k.prototypes",
    PROTOTYPES: "prototypes",
    QUEUE: "queue queue_ptr queue_pseudo queue_rel",
}
_LIGHTLY_HEADS: Layout = {
    _HEAD: "projection_head.* projection_head_momentum.* momentum_projection_head.* student_head.* "
    "teacher_head.* head.* query_projection_head.* key_projection_head.* student_projection_head.* "
    "teacher_projection_head.* online_projection_head.*",
    _PREDICTOR: "prediction_head.* student_prediction_head.* query_prediction_head.* "
    "online_prediction_head.*",
    QUEUE: "memory_bank.* queue.* queues.*",
    _PROJECTED: "prototypes.*",
    _LOSS: "criterion.*",
}
# Its examples name the trained copy `backbone`. Its benchmarks name it `query_backbone` or
# `student_backbone`, and `backbone` is then the momentum copy, on which the online classifier is trained.
_LIGHTLY_TEACHER: Layout = {
    QUERY: "query_backbone.* student_backbone.*",
    MOMENTUM: "backbone.* teacher_backbone.*",
    MOMENTUM_CENTERS: "online_classifier.classification_head.*",
    **_LIGHTLY_HEADS,
}
_LIGHTLY: Layout = {
    _UNUSED: "backbone.mask_token",
    # `resnet18_parameters` is of the tutorials: `nn.Sequential(*resnet.children())`
    QUERY: "backbone.vit.* backbone.* resnet18_parameters.*",
    MOMENTUM: "backbone_momentum.* momentum_backbone.* teacher_backbone.*",
    CENTERS: "online_classifier.classification_head.*",
    **_LIGHTLY_HEADS,
}
_SOLO_LEARN: Layout = {
    _UNUSED: "backbone.mask_token",
    QUERY: "backbone.* encoder.*",  # the second before version 1.0.4
    MOMENTUM: "momentum_backbone.* momentum_encoder.*",
    CENTERS: "classifier.*",
    MOMENTUM_CENTERS: "momentum_classifier.*",
    _HEAD: "projector.* momentum_projector.* head.* momentum_head.*",
    _PREDICTOR: "predictor.* momentum_predictor.* decoder.*",
    QUEUE: "queue queue_ptr queue_y queue_index",
    _PROJECTED: "prototypes.*",
    _LOSS: "dino_loss_func.*",
}
_MOCO_V3: Layout = {
    _HEAD: "base_encoder.fc.* base_encoder.head.* momentum_encoder.fc.* momentum_encoder.head.*",
    QUERY: "base_encoder.*",
    MOMENTUM: "momentum_encoder.*",
    _PREDICTOR: "predictor.*",
}
_FT: Layout = {
    QUERY: "encoder.*",
    MOMENTUM: "model_ema.encoder.*",
    _HEAD: "head.* head_jig.* model_ema.head.* model_ema.head_jig.*",
}
# A model of timm, whoever trained it: which of its keys are the classifier's, the built model tells.
_TIMM: Layout = {
    MOMENTUM: "state_dict_ema.* model_ema.*",  # timm's train.py --model-ema; DeiT, ConvNeXt
    QUERY: "model.* **",  # a LightningModule's
}


@dataclass(frozen=True)
class Family:
    """A project whose checkpoints can be converted.

    Attributes:
        repository: its code, where the layouts were read.
        objective: the objective of this project that is the same, or "unknown" where the family has many.
        license: the one that the repository states, as the Hub writes it, or "unknown".
        layouts: of its files, in the order in which they are tried.
        needs: what a file must have besides an encoder.
        architectures: of timm, which compute what the authors' encoders do; many others have the same shapes.
        cifar: mean and standard deviation with which the authors evaluate 32-pixel images, if they do.
        by_classes: the same for data that the number of centers tells, e.g. the 8,142 classes of iNaturalist.
        arguments: what shapes do not show: arguments of the architecture, from the tensors of the encoder as
            they are in the file.
    """

    repository: str
    objective: str
    license: str
    layouts: tuple[Layout, ...]
    needs: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
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
        layouts=(_MOCO,),
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
        cifar=_CIFAR10,
    ),
    "moco-v3": Family(
        "https://github.com/facebookresearch/moco-v3",
        objective="moco_v3",
        license="cc-by-nc-4.0",
        layouts=(_MOCO_V3,),
        architectures=(*_RESNETS, *_VITS),
        arguments=_moco_v3,
    ),
    "paco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="paco",
        license="mit",
        layouts=(_PACO,),
        needs=(MOMENTUM, CENTERS),
        architectures=_PACO_RESNETS,
        cifar=_CIFAR10,
        by_classes={8142: _INATURALIST},
    ),
    "gpaco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="gpaco",
        license="mit",
        layouts=(_GPACO, _GPACO_VIT),
        needs=(CENTERS, QUEUE),
        architectures=(*_PACO_RESNETS, *_VITS),
        cifar=_CIFAR10,
        by_classes={8142: _INATURALIST},
        arguments=_gpaco,
    ),
    "ft": Family(
        "https://github.com/DTennant/CL-Visualizing-Feature-Transformation",
        objective="moco",  # FT changes the scores of MoCo's loss
        license="unknown",
        layouts=(_FT,),
        architectures=(*_RESNETS, *_CIFAR_RESNETS),
    ),
    "pico": Family(
        "https://github.com/hbzju/PiCO",
        objective="pico",
        license="unknown",
        layouts=(_PICO,),
        needs=(CENTERS, PROTOTYPES),
        architectures=(*_CIFAR_RESNETS, *_RESNETS),
        cifar=_CIFAR10_TRUE,
        by_classes={100: _CIFAR100},
    ),
    "lightly": Family(
        "https://github.com/lightly-ai/lightly",
        objective="unknown",
        license="unknown",  # MIT is the code's; the weights are the user's own
        layouts=(_LIGHTLY, _LIGHTLY_TEACHER),
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS),
        cifar=IMAGENET,  # its CIFAR benchmark and its tutorials normalise so
        arguments=_lightly,
    ),
    "solo-learn": Family(
        "https://github.com/vturrisi/solo-learn",
        objective="unknown",
        license="unknown",
        layouts=(_SOLO_LEARN,),
        architectures=(*_RESNETS, *_CIFAR_RESNETS, *_VITS),
        cifar=_CIFAR10_TRUE,
        arguments=_solo_learn,
    ),
    "timm": Family(
        "https://github.com/huggingface/pytorch-image-models",
        objective="unknown",
        license="unknown",  # Apache-2.0 is the code's
        layouts=(_TIMM,),
    ),
}
