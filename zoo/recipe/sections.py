"""The recipe's sections on backbone, start, optimisation and the run; the others are their rooms' own."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from zoo.config import Config

Natural = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Unit = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def _rising(epochs: list[int]) -> list[int]:
    """Refuse a list out of order: timm's scheduler bisects it, and the rate would be wrong."""
    if any(late <= early for early, late in pairwise(epochs)):
        raise ValueError(f"found {epochs}, expected each epoch after the one before it")
    return epochs


def _untagged(arch: str) -> str:
    name, dot, _ = arch.partition(".")
    if dot:
        weights = f'weights are named by init: {{release: "timm:{arch}"}}'
        raise ValueError(f'found "{arch}", expected the architecture without the tag, "{name}"; {weights}')
    return arch


Milestones = Annotated[list[PositiveInt], AfterValidator(_rising)]
Precision = Literal["fp32", "tf32", "bf16"]
ON_GPU_ALONE = ("tf32",)


class BackboneSection(Config):
    """A timm architecture, by its name without a tag, and arguments of `timm.create_model`."""

    arch: Annotated[str, AfterValidator(_untagged)] = Field(description="E.g. `cifar_resnet32`.")
    args: dict[str, Any] = Field({}, description="E.g. `{img_size: 32, patch_size: 4}`.")


class InitSection(Config):
    """Start from a release instead of random weights."""

    release: str = Field(description="A weights name, `org/repo[@rev]`, a folder, or `timm:ARCH.TAG`.")
    head: Literal["fresh", "centers"] = Field(
        "fresh", description="`centers`: of the release, for `classify`."
    )
    freeze: list[str] = Field([], description="Shell patterns of encoder parameters, e.g. `layer[12].*`.")


class OptimizerSection(Config):
    """`timm.optim.create_optimizer_v2`; its `sgd` has Nesterov momentum, its `momentum` is plain SGD."""

    name: str = Field(description="As timm spells it, e.g. `sgd`, `momentum`, `adamw` or `lars`.")
    lr: NonNegative = Field(description="Used as given: never scaled by batch size or number of devices.")
    weight_decay: NonNegative = Field(description="L2 in the gradient of SGD, decoupled in AdamW.")
    momentum: Momentum = Field(0.9, description="Of SGD; the betas of the Adam family go into `args`.")
    decay_norm_and_bias: bool = Field(True, description="Whether biases and normalisation layers decay.")
    layer_decay: Share | None = Field(None, description="A layer's rate is that of the one above times this.")
    args: dict[str, Any] = Field({}, description="More arguments, e.g. `{betas: [0.9, 0.95]}`.")


class ScheduleSection(Config):
    """Learning rate against training progress, stepped every update (`timm.scheduler`)."""

    name: Literal["constant", "cosine", "multistep"] = Field(
        description="Half a cosine, or falling in steps."
    )
    warmup_epochs: Natural = Field(0, description="Linear warm-up from `warmup_lr`.")
    warmup_lr: NonNegative = Field(0.0, description="Where the warm-up begins.")
    warmup_prefix: bool = Field(False, description="Whether the cosine begins after the warm-up (MoCo v3).")
    min_lr: NonNegative = Field(0.0, description="Where the cosine ends.")
    milestones: Milestones = Field([], description="Epochs after which `multistep` falls.")
    decay_rate: NonNegative = Field(0.1, description="Factor of the rate at each of `milestones`.")


class AverageSection(Config):
    """A moving average of the weights, which is what is released."""

    decay: Fraction = Field(description="Share of the average that each update keeps.")
    warmup: bool = Field(True, description="Begin with a smaller decay, 1 - n^(-2/3) in update n (timm's).")


class EarlyStoppingSection(Config):
    """Hold out a part of the training images, measure it while training, and release the best state.

    What is measured afterwards has the whole training set.
    """

    validation_fraction: Fraction = Field(description="Of each class of more than one image, at least one.")
    metric: Literal["balanced_accuracy", "accuracy", "loss"] = Field(description="`loss`: cross-entropy.")
    every: PositiveInt = Field(description="Epochs between measurements; there is one at the end, too.")
    patience: PositiveInt = Field(description="Measurements without a better value that end the training.")


class TrainingSection(Config):
    """Length, numerics and bookkeeping of the run."""

    epochs: PositiveInt = Field(description="Each draws as many images as the training set has.")
    batch_size: PositiveInt = Field(description="Images of one update, those of all ranks together.")
    drop_last: bool = Field(True, description="Leave out the last partial batch of an epoch.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Of all draws of the training.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: a GPU where torch sees one.")
    threads: PositiveInt | None = Field(None, description="Of torch on a CPU; null: one per core.")
    precision: Precision = Field("fp32", description="bf16: autocast; tf32: convolutions on a GPU.")
    channels_last: bool = Field(True, description="Memory layout of images and convolutions.")
    clip_grad: Positive | None = Field(None, description="Largest norm of all gradients together; null: any.")
    sampling: Literal["instance", "class_balanced", "square_root"] = "instance"
    """Each image once an epoch; or first a class, each as likely, or as the square root of its images."""
    ema: AverageSection | None = Field(None, description="Release a moving average of the weights.")
    early_stopping: EarlyStoppingSection | None = Field(
        None, description="Release the best state, not the last."
    )
    accumulate: Literal[1] = Field(1, description="Always 1; recipes of earlier releases state it.")
    checkpoint_activations: Literal[False] = Field(False, description="Always false; see `accumulate`.")
    compile: Literal["default", "reduce-overhead"] | None = Field(None, description="`torch.compile`'s mode.")
    sync_batchnorm: bool = Field(False, description="BatchNorm's statistics are of all ranks, on GPUs.")
    observe_every: PositiveInt | None = Field(
        50, description="Steps between figures of scores and gradients."
    )
    knn_every: PositiveInt | None = Field(
        None, description="Epochs between kNN accuracies of training images."
    )
    log_every: PositiveInt = Field(50, description="Steps between rows of metrics.jsonl, means over them.")
    checkpoint_every: PositiveInt = Field(20, description="Epochs between checkpoints.")
    checkpoint_minutes: Positive | None = Field(30.0, description="Checkpoints also after so much time.")
    keep_checkpoints: PositiveInt = Field(2, description="How many checkpoints are kept, the newest ones.")
    release_dtype: Literal["float32", "float16"] = Field("float32", description="Of the release's files.")
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="Get the rows as well."
    )
