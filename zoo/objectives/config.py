"""The section `objective` of a recipe: hyper-parameters, by objective. Nothing here imports torch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from zoo.config import Config, named_by
from zoo.modules import schedule
from zoo.modules.schedule import HeadBatchNorm, HeadHidden, HeadLayers, QueueSize, Scheduled, Tau

Granularity = Literal["step", "sample", "dimension"]
Keep = Annotated[float, Field(gt=0, le=1, description="Share of the negatives with the highest scores.")]
Weight = Annotated[float, Field(gt=0, description="lambda, weight of each negative's score.")]


class ObjectiveConfig(Config):
    """Base of the recipe's `objective:` section; `name` selects the class."""

    name: str = Field(description="Name of the objective, e.g. `paco`.")

    num_views: ClassVar[int] = 2
    """Views of each image in a batch."""
    from_candidates: ClassVar[bool] = False
    """Whether it learns from `data.partial_labels`."""
    without_labels: ClassVar[bool] = False
    """Whether it can learn if the label of every image is -1."""
    learns_centers: ClassVar[bool] = False
    """Whether it has `centers`; set by `register_objective`."""


class PositiveExtrapolation(Config):
    """q^ = l q + (1 - l) k, k^ = l k + (1 - l) q with l = 1 + Beta(alpha, alpha)."""

    alpha: Annotated[float, Field(gt=0.5)] = 2.0
    """Parameter of the Beta distribution; the larger it is, the closer l stays to 1.5."""
    per: Granularity = "step"
    """Draw one coefficient per step, per sample (row) or per dimension (every entry)."""


class NegativeInterpolation(Config):
    """Z^ = l Z + (1 - l) Z[perm] with l ~ Beta(alpha, alpha) and a fresh permutation every step."""

    alpha: Annotated[float, Field(gt=0.5)] = 1.6
    """Parameter of the Beta distribution; the larger it is, the closer l stays to 0.5."""
    per: Granularity = Field(default="step", description="As for positives; a sample is a key in the queue.")
    keep_originals: bool = False
    """Contrast with the union of Z^ and Z (2K negatives) instead of Z^ alone."""


class FeatureTransformConfig(Config):
    """The feature transformation: which features, how, and from which epoch; `{}` is the authors' setting."""

    positives: PositiveExtrapolation | None = PositiveExtrapolation()
    """Extrapolate queries and keys away from each other; null: do not."""
    negatives: NegativeInterpolation | None = NegativeInterpolation()
    """Mix the queue's keys with each other; null: do not."""
    renormalize: bool = False
    """Normalise transformed vectors to unit length; the authors do not."""
    start_epoch: Annotated[int, Field(ge=0)] = Field(0, description="Number of initial epochs without FT.")


class ProjectionConfig(ObjectiveConfig):
    """A projection head from pooled features to the unit sphere."""

    dim: Annotated[int, Field(ge=1, le=1 << 31)] = Field(128, description="D, size of the projection.")
    head_layers: HeadLayers = 2
    head_hidden: HeadHidden = 2048  # the features of a ResNet-50
    head_batchnorm: HeadBatchNorm = False


class QueueConfig(ProjectionConfig):
    """Contrast with a queue."""

    queue_size: QueueSize = 65536
    feature_transform: FeatureTransformConfig | None = None
    """FT (https://arxiv.org/abs/2108.02982): harder positives, more diverse negatives; null: none."""


class MomentumConfig(QueueConfig):
    """Contrast with a queue that a slowly moving key encoder fills."""

    momentum: schedule.MomentumSchedule = Field(0.999, description="m of the key encoder, or its schedule.")
    key_groups: Annotated[int, Field(ge=1)] = 1
    """Groups of keys with separate BatchNorm statistics, standing in for the authors' GPUs; 1: off."""


class InfoNCE(Config):
    """Softmax of the positive among all negatives."""

    name: Literal["info_nce"] = "info_nce"


class HardContrastive(Config):
    """InfoNCE over each anchor's hardest negatives."""

    name: Literal["hard_contrastive"]
    keep: Keep


class Simple(Config):
    """-s_ii + weight * (sum of the negatives' scores): no hardness, no temperature."""

    name: Literal["simple"]
    weight: Weight


class HardSimple(Config):
    """The simple loss over each anchor's hardest negatives."""

    name: Literal["hard_simple"]
    weight: Weight
    keep: Keep


class MoCoConfig(MomentumConfig):
    """Momentum contrast; defaults are v2's: two head layers, tau 0.2. v1: one head layer, tau 0.07.

    The papers' heads have no BatchNorm, but short schedules need it: without it, all projections of a ReLU
    network point in one direction at first, and it takes thousands of steps to leave that state.
    """

    without_labels = True
    name: Literal["moco"]
    tau: Tau | None = 0.2
    """Temperature that scores are divided by; null for the simple losses, which have none."""
    loss: Annotated[
        InfoNCE | HardContrastive | Simple | HardSimple, Field(discriminator="name"), named_by("name")
    ] = InfoNCE()
    """InfoNCE, or one of the temperature paper (https://arxiv.org/abs/2012.09740)."""

    @model_validator(mode="after")
    def _temperature_fits(self) -> Self:
        needed = isinstance(self.loss, InfoNCE | HardContrastive)
        if needed != (self.tau is not None):
            expected = "a temperature" if needed else "null"
            raise ValueError(f'tau: found {self.tau!r} with loss "{self.loss.name}", expected {expected}')
        return self


class MoCoV3Config(ObjectiveConfig):
    """Momentum contrast for Vision Transformers (the defaults) and ResNets."""

    without_labels = True
    name: Literal["moco_v3"]
    dim: Annotated[int, Field(ge=1, le=1 << 31)] = 256
    """D, size of the projection and of the prediction."""
    head_hidden: Annotated[int, Field(ge=1)] = 4096
    """Hidden width of projector and predictor."""
    projector_layers: Annotated[int, Field(ge=1)] = 3
    """The authors use 2 for ResNet-50 and 3 for ViT, all with BatchNorm, the last one without affine."""
    predictor_batchnorm: bool = True
    """BatchNorm without affine after the predictor's last layer; the authors use it only for ViT."""
    tau: Tau = 0.2
    """Temperature that scores are divided by. The authors use 1 for ResNet-50."""
    momentum: schedule.MomentumSchedule = Scheduled(kind="cosine", start=0.99, end=1.0)
    """m of the key encoder; the authors' rises along a cosine from 0.99 to 1."""
    freeze_patch_embedding: bool = True
    """ViT: freeze the patch embedding at its random initialisation, which stabilises training."""
    sincos_positions: bool = True
    """ViT: fixed sin-cos position embedding instead of a learned one."""


class SimCLRConfig(ProjectionConfig):
    """In-batch contrast."""

    without_labels = True
    name: Literal["simclr"]
    head_batchnorm: HeadBatchNorm = True
    tau: Tau = 0.1


class SupConConfig(MomentumConfig):
    """Supervised contrast; the baseline that PaCo starts from."""

    name: Literal["sup_con"]
    tau: Tau = 0.1


class MarginConfig(ProjectionConfig):
    """Attracts images of one class and repels others up to a margin."""

    name: Literal["margin"]
    margin: Annotated[float, Field(gt=0)] = 1.0
    """Distance beyond which images of two classes no longer repel; at most 2 on the unit sphere."""


class CenterConfig(QueueConfig):
    """Settings that PaCo and GPaCo share; defaults are those of ImageNet-LT."""

    learns_centers = True
    queue_size: QueueSize = 8192
    tau: Tau = 0.2
    alpha: Annotated[float, Field(ge=0)] = 0.05
    """Weight of each sample among the positives; 0: only the center counts."""
    beta: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the anchor's own center among the positives."""
    gamma: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the samples in the softmax's denominator."""
    center_tau: Annotated[float, Field(ge=1e-3)] = 1.0
    """Temperature of the centers' logits, prior included."""
    rebalance: bool = True
    """Add the log class prior to the centers' logits (Balanced Softmax)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over positives: the authors' code uses the mean, the paper the sum."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of beta that goes to the other classes' centers."""


class PaCoConfig(CenterConfig, MomentumConfig):
    """Parametric contrastive learning."""

    name: Literal["paco"]
    head_batchnorm: HeadBatchNorm = True


class GPaCoConfig(CenterConfig):
    """Generalized parametric contrastive learning."""

    name: Literal["gpaco"]
    head_layers: HeadLayers = 3


class BCLConfig(ProjectionConfig):
    """Balanced contrastive learning; defaults are those of CIFAR."""

    name: Literal["bcl"]
    head_batchnorm: HeadBatchNorm = True
    tau: Tau = 0.1
    classification_weight: Annotated[float, Field(ge=0)] = 2.0
    """Factor of the classifier's loss (the paper's lambda)."""
    contrast_weight: Annotated[float, Field(ge=0)] = 0.6
    """Factor of the contrast (the paper's mu)."""
    head: Literal["linear", "cosine"] = "linear"
    """`cosine`: unit weights on unit features, no bias (the authors use it on ImageNet with `scale: 30`)."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Factor of the classifier's logits; null: 1."""

    num_views, learns_centers = 3, True


class PiCOConfig(MomentumConfig):
    """Contrastive label disambiguation. The first view is the weak one, the second the strong one."""

    from_candidates = learns_centers = True
    name: Literal["pico"]
    head_hidden: HeadHidden = 512  # the features of a ResNet-18
    queue_size: QueueSize = 8192
    tau: Tau = 0.07
    contrast_weight: Annotated[float, Field(ge=0)] = 0.5
    """lambda of the contrastive loss beside the classification."""
    prototype_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """gamma of the class prototypes."""
    target_momentum: schedule.MomentumSchedule = Scheduled(kind="linear", start=0.95, end=0.8)
    """phi of the label distributions; it falls from 0.95 to 0.8 in the authors' code."""
    prototype_start: Annotated[int, Field(ge=0)] = 1
    """Epochs of warm-up: uniform targets over the candidates, and MoCo's contrast without labels."""


class LogitAdjustmentLoss(Config):
    """Cross-entropy of logits + tau log prior (Menon et al. 2021, eq. 10)."""

    name: Literal["logit_adjustment"]
    tau: Annotated[float, Field(ge=0)] = 1.0
    """Factor of the log prior; 1 is Balanced Softmax."""


class LDAMLoss(Config):
    """Label-distribution-aware margins, with deferred reweighting (Cao et al. 2019)."""

    name: Literal["ldam"]
    max_margin: Annotated[float, Field(ge=0)] = 0.5
    """Margin of the rarest class, in units of the cosine."""
    scale: Annotated[float, Field(gt=0)] = Field(30.0, description="Scale of the cosines in the softmax.")
    reweight_from: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the training after which classes are weighted by their effective numbers; 1: never."""
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9999
    """beta in the effective number of n images, (1 - beta^n) / (1 - beta)."""


class MixConfig(Config):
    """Mix pairs of images and their labels with `timm.data.Mixup`, in one proportion per batch."""

    mixup: Annotated[float, Field(ge=0)] = 1.0
    """Parameter of the Beta distribution of mixup's share; 0: no mixup (Zhang et al. 2018)."""
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    """Parameter of the Beta distribution of the pasted box's area; 0: no CutMix (Yun et al. 2019)."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability that a batch is mixed at all."""


class DistillConfig(Config):
    """Learn from trained classifiers beside the labels (Hinton et al. 2015): `functional.distillation`."""

    teachers: Annotated[list[str], Field(min_length=1)]
    """Releases with class centers: weights names, `org/repo[@rev]` or folders. They see the same augmented
    images as the student. Each must have all classes of the data, by name, and may have more."""
    weight: Annotated[float, Field(gt=0, le=1)]
    """Share of the teachers in the loss; the rest is for the labels."""
    tau: Annotated[float, Field(gt=0)]
    """Temperature of the student's and teachers' softmax; above 1 unlikely classes count more."""


class ClassifyConfig(ObjectiveConfig):
    """Softmax classification on one view."""

    num_views, learns_centers = 1, True
    name: Literal["classify"]
    loss: Annotated[
        Annotated[Literal["cross_entropy", "balanced_softmax", "logit_adjustment", "ldam"], Tag("<value>")]
        | Annotated[Annotated[LogitAdjustmentLoss | LDAMLoss, Field(discriminator="name")], Tag("<section>")],
        Discriminator(schedule.section_or_value),
        BeforeValidator(lambda found: {"name": found} if found in ("logit_adjustment", "ldam") else found),
    ] = "cross_entropy"
    """`balanced_softmax` adds the log class prior to the logits while training (Ren et al. 2020)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """As in torch, this share of the target is spread over all classes."""
    head_std: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of a linear head's initial weights, with a bias of 0; null: torch's own."""
    head: Literal["linear", "cosine", "scaled"] = "linear"
    """`cosine`: unit weights on unit features, no bias; `scaled`: a frozen linear classifier with a learned
    factor for each class."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Factor of a cosine head's logits; null for other heads, and for LDAM, which has its own."""
    mix: MixConfig | None = None
    """Mix images in training; the loss then weights both labels of a pair by their shares."""
    distill: DistillConfig | None = Field(None, description="Teachers beside labels; null: none.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ldam, scaled = self.loss_name == "ldam", self.scale is not None
        if (self.head == "cosine") != (ldam or scaled) or (ldam and scaled):
            found = f'"{self.head}" with loss "{self.loss_name}" and scale {self.scale}'
            raise ValueError(f'head: found {found}, expected "cosine" just with "ldam" or a scale, not both')
        if ldam and (self.mix or self.distill or self.label_smoothing):
            raise ValueError('loss: found "ldam" with mix, distill or label_smoothing, expected none of them')
        if self.mix and self.mix.mixup == self.mix.cutmix == 0:
            raise ValueError("mix: found mixup 0 and cutmix 0, expected one above 0, or mix: null")
        return self

    @property
    def loss_name(self) -> str:
        """The name of the loss."""
        return self.loss if isinstance(self.loss, str) else self.loss.name
