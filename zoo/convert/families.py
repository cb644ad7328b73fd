"""The supported projects, as data: which key of a checkpoint is what, taken from the authors' own code.

A layout maps each part of a checkpoint to patterns of its keys. `prefix.*` is a container: the prefix is
stripped from its keys. `prefix.**` are modules of the part itself, whose keys stay unchanged; `**` is any
key. The first matching pattern counts; a key that matches none is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

QUERY, MOMENTUM = "query encoder", "momentum encoder"
CENTERS, MOMENTUM_CENTERS = "centers", "centers of the momentum encoder"
PROTOTYPES = "prototypes"
RELEASED = {QUERY, MOMENTUM, CENTERS, MOMENTUM_CENTERS, PROTOTYPES}
"""Parts that can become part of a release; the others are listed and left out."""
_HEAD, _PREDICTOR, QUEUE = "projection head", "prediction head", "queue"
_PROJECTED = "prototypes, in the space of the projection"

Layout = Mapping[str, str]  # part -> patterns of its keys, separated by spaces
Statistics = tuple[tuple[float, ...], tuple[float, ...]]

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # as in MoCo and PaCo
_CIFAR10_TRUE: Statistics = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))  # PiCO, solo-learn
_CIFAR100: Statistics = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))  # PiCO, utils/cifar100.py
_INATURALIST: Statistics = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))  # PaCo, LT/paco_lt.py

# torchvision's architectures by their names in timm, and equivalent ones that only timm or zoo has.
_RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200"),
    *("resnext50_32x4d", "resnext101_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
    *("wide_resnet50_2", "wide_resnet101_2"),
)
_CIFAR_RESNETS = ("resnet18_cifar", "resnet50_cifar")
_PACO_RESNETS = (*_RESNETS, *(f"cifar_resnet{depth}" for depth in (20, 32, 44, 56, 110)))
_VITS = (
    *(f"vit_{size}_patch16_{pixels}" for size in ("small", "base", "large") for pixels in (224, 384)),
    "vit_huge_patch14_224",
)
_MOCO: Layout = {
    _HEAD: "encoder_q.fc.* encoder_k.fc.*",
    QUERY: "encoder_q.*",
    MOMENTUM: "encoder_k.*",
    QUEUE: "queue queue_ptr",
}
_GPACO: Layout = {
    _HEAD: "encoder_q.fc.*",
    QUERY: "encoder_q.*",
    CENTERS: "linear.*",
    QUEUE: "queue queue_ptr queue_l",
}
_PACO: Layout = {**_MOCO, **_GPACO, _HEAD: _MOCO[_HEAD], MOMENTUM_CENTERS: "linear_k.*"}
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
_SOLO_LEARN: Layout = {
    QUERY: "backbone.* encoder.*",  # the second before version 1.0.4
    MOMENTUM: "momentum_backbone.* momentum_encoder.*",
    CENTERS: "classifier.*",
    MOMENTUM_CENTERS: "momentum_classifier.*",
    _HEAD: "projector.* momentum_projector.* head.* momentum_head.*",
    _PREDICTOR: "predictor.* momentum_predictor.*",
    QUEUE: "queue queue_ptr queue_y queue_index",
    _PROJECTED: "prototypes.*",
    "state of the loss": "dino_loss_func.*",
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
# Any timm model, whoever trained it; the built model tells which keys belong to the classifier.
_TIMM: Layout = {
    MOMENTUM: "state_dict_ema.* model_ema.*",  # timm's train.py --model-ema; DeiT, ConvNeXt
    QUERY: "model.* **",  # a LightningModule's
}


@dataclass(frozen=True)
class Family:
    """A project whose checkpoints can be converted; its layouts follow the authors' code."""

    repository: str  # on GitHub
    objective: str  # zoo's name of the same objective, "unknown" if the family has many
    license: str  # as the repository states it for weights, a Hub identifier, or "unknown"
    layouts: tuple[Layout, ...]  # the one with the fewest unknown keys counts
    architectures: tuple[str, ...] = ()  # in timm, that compute the same; many others have the same shapes
    needs: tuple[str, ...] = ()  # parts that a file must have besides an encoder
    cifar: Statistics = IMAGENET  # mean and deviation for 32-pixel images
    by_classes: Mapping[int, Statistics] = field(default_factory=dict)  # by the data set's number of classes
    arguments: tuple[tuple[str, int | None, dict[str, Any]], ...] = ()
    """(key, last dimension, arguments): what shapes do not show, for encoders with such a key."""


_ALL = (*_RESNETS, *_CIFAR_RESNETS)
_PACO_CODE = "dvlab-research/Parametric-Contrastive-Learning"
_PACO_CLASSES, _PICO_CLASSES = {8142: _INATURALIST}, {100: _CIFAR100}

FAMILIES: dict[str, Family] = {
    # the README's licence; some files of later versions say MIT
    "moco": Family("facebookresearch/moco", "moco", "cc-by-nc-4.0", (_MOCO,), _ALL, cifar=_CIFAR10),
    "moco-v3": Family(
        "facebookresearch/moco-v3",
        "moco_v3",
        "cc-by-nc-4.0",
        (_MOCO_V3,),
        (*_RESNETS, *_VITS),
        # its ViT-S has 12 heads, everyone else's has 6, with weights of the same shapes
        arguments=(("cls_token", 384, {"num_heads": 12}),),
    ),
    "paco": Family(
        _PACO_CODE, "paco", "mit", (_PACO,), _PACO_RESNETS, (MOMENTUM, CENTERS), _CIFAR10, _PACO_CLASSES
    ),
    "gpaco": Family(
        _PACO_CODE,
        "gpaco",
        "mit",
        (_GPACO, _GPACO_VIT),
        (*_PACO_RESNETS, *_VITS),
        needs=(CENTERS, QUEUE),
        cifar=_CIFAR10,
        by_classes=_PACO_CLASSES,
        # its ViTs are MAE's: the mean of the patch tokens, then normalisation (`fc_norm`)
        arguments=(("fc_norm.weight", None, {"global_pool": "avg"}),),
    ),
    # FT changes the scores in MoCo's loss
    "ft": Family("DTennant/CL-Visualizing-Feature-Transformation", "moco", "unknown", (_FT,), _ALL),
    "pico": Family(
        "hbzju/PiCO", "pico", "unknown", (_PICO,), _ALL, (CENTERS, PROTOTYPES), _CIFAR10_TRUE, _PICO_CLASSES
    ),
    "solo-learn": Family(  # no ViTs: some have 12 heads and some 6, with the same shapes
        "vturrisi/solo-learn",
        "unknown",
        "unknown",
        (_SOLO_LEARN,),
        _ALL,
        cifar=_CIFAR10_TRUE,
        arguments=(("conv1.weight", 3, {"stem_padding": 2}),),  # its ResNets for CIFAR
    ),
    # Apache-2.0 is the code's licence
    "timm": Family("huggingface/pytorch-image-models", "unknown", "unknown", (_TIMM,)),
}


class Published(NamedTuple):
    """A checkpoint on its authors' server, trained on ImageNet-1k and named `ARCH.TAG`."""

    url: str  # from the authors' repository
    family: str
    md5: str = ""  # its first digits, if the repository states them


_FAIR = "https://dl.fbaipublicfiles.com"
PUBLISHED: dict[str, Published] = {
    **{  # github.com/facebookresearch/moco, README.md, "Models" (commit 5670021)
        f"resnet50.moco_{tag}": Published(
            f"{_FAIR}/moco/moco_checkpoints/moco_{tag}/moco_{tag}_pretrain.pth.tar", "moco", md5
        )
        for tag, md5 in (("v1_200ep", "b251726a"), ("v2_200ep", "59fd9945"), ("v2_800ep", "a04e12f8"))
    },
    **{  # github.com/facebookresearch/moco-v3, CONFIG.md (commit 38aae44)
        f"{arch}.moco_v3_{epochs}ep": Published(
            f"{_FAIR}/moco-v3/{short}-{epochs}ep/{short}-{epochs}ep.pth.tar", "moco-v3"
        )
        for arch, short, epochs in (
            *(("resnet50", "r-50", 100), ("resnet50", "r-50", 300), ("resnet50", "r-50", 1000)),
            *(("vit_small_patch16_224", "vit-s", 300), ("vit_base_patch16_224", "vit-b", 300)),
        )
    },
}
"""Checkpoints that `zoo convert NAME` downloads, by the name of their weights."""
