"""Supervised classification: for fine-tuning, linear evaluation, and as the long-tailed baseline."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timm.data.mixup import Mixup, one_hot
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import Centers, CosineClassifier, ScaledClassifier, as_linear, full_logits
from zoo.objectives.base import Batch, DataInfo, Objective, Output, share_of_weight, train_accuracy
from zoo.objectives.config import ClassifyConfig, LDAMLoss, LogitAdjustmentLoss, MixConfig


class Classify(Objective):
    """A classifier on the pooled features; on a frozen encoder, linear evaluation."""

    Config = ClassifyConfig

    def __init__(self, config: ClassifyConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        heads = {"linear": nn.Linear, "cosine": CosineClassifier, "scaled": ScaledClassifier}
        self.classifier: Any = heads[config.head](feature_dim(encoder), len(info.class_counts))
        if config.head == "linear" and config.head_std is not None:
            nn.init.normal_(self.classifier.weight, std=config.head_std)
            nn.init.zeros_(self.classifier.bias)
        self.teachers = nn.ModuleList(info.teachers)
        self.mixes_images = config.mix is not None

    def start_from(self, centers: Centers) -> None:
        """Initialise the head with centers of the same classes and encoder; a cosine head has no bias."""
        self.classifier.load_state_dict({"weight": centers.weight, "bias": centers.bias}, strict=False)

    def forward(self, batch: Batch) -> Output:
        """Classify the view; for mixed images `train_accuracy` counts the label with the larger share."""
        config, images, targets = self.config, batch.views[0], batch.labels
        if config.mix is not None and self.training:
            images, targets = mix(config.mix, images, targets, len(self.class_counts))
        labels = targets if targets.ndim == 1 else targets.argmax(dim=1)
        logits = full_logits(self.classifier, self.encoder(images)) * (config.scale or 1.0)
        metrics = {"train_accuracy": train_accuracy(logits, labels)}
        loss = self._loss(logits, targets)
        if config.distill is not None:
            said = torch.stack([teacher(images) for teacher in self.teachers])
            taught = functional.distillation(logits, said, tau=config.distill.tau)
            metrics |= {"label_loss": loss.detach(), "distillation_loss": taught.detach()}
            loss = torch.lerp(loss, taught, config.distill.weight)
        return Output(loss, metrics)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss `[]` of logits `[B, C]` (for LDAM cosines) and labels `[B]` or shares `[B, C]`."""
        loss, counts, smoothing = self.config.loss, self.class_counts, self.config.label_smoothing
        if isinstance(loss, LDAMLoss):
            late, margin, scale = self.progress >= loss.reweight_from, loss.max_margin, loss.scale
            weight = functional.class_balanced_weights(counts, beta=loss.beta) if late else None
            found = functional.ldam(logits, labels, counts, max_margin=margin, scale=scale, weight=weight)
            return found if weight is None else found * share_of_weight(weight[labels], self.ranks).to(found)
        if isinstance(loss, LogitAdjustmentLoss):
            return functional.logit_adjusted(logits, labels, counts, tau=loss.tau, label_smoothing=smoothing)
        if loss == "balanced_softmax":
            return functional.balanced_softmax(logits, labels, counts, label_smoothing=smoothing)
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)

    def facts(self, labels: Tensor) -> dict[str, Any]:
        """Return the hashes of its teachers; see `Objective.facts`."""
        teachers = [teacher.sha256 for teacher in self.teachers]
        return {"teacher_sha256": teachers} if teachers else {}

    def centers(self) -> Centers:
        """Return the equivalent linear classifier, including the scale of a cosine head.

        Losses that use the class counts never push away classes without images: with them, these are masked.
        """
        weight, bias = ((self.config.scale or 1.0) * each for each in as_linear(self.classifier))
        if isinstance(self.config.loss, LDAMLoss):
            weight = self.config.loss.scale * weight
        if self.config.loss != "cross_entropy":
            weight, bias = functional.mask_classes(weight, bias, self.class_counts == 0)
        return Centers(weight, bias, self.class_counts)


def mix(config: MixConfig, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mix image i of the batch with image B - 1 - i, and their labels likewise, with `timm.data.Mixup`.

    Returns new images `[B, 3, H, W]`, and class distributions `[B, C]` for labels `[B]`. The last image of an
    odd batch is not mixed. timm draws from NumPy's global generator, which is seeded here from torch's CPU
    generator, which the training seeds by (seed, step, rank).
    """
    given = {"prob": config.probability, "label_smoothing": 0.0, "num_classes": num_classes}
    mixup = Mixup(config.mixup, config.cutmix, **given)
    even = len(images) // 2 * 2
    before = np.random.get_state()  # noqa: NPY002  # timm's generator
    np.random.seed(int(torch.randint(2**32, (), dtype=torch.int64)))  # noqa: NPY002
    mixed, targets = mixup(images[:even].clone(), labels[:even])  # timm writes into its input
    np.random.set_state(before)  # noqa: NPY002
    return torch.cat([mixed, images[even:]]), torch.cat([targets, one_hot(labels[even:], num_classes)])
