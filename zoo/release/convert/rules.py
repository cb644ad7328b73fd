"""Which key is what in the files of each project, read from the authors' own code.

A rule is a key or a prefix, and what is found there. `prefix.*` names a container: without it, the keys are
those of the part. `prefix.**` names modules of the part itself, whose keys stay as they are, `**` all of
them; `*.name` is a name anywhere. The first rule that matches counts; a key without a rule is not understood.
"""

from __future__ import annotations

from enum import Enum


class Part(Enum):
    """What of a file can become part of a release."""

    QUERY = "query encoder"
    MOMENTUM = "momentum encoder"
    CENTERS = "centers"
    MOMENTUM_CENTERS = "centers of the momentum encoder"
    PROTOTYPES = "prototypes"


Rules = tuple[tuple[str, Part | str], ...]

HEAD = "projection head"
PREDICTOR = "prediction head"
QUEUE = "queue"
UNUSED = "not used at test time"

# Buffers that older versions of timm saved with a Swin Transformer.
SWIN: Rules = (
    ("*.relative_position_index", "computed when the encoder is built"),
    ("*.attn_mask", "computed when the encoder is built"),
)
MOCO: Rules = (
    ("encoder_q.fc.*", HEAD),
    ("encoder_k.fc.*", HEAD),
    ("encoder_q.net.9.*", HEAD),  # the CIFAR notebook: torchvision's children without the pooling
    ("encoder_k.net.9.*", HEAD),
    ("encoder_q.*", Part.QUERY),
    ("encoder_k.*", Part.MOMENTUM),
    ("queue", QUEUE),
    ("queue_ptr", QUEUE),
)
PACO: Rules = (
    *MOCO,
    ("queue_l", QUEUE),
    ("linear.*", Part.CENTERS),
    ("linear_k.*", Part.MOMENTUM_CENTERS),
)
GPACO: Rules = tuple(rule for rule in PACO if not rule[0].startswith(("encoder_k", "linear_k")))
GPACO_VIT: Rules = (
    ("mlp.*", HEAD),
    ("head.*", Part.CENTERS),
    ("queue", QUEUE),
    ("queue_l", QUEUE),
    ("queue_ptr", QUEUE),
    *((key, Part.QUERY) for key in ("cls_token", "pos_embed", "patch_embed.**", "blocks.**")),
    *((key, Part.QUERY) for key in ("norm.**", "fc_norm.**")),
)
PICO: Rules = (
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
LIGHTLY_HEADS: Rules = (
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
LIGHTLY_TEACHER: Rules = (
    ("query_backbone.*", Part.QUERY),
    ("student_backbone.*", Part.QUERY),
    ("backbone.*", Part.MOMENTUM),
    ("teacher_backbone.*", Part.MOMENTUM),
    ("online_classifier.classification_head.*", Part.MOMENTUM_CENTERS),
    *LIGHTLY_HEADS,
)
LIGHTLY: Rules = (
    *SWIN,
    ("backbone.mask_token", UNUSED),
    ("backbone.vit.*", Part.QUERY),
    ("backbone.*", Part.QUERY),
    ("backbone_momentum.*", Part.MOMENTUM),
    ("momentum_backbone.*", Part.MOMENTUM),
    ("teacher_backbone.*", Part.MOMENTUM),
    ("online_classifier.classification_head.*", Part.CENTERS),
    *LIGHTLY_HEADS,
)
SOLO_LEARN: Rules = (
    *SWIN,
    ("backbone.mask_token", UNUSED),
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
MOCO_V3: Rules = (
    *((f"{name}.fc.*", HEAD) for name in ("base_encoder", "momentum_encoder")),
    *((f"{name}.head.*", HEAD) for name in ("base_encoder", "momentum_encoder")),
    ("base_encoder.*", Part.QUERY),
    ("momentum_encoder.*", Part.MOMENTUM),
    ("predictor.*", PREDICTOR),
)
FT: Rules = (
    ("encoder.*", Part.QUERY),
    ("head.*", HEAD),
    ("head_jig.*", HEAD),
    ("model_ema.encoder.*", Part.MOMENTUM),
    ("model_ema.head.*", HEAD),
    ("model_ema.head_jig.*", HEAD),
)
# An encoder by itself: taken out of its checkpoint (MoCo v3's convert_to_deit.py, the tutorials of lightly),
# or with the classifier of a linear evaluation (MoCo's main_lincls.py). What `fc` and `head` are, the file
# does not say: MoCo v1's projection is one linear layer, too. So they do not become centers.
BARE: Rules = (
    *SWIN,
    ("head.norm.**", Part.QUERY),  # timm's ConvNeXt normalises there
    *((f"{name}.*", "classifier or projection of a bare encoder") for name in ("fc", "head")),
    *((f"{key}.**", Part.QUERY) for key in ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")),
    *((f"{key}.**", Part.QUERY) for key in ("patch_embed", "blocks", "norm", "fc_norm")),
    *((f"{key}.**", Part.QUERY) for key in ("layers", "stem", "stages")),
    *((key, Part.QUERY) for key in ("cls_token", "pos_embed")),
    ("mask_token", UNUSED),
)
MOCO_BARE: Rules = (*BARE, ("net.9.*", HEAD), ("net.**", Part.QUERY))
# `nn.Sequential` has numbers. Only of lightly's is it known what they leave out; see `_lightly`.
LIGHTLY_BARE: Rules = (
    *BARE,
    ("resnet18_parameters.*", Part.QUERY),
    *((f"{index}.**", Part.QUERY) for index in range(8)),
)
# A state dict of timm, whoever trained it: what is no classifier belongs to the encoder, and the architecture
# tells whether that is whole. Classifiers have the names of timm's `pretrained_cfg["classifier"]`.
TIMM: Rules = (
    *SWIN,
    ("head.norm.**", Part.QUERY),
    *((f"{name}.*", Part.CENTERS) for name in ("head.fc", "head", "fc", "classifier")),
    ("**", Part.QUERY),
)


def momentum_only(rules: Rules) -> Rules:
    """Return the rules for a file without the trained encoder, of which nothing but the average was kept."""
    return tuple(rule for rule in rules if rule[1] not in (Part.QUERY, Part.CENTERS, Part.PROTOTYPES))
