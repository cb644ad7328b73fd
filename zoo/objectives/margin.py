"""The early margin loss on pairs of the batch."""

import torch

from zoo import functional
from zoo.modules import l2_normalize
from zoo.objectives.base import Batch, Output
from zoo.objectives.config import MarginConfig
from zoo.objectives.momentum_contrast import TwoViews


class Margin(TwoViews):
    """Hadsell's loss on all pairs of the batch's 2B views, on the unit sphere.

    Pairs with an image of unknown class (-1) are left out, since it is unknown whether they should attract.
    Source: Hadsell, Chopra and LeCun 2006, "Dimensionality reduction by learning an invariant mapping".
    """

    Config = MarginConfig

    def forward(self, batch: Batch) -> Output:
        """Compare every view of all ranks with every other; each rank computes the whole loss."""
        a, b = (l2_normalize(self.head(self.encoder(view))) for view in batch.views)
        z = torch.cat(self.ranks.gather(torch.cat([a, b], dim=1)).chunk(2, dim=1))  # [2N, D]
        labels = self.ranks.gather(batch.labels).repeat(2)
        first, second = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
        known = (labels[first] >= 0) & (labels[second] >= 0)
        # unknown pairs become (view, itself), without loss or gradient; selecting would wait for the device
        other = z[torch.where(known, second, first)]
        same = (labels[first] == labels[second]) | ~known
        loss = functional.margin_contrastive(z[first], other, same, margin=self.config.margin)
        # turn the mean over all pairs into that over known ones; the factor is exactly 1 if all are known
        loss = loss * (len(known) / known.sum().clamp(min=1).to(loss.dtype))
        return Output(loss, {}, observed={"q": a, "k": b, "scored": False})
