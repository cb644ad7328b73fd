"""Which key is what in the files of each project: a plain dict, read from the authors' own code.

A rule is a key or a prefix, and what is found there. `prefix.*` names a container: without it, the keys are
those of the part. `prefix.**` names modules of the part itself, whose keys stay as they are. The first rule
that matches counts; a key without a rule is not understood.
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
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_INATURALIST: Statistics = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))  # PaCo, LT/paco_lt.py
_CIFAR100: Statistics = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))  # PiCO, utils/cifar100.py

_HEAD = "projection head"
_PREDICTOR = "prediction head"
_QUEUE = "queue"
_UNUSED = "not used at test time"


@dataclass(frozen=True)
class Layout:
    """One way in which a family's files are laid out.

    Attributes:
        rules: see the module.
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
        cifar: mean and standard deviation with which the authors evaluate 32-pixel images, if they do.
        by_classes: the same for data that the number of centers tells, e.g. the 8,142 classes of iNaturalist.
        arguments: what shapes do not show: arguments of the architecture, from the tensors of the encoder as
            they are in the file.
    """

    repository: str
    objective: str
    license: str
    layouts: tuple[Layout, ...]
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


_MOCO: Rules = (
    ("encoder_q.fc.*", _HEAD),
    ("encoder_k.fc.*", _HEAD),
    ("encoder_q.net.9.*", _HEAD),  # the CIFAR notebook: torchvision's children without the pooling
    ("encoder_k.net.9.*", _HEAD),
    ("encoder_q.*", Part.QUERY),
    ("encoder_k.*", Part.MOMENTUM),
    ("queue", _QUEUE),
    ("queue_ptr", _QUEUE),
)
_PACO: Rules = (
    *_MOCO,
    ("queue_l", _QUEUE),
    ("linear.*", Part.CENTERS),
    ("linear_k.*", Part.MOMENTUM_CENTERS),
)
_GPACO: Rules = tuple(rule for rule in _PACO if not rule[0].startswith(("encoder_k", "linear_k")))
_GPACO_VIT: Rules = (
    ("mlp.*", _HEAD),
    ("head.*", Part.CENTERS),
    ("queue", _QUEUE),
    ("queue_l", _QUEUE),
    ("queue_ptr", _QUEUE),
    *((key, Part.QUERY) for key in ("cls_token", "pos_embed", "patch_embed.**", "blocks.**")),
    *((key, Part.QUERY) for key in ("norm.**", "fc_norm.**")),
)
_PICO: Rules = (
    ("encoder_q.encoder.*", Part.QUERY),
    ("encoder_k.encoder.*", Part.MOMENTUM),
    ("encoder_q.fc.*", Part.CENTERS),
    ("encoder_k.fc.*", Part.MOMENTUM_CENTERS),
    ("encoder_q.head.*", _HEAD),
    ("encoder_k.head.*", _HEAD),
    ("encoder_q.prototypes", "zeros; the prototypes are those at the top"),
    ("encoder_k.prototypes", "zeros; the prototypes are those at the top"),
    ("prototypes", Part.PROTOTYPES),
    *((key, _QUEUE) for key in ("queue", "queue_ptr", "queue_pseudo", "queue_rel")),
)
_LIGHTLY_HEADS: Rules = (
    *((f"{name}.*", _HEAD) for name in ("projection_head", "projection_head_momentum", "student_head")),
    *((f"{name}.*", _HEAD) for name in ("momentum_projection_head", "teacher_head", "head")),
    *((f"{name}_projection_head.*", _HEAD) for name in ("query", "key", "student", "teacher", "online")),
    *((f"{name}.*", _PREDICTOR) for name in ("prediction_head", "student_prediction_head")),
    *((f"{name}.*", _PREDICTOR) for name in ("query_prediction_head", "online_prediction_head")),
    *((f"{name}.*", _QUEUE) for name in ("memory_bank", "queue", "queues")),
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
    ("backbone.mask_token", _UNUSED),
    ("backbone.vit.*", Part.QUERY),
    ("backbone.*", Part.QUERY),
    ("backbone_momentum.*", Part.MOMENTUM),
    ("momentum_backbone.*", Part.MOMENTUM),
    ("teacher_backbone.*", Part.MOMENTUM),
    ("online_classifier.classification_head.*", Part.CENTERS),
    *_LIGHTLY_HEADS,
)
_SOLO_LEARN: Rules = (
    ("backbone.mask_token", _UNUSED),
    ("backbone.*", Part.QUERY),
    ("encoder.*", Part.QUERY),  # before version 1.0.4
    ("momentum_backbone.*", Part.MOMENTUM),
    ("momentum_encoder.*", Part.MOMENTUM),
    ("classifier.*", Part.CENTERS),
    ("momentum_classifier.*", Part.MOMENTUM_CENTERS),
    *((f"{name}.*", _HEAD) for name in ("projector", "momentum_projector", "head", "momentum_head")),
    *((f"{name}.*", _PREDICTOR) for name in ("predictor", "momentum_predictor", "decoder")),
    *((key, _QUEUE) for key in ("queue", "queue_ptr", "queue_y", "queue_index")),
    ("prototypes.*", "prototypes, in the space of the projection"),
    ("dino_loss_func.*", "state of the loss"),
)

FAMILIES: dict[str, Family] = {
    "moco": Family(
        "https://github.com/facebookresearch/moco",
        objective="moco",
        license="cc-by-nc-4.0",  # the README's; some files of later versions say MIT
        layouts=(Layout(_MOCO),),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ),
    "moco-v3": Family(
        "https://github.com/facebookresearch/moco-v3",
        objective="moco_v3",
        license="cc-by-nc-4.0",
        layouts=(
            Layout(
                (
                    *((f"{name}.fc.*", _HEAD) for name in ("base_encoder", "momentum_encoder")),
                    *((f"{name}.head.*", _HEAD) for name in ("base_encoder", "momentum_encoder")),
                    ("base_encoder.*", Part.QUERY),
                    ("momentum_encoder.*", Part.MOMENTUM),
                    ("predictor.*", _PREDICTOR),
                )
            ),
        ),
        arguments=_moco_v3,
    ),
    "paco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="paco",
        license="mit",
        layouts=(Layout(_PACO, needs=(Part.MOMENTUM, Part.CENTERS)),),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        by_classes={8142: _INATURALIST},
    ),
    "gpaco": Family(
        "https://github.com/dvlab-research/Parametric-Contrastive-Learning",
        objective="gpaco",
        license="mit",
        layouts=(Layout(_GPACO, needs=(Part.CENTERS,)), Layout(_GPACO_VIT, needs=(Part.CENTERS, _QUEUE))),
        cifar=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        by_classes={8142: _INATURALIST},
        arguments=_gpaco,
    ),
    "ft": Family(
        "https://github.com/DTennant/CL-Visualizing-Feature-Transformation",
        objective="moco",  # FT changes the scores of MoCo's loss
        license="unknown",
        layouts=(
            Layout(
                (
                    ("encoder.*", Part.QUERY),
                    ("head.*", _HEAD),
                    ("head_jig.*", _HEAD),
                    ("model_ema.encoder.*", Part.MOMENTUM),
                    ("model_ema.head.*", _HEAD),
                    ("model_ema.head_jig.*", _HEAD),
                )
            ),
        ),
    ),
    "pico": Family(
        "https://github.com/hbzju/PiCO",
        objective="pico",
        license="unknown",
        layouts=(Layout(_PICO, needs=(Part.CENTERS, Part.PROTOTYPES)),),
        cifar=((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
        by_classes={100: _CIFAR100},
    ),
    "lightly": Family(
        "https://github.com/lightly-ai/lightly",
        objective="unknown",
        license="unknown",  # MIT is the code's; the weights are the user's own
        layouts=(Layout(_LIGHTLY), Layout(_LIGHTLY_TEACHER)),
        cifar=IMAGENET,  # its CIFAR benchmark and its tutorials normalise so
        arguments=_lightly,
    ),
    "solo-learn": Family(
        "https://github.com/vturrisi/solo-learn",
        objective="unknown",
        license="unknown",
        layouts=(Layout(_SOLO_LEARN),),
        cifar=((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
        arguments=_solo_learn,
    ),
}
