"""The early margin loss on pairs of the batch."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo import functional
from zoo.functional.checks import to_float32
from zoo.objectives.base import Batch, Output
from zoo.objectives.momentum_contrast import ContrastiveObjective, ProjectionConfig, normalize


class MarginConfig(ProjectionConfig):
    """Same pairs attract, others repel up to a margin."""

    name: Literal["margin"]
    normalize: bool = False
    """Scale projections to unit length, which bounds distances by 2; Hadsell et al. do not."""
    pairs: Literal["class", "instance"] = "class"
    """Which pairs are the same: images of one class, or the two views of one image (no labels needed)."""
    margin: Annotated[float, Field(gt=0)] = 1.0
    """Distance beyond which pairs that are not the same are left alone."""
    squared_margin: bool = False
    """Compare the margin with the squared distance instead of the distance."""


class Margin(ContrastiveObjective):
    """Hadsell's loss on all pairs of the batch's 2B views.

    By class, pairs with an image of unknown class (-1) are left out: whether they are to attract or to repel
    is not known.
    Source: Hadsell, Chopra and LeCun 2006, "Dimensionality reduction by learning an invariant mapping".
    """

    Config = MarginConfig

    @classmethod
    def learns_without_labels(cls, config: MarginConfig) -> bool:
        """See `Objective.learns_without_labels`."""
        return config.pairs == "instance"

    def forward(self, batch: Batch) -> Output:
        """Compare every view with every other."""
        a, b = (to_float32(self.head(self.encoder(view))) for view in batch.views)
        if not self.config.normalize:
            return Output(self._compare(a, b, batch), {})
        a, b = normalize(a), normalize(b)
        return Output(self._compare(a, b, batch), {}, held={"views": (a, b)})

    def _compare(self, a: Tensor, b: Tensor, batch: Batch) -> Tensor:
        """Return the loss of this rank's views `[n, D]` compared with those of all ranks `[N, D]`."""
        z, ranks = torch.cat([a, b]), self.ranks
        identity = batch.labels if self.config.pairs == "class" else batch.index
        if ranks.alone:  # each pair once
            everyone, theirs = z, identity.repeat(2)
            place = torch.arange(len(z), device=z.device)
            first, second = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
        else:  # an own view and any
            everyone = torch.cat(ranks.gather(torch.cat([a, b], dim=1)).chunk(2, dim=1))
            theirs = ranks.gather(identity).repeat(2)
            place = torch.arange(len(theirs), device=z.device).view(2, -1)[:, ranks.own].flatten()
            pairs = torch.arange(len(z) * len(theirs), device=z.device)
            first, second = pairs // len(theirs), pairs % len(theirs)
        own, known = theirs[place[first]], theirs[second] >= 0
        known = known & (own >= 0) & (place[first] != second)
        # a view and itself have neither loss nor gradient; to select pairs would wait for the device
        other = everyone[torch.where(known, second, place[first])]
        same = (own == theirs[second]) | ~known
        margin, squared = self.config.margin, self.config.squared_margin
        loss = functional.margin_contrastive(z[first], other, same, margin=margin, squared_margin=squared)
        # from the mean over these pairs to that over all ranks' known ones: exactly 1 where all are known
        count = (theirs >= 0).sum()
        ordered = len(first) * (2 if ranks.alone else len(theirs) / len(z))
        return loss * (ordered / (count * (count - 1)).clamp(min=1).to(loss.dtype))
