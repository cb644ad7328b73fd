"""PiCO: learning from candidate label sets that contain the true label."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import Centers, as_linear, full_logits, value_at
from zoo.objectives.base import Batch, DataInfo, Output
from zoo.objectives.config import PiCOConfig
from zoo.objectives.momentum_contrast import WithKeyEncoder


class PiCO(WithKeyEncoder):
    """A classifier with soft targets, and a contrast that treats images of one predicted class as positives.

    The targets start uniform over each image's candidates and move toward the candidate whose prototype is
    nearest to the image's projection. As in the authors' code the targets move before the step's loss is
    computed, using the prototypes from before the step, and the prototypes move from the first epoch on.
    Source: https://arxiv.org/abs/2201.08984; https://github.com/hbzju/PiCO.
    """

    Config = PiCOConfig

    def __init__(self, config: PiCOConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        assert info.candidates is not None  # the recipe asks for data.partial_labels
        self.classifier = nn.Linear(feature_dim(encoder), len(info.class_counts))
        candidates = info.candidates.float()
        self.targets = nn.Buffer(candidates / candidates.sum(dim=1, keepdim=True))
        self.prototypes = nn.Buffer(torch.zeros(len(info.class_counts), config.dim))

    def forward(self, batch: Batch) -> Output:
        """Classify the weak view against its targets, and contrast both views."""
        assert batch.candidates is not None
        config, warmed_up = self.config, self.epoch >= self.config.prototype_start
        features, pairs = self.encode(batch.views)
        logits = full_logits(self.classifier, features)
        predicted = logits.detach().masked_fill(~batch.candidates, -torch.inf).argmax(dim=1)
        targets = self.targets[batch.index]
        if warmed_up:
            with torch.autocast(pairs.q.device.type, enabled=False):  # bfloat16 would tie near prototypes
                scores = pairs.q.detach() @ self.prototypes.T
            phi = value_at(config.target_momentum, self.progress)
            targets = functional.disambiguate(targets, scores, batch.candidates, phi)
        classification = F.cross_entropy(logits, targets)

        q, k, queue, queue_labels, valid = after_ft = self.apply_ft(pairs, labelled=warmed_up)
        tau = config.tau
        if warmed_up:
            others = self.from_others(q, k, predicted)
            contrast = functional.sup_con(q, k, predicted, queue, queue_labels, tau=tau, others=others)
        else:
            contrast = functional.info_nce(q, k, queue, tau=tau, valid=valid)
        metrics = {
            "classification_loss": classification.detach(),
            "contrast_loss": contrast.detach(),
            "train_accuracy": _agreement(logits.detach(), batch.labels),
            "disambiguation_accuracy": _agreement(targets, batch.labels),
        }
        more = pairs.observed(after_ft, **({"classes": predicted} if warmed_up else {}))
        carry = (pairs.k, pairs.q.detach(), predicted, targets)
        return Output(classification + config.contrast_weight * contrast, metrics, carry, more)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Store the targets, update prototypes and key encoder, enqueue keys with their predicted classes."""
        keys, queries, predicted, targets = output.carry
        self.targets[batch.index] = targets
        momentum = self.config.prototype_momentum
        self.prototypes.copy_(functional.move_prototypes(self.prototypes, queries, predicted, momentum))
        super().update(batch._replace(labels=predicted), output._replace(carry=keys))

    def facts(self, labels: Tensor) -> dict[str, float]:
        """Return the accuracy of the disambiguated labels in percent, over images with known labels."""
        accuracy = _agreement(self.targets, labels).item()  # NaN if no label is known
        return {} if math.isnan(accuracy) else {"disambiguation_accuracy": round(accuracy, 2)}

    def centers(self) -> Centers:
        """Return the classifier's rows, and the prototypes in the projection's space."""
        return Centers(*as_linear(self.classifier), self.class_counts, self.prototypes)


def _agreement(scores: Tensor, labels: Tensor) -> Tensor:
    """Share of rows `[N, C]` whose largest entry is at the label, in percent; m ties count 1 / m each.

    Only images with a known label count.
    """
    known, largest = labels >= 0, scores == scores.amax(dim=1, keepdim=True)
    own = largest.gather(1, labels.clamp(min=0)[:, None]).squeeze(1) / largest.sum(dim=1)
    return 100 * (own * known).sum() / known.sum()
