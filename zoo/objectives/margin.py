"""The early margin loss on pairs of the batch."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.functional.precision import full
from zoo.objectives import measures
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.contrast import ProjectionConfig, encode, normalize, projection


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
        z = torch.cat([full(each) for each in projected])
        if self.config.normalize:
            z = normalize(z)
        output = self._compare(z, batch)
        seen = None
        if self.observing and self.config.normalize:  # the measures are of unit rows
            seen = measures.seen(batch.labels, z.chunk(2))
        return output._replace(features=features, seen=seen)

    def _compare(self, z: Tensor, batch: Batch) -> Output:
        """Compare the views `[2B, D]`."""
        identity = (batch.labels if self.config.pairs == "class" else batch.index).repeat(2)
        if not self.ranks.alone:
            return self._over_ranks(z, identity)
        first, second = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
        known = (identity[first] >= 0) & (identity[second] >= 0)
        # a view and itself have neither loss nor gradient; to select pairs would wait for the device
        second = torch.where(known, second, first)
        a, b, same = z[first], z[second], identity[first] == identity[second]
        loss = functional.margin_contrastive(
            a, b, same, margin=self.config.margin, squared_margin=self.config.squared_margin
        )
        loss = loss * (len(known) / known.sum().clamp(min=1))  # exactly 1 where all are known
        if not self.observing:
            return Output(loss, {})
        return Output(loss, self._distances((a - b).detach().norm(dim=1), same & known, ~same))

    def _over_ranks(self, z: Tensor, identity: Tensor) -> Output:
        """Compare this rank's views `[2n, D]` with those of all."""
        everyone = torch.cat(self.ranks.gather(torch.cat(z.chunk(2), dim=1)).chunk(2, dim=1))
        theirs = self.ranks.gather(identity[: len(z) // 2]).repeat(2)
        same = identity[:, None] == theirs
        known = (identity >= 0)[:, None] & (theirs >= 0)
        loss = functional.margin_between(
            z,
            everyone,
            same,
            margin=self.config.margin,
            squared_margin=self.config.squared_margin,
            counted=known,
        )
        views, of_known = len(theirs), (theirs >= 0).sum()
        loss = loss * (views * (views - 1) / (of_known * (of_known - 1)).clamp(min=1))
        if not self.observing:
            return Output(loss, {})
        with torch.no_grad():
            distance = torch.cdist(z, everyone, compute_mode="donot_use_mm_for_euclid_dist")
            # of a view and itself it is 0: only in the count they have to be left out
            itself = (identity >= 0).sum()
            return Output(loss, self._distances(distance, same & known, ~same & known, itself))

    def _distances(
        self, distance: Tensor, same: Tensor, other: Tensor, itself: Tensor | int = 0
    ) -> dict[str, Tensor]:
        """Mean distances of all ranks' pairs of both kinds; `itself` of the same ones are no pairs."""
        own = [(distance * same).sum(), same.sum() - itself, (distance * other).sum(), other.sum()]
        sums = self.ranks.sum(torch.stack([each.to(distance.dtype) for each in own]))
        return {"same_distance": sums[0] / sums[1], "other_distance": sums[2] / sums[3]}
