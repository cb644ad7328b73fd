"""The early margin loss on pairs of the batch."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.functional.checks import to_float32
from zoo.objectives import measures
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.momentum_contrast import ProjectionConfig, encode, normalize, projection


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


class Margin(Objective):
    """Hadsell's loss on all pairs of the batch's 2B views.

    By class, pairs with an image of unknown class (-1) are left out: whether they are to attract or to repel
    is not known. (SupCon keeps such images as contrasts, which few of one's own class among many can be; here
    a pair that repels though it is of one class would count like any other.)

    Source: Hadsell, Chopra and LeCun 2006, "Dimensionality reduction by learning an invariant mapping".
    """

    Config = MarginConfig
    num_views = 2

    def __init__(self, config: MarginConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection(encoder, config)

    @classmethod
    def learns_without_labels(cls, config: MarginConfig) -> bool:
        """See `Objective.learns_without_labels`."""
        return config.pairs == "instance"

    def forward(self, batch: Batch) -> Output:
        """Compare every view with every other."""
        features, projected = encode(self.encoder, self.head, batch.views)
        z = torch.cat([to_float32(each) for each in projected])
        if self.config.normalize:
            z = normalize(z)
        output = self._compare(z, batch)
        seen = None
        if self.observing and self.config.normalize:  # the measures are of unit rows
            seen = measures.seen(batch.labels, z.chunk(2))
        return output._replace(features=features, seen=seen)

    def _compare(self, z: Tensor, batch: Batch) -> Output:
        """Compare this rank's views `[2n, D]` with those of all ranks."""
        identity = (batch.labels if self.config.pairs == "class" else batch.index).repeat(2)
        everyone, theirs, place = z, identity, torch.arange(len(z), device=z.device)
        if not self.ranks.alone:
            everyone = torch.cat(self.ranks.gather(torch.cat(z.chunk(2), dim=1)).chunk(2, dim=1))
            theirs = self.ranks.gather(identity[: len(z) // 2]).repeat(2)
            place = torch.arange(len(theirs), device=z.device).view(2, -1)[:, self.ranks.own].flatten()
        # alone, each pair once; on several ranks, an own view and any
        first, second = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
        if not self.ranks.alone:
            pairs = torch.arange(len(z) * len(theirs), device=z.device)
            first, second = pairs // len(theirs), pairs % len(theirs)
        same = identity[first] == theirs[second]
        known = (identity[first] >= 0) & (theirs[second] >= 0) & (place[first] != second)
        # a view and itself have neither loss nor gradient; to select pairs would wait for the device
        a, b = z[first], everyone[torch.where(known, second, place[first])]
        loss = functional.margin_contrastive(
            a, b, same | ~known, margin=self.config.margin, squared_margin=self.config.squared_margin
        )
        # from the mean over these pairs to that over all ranks' known ones: exactly 1 where all are known
        count = (theirs >= 0).sum()
        ordered = len(first) * (2 if self.ranks.alone else len(theirs) / len(z))
        loss = loss * (ordered / (count * (count - 1)).clamp(min=1).to(loss.dtype))
        if not self.observing:
            return Output(loss, {})
        distance, apart = (a - b).detach().norm(dim=1), ~same & known
        own = [(distance * chosen).sum() for chosen in (same & known, apart)]
        own += [chosen.sum().to(distance.dtype) for chosen in (same & known, apart)]
        sums = self.ranks.all_reduce(torch.stack(own))
        return Output(loss, {"same_distance": sums[0] / sums[2], "other_distance": sums[1] / sums[3]})
