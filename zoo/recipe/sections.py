"""The recipe's sections on backbone, start, optimisation and the run; the others are their rooms' own."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from zoo.config import Config

PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]


def _rising(epochs: list[int]) -> list[int]:
    """Refuse a list out of order: timm's scheduler bisects it, and the rate would be wrong."""
    if any(late <= early for early, late in pairwise(epochs)):
        raise ValueError(f"found {epochs}, expected each epoch after the one before it")
    return epochs


Milestones = Annotated[list[PositiveInt], AfterValidator(_rising)]
"""Epochs after which a learning rate falls, in order."""

Precision = Literal["fp32", "tf32", "bf16"]
ON_GPU_ALONE = ("tf32",)
"""Precisions that no CPU has."""


def _untagged(arch: str) -> str:
    """Refuse timm's `arch.tag`: the tag names weights, of which an architecture says nothing."""
    name, dot, _ = arch.partition(".")
    if dot:
        raise ValueError(
            f'found "{arch}", expected the architecture without the tag, "{name}"; weights are named by '
            f'init: {{release: "timm:{arch}"}}'
        )
    return arch


class BackboneSection(Config):
    """A timm architecture; `args` goes to `timm.create_model`."""

    arch: Annotated[str, AfterValidator(_untagged)]
    """Its name, e.g. `resnet50` or `cifar_resnet32`; the recipe's `name` begins with it."""
    args: dict[str, Any] = {}
    """E.g. `{img_size: 32, patch_size: 4}`."""


class InitSection(Config):
    """Start from a release instead of random weights."""

    release: str
    """A weights name, `org/repo[@rev]`, a folder, or `timm:ARCH.TAG` for timm's own pretrained weights."""
    head: Literal["fresh", "centers"] = "fresh"
    """For `classify`: a new head, or one made of the release's learned centers."""
    freeze: list[str] = []
    """Shell patterns for the names of the encoder's parameters that are not trained, e.g. `layer[12].*`.
    BatchNorm's running statistics are no parameters; they go on following the data."""


class OptimizerSection(Config):
    """`timm.optim.create_optimizer_v2`; its `sgd` has Nesterov momentum, its `momentum` is plain SGD."""

    name: str
    """As timm spells it, e.g. `sgd`, `momentum`, `adamw` or `lars`."""
    lr: NonNegative
    """Used as given: never scaled by batch size or number of devices."""
    weight_decay: NonNegative
    """As the optimizer has it: L2 in the gradient of SGD, decoupled in AdamW."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum; unused by the Adam family, whose betas go into `args`."""
    decay_norm_and_bias: bool = True
    """Whether weight decay also covers biases and normalisation layers."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Each layer's learning rate is that of the layer above it times this; the head's is `lr`."""
    args: dict[str, Any] = {}
    """More arguments of the optimizer, e.g. `{betas: [0.9, 0.95]}`."""


class ScheduleSection(Config):
    """Learning rate against training progress, stepped every update (`timm.scheduler`)."""

    name: Literal["constant", "cosine", "multistep"]
    """`constant`: `lr` throughout; `cosine`: half a cosine from `lr` to `min_lr`; `multistep`: falls at
    `milestones`."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    """Linear warm-up from `warmup_lr`."""
    warmup_lr: NonNegative = 0.0
    """Where the warm-up begins; unused without one."""
    warmup_prefix: bool = False
    """The cosine begins where the warm-up ends, and goes over the epochs that are left, as MoCo v3, PaCo's
    larger recipes and solo-learn have it. False: it goes over all epochs, the first of which the warm-up
    covers."""
    min_lr: NonNegative = 0.0
    """Where the cosine ends."""
    milestones: Milestones = []
    """Epochs after which `multistep` multiplies the rate by `decay_rate`."""
    decay_rate: NonNegative = 0.1
    """Factor of the learning rate at each of `milestones`; unused by the others."""


class AverageSection(Config):
    """A moving average of the weights, which is what is released."""

    decay: Annotated[float, Field(gt=0, lt=1)]
    """Share of the average that each update keeps."""
    warmup: bool = True
    """Begin with a smaller decay, timm's 1 - n^(-2/3) in update n, so that the start is soon forgotten."""


class EarlyStoppingSection(Config):
    """Put a part of the training images aside, look at it while training, and release the best state.

    Class counts and priors are of the rest. What is measured afterwards has the whole training
    set: probes are fitted on it, and its counts make a class many, medium or few.
    """

    validation_fraction: Annotated[float, Field(gt=0, lt=1)]
    """Of each class, at least one image; a class of one image stays in the training part."""
    metric: Literal["balanced_accuracy", "accuracy", "loss"]
    """Of the classifier on that part; `loss` is its cross-entropy, for recipes that train that one alone. Of
    equal values the earlier wins."""
    every: PositiveInt
    """Epochs between looks; there is one at the end of the training in any case."""
    patience: PositiveInt
    """So many looks without a better value end the training."""


class TrainingSection(Config):
    """Length, numerics and bookkeeping of the run."""

    epochs: PositiveInt
    """Each draws as many images as there are in the training set."""
    batch_size: PositiveInt
    """Images of one update, those of all ranks together."""
    drop_last: bool = True
    """Leave out the last partial batch of an epoch, as authors of contrastive methods do."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of weights, order, augmentation and all other draws of the training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU where torch sees one."""
    threads: PositiveInt | None = None
    """Threads that torch computes with on a CPU; null: one per core. Tiny models gain nothing from a second
    thread and lose much where cores are shared; a fixed number also gives the same bits on every machine."""
    precision: Precision = "fp32"
    """bf16 is autocast; losses and queues stay float32. tf32 is float32 but for convolutions,
    which a GPU rounds to TensorFloat-32: torch's own default."""
    channels_last: bool = True
    """Memory layout of images and convolutions: on a GPU mostly faster, the results differ by rounding."""
    clip_grad: Annotated[float, Field(gt=0)] | None = None
    """Largest allowed norm of all gradients together; null: any."""
    sampling: Literal["instance", "class_balanced", "square_root"] = "instance"
    """How the images of a batch are drawn: each once in an epoch; or, with replacement, first a class (each
    equally likely; likely as the square root of its images), then one of its images."""
    ema: AverageSection | None = None
    """Release a moving average of the weights; the training goes on with the weights themselves."""
    early_stopping: EarlyStoppingSection | None = None
    """Release the best state on a part of the training images; null: that of the last epoch."""
    accumulate: Literal[1] = 1
    """Always 1; recipes of earlier releases state it."""
    checkpoint_activations: Literal[False] = False
    """Always false; recipes of earlier releases state it."""
    compile: Literal["default", "reduce-overhead"] | None = None
    """Mode in which `torch.compile` compiles query and key encoder: a minute at the start, then faster steps.
    `reduce-overhead` also replays them as CUDA graphs, for networks whose kernels take a GPU less time than
    launching them. null: not compiled."""
    sync_batchnorm: bool = False
    """BatchNorm takes its statistics over the images of all ranks, on GPUs; ignored with one rank. The key
    encoder's groups (`objective.key_groups`) keep theirs apart in any case."""
    observe_every: PositiveInt | None = 50
    """Steps between looks at scores, gradients and centers, which cost more than an ordinary step's metrics;
    what they see goes into metrics.jsonl and classes.jsonl. null: none."""
    knn_every: PositiveInt | None = None
    """Epochs between looks at how many training images their nearest neighbours among others classify as
    labelled, for objectives that learn without labels; null: none. Half of at most 10,000 images, drawn class
    by class, vote on the other half (k 20, tau 0.07, cosine); accuracies go into metrics.jsonl."""
    log_every: PositiveInt = 50
    """Steps between rows of metrics.jsonl; each row is the mean over them."""
    checkpoint_every: PositiveInt = 20
    """Epochs between checkpoints."""
    checkpoint_minutes: Annotated[float, Field(gt=0)] | None = 30.0
    """Checkpoints also after so much time, within an epoch; null: at the ends of epochs alone."""
    keep_checkpoints: PositiveInt = 2
    """How many checkpoints are kept, the newest ones; with 2 there is one to fall back on."""
    release_dtype: Literal["float32", "float16"] = "float32"
    """Of the floating-point numbers in the release's files. With `float16`, half the size, encoder and
    centers are rounded after the training and before anything is measured; what loads them computes in
    float32."""
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = []
    """Where the rows of metrics.jsonl go as well; each needs the extra of its name."""
