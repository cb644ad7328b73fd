"""The early margin loss on pairs of the batch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from zoo import functional
from zoo.objectives.base import Batch, DataInfo, Objective, Output
from zoo.objectives.contrast import ProjectionConfig, normalize, projection


class MarginConfig(ProjectionConfig):
    """Same pairs attract, others repel up to a margin."""

    name: Literal["margin"]
    normalize: bool
    """Scale projections to unit length, which bounds distances by 2; Hadsell et al. do not."""
    pairs: Literal["class", "instance"]
    """Which pairs are the same: images of one class, or the two views of one image (no labels needed)."""
    margin: Annotated[float, Field(gt=0)]
    squared_margin: bool
    """Compare the margin with the squared distance instead of the distance."""


class Margin(Objective):
    """Hadsell's loss on all pairs of the batch's 2B views.

    Source: Hadsell, Chopra and LeCun 2006, "Dimensionality reduction by learning an invariant mapping".
    """

    Config = MarginConfig
    num_views = 2

    def __init__(self, config: MarginConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection(encoder, config)

    def forward(self, batch: Batch) -> Output:
        """Compare every view with every other."""
        z = torch.cat([self.head(self.encoder(view)).float() for view in batch.views])
        if self.config.normalize:
            z = normalize(z)
        identity = (batch.labels if self.config.pairs == "class" else batch.index).repeat(2)
        first, second = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
        a, b, same = z[first], z[second], identity[first] == identity[second]
        loss = functional.margin_contrastive(
            a, b, same, margin=self.config.margin, squared_margin=self.config.squared_margin
        )
        with torch.no_grad():
            distance = (a - b).norm(dim=1)
            metrics = {
                "same_distance": (distance * same).sum() / same.sum(),
                "other_distance": (distance * ~same).sum() / (~same).sum(),
            }
        return Output(loss, metrics)

    def constants(self) -> Hashable:
        """See `Objective.constants`."""
        return ()
