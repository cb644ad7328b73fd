"""Supervised classification: the baseline of every long-tailed table, fine-tuning, linear evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from timm.data.mixup import Mixup, one_hot
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.config import Config
from zoo.errors import TrainingError
from zoo.modules import Centers, CosineClassifier, ScaledClassifier, full_logits
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output
from zoo.seeding import seeded_globals


class LogitAdjustmentLoss(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10)."""

    name: Literal["logit_adjustment"]
    tau: Annotated[float, Field(ge=0)] = 1.0
    """Factor of the log prior; 1 is Balanced Softmax."""


class LDAMLoss(Config):
    """Label-distribution-aware margins, with deferred reweighting (Cao et al. 2019)."""

    name: Literal["ldam"]
    max_margin: Annotated[float, Field(ge=0)] = 0.5
    """Of the rarest class, in units of the cosine."""
    scale: Annotated[float, Field(gt=0)] = 30.0
    """Factor of the cosines in the softmax."""
    reweight_from: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the training after which classes are weighted by their effective numbers; 1: never."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9999
    """Of the effective number of images, (1 - beta^n) / (1 - beta)."""


def _written_as(value: object) -> str:
    """Tell a loss that is a word from a section; the tags are in angle brackets since no user writes them."""
    return "<section>" if isinstance(value, (dict, Config)) else "<word>"


class MixConfig(Config):
    """Pairs of images are mixed, and so are their labels (`timm.data.Mixup`, with its defaults)."""

    mixup: Annotated[float, Field(ge=0)] = 1.0
    """Both weights of the Beta distribution of mixup's share; 0: no mixup (Zhang et al. 2018)."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """Likewise of the pasted box's area (Yun et al. 2019)."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of a batch, pair or image to be mixed at all."""
    switch_probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of cutmix where both are on."""
    mode: Literal["batch", "pair", "elem"] = "batch"
    """What draws a share of its own."""

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if self.mixup == self.cutmix == 0:
            raise ValueError("mix: found mixup 0 and cutmix 0, expected one above 0, or mix: null")
        return self


class DistillConfig(Config):
    """Learn from trained classifiers beside the labels (Hinton et al. 2015): `functional.distillation`."""

    teachers: Annotated[list[str], Field(min_length=1)]
    """Releases with class centers: weights names, `org/repo[@rev]` or folders. They are asked about the very
    images that the student sees. Each knows all classes of the data, by name; it may know more."""
    weight: Annotated[float, Field(gt=0, le=1)]
    """Share of the teachers in the loss; the rest is that of the labels."""
    tau: Annotated[float, Field(gt=0)]
    """Temperature of what student and teachers say; above 1 the lesser classes tell more."""
    adjustment: float = 0.0
    """So many times the log prior of the training images is taken off the teachers' logits: 1 for teachers
    that plain cross-entropy has trained on these images and a student whose loss adds the prior, -1 the other
    way round, 0 where both are alike."""

    @field_validator("teachers")
    @classmethod
    def _each_once(cls, teachers: list[str]) -> list[str]:
        if len({*teachers}) < len(teachers):
            raise ValueError(f"found {teachers}, expected each teacher once")
        return teachers


class ClassifyConfig(ObjectiveConfig):
    """Softmax classification on one view."""

    name: Literal["classify"]
    loss: Annotated[
        Annotated[Literal["cross_entropy", "balanced_softmax"], Tag("<word>")]
        | Annotated[Annotated[LogitAdjustmentLoss | LDAMLoss, Field(discriminator="name")], Tag("<section>")],
        Discriminator(_written_as),
    ] = "cross_entropy"
    """`balanced_softmax` adds the log class prior to the logits while training (Ren et al. 2020)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """torch's: this share of the target is spread over all classes."""
    freeze_encoder: bool = False
    """Train the classifier alone: the encoder is in evaluation mode, BatchNorm's statistics included."""
    head_std: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of the classifier's initial weights, with a bias of 0; null: torch's own."""
    head: Literal["linear", "cosine", "scaled"] = "linear"
    """`cosine`: unit weights on unit features, no bias (for LDAM); `scaled`: a linear classifier that stays
    as it is, with a learned factor for each class."""
    mix: MixConfig | None = None
    """While training; the loss is then against both labels of a pair, by their shares."""
    distill: DistillConfig | None = None
    """Teachers beside the labels; null: labels alone."""

    @model_validator(mode="after")
    def _loss_takes_mixed_labels(self) -> Self:
        if self.mix is not None and isinstance(self.loss, LDAMLoss):
            raise ValueError("mix: found with loss ldam, whose margin is that of one label; expected null")
        return self

    @model_validator(mode="after")
    def _ldam_fits(self) -> ClassifyConfig:
        ldam = isinstance(self.loss, LDAMLoss)
        if ldam != (self.head == "cosine"):
            raise ValueError(
                f'head: found "{self.head}" with loss "{self.loss_name}", expected '
                + ('"cosine"' if ldam else '"linear" or "scaled": only ldam scales cosines')
            )
        if ldam and self.distill is not None:
            raise ValueError('distill: found with loss "ldam", whose cosines no teacher has; expected null')
        if ldam and self.label_smoothing > 0:
            raise ValueError(
                'label_smoothing: loss "ldam" has margins for one class of an image; expected none'
            )
        if self.head_std is not None and self.head != "linear":
            raise ValueError(f'head_std: found {self.head_std} with head "{self.head}", expected null')
        return self

    @property
    def adds_prior(self) -> bool:
        """See `ObjectiveConfig.adds_prior`."""
        return self.loss_name in ("balanced_softmax", "logit_adjustment")

    @property
    def loss_name(self) -> str:
        """The loss in a word."""
        return self.loss if isinstance(self.loss, str) else self.loss.name


class Classify(Objective):
    """A linear classifier on the pooled features, trained together with the encoder or on a frozen one.

    Fine-tuning is this objective with the recipe's `init:` pointing at a release. With a frozen encoder it is
    linear evaluation as MoCo's authors do it (github.com/facebookresearch/moco, main_lincls.py).
    """

    Config = ClassifyConfig
    num_views = 1

    def __init__(self, config: ClassifyConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.classifier = _HEADS[config.head](feature_dim(encoder), info.num_classes)
        if config.head_std is not None:
            nn.init.normal_(self.classifier.weight, std=config.head_std)
            nn.init.zeros_(self.classifier.bias)
        if config.freeze_encoder:
            encoder.requires_grad_(False)
        self.teachers = nn.ModuleList(info.teachers)
        self.mixes_images = config.mix is not None

    def train(self, mode: bool = True) -> Classify:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.config.freeze_encoder:
            self.encoder.eval()
        return self

    @torch.no_grad()
    def start_from(self, centers: Centers) -> None:
        """Make the head of learned centers.

        Raises:
            TrainingError: if their shape is not `[C, D_f]` of this data set and encoder.
        """
        found, expected = tuple(centers.weight.shape), tuple(self.classifier.weight.shape)
        assert isinstance(self.classifier, nn.Linear)  # the recipe's schema allows no other
        if found != expected:
            raise TrainingError(
                f"init.head: the release's centers are {found[0]} classes x {found[1]} features, expected "
                f'{expected[0]} x {expected[1]}; use "head: fresh" for other classes'
            )
        self.classifier.weight.copy_(centers.weight)
        self.classifier.bias.copy_(centers.bias)

    def forward(self, batch: Batch) -> Output:
        """Classify the one view; `train_accuracy` of mixed images is that of the label with more share."""
        images, targets = batch.views[0], batch.labels
        if self.config.mix is not None and self.training:
            images, targets = mix(self.config.mix, images, targets, len(self.class_counts))
        labels = targets if targets.ndim == 1 else targets.argmax(dim=1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_encoder):
            features = self.encoder(images)
        logits = full_logits(self.classifier, features)
        accuracy = 100 * (logits.detach().argmax(dim=1) == labels).float().mean()
        metrics = {"train_accuracy": accuracy}
        loss = self._loss(logits, targets)
        if self.config.distill is not None:
            taught = self._taught(self.config.distill, images, logits)
            metrics |= {"label_loss": loss.detach(), "distillation_loss": taught.detach()}
            loss = torch.lerp(loss, taught, self.config.distill.weight)
        return Output(loss, metrics)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss `[]` of logits `[B, C]` (cosines for LDAM) and labels `[B]`, or shares `[B, C]`."""
        loss, smoothing = self.config.loss, self.config.label_smoothing
        if isinstance(loss, LDAMLoss):
            return self._ldam(loss, logits, labels)
        if isinstance(loss, LogitAdjustmentLoss):
            return functional.logit_adjusted(
                logits, labels, self.class_counts, tau=loss.tau, label_smoothing=smoothing
            )
        if loss == "balanced_softmax":
            return functional.balanced_softmax(logits, labels, self.class_counts, label_smoothing=smoothing)
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)

    def _taught(self, config: DistillConfig, images: Tensor, logits: Tensor) -> Tensor:
        """Return the loss `[]` of logits `[B, C]` against what the teachers say of the same images."""
        said = torch.stack([teacher(images) for teacher in self.teachers])
        if config.adjustment:
            said = functional.post_hoc_adjusted(said, self.class_counts, tau=config.adjustment)
        return functional.distillation(logits, said, tau=config.tau)

    def _ldam(self, loss: LDAMLoss, cosines: Tensor, labels: Tensor) -> Tensor:
        weight = None
        if self._reweighted():
            weight = functional.class_balanced_weights(self.class_counts, beta=loss.beta)
        mean = functional.ldam(
            cosines,
            labels,
            self.class_counts,
            max_margin=loss.max_margin,
            scale=loss.scale,
            weight=weight,
        )
        if weight is None or self.ranks.alone:
            return mean
        # A mean over this rank's weights; what the ranks' means are averaged to has to be one over all.
        own = weight[labels].double()
        (everyones,) = self.ranks.gather_rows([own])
        return mean * (own.mean() / everyones.mean()).to(mean.dtype)

    def _reweighted(self) -> bool:
        loss = self.config.loss
        return isinstance(loss, LDAMLoss) and self.progress >= loss.reweight_from

    def facts(self, labels: Tensor) -> dict[str, Any]:
        """Return what tells its teachers from others, those of its state: see `Objective.facts`."""
        teachers = [teacher.sha256 for teacher in self.teachers]
        return {"teacher_sha256": teachers} if teachers else {}

    @torch.no_grad()
    def centers(self) -> Centers:
        """Return the linear classifier that the head amounts to.

        Of a cosine head it has the directions, at LDAM's scale: the features' own norm, which it does not
        take out, changes no order of classes. A loss that knows the class counts has never pushed away a
        class without images; that class is never predicted.
        """
        weight, bias = self._weight_and_bias()
        if self.config.loss != "cross_entropy":
            weight, bias = functional.mask_classes(weight, bias, self.class_counts == 0)
        return Centers(weight.detach(), bias.detach(), self.class_counts)

    def _weight_and_bias(self) -> tuple[Tensor, Tensor]:
        if isinstance(self.config.loss, LDAMLoss):
            weight = self.config.loss.scale * F.normalize(self.classifier.weight, dim=1)
            return weight, torch.zeros_like(weight[:, 0])
        if isinstance(self.classifier, ScaledClassifier):
            return self.classifier.scaled()
        return self.classifier.weight, self.classifier.bias


def mix(config: MixConfig, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mix image i of the batch with image B - 1 - i, and so their labels, as `timm.data.Mixup` does.

    timm draws from NumPy's global generator; its seed follows from torch's CPU generator, which the training
    seeds by (seed, step, rank). Each rank mixes its own rows. In
    an odd batch the middle image has no partner and stays.

    Args:
        config: how.
        images: `[B, 3, H, W]`; not changed.
        labels: classes `[B]`.
        num_classes: C.

    Returns:
        Images `[B, 3, H, W]`, and distributions over classes `[B, C]`, float32.
    """
    mixup = Mixup(
        mixup_alpha=config.mixup,
        cutmix_alpha=config.cutmix,
        prob=config.probability,
        switch_prob=config.switch_probability,
        mode=config.mode,
        label_smoothing=0.0,
        num_classes=num_classes,
    )
    half = len(images) // 2
    middle = slice(half, len(images) - half)
    seed = int(torch.randint(2**32, (), dtype=torch.int64))
    with seeded_globals(seed):
        mixed, targets = mixup(*(torch.cat([x[:half], x[middle.stop :]]) for x in (images, labels)))
    own = one_hot(labels[middle], num_classes)
    return (
        torch.cat([mixed[:half], images[middle], mixed[half:]]),
        torch.cat([targets[:half], own, targets[half:]]),
    )


_HEADS = {"linear": nn.Linear, "cosine": CosineClassifier, "scaled": ScaledClassifier}
