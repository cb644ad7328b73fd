"""MoCo v1 and v2, with the optional feature transformation."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from zoo import functional
from zoo.backbones import feature_dim
from zoo.modules import FeatureTransformConfig, KeyQueue, MomentumEncoder, projection_head, transform
from zoo.objectives.base import Batch, DataInfo, Objective, ObjectiveConfig, Output


class MoCoConfig(ObjectiveConfig):
    """Momentum contrast.

    v1: one head layer, tau 0.07. v2: two head layers, tau 0.2 (and blur among the views, cosine schedule).
    """

    name: Literal["moco"]
    dim: Annotated[int, Field(ge=1)]
    """D, size of the projection."""
    head_layers: Annotated[int, Field(ge=1)]
    head_hidden: Annotated[int, Field(ge=1)]
    """Width between the head's layers; unused with one layer."""
    head_batchnorm: bool
    """BatchNorm before the head's ReLU; the papers' heads have none. Short schedules need it: without, the
    projections of a ReLU network all point one way at first, and leaving that takes thousands of steps."""
    queue_size: Annotated[int, Field(ge=1)]
    """K; need not be a multiple of the batch size."""
    tau: Annotated[float, Field(gt=0)]
    momentum: Annotated[float, Field(ge=0, le=1)]
    """m of the key encoder."""
    key_groups: Annotated[int, Field(ge=1)]
    """Groups of keys with BatchNorm statistics of their own (shuffled BatchNorm on one device); 1: off."""
    feature_transform: FeatureTransformConfig | None


class MoCo(Objective):
    """Instance discrimination against a queue of momentum-encoded keys.

    Source: https://arxiv.org/abs/1911.05722 (v1), https://arxiv.org/abs/2003.04297 (v2).
    """

    Config = MoCoConfig
    num_views = 2

    def __init__(self, config: MoCoConfig, encoder: nn.Module, info: DataInfo) -> None:
        super().__init__(config, encoder, info)
        self.head = projection_head(
            feature_dim(encoder),
            config.dim,
            layers=config.head_layers,
            hidden=config.head_hidden,
            batchnorm=config.head_batchnorm,
        )
        self.teacher = MomentumEncoder(nn.Sequential(encoder, self.head), key_groups=config.key_groups)
        self.queue = KeyQueue(config.queue_size, config.dim)

    def forward(self, batch: Batch) -> Output:
        """Contrast the first view's queries with the second view's keys and the queue."""
        q = F.normalize(self.head(self.encoder(batch.views[0])).float(), dim=1)
        k = F.normalize(self.teacher(batch.views[1]).float(), dim=1)
        queue, valid = self.queue.keys, self.queue.valid
        metrics = _scores("", q, k, queue, valid)

        q_hat, k_hat, queue_hat, valid_hat = q, k, queue, valid
        ft = self.config.feature_transform
        if ft is not None and self.epoch >= ft.start_epoch:
            q_hat, k_hat, queue_hat, valid_hat = transform(q, k, queue, valid, ft)
            metrics |= _scores("_ft", q_hat, k_hat, queue_hat, valid_hat)
        loss = functional.info_nce(q_hat, k_hat, queue_hat, tau=self.config.tau, valid=valid_hat)
        return Output(loss, metrics, carry=k)

    @torch.no_grad()
    def update(self, batch: Batch, output: Output) -> None:
        """Move the key encoder, then enqueue the original keys of this step."""
        self.teacher.update(nn.Sequential(self.encoder, self.head), self.config.momentum)
        self.queue.enqueue(output.carry, batch.labels)


@torch.no_grad()
def _scores(suffix: str, q: Tensor, k: Tensor, queue: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Score statistics whose curves the FT paper reads: https://arxiv.org/abs/2108.02982, section 3."""
    mean, variance = functional.score_moments(q, queue, valid)
    return {
        f"positive_score{suffix}": (q * k).sum(dim=1).mean(),
        f"negative_score{suffix}": mean,
        f"negative_variance{suffix}": variance,
    }
