"""The recipe's sections on backbone, initial weights, optimisation, training and method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from zoo.config import Config, named_by
from zoo.data.ops import Share
from zoo.objectives.config import LDAMLoss

Natural = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1, le=1 << 40)]
Thousand = Annotated[int, Field(ge=1, le=1024)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Milestones = Annotated[list[PositiveInt], AfterValidator(sorted)]  # timm's scheduler bisects them
Precision = Literal["fp32", "tf32", "bf16"]  # bf16: autocast; tf32: convolutions on a GPU


class BackboneSection(Config):
    """A timm architecture, by its name without a tag, and arguments of `timm.create_model`."""

    arch: str = Field(pattern=r"^[^.]+$", description="E.g. `resnet18`; `init` names pretrained weights.")
    args: dict[str, Any] = Field({}, description="E.g. `{img_size: 32, patch_size: 4}`.")


class InitSection(Config):
    """Start from a release instead of random weights."""

    release: str = Field(description="A weights name, `org/repo[@rev]`, a folder, or `timm:ARCH.TAG`.")
    head: Literal["fresh", "centers", "means"] = "fresh"
    """For `classify`: new weights, the release's centers, or unit mean features of each class's images."""


class LoRASection(Config):
    """Low-rank adapters for the encoder's layers (2106.09685), merged into them before the release."""

    kind: Literal["lora"]
    rank: Thousand = Field(8, description="r; an adapter has r x (inputs + outputs) parameters.")
    alpha: Positive = Field(16.0, description="The adapter's output is scaled by alpha / r.")
    target: list[str] | None = Field(None, description="Patterns; null: layers larger than adapters.")


class OptimizerSection(Config):
    """`timm.optim.create_optimizer_v2`; its `sgd` has Nesterov momentum, its `momentum` is plain SGD."""

    name: str = Field(description="As timm spells it, e.g. `sgd`, `momentum`, `adamw` or `lars`.")
    lr: NonNegative = Field(description="Used as given: never scaled by batch size or number of devices.")
    weight_decay: NonNegative = Field(description="L2 in the gradient of SGD, decoupled in AdamW.")
    momentum: Momentum = Field(0.9, description="SGD's momentum; for Adam, set the betas in `args`.")
    decay_norm_and_bias: bool = Field(True, description="Decay biases and normalisation layers too.")
    layer_decay: Share | None = Field(None, description="Factor of the rate per layer, from the top.")
    args: dict[str, Any] = Field({}, description="Further arguments, e.g. `{betas: [0.9, 0.95]}`.")


class ScheduleSection(Config):
    """Learning-rate schedule, advanced at every update (`timm.scheduler`)."""

    name: Literal["constant", "cosine", "multistep"] = Field(description="Of the learning rate.")
    warmup_epochs: Natural = Field(0, description="Linear warm-up from `warmup_lr`.")
    warmup_lr: NonNegative = Field(0.0, description="Learning rate at the start of the warm-up.")
    warmup_prefix: bool = Field(False, description="Start the cosine after the warm-up (MoCo v3).")
    min_lr: NonNegative = Field(0.0, description="Learning rate at the end of the cosine.")
    milestones: Milestones = Field([], description="Epochs after which `multistep` lowers the rate.")
    decay_rate: NonNegative = Field(0.1, description="Factor of the rate at each milestone.")


class AverageSection(Config):
    """A moving average of the weights, which is released in their place."""

    decay: Fraction = Field(description="Weight of the old average in each update.")
    warmup: bool = Field(True, description="Start with a smaller decay, 1 - n^(-2/3) in update n (timm's).")


class EarlyStoppingSection(Config):
    """Hold out a part of the training images, measure it while training, and release the best state."""

    validation_fraction: Fraction = Field(description="Share of each class; of two images, one.")
    metric: Literal["balanced_accuracy", "accuracy", "loss"] = Field(description="`loss`: cross-entropy.")
    every: PositiveInt = Field(description="Epochs between evaluations; the last epoch is also evaluated.")
    patience: PositiveInt = Field(description="Evaluations without improvement before training stops.")


class TrainingSection(Config):
    """Length, numerics and bookkeeping of the run."""

    epochs: PositiveInt = Field(description="Each draws as many images as the set has.")
    batch_size: PositiveInt = Field(description="Images per update, over all ranks together.")
    drop_last: bool = Field(True, description="Drop the last partial batch of an epoch.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Of all random draws.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: a GPU if torch finds one.")
    threads: Thousand | None = Field(None, description="torch's CPU threads; null: one per core.")
    precision: Literal["auto", Precision] = Field("auto", description="`auto`: bf16 where it is faster.")
    channels_last: bool = Field(True, description="Use the channels_last memory format.")
    clip_grad: Positive | None = Field(None, description="Clips the norm of all gradients; null: no.")
    sampling: Literal["instance", "class_balanced"] = "instance"
    """`instance`: each image once per epoch. `class_balanced`: draw a class, then one of its images."""
    ema: AverageSection | None = Field(None, description="Release an EMA of the weights.")
    early_stopping: EarlyStoppingSection | None = Field(None, description="Release the best state.")
    compile: Literal["auto", "default", "reduce-overhead"] | None = None
    """Mode of `torch.compile`; null: not compiled; `auto`: `default` in trainings long enough to repay it."""
    sync_batchnorm: bool = Field(False, description="Share BatchNorm statistics over ranks, on GPUs.")
    observe_every: PositiveInt | None = Field(50, description="Steps between diagnostics.")
    knn_every: PositiveInt | None = Field(None, description="Epochs between kNN evaluations.")
    log_every: PositiveInt = Field(50, description="Steps averaged in each row of metrics.jsonl.")
    checkpoint_every: PositiveInt = Field(20, description="Epochs between checkpoints.")
    checkpoint_minutes: Positive | None = Field(30.0, description="Also this often; null: not.")
    keep_checkpoints: PositiveInt = Field(2, description="Number of newest checkpoints to keep.")
    release_dtype: Literal["float32", "float16"] = Field("float32", description="Of released tensors.")
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field([], description="Also get the rows.")


class Loss(Config):
    """Cross-entropy: plain, on class-balanced batches, or of logits + log prior."""

    name: Literal["cross_entropy", "class_balanced_sampling", "balanced_softmax"]


class Adjusted(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10), or plain and adjusted afterwards.

    `post_hoc`: - tau log prior (eq. 9). `tau_normalized`: weight / norm^tau, no bias (Kang et al. 2020).
    """

    name: Literal["logit_adjustment", "post_hoc_logit_adjustment", "tau_normalized"]
    tau: NonNegative = Field(1.0, description="Factor of the log prior, or exponent of the norm.")


class SecondStage(Config):
    """Cross-entropy; then SGD on class-balanced batches with a frozen encoder (Kang et al. 2020).

    `crt` trains a new classifier, `lws` a factor for each class. BatchNorm's statistics are frozen too, which
    the authors' are not (run_networks.py); they use lr 0.2 for 512 images, 10 epochs for cRT, 5 for LWS.
    """

    name: Literal["crt", "lws"]
    epochs: PositiveInt = Field(10, description="Length of the second training.")
    lr: NonNegative = Field(0.1, description="Used as given, at every batch size.")
    momentum: Momentum = Field(0.9, description="SGD's momentum in the second training.")
    weight_decay: NonNegative = Field(0.0005, description="SGD's weight decay in the second training.")


class LDAMDRW(LDAMLoss):
    """Label-distribution-aware margins, with classes reweighted late in training (Cao et al. 2019)."""

    name: Literal["ldam_drw"]  # type: ignore[assignment]


class FromCenters(Config):
    """Start the head from the centers of `init`; cross-entropy, or with `prior` Balanced Softmax."""

    name: Literal["from_centers"]
    prior: bool = Field(False, description="Train with the log class prior added (Balanced Softmax).")


class NearestCenter(Config):
    """No training: predict the nearest learned center of `init`, or class mean of its features."""

    name: Literal["nearest_center"]
    centers: Literal["learned", "means"] = Field("learned", description="Those of `init`, or class means.")
    similarity: Literal["logit", "cosine", "euclidean"] = Field("logit", description="`logit`: w x + b.")


_Method = Loss | Adjusted | SecondStage | LDAMDRW | FromCenters | NearestCenter
Method = Annotated[_Method, Field(discriminator="name"), named_by("name")]
"""A method for long-tailed data: up to two plain trainings and a final step."""
